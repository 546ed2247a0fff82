"""Attention over the grid of an image: attention maps per layer, rollout and relevance.

A model has one grid, or several grids of decreasing resolution (the stages of Swin). Rollout within a grid is the same as for
text. Between stages, the value of a merged patch is divided equally among the merged patches inside the image: a
simplification, like equal weights for residual connection and attention.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from regard.explain.attribution import MAX_BYTES, LayerGrouper, gradient_times_attention, group_by_layer
from regard.explain.rollout import AttentionLayer, relevance, rollout, slice_records
from regard.nn.blocks.decoder import DecoderOnly
from regard.nn.recording import named_attentions, record_attention
from regard.nn.vision.patches import VisionTransformer
from regard.nn.vision.swin import SwinBody
from regard.tasks.protocol import ModelProtocol
from regard.types import AttentionRecord, Batch

GridArray = NDArray[np.float64]
Shape = tuple[int, int]

MAX_STORED_WEIGHTS = 6_000_000
"""Limit of attention weights stored for single queries: enough for all patches of ViT-B."""

GRADIENT_MEMORY_FACTOR = 8
"""Memory with gradients divided by memory of the weights alone, at most; ImageGPT needs a factor of six."""


@dataclass(frozen=True)
class TokenGrid:
    """The cells of an image grid as a sequence of `length` tokens."""

    grid: Shape
    length: int
    prefix_tokens: int = 0
    """tokens at the start of the sequence without a position in the image"""
    shift: int = 0
    """1 if the output at a token predicts the next token (image generators), else 0"""
    keys_per_query: int | None = None
    """keys per query, if attention is limited to windows"""
    extent: tuple[float, float] = (1.0, 1.0)
    """height and width of the grid relative to the image; padding is below and to the right of the image"""

    def token_at(self, position: tuple[float, float]) -> int:
        """Token that predicts the cell at `position`, given as fractions of image height and width."""
        down, across = (
            min(int(share / covers * count), count - 1)
            for share, covers, count in zip(position, self.extent, self.grid, strict=True)
        )
        return down * self.grid[1] + across + self.prefix_tokens - self.shift

    @property
    def grid_tokens(self) -> tuple[int, ...]:
        """Tokens that predict the cells of the grid."""
        first = self.prefix_tokens - self.shift
        return tuple(range(first, min(first + self.grid[0] * self.grid[1], self.length)))

    def to_grid(self, row: Tensor) -> Tensor:
        """Values of the tokens as a grid: (…, length) -> (…, h, w); 0 for cells without a token."""
        own = row[..., self.prefix_tokens :]
        return F.pad(own, (0, self.grid[0] * self.grid[1] - own.shape[-1])).view(*row.shape[:-1], *self.grid)


def token_grids(model: ModelProtocol, batch: Batch) -> tuple[TokenGrid, ...]:
    """Grids of the model from fine to coarse; empty for models without attention."""
    body, x = model.body, batch.inputs
    if isinstance(body, VisionTransformer):
        with torch.inference_mode():
            grid = body.patches.grid(body.front.feature_maps(x)[-1] if body.has_stem else x)
        return (TokenGrid(grid, int(body.has_class_token) + grid[0] * grid[1], int(body.has_class_token)),)
    if isinstance(body, SwinBody):
        high, wide = x.shape[-2:]
        found = []
        for stage in range(len(body.stages)):
            side = body.patches.patch * 2**stage
            grid = -(-high // side), -(-wide // side)
            covers = grid[0] * side / high, grid[1] * side / wide
            found.append(TokenGrid(grid, grid[0] * grid[1], keys_per_query=model.config.window_size**2, extent=covers))
        return tuple(found)
    if isinstance(body, DecoderOnly):
        side, told = model.config.image_size, int(model.task.name == "draw")
        return (TokenGrid((side, side), side**2, prefix_tokens=told, shift=told),)
    return ()


@dataclass
class GridAttention:
    """Attention on one grid: averaged over `query_tokens`, and separately for each of `stored_queries`."""

    token_grid: TokenGrid
    query_tokens: tuple[int, ...]
    stored_queries: tuple[int, ...] = ()
    layers: list[AttentionLayer] = field(default_factory=list)
    query_maps: list[GridArray] = field(default_factory=list)
    """(heads, h, w) per layer"""
    stored_maps: list[NDArray[np.float32]] = field(default_factory=list)
    """(stored queries, heads, h, w) per layer"""

    def add(self, records: Sequence[AttentionRecord]) -> None:
        floor, length = self.token_grid, self.token_grid.length
        parts = slice_records(records, 0, length)
        self.layers.append(AttentionLayer(length, tuple(part.mean_edges() for part in parts)))
        given = sum(
            (part.weighted_sum(self.query_weights) for part in parts[1:]), parts[0].weighted_sum(self.query_weights)
        )
        self.query_maps.append(floor.to_grid(given).double().cpu().numpy())
        if self.stored_queries:
            rows = [
                sum((part.query_weights(at, length) for part in parts[1:]), parts[0].query_weights(at, length))
                for at in self.stored_queries
            ]
            self.stored_maps.append(floor.to_grid(torch.stack(rows)).float().cpu().numpy())

    @property
    def query_weights(self) -> Tensor:
        """Uniform weights (length,) over the query tokens, summing to 1."""
        row = torch.zeros(self.token_grid.length, dtype=torch.float64)
        row[list(self.query_tokens)] = 1 / len(self.query_tokens)
        return row


@dataclass(frozen=True)
class ImageAttention:
    """Attention of one image by stage. `stage_weights`: contribution of each stage to the output, summing to 1."""

    stages: tuple[GridAttention, ...]
    stage_weights: tuple[float, ...]

    def add(self, records: Sequence[AttentionRecord]) -> None:
        self.stages[stage_index(records[0].name)].add(records)

    def record(
        self, model: ModelProtocol, batch: Batch, score_fn: Callable[[Tensor], Tensor] | None = None
    ) -> GridArray | None:
        """Run the model once and record attention. With `score_fn`, a function of the logits, returns the relevance (h, w) of
        the cells of the finest grid for the score, or None if gradients would exceed `MAX_BYTES`."""
        if score_fn is None or not self.fits_memory(model.body):
            with torch.no_grad(), LayerGrouper([self]) as layers, record_attention(model.body, callback=layers):
                model.task.logits(model, batch)
            return None
        with torch.enable_grad(), record_attention(model.body, gradients=True) as seen:
            logits = model.task.logits(model, batch)
        looks = group_by_layer(seen.records)
        for group in looks:
            self.add(group)
        return self._relevance_map(score_fn(logits), looks)

    def fits_memory(self, body: Any) -> bool:
        """True if all attention weights with gradients fit into `MAX_BYTES`."""
        weights = 0
        for name, place in named_attentions(body).items():
            floor = self.stages[stage_index(name)].token_grid
            weights += place.heads * floor.length * (floor.keys_per_query or floor.length)
        return GRADIENT_MEMORY_FACTOR * 4 * weights <= MAX_BYTES

    def rollout_map(self) -> GridArray:
        """Rollout (h, w) on the finest grid: contribution of each cell to the output. Prefix tokens are left out."""
        row = self._propagate(lambda sight, row: rollout(sight.layers, row))
        return self.stages[0].token_grid.to_grid(row).numpy()

    def _relevance_map(self, value: Tensor, looks: Sequence[Sequence[AttentionRecord]]) -> GridArray:
        layers: dict[int, list[AttentionLayer]] = {number: [] for number in range(len(self.stages))}
        for group, owed in gradient_times_attention(value, looks):
            number = stage_index(group[0].name)
            length = self.stages[number].token_grid.length
            layers[number].append(
                AttentionLayer(length, tuple(part.mean_edges() for part in slice_records(group, 0, length, owed)))
            )
        own = self._propagate(lambda sight, row: row)
        found = iter(reversed(layers.values()))
        whole = self._propagate(lambda sight, row: row + relevance(next(found), row))
        return self.stages[0].token_grid.to_grid(whole - own).numpy()

    def _propagate(self, step: Callable[[GridAttention, Tensor], Tensor]) -> Tensor:
        """Weights over the tokens of the finest grid. `step` maps the weights of one stage, from the coarsest stage on."""
        row = torch.zeros(self.stages[-1].token_grid.length, dtype=torch.float64)
        for number in reversed(range(len(self.stages))):
            sight = self.stages[number]
            row = step(sight, row + self.stage_weights[number] * sight.query_weights)
            if number:
                row = unmerge_patches(row, sight.token_grid.grid, self.stages[number - 1].token_grid.grid)
        return row


def unmerge_patches(row: Tensor, coarse_size: Shape, fine_size: Shape) -> Tensor:
    """Divide each coarse cell equally among the 2 × 2 fine cells inside the image: (h·w,) -> (H·W,)."""
    down, across = (torch.arange(count) // 2 for count in fine_size)
    many = down.bincount(minlength=coarse_size[0])[:, None] * across.bincount(minlength=coarse_size[1])
    return (row.view(coarse_size) / many)[down][:, across].flatten()


def stage_index(name: str) -> int:
    """Stage of an attention module, from the module name."""
    found = re.match(r"stages\.(\d+)\.", name)
    return int(found[1]) if found else 0


def query_grid_size(body: Any, grids: Sequence[TokenGrid]) -> Shape:
    """Rows and columns of the grid of stored queries: the finest grid, reduced if `MAX_STORED_WEIGHTS` would be exceeded."""
    weights = 0
    for name, place in named_attentions(body).items():
        grid = grids[stage_index(name)].grid
        weights += place.heads * grid[0] * grid[1]
    (high, wide), most = grids[0].grid, max(MAX_STORED_WEIGHTS // weights, 1)
    while high * wide > most:
        high, wide = (high - 1, wide) if high >= wide else (high, wide - 1)
    return high, wide


def cell_centers(grid_size: Shape) -> list[tuple[float, float]]:
    """Centers of grid cells, row by row, as fractions of image height and width."""
    down, across = grid_size
    return [((row + 0.5) / down, (column + 0.5) / across) for row in range(down) for column in range(across)]
