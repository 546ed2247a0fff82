"""Who stands near whom in clouds of points, exactly, and by which weights values are carried from some points to others.

Clouds lie one after another (nn/points/packing.py), and nobody has neighbours in another cloud. Of points equally
far away the one
with the lowest index goes first. A cloud with fewer points than were asked for has no more: -1 stands for those that are not
there, and nobody is counted twice. Nothing here has a gradient.

Shape letters: N points, Q points that ask, K neighbours, B clouds.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard import capabilities
from regard.nn.points.knn_grid import nearest_by_cells
from regard.nn.points.packing import WASTE, Packing
from regard.nn.points.pairwise import searchable, smallest, squared

ROOM = 2**20
"""Pairs that are compared at once: 64 bytes each at most, so 64 MiB, and on CUDA 512, however many points there are."""
MANY = 2**11
"""Points of a cloud from which it is searched by cells: those who ask times those who answer would be too many."""
VERY_MANY = 2**17
"""The same on CUDA, where a kernel compares all pairs; cells are faster beyond this, but must be waited for."""


def nearest(
    places: Float[Tensor, "N 3"], packing: Packing, count: int, queries: Float[Tensor, "Q 3"] | None = None,
    asking: Packing | None = None,
) -> Int[Tensor, "Q K"]:  # fmt: skip
    """The `count` nearest points of each query's own cloud, the nearest first, as rows of `places`; -1 where there is none.

    Without queries the points ask themselves, and each is its own first neighbour (or one that lies in the same place and
    has a lower index). K is `count`, or the size of the largest cloud where that is smaller."""
    asking = packing if asking is None else asking
    queries = places if queries is None else queries
    search = (
        _nearest if torch.compiler.is_compiling() else torch.no_grad()(_search)
    )  # the operator is for compiled graphs
    return search(searchable(places), searchable(queries), list(packing.counts), list(asking.counts), count)


def weighed(
    places: Float[Tensor, "N 3"], packing: Packing, queries: Float[Tensor, "Q 3"], asking: Packing, count: int = 3
) -> tuple[Int[Tensor, "Q K"], Float[Tensor, "Q K"]]:
    """The nearest points and how much of each a query receives: the inverse of the distance, not of its square, as a share
    of the sum. A neighbour that is not there has the weight 0, and some row as its index."""
    index = nearest(places, packing, count, queries, asking)
    held, asked = searchable(places), searchable(queries)
    real, index = index >= 0, index.clamp(min=0)
    rows = held.index_select(0, index.flatten()).view(*index.shape, 3)
    inverse = real / (squared(rows.unbind(-1), asked[:, None].unbind(-1)).sqrt_() + 1e-8)
    return index, inverse / inverse.sum(-1, keepdim=True)


def _search(places: Tensor, queries: Tensor, counts: list[int], asking: list[int], count: int) -> Tensor:
    packing, asked = Packing(tuple(counts)), Packing(tuple(asking))
    if places.is_cuda and capabilities.available("triton"):
        from regard.nn.points import knn_triton

        if knn_triton.serves(places, count) and not _worth(places, packing):
            return knn_triton.nearest(places, queries, packing, asked, count)
    found = places.new_empty(_shape(queries, counts, count), dtype=torch.int64)
    for first, last in _groups(packing, asked):
        (some, rows), (those, ask) = packing.part(first, last), asked.part(first, last)
        most = min(count, some.longest)
        if some.longest >= MANY:
            part = nearest_by_cells(places[rows], queries[ask], most, ROOM if places.device.type == "cpu" else 8 * ROOM)
        else:
            part = _side_by_side(places[rows], some, queries[ask], those, most)
        found[ask, : part.shape[1]] = torch.where(part < 0, part, part + rows.start)
        found[ask, part.shape[1] :] = -1
    return found


def _worth(places: Tensor, packing: Packing) -> bool:
    """Whether cells are faster than the kernel on CUDA, and may be waited for."""
    return packing.longest >= VERY_MANY and not torch.cuda.is_current_stream_capturing()


def _shape(queries: Tensor, counts: list[int], count: int) -> tuple[int, int]:
    return len(queries), min(count, max(counts))


def _empty(places: Tensor, queries: Tensor, counts: list[int], asking: list[int], count: int) -> Tensor:
    return places.new_empty(_shape(queries, counts, count), dtype=torch.int64)


_nearest = torch.library.custom_op(
    "regard::nearest",
    _search,
    mutates_args=(),
    schema="(Tensor places, Tensor queries, SymInt[] counts, SymInt[] asking, SymInt count) -> Tensor",
)
_nearest.register_fake(_empty)


def _groups(packing: Packing, asking: Packing) -> Iterator[tuple[int, int]]:
    """Clouds (from, to) that are searched at once: all, where they are small and much alike, else each alone."""
    clouds = len(packing.counts)
    pairs = sum(n * q for n, q in zip(packing.counts, asking.counts, strict=True))
    if packing.longest < MANY and clouds * packing.longest * asking.longest <= WASTE * pairs:
        yield 0, clouds
    else:
        yield from ((number, number + 1) for number in range(clouds))


def _side_by_side(places: Tensor, packing: Packing, queries: Tensor, asking: Packing, count: int) -> Tensor:
    """Rows within these places, -1 where none is."""
    device = places.device
    found = _compared(packing.laid(places), packing.real(device), asking.laid(queries), count)
    starts, real = packing.starts(device)[:-1, None, None], asking.real(device)
    if packing.even:
        found += starts
    else:
        found = torch.where(found < packing.sizes(device)[:, None, None], found + starts, -1)
    return found.flatten(0, 1) if real is None else found[real]


def _compared(places: Tensor, real: Tensor | None, queries: Tensor, count: int) -> Int[Tensor, "B q k"]:
    """Each with each, a part at a time; clouds side by side, (B, n, 3) and (B, q, 3)."""
    (B, n, _), q = places.shape, queries.shape[1]
    together, rows = max(ROOM // (n * q), 1), max(min(ROOM // n, q), 1)
    found = torch.empty((B, q, count), dtype=torch.int64, device=places.device)
    names = torch.arange(n, device=places.device)
    for cloud in range(0, B, together):
        clouds = slice(cloud, cloud + together)
        keys = places[clouds, None].unbind(-1)
        for row in range(0, q, rows):
            asked = queries[clouds, row : row + rows, None].unbind(-1)
            distances = squared(asked, keys)
            if real is not None:  # what fills up a cloud stands at its end: nearer than nobody
                distances.masked_fill_(~real[clouds, None], torch.inf)
            found[clouds, row : row + rows] = smallest(distances, count, names)[1]
    return found
