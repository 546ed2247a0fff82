"""Exact k-nearest-neighbor search in packed point clouds, and interpolation weights.

Point clouds are concatenated (nn/points/packing.py), and neighbors are in the same point cloud. Ties are ordered by
index. If a point cloud has fewer points than requested, missing neighbors are -1. No gradients.

On CPUs, SciPy's k-d tree searches a large point cloud, if installed. Otherwise, and for ties that the tree cannot order,
a query is compared with the points of 27 cells of a grid. If the last neighbor is nearer than the border of the 27
cells, no other point can be nearer. Other queries are repeated with cells twice as wide, until the cells cover the whole
point cloud. Points are sorted by cell: three cells along the last axis are adjacent in the sorted list, so 27 cells are
nine ranges of the list.

Shape letters: N points, Q queries, K neighbors, B point clouds.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard import capabilities
from regard.nn.points.packing import (
    CloudSizes,
    batch_groups,
    lexicographic_order,
    smallest_k,
    squared_distance,
    to_search_dtype,
)

MAX_PAIRS = 2**20
"""Maximum number of pairs compared at once, at most 64 bytes each: 64 MiB, or 512 MiB on CUDA, for any number of points."""
GRID_MIN_POINTS = 2**11  # Minimum size of point clouds for the search by grid cells instead of all pairs.
GRID_MIN_POINTS_CUDA = 2**17
"""Minimum size on CUDA, whose kernel compares all pairs; for larger point clouds the grid is faster, but synchronizes."""


def knn(
    points: Float[Tensor, "N 3"],
    sizes: CloudSizes,
    k: int,
    queries: Float[Tensor, "Q 3"] | None = None,
    query_sizes: CloudSizes | None = None,
) -> Int[Tensor, "Q K"]:
    """Indices of the k nearest points in the same point cloud, (Q, K), nearest first; -1: no neighbor.

    Without queries, each point is its own first neighbor (or a duplicate with a lower index). K is `k`, or the size of
    the largest point cloud if smaller."""
    query_sizes = sizes if query_sizes is None else query_sizes
    queries = points if queries is None else queries
    search = _knn_op if torch.compiler.is_compiling() else torch.no_grad()(_knn)  # compiled graphs need the operator
    return search(to_search_dtype(points), to_search_dtype(queries), list(sizes.counts), list(query_sizes.counts), k)


def knn_interpolation(
    points: Float[Tensor, "N 3"], sizes: CloudSizes, queries: Float[Tensor, "Q 3"], query_sizes: CloudSizes
) -> tuple[Int[Tensor, "Q K"], Float[Tensor, "Q K"]]:
    """Indices of the three nearest points, and interpolation weights: inverse distances (not squared), normalized to sum 1.
    Missing neighbors have weight 0 and an arbitrary index."""
    index = knn(points, sizes, 3, queries, query_sizes)
    held, asked = to_search_dtype(points), to_search_dtype(queries)
    real, index = index >= 0, index.clamp(min=0)
    rows = held.index_select(0, index.flatten()).view(*index.shape, 3)
    inverse = real / (squared_distance(rows.unbind(-1), asked[:, None].unbind(-1)).sqrt_() + 1e-8)
    return index, inverse / inverse.sum(-1, keepdim=True)


def _knn(places: Tensor, queries: Tensor, counts: list[int], asking: list[int], count: int) -> Tensor:
    packing, asked = CloudSizes(tuple(counts)), CloudSizes(tuple(asking))
    if places.is_cuda and capabilities.is_available("triton"):
        from regard.nn.points import triton_kernels

        # the grid is faster for large point clouds, but synchronizes
        use_grid = max(packing.counts) >= GRID_MIN_POINTS_CUDA and not torch.cuda.is_current_stream_capturing()
        if triton_kernels.knn_supported(places, count) and not use_grid:
            return triton_kernels.knn(places, queries, packing, asked, count)
    found = _empty_output(places, queries, counts, asking, count)
    for first, last in batch_groups(max(packing.counts) < GRID_MIN_POINTS, packing.counts, asked.counts):
        (some, rows), (those, ask) = packing.subset(first, last), asked.subset(first, last)
        most = min(count, max(some.counts))
        if max(some.counts) >= GRID_MIN_POINTS:
            part = knn_grid(
                places[rows], queries[ask], most, MAX_PAIRS if places.device.type == "cpu" else 8 * MAX_PAIRS
            )
        else:
            part = _knn_padded(places[rows], some, queries[ask], those, most)
        found[ask, : part.shape[1]] = torch.where(part < 0, part, part + rows.start)
        found[ask, part.shape[1] :] = -1
    return found


def _empty_output(places: Tensor, queries: Tensor, counts: list[int], asking: list[int], count: int) -> Tensor:
    return places.new_empty((len(queries), min(count, max(counts))), dtype=torch.int64)


_knn_op = torch.library.custom_op("regard::nearest", _knn, mutates_args=())
_knn_op.register_fake(_empty_output)


def _knn_padded(places: Tensor, packing: CloudSizes, queries: Tensor, asking: CloudSizes, count: int) -> Tensor:
    """Indices into `places`; -1: no neighbor."""
    device = places.device
    found = _knn_brute_force(packing.pad(places), packing.valid_mask(device), asking.pad(queries), count, MAX_PAIRS)
    starts, real = packing.starts(device)[:-1, None, None], asking.valid_mask(device)
    if packing.uniform_size:
        found += starts
    else:
        found = torch.where(found < packing.sizes(device)[:, None, None], found + starts, -1)
    return found.flatten(0, 1) if real is None else found[real]


def _knn_brute_force(
    places: Tensor, real: Tensor | None, queries: Tensor, count: int, max_pairs: int
) -> Int[Tensor, "B q k"]:
    """Compare all pairs in chunks, for padded point clouds (B, n, 3) and queries (B, q, 3)."""
    (B, n, _), q = places.shape, queries.shape[1]
    together, rows = max(max_pairs // (n * q), 1), max(min(max_pairs // n, q), 1)
    found = torch.empty((B, q, count), dtype=torch.int64, device=places.device)
    names = torch.arange(n, device=places.device)
    for cloud in range(0, B, together):
        clouds = slice(cloud, cloud + together)
        keys = places[clouds, None].unbind(-1)
        for row in range(0, q, rows):
            asked = queries[clouds, row : row + rows, None].unbind(-1)
            distances = squared_distance(asked, keys)
            if real is not None:  # padding is at the end, at infinite distance
                distances.masked_fill_(~real[clouds, None], torch.inf)
            found[clouds, row : row + rows] = smallest_k(distances, count, names)[1]
    return found


SAMPLE_QUERIES = 32
MEDIAN_CELL_FACTOR = 0.8  # Initial cell size, as a multiple of the median distance of the last neighbor.
DENSE_CELL_FACTOR = 2.0
"""Limit of the initial cell size, as a multiple of the distance of the last neighbor in dense regions."""
TREE_EXTRA = 4  # Candidates of the tree in addition to the neighbors.
TREE_QUERIES = 2048
DISTANCE_TOLERANCE = 1 - 1e-5  # Factor of the border distance for accepting a neighbor, larger than rounding errors.
MAX_CELLS_PER_AXIS = 2**20  # Maximum number of cells per axis, so that three cell indices fit into one integer.


def knn_grid(points: Float[Tensor, "n 3"], queries: Float[Tensor, "q 3"], k: int, max_pairs: int) -> Int[Tensor, "q k"]:
    """Indices of the `k` nearest points of each query; ties are ordered by index. At most `max_pairs` pairs are compared at
    once, or all pairs of one query. There must be at least `k` points."""
    order, at = lexicographic_order(points), torch.arange(len(points), device=points.device)
    rows, fresh = points[order], torch.ones(len(points), dtype=torch.bool, device=points.device)
    fresh[1:] = (rows[1:] != rows[:-1]).any(1)  # the first of each group of equal points
    rank = at - torch.where(fresh, at, 0).cummax(0).values
    # equal points beyond the first k are never neighbors, and would all be compared
    if int(rank.max()) < k:
        return _search(points, queries, k, max_pairs)
    kept = order[rank < k].sort().values
    if queries.data_ptr() != points.data_ptr() or len(queries) != len(points):
        return kept[_search(points[kept], queries, k, max_pairs)]
    inverse = torch.empty_like(order).scatter_(0, order, fresh.cumsum(0) - 1)
    return kept[_search(points[kept], rows[fresh], k, max_pairs)][inverse]


def _search(places: Tensor, queries: Tensor, count: int, max_pairs: int) -> Tensor:
    found = torch.empty((len(queries), count), dtype=torch.int64, device=places.device)
    pending = torch.arange(len(queries), device=places.device)
    if len(places) > max(SAMPLE_QUERIES, count):
        if places.device.type == "cpu":
            pending = pending[~_search_tree(places, queries, count, found)]
        many = len(pending) * len(places) > max_pairs
        cell_size = _initial_cell_size(places, queries, count, max_pairs) if many else 0.0
        # a NaN coordinate is in no cell, so the search would never finish
        while len(pending) * len(places) > max_pairs and math.isfinite(cell_size):
            proven = _search_grid(places, queries, pending, count, max_pairs, cell_size, found)
            pending, cell_size = pending[~proven], 2 * cell_size
    if len(pending):
        found[pending] = _knn_brute_force(places[None], None, queries[pending][None], count, max_pairs)[0]
    return found


def _search_tree(places: Tensor, queries: Tensor, count: int, found: Tensor) -> Tensor:
    """Search with SciPy's k-d tree, if installed: write neighbors into `found`; returns a bool mask of the queries with a
    proven result. The tree computes in float64 and orders ties arbitrarily, so more candidates than neighbors are ordered
    again. If the last candidate is farther than the last neighbor, no other point can be a neighbor."""
    proven = torch.zeros(len(queries), dtype=torch.bool)
    try:
        from scipy.spatial import cKDTree
    except ImportError:
        return proven
    if not (places.isfinite().all() and queries.isfinite().all()):
        return proven
    tree, width = cKDTree(places.double().numpy()), min(count + TREE_EXTRA, len(places))
    for rows in torch.split(torch.arange(len(queries)), TREE_QUERIES):
        farthest, candidates = tree.query(queries[rows].double().numpy(), width, workers=torch.get_num_threads())
        indices = torch.from_numpy(candidates)
        distances = squared_distance(queries[rows, None].unbind(-1), places[indices].unbind(-1))
        best, found[rows] = smallest_k(distances, count, indices)
        limit = (torch.from_numpy(farthest[:, -1]) * DISTANCE_TOLERANCE).square()
        # squares below the smallest normal number have large rounding errors
        proven[rows] = (best[:, -1].double() + 4 * torch.finfo(best.dtype).tiny < limit) | (width == len(places))
        if 2 * int(proven[rows].sum()) < len(rows):
            break  # many ties, as in a lattice: the grid is faster
    return proven


def _initial_cell_size(places: Tensor, queries: Tensor, count: int, max_pairs: int) -> float:
    some = queries[:: max(len(queries) // SAMPLE_QUERIES, 1)][:SAMPLE_QUERIES]
    held = places.unbind(-1)
    farthest = [
        squared_distance(rows[:, None].unbind(-1), held).topk(count, largest=False).values[:, -1]
        for rows in torch.split(some, max(max_pairs // len(places), 1))
    ]
    last = torch.cat(farthest).double().sqrt_().sort().values
    # with varying density, queries in dense regions are answered first
    usual = min(MEDIAN_CELL_FACTOR * float(last[len(last) // 2]), DENSE_CELL_FACTOR * float(last[len(last) // 10]))
    spread = float((places.amax(0) - places.amin(0)).max())
    return usual or spread / len(places)


def _search_grid(
    points: Tensor, queries: Tensor, pending: Tensor, k: int, max_pairs: int, cell_size: float, found: Tensor
) -> Tensor:
    """Compare the pending queries with the points of 27 cells: write neighbors into `found`; returns a bool mask of the
    queries with a proven result. Cell indices start at 1, with an empty cell on either side."""
    exact = points.double()
    low = exact.amin(0)
    if float((exact.amax(0) - low).max()) > MAX_CELLS_PER_AXIS * cell_size:
        # outliers must not enlarge all cells: points outside the grid belong to the outermost cells
        low = torch.maximum(low, exact.median(0).values - MAX_CELLS_PER_AXIS / 2 * cell_size)
    cells = ((exact - low) / cell_size).floor_().clamp_(0, MAX_CELLS_PER_AXIS - 1).long() + 1
    shape = cells.amax(0) + 2
    point_keys, names = ((cells[:, 0] * shape[1] + cells[:, 1]) * shape[2] + cells[:, 2]).sort(stable=True)
    coordinates = tuple(axis[names] for axis in points.unbind(-1))

    exact = (queries[pending].double() - low) / cell_size
    cells = (exact.floor() + 1).clamp_(min=0).minimum(shape - 1).long()
    keys = (cells[:, 0] * shape[1] + cells[:, 1]) * shape[2] + cells[:, 2]
    own, member = torch.unique(keys, return_inverse=True)
    # (c, 9) start and size of the nine ranges of sorted points around each cell
    steps = torch.tensor([-1, 0, 1], device=own.device)
    around = own[:, None] + (steps[:, None] * shape[1] + steps).flatten() * shape[2]
    starts = torch.searchsorted(point_keys, around - 1)
    sizes = torch.searchsorted(point_keys, around + 1, right=True) - starts
    # distance to the nearest border of the searched cells that may have points outside
    below = torch.where(cells <= 2, torch.inf, exact + 1 - (cells - 1))
    above = torch.where(cells >= shape - 3, torch.inf, cells + 2 - (exact + 1))
    reach = torch.minimum(below, above).amin(1) * cell_size
    sure = torch.zeros(len(pending), dtype=torch.bool, device=pending.device)
    # queries with similar numbers of candidates are batched, because rows are padded to the longest
    wide, order = sizes.sum(1)[member].sort(stable=True)
    for rows, most in _batches_by_length(order, wide, max_pairs):
        some, which = torch.unique(member[rows], return_inverse=True)
        # positions of the candidates of each cell, from nine sorted ranges; -1 after the last
        ends = sizes[some].cumsum(1)
        at = torch.arange(max(most, k), device=ends.device).expand(len(some), -1).contiguous()
        part = torch.searchsorted(ends, at, right=True)
        inside, part = part < 9, part.clamp_(max=8)
        listed = torch.where(inside, at + (starts[some] - ends + sizes[some]).gather(1, part), -1)[which]
        none, listed = listed < 0, listed.clamp(min=0)
        asked = queries[pending[rows], None].unbind(-1)
        distances = squared_distance(asked, tuple(axis[listed] for axis in coordinates)).masked_fill_(none, torch.inf)
        best, found[pending[rows]] = smallest_k(distances, k, names[listed])
        sure[rows] = (best[:, -1].double().sqrt_() < reach[rows] * DISTANCE_TOLERANCE) | reach[rows].isinf()
    return sure


def _batches_by_length(order: Tensor, wide: Tensor, max_pairs: int) -> Iterator[tuple[Tensor, int]]:
    """Batches of queries with at most `max_pairs` pairs after padding; `wide` is ascending along `order`."""
    lengths, first = wide.tolist(), 0
    while first < len(lengths):
        ends = range(first + 1, len(lengths))
        fitting = bisect.bisect_right(ends, max_pairs, key=lambda end: (end - first) * lengths[end - 1])
        last = first + max(fitting, 1)
        yield order[first:last], lengths[last - 1]
        first = last
