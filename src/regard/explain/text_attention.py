"""Attention of one sequence by layer, reduced to the data needed for attention maps and rollout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.explain.rollout import AttentionEdges, AttentionLayer, rollout
from regard.explain.token_blocks import TokenBlocks
from regard.types import AttentionRecord


@dataclass(frozen=True)
class AttentionSlice:
    """Attention weights (H, R, C) of one sequence in one layer. `keys` (H or 1, R, C) are the tokens of the columns, `queries`
    (R,) the tokens of the rows; None: the indices."""

    weights: Tensor
    keys: Tensor | None = None
    queries: Tensor | None = None

    @classmethod
    def from_record(
        cls, record: AttentionRecord, row: int, length: int, weights: Tensor | None = None
    ) -> AttentionSlice:
        """The first `length` tokens of batch row `row`. `weights`, if given, replace the weights of the record."""
        own = (record.weights if weights is None else weights)[row].detach()
        queries = None if record.query_index is None else record.query_index[row]
        rows = slice(length) if queries is None else (queries >= 0) & (queries < length)
        own, queries = own[:, rows], None if queries is None else queries[rows]
        if record.key_index is None:
            return cls(own[..., :length], None, queries)
        keys = record.key_index[row if len(record.key_index) > 1 else 0][:, rows]
        # the key index of padding is -1
        return cls(torch.where(keys < 0, 0.0, own), keys.clamp(0, length - 1), queries)

    def mean_edges(self, previous: AttentionEdges | None = None) -> AttentionEdges:
        """Edges averaged over heads. Equal key indices reuse the tensor of `previous` to save memory."""
        heads, rows, _ = self.weights.shape
        queries = None if self.queries is None else self.queries.cpu()
        if self.keys is None:
            return AttentionEdges(_to_float_cpu(self.weights.mean(0)), None, queries)
        if len(self.keys) == 1:
            weights, keys = self.weights.mean(0), self.keys[0]
        else:  # each head has separate key indices
            weights = self.weights.transpose(0, 1).reshape(rows, -1) / heads
            keys = self.keys.transpose(0, 1).reshape(rows, -1)
        keys = keys.int().cpu()
        if previous is not None and previous.keys is not None and torch.equal(previous.keys, keys):
            keys = previous.keys
        return AttentionEdges(_to_float_cpu(weights), keys, queries)

    def weighted_sum(self, query_weights: Tensor) -> Tensor:
        """Attention of each head, (H, length), summed over queries with the weights `query_weights` (length,)."""
        own, length = query_weights.to(self.weights), len(query_weights)
        own = own[: self.weights.shape[1]] if self.queries is None else own[self.queries]
        if self.keys is None:
            return torch.nn.functional.pad(own @ self.weights, (0, length - self.weights.shape[-1]))
        found = self.weights.new_zeros(len(self.weights), length)
        for head, weights in enumerate(self.weights):  # one at a time: a product is as large as the weights
            keys = self.keys[head if len(self.keys) > 1 else 0]
            found[head].index_add_(0, keys.flatten(), (own[:, None] * weights).flatten())
        return found

    def query_weights(self, query: int, length: int) -> Tensor:
        """Attention of one query, (H, length)."""
        at = query if self.queries is None else (self.queries == query).nonzero()[0, 0]
        own = self.weights[:, at]
        if self.keys is None:
            return torch.nn.functional.pad(own, (0, length - own.shape[-1]))
        return own.new_zeros(len(own), length).scatter_add_(1, self.keys[:, at].long().expand(own.shape), own)


def _to_float_cpu(weights: Tensor) -> Tensor:
    return weights.detach().cpu() if weights.dtype == torch.float64 else weights.detach().float().cpu()


def slice_records(
    records: Sequence[AttentionRecord], row: int, length: int, weights: Sequence[Tensor | None] = ()
) -> list[AttentionSlice]:
    """Slices of one layer. The first record is zeroed for queries with a row in a later record, such as global tokens."""
    given = [*weights, *[None] * (len(records) - len(weights))]
    parts = [AttentionSlice.from_record(look, row, length, own) for look, own in zip(records, given, strict=True)]
    for number, part in enumerate(parts):
        later = [other.queries for other in parts[number + 1 :] if other.queries is not None]
        if later and part.queries is None:
            stays = torch.ones(part.weights.shape[1], 1, dtype=torch.bool, device=part.weights.device)
            stays[torch.cat(later)] = False
            parts[number] = replace(part, weights=torch.where(stays, part.weights, 0.0))
    return parts


@dataclass
class RowAttention:
    """Attention of one sequence of `length` tokens by block; attention from `query_positions` is stored separately."""

    row: int
    length: int
    blocks: TokenBlocks
    query_positions: tuple[int, ...]
    layers: list[AttentionLayer] = field(default_factory=list)
    """edges averaged over heads"""
    block_maps: list[NDArray[np.float32]] = field(default_factory=list)
    """(H, N, N) per layer: attention between blocks, averaged over the queries of a block"""
    query_maps: list[NDArray[np.float32]] = field(default_factory=list)
    """(H, N) per layer: attention to blocks, averaged over `query_positions`"""

    def add(self, records: Sequence[AttentionRecord]) -> None:
        """Store the attention weights of one layer for the explanation."""
        parts = slice_records(records, self.row, self.length)
        before = self.layers[-1].edges if self.layers else ()
        near = [*before, *[None] * (len(parts) - len(before))]
        links = tuple(part.mean_edges(last) for part, last in zip(parts, near, strict=False))
        self.layers.append(AttentionLayer(self.length, links))
        tiles = [self.blocks.sum_attention(part.weights, part.keys, part.queries) for part in parts]
        sizes = torch.from_numpy(self.blocks.sizes)[:, None]
        self.block_maps.append((sum(tiles[1:], tiles[0]).cpu() / sizes).float().numpy())
        asked = [part.weighted_sum(self.query_weights(self.query_positions)) for part in parts]
        self.query_maps.append(self.blocks.sum_tokens(sum(asked[1:], asked[0])).float().cpu().numpy())

    def query_weights(self, positions: Sequence[int]) -> Tensor:
        """Uniform weights (length,) over `positions`, summing to 1."""
        row = torch.zeros(self.length, dtype=torch.float64)
        row[list(positions)] = 1 / len(positions)
        return row

    def rollout(self, positions: Sequence[int]) -> NDArray[np.float64]:
        """Rollout (length,): contributions of the input tokens to the last hidden states at `positions`."""
        return rollout(self.layers, self.query_weights(positions)).numpy()
