"""A large scene in pieces that a model can hold, and one answer for every point out of theirs.

A scene is cut into columns that stand upright and overlap by half, so that most points are seen from four of them. What is too
much for one look is dealt out like cards, after a fixed shuffle: each piece is an even thinning of its column, and none is
left out. Every point is answered by all pieces that it is in; their probabilities are averaged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.processors.points import Numbers, Placed, Points, Rows
from regard.processors.voxel_grid import cells, grouped, thin


@dataclass(frozen=True)
class Parts:
    """A cloud in pieces."""

    kept: Numbers
    """(M,) the points of the cloud that are looked at, one of each cell"""
    cell: Numbers
    """(N,) of every point of the cloud the place among those of the one that speaks for it"""
    chosen: list[Numbers]
    """of each piece its points, as places among those that are kept"""
    rows: list[Rows]
    """of each piece what the model reads"""


def parts(cloud: Placed, points: Points) -> Parts:
    """Everything that is to be looked at, so that every point of a cloud has an answer."""
    kept, cell = thin(cloud.places, points.voxel)
    chosen = pieces(cloud.places[kept], points)
    return Parts(kept, cell, chosen, [points.framed(points.rows(cloud, kept[these])) for these in chosen])


def pieces(places: NDArray[Any], points: Points) -> list[Numbers]:
    """Numbers of points, of each piece in their order: every point is in one at least, and in none more than `count`."""
    return [piece for column in columns(places, points) for piece in dealt(column, points.count)]


def columns(places: NDArray[Any], points: Points) -> list[Numbers]:
    """The points of each column that has any, in their order."""
    many = len(places)
    if not many:
        return []
    if not points.block:
        return [np.arange(many)]
    halves = cells(np.delete(places, points.upright, axis=1), points.block / 2)
    order, first = grouped(halves)
    starts = np.flatnonzero(first)
    # a column is two halves wide: what stands in half h is in the columns that begin at h - 1 and at h
    last = np.maximum(halves.max(axis=0) - 1, 0)
    found: dict[tuple[int, ...], list[Numbers]] = {}
    for half, inside in zip(halves[order[starts]], np.split(order, starts[1:]), strict=True):
        begins = {tuple(np.clip(half - back, 0, last).tolist()) for back in ((0, 0), (0, 1), (1, 0), (1, 1))}
        for begin in begins:
            found.setdefault(begin, []).append(inside)
    return [np.sort(np.concatenate(found[begin])) for begin in sorted(found)]


def dealt(column: Numbers, count: int) -> list[Numbers]:
    """As few hands as hold at most `count` each, even in number, after a fixed shuffle."""
    hands = -(-len(column) // count) if count else 1
    if hands <= 1:
        return [column]
    shuffled = np.random.default_rng(len(column)).permutation(column)
    return [np.sort(shuffled[hand::hands]) for hand in range(hands)]


class Votes:
    """What was said of each of some points, by all pieces that they were in."""

    def __init__(self, many: int, classes: int) -> None:
        self._sums = np.zeros((many, classes), dtype=np.float64)
        self._counts = np.zeros(many, dtype=np.int64)

    def add(self, chosen: Numbers, chances: NDArray[Any]) -> None:
        """(n, classes) probabilities of these points; none of them occurs twice."""
        self._sums[chosen] += chances
        self._counts[chosen] += 1

    @property
    def counts(self) -> Numbers:
        """(M,) how often each point was asked about."""
        return self._counts

    def chances(self, cell: Numbers | None = None) -> NDArray[np.float32]:
        """(M, classes) the mean of what was said; given the cells of a cloud, (N, classes) of all its points."""
        mean = (self._sums / np.maximum(self._counts, 1)[:, None]).astype(np.float32)
        return mean if cell is None else mean[cell]

    def said(self, cell: Numbers | None = None) -> Numbers:
        """(M,) the likeliest class of each; given the cells of a cloud, (N,) of all its points."""
        best = self._sums.argmax(axis=1)
        return best if cell is None else best[cell]
