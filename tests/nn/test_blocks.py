"""Positions, residuals, blocks, losses and recorded attention against torch modules and plain loops."""

from __future__ import annotations

from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from oracle import grads, near, noise, noisy, same_with_gradients
from regard.nn.attention.masks import Causal, Padding, materialize
from regard.nn.attention.positions import SinusoidalPosition
from regard.nn.blocks.block import Residual, Stack, TokenEmbedding, transformer_block
from regard.nn.kernels.losses import cross_entropy
from regard.nn.recording import is_recording, named_attentions, record_attention
from regard.types import IGNORE

# -- positions


def wave(position: int, channel: int, width: int, base: int = 10000) -> float:
    """Section 3.5 of the paper with 50 digits: channel 2i is sin(p / base^(2i/D)), channel 2i + 1 its cosine."""
    with mpmath.workdps(50):
        angle = position / mpmath.power(base, mpmath.mpf(channel - channel % 2) / width)
        return float(mpmath.cos(angle) if channel % 2 else mpmath.sin(angle))


@pytest.mark.parametrize("width", [2, 6, 7, 1])
@pytest.mark.parametrize("base", [10000, 100])
def test_the_interleaved_sinusoid_is_the_formula_of_the_paper(width: int, base: int) -> None:
    places = [0, 1, 2, 50, 511, 5000]
    right = torch.tensor([[wave(p, c, width, base) for c in range(width)] for p in places], dtype=torch.float64)
    ours = SinusoidalPosition(width, "interleaved", base)(torch.tensor(places))
    assert ours.dtype == torch.float64 and (ours - right).abs().max() < 5e-12


@pytest.mark.parametrize("width", [8, 7])
def test_halves_are_the_sines_and_then_the_cosines_of_the_same_channels(width: int) -> None:
    where = torch.tensor([[0, 3, 9], [700, 2, 2]])
    mixed, halves = SinusoidalPosition(width, "interleaved")(where), SinusoidalPosition(width)(where)
    assert halves.shape == (2, 3, width)
    assert torch.equal(halves, mixed[..., [*range(0, width, 2), *range(1, width, 2)]])


# -- residuals and blocks


@pytest.mark.parametrize("placement", ["pre", "post", None])
def test_dropout_applies_to_the_layer_and_never_to_the_residual_path(placement: Any) -> None:
    residual, x = noisy(Residual(nn.Linear(4, 4), 4, placement, dropout=0.5)).train(), noise(2000, 4)
    plain = x + residual.inner(residual.norm(x) if placement == "pre" else x)
    torch.manual_seed(0)
    added = F.dropout(plain - x, 0.5)
    torch.manual_seed(0)
    near(residual(x), residual.norm(x + added) if placement == "post" else x + added)


def test_a_stack_runs_its_blocks_in_order_and_returns_the_requested_states() -> None:
    blocks = [noisy(transformer_block(4, 2, 6, cross=True), seed) for seed in (1, 2, 3)]
    norm, x, context = noisy(nn.LayerNorm(4), 9), noise(2, 3, 4), noise(2, 5, 4, seed=1)
    states, rules = [x], {"mask": Causal(), "context_mask": Padding(torch.tensor([2, 5]))}
    for block in blocks:
        states.append(block(states[-1], context, **rules))
    last, taps = Stack(blocks, norm)(x, context, **rules, taps=[2, 0])
    near(last, norm(states[3]))
    assert [torch.equal(tap, state) for tap, state in zip(taps, (states[1], states[3]), strict=True)] == [True, True]
    bare, none = Stack(blocks)(x, context, **rules)
    assert torch.equal(bare, states[3]) and none == ()


@pytest.mark.parametrize("bias", [True, False])
def test_token_embeddings_are_scaled_rows_of_a_table(bias: bool) -> None:
    tokens, ids = noisy(TokenEmbedding(7, 4, bias=bias)), torch.tensor([[1, 6, 1]])
    near(tokens(ids), tokens.table.weight[[1, 6, 1]][None] * 2.0)
    assert sum(p.numel() for p in tokens.parameters()) == 28 + 7 * bias
    plain = noisy(TokenEmbedding(7, 4, scaled=False))
    near(plain(ids), plain.table.weight[ids])
    assert abs(TokenEmbedding(500, 64).table.weight.detach().std().item() - 1 / 8) < 0.003


# -- losses


def smoothed(logits: Tensor, labels: list[int], epsilon: float) -> tuple[Tensor, int]:
    """-Σ t_c log p_c with t = 1 - ε for the label and ε / (V - 1) for each other class, in loops."""
    total, count = logits.new_zeros(()), 0
    for row, label in zip(logits, labels, strict=True):
        if label == -100:
            continue
        log_sum = torch.log(sum(torch.exp(value) for value in row))
        for c, value in enumerate(row):
            total = total - (1 - epsilon if c == label else epsilon / (len(row) - 1)) * (value - log_sum)
        count += 1
    return total, count


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.4])
def test_smoothing_spreads_its_probability_over_the_other_classes(epsilon: float) -> None:
    logits, labels = (2 * noise(6, 5)).requires_grad_(), [3, -100, 0, 4, 4, -100]
    total, count = cross_entropy(logits.view(2, 3, 5), torch.tensor(labels).view(2, 3), epsilon)
    right, asked = smoothed(logits, labels, epsilon)
    assert IGNORE == -100 and int(count) == asked == 4 and total.ndim == count.ndim == 0
    same_with_gradients(total, right, [logits])
    torchs = F.cross_entropy(logits, torch.tensor(labels), reduction="sum", label_smoothing=epsilon)
    assert ((torchs - right).abs().item() > 0.01) == (epsilon > 0)


def test_without_labels_there_is_no_loss_and_no_count() -> None:
    logits = noise(3, 5).requires_grad_()
    total, count = cross_entropy(logits, torch.full((3,), IGNORE), 0.1)
    assert total.item() == 0.0 and int(count) == 0 and not grads(total, [logits])[0].any()


def test_sixteen_bits_are_summed_in_thirty_two() -> None:
    logits = noise(400, 50).bfloat16()
    total, _ = cross_entropy(logits, torch.arange(400) % 50, 0.1)
    assert total.dtype == torch.float32
    near(total.double(), cross_entropy(logits.double(), torch.arange(400) % 50, 0.1)[0], 1e-5)


def test_an_invalid_label_is_not_trained_as_another() -> None:
    logits = noise(3, 5).requires_grad_()
    with pytest.raises((RuntimeError, IndexError)):
        cross_entropy(logits, torch.tensor([1, -1, 2]))[0].backward()
    total, count = cross_entropy(noise(2, 1).requires_grad_(), torch.zeros(2, dtype=torch.long), 0.1)
    assert float(total.detach()) == 0.0 and int(count) == 2


# -- recorded attention


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = (Stack([transformer_block(6, 2, 8, cross=cross)]) for cross in (False, True))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        context, _ = self.encoder(x, mask=Padding(torch.tensor([3, 2])))
        return self.decoder(y, context, mask=Causal())[0]


NAMES = ["encoder.blocks.0.attend", "decoder.blocks.0.attend", "decoder.blocks.0.cross"]


def test_recording_returns_the_weights_and_changes_nothing() -> None:
    model, x, y = noisy(Pair()), noise(2, 3, 6), noise(2, 4, 6, seed=1)
    with torch.no_grad():
        before = model(x, y)
        with record_attention(model) as seen:
            near(model(x, y), before)
        for name, states, mask in zip(NAMES, (x, y), (Padding(torch.tensor([3, 2])), Causal()), strict=False):
            q, k, _ = model.get_submodule(name).inner.project(states)
            places = torch.arange(states.shape[1])
            hidden = ~materialize(mask, 2, 2, places, places)
            near(seen.weights(name), (q @ k.mT / 3**0.5).masked_fill(hidden, -torch.inf).softmax(-1))
    assert seen.names() == NAMES == list(named_attentions(model)) and seen.weights(NAMES[2]).shape == (2, 2, 4, 3)
    for look in seen.records:
        near(look.weights.sum(-1), torch.ones(look.weights.shape[:-1], dtype=torch.float64))
    model(x, y)
    assert len(seen.records) == 3


def test_only_named_modules_are_recorded_and_an_unknown_name_is_refused() -> None:
    model, x, y = noisy(Pair()), noise(2, 3, 6), noise(2, 4, 6, seed=1)
    with record_attention(model, [NAMES[2]]) as seen:
        model(x, y)
    assert seen.names() == [NAMES[2]]
    with (
        pytest.raises(ValueError, match=r"blocks\.7.*encoder\.blocks\.0\.attend"),
        record_attention(model, ["decoder.blocks.7.cross"]),
    ):
        pass
    with pytest.raises(RuntimeError, match="torn"), record_attention(model):
        raise RuntimeError("torn")
    assert not is_recording()
