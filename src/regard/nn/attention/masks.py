"""Attention masks. A mask is a function of index tensors: True = query q of row b and head h may attend to key k.

`q` and `k` are absolute positions in the row. Masks are combined with `&` and `|`. All kernels must give the same
result as these definitions; a query that may not attend to any key gets 0.

    Causal() & Padding(lengths)                     a decoder over padded rows
    SlidingWindow(256, 256) | GlobalTokens(tokens)  Longformer
    Causal() & PackedDocuments(offsets, offsets)    documents packed into one row
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.types import Packing


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
    """No attention to later positions."""

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return k <= q


@dataclass(frozen=True, eq=False)
class Full(AttentionMask):
    """Attention to all positions. For rows with few different lengths, as for images, so that kernels can prepare for each."""

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k >= 0) & (q >= 0)


@dataclass(frozen=True, eq=False)
class SlidingWindow(AttentionMask):
    """At most `left` steps back and `right` steps ahead; a step is `dilation` positions (an integer, or one per head)."""

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
        wide: int | Tensor = 1
        if isinstance(self.dilation, int):
            wide = self.dilation
        else:  # without an indexed table, so that the mask can be compiled into a kernel
            for head, width in enumerate(self.dilation):
                wide = torch.where(h == head, width, wide)
        near = (k >= q - self.left * wide) & (k <= q + self.right * wide)
        return near & ((q - k) % wide == 0)


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

    queries: Packing
    keys: Packing

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.queries.document_ids(q) == self.keys.document_ids(k)


@dataclass(frozen=True, eq=False)
class GlobalTokens(AttentionMask):
    """Tokens marked True in `tokens` (B, L) attend to all tokens, and all tokens attend to them."""

    tokens: Tensor
    max_count: int | None = None
    """Upper bound of global tokens per row, rounded so that compiled code has few shapes; None: counted, with a GPU sync."""
    cache: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.tokens[b, q] | self.tokens[b, k]

    def positions(self) -> tuple[Tensor, Tensor]:
        """(B, G) positions of the global tokens of each row, ascending, and a bool mask of the entries in use; unused
        entries point to the last position. Computed once for all layers."""
        if not self.cache:
            length = self.tokens.shape[1]
            count = int(self.tokens.sum(1).max()) if self.max_count is None else min(self.max_count, length)
            places = torch.where(self.tokens, torch.arange(length, device=self.tokens.device), length)
            first = places.topk(count, 1, largest=False, sorted=True).values
            self.cache.append((first.clamp(max=length - 1), first < length))
        return self.cache[0]


@dataclass(frozen=True, eq=False)
class Dense(AttentionMask):
    """Mask as a tensor `table` (B, Q or 1, K), built once for all layers; q is a query index. Each query must have a key.

    A table with fewer rows than the queries repeats: row b has the mask `table[b % len(table)]`."""

    table: Tensor

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.table[b % len(self.table), q if self.table.shape[1] > 1 else torch.zeros_like(q), k]


@dataclass(frozen=True, eq=False)
class Memoized(AttentionMask):
    """A mask that is materialized by the first layer and reused by the other layers of the same forward pass."""

    mask: AttentionMask
    cache: list[tuple[tuple[int, ...], Tensor | None, Tensor]] = field(default_factory=list)
    """Sizes (rows, heads, queries, keys), query positions, and the table (B or 1, H or 1, Q, K)."""

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
    """Conjunction of the masks that are not None; None if all are None."""
    joined: AttentionMask | None = None
    for rule in masks:
        if rule is not None:
            joined = rule if joined is None else joined & rule
    return joined


def conjuncts(mask: AttentionMask | None) -> list[AttentionMask]:
    """The masks combined by `&`."""
    if mask is None:
        return []
    if isinstance(mask, Memoized):
        return conjuncts(mask.mask)
    return conjuncts(mask.left) + conjuncts(mask.right) if isinstance(mask, And) else [mask]


def valid_mask(valid: Tensor, length: int) -> Tensor:
    """(B, length) True at tokens, False at padding; `valid` is such a mask or lengths (B,)."""
    return valid if valid.ndim == 2 else torch.arange(length, device=valid.device) < valid[:, None]


def materialize(mask: AttentionMask, rows: int, heads: int, q: Tensor, k: Tensor) -> Tensor:
    """Bool tensor of the mask, (B or 1, H or 1, Q, K). `q` is (Q,) or (B, Q); axes not used by the mask have size 1."""
    b = torch.arange(rows, device=q.device).view(-1, 1, 1, 1)
    h = torch.arange(heads, device=q.device).view(1, -1, 1, 1)
    allowed = mask(b, h, (q if q.ndim == 2 else q[None])[:, None, :, None], k[None, None, None])
    return allowed.expand(*allowed.shape[:2], q.shape[-1], k.shape[-1])
