"""From fine to coarse: which points of clouds each level keeps, who is near to whom there, and what leads back.

All this follows from the places alone. It is found once, before anything is computed, and shared by all that is computed at a
level. Shape letters: N points of all clouds, M of a coarser level, K neighbours, B clouds.
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
    """One fineness of all clouds."""

    point_index: Int[Tensor, "M"]
    """which points of the input these are"""
    neighbors: Neighbors
    """their neighbours among themselves"""
    cloud_index: Int[Tensor, "M"]
    """the cloud that each belongs to"""
    points_per_cloud: int
    """how many each cloud has, where that is known of all levels to be one number; else 0"""
    finer_neighbors: Neighbors | None = None
    """their neighbours in the level before; None: this is the finest"""
    interp_index: Int[Tensor, "N K"] | None = None
    """of each point of the level before, the nearest ones here"""
    interp_weights: Float[Tensor, "N K"] | None = None
    """how much of each it receives"""

    def cloud_mean(self, x: Float[Tensor, "M D"], num_clouds: int) -> Float[Tensor, "B D"]:
        """Of the points of each cloud."""
        if self.points_per_cloud:
            return x.view(num_clouds, self.points_per_cloud, -1).mean(1)
        wide = x if x.dtype == torch.float64 else x.float()
        total = wide.new_zeros(num_clouds, x.shape[1]).index_add(0, self.cloud_index, wide)
        counts = torch.zeros_like(total[:, :1]).index_add(0, self.cloud_index, torch.ones_like(wide[:, :1]))
        return (total / counts).to(x.dtype)

    def interpolate(self, x: Float[Tensor, "M D"]) -> Float[Tensor, "N D"]:
        """What the points of the level before receive of these."""
        assert self.interp_index is not None and self.interp_weights is not None
        return (gather_rows(x, self.interp_index) * self.interp_weights.to(x.dtype)[..., None]).sum(1)


@dataclass(frozen=True)
class PointHierarchy:
    """All levels, from the finest to the coarsest, and how the points of the finest were given."""

    levels: list[PointLevel]
    inverse_order: Int[Tensor, "N"] | None
    """where each point that was given stands in the finest level; None: in the same row"""


def build_hierarchy(
    x: Float[Tensor, "N C"],
    offsets: Offsets,
    strides: Sequence[int],
    num_neighbors: Sequence[int],
    with_interpolation: bool,
    sort: bool,
) -> PointHierarchy:
    """Of rows that begin with places. `rates`: one point in so many is kept for each level after the first; `counts`: the
    neighbours of a point, at each. `rises`: with the way back. `ordered`: points stand by their places, not as given.

    Clouds of one size are surveyed without waiting for a device, and compiled code goes on through it; of others the sizes
    must be known first."""
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
    # clouds of 64 and 65 points have equally many at the next level: compiled code shall not be made anew for such
    return replace(found, levels=[replace(level, points_per_cloud=0) for level in found.levels])


def _at_least_float32(places: Tensor) -> Tensor:
    """At least as float32: in sixteen bits neighbours would lie in one place."""
    return places.float() if places.element_size() < 4 else places


def find_neighbors(
    points: Float[Tensor, "N 3"], sizes: CloudSizes, k: int, queries: Float[Tensor, "M 3"], query_sizes: CloudSizes
) -> Neighbors:
    """The neighbours of some points, and where they stand from there."""
    index = knn(points, sizes, k, queries, query_sizes)
    if sizes.min_size >= index.shape[1]:
        return Neighbors(index, gather_rows(points, index) - queries[:, None])
    real, index = index >= 0, index.clamp(min=0)
    return Neighbors.from_mask(index, gather_rows(points, index) - queries[:, None], real)


def lexicographic_order(x: Float[Tensor, "N C"], sizes: CloudSizes) -> Int[Tensor, "N"]:
    """Rows of each cloud by their first column, those that are equal there by the second, and so on: an order that does not
    depend on that in which they were given, but for rows that are equal in all."""
    order = torch.arange(len(x), device=x.device)
    for column in reversed(x.detach().unbind(-1)):
        order = order[column[order].argsort(stable=True)]
    if len(sizes.counts) == 1:
        return order
    return order[sizes.cloud_index(x.device)[order].argsort(stable=True)]
