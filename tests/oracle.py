"""Seeded noise in float64, and comparison of tensors, for tests against reference implementations."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from regard.nn.kernels.dispatch import AttentionCall, choose_kernel
from tiny import near as near
from tiny import noise as noise


def noisy(module: nn.Module, seed: int = 1) -> Any:
    """Overwrite all parameters with noise, because initial values of 0 or 1 hide errors."""
    module = module.double()
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            parameter.copy_(noise(*parameter.shape, seed=100 * seed + number) * 0.5)
    return module


def grads(out: Tensor, wanted: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad((out * noise(*out.shape, seed=77)).sum(), wanted, retain_graph=True))


def kernel_name(q: Any, k: Any, mask: Any, at: Any, dropout: float, recorded: bool, has_bias: bool = False) -> str:
    """Name of the attention kernel for queries and keys, or for objects with the same attributes."""
    record, bias = (lambda weights: weights) if recorded else None, k if has_bias else None
    return choose_kernel(AttentionCall(q, k, k, 1.0, mask, at, dropout, bias, record)).name


def same_with_gradients(ours: Tensor, right: Tensor, leaves: list[Tensor], tolerance: float = 1e-12) -> None:
    near(ours, right, tolerance)
    for one, other in zip(grads(ours, leaves), grads(right, leaves), strict=True):
        near(one, other, tolerance)


def stand_in(rows: int, length: int, dtype: torch.dtype, device: str = "cuda", width: int = 8, heads: int = 2) -> Any:
    """Attributes of queries or keys on a device, to test kernel selection without the device."""
    shape, place = (rows, heads, length, width), SimpleNamespace(type=device)
    return SimpleNamespace(is_cuda=device == "cuda", device=place, dtype=dtype, shape=shape, get_device=lambda: 0)
