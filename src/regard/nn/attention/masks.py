"""Who may look at whom. A rule called on index tensors *is* its meaning: True = query q of row b, head h may look at key k.

`q` and `k` are absolute positions in the row. Rules join by `&` and `|`. This is the one place where masks are
defined; every kernel is held equal to it, and a query that may look at nothing receives 0 from each of them.

    Causal() & Real(lengths)          a decoder over padded rows
    Window(256, 256) | Global(marks)  Longformer
    Causal() & Same(documents)        documents packed into one row
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.types import Offsets


class Rule:
    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        raise NotImplementedError

    def __and__(self, other: Rule) -> Rule:
        return Both(self, other)

    def __or__(self, other: Rule) -> Rule:
        return Either(self, other)


@dataclass(frozen=True, eq=False)
class Both(Rule):
    left: Rule
    right: Rule

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.left(b, h, q, k) & self.right(b, h, q, k)


@dataclass(frozen=True, eq=False)
class Either(Rule):
    left: Rule
    right: Rule

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.left(b, h, q, k) | self.right(b, h, q, k)


@dataclass(frozen=True, eq=False)
class Causal(Rule):
    """Nobody sees the future."""

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return k <= q


@dataclass(frozen=True, eq=False)
class Whole(Rule):
    """Everybody sees everybody, in rows that have few different lengths, as pictures do: kernels may prepare for each."""

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k >= 0) & (q >= 0)


@dataclass(frozen=True, eq=False)
class Window(Rule):
    """At most `left` steps back and `right` steps ahead, each step `dilation` positions wide: a number, or one a head."""

    left: int
    right: int
    dilation: int | tuple[int, ...] = 1

    def __post_init__(self) -> None:
        widths = (self.dilation,) if isinstance(self.dilation, int) else self.dilation
        if self.left < 0 or self.right < 0 or min(widths, default=0) < 1:
            raise ValueError(f"a window reaches 0 or more steps of 1 or more: {self}")

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        if self.dilation == 1:
            return (k >= q - self.left) & (k <= q + self.right)
        wide = self._wide(h)
        near = (k >= q - self.left * wide) & (k <= q + self.right * wide)
        return near & ((q - k) % wide == 0)

    def _wide(self, h: Tensor) -> int | Tensor:
        """The width of a step in each of these heads, without a table: such a rule can be compiled into a kernel."""
        if isinstance(self.dilation, int):
            return self.dilation
        wide = torch.full_like(h, self.dilation[0])
        for head, width in enumerate(self.dilation):
            wide = torch.where(h == head, width, wide)
        return wide


@dataclass(frozen=True, eq=False)
class Real(Rule):
    """Only keys that are not padding: the first `tokens[b]` of each row, or those marked True in `tokens` (B, K)."""

    tokens: Tensor

    def __post_init__(self) -> None:
        if (self.tokens.dtype == torch.bool) != (self.tokens.ndim == 2) or self.tokens.is_floating_point():
            raise ValueError(
                f"a mask is marks (B, L) of dtype bool or lengths (B,), not {self.tokens.dtype} {tuple(self.tokens.shape)}"
            )

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return k < self.tokens[b] if self.tokens.ndim == 1 else self.tokens[b, k]


@dataclass(frozen=True, eq=False)
class Same(Rule):
    """Only within one's own document. `documents` (B, Q) numbers the queries', `others` (B, K) the keys' (None: the same)."""

    documents: Tensor
    others: Tensor | None = None

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        others = self.documents if self.others is None else self.others
        return self.documents[b, q] == others[b, k]


@dataclass(frozen=True, eq=False)
class Packed(Rule):
    """The same, said by where the documents of a packed row begin; documents i of queries and keys belong together."""

    queries: Offsets
    keys: Offsets

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.queries.document(q) == self.keys.document(k)


@dataclass(frozen=True, eq=False)
class Global(Rule):
    """Marked tokens see all and are seen by all: `tokens` (B, L) True marks."""

    tokens: Tensor
    most: int | None = None
    """At least as many as any row has marks, rounded, so that compiled code sees few numbers; None: they are counted, for
    which a GPU is waited for."""
    kept: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.tokens[b, q] | self.tokens[b, k]

    def places(self) -> tuple[Tensor, Tensor]:
        """(B, G) where the marked tokens of each row stand, from left to right, and which of these G are there; what is
        left of a row with fewer stands at its end. Found once for all layers of a pass."""
        if not self.kept:
            length = self.tokens.shape[1]
            count = int(self.tokens.sum(1).max()) if self.most is None else min(self.most, length)
            places = torch.where(self.tokens, torch.arange(length, device=self.tokens.device), length)
            first = places.topk(count, 1, largest=False, sorted=True).values
            self.kept.append((first.clamp(max=length - 1), first < length))
        return self.kept[0]


@dataclass(frozen=True, eq=False)
class Written(Rule):
    """Written out already, once for all layers: `table` (B, Q or 1, K); q counts the queries. No query is left with nothing."""

    table: Tensor
    hidden: Tensor
    """where the table is False: (B, 1, Q or 1, K)"""

    @classmethod
    def out(cls, table: Tensor) -> Written:
        return cls(table, ~table[:, None])

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.table[b, q if self.table.shape[1] > 1 else torch.zeros_like(q), k]


@dataclass(frozen=True, eq=False)
class Once(Rule):
    """The same, written out by the first layer that needs it and kept for all others of one pass."""

    rule: Rule
    kept: list[tuple[tuple[int, ...], Tensor | None, Tensor]] = field(default_factory=list)
    """how many rows, heads, queries and keys, where queries stood, and the table (B or 1, H or 1, Q, K)"""

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.rule(b, h, q, k)

    def table(self, sizes: tuple[int, int, int, int], at: Tensor | None, device: torch.device) -> Tensor:
        for known, where, table in self.kept:
            if known == sizes and where is at and table.device == device:
                return table
        rows, heads, Q, K = sizes
        places = torch.arange(Q, device=device) if at is None else at
        table = dense(self.rule, rows, heads, places, torch.arange(K, device=device))
        self.kept.append((sizes, at, table))
        return table


def join(*rules: Rule | None) -> Rule | None:
    """All of those that are given; None when there is none."""
    joined: Rule | None = None
    for rule in rules:
        if rule is not None:
            joined = rule if joined is None else joined & rule
    return joined


def marks(tokens: Tensor, length: int) -> Tensor:
    """(B, length) True where a position is real, from such marks or from lengths (B,)."""
    return tokens if tokens.ndim == 2 else torch.arange(length, device=tokens.device) < tokens[:, None]


def dense(rule: Rule, rows: int, heads: int, q: Tensor, k: Tensor) -> Tensor:
    """The rule written out: (B or 1, H or 1, Q, K). `q` is (Q,) or (B, Q); axes the rule does not use stay 1."""
    b = torch.arange(rows, device=q.device).view(-1, 1, 1, 1)
    h = torch.arange(heads, device=q.device).view(1, -1, 1, 1)
    allowed = rule(b, h, (q if q.ndim == 2 else q[None])[:, None, :, None], k[None, None, None])
    return allowed.expand(*allowed.shape[:2], q.shape[-1], k.shape[-1])
