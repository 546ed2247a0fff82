"""Attention of many short documents packed into one row, on CUDA: a Triton kernel with one tile per document and head.

Kernels for long sequences compute tiles of 128 x 128; a sentence of 25 tokens fills 1/25 of a tile. Here a tile is as
large as the longest document (up to 128), a whole document fits on the chip, and the backward pass is one kernel
without sums over tiles. Imported only if Triton is available.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# kernel arguments have no Python types

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.nn.kernels.table import device_of

MAX_LENGTH = 128  # Maximum number of tokens per document.
HEAD_WIDTHS = (16, 32, 64, 128)


@triton.jit
def _scores(q, k, rows, columns, queries, keys, scale, causal: tl.constexpr):
    """q kᵀ · scale, -inf for masked keys."""
    scores = tl.dot(q, tl.trans(k)) * scale
    may = (columns[None, :] < keys) & (rows[:, None] < queries)
    if causal:
        may = may & (columns[None, :] <= rows[:, None])
    return tl.where(may, scores, float("-inf"))


@triton.jit
def _document_range(starts, document, block: tl.constexpr):
    """Start, length, and token indices of a document."""
    first = tl.load(starts + document).to(tl.int64)
    return first, tl.load(starts + document + 1).to(tl.int64) - first, tl.arange(0, block)


@triton.jit
def _load_rows(x, first, count, at, head, row_step, head_step, width: tl.constexpr):
    """Rows of a document, 0 after its end."""
    places = x + (first + at)[:, None] * row_step + head * head_step + tl.arange(0, width)[None, :]
    return tl.load(places, mask=(at < count)[:, None], other=0.0)


@triton.jit
def _store_rows(x, value, first, count, at, head, heads, width: tl.constexpr):
    """Store into a contiguous tensor (rows, heads, width)."""
    places = x + (first + at)[:, None] * heads * width + head * width + tl.arange(0, width)[None, :]
    tl.store(places, value.to(x.dtype.element_ty), mask=(at < count)[:, None])


@triton.jit
def _forward_kernel(
    q,
    k,
    v,
    out,
    lse,
    q_starts,
    k_starts,
    length,
    heads,
    q_step,
    q_head,
    k_step,
    k_head,
    v_step,
    v_head,
    scale,
    width: tl.constexpr,
    q_block: tl.constexpr,
    k_block: tl.constexpr,
    causal: tl.constexpr,
):
    document, head = tl.program_id(0), tl.program_id(1)
    q_first, queries, rows = _document_range(q_starts, document, q_block)
    k_first, keys, columns = _document_range(k_starts, document, k_block)
    if queries > 0:
        query = _load_rows(q, q_first, queries, rows, head, q_step, q_head, width)
        key = _load_rows(k, k_first, keys, columns, head, k_step, k_head, width)
        value = _load_rows(v, k_first, keys, columns, head, v_step, v_head, width)
        scores = _scores(query, key, rows, columns, queries, keys, scale, causal)
        highest = tl.max(scores, 1)
        highest = tl.where(highest == float("-inf"), 0.0, highest)
        weights = tl.exp(scores - highest[:, None])
        total = tl.sum(weights, 1)
        total = tl.where(total == 0.0, 1.0, total)  # a query without any key gets 0
        mixed = tl.dot((weights / total[:, None]).to(value.dtype), value)
        _store_rows(out, mixed, q_first, queries, rows, head, heads, width)
        tl.store(lse + head * length + q_first + rows, highest + tl.log(total), mask=rows < queries)


@triton.jit
def _backward_kernel(
    q,
    k,
    v,
    out,
    lse,
    gradient,
    dq,
    dk,
    dv,
    q_starts,
    k_starts,
    length,
    heads,
    q_step,
    q_head,
    k_step,
    k_head,
    v_step,
    v_head,
    scale,
    width: tl.constexpr,
    q_block: tl.constexpr,
    k_block: tl.constexpr,
    causal: tl.constexpr,
):
    document, head = tl.program_id(0), tl.program_id(1)
    q_first, queries, rows = _document_range(q_starts, document, q_block)
    k_first, keys, columns = _document_range(k_starts, document, k_block)
    if queries + keys > 0:
        query = _load_rows(q, q_first, queries, rows, head, q_step, q_head, width)
        key = _load_rows(k, k_first, keys, columns, head, k_step, k_head, width)
        value = _load_rows(v, k_first, keys, columns, head, v_step, v_head, width)
        mixed = _load_rows(out, q_first, queries, rows, head, heads * width, width, width)
        told = _load_rows(gradient, q_first, queries, rows, head, heads * width, width, width)
        norm = tl.load(lse + head * length + q_first + rows, mask=rows < queries, other=0.0)
        scores = _scores(query, key, rows, columns, queries, keys, scale, causal)
        weights = tl.exp(scores - norm[:, None])
        own = tl.sum(mixed.to(tl.float32) * told.to(tl.float32), 1)
        d_scores = (weights * (tl.dot(told, tl.trans(value)) - own[:, None]) * scale).to(query.dtype)
        _store_rows(dq, tl.dot(d_scores, key), q_first, queries, rows, head, heads, width)
        _store_rows(dk, tl.dot(tl.trans(d_scores), query), k_first, keys, columns, head, heads, width)
        _store_rows(dv, tl.dot(tl.trans(weights.to(told.dtype)), told), k_first, keys, columns, head, heads, width)


def _launch(kernel: Any, qkv: tuple[Tensor, Tensor, Tensor], others: tuple[Tensor, ...], *sizes: Any) -> None:
    """Launch a kernel with the tensors `qkv` and `others`; `sizes`: the last arguments of `forward`."""
    q_starts, k_starts, q_longest, k_longest, causal, scale = sizes
    length, heads, width = qkv[0].shape
    steps = [step for x in qkv for step in x.stride()[:2]]
    q_block, k_block = (max(16, 1 << (longest - 1).bit_length()) for longest in (q_longest, k_longest))
    warps = 8 if max(q_block, k_block) > 64 else 4 if max(q_block, k_block) > 32 else 2
    tiles = {"q_block": q_block, "k_block": k_block, "width": width, "causal": causal, "num_warps": warps}
    with device_of(q_starts):
        kernel[(len(q_starts) - 1, heads)](*qkv, *others, q_starts, k_starts, length, heads, *steps, scale, **tiles)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_starts: Tensor,
    k_starts: Tensor,
    max_q_length: int,
    max_k_length: int,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of q (T, H, d), k and v (S, H, d); document i of q attends to document i of k and v."""
    out = q.new_empty(q.shape)
    lse = torch.empty(q.shape[1], q.shape[0], device=q.device, dtype=torch.float32)
    _launch(_forward_kernel, (q, k, v), (out, lse), q_starts, k_starts, max_q_length, max_k_length, causal, scale)
    return out, lse


def backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    q_starts: Tensor,
    k_starts: Tensor,
    max_q_length: int,
    max_k_length: int,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
    others = (out, lse, gradient.contiguous(), dq, dk, dv)
    _launch(_backward_kernel, (q, k, v), others, q_starts, k_starts, max_q_length, max_k_length, causal, scale)
    return dq, dk, dv


_ON_CUDA: Any = {"mutates_args": (), "device_types": "cuda"}
varlen_short_attention = torch.library.custom_op("regard::short_attention", forward, **_ON_CUDA)
_backward_op = torch.library.custom_op("regard::short_attention_backward", backward, **_ON_CUDA)


@varlen_short_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)


@_backward_op.register_fake
def _(gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, q_starts, k_starts, *ctx.sizes = inputs
    ctx.save_for_backward(q, k, v, *output, q_starts, k_starts)


def _backward_autograd(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Any, ...]:
    return (*_backward_op(gradient, *ctx.saved_tensors, *ctx.sizes), *(None,) * 6)


varlen_short_attention.register_autograd(_backward_autograd, setup_context=_setup_context)
