"""Point cloud augmentation for training: rotation, flip, stretch, scale, shift, jitter and point dropout.

All functions work on the rows of `PointProcessor` and are deterministic for a random generator. Disabling an augmentation
other than point dropout leaves the random values of the others unchanged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from regard.errors import SettingError

RotateMode = Literal["none", "up", "any"]

MAX_DEVIATIONS = 3.0
"""clipping of the jitter and of the tilt, in standard deviations, to avoid outliers"""


@dataclass(frozen=True)
class PointAugment:
    """Maximum strength of each augmentation; `NO_POINT_AUGMENT` leaves point clouds unchanged."""

    rotate: RotateMode = "none"
    """none; up: about the vertical axis; any: uniform over all 3D rotations"""
    scale: tuple[float, ...] = (1.0, 1.0)
    """minimum and maximum scale factor"""
    shift: float = 0.0
    """maximum shift along each axis, in the unit of the coordinate frame"""
    jitter: float = 0.0
    """standard deviation of the noise per point, in the unit of the normalized coordinates"""
    point_dropout: float = 0.0
    """maximum fraction of dropped points"""
    up: Literal["x", "y", "z"] = "z"
    tilt: float = 0.0
    """standard deviation of an additional rotation about a random axis, in degrees"""
    flip: bool = False
    """flip along a random horizontal axis with probability 0.5"""
    stretch: float = 0.0
    """each axis is scaled by a separate factor between 1 and 1 + stretch, or by the inverse"""

    def __post_init__(self) -> None:
        if self.rotate not in ("none", "up", "any"):
            raise SettingError(f"data.rotate must be none, up or any, got '{self.rotate}'.")
        if len(self.scale) != 2 or not 0 < self.scale[0] <= self.scale[1] < math.inf:
            raise SettingError(
                f"data.scale must be the minimum and maximum factor, such as 0.8,1.25, got {self.scale}."
            )
        for name in ("shift", "jitter", "tilt", "stretch"):
            if not 0 <= getattr(self, name) < math.inf:
                raise SettingError(f"data.{name} must be at least 0, got {getattr(self, name)}.")
        if not 0 <= self.point_dropout < 1:
            raise SettingError(f"data.point_dropout must be at least 0 and below 1, got {self.point_dropout}.")


NO_POINT_AUGMENT = PointAugment()


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
    turned = _sample_rotation(rng, augment)
    factor = augment.scale[0] + (augment.scale[1] - augment.scale[0]) * rng.random()
    moved = augment.shift * (2 * rng.random(3) - 1)
    blur = augment.jitter * np.clip(rng.standard_normal((len(x), 3)), -MAX_DEVIATIONS, MAX_DEVIATIONS)
    form = _sample_deformation(rng, augment) @ turned
    found = x.copy()
    if not np.array_equal(form, np.eye(3)):
        found[:, :3] = x[:, :3] @ form.T
        if normals_column is not None:
            found[:, normals_column : normals_column + 3] = _unit_vectors(
                x[:, normals_column : normals_column + 3] @ np.linalg.inv(form)
            )
    if factor != 1 or moved.any() or augment.jitter:
        found[:, :3] = found[:, :3] * factor + moved + blur
    return found


def _sample_deformation(random: np.random.Generator, shaking: PointAugment) -> NDArray[np.float64]:
    """(3, 3) matrix of tilt, flip and stretch."""
    axis, angle = random.standard_normal(3), np.clip(random.standard_normal(), -MAX_DEVIATIONS, MAX_DEVIATIONS)
    (mirrored, which), longer = random.random(2), 1 + shaking.stretch * random.random(3)
    shorter = random.random(3) < 0.5
    form = rotation_matrix(axis, math.radians(shaking.tilt) * angle) if shaking.tilt else np.eye(3)
    if shaking.flip and mirrored < 0.5:
        level = [number for number in range(3) if "xyz"[number] != shaking.up]
        form[level[int(2 * which)]] *= -1
    return np.where(shorter, 1 / longer, longer)[:, None] * form if shaking.stretch else form


def _unit_vectors(normals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Normals scaled to length 1, because stretching changes the length; zero vectors stay 0."""
    return normals / np.maximum(np.sqrt((normals**2).sum(1, keepdims=True)), 1e-12)


def _sample_rotation(random: np.random.Generator, shaking: PointAugment) -> NDArray[np.float64]:
    """(3, 3) random rotation of the mode `rotate`."""
    angle, four = 2 * math.pi * random.random(), random.standard_normal(4)
    if shaking.rotate == "none":
        return np.eye(3)
    if shaking.rotate == "up":
        return axis_rotation(angle, shaking.up)
    # four normal variates, scaled to length 1, are a uniformly distributed quaternion and so a uniform rotation
    w, x, y, z = four / np.sqrt((four**2).sum())
    return np.array([
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ])  # fmt: skip


def axis_rotation(angle: float, axis: str) -> NDArray[np.float64]:
    """(3, 3) rotation by an angle about the x, y or z axis."""
    first, second = ((1, 2), (2, 0), (0, 1))["xyz".index(axis)]
    turned = np.eye(3)
    turned[first, first] = turned[second, second] = math.cos(angle)
    turned[second, first] = math.sin(angle)
    turned[first, second] = -turned[second, first]
    return turned


def rotation_matrix(axis: NDArray[np.float64], angle: float) -> NDArray[np.float64]:
    """(3, 3) rotation by an angle about any axis (Rodrigues' formula)."""
    x, y, z = axis / np.sqrt((axis**2).sum())
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + math.sin(angle) * cross + (1 - math.cos(angle)) * (cross @ cross)
