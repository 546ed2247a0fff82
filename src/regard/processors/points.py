"""Point cloud preprocessing: point clouds -> rows of coordinates and features.

A row has x, y, z in the coordinate frame of the model, then red, green and blue in [0, 1], then the normal. `PointProcessor`
defines the number of points, the frame, the density and the features, and is saved as `points.json`.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from regard.config import as_dict, from_dict
from regard.errors import DataError, SettingError
from regard.files import write_json
from regard.processors.voxel_grid import voxel_downsample

FILE = "points.json"
CoordinateFrame = Literal["unit_sphere", "center", "floor"]
Axis = Literal["x", "y", "z"]
FEATURES = ("colors", "normals")
"""Possible features of a point, in the order of the columns."""
TTA_FOLDS = 10
"""For several views of a small point cloud, each view leaves out 1 / TTA_FOLDS of the points, different in each view."""

PointRows = NDArray[np.float32]
Indices = NDArray[np.int64]


class PointCloudLike(Protocol):
    """Point cloud with optional colors and normals."""

    @property
    def coordinates(self) -> NDArray[np.float32]: ...
    @property
    def colors(self) -> NDArray[np.uint8] | None: ...
    @property
    def normals(self) -> NDArray[np.float32] | None: ...


@dataclass(frozen=True)
class PointProcessor:
    count: int = 1024
    """maximum number of points sampled from a point cloud; 0: all points"""
    frame: CoordinateFrame = "unit_sphere"
    """unit_sphere: centered at the mean, maximum distance 1; center: centered at the mean, original scale; floor: centered
    at the mean horizontally, lowest point at 0"""
    voxel: float = 0.0
    """voxel size of the downsampling, in the unit of the file; 0: no downsampling"""
    block: float = 0.0
    """side of the blocks of a large scene; 0: no blocks"""
    features: tuple[str, ...] = ()
    """features in addition to the coordinates: colors, normals; 0 if a file has none"""
    up: Axis = "z"
    """vertical axis, for frame=floor and for blocks"""

    def __post_init__(self) -> None:
        if self.count < 0:
            raise SettingError(f"data.num_points must be at least 1, or 0 for all points, got {self.count}.")
        for name in ("voxel", "block"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise SettingError(f"data.{name}_size must be at least 0, got {getattr(self, name)}.")
        if self.frame not in ("unit_sphere", "center", "floor"):
            raise SettingError(f"data.point_norm must be unit_sphere, center or floor, got '{self.frame}'.")
        if self.up not in ("x", "y", "z"):
            raise SettingError(f"data.up_axis must be x, y or z, got '{self.up}'.")
        if self.block and self.frame == "unit_sphere":
            raise SettingError(
                "data.block_size requires data.point_norm=floor or center, because blocks keep the scale of the scene."
            )
        if self.block and self.block < self.voxel:
            raise SettingError(f"data.block_size={self.block} must be at least data.voxel_size={self.voxel}.")
        known = tuple(name for name in FEATURES if name in self.features)
        if known != tuple(self.features):
            raise SettingError(
                f"data.point_features must be {' or '.join(FEATURES)}, or both in this order, "
                f"got {', '.join(self.features)}."
            )

    # -- files

    @staticmethod
    def exists(folder: str | os.PathLike[str]) -> bool:
        return (Path(folder) / FILE).is_file()

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> PointProcessor:
        path = Path(folder) / FILE
        try:
            said = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise DataError(f"{FILE} not found, so point clouds cannot be preprocessed.", Path(folder)) from error
        except (OSError, ValueError) as error:
            raise DataError(f"cannot be read ({error}).", path) from error
        if not isinstance(said, dict):
            raise DataError("expected a JSON object.", path)
        try:
            return from_dict(cls, said)
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

    def prepare(self, cloud: PointCloudLike, rng: np.random.Generator | None = None) -> tuple[PointRows, Indices]:
        """(n, width) rows, and (n,) their indices in the point cloud.

        Without `rng` the result is deterministic: the first point of each voxel, the block around the center of the scene,
        and the first `count` points of a fixed shuffle."""
        kept = self._candidates(cloud, rng)
        kept = kept[sample_indices(len(kept), self.count, rng)]
        return self.normalize(self.rows(cloud, kept)), kept

    def prepare_views(self, cloud: PointCloudLike, min_views: int, max_views: int) -> list[PointRows]:
        """Deterministic samples that together contain every point, at least `min_views` and at most `max_views`. The first
        equals the result of `prepare`, unless a point cloud of at most `count` points gets several views."""
        kept = self._candidates(cloud, None)
        return [
            self.normalize(self.rows(cloud, kept[some]))
            for some in sample_rounds(len(kept), self.count, min_views, max_views)
        ]

    def _candidates(self, cloud: PointCloudLike, random: np.random.Generator | None) -> Indices:
        kept, _ = voxel_downsample(cloud.coordinates, self.voxel, random)
        if self.block and len(kept):
            kept = kept[self._block_indices(cloud.coordinates[kept], random)]
        return kept

    def rows(self, cloud: PointCloudLike, indices: Indices | None = None) -> PointRows:
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
        places = x[:, :3].astype(np.float64)
        places -= _frame_origin(places, self)
        if self.frame == "unit_sphere":
            places /= np.sqrt((places**2).sum(axis=1).max()) or 1.0  # all distances are 0 for identical points
        return np.concatenate([places.astype(np.float32), x[:, 3:]], axis=1)

    def without_limit(self) -> PointProcessor:
        """Copy without a limit on the number of points."""
        return replace(self, count=0)

    def _block_indices(self, places: NDArray[np.float32], random: np.random.Generator | None) -> Indices:
        """Indices of the points in a block around a random point, or without `random` around the point nearest to the mean."""
        flat = np.delete(places, self.up_axis, axis=1)
        if random is None:
            middle = flat[((flat - flat.mean(axis=0)) ** 2).sum(axis=1).argmin()]
        else:
            middle = flat[int(random.integers(len(flat)))]
        return np.flatnonzero((np.abs(flat - middle) <= self.block / 2).all(axis=1))


def sample_indices(total: int, count: int, rng: np.random.Generator | None = None) -> Indices:
    """At most `count` indices below `total` (0: all), random or, without `rng`, the first of a fixed shuffle."""
    if rng is None or not count or total <= count:
        return sample_rounds(total, count, 1, 1)[0]
    return rng.choice(total, count, replace=False)


def sample_rounds(total: int, count: int, min_rounds: int, max_rounds: int) -> list[Indices]:
    """Consecutive windows of `count` indices in a fixed shuffle, until every index was used, but within `min_rounds` and
    `max_rounds`; further rounds use new shuffles. If all indices fit one of several rounds, each round omits 1 / TTA_FOLDS."""
    if not count or total <= count:
        if min_rounds == 1 or total < 2:
            return [np.arange(total)]
        count, each = total - max(total // TTA_FOLDS, 1), TTA_FOLDS
    else:
        each = -(-total // count)  # rounds until every index was used
    random, found = np.random.default_rng(total), list[Indices]()
    for turn in range(min(max(-(-total // count), min_rounds), max_rounds)):
        if turn % each == 0:
            order = random.permutation(total)
        first = turn % each * count
        found.append(order.take(np.arange(first, first + count), mode="wrap"))
    return found


def _frame_origin(places: NDArray[np.float64], points: PointProcessor) -> NDArray[Any]:
    middle: NDArray[Any] = places.mean(axis=0)
    if points.frame == "floor":
        middle[points.up_axis] = places[:, points.up_axis].min()
    return middle
