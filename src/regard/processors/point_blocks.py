"""Split a large scene into blocks that fit the model, and combine the predictions of all blocks for each point.

Blocks are vertical columns with an overlap of half a block, so most points are in four blocks. A block with too many points is
split evenly after a fixed shuffle: each part is a uniform subsample, and no point is dropped. The probabilities of a point
are averaged over all parts with this point.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.processors.points import Indices, PointCloudLike, PointProcessor, PointRows
from regard.processors.voxel_grid import group_voxels, voxel_coordinates, voxel_downsample


@dataclass(frozen=True)
class SceneBlocks:
    """Point cloud split into parts of blocks."""

    point_indices: Indices
    """(M,) indices of the kept points of the point cloud, one per voxel"""
    voxel_index: Indices
    """(N,) index into `point_indices` for every point: the kept point of the same voxel"""
    block_indices: list[Indices]
    """indices into `point_indices` of each part"""
    rows: list[PointRows]
    """model inputs of each part"""


def split_scene(cloud: PointCloudLike, processor: PointProcessor) -> SceneBlocks:
    """Model inputs that together cover every point of the point cloud."""
    kept, cell = voxel_downsample(cloud.coordinates, processor.voxel)
    chosen = scene_block_indices(cloud.coordinates[kept], processor)
    return SceneBlocks(
        kept, cell, chosen, [processor.normalize(processor.rows(cloud, kept[these])) for these in chosen]
    )


def scene_block_indices(coordinates: NDArray[Any], processor: PointProcessor) -> list[Indices]:
    """Sorted point indices of each part. Every point is in at least one part; a part has at most `processor.count` points."""
    return [
        piece for column in overlapping_blocks(coordinates, processor) for piece in split_block(column, processor.count)
    ]


def overlapping_blocks(coordinates: NDArray[Any], processor: PointProcessor) -> list[Indices]:
    """Sorted point indices of each block with points."""
    many = len(coordinates)
    if not many:
        return []
    if not processor.block:
        return [np.arange(many)]
    halves = voxel_coordinates(np.delete(coordinates, processor.up_axis, axis=1), processor.block / 2)
    order, first = group_voxels(halves)
    starts = np.flatnonzero(first)
    # a block is two half blocks wide: points of half block h are in the blocks that start at h - 1 and h
    last = np.maximum(halves.max(axis=0) - 1, 0)
    found: dict[tuple[int, ...], list[Indices]] = {}
    for half, inside in zip(halves[order[starts]], np.split(order, starts[1:]), strict=True):
        begins = {tuple(np.clip(half - back, 0, last).tolist()) for back in ((0, 0), (0, 1), (1, 0), (1, 1))}
        for begin in begins:
            found.setdefault(begin, []).append(inside)
    return [np.sort(np.concatenate(found[begin])) for begin in sorted(found)]


def split_block(block: Indices, max_points: int) -> list[Indices]:
    """Minimum number of parts of about equal size with at most `max_points` points, after a fixed shuffle."""
    hands = -(-len(block) // max_points) if max_points else 1
    if hands <= 1:
        return [block]
    shuffled = np.random.default_rng(len(block)).permutation(block)
    return [np.sort(shuffled[hand::hands]) for hand in range(hands)]


class VoteAccumulator:
    """Sums of the class probabilities of each point over all parts."""

    def __init__(self, num_points: int, num_classes: int) -> None:
        self._sums = np.zeros((num_points, num_classes), dtype=np.float64)
        self._counts = np.zeros(num_points, dtype=np.int64)

    def add(self, indices: Indices, probabilities: NDArray[Any]) -> None:
        """Add (n, classes) probabilities for n distinct points."""
        self._sums[indices] += probabilities
        self._counts[indices] += 1

    @property
    def counts(self) -> Indices:
        """(M,) number of predictions per point."""
        return self._counts

    def probabilities(self, voxel_index: Indices | None = None) -> NDArray[np.float32]:
        """(M, classes) average probabilities; with `voxel_index`, (N, classes) for all points of the point cloud."""
        mean = (self._sums / np.maximum(self._counts, 1)[:, None]).astype(np.float32)
        return mean if voxel_index is None else mean[voxel_index]

    def labels(self, voxel_index: Indices | None = None) -> Indices:
        """(M,) most likely class per point; with `voxel_index`, (N,) for all points of the point cloud."""
        best = self._sums.argmax(axis=1)
        return best if voxel_index is None else best[voxel_index]
