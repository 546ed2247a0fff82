"""What is kept between decoding steps. Modules hold no state: memory is the caller's object, written in place.

Growing   keys and values of all steps so far, one longer each step
Fixed     the same in a buffer of constant size, so that compiled code sees one shape
Frozen    computed once from the context and never again (cross-attention)

The key of a row's position p lies in column p, so rows may stand at different places, come and go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

KeysValues = tuple[Tensor, Tensor]


class Memory:
    """Give `extend` a way to make the new keys and values; receive all that a query may look at.

    `where`: the columns of what is new, (Q,) or (B, Q); None: from the first on when nothing is kept yet, else behind what
    is there."""

    @property
    def begun(self) -> bool:
        """Whether what is new does not stand at the beginning, where nobody says where."""
        raise NotImplementedError

    def extend(self, make: Callable[[], KeysValues], where: Tensor | None) -> KeysValues:
        raise NotImplementedError

    def select(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was."""
        raise NotImplementedError

    def join(self, other: Any) -> None:
        """The rows of another memory of the same kind below these."""
        raise NotImplementedError


@dataclass
class Growing(Memory):
    k: Tensor | None = None
    v: Tensor | None = None
    spare: KeysValues | None = None
    """buffers with room at their end, whose beginnings k and v are: appending copies nothing that is there"""
    level: bool = True
    """all rows end in the same column: what is new goes behind it. Else each row's goes to its own place"""

    @property
    def begun(self) -> bool:
        return self.k is not None and self.k.shape[-2] > 0

    def extend(self, make: Callable[[], KeysValues], where: Tensor | None) -> KeysValues:
        k, v = make()
        if self.k is None or self.v is None or not self.k.shape[-2]:
            self.k, self.v = k, v
            return k, v
        used, now = self.k.shape[-2], self.k.shape[-2] + k.shape[-2]
        if self.spare is None or self.spare[0].shape[-2] < now:
            room = max(2 * now, 32 * k.shape[-2])
            self.spare = _roomy(self.k, room), _roomy(self.v, room)
        for buffer, new in zip(self.spare, (k, v), strict=True):
            if self.level or where is None:
                buffer[..., used:now, :] = new
            else:
                buffer[..., used:now, :] = 0.0  # hidden from shorter rows, but 0 times anything shall be a number
                _place(buffer, where, new)
        self.k, self.v = self.spare[0][..., :now, :], self.spare[1][..., :now, :]
        return self.k, self.v

    def select(self, rows: Tensor) -> None:
        if self.k is not None and self.v is not None:
            self.k, self.v, self.spare = self.k.index_select(0, rows), self.v.index_select(0, rows), None

    def trim(self, length: int, level: bool) -> None:
        """No row is longer than `length`; `level`: and none is shorter."""
        self.level = level
        if self.k is not None and self.v is not None:
            self.k, self.v = self.k[..., :length, :], self.v[..., :length, :]

    def join(self, other: Growing) -> None:
        self.k, self.v = _joined(self.k, other.k), _joined(self.v, other.v)
        self.spare = None


def _roomy(x: Tensor, room: int) -> Tensor:
    larger = x.new_empty(*x.shape[:-2], room, x.shape[-1])
    larger[..., : x.shape[-2], :] = x
    return larger


def _place(buffer: Tensor, where: Tensor, new: Tensor) -> None:
    """What is new (B, H, Q, d) into the columns `where`, (Q,) or (B, Q)."""
    if where.ndim == 1:
        buffer.index_copy_(-2, where, new)
    else:
        buffer.scatter_(-2, where[:, None, :, None].expand_as(new), new)


def _joined(x: Tensor | None, y: Tensor | None) -> Tensor | None:
    """Rows of both (B, H, K, d), the narrower filled up with 0."""
    if x is None or y is None:
        assert x is None and y is None, "keys of nothing have a shape too"
        return None
    room = max(x.shape[-2], y.shape[-2])
    return torch.cat([F.pad(part, (0, 0, 0, room - part.shape[-2])) for part in (x, y)])


@dataclass
class Fixed(Memory):
    """Room for `room` positions a row. Columns beyond a row's own position hold nothing: the rule hides them.

    Steps write at their positions, or at `columns` where those are set (beams write side by side)."""

    room: int
    k: Tensor | None = None
    v: Tensor | None = None
    columns: Tensor | None = None
    counts: Tensor | None = None
    """zeros that a kernel counts with, and leaves as it found them"""

    @property
    def begun(self) -> bool:
        return self.columns is not None

    def counters(self, kernel: Any) -> Tensor:
        assert self.k is not None
        if self.counts is None or len(self.counts) != self.k.shape[0] * self.k.shape[1]:
            self.counts = kernel.counters(self.k)
        assert self.counts is not None
        return self.counts

    def extend(self, make: Callable[[], KeysValues], where: Tensor | None) -> KeysValues:
        k, v = make()
        if self.k is None or self.v is None:
            self.made(k, v)
        assert self.k is not None and self.v is not None
        first = where is None and self.columns is None
        if first:
            where = torch.arange(k.shape[-2], device=k.device)
        elif where is None:
            where = self.columns
        assert where is not None
        _place(self.k, where, k)
        _place(self.v, where, v)
        return (k, v) if first else (self.k, self.v)  # of a row's beginning, what is new is all there is

    def select(self, rows: Tensor) -> None:
        if self.k is not None and self.v is not None:
            self.k, self.v = self.k.index_select(0, rows), self.v.index_select(0, rows)

    def made(self, k: Tensor, v: Tensor) -> Fixed:
        """With its buffers at once, for keys and values like these (B, H, K, d): a recording knows where they lie."""
        self.k, self.v = (like.new_zeros(*like.shape[:-2], self.room, like.shape[-1]) for like in (k, v))
        return self

    def widen(self, columns: Tensor, room: int) -> None:
        """From now on steps write at `columns`, up to `room`."""
        self.columns, self.room = columns, room
        if self.k is not None and self.v is not None:
            more = room - self.k.shape[-2]
            self.k, self.v = F.pad(self.k, (0, 0, 0, more)), F.pad(self.v, (0, 0, 0, more))

    def join(self, other: Fixed) -> None:
        self.room = max(self.room, other.room)
        self.k, self.v = _joined(self.k, other.k), _joined(self.v, other.v)


@dataclass
class Frozen(Memory):
    kept: KeysValues | None = None

    @property
    def begun(self) -> bool:
        return self.kept is not None

    def keys(self) -> Tensor:
        assert self.kept is not None
        return self.kept[0]

    def extend(self, make: Callable[[], KeysValues], where: Tensor | None) -> KeysValues:
        if self.kept is None:
            self.kept = make()
        return self.kept

    def select(self, rows: Tensor) -> None:
        if self.kept is not None:
            self.kept = (self.kept[0].index_select(0, rows), self.kept[1].index_select(0, rows))

    def join(self, other: Frozen) -> None:
        k, v = (_joined(*parts) for parts in zip(self.kept or (None, None), other.kept or (None, None), strict=True))
        self.kept = None if k is None or v is None else (k, v)


@dataclass
class LayerMemory:
    """What one block of a decoder keeps: its own past, and the context it regards."""

    attend: Memory = field(default_factory=Growing)
    cross: Frozen = field(default_factory=Frozen)
