"""What happens to clouds that are made: they are turned, some of them is missing, and every point is a little off."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

RotationMode = Literal["none", "up", "any"]
MAX_HOLES = 5
"""holes"""

FloatArray = NDArray[np.float64]
FractionRange = tuple[float, float]
"""The least and the largest share of the points that one hole takes away."""


def oversample_count(points: int, holes: int, fractions: FractionRange) -> int:
    """How many points are drawn, so that so many are left whatever the holes take."""
    many = points
    for _ in range(holes):
        many = math.ceil(many / (1 - fractions[1])) + 1
    return many


def indices_outside_holes(
    coordinates: FloatArray, points: int, holes: int, fractions: FractionRange, random: np.random.Generator
) -> NDArray[np.int64]:
    """Which points are left where each hole, a ball about one of them, takes some away; so many of those."""
    there = np.arange(len(coordinates))
    for where, size in random.random((MAX_HOLES, 2))[:holes]:
        middle = coordinates[there[int(where * len(there))]]
        away = int((fractions[0] + (fractions[1] - fractions[0]) * size) * len(there))
        distances = ((coordinates[there] - middle) ** 2).sum(axis=1)
        there = np.delete(there, np.argpartition(distances, away)[:away])
    return there[:points]


def random_rotation(mode: RotationMode, random: np.random.Generator) -> FloatArray:
    """(3, 3), every rotation about the axis upwards, or every one at all, as likely. The same chance is used for each."""
    one, two, three = random.random(3)
    angle = 2 * math.pi * one
    cos, sin = math.cos(angle), math.sin(angle)
    about = np.array([[cos, -sin, 0.0], [sin, cos, 0.0], [0.0, 0.0, 1.0]])
    if mode == "none":
        return np.eye(3)
    if mode == "up":
        return about
    # what points upwards goes anywhere on the sphere (Arvo): a reflection of the rotation about it
    aside = np.array([math.cos(2 * math.pi * two), math.sin(2 * math.pi * two), 0.0]) * math.sqrt(three)
    aside[2] = math.sqrt(1 - three)
    return (2 * np.outer(aside, aside) - np.eye(3)) @ about


def add_noise(coordinates: FloatArray, noise: float, random: np.random.Generator) -> FloatArray:
    """Every point moved by a normal number along each axis (Box and Muller: the same on every machine)."""
    if not noise:
        return coordinates
    size, angle = random.random((2, *coordinates.shape))
    return coordinates + noise * np.sqrt(-2 * np.log1p(-size)) * np.cos(2 * math.pi * angle)
