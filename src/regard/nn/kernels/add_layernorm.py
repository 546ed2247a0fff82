"""Residual sum and layer norm in one Triton kernel, on CUDA without gradients.

Decoding time depends on the number of kernel launches. `add_layernorm_with_sum` also stores the sum for compiled
blocks: otherwise torch.compile recomputes the sum, with more and more summands, in every following norm.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from contextlib import nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _add_layernorm_kernel(x, y, gain, bias, out, both, width, eps, block: tl.constexpr, kept: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, block)
    there = columns < width
    a = tl.load(x + row * width + columns, mask=there, other=0.0)
    b = tl.load(y + row * width + columns, mask=there, other=0.0)
    # rounded as between two separate operators
    rounded = (a + b).to(x.dtype.element_ty)
    if kept:
        tl.store(both + row * width + columns, rounded, mask=there)
    total = rounded.to(tl.float32)
    mean = tl.sum(total, 0) / width
    apart = tl.where(there, total - mean, 0.0)
    scaled = apart / tl.sqrt(tl.sum(apart * apart, 0) / width + eps)
    g = tl.load(gain + columns, mask=there, other=0.0).to(tl.float32)
    c = tl.load(bias + columns, mask=there, other=0.0).to(tl.float32)
    tl.store(out + row * width + columns, (scaled * g + c).to(out.dtype.element_ty), mask=there)


def _launch(x: Tensor, y: Tensor, gain: Tensor, bias: Tensor, eps: float, kept: bool) -> tuple[Tensor, Tensor]:
    x, y, width = x.contiguous(), y.contiguous(), x.shape[-1]
    out = torch.empty_like(x)
    both = torch.empty_like(x) if kept else out
    block = triton.next_power_of_2(width)
    with torch.cuda.device(x.device) if x.is_cuda else nullcontext():  # Triton uses the current device
        _add_layernorm_kernel[(x.numel() // width,)](
            x, y, gain, bias, out, both, width, eps, block=block, kept=kept, num_warps=4
        )
    return both, out


def add_layernorm(x: Tensor, y: Tensor, gain: Tensor, bias: Tensor, eps: float) -> Tensor:
    """LN(x + y) over the last axis; no gradient."""
    return _launch(x, y, gain, bias, eps, kept=False)[1]


def forward(x: Tensor, y: Tensor, gain: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return _launch(x, y, gain, bias, eps, kept=True)


def _empty_outputs(x: Tensor, y: Tensor, gain: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape)


add_layernorm_with_sum = torch.library.custom_op(
    "regard::added", forward, mutates_args=(), device_types="cuda",
    schema="(Tensor x, Tensor y, Tensor gain, Tensor bias, float eps) -> (Tensor, Tensor)",
)  # fmt: skip
"""x + y and LN(x + y)."""
add_layernorm_with_sum.register_fake(_empty_outputs)
