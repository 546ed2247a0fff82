"""Numbers printed in the lectures, computed by our modules.

Some slides have errors. For these slides, our modules give the correct result, and the test shows the wrong formula
that gives the printed numbers.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.nn.attention.attention import Attention
from regard.nn.attention.masks import AttentionMask, Causal, materialize
from regard.nn.attention.positions import SinusoidalPosition
from regard.nn.blocks.block import Residual, transformer_block
from regard.nn.recording import record_attention

LECTURES = json.loads((Path(__file__).parents[1] / "fixtures" / "lectures.json").read_text(encoding="utf-8"))


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def reading(example: str, name: str | None = None) -> dict[str, Any]:
    """The named formula of an example, by default the correct one."""
    return LECTURES[example]["readings"][name or LECTURES[example]["right"]]


def near(ours: Tensor, right: Any, tolerance: float = 1e-12) -> None:
    right = tensor(right)
    assert ours.shape == right.shape and (ours - right).abs().max() <= tolerance * right.abs().max()


def apart(ours: Tensor, other: Any, gap: float) -> None:
    assert (ours - tensor(other)).abs().max() > gap


def printed(value: Tensor, shown: Any, digits: int) -> bool:
    """Whether the value agrees with a slide that rounds or truncates after this many digits."""
    return bool(((value - tensor(shown)).abs() < 10.0**-digits).all())


def seen_and_said(
    attention: Attention, x: Any, context: Any = None, rule: AttentionMask | None = None
) -> tuple[Tensor, Tensor]:
    """Attention weights (H, Q, K) and output (Q, D) of one row."""
    with torch.no_grad(), record_attention(attention) as seen:
        out = attention(tensor(x)[None], None if context is None else tensor(context)[None], mask=rule)
    return seen.records[0].weights[0], out[0]


def bare(width: int, context: int | None = None, scale: float | None = None) -> Attention:
    """One head with identity projections, which is equation 1. Another scale is multiplied into the queries."""
    attention = Attention(width, 1, context, bias=False).double()
    with torch.no_grad():
        for line in attention.children():
            line.weight.copy_(torch.eye(width).repeat(len(line.weight) // width, 1))
        if scale is not None:
            (attention.qkv if context is None else attention.q).weight[:width] *= scale * width**0.5
    return attention


def two_heads(context: int | None = None) -> Attention:
    """Attention with the matrices of W27, which multiply rows from the right as on the slides."""
    given = LECTURES["W27"]["inputs"]
    attention = Attention(4, given["h"], context, bias=False).double()
    q, k, v, out = (tensor(given[name]).T for name in ("WQ", "WK", "WV", "WO"))
    lines = {"q": q, "kv": torch.cat([k, v]), "qkv": torch.cat([q, k, v]), "out": out}
    attention.load_state_dict({name: lines[name.removesuffix(".weight")] for name in attention.state_dict()})
    return attention


def attended(example: str, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Weights and output of the attention of an example by one of its formulas, by default the correct one."""
    given, right = LECTURES[example]["inputs"], reading(example, name)
    if example == "W27":
        x, cross = given["X"], name == "cross"
        rule = Causal() if name == "masked" else None
        return seen_and_said(two_heads(4 if cross else None), x[:2] if cross else x, x if cross else None, rule)
    scale = 1 / right.get("divisor", 1.0) if name not in (None, LECTURES[example]["right"]) else None
    words, context = given["X_rows" if example == "W21" else "Q"], given["K"] if example == "W01" else None
    return seen_and_said(bare(2, context and 2, scale), words, context, Causal() if example == "W02" else None)


FORMULAS = [
    (example, name)
    for example in ("W01", "W02", "W21", "W27")
    for name in LECTURES[example]["readings"]
    if name != "mixed_rows"
]


@pytest.mark.parametrize(("example", "name"), FORMULAS)
def test_attention_gives_the_numbers_of_every_formula_by_default_of_the_correct_one(example: str, name: str) -> None:
    weights, out = attended(example, name)
    right = reading(example, name)
    near(out, right["out_rows" if example == "W21" else "out"])
    if "alpha" in right:
        near(weights if example == "W27" else weights[0], right["alpha"])
    if example != "W27" and name != LECTURES[example]["right"]:
        apart(attended(example)[1], out.tolist(), 1e-3)


def test_w01_w02_scores_are_divided_by_the_root_of_the_width() -> None:
    """W01 divides by 3, the number of keys, and truncates. W02 prints scores divided by 4, and results without a scale."""
    x, slide = LECTURES["W01"]["inputs"], LECTURES["W01"]["slide"]
    near(bare(2).scale * tensor(x["Q"]) @ tensor(x["K"]).T, reading("W01")["scaled"])
    assert printed(tensor(slide["scores"]) / 3, slide["scaled"], 4)
    for name in (None, "by_number_of_keys"):
        weights, out = attended("W01", name)
        assert printed(weights[0], slide["alpha"], 2) == printed(out, slide["out"], 2) == bool(name)
    apart(attended("W01")[1], reading("W01", "mixed_rows")["out"], 1.0)
    slide = LECTURES["W02"]["slide"]
    near(tensor(slide["scores"]) / 4, slide["scaled"])
    for name in (None, "unscaled", "by_number_of_tokens"):
        weights, out = attended("W02", name)
        assert not weights[0].triu(1).any()
        assert printed(out, slide["out"], 6) == printed(weights[0], slide["alpha"], 4) == (name == "unscaled")
    apart(attended("W02")[1], slide["out"], 1e-2)


def test_w03_w21_attention_is_causal_and_permuted_words_give_permuted_outputs() -> None:
    table = materialize(Causal(), 1, 1, torch.arange(4), torch.arange(4))[0, 0]
    near(table.double(), LECTURES["W03"]["slide"]["mask"])
    assert (int(table.sum()), int((~table).sum())) == (reading("W03")["visible"], reading("W03")["hidden"])
    x, order = tensor(LECTURES["W21"]["inputs"]["X_rows"]), LECTURES["W21"]["inputs"]["permutation"]
    out = attended("W21")[1]
    near(out.T, reading("W21")["out_columns"])
    near(seen_and_said(bare(2), x[order].tolist())[1], out[order].tolist())
    apart(out, reading("W21", "unscaled")["out_rows"], 1e-2)


def test_w05_layer_norm_divides_by_the_deviation_of_the_row_itself() -> None:
    """Correct is the population (÷ 5); the slide divides by 4 (sample), and labels 7 × 5 numbers as 7 × 3."""
    x, slide, right = tensor(LECTURES["W05"]["inputs"]["X"]), LECTURES["W05"]["slide"], reading("W05")
    nothing = nn.Threshold(math.inf, 0.0)  # maps all numbers to 0
    ours = Residual(nothing, 5, "post").double()(x[None])[0].detach()
    near(ours, right["normalised"])
    near(x.mean(-1), right["mean"])
    assert printed(x.mean(-1), slide["mean"], 2) and tuple(x.shape) == (7, 5)
    centred = x - x.mean(-1, keepdim=True)
    sample, population = ((centred**2).sum(-1, keepdim=True).div(n).sqrt() for n in (4, 5))
    assert printed(sample[:, 0], slide["std"], 2) and not printed(population[:, 0], slide["std"], 2)
    near(population[:, 0], right["std"])
    near(centred / (sample**2 + 1e-5).sqrt(), reading("W05", "sample")["normalised"])
    apart(ours, reading("W05", "sample")["normalised"], 0.1)


def test_w06_w07_w08_waves_start_at_frequency_one_and_an_odd_width_ends_with_a_sine() -> None:
    """Correct is k from 0 and base 10000; with k from 1 the fastest wave is missing."""
    where = torch.tensor(LECTURES["W06"]["inputs"]["positions"])
    ours = SinusoidalPosition(4, "interleaved")(where)
    near(ours, reading("W06")["P"])
    near(SinusoidalPosition(4, "halves")(where), tensor(reading("W06")["P"])[:, [0, 2, 1, 3]].tolist())
    near(SinusoidalPosition(4, "interleaved", base=100)(where), reading("W06", "from_0_base_100")["P"])
    for other in ("from_1_base_10000", "from_0_base_100"):
        apart(ours, reading("W06", other)["P"], 0.05)
    positions = SinusoidalPosition(5, "interleaved")(torch.tensor(LECTURES["W07"]["inputs"]["positions"]))
    near(positions, reading("W07")["p"])
    near(tensor(reading("W07")["e"]) + positions, LECTURES["W07"]["slide"]["sum"])
    positions = SinusoidalPosition(2, "interleaved")(torch.arange(3))
    near(positions, reading("W08")["PE"])
    near(tensor(LECTURES["W08"]["inputs"]["V"]) + positions, reading("W08")["out"])


def test_w09_positions_are_bounded_of_one_length_and_one_step_apart() -> None:
    size, right = LECTURES["W09"]["inputs"], reading("W09")
    waves = SinusoidalPosition(size["d"], "interleaved", size["base"])(torch.arange(size["T"]))
    assert abs(float(waves.min()) - right["min"]) < 1e-12 and float(waves.max()) == right["max"]
    near((waves**2).sum(-1), [right["norm_sq_every_row"]] * size["T"])
    steps = (waves[1:] - waves[:-1]).norm(dim=-1)
    assert right["step_distance_min"] - 1e-9 < steps.min() and steps.max() < right["step_distance_max"] + 1e-9
    # similarity depends on the distance alone, and no two positions are equal
    waves = SinusoidalPosition(512, "interleaved")(torch.arange(2000)) / 16
    alike = waves @ waves.T
    by_distance = alike[0]
    near(by_distance[:21], right["similarity_by_offset_0_to_20"])
    for start in (1, 700, 1900):
        assert (alike[start, start : start + 100] - by_distance[:100]).abs().max() < 1e-11
    nearest = float((alike - 2 * torch.eye(2000)).max())
    assert abs(nearest - right["max_cosine_between_distinct_positions_first_2000"]) < 1e-9
    rises = next(n for n in range(1, 100) if by_distance[n] > by_distance[n - 1])
    assert rises == right["first_offset_where_similarity_rises"]


def test_w28_a_block_of_2017_normalises_after_it_adds() -> None:
    """Correct is a feed-forward layer of two matrices with a ReLU between; one lecture has a single matrix."""
    given, right = LECTURES["W28"]["inputs"], reading("W28")
    block = transformer_block(4, 2, 8, eps=given["eps"]).double()
    attention, feed, x = two_heads().state_dict(), block.feed.inner, tensor(LECTURES["W27"]["inputs"]["X"])
    block.attend.inner.load_state_dict(attention, strict=False)  # biases keep their initial value 0
    feed.load_state_dict({
        "up.weight": tensor(given["W1"]).T, "up.bias": tensor(given["b1"]),
        "down.weight": tensor(given["W2"]).T, "down.bias": tensor(given["b2"]),
    })  # fmt: skip
    with torch.no_grad():
        near(block.attend(x[None])[0], right["after_attention"])
        near(block(x[None])[0], right["out"])
        middle = tensor(right["after_attention"])
        single = nn.functional.layer_norm(middle + middle @ tensor(given["W1"]) @ tensor(given["W2"]), (4,))
        near(single, reading("W28", "single_matrix_feed")["out"])
        apart(block(x[None])[0], reading("W28", "single_matrix_feed")["out"], 0.1)
