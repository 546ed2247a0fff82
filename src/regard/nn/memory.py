"""What is kept between decoding steps. Modules hold no state: memory is the caller's object, written in place.

Growing   keys and values of all steps so far, one longer each step
Fixed     the same in a buffer of constant size, so that compiled code sees one shape; rows may be at different places
Frozen    computed once from the context and never again (cross-attention)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

KeysValues = tuple[Tensor, Tensor]


class Memory:
    """Give `extend` a way to make the new keys and values; receive all that a query may look at."""

    def extend(self, make: Callable[[], KeysValues], where: Tensor | None) -> KeysValues:
        raise NotImplementedError

    def select(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was."""
        raise NotImplementedError


@dataclass
class Growing(Memory):
    k: Tensor | None = None
    v: Tensor | None = None

    def extend(self, make: Callable[[], KeysValues], where: Tensor | None) -> KeysValues:
        k, v = make()
        if self.k is not None and self.v is not None:
            k, v = torch.cat([self.k, k], dim=-2), torch.cat([self.v, v], dim=-2)
        self.k, self.v = k, v
        return k, v

    def select(self, rows: Tensor) -> None:
        if self.k is not None and self.v is not None:
            self.k, self.v = self.k.index_select(0, rows), self.v.index_select(0, rows)


@dataclass
class Fixed(Memory):
    """Room for `room` positions a row. Columns beyond a row's own position hold nothing: the Causal rule hides them."""

    room: int
    k: Tensor | None = None
    v: Tensor | None = None

    def extend(self, make: Callable[[], KeysValues], where: Tensor | None) -> KeysValues:
        k, v = make()
        if where is None:
            where = torch.arange(k.shape[-2], device=k.device)
        if self.k is None or self.v is None:
            self.k, self.v = (x.new_zeros(*x.shape[:-2], self.room, x.shape[-1]) for x in (k, v))
        if where.ndim == 1:
            self.k.index_copy_(-2, where, k)
            self.v.index_copy_(-2, where, v)
        else:
            columns = where[:, None, :, None]
            self.k.scatter_(-2, columns.expand_as(k), k)
            self.v.scatter_(-2, columns.expand_as(v), v)
        return self.k, self.v

    def select(self, rows: Tensor) -> None:
        if self.k is not None and self.v is not None:
            self.k, self.v = self.k.index_select(0, rows), self.v.index_select(0, rows)


@dataclass
class Frozen(Memory):
    kept: KeysValues | None = None

    def extend(self, make: Callable[[], KeysValues], where: Tensor | None) -> KeysValues:
        if self.kept is None:
            self.kept = make()
        return self.kept

    def select(self, rows: Tensor) -> None:
        if self.kept is not None:
            self.kept = (self.kept[0].index_select(0, rows), self.kept[1].index_select(0, rows))


@dataclass
class LayerMemory:
    """What one block of a decoder keeps: its own past, and the context it regards."""

    attend: Memory = field(default_factory=Growing)
    cross: Frozen = field(default_factory=Frozen)


@dataclass
class DecoderState:
    """What a generating body keeps between steps; search moves its rows about and knows nothing else of it."""

    layers: list[LayerMemory]
    at: Tensor
    """(B,) the position of the next token of each row"""
    context_mask: Tensor | None = None

    def reorder(self, rows: Tensor) -> None:
        """Rows of the same source exchange their pasts (beams): what was read of the source stays as it is."""
        for layer in self.layers:
            layer.attend.select(rows)
        self.at = self.at.index_select(0, rows)

    def keep(self, rows: Tensor) -> None:
        """Take these rows, in this order; a row may be taken several times or not at all."""
        self.reorder(rows)
        for layer in self.layers:
            layer.cross.select(rows)
        if self.context_mask is not None:
            self.context_mask = self.context_mask.index_select(0, rows)
