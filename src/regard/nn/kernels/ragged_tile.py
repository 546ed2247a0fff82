"""Attention on CUDA for sequences a few keys longer than a multiple of the tile size: a Triton kernel.

An image of 384 x 384 pixels has 576 patches and a class token. Kernels with tiles of 64 or 128 keys spend a whole tile
on the last key; here the remaining keys use a narrow tile, and full tiles need no mask. Without gradients only.
Imported only if Triton is available.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# kernel arguments have no Python types

from __future__ import annotations

import math
from contextlib import nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE, NARROW, WARPS, STAGES = 64, 16, 4, 3
HEAD_WIDTHS = (64,)
LENGTH_RANGE = (257, 1041)
"""Range of lengths in which this kernel was always faster than cuDNN (1.1 to 1.5 times); length 197 was slower."""
MIN_TILES = 576
"""Minimum number of query tiles; smaller inputs were not measured."""
MAX_GRID_SIZE = 65_535
"""Maximum of rows × heads, a limit of CUDA grids."""


@triton.jit
def _attend_tile(q, k, v, k_step, v_step, highest, total, mixed, start, length, scale, tile: tl.constexpr, width: tl.constexpr,
          masked: tl.constexpr):  # fmt: skip
    """Process one more tile of keys with running softmax, in powers of 2 as supported by the hardware."""
    at = start + tl.arange(0, tile)
    channel = tl.arange(0, width)
    inside = (at < length)[:, None]
    if masked:
        keys = tl.load(k + at[:, None] * k_step + channel[None, :], mask=inside, other=0.0)
        values = tl.load(v + at[:, None] * v_step + channel[None, :], mask=inside, other=0.0)
    else:
        keys = tl.load(k + at[:, None] * k_step + channel[None, :])
        values = tl.load(v + at[:, None] * v_step + channel[None, :])
    scores = tl.dot(q, keys.T)
    if masked:
        scores = tl.where((at < length)[None, :], scores, float("-inf"))
    now = tl.maximum(highest, tl.max(scores, 1) * scale)
    chances = tl.exp2(scores * scale - now[:, None])
    before = tl.exp2(highest - now)
    mixed = tl.dot(chances.to(values.dtype), values, mixed * before[:, None])
    return now, total * before + tl.sum(chances, 1), mixed


@triton.jit
def _attention_kernel(
    q, k, v, out, q_row, q_head, q_step, k_row, k_head, k_step, v_row, v_head, v_step, out_row, out_head, out_step,
    heads, scale, length: tl.constexpr, tile: tl.constexpr, narrow: tl.constexpr, width: tl.constexpr,
    stages: tl.constexpr,
):  # fmt: skip
    row, head = (tl.program_id(1) // heads).to(tl.int64), tl.program_id(1) % heads
    q += row * q_row + head * q_head
    k += row * k_row + head * k_head
    v += row * v_row + head * v_head
    out += row * out_row + head * out_head
    at = tl.program_id(0) * tile + tl.arange(0, tile)
    channel = tl.arange(0, width)
    inside = (at < length)[:, None]
    asked = tl.load(q + at[:, None] * q_step + channel[None, :], mask=inside, other=0.0)
    highest = tl.full((tile,), float("-inf"), tl.float32)
    total = tl.zeros((tile,), tl.float32)
    mixed = tl.zeros((tile, width), tl.float32)
    for start in tl.range(0, length // tile * tile, tile, num_stages=stages):
        highest, total, mixed = _attend_tile(
            asked, k, v, k_step, v_step, highest, total, mixed, start, length, scale, tile, width, False
        )  # fmt: skip
    for start in range(length // tile * tile, length, narrow):
        highest, total, mixed = _attend_tile(
            asked, k, v, k_step, v_step, highest, total, mixed, start, length, scale, narrow, width, True
        )  # fmt: skip
    found = (mixed / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + at[:, None] * out_step + channel[None, :], found, mask=inside)


def forward(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    batch, heads, length, width = q.shape
    out = _empty_output(q, k, v, scale)
    steps = [number for x in (q, k, v, out) for number in x.stride()[:3]]
    with torch.cuda.device(q.device) if q.is_cuda else nullcontext():  # Triton uses the current device
        _attention_kernel[triton.cdiv(length, TILE), batch * heads](
            q, k, v, out, *steps, heads, scale * math.log2(math.e), length=length, tile=TILE, narrow=NARROW, width=width,
            stages=STAGES, num_warps=WARPS,
        )  # fmt: skip
    return out


def _empty_output(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Heads adjacent in memory at each position, as the output projection reads them."""
    batch, heads, length, width = q.shape
    return q.new_empty(batch, length, heads, width).transpose(1, 2)


ragged_attention = torch.library.custom_op(
    "regard::overhang", forward, mutates_args=(), device_types="cuda",
    schema="(Tensor q, Tensor k, Tensor v, float scale) -> Tensor",
)  # fmt: skip
ragged_attention.register_fake(_empty_output)


def supports(q: Tensor, k: Tensor) -> bool:
    """Whether q and k (B, H, L, d) are supported: no gradients, few keys after the last full tile, enough tiles."""
    batch, heads, length, width = q.shape
    if not q.is_cuda or torch.is_grad_enabled():
        return False
    over = 0 < length % TILE <= NARROW and LENGTH_RANGE[0] <= length <= LENGTH_RANGE[1] and k.shape[-2] == length
    halves = q.dtype in (torch.bfloat16, torch.float16) and width in HEAD_WIDTHS
    return over and halves and batch * heads <= MAX_GRID_SIZE and batch * heads * (length // TILE) >= MIN_TILES
