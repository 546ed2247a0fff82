"""Self-attention of one decoding step on CUDA: one query per row, a static KV cache, rows at different positions.

The kernel writes key and value of the step into the cache and reads only the columns up to the position of each row.
The number of iterations is read from a tensor and no shape depends on it, so a captured CUDA graph serves every length.
With few rows, several programs share the keys of one row and head to fill the GPU; the last to finish combines their
results. Imported only if Triton is available.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import functools
import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import cuda

from regard.nn.kernels.table import device_of

MAX_HEAD_WIDTH = 128  # Maximum head width.
TILE_NUMEL = 2048  # Elements of a tile of keys: 32 columns with head width 64.
NUM_WARPS = 1
TARGET_PROGRAMS = 2048  # Rows × heads below this number are split into several programs, up to about this number.
MAX_SPLITS = 32  # Maximum number of programs per row and head.

_LOWEST = tl.constexpr(-3.0e38)  # finite, because -inf - -inf is NaN in lanes without any key


@triton.jit
def _attend_tiles(
    query,
    k,
    v,
    first,
    end,
    part,
    parts,
    k_column,
    v_column,
    width: tl.constexpr,
    padded: tl.constexpr,
    block: tl.constexpr,
):
    """Softmax over every `parts`-th tile of the columns first … end - 1, starting at tile `part`.

    Each position in a tile has a separate running softmax (maximum, sum of weights, weighted sum of values), so that
    warps communicate only at the end."""
    dims = tl.arange(0, padded)
    highest = tl.full((block,), _LOWEST, tl.float32)
    total = tl.zeros((block,), tl.float32)
    mixed = tl.zeros((block, padded), tl.float32)
    start = first + part * block
    while start < end:
        columns = start + tl.arange(0, block)
        there = (columns < end)[:, None] & (dims < width)[None, :]
        key = tl.load(k + columns[:, None] * k_column + dims[None, :], mask=there, other=0.0)
        value = tl.load(v + columns[:, None] * v_column + dims[None, :], mask=there, other=0.0)
        score = tl.where(columns < end, tl.sum(key.to(tl.float32) * query[None, :], 1), float("-inf"))
        now = tl.maximum(highest, score)
        before, weight = tl.exp2(highest - now), tl.exp2(score - now)
        total = total * before + weight
        mixed = mixed * before[:, None] + value.to(tl.float32) * weight[:, None]
        highest = now
        start += parts * block
    return highest, total, mixed


@triton.jit
def _combine_splits(place, used, out, shared, width: tl.constexpr, padded: tl.constexpr, splits: tl.constexpr):
    """Combine the results of the programs of one row and head, in a fixed order."""
    parts, dims = tl.arange(0, splits), tl.arange(0, padded)
    found = shared + (place * splits + parts) * (width + 2)
    there = parts < used
    highest = tl.load(found + width, mask=there, other=_LOWEST, cache_modifier=".cg")
    total = tl.load(found + width + 1, mask=there, other=0.0, cache_modifier=".cg")
    both = there[:, None] & (dims < width)[None, :]
    mixed = tl.load(found[:, None] + dims[None, :], mask=both, other=0.0, cache_modifier=".cg")
    share = tl.exp2(highest - tl.max(highest, 0))
    result = tl.sum(mixed * share[:, None], 0) / tl.sum(total * share, 0)
    tl.store(out + place * width + dims, result.to(out.dtype.element_ty), mask=dims < width)


@triton.jit
def _decode_kernel(
    qkv,
    k,
    v,
    at,
    out,
    shared,
    counts,
    heads,
    room,
    row_step,
    k_row,
    k_head,
    k_column,
    v_row,
    v_head,
    v_column,
    scale,
    band,
    width: tl.constexpr,
    padded: tl.constexpr,
    block: tl.constexpr,
    splits: tl.constexpr,
    early: tl.constexpr,
):
    if early:
        cuda.gdc_launch_dependents()
        cuda.gdc_wait()
    place, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, head = place // heads, place % heads
    now = tl.load(at + row).to(tl.int32)
    first = tl.where(band > 0, tl.maximum(now - band + 1, 0), 0)
    end = tl.minimum(now, room)
    used = tl.minimum(tl.maximum(tl.cdiv(end - first, block), 1), splits)
    if part < used:
        dims = tl.arange(0, padded)
        there = dims < width
        own = qkv + row * row_step + head * width + dims
        k += row * k_row + head * k_head
        v += row * v_row + head * v_head
        query = tl.load(own, mask=there, other=0.0).to(tl.float32) * scale
        key = tl.load(own + heads * width, mask=there, other=0.0).to(k.dtype.element_ty)
        value = tl.load(own + 2 * heads * width, mask=there, other=0.0).to(v.dtype.element_ty)
        highs, totals, mixtures = _attend_tiles(
            query, k, v, first, end, part, used, k_column, v_column, width, padded, block
        )
        # the first program handles the column of the new token: it writes the key and value without reading them back
        if (part == 0) & (now >= 0) & (now < room):
            tl.store(k + now * k_column + dims, key, mask=there)
            tl.store(v + now * v_column + dims, value, mask=there)
        score = tl.where(part == 0, tl.sum(query * key.to(tl.float32), 0), _LOWEST)
        highest = tl.maximum(tl.max(highs, 0), score)
        share, weight = tl.exp2(highs - highest), tl.exp2(score - highest)
        total = tl.sum(totals * share, 0) + weight
        mixed = tl.sum(mixtures * share[:, None], 0) + weight * value.to(tl.float32)
        if used == 1:
            tl.store(out + place * width + dims, (mixed / total).to(out.dtype.element_ty), mask=there)
        else:
            found = shared + (place * splits + part) * (width + 2)
            tl.store(found + dims, mixed, mask=there)
            tl.store(found + width, highest)
            tl.store(found + width + 1, total)
            tl.debug_barrier()  # all threads must have written before the counter increases
            if tl.atomic_add(counts + place, 1, sem="acq_rel") == used - 1:
                tl.store(counts + place, 0)  # for the next step
                _combine_splits(place, used, out, shared, width, padded, splits)


@functools.cache
def supports_pdl(device: torch.device) -> bool:
    """Whether kernels can start before the previous kernel ends (programmatic dependent launch, Hopper or newer)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def num_splits(k: Tensor) -> int:
    """Number of programs per row and head, computed from shapes only."""
    B, H, room, d = k.shape
    wanted = min(TARGET_PROGRAMS // max(B * H, 1), triton.cdiv(room, TILE_NUMEL // _padded_width(d)), MAX_SPLITS)
    return 1 << (max(wanted, 1).bit_length() - 1)


def _padded_width(d: int) -> int:
    return max(16, triton.next_power_of_2(d))


def launch(qkv: Tensor, k: Tensor, v: Tensor, at: Tensor, counts: Tensor, scale: float, band: int) -> Tensor:
    """Attention output (B, H · d) of qkv (B, 3 · H · d), with the caches k and v (B, H, columns, d) and positions at (B,).

    Key and value of this step are written into column `at`; the query attends to the columns up to `at`, to the last
    `band` of them (0: all). Nothing is written if `at` is beyond the last column. `counts`: from `make_counters`."""
    (B, H, room, d), parts = k.shape, num_splits(k)
    out = qkv.new_empty(B, H * d)
    shared = torch.empty(B * H * parts * (d + 2) if parts > 1 else 0, device=k.device, dtype=torch.float32)
    steps = (qkv.stride(0), *k.stride()[:3], *v.stride()[:3])
    early = supports_pdl(k.device)
    padded = _padded_width(d)
    sizes = {"width": d, "padded": padded, "block": TILE_NUMEL // padded, "splits": parts, "early": early}
    how = {"num_warps": NUM_WARPS, **({"launch_pdl": True} if early else {})}
    numbers = (H, room, *steps, scale / math.log(2), band)  # weights are powers of 2
    with device_of(k):
        _decode_kernel[(B * H, parts)](qkv, k, v, at, out, shared, counts, *numbers, **sizes, **how)
    return out


decode_attention = torch.library.custom_op(
    "regard::step_attention", launch, mutates_args=("k", "v", "counts"), device_types="cuda"
)


@decode_attention.register_fake
def _(qkv: Tensor, k: Tensor, *_: object) -> Tensor:
    return qkv.new_empty(k.shape[0], k.shape[1] * k.shape[3])


def supports(qkv: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the kernel supports the device, dtype, head width and strides."""
    kind = qkv.dtype == k.dtype == v.dtype and k.dtype in (torch.float32, torch.bfloat16, torch.float16)
    return k.is_cuda and kind and k.shape[-1] <= MAX_HEAD_WIDTH and qkv.stride(-1) == k.stride(-1) == v.stride(-1) == 1


def make_counters(k: Tensor) -> Tensor:
    """Zeros, one per row and head. Every step resets them to 0, so consecutive steps share them."""
    return torch.zeros(k.shape[0] * k.shape[1], device=k.device, dtype=torch.int32)
