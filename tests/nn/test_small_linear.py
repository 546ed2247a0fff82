"""Packed weights for few rows on the CPU: equal products, updated after weight changes."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from regard.capabilities import is_available
from regard.nn.blocks.block import FeedForward
from regard.nn.kernels.linear import (
    PACKED_CAPABILITIES,
    Linear,
    _packed_weights,
    linear,
    linear_activation,
    recheck_packed,
)


def packs(dtype: torch.dtype) -> bool:
    """Whether this CPU supports packed weights of a dtype; results are equal without support."""
    return is_available(PACKED_CAPABILITIES[dtype])


def said(layer: Linear, x: torch.Tensor) -> torch.Tensor:
    recheck_packed()  # as at the start of every search
    with torch.inference_mode():
        return layer(x)


@pytest.mark.parametrize(("rows", "shape"), [(1, (300, 400)), (4, (300, 400)), (200, (64, 32)), (300, (300, 400))])
@pytest.mark.parametrize("bias", [True, False])
def test_packed_weights_equal_plain_weights(rows: int, shape: tuple[int, int], bias: bool) -> None:
    layer = Linear(shape[1], shape[0], bias)
    x = torch.randn(2, rows, shape[1])[:1]
    assert torch.allclose(said(layer, x), F.linear(x, layer.weight, layer.bias), atol=1e-5)
    assert (layer.weight in _packed_weights) == (rows <= 256 and packs(torch.float32))


@pytest.mark.parametrize("rows", [1, 4, 100])
def test_packed_weights_of_bfloat16_equal_plain_weights(rows: int) -> None:
    layer = Linear(400, 300).bfloat16()
    x = torch.randn(rows, 400).bfloat16()
    right = F.linear(x.float(), layer.weight.float(), layer.bias.float())
    assert torch.allclose(said(layer, x).float(), right, atol=2e-2, rtol=2e-2)
    assert (layer.weight in _packed_weights) == packs(torch.bfloat16)
    with torch.no_grad():
        layer.weight.data.mul_(2)
    doubled = 2 * (right - layer.bias.float()) + layer.bias.float()
    assert torch.allclose(said(layer, x).float(), doubled, atol=4e-2, rtol=2e-2)


@pytest.mark.parametrize("kind", ["relu", "gelu", "gelu_tanh"])
def test_bias_and_activation_of_many_rows_are_in_the_kernel_of_the_product(kind: str) -> None:
    feed = FeedForward(64, 96, kind).bfloat16()
    torch.nn.init.normal_(feed.up.bias)
    x = torch.randn(3, 200, 64).bfloat16()
    exact = copy.deepcopy(feed).double()
    right = exact.activation(exact.up(x.double()))
    with torch.inference_mode():
        made = linear_activation(x, feed.up.weight, feed.up.bias, kind)
        assert (made is not None) == (feed.up.weight in _packed_weights) == packs(torch.bfloat16)
        if made is not None:
            assert made.shape == right.shape and (made - right).norm() < 4e-3 * right.norm()
        assert (feed(x) - exact(x.double())).norm() < 1e-2 * exact(x.double()).norm()
        assert (linear(x, feed.up.weight, feed.up.bias) - exact.up(x.double())).norm() < 4e-3 * right.norm()
        assert linear_activation(x[:1], feed.up.weight, feed.up.bias, kind) is None, "few rows"
        assert linear_activation(x.float(), feed.up.weight.float(), feed.up.bias.float(), kind) is None
    assert linear_activation(x, feed.up.weight, feed.up.bias, kind) is None, "with gradients"


def test_dropout_follows_a_kernel_with_its_activation_too() -> None:
    feed = FeedForward(64, 96, "relu", dropout=0.5).bfloat16().train()
    x = torch.randn(400, 64).bfloat16()
    with torch.inference_mode():
        assert not torch.equal(feed(x), feed(x)) and torch.equal(feed.eval()(x), feed(x))


def test_trained_wide_and_float64_layers_are_not_packed() -> None:
    layer = Linear(300, 400)
    assert layer(torch.randn(4, 300)).requires_grad and layer.weight not in _packed_weights
    double = layer.double()
    with torch.inference_mode():
        assert linear(torch.randn(4, 300).double(), double.weight).dtype == torch.float64
    assert double.weight not in _packed_weights


def fused_step(layer: Linear) -> None:
    layer(torch.randn(4, 300)).sum().backward()
    torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True).step()


CHANGES: dict[str, Callable[[Linear], object]] = {
    "a fused optimizer": fused_step,
    "rows exchanged": lambda layer: layer.weight.data.copy_(layer.weight.data.flip(0)),
    "through numpy": lambda layer: np.add.at(layer.weight.detach().numpy(), (3, 4), 1),
    "other data": lambda layer: setattr(layer.weight, "data", torch.randn(400, 300)),
    "in place": lambda layer: layer.weight.data.mul_(2),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_weights_are_packed_again(change: str) -> None:
    layer, x = Linear(300, 400), torch.randn(4, 300)
    before = said(layer, x)
    CHANGES[change](layer)
    after = said(layer, x)
    assert torch.allclose(after, F.linear(x, layer.weight, layer.bias), atol=1e-4)
    assert not torch.allclose(after, before, atol=1e-3)
