"""Clouds -> rows of points as a model was taught to see them.

A row is a place in the model's frame and what is known of the point beside it: x, y, z, then red, green and blue from 0 to 1,
then the normal. `Points` says how many points are taken, in which frame, how dense, and what stands beside them. It is kept in
a `points.json`.
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
"""What may stand beside a place, in this order."""
TTA_FOLDS = 10
"""Several looks at a small cloud leave out one point in so many, each look others."""

PointRows = NDArray[np.float32]
Indices = NDArray[np.int64]


class PointCloudLike(Protocol):
    """What is read of a cloud: points, and what is known of each."""

    @property
    def coordinates(self) -> NDArray[np.float32]: ...
    @property
    def colors(self) -> NDArray[np.uint8] | None: ...
    @property
    def normals(self) -> NDArray[np.float32] | None: ...


@dataclass(frozen=True)
class PointProcessor:
    count: int = 1024
    """points that are drawn of each cloud; of a smaller one all are taken; 0: always all"""
    frame: CoordinateFrame = "unit_sphere"
    """unit: about the mean, the farthest point at distance 1; centred: about the mean, metres stay metres; floor: about the
    mean in the plane, and the lowest point at 0"""
    voxel: float = 0.0
    """edge of the cells that keep one point each, in the unit of the file; 0: all are kept"""
    block: float = 0.0
    """side of the columns that a large scene is cut into; 0: a cloud stays whole"""
    features: tuple[str, ...] = ()
    """what the model reads beside the places: colours, normals; 0 where a file has none"""
    up: Axis = "z"
    """the axis that points upwards, for the frame `floor` and for columns"""

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

    # -- clouds

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return 3 + 3 * len(self.features)

    @property
    def normals_column(self) -> int | None:
        """The column where normals begin, which turn with the places; None: there are none."""
        return 3 + 3 * self.features.index("normals") if "normals" in self.features else None

    @property
    def up_axis(self) -> int:
        """The column of the axis that points upwards."""
        return "xyz".index(self.up)

    def prepare(self, cloud: PointCloudLike, rng: np.random.Generator | None = None) -> tuple[PointRows, Indices]:
        """(n, width) rows, and (n,) which points of the cloud they are.

        Without chance this is a pure function of the cloud: of each cell the first point is kept, of a scene with blocks the
        column about its middle, and of more than `count` points those that a fixed shuffle puts first."""
        kept = self._candidates(cloud, rng)
        kept = kept[sample_indices(len(kept), self.count, rng)]
        return self.normalize(self.rows(cloud, kept)), kept

    def prepare_views(self, cloud: PointCloudLike, min_views: int, max_views: int) -> list[PointRows]:
        """Several such, without chance, until each point was drawn once, so many at least and at most; the first of one is that
        of `prepare`."""
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
        """(n, width) these points of a cloud, or all, where they are."""
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
        """The same rows with their places in the model's frame."""
        if not len(x):
            return x
        places = x[:, :3].astype(np.float64)
        places -= _frame_origin(places, self)
        if self.frame == "unit_sphere":
            places /= np.sqrt((places**2).sum(axis=1).max()) or 1.0  # one point, or all in one place, stays there
        return np.concatenate([places.astype(np.float32), x[:, 3:]], axis=1)

    def without_limit(self) -> PointProcessor:
        """The same for all points of a cloud."""
        return replace(self, count=0)

    def _block_indices(self, places: NDArray[np.float32], random: np.random.Generator | None) -> Indices:
        """The points of one column, about one of them that chance chooses, else about the one nearest to the middle."""
        flat = np.delete(places, self.up_axis, axis=1)
        if random is None:
            middle = flat[((flat - flat.mean(axis=0)) ** 2).sum(axis=1).argmin()]
        else:
            middle = flat[int(random.integers(len(flat)))]
        return np.flatnonzero((np.abs(flat - middle) <= self.block / 2).all(axis=1))


def sample_indices(total: int, count: int, rng: np.random.Generator | None = None) -> Indices:
    """Which of so many are taken, `count` at most (0: all); without chance those that a fixed shuffle puts first."""
    if rng is None or not count or total <= count:
        return sample_rounds(total, count, 1, 1)[0]
    return rng.choice(total, count, replace=False)


def sample_rounds(total: int, count: int, min_rounds: int, max_rounds: int) -> list[Indices]:
    """So many in a fixed shuffle that goes round, `count` at a time until each has come, `least` times or more, up to `most`;
    then comes another shuffle. Where one time would be enough and several are wanted, each leaves out another tenth."""
    if not count or total <= count:
        if min_rounds == 1 or total < 2:
            return [np.arange(total)]
        count, each = total - max(total // TTA_FOLDS, 1), TTA_FOLDS
    else:
        each = -(-total // count)  # times until every one has come
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
