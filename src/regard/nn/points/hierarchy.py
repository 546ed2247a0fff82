"""Levels of point clouds: sampled points, neighbors, and interpolation weights.

Computed from the coordinates only, once before the network, and shared by all blocks of a level.
Shape letters: N points of all point clouds, M of a coarser level, K neighbors, B point clouds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.capabilities import disable_compile
from regard.nn.points.farthest_point import farthest_point_sampling
from regard.nn.points.knn import knn, knn_interpolation
from regard.nn.points.packing import CloudSizes
from regard.nn.points.vector_attention import Neighbors, gather_rows
from regard.types import Offsets


@dataclass(frozen=True)
class PointLevel:
    """One level of all point clouds."""

    point_index: Int[Tensor, "M"]
    """Indices into the input points."""
    neighbors: Neighbors
    """Neighbors within the level."""
    cloud_index: Int[Tensor, "M"]
    """Point cloud of each point."""
    points_per_cloud: int
    """Points per point cloud, if equal for all point clouds at all levels; else 0."""
    finer_neighbors: Neighbors | None = None
    """Neighbors in the finer level; None: this is the finest level."""
    interp_index: Int[Tensor, "N K"] | None = None
    """Nearest points of this level for each point of the finer level."""
    interp_weights: Float[Tensor, "N K"] | None = None
    """Interpolation weights of these points."""

    def cloud_mean(self, x: Float[Tensor, "M D"], num_clouds: int) -> Float[Tensor, "B D"]:
        """Mean over the points of each point cloud."""
        if self.points_per_cloud:
            return x.view(num_clouds, self.points_per_cloud, -1).mean(1)
        wide = x if x.dtype == torch.float64 else x.float()
        total = wide.new_zeros(num_clouds, x.shape[1]).index_add(0, self.cloud_index, wide)
        counts = torch.zeros_like(total[:, :1]).index_add(0, self.cloud_index, torch.ones_like(wide[:, :1]))
        return (total / counts).to(x.dtype)

    def interpolate(self, x: Float[Tensor, "M D"]) -> Float[Tensor, "N D"]:
        """Interpolate features to the points of the finer level."""
        assert self.interp_index is not None and self.interp_weights is not None
        return (gather_rows(x, self.interp_index) * self.interp_weights.to(x.dtype)[..., None]).sum(1)


@dataclass(frozen=True)
class PointHierarchy:
    """All levels, from the finest to the coarsest."""

    levels: list[PointLevel]
    inverse_order: Int[Tensor, "N"] | None
    """Row of each input point in the finest level; None: the same row."""


def build_hierarchy(
    x: Float[Tensor, "N C"],
    offsets: Offsets,
    strides: Sequence[int],
    num_neighbors: Sequence[int],
    with_interpolation: bool,
    sort: bool,
) -> PointHierarchy:
    """Levels of x, whose first three columns are coordinates. `strides`: one of this many points is kept, for each
    level after the first; `num_neighbors`: neighbors per point and level. `with_interpolation`: also compute
    interpolation weights. `sort`: order the points by coordinates.

    Point clouds of equal size need no synchronization and can be compiled; for others, sizes are read from the device."""
    if offsets.max_length * (len(offsets.starts) - 1) == len(x):
        return _build_hierarchy(
            x, CloudSizes.from_offsets(len(x), offsets), strides, num_neighbors, with_interpolation, sort
        )
    return _build_uncompiled(x, offsets, strides, num_neighbors, with_interpolation, sort)


def _build_hierarchy(
    x: Tensor, packing: CloudSizes, rates: Sequence[int], counts: Sequence[int], rises: bool, ordered: bool
) -> PointHierarchy:
    names, back = torch.arange(len(x), device=x.device), None
    if ordered:
        back, names = names, lexicographic_order(x, packing)
        back = torch.empty_like(names).scatter_(0, names, back)
    places = gather_rows(_at_least_float32(x[:, :3]), names)
    near = find_neighbors(places, packing, counts[0], places, packing)
    levels = [PointLevel(names, near, packing.cloud_index(x.device), packing.uniform_size)]
    for rate, count in zip(rates, counts[1:], strict=True):
        few = packing.downsampled(rate)
        chosen = farthest_point_sampling(places, packing, few)
        those, names = gather_rows(places, chosen), names[chosen]
        near, below = find_neighbors(those, few, count, those, few), find_neighbors(places, packing, count, those, few)
        level = PointLevel(names, near, few.cloud_index(x.device), few.uniform_size, below)
        if rises:
            coarse, shares = knn_interpolation(those, few, places, packing)
            level = replace(level, interp_index=coarse, interp_weights=shares)
        levels.append(level)
        places, packing = those, few
    return PointHierarchy(levels, back)


@disable_compile
def _build_uncompiled(
    x: Tensor, offsets: Offsets, rates: Sequence[int], counts: Sequence[int], rises: bool, ordered: bool
) -> PointHierarchy:
    found = _build_hierarchy(x, CloudSizes.from_offsets(len(x), offsets), rates, counts, rises, ordered)
    # 64 and 65 points have equally many samples at the next level, which must not cause a recompilation
    return replace(found, levels=[replace(level, points_per_cloud=0) for level in found.levels])


def _at_least_float32(places: Tensor) -> Tensor:
    """In 16 bits, neighbors would have equal coordinates."""
    return places.float() if places.element_size() < 4 else places


def find_neighbors(
    points: Float[Tensor, "N 3"], sizes: CloudSizes, k: int, queries: Float[Tensor, "M 3"], query_sizes: CloudSizes
) -> Neighbors:
    """Neighbors of the queries, and their offsets from the queries."""
    index = knn(points, sizes, k, queries, query_sizes)
    if sizes.min_size >= index.shape[1]:
        return Neighbors(index, gather_rows(points, index) - queries[:, None])
    real, index = index >= 0, index.clamp(min=0)
    return Neighbors.from_mask(index, gather_rows(points, index) - queries[:, None], real)


def lexicographic_order(x: Float[Tensor, "N C"], sizes: CloudSizes) -> Int[Tensor, "N"]:
    """Row order of each point cloud, sorted by the first column, then by the second, …: independent of the input order."""
    order = torch.arange(len(x), device=x.device)
    for column in reversed(x.detach().unbind(-1)):
        order = order[column[order].argsort(stable=True)]
    if len(sizes.counts) == 1:
        return order
    return order[sizes.cloud_index(x.device)[order].argsort(stable=True)]
