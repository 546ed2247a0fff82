"""A convolution and the ReLU behind it as one kernel of cuDNN, bias included, where nothing learns: written once, not twice."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import capabilities

HALVES = (torch.bfloat16, torch.float16)


def rectified(convolution: nn.Conv2d, x: Tensor) -> Tensor:
    """ReLU(convolution(x)), as one kernel where the convolution keeps the places."""
    bias = convolution.bias
    if bias is None or not keeps(convolution) or not serves(x, convolution.weight):
        return F.relu(convolution(x))
    return joined(x, convolution.weight, bias)


def keeps(convolution: nn.Conv2d) -> bool:
    """Stride 1, as many zeros around as its filters reach, nothing left out and no groups: what the kernel is asked for."""
    around = tuple(size // 2 for size in convolution.kernel_size)
    steps = (convolution.stride, convolution.dilation, convolution.padding, convolution.groups)
    return steps == ((1, 1), (1, 1), around, 1)


def serves(x: Tensor, weight: Tensor) -> bool:
    """Where nobody wants gradients, and the kernels of cuDNN for halves read eight channels at a time."""
    halves = x.is_cuda and x.dtype == weight.dtype and x.dtype in HALVES and not torch.is_autocast_enabled("cuda")
    eights = weight.shape[0] % 8 == 0 and weight.shape[1] % 8 == 0
    return halves and eights and not torch.is_grad_enabled() and capabilities.available("conv_relu")


def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    x, weight = (given.contiguous(memory_format=torch.channels_last) for given in (x, weight))
    around = [weight.shape[2] // 2, weight.shape[3] // 2]
    return capabilities.conv_relu(x, weight, bias, around)


def _empty(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    shape = (x.shape[0], weight.shape[0], *x.shape[2:])
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


joined = torch.library.custom_op(
    "regard::rectified",
    forward,
    mutates_args=(),
    device_types="cuda",
    schema="(Tensor x, Tensor weight, Tensor bias) -> Tensor",
)
joined.register_fake(_empty)
