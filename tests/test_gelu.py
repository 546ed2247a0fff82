"""The activation made of few operations is the activation, and so is its gradient; compiled on CUDA in test_cuda_pictures.py."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from regard.nn.gelu import Swift, gelu


def test_few_operations_make_the_same_gelu_and_gradient() -> None:
    x = torch.linspace(-12, 12, 48001).requires_grad_()
    right = x.detach().double().requires_grad_()
    F.gelu(right).sum().backward()
    made = Swift.apply(x)
    made.sum().backward()
    assert (made.double() - F.gelu(right)).abs().max() < 3e-6
    tail = (right > -5) & (right < -1)
    relative = ((made.double() - F.gelu(right)) / F.gelu(right))[tail].abs()
    assert relative.max() < 1e-2, "also where little is left"
    assert x.grad is not None and right.grad is not None and (x.grad.double() - right.grad).abs().max() < 3e-6


def test_elsewhere_it_is_torchs_own() -> None:
    x = torch.randn(100, dtype=torch.bfloat16)
    assert torch.equal(gelu(x), F.gelu(x))
