"""Bilinear resizing with `align_corners=True` on CUDA: a Triton kernel for channels-last feature maps.

PyTorch's kernel requires channels-first maps, and the code of torch.compile recomputes the neighbors for every element;
here the neighbors are computed once per pixel. Without gradients only. Imported only if Triton is available.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# kernel arguments have no Python types

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.nn.kernels.table import device_of

LINES_PER_PROGRAM, PIXELS_PER_PROGRAM, CHANNELS_PER_PROGRAM, NUM_WARPS = 4, 8, 128, 2
"""Work per program: consecutive output lines use the same input lines, which are then loaded from memory once."""


@triton.jit
def _upsample_kernel(
    x,
    bias,
    out,
    height,
    width,
    rows,
    columns,
    down,
    across,
    channels,
    added: tl.constexpr,
    lines: tl.constexpr,
    pixels: tl.constexpr,
    block: tl.constexpr,
):
    """`down` and `across`: distance between output pixels, in input pixels."""
    blocks = tl.cdiv(rows, lines)
    picture, first = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks * lines
    at = tl.program_id(1) * pixels + tl.arange(0, pixels)
    channel = tl.program_id(2) * block + tl.arange(0, block)
    z = at * across
    left = tl.minimum(z.to(tl.int32), width - 1)
    right, further = tl.minimum(left + 1, width - 1), (z - left)[:, None]
    x += picture * height * width * channels
    out += picture * rows * columns * channels
    for line in tl.static_range(lines):
        row = first + line
        inside = (at < tl.where(row < rows, columns, 0))[:, None] & (channel < channels)[None, :]
        y = row * down
        top = tl.minimum(y.to(tl.int32), height - 1)
        low, lower = tl.minimum(top + 1, height - 1), y - top
        a = tl.load(x + ((top * width + left) * channels)[:, None] + channel[None, :], mask=inside).to(tl.float32)
        b = tl.load(x + ((top * width + right) * channels)[:, None] + channel[None, :], mask=inside).to(tl.float32)
        c = tl.load(x + ((low * width + left) * channels)[:, None] + channel[None, :], mask=inside).to(tl.float32)
        d = tl.load(x + ((low * width + right) * channels)[:, None] + channel[None, :], mask=inside).to(tl.float32)
        upper, under = a + (b - a) * further, c + (d - c) * further
        found = upper + (under - upper) * lower
        if added:
            found += tl.load(bias + channel, mask=channel < channels).to(tl.float32)[None, :]
        places = ((row * columns + at) * channels)[:, None] + channel[None, :]
        tl.store(out + places, found.to(out.dtype.element_ty), mask=inside)


def upsample_forward(x: Tensor, bias: Tensor | None, high: int, wide: int) -> Tensor:
    x = x.contiguous(memory_format=torch.channels_last)
    batch, channels, height, width = x.shape
    out = _empty_output(x, bias, high, wide)
    down, across = ((old - 1) / (new - 1) if new > 1 else 0.0 for old, new in ((height, high), (width, wide)))
    grid = (
        batch * triton.cdiv(high, LINES_PER_PROGRAM),
        triton.cdiv(wide, PIXELS_PER_PROGRAM),
        triton.cdiv(channels, CHANNELS_PER_PROGRAM),
    )
    with device_of(x):
        numbers = (height, width, high, wide, float(down), float(across), channels)
        sizes = {"lines": LINES_PER_PROGRAM, "pixels": PIXELS_PER_PROGRAM, "block": CHANNELS_PER_PROGRAM}
        given = x if bias is None else bias
        _upsample_kernel[grid](x, given, out, *numbers, added=bias is not None, num_warps=NUM_WARPS, **sizes)
    return out


def _empty_output(x: Tensor, bias: Tensor | None, high: int, wide: int) -> Tensor:
    shape = (*x.shape[:2], high, wide)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


upsample_bilinear = torch.library.custom_op("regard::enlarged", upsample_forward, mutates_args=(), device_types="cuda")
upsample_bilinear.register_fake(_empty_output)


def is_supported(x: Tensor, high: int, wide: int) -> bool:
    """Whether the kernel supports x, on CUDA without gradients: not float64, and at least 32 channels."""
    # offsets within an image are 32-bit integers
    small = x.shape[1:].numel() < 2**31 and x.shape[1] * (high + LINES_PER_PROGRAM) * wide < 2**31
    return x.shape[1] >= 32 and x.dtype != torch.float64 and small
