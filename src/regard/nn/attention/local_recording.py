"""Sliding-window attention that also returns the attention weights, with memory linear in the length.

Row l of a band (B, H, L, W) has one column for each key from l - left to l + right, in steps of the dilation. Columns
outside the sequence are 0. Weights stay in the autograd graph, for gradient-based attribution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.nn.kernels.local_chunked import Chunk, ChunkSpec, empty_transposed, iter_chunks
from regard.nn.kernels.local_pattern import LocalPattern

CHUNK_SPEC = ChunkSpec(256, 2**22)


def _window_keys(piece: Chunk, device: torch.device) -> tuple[Tensor, Tensor]:
    """(C, W) the key index within the chunk for each window column of each query, and whether the key exists."""
    step = piece.keys.step
    first = (piece.queries.start - piece.keys.start) // step - piece.window.left
    queries, keys = (len(range(x.start, x.stop, step)) for x in (piece.queries, piece.keys))
    wide = torch.arange(piece.window.left + piece.window.right + 1, device=device)
    at = torch.arange(first, first + queries, device=device)[:, None] + wide
    return at.clamp(0, keys - 1), (at >= 0) & (at < keys)


def _iter_windows(band: LocalPattern, x: Tensor) -> Iterator[tuple[Any, Any, Tensor, Tensor]]:
    """Index of the queries, index of the keys, and window columns of each chunk."""
    for piece in iter_chunks(band, x, CHUNK_SPEC):
        here, there = ((piece.rows, piece.heads, side) for side in (piece.queries, piece.keys))
        yield here, there, *_window_keys(piece, x.device)


def _to_dense(part: Tensor, columns: Tensor, inside: Tensor, keys: int) -> Tensor:
    """Scatter (…, C, W) of a band to (…, C, K), each window column to the column of its key."""
    room = part.new_zeros(*part.shape[:-1], keys)
    return room.scatter_add_(-1, columns.expand_as(part), torch.where(inside, part, 0.0))


def _band_scores(q: Tensor, k: Tensor, band: LocalPattern) -> Tensor:
    """q · k for every column of every window, (B, H, L, W)."""
    scores = q.new_empty(*q.shape[:3], band.window.left + band.window.right + 1)
    for here, there, columns, inside in _iter_windows(band, q):
        square = q[here] @ k[there].transpose(-2, -1)
        scores[here] = torch.where(inside, square.gather(-1, columns.expand(*square.shape[:3], -1)), 0.0)
    return scores


def _band_matmul(weights: Tensor, v: Tensor, band: LocalPattern) -> Tensor:
    """Σ weight · value over the columns of every window."""
    mixed = empty_transposed(v)
    for here, there, columns, inside in _iter_windows(band, v):
        values = v[there]
        mixed[here] = _to_dense(weights[here], columns, inside, values.shape[-2]) @ values
    return mixed


def _band_matmul_transposed(weights: Tensor, x: Tensor, band: LocalPattern) -> Tensor:
    """The transpose of `_band_matmul`: for each key, Σ weight · x over the queries whose windows contain the key."""
    total = empty_transposed(x).zero_()
    for here, there, columns, inside in _iter_windows(band, x):
        square = _to_dense(weights[here], columns, inside, total[there].shape[-2])
        total[there] += square.transpose(-2, -1) @ x[here]
    return total


class _BandScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, band: LocalPattern) -> Tensor:
        ctx.save_for_backward(q, k)
        ctx.band = band
        return _band_scores(q, k, band)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, told: Tensor) -> tuple[Any, ...]:
        q, k = ctx.saved_tensors
        return _band_matmul(told, k, ctx.band), _band_matmul_transposed(told, q, ctx.band), None


class _BandMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, v: Tensor, band: LocalPattern) -> Tensor:
        ctx.save_for_backward(weights, v)
        ctx.band = band
        return _band_matmul(weights, v, band)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, told: Tensor) -> tuple[Any, ...]:
        weights, v = ctx.saved_tensors
        return _band_scores(told, v, ctx.band), _band_matmul_transposed(weights, told, ctx.band), None


def _key_index(band: LocalPattern, heads: int, length: int, device: torch.device) -> Tensor:
    """(1, H or 1, L, W) key position of each window column; positions outside the sequence are included."""
    at, keys = torch.arange(length, device=device)[:, None], []
    wide = torch.arange(-band.window.left, band.window.right + 1, device=device)
    for lane, window in band.head_groups(heads):
        assert isinstance(window.dilation, int)
        keys.append((at + wide * window.dilation).expand(lane.stop - lane.start, -1, -1))
    return (torch.cat(keys) if len(keys) > 1 else keys[0][:1])[None]


def _visible_keys(
    band: LocalPattern, rows: int, heads: int, length: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Key positions of all columns (global tokens first, -1: no key), and a bool mask of the keys to attend to."""
    keys, found, real = _key_index(band, heads, length, device), band.global_positions(), band.valid_tokens(length)
    b, h = (
        torch.arange(rows, device=device).view(-1, 1, 1, 1),
        torch.arange(keys.shape[1], device=device).view(1, -1, 1, 1),
    )
    q = torch.arange(length, device=device).view(1, 1, -1, 1)

    def together(k: Tensor) -> Tensor | bool:
        return True if band.token_mask is None else band.token_mask(b, h, q, k)

    inside = (keys >= 0) & (keys < length)
    may, keys = inside & together(keys.clamp(0, length - 1)), torch.where(inside, keys, -1)
    if found is not None:
        places, there = (x[:, None, None] for x in found)
        besides = there & ~band.window(b, h, q, places) & together(places)
        sizes = rows, keys.shape[1], length
        may = torch.cat([x.expand(*sizes, -1) for x in (besides, may)], -1)
        keys = torch.cat([x.expand(*sizes, -1) for x in (torch.where(there, places, -1), keys)], -1)
        assert band.global_tokens is not None
        may = may & ~band.global_tokens.tokens[:, None, :, None]  # global queries are computed by a separate attention
    if real is not None:
        may = may & real[:, None, :, None]
    return keys.int(), may


def local_attention_with_weights(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: LocalPattern,
    scale: float,
    dropout: float = 0.0,
    record: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention output (B, H, L, e) over the window and the global tokens, weights (B, H, L, G + W), and key positions
    (B or 1, H or 1, L, G + W). Rows of global tokens and padding are 0."""
    found, (_, heads, length, _) = pattern.global_positions(), q.shape
    scores = _BandScores.apply(q * scale, k, pattern)  # type: ignore[no-untyped-call]
    keys, may = _visible_keys(pattern, q.shape[0], heads, length, q.device)
    marked = 0 if found is None else found[0].shape[1]
    if found is not None:
        index = found[0][:, None, :, None].expand(-1, heads, -1, -1)
        far_k, far_v = (x.gather(2, index.expand(-1, -1, -1, x.shape[3])) for x in (k, v))
        scores = torch.cat(((q * scale) @ far_k.transpose(2, 3), scores), -1)
    weights = scores.masked_fill(~may, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(~may, 0.0).to(v.dtype)
    if record is not None:
        weights = record(weights, keys)
    used = F.dropout(weights, dropout, training=dropout > 0.0)
    mixed = _BandMatmul.apply(used[..., marked:], v, pattern)  # type: ignore[no-untyped-call]
    return mixed if found is None else mixed + used[..., :marked] @ far_v, weights, keys
