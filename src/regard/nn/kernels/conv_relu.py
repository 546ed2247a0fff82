"""Convolution, bias and ReLU in one cuDNN kernel, without gradients: the feature map is written once instead of twice."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import capabilities

HALF_DTYPES = (torch.bfloat16, torch.float16)


def conv_relu(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """ReLU(conv(x)), in one kernel if supported."""
    bias = conv.bias
    if bias is None or not preserves_size(conv) or not is_supported(x, conv.weight):
        return F.relu(conv(x))
    return conv_relu_op(x, conv.weight, bias)


def preserves_size(conv: nn.Conv2d) -> bool:
    """Whether stride and dilation are 1, groups is 1, and padding keeps the size, as the fused kernel requires."""
    around = tuple(size // 2 for size in conv.kernel_size)
    steps = (conv.stride, conv.dilation, conv.padding, conv.groups)
    return steps == ((1, 1), (1, 1), around, 1)


def is_supported(x: Tensor, weight: Tensor) -> bool:
    """Whether the fused kernel supports x and weight: 16 bits, channels in multiples of 8, no gradients."""
    halves = x.is_cuda and x.dtype == weight.dtype and x.dtype in HALF_DTYPES and not torch.is_autocast_enabled("cuda")
    eights = weight.shape[0] % 8 == 0 and weight.shape[1] % 8 == 0
    return halves and eights and not torch.is_grad_enabled() and capabilities.is_available("conv_relu")


def conv_relu_forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    x, weight = (given.contiguous(memory_format=torch.channels_last) for given in (x, weight))
    around = [weight.shape[2] // 2, weight.shape[3] // 2]
    return capabilities.conv_relu(x, weight, bias, around)


def _empty_output(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    shape = (x.shape[0], weight.shape[0], *x.shape[2:])
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


conv_relu_op = torch.library.custom_op(
    "regard::rectified",
    conv_relu_forward,
    mutates_args=(),
    device_types="cuda",
    schema="(Tensor x, Tensor weight, Tensor bias) -> Tensor",
)
conv_relu_op.register_fake(_empty_output)
