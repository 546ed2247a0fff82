"""Maps made larger or smaller on CUDA, corners staying corners: a Triton kernel for channels that lie together.

torch's own kernel wants maps one channel after the other, and the one that torch.compile writes finds the neighbours of every
number anew: here they are found once for a pixel, and the rest is reading and writing. Only where nothing learns. Imported
only where Triton is.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# the arguments of a kernel are pointers and numbers of Triton's own language

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PIXELS, CHANNELS = 16, 128
"""of a program"""


@triton.jit
def _between(x, out, height, width, rows, columns, down, across, channels, pixels: tl.constexpr, block: tl.constexpr):
    """`down` and `across`: how far one new pixel is from the next, in old ones."""
    line = tl.program_id(0)
    picture, row = (line // rows).to(tl.int64), line % rows
    at = tl.program_id(1) * pixels + tl.arange(0, pixels)
    channel = tl.program_id(2) * block + tl.arange(0, block)
    inside = (at < columns)[:, None] & (channel < channels)[None, :]
    y, z = row * down, at * across
    top, left = tl.minimum(y.to(tl.int32), height - 1), tl.minimum(z.to(tl.int32), width - 1)
    low, right = tl.minimum(top + 1, height - 1), tl.minimum(left + 1, width - 1)
    lower, further = y - top, (z - left)[:, None]
    x += picture * height * width * channels
    a = tl.load(x + ((top * width + left) * channels)[:, None] + channel[None, :], mask=inside).to(tl.float32)
    b = tl.load(x + ((top * width + right) * channels)[:, None] + channel[None, :], mask=inside).to(tl.float32)
    c = tl.load(x + ((low * width + left) * channels)[:, None] + channel[None, :], mask=inside).to(tl.float32)
    d = tl.load(x + ((low * width + right) * channels)[:, None] + channel[None, :], mask=inside).to(tl.float32)
    upper, under = a + (b - a) * further, c + (d - c) * further
    found = upper + (under - upper) * lower
    places = (line.to(tl.int64) * columns + at)[:, None] * channels + channel[None, :]
    tl.store(out + places, found.to(out.dtype.element_ty), mask=inside)


def forward(x: Tensor, high: int, wide: int) -> Tensor:
    x = x.contiguous(memory_format=torch.channels_last)
    batch, channels, height, width = x.shape
    out = _empty(x, high, wide)
    down, across = ((old - 1) / (new - 1) if new > 1 else 0.0 for old, new in ((height, high), (width, wide)))
    grid = (batch * high, triton.cdiv(wide, PIXELS), triton.cdiv(channels, CHANNELS))
    with torch.cuda.device(x.device):
        _between[grid](
            x, out, height, width, high, wide, float(down), float(across), channels, pixels=PIXELS, block=CHANNELS
        )
    return out


def _empty(x: Tensor, high: int, wide: int) -> Tensor:
    shape = (*x.shape[:2], high, wide)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


enlarged = torch.library.custom_op(
    "regard::enlarged", forward, mutates_args=(), device_types="cuda",
    schema="(Tensor x, SymInt high, SymInt wide) -> Tensor",
)  # fmt: skip
enlarged.register_fake(_empty)


def serves(x: Tensor) -> bool:
    """Where nobody wants gradients, and there are enough channels to read side by side."""
    small = x.shape[1:].numel() < 2**31  # places in a picture are counted in 32 bits
    return x.is_cuda and not torch.is_grad_enabled() and x.shape[1] >= 32 and x.dtype != torch.float64 and small
