"""The state of a decoder between steps: the memories of its layers, where each row stands, and what it may look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.nn.attention.kv_cache import Fixed, Frozen, Growing, LayerMemory
from regard.nn.attention.masks import Causal, Once, Rule, Window, Written
from regard.nn.attention.relative_positions import Standing
from regard.nn.kernels import dispatch


class Turn(NamedTuple):
    """The next tokens of each row: where they stand, what they may look at in each layer, where their keys go."""

    where: Tensor
    rules: list[Rule | None]
    columns: Tensor | None


def banded(rule: Rule, bands: Sequence[int]) -> list[Rule | None]:
    """The rule layer by layer: a band of w is a token and the w - 1 before it, 0 is all.

    Layers of one band share one rule, so that it is written out once where it must be."""
    rules = {band: rule & Window(band - 1, 0) if band else rule for band in sorted(set(bands))}
    shared = {band: one if isinstance(one, Causal) else Once(one) for band, one in rules.items()}
    return [shared[band] for band in bands]


@dataclass
class DecoderState:
    """What a generating body keeps between steps; search moves its rows about and knows nothing else of it.

    Beams of one source are several queries of one row: they share what was read of the source and of the prompt, each
    writes its keys beside those of the others, and `kin` says whose keys belong to a beam's own past. So beams exchange
    their pasts by exchanging rows of `kin`, and no key is ever moved.

    Nothing here asks the device anything while it steps: what a step needs to know in Python was known when it started.
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
    homes: Tensor | None = None
    """the position whose key lies in each column: (columns,) of fixed memories, (B, columns) of beams"""
    bands: Sequence[int] = ()
    """how far back each layer looks, as in `banded`"""
    room: int = 0
    """columns a row was asked to have, of fixed memories"""
    most: int = 0
    """positions that there are, of fixed memories; rows that have finished are stepped on and stay at the last"""
    reached: int = 0
    """no row has come further than this position"""
    level: bool = True
    """all rows are at the same position"""
    measured: bool = False
    """distances count inside attention: a bias is added to the scores, and beams must know where their keys stand"""

    def __post_init__(self) -> None:
        self.bands = self.bands or [0] * len(self.layers)

    @classmethod
    def fresh(
        cls, layers: list[LayerMemory], rows: int, device: torch.device, room: int | None = None,
        context_mask: Tensor | None = None, bands: Sequence[int] = (), measured: bool = False,
    ) -> DecoderState:  # fmt: skip
        """Of rows that have read nothing yet. `room`: columns that a row shall have where memories are fixed."""
        at = torch.zeros(rows, dtype=torch.long, device=device)
        state = cls(layers, at, context_mask, bands=bands, measured=measured)
        if room is not None and state.fixed is not None:
            state.room, state.most = room, state.fixed.room
            state.homes = torch.arange(state.most, device=device)
        return state

    @property
    def regard(self) -> Written | None:
        return None if self.context_mask is None else Written.out(self.context_mask)

    @property
    def contexts(self) -> list[Frozen]:
        """What layers regard, each once: layers that share their weights share it."""
        return list({id(layer.cross): layer.cross for layer in self.layers}.values())

    @property
    def fixed(self) -> Fixed | None:
        first = self.layers[0].attend
        return first if isinstance(first, Fixed) else None

    def turn(self, queries: int) -> Turn:
        """For that many more tokens of each row, or one of each of its beams."""
        device = self.at.device
        where = self.at[:, None] if self.fixed is None else self.at[:, None].clamp(max=self.most - 1)
        if self.kin is not None:
            return Turn(where, self._looks(self.born(), self.homes, where), None)
        if queries > 1 and self.reached == 0:  # the beginning: what is new is all there is
            return Turn(torch.arange(queries, device=device), banded(Causal(), self.bands), None)
        if queries > 1:
            where = where + torch.arange(queries, device=device)
            return Turn(where, banded(Causal(), self.bands), where)
        if self.fixed is not None and not self.measured and dispatch.steps_alone(self.fixed.k):
            return Turn(where, banded(Causal(), self.bands), where)
        together = self.level and self.fixed is None
        if together and all(not band or self.reached < band for band in self.bands):
            return Turn(where, [None] * len(self.bands), where)  # it may look at all: no mask, the faster kernel
        homes = torch.arange(self.reached + 1, device=device) if self.homes is None else self.homes
        seen = None if together else (homes <= where)[:, None]
        return Turn(where, self._looks(seen, homes, where), where)

    def standing(self, where: Tensor) -> Standing:
        """Where the tokens of a turn and the keys of this state stand, for positions inside attention."""
        return Standing(where, None if self.kin is None else self.homes)

    def _looks(self, seen: Tensor | None, homes: Tensor | None, where: Tensor) -> list[Rule | None]:
        """What one more token may look at, written out once for all layers of a band."""
        rules: dict[int, Rule | None] = {}
        for band in set(self.bands):
            table = seen
            if band:
                assert homes is not None
                near = (homes > where - band)[:, None]
                table = near if seen is None else seen & near
            rules[band] = None if table is None else Written.out(table)
        return [rules[band] for band in self.bands]

    def passed(self, steps: int) -> None:
        self.at += steps
        self.reached += steps
        if self.fixed is not None and self.fixed.columns is not None:
            self.fixed.columns += self.beams  # one tensor, shared by all layers

    def settle(self, at: Tensor | None = None) -> None:
        """Rows are at these positions, or have been taken away: how far the furthest is, and whether all are level."""
        if at is not None:
            self.at.copy_(at)
        low, high = map(int, self.at.aminmax())
        self.level = low == high
        if self.fixed is not None:
            return
        self.reached = high
        for layer in self.layers:
            if self.kin is None and isinstance(layer.attend, Growing):
                layer.attend.trim(high, self.level)

    # -- beams

    def widen(self, beams: int) -> None:
        """Each row becomes that many beams; one is the row itself."""
        if beams == 1:
            return
        used = room = self.reached
        device = self.at.device
        self.beams = beams
        if self.fixed is not None:
            room = used + (self.room - used) * beams
            columns = used + torch.arange(beams, device=device)
            for layer in self.layers:
                assert isinstance(layer.attend, Fixed)
                layer.attend.widen(columns, room)
        column = torch.arange(room, device=device)
        self.kin = (column < self.at[:, None])[:, None].repeat(1, beams, 1)
        self.homes = column.repeat(len(self.at), 1) if any(self.bands) or self.measured else None
        self.own = torch.eye(beams, dtype=torch.bool, device=device)

    def born(self) -> Tensor:
        """`kin` with the keys that this step writes: each beam sees its own. `homes` learns where they stand."""
        assert self.kin is not None and self.own is not None
        own, here = self.own.expand(len(self.at), -1, -1), self.at[:, None].expand(-1, self.beams)
        if self.fixed is None:
            self.kin = torch.cat([self.kin, own], 2)
            self.homes = None if self.homes is None else torch.cat([self.homes, here], 1)
        else:
            assert self.fixed.columns is not None
            self.kin.index_copy_(2, self.fixed.columns, own)
            if self.homes is not None:
                self.homes.index_copy_(1, self.fixed.columns, here)
        return self.kin

    def reorder(self, rows: Tensor) -> None:
        """Rows of the same source exchange their pasts (beams): what was read of the source stays as it is."""
        if self.kin is None:
            for layer in self.layers:
                layer.attend.select(rows)
            self.at = self.at.index_select(0, rows)
            return
        parents = rows.view(-1, self.beams) % self.beams
        moved = self.kin.gather(1, parents[..., None].expand(-1, -1, self.kin.shape[2]))
        self.kin = moved if self.fixed is None else self.kin.copy_(moved)

    # -- rows that come and go

    def keep(self, rows: Tensor) -> None:
        """Take these rows, in this order; a row may be taken several times or not at all. Beams stay together."""
        if self.kin is not None:
            rows = rows.view(-1, self.beams)[:, 0] // self.beams
            self.kin = self.kin.index_select(0, rows)
            self.homes = None if self.homes is None else self.homes.index_select(0, rows)
        for layer in self.layers:
            layer.attend.select(rows)
        for context in self.contexts:
            context.select(rows)
        self.at = self.at.index_select(0, rows)
        if self.context_mask is not None:
            self.context_mask = self.context_mask.index_select(0, rows)
        if not self.level and len(self.at):
            self.settle()

    def join(self, other: DecoderState) -> None:
        """The rows of another state of the same body stand below these, wherever they are; not those of beams."""
        if self.kin is not None or other.kin is not None:
            raise ValueError("states of beams do not join: their columns are shared by all rows")
        masks = [state._real() for state in (self, other)]
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            mine.attend.join(theirs.attend)
        for ours, others in zip(self.contexts, other.contexts, strict=True):
            ours.join(others)
        if masks[0] is not None and masks[1] is not None:
            longest = max(mask.shape[-1] for mask in masks if mask is not None)
            self.context_mask = torch.cat(
                [F.pad(mask, (0, longest - mask.shape[-1])) for mask in masks if mask is not None]
            )
        self.at = torch.cat([self.at, other.at])
        if other.most > self.most:
            self.places, self.homes = other.places, other.homes
        self.room, self.most = max(self.room, other.room), max(self.most, other.most)
        self.reached = max(self.reached, other.reached)
        self.settle()

    def _real(self) -> Tensor | None:
        """The mask of the source, written out; None where there is no source."""
        kept = self.layers[0].cross.kept
        if kept is None or self.context_mask is not None:
            return self.context_mask
        return torch.ones(len(self.at), 1, kept[0].shape[-2], dtype=torch.bool, device=self.at.device)

    def silence(self) -> None:
        """Rows without a real position of the source regard nothing, and receive 0 from it."""
        if self.context_mask is None:
            return
        empty = ~self.context_mask.any(-1)[:, :, None, None]
        for context in self.contexts:
            if context.kept is not None:
                k, v = context.kept
                context.kept = k, v.masked_fill(empty, 0.0)

    def tensors(self) -> list[Tensor]:
        """All that a step reads or writes, for a recording that repeats it at the same addresses."""
        found: list[Tensor | None] = [self.at, self.context_mask, self.kin, self.places, self.own, self.homes]
        for layer in self.layers:
            assert isinstance(layer.attend, Fixed)
            found += [layer.attend.k, layer.attend.v]
        found += [tensor for context in self.contexts for tensor in context.kept or ()]
        assert self.fixed is not None
        return [tensor for tensor in (*found, self.fixed.columns) if tensor is not None]
