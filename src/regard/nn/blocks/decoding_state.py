"""State of a decoder between steps: KV caches of the layers, position of each row, and masks."""

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
    """Positions of the next tokens of each row, mask per layer, and cache columns of the new keys."""

    positions: Tensor
    masks: list[AttentionMask | None]
    cache_columns: Tensor | None


def layer_masks(mask: AttentionMask, window_sizes: Sequence[int]) -> list[AttentionMask | None]:
    """Mask of each layer. A window size of w allows a token and the w - 1 tokens before it; 0 allows all earlier tokens.

    Layers with the same window size share one mask, so that the mask is materialized at most once."""
    rules = {band: mask & SlidingWindow(band - 1, 0) if band else mask for band in sorted(set(window_sizes))}
    shared = {band: one if isinstance(one, Causal) else Memoized(one) for band, one in rules.items()}
    return [shared[band] for band in window_sizes]


@dataclass
class DecoderState:
    """State of a decoder between steps. Search only selects and reorders its rows.

    Beams of one source are several queries of one row: beams share the keys of the source and of the prompt, all beams
    write their keys into the same row, and `beam_ancestors` marks the keys in the history of each beam. Swapping beams
    swaps rows of `beam_ancestors`; keys are not moved.

    Steps never synchronize with the device: all sizes that Python needs are known before the step.
    """

    layers: list[LayerCache]
    positions: Tensor
    """(B,) the position of the next token of each row."""
    context_mask: Tensor | None = None
    """(B, 1, S) False at padding of the source."""
    beams: int = 1
    beam_ancestors: Tensor | None = None
    """(B, W, columns) True for keys that a beam may attend to."""
    position_embeddings: Tensor | None = None
    """(positions, D) position embeddings, precomputed for static caches."""
    beam_identity: Tensor | None = None
    """Identity matrix (W, W): each beam attends to its own new key."""
    key_positions: Tensor | None = None
    """Position of the key in each column: (columns,) for static caches, (B, columns) for beams."""
    window_sizes: Sequence[int] = ()
    """Attention window of each layer, as in `layer_masks`; 0: all."""
    max_cache_len: int = 0
    """Requested columns per row of static caches."""
    max_positions: int = 0
    """Number of positions of static caches; finished rows are still stepped, and stay at the last position."""
    current_length: int = 0
    """Upper bound of the positions of all rows."""
    aligned: bool = True
    """All rows are at the same position."""
    has_bias: bool = False
    """Attention adds a bias per distance, so beams need the positions of their keys."""

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
        """Distinct cross-attention caches; layers with shared weights share a cache."""
        return list({id(layer.cross_cache): layer.cross_cache for layer in self.layers}.values())

    @property
    def static_kv(self) -> StaticCache | None:
        first = self.layers[0].self_cache
        return first if isinstance(first, StaticCache) else None

    def next_step(self, queries: int) -> StepInputs:
        """Inputs of a step with `queries` tokens per row, or with one token per beam."""
        device = self.positions.device
        where = (
            self.positions[:, None]
            if self.static_kv is None
            else self.positions[:, None].clamp(max=self.max_positions - 1)
        )
        if self.beam_ancestors is not None:
            return StepInputs(where, self._step_masks(self.append_beam_keys(), self.key_positions, where), None)
        if queries > 1 and self.current_length == 0:  # no cached keys yet
            return StepInputs(torch.arange(queries, device=device), layer_masks(Causal(), self.window_sizes), None)
        if queries > 1:
            where = where + torch.arange(queries, device=device)
            return StepInputs(where, layer_masks(Causal(), self.window_sizes), where)
        if self.static_kv is not None and not self.has_bias and dispatch.has_decode_kernel(self.static_kv.k):
            return StepInputs(where, layer_masks(Causal(), self.window_sizes), where)
        together = self.aligned and self.static_kv is None
        if together and all(not band or self.current_length < band for band in self.window_sizes):
            # every key is allowed: no mask, faster kernel
            return StepInputs(where, [None] * len(self.window_sizes), where)
        homes = (
            torch.arange(self.current_length + 1, device=device) if self.key_positions is None else self.key_positions
        )
        seen = None if together else (homes <= where)[:, None]
        return StepInputs(where, self._step_masks(seen, homes, where), where)

    def position_ids(self, positions: Tensor) -> PositionIds:
        """Positions of new tokens and of cached keys, for relative positions."""
        return PositionIds(positions, None if self.beam_ancestors is None else self.key_positions)

    def _step_masks(self, seen: Tensor | None, homes: Tensor | None, where: Tensor) -> list[AttentionMask | None]:
        """Mask of a one-token step for each layer, materialized once per window size."""
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
            self.static_kv.write_columns += self.beams  # a single tensor, shared by all layers

    def set_positions(self, positions: Tensor | None = None) -> None:
        """Set the positions; without `positions` (after rows were removed), only update `aligned` and the derived lengths."""
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
        """Turn each row into `beams` beams; 1 beam changes nothing."""
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
        """Reorder rows of the same source (beams). The cross-attention caches stay unchanged."""
        if self.beam_ancestors is None:
            for layer in self.layers:
                layer.self_cache.select_rows(rows)
            self.positions = self.positions.index_select(0, rows)
            return
        parents = rows.view(-1, self.beams) % self.beams
        moved = self.beam_ancestors.gather(1, parents[..., None].expand(-1, -1, self.beam_ancestors.shape[2]))
        self.beam_ancestors = moved if self.static_kv is None else self.beam_ancestors.copy_(moved)

    # -- adding and removing rows

    def select_rows(self, rows: Tensor) -> None:
        """Select rows, in this order; rows may be repeated or dropped. Beams of a row stay together."""
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
        """Append the rows of another state of the same model, at any positions; not supported for beams."""
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
        """Mask of the source as a tensor; None if there is no source."""
        kept = self.layers[0].cross_cache.kv
        if kept is None or self.context_mask is not None:
            return self.context_mask
        return torch.ones(len(self.positions), 1, kept[0].shape[-2], dtype=torch.bool, device=self.positions.device)

    def zero_empty_contexts(self) -> None:
        """Set the values of sources without any valid position to 0, so that cross-attention returns 0."""
        if self.context_mask is None:
            return
        empty = ~self.context_mask.any(-1)[:, :, None, None]
        for context in self.cross_caches:
            if context.kv is not None:
                k, v = context.kv
                context.kv = k, v.masked_fill(empty, 0.0)

    def tensors(self) -> list[Tensor]:
        """All tensors read or written by a step, for a captured CUDA graph that uses fixed addresses."""
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
