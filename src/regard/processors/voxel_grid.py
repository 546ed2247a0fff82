"""One point for each cell of a grid, so that a cloud is as dense everywhere, whatever the scanner stood near to."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

ROOM = 2**62
"""Cells that can be numbered one by one; of more, which only single far points make, the three sides are compared."""


def thin(places: NDArray[Any], edge: float, random: np.random.Generator | None = None) -> tuple[Numbers, Numbers]:
    """(M,) the points that are kept, in their order, and (N,) of every point the place among those of the one of its cell.

    Cells have this edge, and the first begins at the lowest corner of the cloud. Of each the first point is kept, or with
    chance any. An edge of 0 keeps every point."""
    many = len(places)
    if edge <= 0 or not many:
        return np.arange(many), np.arange(many)
    order, first = grouped(cells(places, edge))
    starts = np.flatnonzero(first)
    counts = np.diff(starts, append=many)
    # sorted stably, the first of a cell in this order is the first in the cloud
    taken = starts if random is None else starts + (random.random(len(starts)) * counts).astype(np.int64)
    chosen = order[taken]
    again = np.argsort(chosen)
    place = np.empty(len(chosen), dtype=np.int64)
    place[again] = np.arange(len(chosen))
    cell = np.empty(many, dtype=np.int64)
    cell[order] = place[np.cumsum(first) - 1]
    return chosen[again], cell


def cells(places: NDArray[Any], edge: float) -> Numbers:
    """(N, D) the numbers of the cells along each side, from 0."""
    lowest = places.min(axis=0).astype(np.float64)
    return np.minimum(np.floor((places - lowest) / edge), 2.0**62).astype(np.int64)


def grouped(sides: Numbers) -> tuple[Numbers, NDArray[np.bool_]]:
    """An order in which points of one cell stand together, and which of them are the first of theirs."""
    first = np.ones(len(sides), dtype=bool)
    sizes = [int(side) + 1 for side in sides.max(axis=0)]
    if math.prod(sizes) < ROOM:
        keys = sides[:, 0]
        for side, size in zip(sides.T[1:], sizes[1:], strict=True):
            keys = keys * size + side
        order = np.argsort(keys, kind="stable")
        first[1:] = np.diff(keys[order]) != 0
        return order, first
    order = np.lexsort(sides.T[::-1])
    first[1:] = (np.diff(sides[order], axis=0) != 0).any(axis=1)
    return order, first
