"""Exact k-nearest-neighbor search in packed point clouds, and interpolation weights.

Point clouds are concatenated (nn/points/packing.py), and neighbors are in the same point cloud. Ties are ordered by
index. If a point cloud has fewer points than requested, missing neighbors are -1. No gradients.

Shape letters: N points, Q queries, K neighbors, B point clouds.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard import capabilities
from regard.nn.points.knn_grid import knn_grid
from regard.nn.points.packing import MAX_PADDING_FACTOR, CloudSizes
from regard.nn.points.pairwise import smallest_k, squared_distance, to_search_dtype

MAX_PAIRS = 2**20
"""Maximum number of pairs compared at once, at most 64 bytes each: 64 MiB, or 512 MiB on CUDA, for any number of points."""
GRID_MIN_POINTS = 2**11
"""Minimum size of point clouds for the search by grid cells instead of all pairs."""
GRID_MIN_POINTS_CUDA = 2**17
"""Minimum size on CUDA, whose kernel compares all pairs; for larger point clouds the grid is faster, but synchronizes."""


def knn(
    points: Float[Tensor, "N 3"], sizes: CloudSizes, k: int, queries: Float[Tensor, "Q 3"] | None = None,
    query_sizes: CloudSizes | None = None,
) -> Int[Tensor, "Q K"]:  # fmt: skip
    """Indices of the k nearest points in the same point cloud, (Q, K), nearest first; -1: no neighbor.

    Without queries, each point is its own first neighbor (or a duplicate with a lower index). K is `k`, or the size of
    the largest point cloud if smaller."""
    query_sizes = sizes if query_sizes is None else query_sizes
    queries = points if queries is None else queries
    search = _knn_op if torch.compiler.is_compiling() else torch.no_grad()(_knn)  # compiled graphs need the operator
    return search(to_search_dtype(points), to_search_dtype(queries), list(sizes.counts), list(query_sizes.counts), k)


def knn_interpolation(
    points: Float[Tensor, "N 3"], sizes: CloudSizes, queries: Float[Tensor, "Q 3"], query_sizes: CloudSizes, k: int = 3
) -> tuple[Int[Tensor, "Q K"], Float[Tensor, "Q K"]]:
    """Indices of the nearest points, and interpolation weights: inverse distances (not squared), normalized to sum 1.
    Missing neighbors have weight 0 and an arbitrary index."""
    index = knn(points, sizes, k, queries, query_sizes)
    held, asked = to_search_dtype(points), to_search_dtype(queries)
    real, index = index >= 0, index.clamp(min=0)
    rows = held.index_select(0, index.flatten()).view(*index.shape, 3)
    inverse = real / (squared_distance(rows.unbind(-1), asked[:, None].unbind(-1)).sqrt_() + 1e-8)
    return index, inverse / inverse.sum(-1, keepdim=True)


def _knn(places: Tensor, queries: Tensor, counts: list[int], asking: list[int], count: int) -> Tensor:
    packing, asked = CloudSizes(tuple(counts)), CloudSizes(tuple(asking))
    if places.is_cuda and capabilities.is_available("triton"):
        from regard.nn.points import knn_triton

        if knn_triton.is_supported(places, count) and not _prefers_grid(places, packing):
            return knn_triton.knn(places, queries, packing, asked, count)
    found = places.new_empty(_output_shape(queries, counts, count), dtype=torch.int64)
    for first, last in _batch_groups(packing, asked):
        (some, rows), (those, ask) = packing.subset(first, last), asked.subset(first, last)
        most = min(count, some.max_size)
        if some.max_size >= GRID_MIN_POINTS:
            part = knn_grid(
                places[rows], queries[ask], most, MAX_PAIRS if places.device.type == "cpu" else 8 * MAX_PAIRS
            )
        else:
            part = _knn_padded(places[rows], some, queries[ask], those, most)
        found[ask, : part.shape[1]] = torch.where(part < 0, part, part + rows.start)
        found[ask, part.shape[1] :] = -1
    return found


def _prefers_grid(places: Tensor, packing: CloudSizes) -> bool:
    """Whether the grid is faster than the CUDA kernel and a synchronization is allowed."""
    return packing.max_size >= GRID_MIN_POINTS_CUDA and not torch.cuda.is_current_stream_capturing()


def _output_shape(queries: Tensor, counts: list[int], count: int) -> tuple[int, int]:
    return len(queries), min(count, max(counts))


def _empty_output(places: Tensor, queries: Tensor, counts: list[int], asking: list[int], count: int) -> Tensor:
    return places.new_empty(_output_shape(queries, counts, count), dtype=torch.int64)


_knn_op = torch.library.custom_op(
    "regard::nearest",
    _knn,
    mutates_args=(),
    schema="(Tensor places, Tensor queries, SymInt[] counts, SymInt[] asking, SymInt count) -> Tensor",
)
_knn_op.register_fake(_empty_output)


def _batch_groups(packing: CloudSizes, asking: CloudSizes) -> Iterator[tuple[int, int]]:
    """Ranges of point clouds to search together: all if small and of similar size, else each separately."""
    clouds = len(packing.counts)
    pairs = sum(n * q for n, q in zip(packing.counts, asking.counts, strict=True))
    if packing.max_size < GRID_MIN_POINTS and clouds * packing.max_size * asking.max_size <= MAX_PADDING_FACTOR * pairs:
        yield 0, clouds
    else:
        yield from ((number, number + 1) for number in range(clouds))


def _knn_padded(places: Tensor, packing: CloudSizes, queries: Tensor, asking: CloudSizes, count: int) -> Tensor:
    """Indices into `places`; -1: no neighbor."""
    device = places.device
    found = _knn_brute_force(packing.pad(places), packing.valid_mask(device), asking.pad(queries), count)
    starts, real = packing.starts(device)[:-1, None, None], asking.valid_mask(device)
    if packing.uniform_size:
        found += starts
    else:
        found = torch.where(found < packing.sizes(device)[:, None, None], found + starts, -1)
    return found.flatten(0, 1) if real is None else found[real]


def _knn_brute_force(places: Tensor, real: Tensor | None, queries: Tensor, count: int) -> Int[Tensor, "B q k"]:
    """Compare all pairs in chunks, for padded point clouds (B, n, 3) and queries (B, q, 3)."""
    (B, n, _), q = places.shape, queries.shape[1]
    together, rows = max(MAX_PAIRS // (n * q), 1), max(min(MAX_PAIRS // n, q), 1)
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
