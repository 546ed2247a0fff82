"""The first matrix of a feed-forward layer with the GELU behind it in one kernel: CUDA, sixteen bits, where nothing learns.

cuBLAS takes the sums in float32 and writes them once. The GELU it knows is the one made of tanh, also where the exact one is
asked for: they differ by at most 5e-4, which is less than what is lost where sums are rounded to sixteen bits before the exact
one is taken, so the result is nearer to that of float64 than the two kernels' (tests/test_cuda_pictures.py holds that). In
inference of ViT-B/16 the second kernel was an eighth of the time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard import capabilities
from regard.nn.kernels.linear import packed_linear_activation

ACTIVATIONS = ("gelu", "gelu_tanh")
MIN_ROWS = 64
"""Fewer rows than this are read by other kernels."""


def linear_gelu_forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    return capabilities.linear_gelu(rows, weight, bias).view(*x.shape[:-1], len(weight))


linear_gelu = torch.library.custom_op(
    "regard::raised", linear_gelu_forward, mutates_args=(), schema="(Tensor x, Tensor weight, Tensor bias) -> Tensor"
)
"""torch.compile would take it apart again: it is one operator to it."""


@linear_gelu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(weight))


def is_supported(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> bool:
    if not (x.is_cuda and activation in ACTIVATIONS) or bias is None or torch.is_grad_enabled():
        return False
    if x.dtype not in (torch.bfloat16, torch.float16) or weight.dtype != x.dtype or len(weight) % 8:
        return False
    if x.numel() < MIN_ROWS * x.shape[-1] or torch.is_autocast_enabled("cuda"):
        return False
    return capabilities.is_available("linear_gelu")


def linear_activation(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor | None:
    """The layer and its activation in one kernel, wherever one serves; None where none does."""
    if bias is not None and is_supported(x, weight, bias, activation):
        return linear_gelu(x, weight, bias)
    return packed_linear_activation(x, weight, bias, activation)
