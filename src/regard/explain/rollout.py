"""Attention from layer to layer: what a token owes to each token of the text, through all layers together.

Abnar and Zuidema (2020): a state is half what it was and half what it looked at, so the rows of the product of
(A + I) / 2 over the layers say what the last states are made of. Only the rows that are asked for are made: a row times
one layer after another, from the last to the first, costs as much as there are weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK_ROWS = 4096
"""Queries that are carried at once, so that products of long rows don't fill the memory."""


@dataclass(frozen=True)
class AttentionEdges:
    """Row r is query `queries[r]`, which looked with `weights[r, c]` at key `keys[r, c]`; None: r and c themselves."""

    weights: Tensor
    """(R, C), mean over heads"""
    keys: Tensor | None = None
    """(R, C)"""
    queries: Tensor | None = None
    """(R,)"""

    def chunks(self) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Some rows at a time: the queries, their weights, and their keys."""
        device = self.weights.device
        queries = torch.arange(len(self.weights), device=device) if self.queries is None else self.queries
        for begin in range(0, len(queries), CHUNK_ROWS):
            rows = slice(begin, begin + CHUNK_ROWS)
            yield queries[rows], self.weights[rows], None if self.keys is None else self.keys[rows]


@dataclass(frozen=True)
class AttentionLayer:
    """The links of one layer over `length` positions: a square matrix A that is never written out, their sum."""

    length: int
    edges: tuple[AttentionEdges, ...]

    def left_multiply(self, row: Tensor) -> Tensor:
        """row · A, for row (length,)."""
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
        """(length,) how much each query looked at in all: 1, or 0 where it saw nothing."""
        found = torch.zeros_like(like)
        for links in self.edges:
            for queries, weights, _ in links.chunks():
                found.index_add_(0, queries, weights.to(like.dtype).sum(-1))
        return found


def rollout(layers: Sequence[AttentionLayer], row: Tensor) -> Tensor:
    """What `row`, parts of the last states that sum to 1, is made of: again parts of 1."""
    for layer in reversed(layers):
        row = row / (1 + layer.row_sums(row))  # rows of A + I are made to sum to 1
        row = row + layer.left_multiply(row)
    return row


def relevance(layers: Sequence[AttentionLayer], row: Tensor) -> Tensor:
    """The same where links are not shares but what a number owes to them: R ← R + Ā R from the first layer to the last, of
    which `row` is asked; without what it owes to being asked."""
    whole = row
    for layer in reversed(layers):
        whole = whole + layer.left_multiply(whole)
    return whole - row
