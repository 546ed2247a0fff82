"""Point cloud preprocessing and augmentation: point clouds -> rows of coordinates and features.

A row has x, y, z in the coordinate frame of the model, then red, green and blue in [0, 1], then the normal. `PointProcessor`
defines the number of points, the frame, the density and the features, and is saved as `points.json`.

A large scene is split into blocks that fit the model: vertical columns with an overlap of half a block, so most points are in
four blocks. A block with too many points is split evenly after a fixed shuffle: each part is a uniform subsample, and no point
is dropped. The probabilities of a point are averaged over all parts with this point.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from regard.config import as_dict, check_settings, from_dict
from regard.data.points.cloud import PointCloud
from regard.errors import DataError, SettingError
from regard.files import write_json
from regard.processors import read_processor_file

Indices = NDArray[np.int64]

# -- voxel grid: one point per voxel, for a uniform density at any distance from the scanner

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
    # the sort is stable, so the first point of a voxel in this order is the first in the point cloud
    if rng is not None:
        starts = starts + (rng.random(len(starts)) * np.diff(starts, append=many)).astype(np.int64)
    chosen, cell = order[starts], np.empty(many, dtype=np.int64)
    cell[order] = np.searchsorted(np.sort(chosen), chosen)[np.cumsum(first) - 1]
    return np.sort(chosen), cell


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


# -- processor

FILE = "points.json"
CoordinateFrame = Literal["unit_sphere", "center", "floor"]
Axis = Literal["x", "y", "z"]
FEATURES = ("colors", "normals")  # Possible features of a point, in the order of the columns.
TTA_FOLDS = 10
"""For several views of a small point cloud, each view leaves out 1 / TTA_FOLDS of the points, different in each view."""

PointRows = NDArray[np.float32]


@dataclass(frozen=True)
class PointProcessor:
    count: int = 1024  # maximum number of points sampled from a point cloud; 0: all points
    frame: CoordinateFrame = "unit_sphere"
    """unit_sphere: centered at the mean, maximum distance 1; center: centered at the mean, original scale; floor: centered
    at the mean horizontally, lowest point at 0"""
    voxel: float = 0.0  # voxel size of the downsampling, in the unit of the file; 0: no downsampling
    block: float = 0.0  # side of the blocks of a large scene; 0: no blocks
    features: tuple[str, ...] = ()  # features in addition to the coordinates: colors, normals; 0 if a file has none
    up: Axis = "z"  # vertical axis, for frame=floor and for blocks

    def __post_init__(self) -> None:
        known, frames = tuple(name for name in FEATURES if name in self.features), get_args(CoordinateFrame)
        check_settings(
            (self.count >= 0, "data.num_points", "at least 1, or 0 for all points", self.count),
            (0 <= self.voxel < math.inf, "data.voxel_size", "at least 0", self.voxel),
            (0 <= self.block < math.inf, "data.block_size", "at least 0", self.block),
            (self.frame in frames, "data.point_norm", "unit_sphere, center or floor", f"'{self.frame}'"),
            (self.up in get_args(Axis), "data.up_axis", "x, y or z", f"'{self.up}'"),
        )
        if self.block and self.frame == "unit_sphere":
            reason = "because blocks keep the scale of the scene"
            raise SettingError(f"data.block_size requires data.point_norm=floor or center, {reason}.")
        if 0 < self.block < self.voxel:
            raise SettingError(f"data.block_size={self.block} must be at least data.voxel_size={self.voxel}.")
        expected = f"{' or '.join(FEATURES)}, or both in this order"
        check_settings((known == tuple(self.features), "data.point_features", expected, ", ".join(self.features)))

    # -- files

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> PointProcessor | None:
        """Read the file of a folder; None if there is no file."""
        path = Path(folder) / FILE
        settings = read_processor_file(path)
        try:
            return None if settings is None else from_dict(cls, settings)
        except SettingError as error:
            raise DataError(f"invalid values: {error}", path) from error

    def save(self, folder: str | os.PathLike[str]) -> None:
        write_json(Path(folder) / FILE, as_dict(self))

    # -- point clouds

    @property
    def width(self) -> int:
        """Values per row."""
        return 3 + 3 * len(self.features)

    @property
    def normals_column(self) -> int | None:
        """First column of the normals, which rotate with the coordinates; None without normals."""
        return 3 + 3 * self.features.index("normals") if "normals" in self.features else None

    @property
    def up_axis(self) -> int:
        """Column of the vertical axis."""
        return "xyz".index(self.up)

    def prepare(self, cloud: PointCloud, rng: np.random.Generator | None = None) -> tuple[PointRows, Indices]:
        """(n, width) rows, and (n,) their indices in the point cloud.

        Without `rng` the result is deterministic: the first point of each voxel, the block around the center of the scene,
        and the first `count` points of a fixed shuffle."""
        kept = self._candidates(cloud, rng)
        if rng is None or not self.count or len(kept) <= self.count:
            kept = kept[sample_rounds(len(kept), self.count, 1, 1)[0]]
        else:
            kept = rng.choice(kept, self.count, replace=False)
        return self.normalize(self.rows(cloud, kept)), kept

    def prepare_views(self, cloud: PointCloud, min_views: int, max_views: int) -> list[PointRows]:
        """Deterministic samples that together contain every point, at least `min_views` and at most `max_views`. The first
        equals the result of `prepare`, unless a point cloud of at most `count` points gets several views."""
        kept = self._candidates(cloud, None)
        rounds = sample_rounds(len(kept), self.count, min_views, max_views)
        return [self.normalize(self.rows(cloud, kept[some])) for some in rounds]

    def _candidates(self, cloud: PointCloud, random: np.random.Generator | None) -> Indices:
        """One point per voxel, in a block around a random point, or without `random` around the point nearest to the mean."""
        kept, _ = voxel_downsample(cloud.coordinates, self.voxel, random)
        if not self.block or not len(kept):
            return kept
        flat = np.delete(cloud.coordinates[kept], self.up_axis, axis=1)
        if random is None:
            middle = flat[((flat - flat.mean(axis=0)) ** 2).sum(axis=1).argmin()]
        else:
            middle = flat[int(random.integers(len(flat)))]
        return kept[(np.abs(flat - middle) <= self.block / 2).all(axis=1)]

    def rows(self, cloud: PointCloud, indices: Indices | None = None) -> PointRows:
        """(n, width) rows of these points, or of all points, in the original coordinates."""
        taken = slice(None) if indices is None else indices
        x = np.zeros((len(cloud.coordinates[taken]), self.width), dtype=np.float32)
        x[:, :3] = cloud.coordinates[taken]
        for number, name in enumerate(self.features):
            column = slice(3 + 3 * number, 6 + 3 * number)
            if name == "colors" and cloud.colors is not None:
                x[:, column] = cloud.colors[taken] / np.float32(255)
            if name == "normals" and cloud.normals is not None:
                x[:, column] = cloud.normals[taken]
        return x

    def normalize(self, x: PointRows) -> PointRows:
        """Rows with the coordinates in the frame of the model."""
        if not len(x):
            return x
        coordinates = x[:, :3].astype(np.float64)
        origin: NDArray[Any] = coordinates.mean(axis=0)
        if self.frame == "floor":
            origin[self.up_axis] = coordinates[:, self.up_axis].min()
        coordinates -= origin
        if self.frame == "unit_sphere":
            # all distances are 0 for identical points
            coordinates /= np.sqrt((coordinates**2).sum(axis=1).max()) or 1.0
        return np.concatenate([coordinates.astype(np.float32), x[:, 3:]], axis=1)


def sample_rounds(total: int, count: int, min_rounds: int, max_rounds: int) -> list[Indices]:
    """Consecutive windows of `count` indices in a fixed shuffle, until every index was used, but within `min_rounds` and
    `max_rounds`; further rounds use new shuffles. If all indices fit one of several rounds, each round omits 1 / TTA_FOLDS."""
    if not count or total <= count:
        if min_rounds == 1 or total < 2:
            return [np.arange(total)]
        count, each = total - max(total // TTA_FOLDS, 1), TTA_FOLDS
    else:
        each = -(-total // count)  # rounds until every index was used
    random, rounds = np.random.default_rng(total), list[Indices]()
    for turn in range(min(max(-(-total // count), min_rounds), max_rounds)):
        if turn % each == 0:
            order = random.permutation(total)
        first = turn % each * count
        rounds.append(order.take(np.arange(first, first + count), mode="wrap"))
    return rounds


# -- blocks of large scenes


@dataclass(frozen=True)
class SceneBlocks:
    """Point cloud split into parts of blocks."""

    point_indices: Indices  # (M,) indices of the kept points of the point cloud, one per voxel
    voxel_index: Indices  # (N,) index into `point_indices` for every point: the kept point of the same voxel
    block_indices: list[Indices]  # indices into `point_indices` of each part
    rows: list[PointRows]  # model inputs of each part


def split_scene(cloud: PointCloud, processor: PointProcessor) -> SceneBlocks:
    """Model inputs that together cover every point of the point cloud."""
    kept, cell = voxel_downsample(cloud.coordinates, processor.voxel)
    blocks = scene_block_indices(cloud.coordinates[kept], processor)
    rows = [processor.normalize(processor.rows(cloud, kept[indices])) for indices in blocks]
    return SceneBlocks(kept, cell, blocks, rows)


def scene_block_indices(coordinates: NDArray[Any], processor: PointProcessor) -> list[Indices]:
    """Sorted point indices of each part. Every point is in at least one part; a part has at most `processor.count` points.

    A block with more points is split into the minimum number of parts of about equal size, after a fixed shuffle."""
    parts = []
    for block in overlapping_blocks(coordinates, processor):
        num_parts = -(-len(block) // processor.count) if processor.count else 1
        if num_parts > 1:
            block = np.random.default_rng(len(block)).permutation(block)
        parts += [np.sort(block[part::num_parts]) for part in range(num_parts)]
    return parts


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
    blocks: dict[tuple[int, ...], list[Indices]] = {}
    for half, inside in zip(halves[order[starts]], np.split(order, starts[1:]), strict=True):
        begins = {tuple(np.clip(half - back, 0, last).tolist()) for back in ((0, 0), (0, 1), (1, 0), (1, 1))}
        for begin in begins:
            blocks.setdefault(begin, []).append(inside)
    return [np.sort(np.concatenate(blocks[begin])) for begin in sorted(blocks)]


# -- augmentation of rows; a change of one augmentation other than point dropout keeps the random values of the others

RotateMode = Literal["none", "up", "any"]

MAX_DEVIATIONS = 3.0  # clipping of the jitter and of the tilt, in standard deviations, to avoid outliers


@dataclass(frozen=True)
class PointAugment:
    """Maximum strength of each augmentation; the defaults leave point clouds unchanged."""

    rotate: RotateMode = "none"  # none; up: about the vertical axis; any: uniform over all 3D rotations
    scale: tuple[float, ...] = (1.0, 1.0)
    shift: float = 0.0  # maximum shift along each axis, in the unit of the coordinate frame
    jitter: float = 0.0  # standard deviation of the noise per point, in the unit of the normalized coordinates
    point_dropout: float = 0.0
    up: Literal["x", "y", "z"] = "z"
    tilt: float = 0.0  # standard deviation of an additional rotation about a random axis, in degrees
    flip: bool = False  # flip along a random horizontal axis with probability 0.5
    stretch: float = 0.0  # each axis is scaled by a separate factor between 1 and 1 + stretch, or by the inverse

    def __post_init__(self) -> None:
        bounded = ("shift", "jitter", "tilt", "stretch")
        valid_scale = len(self.scale) == 2 and 0 < self.scale[0] <= self.scale[1] < math.inf
        check_settings(
            (self.rotate in get_args(RotateMode), "data.rotate", "none, up or any", f"'{self.rotate}'"),
            (valid_scale, "data.scale", "the minimum and maximum factor, such as 0.8,1.25", self.scale),
            *((0 <= vars(self)[name] < math.inf, f"data.{name}", "at least 0", vars(self)[name]) for name in bounded),
            (0 <= self.point_dropout < 1, "data.point_dropout", "at least 0 and below 1", self.point_dropout),
        )


def sample_kept_points(num_points: int, rng: np.random.Generator, augment: PointAugment) -> NDArray[np.int64]:
    """Sorted indices of the points kept by point dropout, at least one. Called before `augment_points`, because the labels
    of points need the same indices."""
    share = augment.point_dropout * rng.random()
    chances = rng.random(num_points)
    stay = np.flatnonzero(chances >= share)
    return stay if len(stay) else np.array([int(chances.argmax())][:num_points], dtype=np.int64)


def augment_points(
    x: NDArray[np.float32], rng: np.random.Generator, augment: PointAugment, normals_column: int | None = None
) -> NDArray[np.float32]:
    """(n, 3 + F) augmented rows; `normals_column` is the first column of the normals (`PointProcessor.normals_column`)."""
    form = _sample_rotation(rng, augment)
    factor = augment.scale[0] + (augment.scale[1] - augment.scale[0]) * rng.random()
    moved = augment.shift * (2 * rng.random(3) - 1)
    blur = augment.jitter * np.clip(rng.standard_normal((len(x), 3)), -MAX_DEVIATIONS, MAX_DEVIATIONS)
    form = _sample_deformation(rng, augment) @ form
    augmented = x.copy()
    if not np.array_equal(form, np.eye(3)):
        augmented[:, :3] = x[:, :3] @ form.T
        if normals_column is not None:  # stretching changes the length of normals; zero vectors stay 0
            columns = slice(normals_column, normals_column + 3)
            normals = x[:, columns] @ np.linalg.inv(form)
            augmented[:, columns] = normals / np.maximum(np.sqrt((normals**2).sum(1, keepdims=True)), 1e-12)
    if factor != 1 or moved.any() or augment.jitter:
        augmented[:, :3] = augmented[:, :3] * factor + moved + blur
    return augmented


def _sample_deformation(random: np.random.Generator, augment: PointAugment) -> NDArray[np.float64]:
    """(3, 3) matrix of tilt, flip and stretch."""
    axis, angle = random.standard_normal(3), np.clip(random.standard_normal(), -MAX_DEVIATIONS, MAX_DEVIATIONS)
    (mirrored, which), longer = random.random(2), 1 + augment.stretch * random.random(3)
    shorter = random.random(3) < 0.5
    form = np.eye(3)
    if augment.tilt:  # rotation about a random axis by Rodrigues' formula
        angle, (x, y, z) = math.radians(augment.tilt) * angle, axis / np.sqrt((axis**2).sum())
        cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
        form = form + math.sin(angle) * cross + (1 - math.cos(angle)) * (cross @ cross)
    if augment.flip and mirrored < 0.5:
        level = [number for number in range(3) if "xyz"[number] != augment.up]
        form[level[int(2 * which)]] *= -1
    return np.where(shorter, 1 / longer, longer)[:, None] * form if augment.stretch else form


def _sample_rotation(random: np.random.Generator, augment: PointAugment) -> NDArray[np.float64]:
    """(3, 3) random rotation of the mode `rotate`."""
    angle, four = 2 * math.pi * random.random(), random.standard_normal(4)
    if augment.rotate == "none":
        return np.eye(3)
    if augment.rotate == "up":
        return axis_rotation(angle, augment.up)
    # four normal variates, scaled to length 1, are a uniformly distributed quaternion and so a uniform rotation
    w, x, y, z = four / np.sqrt((four**2).sum())
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def axis_rotation(angle: float, axis: str) -> NDArray[np.float64]:
    """(3, 3) rotation by an angle about the x, y or z axis."""
    first, second = ((1, 2), (2, 0), (0, 1))["xyz".index(axis)]
    turned = np.eye(3)
    turned[first, first] = turned[second, second] = math.cos(angle)
    turned[second, first] = math.sin(angle)
    turned[first, second] = -turned[second, first]
    return turned
