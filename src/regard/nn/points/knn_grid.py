"""Nearest neighbours in one large cloud by cells, exactly: a point is compared with those of the 27 cells around it.

Where the last neighbour that was found lies nearer than the edge of those cells, no other can be nearer still. Points of which
that cannot be said ask again with cells twice as wide, until the cells around them hold the whole cloud. Cells are lines in a
sorted list: three that lie above each other follow each other there, so that 27 cells are nine stretches of it.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.nn.points.pairwise import smallest, squared

SAMPLE = 32
"""points that are asked first, to know how wide a cell should be"""
FIRST = 0.8
"""the width of the first cells, as a multiple of how far the last neighbour usually is"""
CLOSE = 2.0
"""the same of how far it is where points lie closest"""
SURE = 1 - 1e-5
"""how much nearer than the edge a neighbour must be: more than rounding can hide"""
MOST = 2**20
"""cells along an axis, so that three numbers fit into one"""


def nearest_by_cells(
    places: Float[Tensor, "n 3"], queries: Float[Tensor, "q 3"], count: int, room: int
) -> Int[Tensor, "q k"]:
    """The `count` nearest places of each query, of equal ones the lowest first; `room` pairs are compared at once, or all
    of one query. There must be so many places."""
    kept = few_of_each(places, count)
    inverse: Tensor | None = None
    if queries.data_ptr() == places.data_ptr() and len(queries) == len(places):
        asked, inverse = (places, None) if kept is None else _apart(places)
    else:
        asked = queries
    held = places if kept is None else places[kept]
    found = _search(held, asked, count, room)
    found = found if kept is None else kept[found]
    return found if inverse is None else found[inverse]


def few_of_each(places: Float[Tensor, "n 3"], count: int) -> Int[Tensor, "m"] | None:
    """The places without those that so many with a lower index lie in exactly too: they are nobody's neighbours, and each
    would be compared with all. None: all."""
    order, fresh = _grouped(places)
    begun = torch.where(fresh, torch.arange(len(places), device=places.device), 0).cummax(0).values
    rank = torch.arange(len(places), device=places.device) - begun
    if int(rank.max()) < count:
        return None
    return order[rank < count].sort().values


def _grouped(places: Tensor) -> tuple[Tensor, Tensor]:
    """An order in which equal places follow each other, the lowest index first, and True where a new one begins."""
    order = torch.arange(len(places), device=places.device)
    for axis in (2, 1, 0):
        order = order[places[order, axis].argsort(stable=True)]
    rows = places[order]
    fresh = torch.ones(len(places), dtype=torch.bool, device=places.device)
    fresh[1:] = (rows[1:] != rows[:-1]).any(1)
    return order, fresh


def _apart(places: Tensor) -> tuple[Tensor, Tensor]:
    """Places that differ, and which of them each is."""
    order, fresh = _grouped(places)
    inverse = torch.empty_like(order)
    inverse[order] = fresh.cumsum(0) - 1
    return places[order[fresh]], inverse


def _search(places: Tensor, queries: Tensor, count: int, room: int) -> Tensor:
    found = torch.empty((len(queries), count), dtype=torch.int64, device=places.device)
    if len(places) <= SAMPLE or len(places) <= count:
        _all(places, queries, count, room, torch.arange(len(queries), device=places.device), found)
        return found
    edge, left = _first_edge(places, queries, count, room), torch.arange(len(queries), device=places.device)
    # a place that is no number lies in no cell, and nobody would ever be sure
    while len(left) * len(places) > room and math.isfinite(edge):
        grid = Grid.of(places, edge)
        sure = grid.search(queries, left, count, room, found)
        left, edge = left[~sure], 2 * grid.edge
    if len(left):
        _all(places, queries, count, room, left, found)
    return found


def _all(places: Tensor, queries: Tensor, count: int, room: int, left: Tensor, found: Tensor) -> None:
    """Those that are left, each with all."""
    names, held = torch.arange(len(places), device=places.device), places.unbind(-1)
    for rows in torch.split(left, max(room // len(places), 1)):
        distances = squared(queries[rows, None].unbind(-1), held)
        found[rows] = smallest(distances, count, names)[1]


def _first_edge(places: Tensor, queries: Tensor, count: int, room: int) -> float:
    some = queries[:: max(len(queries) // SAMPLE, 1)][:SAMPLE]
    held = places.unbind(-1)
    farthest = [
        squared(rows[:, None].unbind(-1), held).topk(count, largest=False).values[:, -1]
        for rows in torch.split(some, max(room // len(places), 1))
    ]
    last = torch.cat(farthest).double().sqrt_().sort().values
    # where points lie close together in some parts and far apart in others, the close ones are served first
    usual = min(FIRST * float(last[len(last) // 2]), CLOSE * float(last[len(last) // 10]))
    spread = float((places.amax(0) - places.amin(0)).max())
    return usual or spread / len(places)


@dataclass(frozen=True)
class Grid:
    """Places sorted by the cell that they lie in. Cells are counted from 1: there is an empty one on either side."""

    edge: float
    low: Tensor
    """(3,) where cell 1 begins, along each axis"""
    shape: Tensor
    """(3,) cells along each axis, with the empty ones"""
    keys: Tensor
    """(n,) the cells, rising"""
    order: Tensor
    """(n,) which place each is"""
    held: tuple[Tensor, ...]
    """their x, y and z"""

    @classmethod
    def of(cls, places: Tensor, edge: float) -> Grid:
        exact = places.double()
        low = exact.amin(0)
        if float((exact.amax(0) - low).max()) > MOST * edge:
            # one far-off point shall not make cells wide for all: what lies beyond the grid counts to its outermost cells
            low = torch.maximum(low, exact.median(0).values - MOST / 2 * edge)
        cells = ((exact - low) / edge).floor_().clamp_(0, MOST - 1).long() + 1
        shape = cells.amax(0) + 2
        keys, order = ((cells[:, 0] * shape[1] + cells[:, 1]) * shape[2] + cells[:, 2]).sort(stable=True)
        return cls(edge, low, shape, keys, order, tuple(axis[order] for axis in places.unbind(-1)))

    def search(self, queries: Tensor, left: Tensor, count: int, room: int, found: Tensor) -> Tensor:
        """Writes what is found for those that are left, and says of which of them it is sure."""
        exact = (queries[left].double() - self.low) / self.edge
        cells = (exact.floor() + 1).clamp_(min=0).minimum(self.shape - 1).long()
        keys = (cells[:, 0] * self.shape[1] + cells[:, 1]) * self.shape[2] + cells[:, 2]
        own, member = torch.unique(keys, return_inverse=True)
        starts, sizes = self._stretches(own)
        totals = sizes.sum(1)
        reach = self._reach(exact + 1, cells)
        sure = torch.zeros(len(left), dtype=torch.bool, device=left.device)
        # those with equally many around them are looked at together: rows are filled up to the longest
        wide, order = totals[member].sort(stable=True)
        for rows, most in _together(order, wide, room):
            some, which = torch.unique(member[rows], return_inverse=True)
            listed = _listed(starts[some], sizes[some], max(most, count))[which]
            far, names = self._nearest(queries[left[rows]], listed, count)
            found[left[rows]] = names
            known = reach[rows]
            sure[rows] = (far.double().sqrt_() < known * SURE) | known.isinf()
        return sure

    def _stretches(self, own: Tensor) -> tuple[Tensor, Tensor]:
        """(c, 9) where the columns of three cells around each begin in the list, and how many places they have."""
        steps = torch.tensor([-1, 0, 1], device=own.device)
        columns = (steps[:, None] * self.shape[1] + steps).flatten() * self.shape[2]
        around = own[:, None] + columns
        starts = torch.searchsorted(self.keys, around - 1)
        return starts, torch.searchsorted(self.keys, around + 1, right=True) - starts

    def _reach(self, at: Tensor, cells: Tensor) -> Tensor:
        """(q,) how far around each query all is known: to the nearest edge behind which there may be places."""
        below = torch.where(cells <= 2, torch.inf, at - (cells - 1))
        above = torch.where(cells >= self.shape - 3, torch.inf, cells + 2 - at)
        return torch.minimum(below, above).amin(1) * self.edge

    def _nearest(self, queries: Tensor, listed: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The distance of the last neighbour and the names of all; `listed` (q, w) are places in the list, -1 none."""
        none, listed = listed < 0, listed.clamp(min=0)
        distances = squared(queries[:, None].unbind(-1), tuple(axis[listed] for axis in self.held))
        best, names = smallest(distances.masked_fill_(none, torch.inf), count, self.order[listed])
        return best[:, -1], names


def _listed(starts: Tensor, sizes: Tensor, wide: int) -> Tensor:
    """Nine stretches of each as one row of places in the list, -1 behind the last."""
    ends = sizes.cumsum(1)
    at = torch.arange(wide, device=starts.device).expand(len(starts), -1).contiguous()
    which = torch.searchsorted(ends, at, right=True)
    inside, which = which < 9, which.clamp_(max=8)
    return torch.where(inside, at + (starts - ends + sizes).gather(1, which), -1)


def _together(order: Tensor, wide: Tensor, room: int) -> Iterator[tuple[Tensor, int]]:
    """Those who ask, in parts of as many as have room beside the longest row of the part; `wide` rises along `order`."""
    lengths, first = wide.tolist(), 0
    while first < len(lengths):
        last = bisect.bisect_right(
            range(first + 1, len(lengths)), room, key=lambda end: (end - first) * lengths[end - 1]
        )
        last += first
        last = max(last, first + 1)
        yield order[first:last], lengths[last - 1]
        first = last
