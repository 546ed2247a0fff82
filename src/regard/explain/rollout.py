"""Attention rollout: contribution of each input token to the last hidden states, through all layers.

Abnar and Zuidema (2020): the residual connection counts as one half, so the contributions are the rows of the product of
(A + I) / 2 over the layers. Only the requested rows are computed: one vector-matrix product per layer, from the last layer
to the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK_ROWS = 4096
"""Queries per chunk, to limit the memory of products over long sequences."""


@dataclass(frozen=True)
class AttentionEdges:
    """Attention weights with indices: query `queries[r]` attends to key `keys[r, c]` with `weights[r, c]`. None: r and c."""

    weights: Tensor
    """(R, C), averaged over heads"""
    keys: Tensor | None = None
    """(R, C)"""
    queries: Tensor | None = None
    """(R,)"""

    def chunks(self) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Yields (query indices, attention weights, key indices) for at most `CHUNK_ROWS` query rows at a time."""
        device = self.weights.device
        queries = torch.arange(len(self.weights), device=device) if self.queries is None else self.queries
        for begin in range(0, len(queries), CHUNK_ROWS):
            rows = slice(begin, begin + CHUNK_ROWS)
            yield queries[rows], self.weights[rows], None if self.keys is None else self.keys[rows]


@dataclass(frozen=True)
class AttentionLayer:
    """Attention matrix A (length, length) of one layer: the sum of all edges. A is never materialized."""

    length: int
    edges: tuple[AttentionEdges, ...]

    def left_multiply(self, row: Tensor) -> Tensor:
        """Vector-matrix product row · A, (length,)."""
        found = torch.zeros_like(row)
        for links in self.edges:
            for queries, weights, keys in links.chunks():
                given, wide = row[queries], weights.to(row.dtype)
                if keys is None:
                    found[: wide.shape[1]] += given @ wide
                else:
                    found.index_add_(0, keys.flatten(), (given[:, None] * wide).flatten())
        return found

    def row_sums(self, like: Tensor) -> Tensor:
        """Sum of the attention weights of each query, (length,): 1, or 0 if all keys are masked."""
        found = torch.zeros_like(like)
        for links in self.edges:
            for queries, weights, _ in links.chunks():
                found.index_add_(0, queries, weights.to(like.dtype).sum(-1))
        return found


def rollout(layers: Sequence[AttentionLayer], row: Tensor) -> Tensor:
    """Contributions of the input tokens, (length,), to the last hidden states weighted by `row` (length,). Both sum to 1."""
    for layer in reversed(layers):
        row = row / (1 + layer.row_sums(row))  # normalizes the rows of A + I
        row = row + layer.left_multiply(row)
    return row


def relevance(layers: Sequence[AttentionLayer], row: Tensor) -> Tensor:
    """Relevance of the input tokens, (length,), if the edges contain gradient × attention: `row` · R with R ← R + Ā R from the
    first layer to the last, minus `row`, the relevance before the first layer."""
    whole = row
    for layer in reversed(layers):
        whole = whole + layer.left_multiply(whole)
    return whole - row
