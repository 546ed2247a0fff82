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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

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

    def unused_rows(self, real: Tensor | None) -> Tensor | None:
        """(B, L) True at global tokens, which a separate attention computes, and at padding; `real`: `valid_tokens`."""
        hidden = None if self.global_tokens is None else self.global_tokens.tokens
        if real is not None:
            hidden = ~real if hidden is None else hidden | ~real
        return hidden

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


# -- chunks of queries with the keys of their windows


def chunk_size(q: Tensor) -> tuple[int, int]:
    """Queries per chunk, and approximate maximum number of weights per chunk: on CPUs, the fastest for windows of 33 to
    513 keys; on GPUs, few launches within some hundred MiB."""
    if q.device.type != "cpu":
        return 512, 2**26
    return 128 if q.dtype == torch.bfloat16 else 64, 2**20


MAX_CACHED_MASKS = 16  # Maximum number of masks cached for chunks of the same form.


@dataclass(frozen=True)
class Chunk:
    """Slices of rows, heads, queries, and keys within the windows of the queries."""

    rows: slice
    heads: slice
    queries: slice
    keys: slice
    window: SlidingWindow

    def index(self, side: str) -> tuple[slice, slice, slice]:
        """Index of the chunk in a tensor (B, H, …): `q` per query, `k` per key, `g` per global token."""
        return self.rows, self.heads, {"q": self.queries, "k": self.keys, "g": slice(None)}[side]

    def window_columns(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """(C, W) key index within the chunk for each query and column of its window, and whether the key exists."""
        step = self.keys.step
        first = (self.queries.start - self.keys.start) // step - self.window.left
        queries, keys = (len(range(side.start, side.stop, step)) for side in (self.queries, self.keys))
        wide = torch.arange(self.window.left + self.window.right + 1, device=device)
        at = torch.arange(first, first + queries, device=device)[:, None] + wide
        return at.clamp(0, keys - 1), (at >= 0) & (at < keys)


def iter_chunks(pattern: LocalPattern, q: Tensor) -> Iterator[Chunk]:
    """Chunks that cover every query once. With dilation r, the tokens of a row form r independent sequences."""
    (rows, heads, length, _), (block, room) = q.shape, chunk_size(q)
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


ChunkFunction = Callable[..., tuple[Tensor, ...]]


class _ChunkMap(torch.autograd.Function):
    """(B, H, L, width) products of the factors `function(number, chunk, *parts)`, one or two matrices per head, for all
    chunks. The first tensor has a row per query; `sides`: the `Chunk.index` of each tensor. Factors are not stored: the
    backward pass computes them again."""

    @staticmethod
    def forward(
        ctx: Any, function: ChunkFunction, pattern: LocalPattern, width: int, sides: str, *tensors: Tensor
    ) -> Tensor:
        ctx.save_for_backward(*tensors)
        ctx.settings = function, pattern, sides
        B, H, L, _ = tensors[0].shape
        out = tensors[0].new_empty(B, L, H, width).transpose(1, 2)  # the memory layout of linear layers
        for number, (chunk, parts) in enumerate(_iter_parts(pattern, sides, tensors)):
            first, *others = function(number, chunk, *parts)
            out[chunk.index("q")] = first @ others[0] if others else first
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        (function, pattern, sides), tensors = ctx.settings, ctx.saved_tensors
        wide = torch.promote_types(gradient.dtype, torch.float32)  # global tokens sum many small gradients
        sums = [
            torch.zeros_like(x, dtype=wide if side == "g" else None) for side, x in zip(sides, tensors, strict=True)
        ]
        for number, (chunk, parts) in enumerate(_iter_parts(pattern, sides, tensors)):
            with torch.enable_grad():
                leaves = [part.detach().requires_grad_() for part in parts]
                factors = function(number, chunk, *leaves)
            changes = [gradient[chunk.index("q")]]
            if len(factors) > 1:
                changes = [changes[0] @ factors[1].detach().mT, factors[0].detach().mT @ changes[0]]
            added = torch.autograd.grad(factors, leaves, changes)
            for side, total, more in zip(sides, sums, added, strict=True):
                total[chunk.index(side)] += more
        return None, None, None, None, *(total.to(x.dtype) for total, x in zip(sums, tensors, strict=True))


_chunk_map: Any = _ChunkMap.apply


def _iter_parts(pattern: LocalPattern, sides: str, tensors: Sequence[Tensor]) -> Iterator[tuple[Chunk, list[Tensor]]]:
    """Chunks, and the part of each tensor."""
    # products in bfloat16 take two thirds of the time with contiguous keys per head
    tensors = [
        x.contiguous() if side == "k" and x.dtype == torch.bfloat16 else x
        for side, x in zip(sides, tensors, strict=True)
    ]
    for chunk in iter_chunks(pattern, tensors[0]):
        yield chunk, [x[chunk.index(side)] for side, x in zip(sides, tensors, strict=True)]


class _ChunkWeights:
    """Attention weights of chunks, global tokens first; masks are cached for chunks of the same form."""

    def __init__(self, call: LocalCall) -> None:
        q, self.pattern, self.scale = call.q, call.pattern, call.scale
        self.positions = torch.arange(q.shape[2], device=q.device)
        self.row_index = torch.arange(q.shape[0], device=q.device).view(-1, 1, 1, 1)
        self.head_index = self.row_index[:1]  # windows of a head group have one dilation and ignore the head
        self.mask_cache: dict[tuple[int, ...], Tensor] = {}
        marks, self.num_global = call.pattern.global_positions(), 0
        self.global_kv: tuple[Tensor, ...] = ()
        """(B, H, G, d) keys and values of the global tokens, if there are any."""
        if marks is not None:
            self.num_global = marks[0].shape[1]
            self.global_positions, self.global_valid = (x[:, None, None] for x in marks)
            index = marks[0][:, None, :, None]
            self.global_kv = tuple(x.gather(2, index.expand(-1, x.shape[1], -1, x.shape[3])) for x in call[1:3])

    def additive_mask(self, chunk: Chunk, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
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
        added = torch.zeros(may.shape, dtype=dtype, device=may.device)
        added.masked_fill_(~may, torch.finfo(dtype).min)
        if usual:
            if len(self.mask_cache) >= MAX_CACHED_MASKS:
                self.mask_cache.clear()
            self.mask_cache[form] = added
        return added, None if rest is None else ~may.any(-1, keepdim=True)

    def __call__(self, chunk: Chunk, q: Tensor, k: Tensor) -> Tensor:
        """softmax(q kᵀ · scale) of a chunk, (R, H, C, K); `k`: global keys first."""
        added, empty = self.additive_mask(chunk, q.dtype)
        if added.shape[0] > 1:
            added = added.expand(-1, q.shape[1], -1, -1).flatten(0, 1)
        q, keys, shape = (q * self.scale).flatten(0, 1), k.flatten(0, 1).transpose(1, 2), q.shape[:3]
        weights = torch.baddbmm(added.view(-1, *added.shape[-2:]), q, keys).softmax(-1).view(*shape, -1)
        return weights if empty is None else weights.masked_fill(empty, 0.0)


def _all_true(may: Tensor) -> bool:
    """Whether all are True, on CPUs; False on other devices, to avoid a synchronization."""
    return may.device.type == "cpu" and bool(may.all())


def chunked_attention(call: LocalCall) -> Tensor:
    """`local_attention` chunk by chunk: memory holds queries, keys, values and one chunk."""
    weights_of, dropout, seed = _ChunkWeights(call), call.dropout, int(torch.randint(2**62, ())) if call.dropout else 0

    def attend(number: int, chunk: Chunk, q: Tensor, k: Tensor, v: Tensor, *far: Tensor) -> tuple[Tensor, ...]:
        if far:
            k, v = torch.cat((far[0], k), 2), torch.cat((far[1], v), 2)
        weights = weights_of(chunk, q, k)
        if dropout:  # by a seed per chunk: the backward pass needs the same factors
            chance = torch.Generator(q.device).manual_seed(seed + number)
            kept = torch.empty_like(weights).bernoulli_(1.0 - dropout, generator=chance)
            weights = weights * kept.div_(1.0 - dropout)
        return weights, v

    far = weights_of.global_kv
    return _chunk_map(attend, call.pattern, call.v.shape[-1], "qkk" + "g" * len(far), *call[:3], *far)


def _key_positions(pattern: LocalPattern, heads: int, length: int, device: torch.device) -> Tensor:
    """(1 or B, 1 or H, L, G + W) key position of all columns, global tokens first; -1: no key."""
    at = torch.arange(length, device=device).view(1, 1, -1, 1)
    wide = torch.arange(-pattern.window.left, pattern.window.right + 1, device=device)
    groups = []
    for group, window in pattern.head_groups(heads):
        assert isinstance(window.dilation, int)
        groups.append((at + wide * window.dilation).expand(-1, group.stop - group.start, -1, -1))
    keys = torch.cat(groups, 1) if len(groups) > 1 else groups[0][:, :1]
    keys, marks = torch.where((keys >= 0) & (keys < length), keys, -1), pattern.global_positions()
    if marks is not None:
        places = torch.where(marks[1], marks[0], -1)[:, None, None]
        sizes = len(places), keys.shape[1], length
        keys = torch.cat([x.expand(*sizes, -1) for x in (places, keys)], -1)
    return keys.int()


def local_attention_with_weights(call: LocalCall) -> Tensor:
    """Attention output (B, H, L, e) over the window and the global tokens; `record` receives weights (B, H, L, G + W) and
    key positions (B or 1, H or 1, L, G + W). Rows of global tokens and padding are 0.

    After the global tokens, row l of the weights has one column for each key from l - left to l + right, in steps of the
    dilation. Columns outside the sequence are 0. Weights stay in the autograd graph, for gradient-based attribution."""
    q, k, v, pattern, _, dropout, record = call
    weights_of, (_, heads, length, _) = _ChunkWeights(call), q.shape
    num_global, far = weights_of.num_global, weights_of.global_kv

    def weigh(number: int, chunk: Chunk, q: Tensor, k: Tensor, *far: Tensor) -> tuple[Tensor, ...]:
        weights, (columns, inside) = weights_of(chunk, q, torch.cat((*far, k), 2)), chunk.window_columns(q.device)
        near = weights[..., num_global:].gather(-1, columns.expand(*weights.shape[:3], -1))
        return (torch.cat((weights[..., :num_global], torch.where(inside, near, 0.0)), -1),)

    def mix(number: int, chunk: Chunk, weights: Tensor, v: Tensor, *far: Tensor) -> tuple[Tensor, ...]:
        (columns, inside), near = chunk.window_columns(v.device), weights[..., num_global:]
        dense = v.new_zeros(*weights.shape[:3], v.shape[2])
        dense = dense.scatter_add(-1, columns.expand_as(near), torch.where(inside, near, 0.0))
        return torch.cat((weights[..., :num_global], dense), -1), torch.cat((*far, v), 2)

    width, more = num_global + pattern.window.left + pattern.window.right + 1, "g" if far else ""
    weights = _chunk_map(weigh, pattern, width, "qk" + more, q, k, *far[:1])
    hidden = pattern.unused_rows(pattern.valid_tokens(length))
    if hidden is not None:
        weights = weights.masked_fill(hidden[:, None, :, None], 0.0)
    if record is not None:
        weights = record(weights, _key_positions(pattern, heads, length, q.device))
    used = F.dropout(weights, dropout, training=dropout > 0.0)
    return _chunk_map(mix, pattern, v.shape[-1], "qk" + more, used, v, *far[1:])


LOCAL_KERNELS = (
    Kernel("recorded", lambda call: call.record is not None, local_attention_with_weights,
           formula="eager_attention", gain="memory linear in the length; not for speed"),
    Kernel("flash", _accepts_flash, _flash, formula="eager_attention",
           gain="337 % of Longformer with 16,384 tokens; its Triton kernel for global tokens 19.5 %"),
    Kernel("chunked", lambda call: True, chunked_attention, formula="eager_attention",
           gain="time linear in the length"),
)  # fmt: skip
