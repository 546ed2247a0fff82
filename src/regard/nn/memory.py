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

from regard.nn.rules import Written

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
    spare: KeysValues | None = None
    """buffers with room at their end, whose beginnings k and v are: appending copies nothing that is there"""

    def extend(self, make: Callable[[], KeysValues], where: Tensor | None) -> KeysValues:
        k, v = make()
        if self.k is None or self.v is None:
            self.k, self.v = k, v
            return k, v
        used, now = self.k.shape[-2], self.k.shape[-2] + k.shape[-2]
        if self.spare is None or self.spare[0].shape[-2] < now:
            room = max(2 * now, 32 * k.shape[-2])
            self.spare = _roomy(self.k, room), _roomy(self.v, room)
        for buffer, new in zip(self.spare, (k, v), strict=True):
            buffer[..., used:now, :] = new
        self.k, self.v = self.spare[0][..., :now, :], self.spare[1][..., :now, :]
        return self.k, self.v

    def select(self, rows: Tensor) -> None:
        if self.k is not None and self.v is not None:
            self.k, self.v, self.spare = self.k.index_select(0, rows), self.v.index_select(0, rows), None


def _roomy(x: Tensor, room: int) -> Tensor:
    larger = x.new_empty(*x.shape[:-2], room, x.shape[-1])
    larger[..., : x.shape[-2], :] = x
    return larger


@dataclass
class Fixed(Memory):
    """Room for `room` positions a row. Columns beyond a row's own position hold nothing: the rule hides them.

    Steps write at their positions, or at `columns` where those are set (beams write side by side)."""

    room: int
    k: Tensor | None = None
    v: Tensor | None = None
    columns: Tensor | None = None

    def extend(self, make: Callable[[], KeysValues], where: Tensor | None) -> KeysValues:
        k, v = make()
        if where is None:
            where = torch.arange(k.shape[-2], device=k.device) if self.columns is None else self.columns
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

    def made(self, like: Tensor) -> Fixed:
        """With its buffers at once, for keys and values like these (B, H, K, d): a recording knows where they lie."""
        self.k, self.v = (like.new_zeros(*like.shape[:-2], self.room, like.shape[-1]) for _ in range(2))
        return self

    def widen(self, columns: Tensor, room: int) -> None:
        """From now on steps write at `columns`, up to `room`."""
        self.columns, self.room = columns, room
        if self.k is not None and self.v is not None:
            used = self.k.shape[-2]
            self.k, self.v = _roomy(self.k, room), _roomy(self.v, room)
            # hidden, but 0 times what lies there could be no number
            self.k[..., used:, :], self.v[..., used:, :] = 0.0, 0.0


@dataclass
class Frozen(Memory):
    kept: KeysValues | None = None

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


@dataclass
class LayerMemory:
    """What one block of a decoder keeps: its own past, and the context it regards."""

    attend: Memory = field(default_factory=Growing)
    cross: Frozen = field(default_factory=Frozen)


@dataclass
class DecoderState:
    """What a generating body keeps between steps; search moves its rows about and knows nothing else of it.

    Beams of one source are several queries of one row: they share what was read of the source and of the prompt, each
    writes its keys beside those of the others, and `kin` says whose keys belong to a beam's own past. So beams exchange
    their pasts by exchanging rows of `kin`, and no key is ever moved.
    """

    layers: list[LayerMemory]
    at: Tensor
    """(B,) the position of the next token of each row"""
    context_mask: Tensor | None = None
    """(B, 1, S) which positions of the source are real"""
    beams: int = 1
    kin: Tensor | None = None
    """(B, W, columns) True where a beam may look"""
    places: Tensor | None = None
    """(room, D) what stands for the positions, computed once where the room is known"""
    own: Tensor | None = None
    """(W, W) each beam sees itself"""

    @property
    def regard(self) -> Written | None:
        return None if self.context_mask is None else Written.out(self.context_mask)

    def widen(self, beams: int) -> None:
        """Each row becomes that many beams."""
        first = self.layers[0].attend
        used = room = int(self.at[0])
        self.beams = beams
        if isinstance(first, Fixed):
            room = used + (first.room - used) * beams
            columns = used + torch.arange(beams, device=self.at.device)
            for layer in self.layers:
                assert isinstance(layer.attend, Fixed)
                layer.attend.widen(columns, room)
        self.kin = torch.zeros(len(self.at), beams, room, dtype=torch.bool, device=self.at.device)
        self.kin[:, :, :used] = True
        self.own = torch.eye(beams, dtype=torch.bool, device=self.at.device)

    def silence(self) -> None:
        """Rows without a real position of the source regard nothing, and receive 0 from it."""
        if self.context_mask is None:
            return
        empty = ~self.context_mask.any(-1)[:, :, None, None]
        for layer in self.layers:
            if layer.cross.kept is not None:
                k, v = layer.cross.kept
                layer.cross.kept = k, v.masked_fill(empty, 0.0)

    def born(self) -> Tensor:
        """`kin` with the keys that this step writes: each beam sees its own."""
        assert self.kin is not None and self.own is not None
        own = self.own.expand(len(self.at), -1, -1)
        first = self.layers[0].attend
        if isinstance(first, Fixed):
            assert first.columns is not None
            self.kin.index_copy_(2, first.columns, own)
        else:
            self.kin = torch.cat([self.kin, own], 2)
        return self.kin

    def passed(self, steps: int) -> None:
        self.at += steps
        first = self.layers[0].attend
        if isinstance(first, Fixed) and first.columns is not None:
            first.columns += self.beams  # one tensor, shared by all layers

    def reorder(self, rows: Tensor) -> None:
        """Rows of the same source exchange their pasts (beams): what was read of the source stays as it is."""
        if self.kin is None:
            for layer in self.layers:
                layer.attend.select(rows)
            self.at = self.at.index_select(0, rows)
            return
        parents = rows.view(-1, self.beams) % self.beams
        moved = self.kin.gather(1, parents[..., None].expand(-1, -1, self.kin.shape[2]))
        self.kin = self.kin.copy_(moved) if isinstance(self.layers[0].attend, Fixed) else moved

    def keep(self, rows: Tensor) -> None:
        """Take these rows, in this order; a row may be taken several times or not at all. Beams stay together."""
        if self.kin is not None:
            rows = rows.view(-1, self.beams)[:, 0] // self.beams
            self.kin = self.kin.index_select(0, rows)
        for layer in self.layers:
            layer.attend.select(rows)
            layer.cross.select(rows)
        self.at = self.at.index_select(0, rows)
        if self.context_mask is not None:
            self.context_mask = self.context_mask.index_select(0, rows)

    def tensors(self) -> list[Tensor]:
        """All that a step reads or writes, for a recording that repeats it at the same addresses."""
        found: list[Tensor | None] = [self.at, self.context_mask, self.kin, self.places, self.own]
        for layer in self.layers:
            assert isinstance(layer.attend, Fixed)
            found += [layer.attend.k, layer.attend.v, *(layer.cross.kept or ())]
        found.append(getattr(self.layers[0].attend, "columns", None))
        return [tensor for tensor in found if tensor is not None]
