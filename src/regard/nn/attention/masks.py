"""Who may look at whom. A rule called on index tensors *is* its meaning: True = query q of row b, head h may look at key k.

`q` and `k` are absolute positions in the row. Rules join by `&` and `|`. This is the one place where masks are
defined; every kernel is held equal to it, and a query that may look at nothing receives 0 from each of them.

    Causal() & Padding(lengths)                     a decoder over padded rows
    SlidingWindow(256, 256) | GlobalTokens(tokens)  Longformer
    Causal() & PackedDocuments(offsets, offsets)    documents packed into one row
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.types import Offsets


class AttentionMask:
    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        raise NotImplementedError

    def __and__(self, other: AttentionMask) -> AttentionMask:
        return And(self, other)

    def __or__(self, other: AttentionMask) -> AttentionMask:
        return Or(self, other)


@dataclass(frozen=True, eq=False)
class And(AttentionMask):
    left: AttentionMask
    right: AttentionMask

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.left(b, h, q, k) & self.right(b, h, q, k)


@dataclass(frozen=True, eq=False)
class Or(AttentionMask):
    left: AttentionMask
    right: AttentionMask

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.left(b, h, q, k) | self.right(b, h, q, k)


@dataclass(frozen=True, eq=False)
class Causal(AttentionMask):
    """Nobody sees the future."""

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return k <= q


@dataclass(frozen=True, eq=False)
class Full(AttentionMask):
    """Everybody sees everybody, in rows that have few different lengths, as pictures do: kernels may prepare for each."""

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k >= 0) & (q >= 0)


@dataclass(frozen=True, eq=False)
class SlidingWindow(AttentionMask):
    """At most `left` steps back and `right` steps ahead, each step `dilation` positions wide: a number, or one a head."""

    left: int
    right: int
    dilation: int | tuple[int, ...] = 1

    def __post_init__(self) -> None:
        widths = (self.dilation,) if isinstance(self.dilation, int) else self.dilation
        if self.left < 0 or self.right < 0 or min(widths, default=0) < 1:
            raise ValueError(f"left and right must be at least 0 and dilation at least 1, got {self}.")

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        if self.dilation == 1:
            return (k >= q - self.left) & (k <= q + self.right)
        wide = self._head_dilation(h)
        near = (k >= q - self.left * wide) & (k <= q + self.right * wide)
        return near & ((q - k) % wide == 0)

    def _head_dilation(self, h: Tensor) -> int | Tensor:
        """The width of a step in each of these heads, without a table: such a rule can be compiled into a kernel."""
        if isinstance(self.dilation, int):
            return self.dilation
        wide = torch.full_like(h, self.dilation[0])
        for head, width in enumerate(self.dilation):
            wide = torch.where(h == head, width, wide)
        return wide


@dataclass(frozen=True, eq=False)
class Padding(AttentionMask):
    """Masks padding: keys after the first `valid[b]` of each row, or keys that are False in `valid` (B, K)."""

    valid: Tensor

    def __post_init__(self) -> None:
        if (self.valid.dtype == torch.bool) != (self.valid.ndim == 2) or self.valid.is_floating_point():
            raise ValueError(
                "Expected a bool mask of shape (B, L) or integer lengths of shape (B,), got "
                f"{self.valid.dtype} {tuple(self.valid.shape)}."
            )

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return k < self.valid[b] if self.valid.ndim == 1 else self.valid[b, k]


@dataclass(frozen=True, eq=False)
class PackedDocuments(AttentionMask):
    """Attention within each document of a packed row; document i of the queries attends to document i of the keys."""

    queries: Offsets
    keys: Offsets

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.queries.document_ids(q) == self.keys.document_ids(k)


@dataclass(frozen=True, eq=False)
class GlobalTokens(AttentionMask):
    """Marked tokens see all and are seen by all: `tokens` (B, L) True marks."""

    tokens: Tensor
    max_count: int | None = None
    """At least as many as any row has marks, rounded, so that compiled code sees few numbers; None: they are counted, for
    which a GPU is waited for."""
    cache: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.tokens[b, q] | self.tokens[b, k]

    def positions(self) -> tuple[Tensor, Tensor]:
        """(B, G) where the marked tokens of each row stand, from left to right, and which of these G are there; what is
        left of a row with fewer stands at its end. Found once for all layers of a pass."""
        if not self.cache:
            length = self.tokens.shape[1]
            count = int(self.tokens.sum(1).max()) if self.max_count is None else min(self.max_count, length)
            places = torch.where(self.tokens, torch.arange(length, device=self.tokens.device), length)
            first = places.topk(count, 1, largest=False, sorted=True).values
            self.cache.append((first.clamp(max=length - 1), first < length))
        return self.cache[0]


@dataclass(frozen=True, eq=False)
class Dense(AttentionMask):
    """Written out already, once for all layers: `table` (B, Q or 1, K); q counts the queries. No query is left with nothing."""

    table: Tensor
    blocked: Tensor
    """where the table is False: (B, 1, Q or 1, K)"""

    @classmethod
    def from_table(cls, table: Tensor) -> Dense:
        return cls(table, ~table[:, None])

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.table[b, q if self.table.shape[1] > 1 else torch.zeros_like(q), k]


@dataclass(frozen=True, eq=False)
class Memoized(AttentionMask):
    """The same, written out by the first layer that needs it and kept for all others of one pass."""

    mask: AttentionMask
    cache: list[tuple[tuple[int, ...], Tensor | None, Tensor]] = field(default_factory=list)
    """how many rows, heads, queries and keys, where queries stood, and the table (B or 1, H or 1, Q, K)"""

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.mask(b, h, q, k)

    def table(self, sizes: tuple[int, int, int, int], at: Tensor | None, device: torch.device) -> Tensor:
        for known, where, table in self.cache:
            if known == sizes and where is at and table.device == device:
                return table
        rows, heads, Q, K = sizes
        places = torch.arange(Q, device=device) if at is None else at
        table = materialize(self.mask, rows, heads, places, torch.arange(K, device=device))
        self.cache.append((sizes, at, table))
        return table


def and_masks(*masks: AttentionMask | None) -> AttentionMask | None:
    """All of those that are given; None when there is none."""
    joined: AttentionMask | None = None
    for rule in masks:
        if rule is not None:
            joined = rule if joined is None else joined & rule
    return joined


def valid_mask(valid: Tensor, length: int) -> Tensor:
    """(B, length) True where a position is real, from such marks or from lengths (B,)."""
    return valid if valid.ndim == 2 else torch.arange(length, device=valid.device) < valid[:, None]


def materialize(mask: AttentionMask, rows: int, heads: int, q: Tensor, k: Tensor) -> Tensor:
    """The rule written out: (B or 1, H or 1, Q, K). `q` is (Q,) or (B, Q); axes the rule does not use stay 1."""
    b = torch.arange(rows, device=q.device).view(-1, 1, 1, 1)
    h = torch.arange(heads, device=q.device).view(1, -1, 1, 1)
    allowed = mask(b, h, (q if q.ndim == 2 else q[None])[:, None, :, None], k[None, None, None])
    return allowed.expand(*allowed.shape[:2], q.shape[-1], k.shape[-1])
