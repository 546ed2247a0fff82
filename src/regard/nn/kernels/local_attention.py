"""Sliding-window attention with global tokens (Longformer): time and memory are linear in the length.

    SlidingWindow(256, 256)                                                       neighbors only
    (SlidingWindow(256, 256) | GlobalTokens(tokens)) & Padding(lengths)           Longformer with padding
    (SlidingWindow(256, 256) | GlobalTokens(tokens)) & PackedDocuments(at, at)    Longformer with packed documents

`parse_pattern` recognizes such masks, and `local_attention` selects a kernel; tests compare all kernels with the mask:

| kernel | device | attention dropout | padding | documents | dilation > 1 |
|---|---|---|---|---|---|
| recorded | any device, any dtype | yes | lengths or mask | yes | yes |
| flash | CUDA, 16 bits | yes | lengths | packed | no |
| chunked | any device, any dtype | yes | lengths or mask | yes | yes |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard import capabilities
from regard.nn.attention.masks import (
    AttentionMask,
    Causal,
    GlobalTokens,
    Or,
    PackedDocuments,
    Padding,
    SlidingWindow,
    and_masks,
    conjuncts,
    valid_mask,
)
from regard.nn.kernels import dispatch
from regard.nn.kernels.table import Kernel, choose
from regard.types import Packing


@dataclass(frozen=True, eq=False)
class LocalPattern:
    """`(window | global_tokens) & token_mask`, where `token_mask` consists of padding and packed documents."""

    window: SlidingWindow
    global_tokens: GlobalTokens | None = None
    token_mask: AttentionMask | None = None

    def global_positions(self) -> tuple[Tensor, Tensor] | None:
        """(B, G) positions of the global tokens and a bool mask of the entries in use; None: no global tokens."""
        positions = None if self.global_tokens is None else self.global_tokens.positions()
        return None if positions is None or positions[0].shape[1] == 0 else positions

    def covers(self, length: int) -> bool:
        """Whether the window covers a row of this length, or its longest document: a local kernel saves nothing."""
        packed = [part.queries.max_length for part in conjuncts(self.token_mask) if isinstance(part, PackedDocuments)]
        return self.window.dilation == 1 and min(self.window.left, self.window.right) >= min([length, *packed]) - 1

    def head_groups(self, heads: int) -> Iterator[tuple[slice, SlidingWindow]]:
        """Ranges of heads with the same dilation, and their window."""
        wide = self.window.dilation
        widths = (wide,) * heads if isinstance(wide, int) else wide
        if len(widths) != heads:
            raise ValueError(f"The window has dilations for {len(widths)} heads, but the attention has {heads}.")
        for width, run in groupby(range(heads), key=widths.__getitem__):
            group = list(run)
            yield slice(group[0], group[-1] + 1), replace(self.window, dilation=width)

    def valid_tokens(self, length: int) -> Tensor | None:
        """(B, length) False at padding; None: no padding."""
        every = [valid_mask(part.valid, length) for part in conjuncts(self.token_mask) if isinstance(part, Padding)]
        for other in every[1:]:
            every[0] = every[0] & other
        return every[0] if every else None

    def segments(self) -> Tensor | Packing | None:
        """Contiguous segments of tokens: lengths (B,) of rows, or offsets of packed documents; None: any other mask.

        None also if there is no `token_mask`, because rows without a mask have no lengths."""
        parts = conjuncts(self.token_mask)
        if len(parts) != 1:
            return None
        only = parts[0]
        if isinstance(only, PackedDocuments):
            return only.queries
        return only.valid if isinstance(only, Padding) and only.valid.ndim == 1 else None

    def is_contiguous(self, rows: int) -> bool:
        """Whether the mask consists of a window with dilation 1 and contiguous segments, as the flash kernel requires."""
        segments = self.segments()
        return self.window.dilation == 1 and (
            self.token_mask is None if segments is None else rows == 1 or not isinstance(segments, Packing)
        )


def parse_pattern(mask: AttentionMask | None) -> LocalPattern | None:
    """The mask as a LocalPattern; None if the mask has another form."""
    windows: list[tuple[SlidingWindow, GlobalTokens | None]] = []
    causal, rest = False, None
    for part in conjuncts(mask):
        if isinstance(part, SlidingWindow):
            windows.append((part, None))
        elif isinstance(part, Or) and isinstance(part.left, SlidingWindow) and isinstance(part.right, GlobalTokens):
            windows.append((part.left, part.right))
        elif isinstance(part, Or) and isinstance(part.right, SlidingWindow) and isinstance(part.left, GlobalTokens):
            windows.append((part.right, part.left))
        elif isinstance(part, Causal):
            causal = True
        elif isinstance(part, Padding) or (isinstance(part, PackedDocuments) and part.queries is part.keys):
            rest = and_masks(rest, part)
        else:
            return None
    if len(windows) != 1 or (causal and windows[0][1] is not None):
        return None
    window, global_tokens = windows[0]
    return LocalPattern(replace(window, right=0) if causal else window, global_tokens, rest)


class LocalCall(NamedTuple):
    """Arguments of sliding-window attention: q, k (B, H, L, d) and v (B, H, L, e)."""

    q: Tensor
    k: Tensor
    v: Tensor
    pattern: LocalPattern
    scale: float
    dropout: float = 0.0
    record: Callable[[Tensor, Tensor], Tensor] | None = None
    """Receives the weights (B, H, L, G + W) and their key positions, and returns the weights to use."""


def local_attention(call: LocalCall) -> Tensor:
    """Attention output (B, H, L, e) over the window and the global tokens of every query, global queries included. Rows
    of padding are undefined."""
    return choose(LOCAL_KERNELS, call).run(call)


def _accepts_flash(call: LocalCall) -> bool:
    q = call.q
    half = q.is_cuda and q.dtype in (torch.float16, torch.bfloat16)
    return half and call.pattern.is_contiguous(q.shape[0]) and dispatch.supports_flash(q)


def _flash(call: LocalCall) -> Tensor:
    from regard.nn.kernels.local_flash import flash_local_attention

    return flash_local_attention(call)


def scatter_global_rows(x: Tensor, global_rows: Tensor, pattern: LocalPattern, valid: Tensor | None = None) -> Tensor:
    """x (B, L, D) with `global_rows` (B, G, D) at the global tokens, and 0 where `valid` is False."""
    marks = pattern.global_positions()
    assert marks is not None and pattern.global_tokens is not None
    (places, used), (B, L, D), hidden = marks, x.shape, pattern.global_tokens.tokens
    if valid is not None:
        used, hidden = used & valid.gather(1, places), hidden | ~valid
    flat = (torch.arange(0, B * L, L, device=x.device)[:, None] + places).flatten()
    global_rows = torch.where(used[:, :, None], global_rows, 0.0).to(x.dtype)  # unused entries add 0
    rest = x.masked_fill(hidden[:, :, None], 0.0).view(B * L, D)
    return rest.index_add_(0, flat, global_rows.flatten(0, 1)).view(B, L, D)


# -- chunks of queries with the keys of their windows


class ChunkSpec(NamedTuple):
    """Queries per chunk, and approximate maximum number of weights per chunk."""

    chunk_size: int
    max_weights: int


MAX_CACHED_MASKS = 16  # Maximum number of masks cached for chunks of the same form.


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
    for group, window in pattern.head_groups(heads):
        assert isinstance(window.dilation, int)
        widest = block + window.left + window.right
        together = max(1, room // ((group.stop - group.start) * block * min(widest, length)))
        for top in range(0, rows, together):
            for first in range(min(window.dilation, length)):
                line = range(first, length, window.dilation)
                for begin in range(0, len(line), block):
                    queries = line[begin : begin + block]
                    keys = line[max(0, begin - window.left) : begin + len(queries) + window.right]
                    yield Chunk(slice(top, top + together), group, _slice(queries), _slice(keys), window)


def _slice(line: range) -> slice:
    return slice(line.start, line[-1] + 1, line.step)


class _ChunkContext:
    """Tensors and cached masks shared by all chunks."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, pattern: LocalPattern, scale: float) -> None:
        self.q, self.k, self.v, self.pattern, self.scale = q, k, v, pattern, scale
        self.positions = torch.arange(q.shape[2], device=q.device)
        self.row_index = torch.arange(q.shape[0], device=q.device).view(-1, 1, 1, 1)
        self.head_index = self.row_index[:1]  # windows of a head group have one dilation and ignore the head
        self.mask_cache: dict[tuple[int, ...], Tensor] = {}
        marks = pattern.global_positions()
        self.num_global = 0 if marks is None else marks[0].shape[1]
        if marks is None and q.dtype == torch.bfloat16:
            # products take two thirds of the time with contiguous keys per head, which torch.cat creates if there are
            # global keys
            self.k, self.v = k.contiguous(), v.contiguous()
        if marks is not None:
            self.global_positions, self.global_valid = (x[:, None, None] for x in marks)
            self.global_index = self.global_positions[:, :, 0, :, None]  # (B, 1, G, 1)
            self.global_k, self.global_v = (_gather_global(x, marks[0]) for x in (k, v))

    def additive_mask(self, chunk: Chunk) -> tuple[Tensor, Tensor | None]:
        """(R or 1, 1, C, K) mask to add to the scores, 0 or the lowest number; and queries without any key (None: none)."""
        q, k = self.positions[chunk.queries].view(1, 1, -1, 1), self.positions[chunk.keys].view(1, 1, 1, -1)
        row, token_mask, sizes = self.row_index[chunk.rows], self.pattern.token_mask, (q.shape[2], k.shape[3])
        rest = None if token_mask is None else token_mask(row, self.head_index, q, k)
        if rest is not None and _all_true(rest):
            rest = None  # no padding and no other document in this chunk
        far: Tensor | None = None
        if self.num_global:  # (R, 1, C, G) only those outside the window of a query: no key occurs twice in the softmax
            places = self.global_positions[chunk.rows]
            far = self.global_valid[chunk.rows] & ~chunk.window(row, self.head_index, q, places)
            far = far if token_mask is None else far & token_mask(row, self.head_index, q, places)
        usual = rest is None and (far is None or _all_true(far == self.global_valid[chunk.rows]))
        steps = (chunk.queries.start - chunk.keys.start) // chunk.keys.step
        form = (chunk.rows.start if self.num_global else -1, steps, *sizes)  # for any dilation: counted in steps
        if usual and form in self.mask_cache:
            return self.mask_cache[form], None
        may = chunk.window(self.row_index[:1], self.head_index, q, k)
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

    def chunk_qkv(self, chunk: Chunk) -> tuple[Tensor, Tensor, Tensor]:
        """Scaled queries, and keys and values of a chunk, global tokens first: each (R · H, …, d)."""
        some = chunk.rows, chunk.heads
        q, k, v = self.q[*some, chunk.queries], self.k[*some, chunk.keys], self.v[*some, chunk.keys]
        if self.num_global:
            k, v = torch.cat((self.global_k[some], k), 2), torch.cat((self.global_v[some], v), 2)
        return (q * self.scale).flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)

    def weights(self, chunk: Chunk, q: Tensor, k: Tensor) -> Tensor:
        """softmax(q kᵀ) of a chunk, (R · H, C, K); q is already scaled."""
        added, empty = self.additive_mask(chunk)
        heads = chunk.heads.stop - chunk.heads.start
        if added.shape[0] > 1:
            added = added.expand(-1, heads, -1, -1).flatten(0, 1)
        weights = torch.baddbmm(added.view(-1, *added.shape[-2:]), q, k.transpose(1, 2)).softmax(-1)
        if empty is not None:
            weights.view(-1, heads, *weights.shape[1:]).masked_fill_(empty, 0.0)
        return weights


def _gather_global(x: Tensor, positions: Tensor) -> Tensor:
    """(B, H, G, d) rows of x (B, H, L, d) at the positions (B, G) of the global tokens."""
    return x.gather(2, positions[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))


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
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, pattern: LocalPattern, scale: float, dropout: float
    ) -> Tensor:
        spec = default_chunk_spec(q)
        seed = int(torch.randint(2**62, ())) if dropout else 0
        ctx.save_for_backward(q, k, v)
        ctx.settings = pattern, scale, dropout, spec, seed
        context, out = _ChunkContext(q, k, v, pattern, scale), empty_transposed(v)
        for number, chunk in enumerate(iter_chunks(pattern, q, spec)):
            queries, keys, values = context.chunk_qkv(chunk)
            weights = context.weights(chunk, queries, keys)
            if dropout:
                weights *= _dropout_mask(weights, dropout, seed + number)
            part = out[chunk.rows, chunk.heads, chunk.queries]
            part.copy_((weights @ values).view(part.shape))
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        q, k, v = ctx.saved_tensors
        pattern, scale, dropout, spec, seed = ctx.settings
        context, dq = _ChunkContext(q, k, v, pattern, scale), empty_transposed(q)
        sums = [empty_transposed(x).zero_() for x in (k, v)]
        wide = torch.promote_types(q.dtype, torch.float32)  # global tokens sum many small gradients
        global_kv = (context.global_k, context.global_v) if context.num_global else ()
        far = [torch.zeros_like(x, dtype=wide) for x in global_kv]
        for number, chunk in enumerate(iter_chunks(pattern, q, spec)):
            queries, keys, values = context.chunk_qkv(chunk)
            grad_out = gradient[chunk.rows, chunk.heads, chunk.queries].flatten(0, 1)
            weights = context.weights(chunk, queries, keys)
            d_weights, used = grad_out @ values.transpose(1, 2), weights
            if dropout:
                kept = _dropout_mask(weights, dropout, seed + number)
                d_weights, used = d_weights.mul_(kept), weights * kept
            d_values = used.transpose(1, 2) @ grad_out
            d_scores = capabilities.softmax_backward(d_weights, weights)
            part = dq[chunk.rows, chunk.heads, chunk.queries]
            part.copy_((d_scores @ keys).view(part.shape)).mul_(scale)
            for n, added in enumerate((d_scores.transpose(1, 2) @ queries, d_values)):
                added = added.view(part.shape[0], part.shape[1], *added.shape[1:])
                sums[n][chunk.rows, chunk.heads, chunk.keys] += added[:, :, context.num_global :]
                if far:
                    far[n][chunk.rows, chunk.heads] += added[:, :, : context.num_global]
        for x, added in zip(sums, far, strict=False):
            x.scatter_add_(2, context.global_index.expand_as(added), added.to(x.dtype))
        return dq, *sums, None, None, None


def chunked_attention(call: LocalCall) -> Tensor:
    """`local_attention` chunk by chunk. Weights are not stored: the backward pass recomputes the weights of each chunk, so
    memory holds queries, keys, values and one chunk."""
    return _ChunkedAttention.apply(*call[:6])  # type: ignore[no-untyped-call]


# -- attention that also returns its weights
#
# Row l of the weights (B, H, L, W) has one column for each key from l - left to l + right, in steps of the dilation. Columns
# outside the sequence are 0. Weights stay in the autograd graph, for gradient-based attribution.

RECORDING_CHUNK_SPEC = ChunkSpec(256, 2**22)


def _iter_windows(pattern: LocalPattern, x: Tensor) -> Iterator[tuple[Any, Any, Tensor, Tensor]]:
    """Index of the queries and of the keys of each chunk; (C, W) the key index within the chunk for each window column of
    each query, and whether the key exists."""
    for chunk in iter_chunks(pattern, x, RECORDING_CHUNK_SPEC):
        at_queries, at_keys = ((chunk.rows, chunk.heads, side) for side in (chunk.queries, chunk.keys))
        step = chunk.keys.step
        first = (chunk.queries.start - chunk.keys.start) // step - chunk.window.left
        queries, keys = (len(range(side.start, side.stop, step)) for side in (chunk.queries, chunk.keys))
        wide = torch.arange(chunk.window.left + chunk.window.right + 1, device=x.device)
        at = torch.arange(first, first + queries, device=x.device)[:, None] + wide
        yield at_queries, at_keys, at.clamp(0, keys - 1), (at >= 0) & (at < keys)


def _to_dense(part: Tensor, columns: Tensor, inside: Tensor, keys: int) -> Tensor:
    """Scatter (…, C, W) of window columns to (…, C, K), each window column to the column of its key."""
    room = part.new_zeros(*part.shape[:-1], keys)
    return room.scatter_add_(-1, columns.expand_as(part), torch.where(inside, part, 0.0))


def _band_scores(q: Tensor, k: Tensor, pattern: LocalPattern) -> Tensor:
    """q · k for every column of every window, (B, H, L, W)."""
    scores = q.new_empty(*q.shape[:3], pattern.window.left + pattern.window.right + 1)
    for at_queries, at_keys, columns, inside in _iter_windows(pattern, q):
        square = q[at_queries] @ k[at_keys].transpose(-2, -1)
        scores[at_queries] = torch.where(inside, square.gather(-1, columns.expand(*square.shape[:3], -1)), 0.0)
    return scores


def _band_matmul(weights: Tensor, v: Tensor, pattern: LocalPattern) -> Tensor:
    """Σ weight · value over the columns of every window."""
    mixed = empty_transposed(v)
    for at_queries, at_keys, columns, inside in _iter_windows(pattern, v):
        values = v[at_keys]
        mixed[at_queries] = _to_dense(weights[at_queries], columns, inside, values.shape[-2]) @ values
    return mixed


def _band_matmul_transposed(weights: Tensor, x: Tensor, pattern: LocalPattern) -> Tensor:
    """The transpose of `_band_matmul`: for each key, Σ weight · x over the queries whose windows contain the key."""
    total = empty_transposed(x).zero_()
    for at_queries, at_keys, columns, inside in _iter_windows(pattern, x):
        square = _to_dense(weights[at_queries], columns, inside, total[at_keys].shape[-2])
        total[at_keys] += square.transpose(-2, -1) @ x[at_queries]
    return total


class _BandProduct(torch.autograd.Function):
    """`_band_scores` or `_band_matmul`: each is the gradient of the other by its first argument."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor, pattern: LocalPattern, to_scores: bool) -> Tensor:
        ctx.save_for_backward(first, second)
        ctx.pattern, ctx.to_scores = pattern, to_scores
        return (_band_scores if to_scores else _band_matmul)(first, second, pattern)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Any, ...]:
        (first, second), pattern = ctx.saved_tensors, ctx.pattern
        weights, x = (grad_out, first) if ctx.to_scores else (first, grad_out)
        d_first = (_band_matmul if ctx.to_scores else _band_scores)(grad_out, second, pattern)
        return d_first, _band_matmul_transposed(weights, x, pattern), None, None


def _visible_keys(
    pattern: LocalPattern, rows: int, heads: int, length: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Key positions of all columns (global tokens first, -1: no key), and a bool mask of the keys to attend to."""
    b, q = torch.arange(rows, device=device).view(-1, 1, 1, 1), torch.arange(length, device=device).view(1, 1, -1, 1)
    wide = torch.arange(-pattern.window.left, pattern.window.right + 1, device=device)
    groups = []
    for group, window in pattern.head_groups(heads):
        assert isinstance(window.dilation, int)
        groups.append((q + wide * window.dilation).expand(-1, group.stop - group.start, -1, -1))
    # (1, H or 1, L, W) key position of each window column; positions outside the sequence are included
    keys = torch.cat(groups, 1) if len(groups) > 1 else groups[0][:, :1]
    h, marks = torch.arange(keys.shape[1], device=device).view(1, -1, 1, 1), pattern.global_positions()
    real = pattern.valid_tokens(length)

    def together(k: Tensor) -> Tensor | bool:
        return True if pattern.token_mask is None else pattern.token_mask(b, h, q, k)

    inside = (keys >= 0) & (keys < length)
    may, keys = inside & together(keys.clamp(0, length - 1)), torch.where(inside, keys, -1)
    if marks is not None:
        places, used = (x[:, None, None] for x in marks)
        besides = used & ~pattern.window(b, h, q, places) & together(places)
        sizes = rows, keys.shape[1], length
        may = torch.cat([x.expand(*sizes, -1) for x in (besides, may)], -1)
        keys = torch.cat([x.expand(*sizes, -1) for x in (torch.where(used, places, -1), keys)], -1)
        assert pattern.global_tokens is not None
        may = may & ~pattern.global_tokens.tokens[:, None, :, None]  # a separate attention computes global queries
    if real is not None:
        may = may & real[:, None, :, None]
    return keys.int(), may


def local_attention_with_weights(call: LocalCall) -> Tensor:
    """Attention output (B, H, L, e) over the window and the global tokens; `record` receives weights (B, H, L, G + W) and
    key positions (B or 1, H or 1, L, G + W). Rows of global tokens and padding are 0."""
    q, k, v, pattern, scale, dropout, record = call
    marks, (_, heads, length, _) = pattern.global_positions(), q.shape
    scores = _BandProduct.apply(q * scale, k, pattern, True)  # type: ignore[no-untyped-call]
    keys, may = _visible_keys(pattern, q.shape[0], heads, length, q.device)
    num_global = 0 if marks is None else marks[0].shape[1]
    if marks is not None:
        far_k, far_v = (_gather_global(x, marks[0]) for x in (k, v))
        scores = torch.cat(((q * scale) @ far_k.transpose(2, 3), scores), -1)
    weights = scores.masked_fill(~may, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(~may, 0.0).to(v.dtype)
    if record is not None:
        weights = record(weights, keys)
    used = F.dropout(weights, dropout, training=dropout > 0.0)
    mixed = _BandProduct.apply(used[..., num_global:], v, pattern, False)  # type: ignore[no-untyped-call]
    return mixed if marks is None else mixed + used[..., :num_global] @ far_v


LOCAL_KERNELS = (
    Kernel("recorded", lambda call: call.record is not None, local_attention_with_weights,
           formula="eager_attention", gain="memory linear in the length; not for speed"),
    Kernel("flash", _accepts_flash, _flash, formula="eager_attention",
           gain="337 % of Longformer with 16,384 tokens; its Triton kernel for global tokens 19.5 %"),
    Kernel("chunked", lambda call: True, chunked_attention, formula="eager_attention",
           gain="time linear in the length"),
)  # fmt: skip
