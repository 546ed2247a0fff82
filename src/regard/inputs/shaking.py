"""Clouds to learn from are turned, scaled, moved, blurred and thinned, each time otherwise.

All of it happens on prepared rows (see `Points`), and is a pure function of the generator. Whatever `Shaking` says, as much
chance is used: with one thing switched off the others fall out as before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from regard.errors import SettingError

Turn = Literal["none", "up", "any"]

FARTHEST = 3.0
"""deviations beyond which no point is jittered, so that none flies away"""


@dataclass(frozen=True)
class Shaking:
    """How much clouds are changed, at most; `STILL` leaves them as they are."""

    turn: Turn = "none"
    """none; up: about the axis that points upwards; any: about any axis, every rotation as likely"""
    scale: tuple[float, ...] = (1.0, 1.0)
    """the least and the largest factor that a cloud is scaled by"""
    shift: float = 0.0
    """it is moved by up to this along each axis, in the unit of the frame"""
    jitter: float = 0.0
    """the deviation by which each point is moved by itself, in the unit of the frame"""
    drop: float = 0.0
    """up to this share of its points is left out"""
    up: Literal["x", "y", "z"] = "z"

    def __post_init__(self) -> None:
        if self.turn not in ("none", "up", "any"):
            raise SettingError(f"data.turn is none, up or any, not '{self.turn}'.")
        if len(self.scale) != 2 or not 0 < self.scale[0] <= self.scale[1] < math.inf:
            raise SettingError(f"data.scale is the least and the largest factor, as 0.8,1.25, not {self.scale}.")
        for name in ("shift", "jitter"):
            if not 0 <= getattr(self, name) < math.inf:
                raise SettingError(f"{name} must be at least 0, not {getattr(self, name)}.")
        if not 0 <= self.drop < 1:
            raise SettingError(f"data.drop must be at least 0 and below 1, not {self.drop}.")

    @property
    def nothing(self) -> bool:
        """Whether clouds stay as they are."""
        return self.turn == "none" and tuple(self.scale) == (1.0, 1.0) and not any((self.shift, self.jitter, self.drop))


STILL = Shaking()


def kept(many: int, random: np.random.Generator, shaking: Shaking) -> NDArray[np.int64]:
    """Which of so many points stay, in their order; at least one does. Labels of points go the same way, so this is asked
    before `shake`."""
    share = shaking.drop * random.random()
    chances = random.random(many)
    stay = np.flatnonzero(chances >= share)
    return stay if len(stay) else np.array([int(chances.argmax())][:many], dtype=np.int64)


def shake(
    x: NDArray[np.float32], random: np.random.Generator, shaking: Shaking, normals: int | None = None
) -> NDArray[np.float32]:
    """(n, 3 + F) rows as they are seen this time; `normals` is the column where normals begin (`Points.normals`)."""
    turned = _rotation(random, shaking)
    factor = shaking.scale[0] + (shaking.scale[1] - shaking.scale[0]) * random.random()
    moved = shaking.shift * (2 * random.random(3) - 1)
    blur = shaking.jitter * np.clip(random.standard_normal((len(x), 3)), -FARTHEST, FARTHEST)
    found = x.copy()
    if turned is not None:
        found[:, :3] = x[:, :3] @ turned.T
        if normals is not None:
            found[:, normals : normals + 3] = x[:, normals : normals + 3] @ turned.T
    if factor != 1 or moved.any() or shaking.jitter:
        found[:, :3] = found[:, :3] * factor + moved + blur
    return found


def _rotation(random: np.random.Generator, shaking: Shaking) -> NDArray[np.float64] | None:
    """(3, 3), or None where nothing is turned."""
    angle, four = 2 * math.pi * random.random(), random.standard_normal(4)
    if shaking.turn == "none":
        return None
    if shaking.turn == "up":
        return about(angle, shaking.up)
    # a quaternion of four normal numbers is as likely in every direction, and so is its rotation
    w, x, y, z = four / np.sqrt((four**2).sum())
    return np.array([
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ])  # fmt: skip


def about(angle: float, axis: str) -> NDArray[np.float64]:
    """(3, 3) the rotation by an angle about one of the axes."""
    first, second = ((1, 2), (2, 0), (0, 1))["xyz".index(axis)]
    turned = np.eye(3)
    turned[first, first] = turned[second, second] = math.cos(angle)
    turned[second, first] = math.sin(angle)
    turned[first, second] = -turned[second, first]
    return turned
