"""Seeded noise in float64, and comparison of tensors, for tests against reference implementations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def noisy(module: nn.Module, seed: int = 1) -> Any:
    """Overwrite all parameters with noise, because initial values of 0 or 1 hide errors."""
    module = module.double()
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            parameter.copy_(noise(*parameter.shape, seed=100 * seed + number) * 0.5)
    return module


def near(ours: Tensor, right: Tensor, tolerance: float = 1e-12) -> None:
    assert ours.shape == right.shape and ours.isfinite().all()
    gap = (ours - right).detach().abs().max() if right.numel() else torch.zeros(())
    assert gap <= tolerance * max(1e-300, float(right.detach().abs().max())), f"they differ by {gap:.3g}"


def grads(out: Tensor, wanted: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad((out * noise(*out.shape, seed=77)).sum(), wanted, retain_graph=True))
