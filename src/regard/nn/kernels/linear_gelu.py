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
from regard.nn.kernels.linear import activated

KINDS = ("gelu", "gelu_tanh")
ROWS = 64
"""Fewer rows than this are read by other kernels."""


def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    return capabilities.linear_gelu(rows, weight, bias).view(*x.shape[:-1], len(weight))


raised = torch.library.custom_op(
    "regard::raised", forward, mutates_args=(), schema="(Tensor x, Tensor weight, Tensor bias) -> Tensor"
)
"""torch.compile would take it apart again: it is one operator to it."""


@raised.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(weight))


def serves(x: Tensor, weight: Tensor, bias: Tensor | None, kind: str) -> bool:
    if not (x.is_cuda and kind in KINDS) or bias is None or torch.is_grad_enabled():
        return False
    if x.dtype not in (torch.bfloat16, torch.float16) or weight.dtype != x.dtype or len(weight) % 8:
        return False
    if x.numel() < ROWS * x.shape[-1] or torch.is_autocast_enabled("cuda"):
        return False
    return capabilities.available("linear_gelu")


def fused(x: Tensor, weight: Tensor, bias: Tensor | None, kind: str) -> Tensor | None:
    """The layer and its activation in one kernel, wherever one serves; None where none does."""
    if bias is not None and serves(x, weight, bias, kind):
        return raised(x, weight, bias)
    return activated(x, weight, bias, kind)
