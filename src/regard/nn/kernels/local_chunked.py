"""Sliding-window attention in chunks of queries with the keys of their windows: time and memory are linear in the length.

Any device and dtype, with attention dropout and global tokens. Weights are not stored: the backward pass recomputes the
weights of each chunk, so memory holds queries, keys, values and one chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard import capabilities
from regard.nn.attention.masks import SlidingWindow
from regard.nn.kernels.local_pattern import LocalPattern


class ChunkSpec(NamedTuple):
    """Queries per chunk, and approximate maximum number of weights per chunk."""

    chunk_size: int
    max_weights: int


MAX_CACHED_MASKS = 16
"""Maximum number of masks cached for chunks of the same form."""


@dataclass(frozen=True)
class Chunk:
    """Slices of rows, heads, queries, and keys within the windows of the queries."""

    rows: slice
    heads: slice
    queries: slice
    keys: slice
    window: SlidingWindow


def iter_chunks(pattern: LocalPattern, q: Tensor, spec: ChunkSpec) -> Iterator[Chunk]:
    """Chunks that cover every query once. With dilation r, the tokens of a row form r independent sequences."""
    (rows, heads, length, _), (block, room) = q.shape, spec
    for lane, window in pattern.head_groups(heads):
        assert isinstance(window.dilation, int)
        widest = block + window.left + window.right
        together = max(1, room // ((lane.stop - lane.start) * block * min(widest, length)))
        for top in range(0, rows, together):
            for first in range(min(window.dilation, length)):
                line = range(first, length, window.dilation)
                for begin in range(0, len(line), block):
                    queries = line[begin : begin + block]
                    keys = line[max(0, begin - window.left) : begin + len(queries) + window.right]
                    yield Chunk(slice(top, top + together), lane, _slice(queries), _slice(keys), window)


def _slice(line: range) -> slice:
    return slice(line.start, line[-1] + 1, line.step)


class _ChunkContext:
    """Tensors and cached masks shared by all chunks."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, band: LocalPattern, scale: float) -> None:
        self.q, self.k, self.v, self.pattern, self.scale = q, k, v, band, scale
        self.positions = torch.arange(q.shape[2], device=q.device)
        self.row_index = torch.arange(q.shape[0], device=q.device).view(-1, 1, 1, 1)
        self.head_index = self.row_index[:1]  # windows of a head group have one dilation and ignore the head
        self.mask_cache: dict[tuple[int, ...], Tensor] = {}
        found = band.global_positions()
        self.num_global = 0 if found is None else found[0].shape[1]
        if found is None and q.dtype == torch.bfloat16:
            # products take two thirds of the time with contiguous keys per head, which torch.cat creates if there are
            # global keys
            self.k, self.v = k.contiguous(), v.contiguous()
        if found is not None:
            self.global_positions, self.global_valid = (x[:, None, None] for x in found)
            self.global_index = self.global_positions[:, :, 0, :, None]  # (B, 1, G, 1)
            self.global_k, self.global_v = self.gather_global(k), self.gather_global(v)

    def gather_global(self, x: Tensor) -> Tensor:
        """(B, H, G, d) rows of x at the global tokens."""
        return x.gather(2, self.global_index.expand(-1, x.shape[1], -1, x.shape[3]))

    def scatter_add_global_(self, x: Tensor, gradient: Tensor) -> None:
        """Add the gradients of the global tokens to x at their positions."""
        x.scatter_add_(2, self.global_index.expand_as(gradient), gradient.to(x.dtype))

    def additive_mask(self, piece: Chunk) -> tuple[Tensor, Tensor | None]:
        """(R or 1, 1, C, K) mask to add to the scores, 0 or the lowest number; and queries without any key (None: none)."""
        q, k = self.positions[piece.queries].view(1, 1, -1, 1), self.positions[piece.keys].view(1, 1, 1, -1)
        rest = (
            None
            if self.pattern.token_mask is None
            else self.pattern.token_mask(self.row_index[piece.rows], self.head_index, q, k)
        )
        if rest is not None and _all_true(rest):
            rest = None  # no padding and no other document in this chunk
        far, sizes = self.global_mask(piece, q) if self.num_global else None, (q.shape[2], k.shape[3])
        usual = rest is None and (far is None or _all_true(far == self.global_valid[piece.rows]))
        steps = (piece.queries.start - piece.keys.start) // piece.keys.step
        form = (piece.rows.start if self.num_global else -1, steps, *sizes)  # for any dilation: counted in steps
        if usual and form in self.mask_cache:
            return self.mask_cache[form], None
        may = piece.window(self.row_index[:1], self.head_index, q, k)
        if rest is not None:
            may = may & rest
        if far is not None:
            may = torch.cat([x.expand(max(len(far), len(may)), -1, q.shape[2], -1) for x in (far, may)], -1)
        added = torch.zeros(may.shape, dtype=self.q.dtype, device=may.device)
        added.masked_fill_(~may, torch.finfo(self.q.dtype).min)
        if usual:
            if len(self.mask_cache) >= MAX_CACHED_MASKS:
                self.mask_cache.clear()
            self.mask_cache[form] = added
        return added, None if rest is None else ~may.any(-1, keepdim=True)

    def global_mask(self, piece: Chunk, q: Tensor) -> Tensor:
        """(R, 1, C, G) global tokens outside the window of a query: no key occurs twice in the softmax."""
        row, places = self.row_index[piece.rows], self.global_positions[piece.rows]
        may = self.global_valid[piece.rows] & ~piece.window(row, self.head_index, q, places)
        return (
            may if self.pattern.token_mask is None else may & self.pattern.token_mask(row, self.head_index, q, places)
        )

    def chunk_qkv(self, piece: Chunk) -> tuple[Tensor, Tensor, Tensor]:
        """Scaled queries, and keys and values of a chunk, global tokens first: each (R · H, …, d)."""
        some = piece.rows, piece.heads
        q, k, v = self.q[*some, piece.queries], self.k[*some, piece.keys], self.v[*some, piece.keys]
        if self.num_global:
            k, v = torch.cat((self.global_k[some], k), 2), torch.cat((self.global_v[some], v), 2)
        return (q * self.scale).flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)

    def weights(self, piece: Chunk, q: Tensor, k: Tensor) -> Tensor:
        """softmax(q kᵀ) of a chunk, (R · H, C, K); q is already scaled."""
        added, empty = self.additive_mask(piece)
        heads = piece.heads.stop - piece.heads.start
        if added.shape[0] > 1:
            added = added.expand(-1, heads, -1, -1).flatten(0, 1)
        weights = torch.baddbmm(added.view(-1, *added.shape[-2:]), q, k.transpose(1, 2)).softmax(-1)
        if empty is not None:
            weights.view(-1, heads, *weights.shape[1:]).masked_fill_(empty, 0.0)
        return weights


def _all_true(may: Tensor) -> bool:
    """Whether all are True, on CPUs; False on other devices, to avoid a synchronization."""
    return may.device.type == "cpu" and bool(may.all())


def _dropout_mask(weights: Tensor, dropout: float, seed: int) -> Tensor:
    """Factors of dropout for the weights of a chunk, reproducible by seed."""
    chance = torch.Generator(weights.device).manual_seed(seed)
    return torch.empty_like(weights).bernoulli_(1.0 - dropout, generator=chance).div_(1.0 - dropout)


def empty_transposed(x: Tensor) -> Tensor:
    """Uninitialized (B, H, L, d) with the memory layout (B, L, H, d), as linear layers read and write."""
    B, H, L, d = x.shape
    return x.new_empty(B, L, H, d).transpose(1, 2)


def default_chunk_spec(q: Tensor) -> ChunkSpec:
    """On CPUs, the fastest for windows of 33 to 513 keys; on GPUs, few launches within some hundred MiB."""
    if q.device.type != "cpu":
        return ChunkSpec(512, 2**26)
    return ChunkSpec(128 if q.dtype == torch.bfloat16 else 64, 2**20)


class _ChunkedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, band: LocalPattern, scale: float, dropout: float, cut: ChunkSpec
    ) -> Tensor:
        seed = int(torch.randint(2**62, ())) if dropout else 0
        ctx.save_for_backward(q, k, v)
        ctx.told = band, scale, dropout, cut, seed
        whole, out = _ChunkContext(q, k, v, band, scale), empty_transposed(v)
        for number, piece in enumerate(iter_chunks(band, q, cut)):
            queries, keys, values = whole.chunk_qkv(piece)
            weights = whole.weights(piece, queries, keys)
            if dropout:
                weights *= _dropout_mask(weights, dropout, seed + number)
            part = out[piece.rows, piece.heads, piece.queries]
            part.copy_((weights @ values).view(part.shape))
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        q, k, v = ctx.saved_tensors
        band, scale, dropout, cut, seed = ctx.told
        whole, dq = _ChunkContext(q, k, v, band, scale), empty_transposed(q)
        sums = [empty_transposed(x).zero_() for x in (k, v)]
        wide = torch.promote_types(q.dtype, torch.float32)  # global tokens sum many small gradients
        far = [torch.zeros_like(x, dtype=wide) for x in (whole.global_k, whole.global_v)] if whole.num_global else []
        for number, piece in enumerate(iter_chunks(band, q, cut)):
            queries, keys, values = whole.chunk_qkv(piece)
            told = gradient[piece.rows, piece.heads, piece.queries].flatten(0, 1)
            weights = whole.weights(piece, queries, keys)
            d_weights, used = told @ values.transpose(1, 2), weights
            if dropout:
                kept = _dropout_mask(weights, dropout, seed + number)
                d_weights, used = d_weights.mul_(kept), weights * kept
            d_values = used.transpose(1, 2) @ told
            d_scores = capabilities.softmax_backward(d_weights, weights)
            part = dq[piece.rows, piece.heads, piece.queries]
            part.copy_((d_scores @ keys).view(part.shape)).mul_(scale)
            for n, found in enumerate((d_scores.transpose(1, 2) @ queries, d_values)):
                found = found.view(part.shape[0], part.shape[1], *found.shape[1:])
                sums[n][piece.rows, piece.heads, piece.keys] += found[:, :, whole.num_global :]
                if far:
                    far[n][piece.rows, piece.heads] += found[:, :, : whole.num_global]
        for x, found in zip(sums, far, strict=False):
            whole.scatter_add_global_(x, found)
        return dq, *sums, None, None, None, None


def chunked_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: LocalPattern,
    scale: float,
    dropout: float = 0.0,
    spec: ChunkSpec | None = None,
) -> Tensor:
    """Attention output (B, H, L, e) over the window and the global tokens of every query, also of global queries."""
    return _ChunkedAttention.apply(q, k, v, pattern, scale, dropout, spec or default_chunk_spec(q))  # type: ignore[no-untyped-call]
