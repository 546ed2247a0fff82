"""State of a decoder between steps: KV caches of the layers, position of each row, and masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.nn.attention.kv_cache import CrossCache, DynamicCache, LayerCache, StaticCache
from regard.nn.attention.masks import AttentionMask, Causal, Dense, Memoized, SlidingWindow
from regard.nn.attention.positions import PositionIds
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
class StaticShape:
    """Sizes and constants of a state with static caches."""

    max_cache_len: int
    """Requested columns per row."""
    key_positions: Tensor
    """(columns,) 0, 1, …; finished rows are still stepped, and stay at the last position."""
    position_embeddings: Tensor | None = None
    """(columns, D) precomputed position embeddings."""


@dataclass
class Beams:
    """Beams of one source are several queries of one row: beams share the keys of the source and of the prompt, and all
    beams write their keys into the same row. Swapping beams swaps rows of `ancestors`; keys are not moved."""

    count: int
    ancestors: Tensor
    """(B, W, columns) True for keys in the history of a beam, to which the beam may attend."""
    identity: Tensor
    """Identity matrix (W, W): each beam attends to its own new key."""
    key_positions: Tensor | None
    """(B, columns) position of the key in each column, if windows or relative positions need them."""

    def append_keys(self, positions: Tensor, columns: Tensor | None) -> None:
        """Add the keys of one step, one per beam, at the end or in the given columns of static caches."""
        own, here = self.identity.expand(len(positions), -1, -1), positions[:, None].expand(-1, self.count)
        if columns is None:
            self.ancestors = torch.cat([self.ancestors, own], 2)
            self.key_positions = None if self.key_positions is None else torch.cat([self.key_positions, here], 1)
            return
        self.ancestors.index_copy_(2, columns, own)
        if self.key_positions is not None:
            self.key_positions.index_copy_(1, columns, here)

    def reorder(self, rows: Tensor, in_place: bool) -> None:
        parents = rows.view(-1, self.count) % self.count
        moved = self.ancestors.gather(1, parents[..., None].expand(-1, -1, self.ancestors.shape[2]))
        self.ancestors = self.ancestors.copy_(moved) if in_place else moved

    def select_rows(self, rows: Tensor) -> None:
        self.ancestors = self.ancestors.index_select(0, rows)
        self.key_positions = None if self.key_positions is None else self.key_positions.index_select(0, rows)


@dataclass
class DecoderState:
    """State of a decoder between steps. Search only selects and reorders its rows.

    Steps never synchronize with the device: all sizes that Python needs are known before the step."""

    layers: list[LayerCache]
    positions: Tensor
    """(B,) the position of the next token of each row."""
    context_mask: Tensor | None = None
    """(B, 1, S) False at padding of the source."""
    window_sizes: Sequence[int] = ()
    """Attention window of each layer, as in `layer_masks`; 0: all."""
    has_bias: bool = False
    """Attention adds a bias per distance, so beams need the positions of their keys."""
    static: StaticShape | None = None
    beams: Beams | None = None
    current_length: int = 0
    """Upper bound of the positions of all rows."""
    aligned: bool = True
    """All rows are at the same position."""

    def __post_init__(self) -> None:
        self.window_sizes = self.window_sizes or [0] * len(self.layers)

    @property
    def position_embeddings(self) -> Tensor | None:
        """Position embeddings by position, if precomputed."""
        return None if self.static is None else self.static.position_embeddings

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
        device, cache, windows = self.positions.device, self.static_kv, self.window_sizes
        where = self.positions[:, None]
        if self.static is not None:
            where = where.clamp(max=len(self.static.key_positions) - 1)
        if self.beams is not None:
            self.beams.append_keys(self.positions, None if cache is None else cache.write_columns)
            return StepInputs(where, self._step_masks(self.beams.ancestors, self.beams.key_positions, where), None)
        if queries > 1 and self.current_length == 0:  # no cached keys yet
            return StepInputs(torch.arange(queries, device=device), layer_masks(Causal(), windows), None)
        if queries > 1:
            where = where + torch.arange(queries, device=device)
            return StepInputs(where, layer_masks(Causal(), windows), where)
        if cache is not None and not self.has_bias and dispatch.has_decode_kernel(cache.k):
            return StepInputs(where, layer_masks(Causal(), windows), where)
        together = self.aligned and self.static is None
        if together and all(not window or self.current_length < window for window in windows):
            # every key is allowed: no mask, faster kernel
            return StepInputs(where, [None] * len(windows), where)
        columns = (
            torch.arange(self.current_length + 1, device=device) if self.static is None else self.static.key_positions
        )
        visible = None if together else (columns <= where)[:, None]
        return StepInputs(where, self._step_masks(visible, columns, where), where)

    def position_ids(self, positions: Tensor) -> PositionIds:
        """Positions of new tokens and of cached keys, for relative positions."""
        return PositionIds(positions, None if self.beams is None else self.beams.key_positions)

    def _step_masks(
        self, visible: Tensor | None, key_positions: Tensor | None, where: Tensor
    ) -> list[AttentionMask | None]:
        """Mask of a one-token step for each layer, materialized once per window size."""
        masks: dict[int, AttentionMask | None] = {}
        for window in set(self.window_sizes):
            table = visible
            if window:
                assert key_positions is not None
                near = (key_positions > where - window)[:, None]
                table = near if visible is None else visible & near
            masks[window] = None if table is None else Dense.from_table(table)
        return [masks[window] for window in self.window_sizes]

    def advance(self, steps: int) -> None:
        self.positions += steps
        self.current_length += steps
        if self.beams is not None and self.static_kv is not None and self.static_kv.write_columns is not None:
            self.static_kv.write_columns += self.beams.count  # a single tensor, shared by all layers

    def set_positions(self, positions: Tensor | None = None) -> None:
        """Set the positions; without `positions` (after rows were removed), only update `aligned` and the derived lengths."""
        if positions is not None:
            self.positions.copy_(positions)
        low, high = map(int, self.positions.aminmax())
        self.aligned = low == high
        if self.static is not None:
            return
        self.current_length = high
        for layer in self.layers:
            if self.beams is None and isinstance(layer.self_cache, DynamicCache):
                layer.self_cache.trim(high, self.aligned)

    def expand_beams(self, beams: int) -> None:
        """Turn each row into `beams` beams; 1 beam changes nothing."""
        if beams == 1:
            return
        used = room = self.current_length
        device = self.positions.device
        if self.static is not None:
            room = used + (self.static.max_cache_len - used) * beams
            columns = used + torch.arange(beams, device=device)
            for layer in self.layers:
                assert isinstance(layer.self_cache, StaticCache)
                layer.self_cache.grow(columns, room)
        column = torch.arange(room, device=device)
        measured = any(self.window_sizes) or self.has_bias
        self.beams = Beams(
            beams,
            (column < self.positions[:, None])[:, None].repeat(1, beams, 1),
            torch.eye(beams, dtype=torch.bool, device=device),
            column.repeat(len(self.positions), 1) if measured else None,
        )

    def reorder(self, rows: Tensor) -> None:
        """Reorder rows of the same source (beams). The cross-attention caches stay unchanged."""
        if self.beams is not None:
            self.beams.reorder(rows, in_place=self.static is not None)
            return
        for layer in self.layers:
            layer.self_cache.select_rows(rows)
        self.positions = self.positions.index_select(0, rows)

    # -- adding and removing rows

    def select_rows(self, rows: Tensor) -> None:
        """Select rows, in this order; rows may be repeated or dropped. Beams of a row stay together."""
        if self.beams is not None:
            rows = rows.view(-1, self.beams.count)[:, 0] // self.beams.count
            self.beams.select_rows(rows)
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
        if self.beams is not None or other.beams is not None:
            raise ValueError("States of beam search cannot be merged, because all rows share the cache columns.")
        masks = [mask for state in (self, other) if (mask := state._full_context_mask()) is not None]
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            mine.self_cache.append_rows(theirs.self_cache)
        for ours, others in zip(self.cross_caches, other.cross_caches, strict=True):
            ours.append_rows(others)
        if len(masks) == 2:
            longest = max(mask.shape[-1] for mask in masks)
            self.context_mask = torch.cat([F.pad(mask, (0, longest - mask.shape[-1])) for mask in masks])
        self.positions = torch.cat([self.positions, other.positions])
        if self.static is not None and other.static is not None:
            longer = max(self.static, other.static, key=lambda static: len(static.key_positions))
            self.static = replace(longer, max_cache_len=max(self.static.max_cache_len, other.static.max_cache_len))
        self.current_length = max(self.current_length, other.current_length)
        self.set_positions()

    def _full_context_mask(self) -> Tensor | None:
        """Mask of the source as a tensor; None if there is no source."""
        kept = self.layers[0].cross_cache.kv
        if kept is None or self.context_mask is not None:
            return self.context_mask
        return torch.ones(len(self.positions), 1, kept[0].shape[-2], dtype=torch.bool, device=self.positions.device)

    def zero_empty_contexts(self, context_mask: Tensor) -> None:
        """Set the values of sources without any valid position to 0, so that cross-attention returns 0."""
        empty = ~context_mask.any(-1)[:, :, None, None]
        for context in self.cross_caches:
            if context.kv is not None:
                k, v = context.kv
                context.kv = k, v.masked_fill(empty, 0.0)

    def tensors(self) -> list[Tensor]:
        """All tensors read or written by a step, for a captured CUDA graph that uses fixed addresses."""
        assert self.static is not None and self.static_kv is not None
        tensors = [self.positions, self.context_mask, self.static.position_embeddings, self.static_kv.write_columns]
        if self.beams is None:
            tensors.append(self.static.key_positions)
        else:
            tensors += [self.beams.ancestors, self.beams.identity, self.beams.key_positions]
        for layer in self.layers:
            assert isinstance(layer.self_cache, StaticCache)
            tensors += [layer.self_cache.k, layer.self_cache.v]
        tensors += [tensor for context in self.cross_caches for tensor in context.kv or ()]
        return [tensor for tensor in tensors if tensor is not None]
