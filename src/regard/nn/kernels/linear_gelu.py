"""First linear layer of a feed-forward layer and its GELU in one cuBLAS kernel: CUDA, 16 bits, without gradients.

cuBLAS applies the tanh form of GELU to float32 sums, also if the exact GELU is requested. The two differ by at most
5e-4, less than the error of rounding the sums to 16 bits before an exact GELU, so the result is closer to float64 than
with two kernels (tests/cuda/test_cuda_images.py). In inference of ViT-B/16, the second kernel took an eighth of the time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard import capabilities
from regard.nn.kernels.linear import packed_linear_activation

ACTIVATIONS = ("gelu", "gelu_tanh")
MIN_ROWS = 64
"""Other kernels handle fewer rows."""


def linear_gelu_forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    return capabilities.linear_gelu(rows, weight, bias).view(*x.shape[:-1], len(weight))


linear_gelu = torch.library.custom_op(
    "regard::raised", linear_gelu_forward, mutates_args=(), schema="(Tensor x, Tensor weight, Tensor bias) -> Tensor"
)
"""A custom operator, because torch.compile would split the product and the GELU again."""


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
    """Linear layer and activation in one kernel; None if not supported."""
    if bias is not None and is_supported(x, weight, bias, activation):
        return linear_gelu(x, weight, bias)
    return packed_linear_activation(x, weight, bias, activation)
