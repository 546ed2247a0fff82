"""Worked numbers of the lectures, computed by our modules; the examples are in tests/fixtures/lectures.json.

Where a slide has an error, the numbers are those of the correct formula: scores divided by the root of the width (W01, W02),
the deviation of the population (W05), frequencies from 1 with the base 10000 (W06), a feed-forward layer of two matrices (W28).
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from regard.nn.attention.attention import Attention
from regard.nn.attention.masks import AttentionMask, Causal, materialize
from regard.nn.attention.positions import SinusoidalPosition
from regard.nn.blocks.block import Residual, transformer_block
from regard.nn.recording import record_attention
from tiny import lecture, near


def attended(
    attention: Attention, x: Tensor, context: Tensor | None = None, rule: AttentionMask | None = None
) -> tuple[Tensor, Tensor]:
    """Attention weights (H, Q, K) and output (Q, D) of one row."""
    with torch.no_grad(), record_attention(attention) as seen:
        out = attention(x[None], None if context is None else context[None], mask=rule)
    return seen.records[0].weights[0], out[0]


def bare(context: int | None = None) -> Attention:
    """One head with identity projections, which is equation 1."""
    attention = Attention(2, 1, context, bias=False).double()
    with torch.no_grad():
        for line in attention.children():
            line.weight.copy_(torch.eye(2).repeat(len(line.weight) // 2, 1))
    return attention


def two_heads(context: int | None = None) -> Attention:
    """Attention with the matrices of W27, which multiply rows from the right as on the slides."""
    given, _ = lecture("W27")
    attention = Attention(4, 2, context, bias=False).double()
    q, k, v, out = (given[name].T for name in ("WQ", "WK", "WV", "WO"))
    lines = {"q": q, "kv": torch.cat([k, v]), "qkv": torch.cat([q, k, v]), "out": out}
    attention.load_state_dict({name: lines[name.removesuffix(".weight")] for name in attention.state_dict()})
    return attention


def test_w01_w02_w03_w21_one_head_with_scores_divided_by_the_root_of_the_width() -> None:
    for example, context, rule in (("W01", 2, None), ("W02", None, Causal())):
        given, right = lecture(example)
        weights, out = attended(bare(context), given["Q"], given.get("K"), rule)
        near(weights[0], right["alpha"])
        near(out, right["out"])
    near(materialize(Causal(), 1, 1, torch.arange(4), torch.arange(4))[0, 0].double(), lecture("W03")[1]["mask"])
    given, right = lecture("W21")
    for order in (torch.arange(len(given["X"])), given["order"].long()):  # permuted words give permuted outputs
        near(attended(bare(), given["X"][order])[1], right["out"][order])


@pytest.mark.parametrize("name", ["self_attention", "masked", "cross"])
def test_w27_two_heads(name: str) -> None:
    (x, right), rule = (lecture("W27")[0]["X"], lecture("W27")[1]), Causal() if name == "masked" else None
    weights, out = attended(two_heads(4), x[:2], x) if name == "cross" else attended(two_heads(), x, rule=rule)
    near(weights, right[f"{name} alpha"])
    near(out, right[f"{name} out"])


def test_w05_layer_norm_divides_by_the_deviation_of_the_row_itself() -> None:
    given, right = lecture("W05")
    nothing = nn.Threshold(math.inf, 0.0)  # maps all numbers to 0
    near(Residual(nothing, 5, "post").double()(given["X"][None])[0], right["normalised"])


def test_w06_to_w09_waves_start_at_frequency_one_and_an_odd_width_ends_with_a_sine() -> None:
    given, right = lecture("W06")
    where = given["positions"].long()
    near(SinusoidalPosition(4, "interleaved")(where), right["P"])
    near(SinusoidalPosition(4, "halves")(where), right["P"][:, [0, 2, 1, 3]])
    near(SinusoidalPosition(4, "interleaved", base=100)(where), right["P_base_100"])
    near(SinusoidalPosition(5, "interleaved")(lecture("W07")[0]["positions"].long()), lecture("W07")[1]["p"])
    near(SinusoidalPosition(2, "interleaved")(torch.arange(3)), lecture("W08")[1]["PE"])
    waves = SinusoidalPosition(512, "interleaved")(torch.arange(2000)) / 16
    for start in (0, 1900):  # the similarity depends on the distance alone
        near(waves[start : start + 21] @ waves[start], lecture("W09")[1]["similarity"], 1e-11)


def test_w28_a_block_of_2017_normalises_after_it_adds() -> None:
    given, right = lecture("W28")
    block, x = transformer_block(4, 2, 8, eps=1e-5).double(), lecture("W27")[0]["X"]
    block.attend.inner.load_state_dict(two_heads().state_dict(), strict=False)  # biases keep their initial value 0
    for layer, weight, bias in (("up", "W1", "b1"), ("down", "W2", "b2")):
        block.feed.inner.get_submodule(layer).load_state_dict({"weight": given[weight].T, "bias": given[bias]})
    with torch.no_grad():
        near(block.attend(x[None])[0], right["after_attention"])
        near(block(x[None])[0], right["out"])
