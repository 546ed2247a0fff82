"""The state of a decoder between steps: the memories of its layers, where each row stands, and what it may look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.nn.attention.kv_cache import CrossCache, DynamicCache, LayerCache, StaticCache
from regard.nn.attention.masks import AttentionMask, Causal, Dense, Memoized, SlidingWindow
from regard.nn.attention.relative_positions import PositionIds
from regard.nn.kernels import dispatch


class StepInputs(NamedTuple):
    """The next tokens of each row: where they stand, what they may look at in each layer, where their keys go."""

    positions: Tensor
    masks: list[AttentionMask | None]
    cache_columns: Tensor | None


def layer_masks(mask: AttentionMask, window_sizes: Sequence[int]) -> list[AttentionMask | None]:
    """The rule layer by layer: a band of w is a token and the w - 1 before it, 0 is all.

    Layers of one band share one rule, so that it is written out once where it must be."""
    rules = {band: mask & SlidingWindow(band - 1, 0) if band else mask for band in sorted(set(window_sizes))}
    shared = {band: one if isinstance(one, Causal) else Memoized(one) for band, one in rules.items()}
    return [shared[band] for band in window_sizes]


@dataclass
class DecoderState:
    """What a generating body keeps between steps; search moves its rows about and knows nothing else of it.

    Beams of one source are several queries of one row: they share what was read of the source and of the prompt, each
    writes its keys next to those of the others, and `beam_ancestors` marks the keys that belong to the past of a beam. So
    beams swap their pasts by swapping rows of `beam_ancestors`, and no key is ever moved.

    Nothing here asks the device anything while it steps: what a step needs to know in Python was known when it started.
    """

    layers: list[LayerCache]
    positions: Tensor
    """(B,) the position of the next token of each row"""
    context_mask: Tensor | None = None
    """(B, 1, S) which positions of the source are real"""
    beams: int = 1
    beam_ancestors: Tensor | None = None
    """(B, W, columns) True where a beam may look"""
    position_embeddings: Tensor | None = None
    """(room, D) what stands for the positions, computed once where the room is known"""
    beam_identity: Tensor | None = None
    """(W, W) each beam sees itself"""
    key_positions: Tensor | None = None
    """the position whose key lies in each column: (columns,) of fixed memories, (B, columns) of beams"""
    window_sizes: Sequence[int] = ()
    """Attention window of each layer, as in `layer_masks`; 0: all."""
    max_cache_len: int = 0
    """columns a row was asked to have, of fixed memories"""
    max_positions: int = 0
    """positions that there are, of fixed memories; rows that have finished are stepped on and stay at the last"""
    current_length: int = 0
    """no row has come further than this position"""
    aligned: bool = True
    """all rows are at the same position"""
    has_bias: bool = False
    """distances count inside attention: a bias is added to the scores, and beams must know where their keys stand"""

    def __post_init__(self) -> None:
        self.window_sizes = self.window_sizes or [0] * len(self.layers)

    @classmethod
    def empty(
        cls, layers: list[LayerCache], rows: int, device: torch.device, max_cache_len: int | None = None,
        context_mask: Tensor | None = None, window_sizes: Sequence[int] = (), has_bias: bool = False,
    ) -> DecoderState:  # fmt: skip
        """State before the first token. `max_cache_len`: columns per row of caches of fixed shape."""
        at = torch.zeros(rows, dtype=torch.long, device=device)
        state = cls(layers, at, context_mask, window_sizes=window_sizes, has_bias=has_bias)
        if max_cache_len is not None and state.static_kv is not None:
            state.max_cache_len, state.max_positions = max_cache_len, state.static_kv.max_positions
            state.key_positions = torch.arange(state.max_positions, device=device)
        return state

    @property
    def cross_mask(self) -> Dense | None:
        return None if self.context_mask is None else Dense.from_table(self.context_mask)

    @property
    def cross_caches(self) -> list[CrossCache]:
        """What layers regard, each once: layers that share their weights share it."""
        return list({id(layer.cross_cache): layer.cross_cache for layer in self.layers}.values())

    @property
    def static_kv(self) -> StaticCache | None:
        first = self.layers[0].self_cache
        return first if isinstance(first, StaticCache) else None

    def next_step(self, queries: int) -> StepInputs:
        """For that many more tokens of each row, or one of each of its beams."""
        device = self.positions.device
        where = (
            self.positions[:, None]
            if self.static_kv is None
            else self.positions[:, None].clamp(max=self.max_positions - 1)
        )
        if self.beam_ancestors is not None:
            return StepInputs(where, self._step_masks(self.append_beam_keys(), self.key_positions, where), None)
        if queries > 1 and self.current_length == 0:  # the beginning: what is new is all there is
            return StepInputs(torch.arange(queries, device=device), layer_masks(Causal(), self.window_sizes), None)
        if queries > 1:
            where = where + torch.arange(queries, device=device)
            return StepInputs(where, layer_masks(Causal(), self.window_sizes), where)
        if self.static_kv is not None and not self.has_bias and dispatch.has_decode_kernel(self.static_kv.k):
            return StepInputs(where, layer_masks(Causal(), self.window_sizes), where)
        together = self.aligned and self.static_kv is None
        if together and all(not band or self.current_length < band for band in self.window_sizes):
            return StepInputs(
                where, [None] * len(self.window_sizes), where
            )  # it may look at all: no mask, the faster kernel
        homes = (
            torch.arange(self.current_length + 1, device=device) if self.key_positions is None else self.key_positions
        )
        seen = None if together else (homes <= where)[:, None]
        return StepInputs(where, self._step_masks(seen, homes, where), where)

    def position_ids(self, positions: Tensor) -> PositionIds:
        """Where the tokens of a turn and the keys of this state stand, for positions inside attention."""
        return PositionIds(positions, None if self.beam_ancestors is None else self.key_positions)

    def _step_masks(self, seen: Tensor | None, homes: Tensor | None, where: Tensor) -> list[AttentionMask | None]:
        """What one more token may look at, written out once for all layers of a band."""
        rules: dict[int, AttentionMask | None] = {}
        for band in set(self.window_sizes):
            table = seen
            if band:
                assert homes is not None
                near = (homes > where - band)[:, None]
                table = near if seen is None else seen & near
            rules[band] = None if table is None else Dense.from_table(table)
        return [rules[band] for band in self.window_sizes]

    def advance(self, steps: int) -> None:
        self.positions += steps
        self.current_length += steps
        if self.static_kv is not None and self.static_kv.write_columns is not None:
            self.static_kv.write_columns += self.beams  # one tensor, shared by all layers

    def set_positions(self, positions: Tensor | None = None) -> None:
        """Rows are at these positions, or have been taken away: how far the furthest is, and whether all are level."""
        if positions is not None:
            self.positions.copy_(positions)
        low, high = map(int, self.positions.aminmax())
        self.aligned = low == high
        if self.static_kv is not None:
            return
        self.current_length = high
        for layer in self.layers:
            if self.beam_ancestors is None and isinstance(layer.self_cache, DynamicCache):
                layer.self_cache.trim(high, self.aligned)

    # -- beams

    def expand_beams(self, beams: int) -> None:
        """Each row becomes that many beams; one is the row itself."""
        if beams == 1:
            return
        used = room = self.current_length
        device = self.positions.device
        self.beams = beams
        if self.static_kv is not None:
            room = used + (self.max_cache_len - used) * beams
            columns = used + torch.arange(beams, device=device)
            for layer in self.layers:
                assert isinstance(layer.self_cache, StaticCache)
                layer.self_cache.grow(columns, room)
        column = torch.arange(room, device=device)
        self.beam_ancestors = (column < self.positions[:, None])[:, None].repeat(1, beams, 1)
        self.key_positions = column.repeat(len(self.positions), 1) if any(self.window_sizes) or self.has_bias else None
        self.beam_identity = torch.eye(beams, dtype=torch.bool, device=device)

    def append_beam_keys(self) -> Tensor:
        """`beam_ancestors` extended by the keys of this step: each beam attends to its own key only. Also extends
        `key_positions`."""
        assert self.beam_ancestors is not None and self.beam_identity is not None
        own, here = (
            self.beam_identity.expand(len(self.positions), -1, -1),
            self.positions[:, None].expand(-1, self.beams),
        )
        if self.static_kv is None:
            self.beam_ancestors = torch.cat([self.beam_ancestors, own], 2)
            self.key_positions = None if self.key_positions is None else torch.cat([self.key_positions, here], 1)
        else:
            assert self.static_kv.write_columns is not None
            self.beam_ancestors.index_copy_(2, self.static_kv.write_columns, own)
            if self.key_positions is not None:
                self.key_positions.index_copy_(1, self.static_kv.write_columns, here)
        return self.beam_ancestors

    def reorder(self, rows: Tensor) -> None:
        """Rows of the same source exchange their pasts (beams): what was read of the source stays as it is."""
        if self.beam_ancestors is None:
            for layer in self.layers:
                layer.self_cache.select_rows(rows)
            self.positions = self.positions.index_select(0, rows)
            return
        parents = rows.view(-1, self.beams) % self.beams
        moved = self.beam_ancestors.gather(1, parents[..., None].expand(-1, -1, self.beam_ancestors.shape[2]))
        self.beam_ancestors = moved if self.static_kv is None else self.beam_ancestors.copy_(moved)

    # -- rows that come and go

    def select_rows(self, rows: Tensor) -> None:
        """Take these rows, in this order; a row may be taken several times or not at all. Beams stay together."""
        if self.beam_ancestors is not None:
            rows = rows.view(-1, self.beams)[:, 0] // self.beams
            self.beam_ancestors = self.beam_ancestors.index_select(0, rows)
            self.key_positions = None if self.key_positions is None else self.key_positions.index_select(0, rows)
        for layer in self.layers:
            layer.self_cache.select_rows(rows)
        for context in self.cross_caches:
            context.select_rows(rows)
        self.positions = self.positions.index_select(0, rows)
        if self.context_mask is not None:
            self.context_mask = self.context_mask.index_select(0, rows)
        if not self.aligned and len(self.positions):
            self.set_positions()

    def append_rows(self, other: DecoderState) -> None:
        """The rows of another state of the same body stand below these, wherever they are; not those of beams."""
        if self.beam_ancestors is not None or other.beam_ancestors is not None:
            raise ValueError("States of beam search cannot be merged, because all rows share the cache columns.")
        masks = [state._full_context_mask() for state in (self, other)]
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            mine.self_cache.append_rows(theirs.self_cache)
        for ours, others in zip(self.cross_caches, other.cross_caches, strict=True):
            ours.append_rows(others)
        if masks[0] is not None and masks[1] is not None:
            longest = max(mask.shape[-1] for mask in masks if mask is not None)
            self.context_mask = torch.cat(
                [F.pad(mask, (0, longest - mask.shape[-1])) for mask in masks if mask is not None]
            )
        self.positions = torch.cat([self.positions, other.positions])
        if other.max_positions > self.max_positions:
            self.position_embeddings, self.key_positions = other.position_embeddings, other.key_positions
        self.max_cache_len, self.max_positions = (
            max(self.max_cache_len, other.max_cache_len),
            max(self.max_positions, other.max_positions),
        )
        self.current_length = max(self.current_length, other.current_length)
        self.set_positions()

    def _full_context_mask(self) -> Tensor | None:
        """The mask of the source, written out; None where there is no source."""
        kept = self.layers[0].cross_cache.kv
        if kept is None or self.context_mask is not None:
            return self.context_mask
        return torch.ones(len(self.positions), 1, kept[0].shape[-2], dtype=torch.bool, device=self.positions.device)

    def zero_empty_contexts(self) -> None:
        """Rows without a real position of the source regard nothing, and receive 0 from it."""
        if self.context_mask is None:
            return
        empty = ~self.context_mask.any(-1)[:, :, None, None]
        for context in self.cross_caches:
            if context.kv is not None:
                k, v = context.kv
                context.kv = k, v.masked_fill(empty, 0.0)

    def tensors(self) -> list[Tensor]:
        """All that a step reads or writes, for a recording that repeats it at the same addresses."""
        found: list[Tensor | None] = [
            self.positions,
            self.context_mask,
            self.beam_ancestors,
            self.position_embeddings,
            self.beam_identity,
            self.key_positions,
        ]
        for layer in self.layers:
            assert isinstance(layer.self_cache, StaticCache)
            found += [layer.self_cache.k, layer.self_cache.v]
        found += [tensor for context in self.cross_caches for tensor in context.kv or ()]
        assert self.static_kv is not None
        return [tensor for tensor in (*found, self.static_kv.write_columns) if tensor is not None]
