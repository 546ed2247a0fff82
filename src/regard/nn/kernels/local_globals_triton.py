"""Triton version of `merge_global_` and `add_global_gradients_` (local_flash.py): one kernel over the queries.

Queries, output and gradient are read once, and weights are not stored. Imported only if Triton is available.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# kernel arguments have no Python types

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.nn.kernels.local_flash import GlobalCall
from regard.nn.kernels.table import device_of

HEAD_WIDTHS = (16, 32, 64, 128)  # Supported head widths.
BLOCK, MARKS, SPAN = 64, 16, 512
"""Queries per tile, global tokens per tile, and queries per program in the backward pass."""


@triton.jit
def _load_tile(x, row, at, length, head, row_step, step, head_step, width: tl.constexpr):
    """(queries, width) tile of x (B, L, H, d), 0 after the end."""
    places = x + row * row_step + at.to(tl.int64)[:, None] * step + head * head_step + tl.arange(0, width)[None, :]
    return places, tl.load(places, mask=(at < length)[:, None], other=0.0)


@triton.jit
def _load_global(x, row, marks, count, head, heads, width: tl.constexpr):
    """(marks, width) tile of x (B, G, H, d), 0 after the last global token."""
    places = x + ((row * count + marks)[:, None] * heads + head) * width + tl.arange(0, width)[None, :]
    return tl.load(places, mask=(marks < count)[:, None], other=0.0)


@triton.jit
def _scores(query, key, at, length, row, marks, count, seen, scale):
    """q kᵀ · scale, -inf if the query does not attend to the global key; `seen`: `GlobalKeys.bounds`."""
    own, there, each = seen + row * count + marks, marks < count, tl.num_programs(1).to(tl.int64) * count
    first, stop = tl.load(own, mask=there, other=0), tl.load(own + each, mask=there, other=0)
    near, close = tl.load(own + 2 * each, mask=there, other=0), tl.load(own + 3 * each, mask=there, other=0)
    here = at[:, None]
    may = (here >= first[None, :]) & (here < stop[None, :]) & (here < length)
    may = may & ((here < near[None, :]) | (here > close[None, :]))
    return tl.where(may, tl.dot(query, tl.trans(key)) * scale, float("-inf"))


@triton.jit
def _load_dropout_mask(kept, row, head, heads, at, length, marks, count):
    places = kept + ((row * heads + head) * length + at)[:, None] * count + marks[None, :]
    return tl.load(places, mask=(at < length)[:, None] & (marks < count)[None, :], other=0.0).to(tl.float32)


@triton.jit
def _merge_kernel(
    q,
    k,
    v,
    out,
    lse,
    kept,
    seen,
    length,
    heads,
    count,
    q_row,
    q_step,
    q_head,
    scale,
    width: tl.constexpr,
    block: tl.constexpr,
    tile: tl.constexpr,
    dropped: tl.constexpr,
):
    row, head = tl.program_id(1).to(tl.int64), tl.program_id(2)
    at = tl.program_id(0) * block + tl.arange(0, block)
    _, query = _load_tile(q, row, at, length, head, q_row, q_step, q_head, width)
    places, given = _load_tile(out, row, at, length, head, length * heads * width, heads * width, width, width)
    norms = lse + (head * tl.num_programs(1) + row) * length + at
    highest, mixed = tl.load(norms, mask=at < length, other=0.0), given.to(tl.float32)
    total = tl.full((block,), 1.0, tl.float32)
    for begin in range(0, count, tile):
        marks = begin + tl.arange(0, tile)
        key = _load_global(k, row, marks, count, head, heads, width)
        value = _load_global(v, row, marks, count, head, heads, width)
        scores = _scores(query, key, at, length, row, marks, count, seen, scale)
        higher = tl.maximum(highest, tl.max(scores, 1))
        fade, weights = tl.exp(highest - higher), tl.exp(scores - higher[:, None])
        total, highest = total * fade + tl.sum(weights, 1), higher
        if dropped:
            weights = weights * _load_dropout_mask(kept, row, head, heads, at, length, marks, count)
        mixed = mixed * fade[:, None] + tl.dot(weights.to(value.dtype), value)
    tl.store(places, (mixed / total[:, None]).to(out.dtype.element_ty), mask=(at < length)[:, None])
    tl.store(norms, highest + tl.log(total), mask=at < length)


@triton.jit
def _backward_kernel(
    told,
    q,
    k,
    v,
    out,
    lse,
    kept,
    seen,
    dq,
    dk,
    dv,
    begin,
    length,
    heads,
    count,
    q_row,
    q_step,
    q_head,
    scale,
    width: tl.constexpr,
    span: tl.constexpr,
    block: tl.constexpr,
    tile: tl.constexpr,
    dropped: tl.constexpr,
):
    row, head = tl.program_id(1).to(tl.int64), tl.program_id(2)
    marks, step = begin + tl.arange(0, tile), heads * width
    key = _load_global(k, row, marks, count, head, heads, width)
    value = _load_global(v, row, marks, count, head, heads, width)
    told_key, told_value = tl.zeros((tile, width), tl.float32), tl.zeros((tile, width), tl.float32)
    for here in range(0, span, block):
        at = tl.program_id(0) * span + here + tl.arange(0, block)
        _, query = _load_tile(q, row, at, length, head, q_row, q_step, q_head, width)
        _, mixed = _load_tile(out, row, at, length, head, length * step, step, width, width)
        _, mine = _load_tile(told, row, at, length, head, length * step, step, width, width)
        norm = tl.load(lse + (head * tl.num_programs(1) + row) * length + at, mask=at < length, other=0.0)
        scores = _scores(query, key, at, length, row, marks, count, seen, scale)
        weights = tl.exp(scores - norm[:, None])
        own = tl.sum(mixed.to(tl.float32) * mine.to(tl.float32), 1)
        d_weights, used = tl.dot(mine, tl.trans(value)), weights
        if dropped:
            left = _load_dropout_mask(kept, row, head, heads, at, length, marks, count)
            d_weights, used = d_weights * left, weights * left
        d_scores = (weights * (d_weights - own[:, None]) * scale).to(query.dtype)
        places, gradient = _load_tile(dq, row, at, length, head, length * step, step, width, width)
        gradient = gradient.to(tl.float32) + tl.dot(d_scores, key)
        tl.store(places, gradient.to(dq.dtype.element_ty), mask=(at < length)[:, None])
        told_key += tl.dot(tl.trans(d_scores), query)
        told_value += tl.dot(tl.trans(used.to(mine.dtype)), mine)
    part = (tl.program_id(0) * tl.num_programs(1) + row) * tl.num_programs(2) + head
    places = (part * tile + tl.arange(0, tile))[:, None] * width + tl.arange(0, width)[None, :]
    tl.store(dk + places, told_key)
    tl.store(dv + places, told_value)


def merge_global_(call: GlobalCall, out: Tensor, lse: Tensor) -> None:
    q, k, v, global_keys, scale, kept = call
    B, L, H, width = q.shape
    far_k, far_v = global_keys.gather(k).contiguous(), global_keys.gather(v).contiguous()
    numbers = (L, H, global_keys.positions.shape[1], *q.stride()[:3], scale)
    sizes: Any = {"width": width, "block": BLOCK, "tile": MARKS, "dropped": kept is not None, "num_warps": 4}
    with device_of(q):
        _merge_kernel[(triton.cdiv(L, BLOCK), B, H)](
            q, far_k, far_v, out, lse, q if kept is None else kept, global_keys.bounds, *numbers, **sizes
        )


def add_global_gradients_(
    call: GlobalCall, grad_out: Tensor, saved: tuple[Tensor, Tensor], gradients: tuple[Tensor, Tensor, Tensor]
) -> None:
    """`grad_out` and `gradients` must be contiguous."""
    q, k, v, global_keys, scale, kept = call
    (B, L, H, width), G, spans = q.shape, global_keys.positions.shape[1], triton.cdiv(q.shape[1], SPAN)
    far_k, far_v = global_keys.gather(k).contiguous(), global_keys.gather(v).contiguous()
    given = (grad_out, q, far_k, far_v, *saved, q if kept is None else kept, global_keys.bounds, gradients[0])
    numbers = (L, H, G, *q.stride()[:3], scale)
    sizes: Any = {"width": width, "span": SPAN, "block": BLOCK, "tile": MARKS, "num_warps": 4}
    found: tuple[list[Tensor], list[Tensor]] = ([], [])
    for begin in range(0, G, MARKS):  # sequentially: each launch adds to the gradient of the queries
        parts = [torch.empty(spans, B, H, MARKS, width, device=q.device, dtype=torch.float32) for _ in found]
        with device_of(q):
            _backward_kernel[(spans, B, H)](*given, *parts, begin, *numbers, dropped=kept is not None, **sizes)
        for one, part in zip(found, parts, strict=True):
            one.append(part.sum(0))
    for gradient, one in zip(gradients[1:], found, strict=True):
        global_keys.scatter_add_(gradient, torch.cat(one, 2)[:, :, :G].transpose(1, 2))
