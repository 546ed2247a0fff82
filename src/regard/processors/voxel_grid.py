"""Voxel grid downsampling: one point per voxel, for a uniform density at any distance from the scanner."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]

MAX_FLAT_CELLS = 2**62
"""Limit for voxel ids in one int64. Larger grids, which only far outliers cause, are sorted by three coordinates."""


def voxel_downsample(
    coordinates: NDArray[Any], voxel_size: float, rng: np.random.Generator | None = None
) -> tuple[Indices, Indices]:
    """(M,) sorted indices of the kept points, and (N,) index of each point's voxel among the kept points.

    The grid starts at the minimum of the coordinates. The first point of each voxel is kept, or with `rng` a random point.
    A voxel size of 0 keeps every point."""
    many = len(coordinates)
    if voxel_size <= 0 or not many:
        return np.arange(many), np.arange(many)
    order, first = group_voxels(voxel_coordinates(coordinates, voxel_size))
    starts = np.flatnonzero(first)
    counts = np.diff(starts, append=many)
    # the sort is stable, so the first point of a voxel in this order is the first in the point cloud
    taken = starts if rng is None else starts + (rng.random(len(starts)) * counts).astype(np.int64)
    chosen = order[taken]
    again = np.argsort(chosen)
    place = np.empty(len(chosen), dtype=np.int64)
    place[again] = np.arange(len(chosen))
    cell = np.empty(many, dtype=np.int64)
    cell[order] = place[np.cumsum(first) - 1]
    return chosen[again], cell


def voxel_coordinates(coordinates: NDArray[Any], voxel_size: float) -> Indices:
    """(N, D) voxel indices along each axis, from 0."""
    lowest = coordinates.min(axis=0).astype(np.float64)
    return np.minimum(np.floor((coordinates - lowest) / voxel_size), 2.0**62).astype(np.int64)


def group_voxels(voxels: Indices) -> tuple[Indices, NDArray[np.bool_]]:
    """Order of the points grouped by voxel, and a mask of the first point of each voxel in this order."""
    first = np.ones(len(voxels), dtype=bool)
    sizes = [int(side) + 1 for side in voxels.max(axis=0)]
    if math.prod(sizes) < MAX_FLAT_CELLS:
        keys = voxels[:, 0]
        for side, size in zip(voxels.T[1:], sizes[1:], strict=True):
            keys = keys * size + side
        order = np.argsort(keys, kind="stable")
        first[1:] = np.diff(keys[order]) != 0
        return order, first
    order = np.lexsort(voxels.T[::-1])
    first[1:] = (np.diff(voxels[order], axis=0) != 0).any(axis=1)
    return order, first
