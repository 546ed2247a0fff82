"""Sinusoids, dropout of residuals, and losses against formulas."""

from __future__ import annotations

from typing import Any

import mpmath
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from oracle import near, noise, noisy, same_with_gradients
from regard.nn.attention.positions import SinusoidalPosition
from regard.nn.blocks.block import Residual
from regard.nn.kernels.losses import cross_entropy
from regard.types import IGNORE


def wave(position: int, channel: int, width: int, base: int = 10000) -> float:
    """Section 3.5 of the paper with 50 digits: channel 2i is sin(p / base^(2i/D)), channel 2i + 1 its cosine."""
    with mpmath.workdps(50):
        angle = position / mpmath.power(base, mpmath.mpf(channel - channel % 2) / width)
        return float(mpmath.cos(angle) if channel % 2 else mpmath.sin(angle))


@pytest.mark.parametrize("width", [2, 6, 7, 1])
@pytest.mark.parametrize("base", [10000, 100])
def test_sinusoids_are_the_formula_of_the_paper_in_both_layouts(width: int, base: int) -> None:
    places = [0, 1, 2, 50, 511, 5000]
    right = torch.tensor([[wave(p, c, width, base) for c in range(width)] for p in places], dtype=torch.float64)
    ours = SinusoidalPosition(width, "interleaved", base)(torch.tensor(places))
    assert ours.dtype == torch.float64 and (ours - right).abs().max() < 5e-12
    halves = SinusoidalPosition(width, base=base)(torch.tensor([places]))
    assert torch.equal(halves[0], ours[:, [*range(0, width, 2), *range(1, width, 2)]]), "first all sines"


@pytest.mark.parametrize("placement", ["pre", "post", None])
def test_dropout_applies_to_the_layer_and_never_to_the_residual_path(placement: Any) -> None:
    residual, x = noisy(Residual(nn.Linear(4, 4), 4, placement, dropout=0.5)).train(), noise(2000, 4)
    plain = x + residual.inner(residual.norm(x) if placement == "pre" else x)
    torch.manual_seed(0)
    added = F.dropout(plain - x, 0.5)
    torch.manual_seed(0)
    near(residual(x), residual.norm(x + added) if placement == "post" else x + added)


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.4])
def test_smoothing_spreads_its_probability_over_the_other_classes(epsilon: float) -> None:
    logits, labels = (2 * noise(6, 5)).requires_grad_(), [3, -100, 0, 4, 4, -100]
    total, count = cross_entropy(logits.view(2, 3, 5), torch.tensor(labels).view(2, 3), epsilon)
    targets = torch.full((4, 5), epsilon / 4, dtype=torch.float64)
    targets[range(4), [3, 0, 4, 4]] = 1 - epsilon
    right = -(targets * logits[[0, 2, 3, 4]].log_softmax(-1)).sum()
    assert IGNORE == -100 and int(count) == 4 and total.ndim == count.ndim == 0
    same_with_gradients(total, right, [logits])
    torchs = F.cross_entropy(logits, torch.tensor(labels), reduction="sum", label_smoothing=epsilon)
    assert ((torchs - right).abs().item() > 0.01) == (epsilon > 0)


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
