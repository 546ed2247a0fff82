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

from regard.processors.points import Indices, PointCloudLike, PointProcessor, PointRows
from regard.processors.voxel_grid import group_voxels, voxel_coordinates, voxel_downsample


@dataclass(frozen=True)
class SceneBlocks:
    """A cloud in pieces."""

    point_indices: Indices
    """(M,) the points of the cloud that are looked at, one of each cell"""
    voxel_index: Indices
    """(N,) of every point of the cloud the place among those of the one that speaks for it"""
    block_indices: list[Indices]
    """of each piece its points, as places among those that are kept"""
    rows: list[PointRows]
    """of each piece what the model reads"""


def split_scene(cloud: PointCloudLike, processor: PointProcessor) -> SceneBlocks:
    """Everything that is to be looked at, so that every point of a cloud has an answer."""
    kept, cell = voxel_downsample(cloud.coordinates, processor.voxel)
    chosen = scene_block_indices(cloud.coordinates[kept], processor)
    return SceneBlocks(
        kept, cell, chosen, [processor.normalize(processor.rows(cloud, kept[these])) for these in chosen]
    )


def scene_block_indices(coordinates: NDArray[Any], processor: PointProcessor) -> list[Indices]:
    """Numbers of points, of each piece in their order: every point is in one at least, and in none more than `count`."""
    return [
        piece for column in overlapping_blocks(coordinates, processor) for piece in split_block(column, processor.count)
    ]


def overlapping_blocks(coordinates: NDArray[Any], processor: PointProcessor) -> list[Indices]:
    """The points of each column that has any, in their order."""
    many = len(coordinates)
    if not many:
        return []
    if not processor.block:
        return [np.arange(many)]
    halves = voxel_coordinates(np.delete(coordinates, processor.up_axis, axis=1), processor.block / 2)
    order, first = group_voxels(halves)
    starts = np.flatnonzero(first)
    # a column is two halves wide: what stands in half h is in the columns that begin at h - 1 and at h
    last = np.maximum(halves.max(axis=0) - 1, 0)
    found: dict[tuple[int, ...], list[Indices]] = {}
    for half, inside in zip(halves[order[starts]], np.split(order, starts[1:]), strict=True):
        begins = {tuple(np.clip(half - back, 0, last).tolist()) for back in ((0, 0), (0, 1), (1, 0), (1, 1))}
        for begin in begins:
            found.setdefault(begin, []).append(inside)
    return [np.sort(np.concatenate(found[begin])) for begin in sorted(found)]


def split_block(block: Indices, max_points: int) -> list[Indices]:
    """As few hands as hold at most `count` each, even in number, after a fixed shuffle."""
    hands = -(-len(block) // max_points) if max_points else 1
    if hands <= 1:
        return [block]
    shuffled = np.random.default_rng(len(block)).permutation(block)
    return [np.sort(shuffled[hand::hands]) for hand in range(hands)]


class VoteAccumulator:
    """What was said of each of some points, by all pieces that they were in."""

    def __init__(self, num_points: int, num_classes: int) -> None:
        self._sums = np.zeros((num_points, num_classes), dtype=np.float64)
        self._counts = np.zeros(num_points, dtype=np.int64)

    def add(self, indices: Indices, probabilities: NDArray[Any]) -> None:
        """(n, classes) probabilities of these points; none of them occurs twice."""
        self._sums[indices] += probabilities
        self._counts[indices] += 1

    @property
    def counts(self) -> Indices:
        """(M,) how often each point was asked about."""
        return self._counts

    def probabilities(self, voxel_index: Indices | None = None) -> NDArray[np.float32]:
        """(M, classes) the mean of what was said; given the cells of a cloud, (N, classes) of all its points."""
        mean = (self._sums / np.maximum(self._counts, 1)[:, None]).astype(np.float32)
        return mean if voxel_index is None else mean[voxel_index]

    def labels(self, voxel_index: Indices | None = None) -> Indices:
        """(M,) the likeliest class of each; given the cells of a cloud, (N,) of all its points."""
        best = self._sums.argmax(axis=1)
        return best if voxel_index is None else best[voxel_index]
