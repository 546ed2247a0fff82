"""Corruption of generated point clouds: rotation, holes and noise."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

RotationMode = Literal["none", "up", "any"]
MAX_HOLES = 5
"""maximum number of holes"""

FloatArray = NDArray[np.float64]
FractionRange = tuple[float, float]
"""Minimum and maximum fraction of the points that a hole removes."""


def oversample_count(points: int, holes: int, fractions: FractionRange) -> int:
    """Number of points to sample, so that at least `points` are left after the holes."""
    many = points
    for _ in range(holes):
        many = math.ceil(many / (1 - fractions[1])) + 1
    return many


def indices_outside_holes(
    coordinates: FloatArray, points: int, holes: int, fractions: FractionRange, random: np.random.Generator
) -> NDArray[np.int64]:
    """Indices of `points` points outside the holes; a hole is a ball around a random point and removes its neighbors."""
    there = np.arange(len(coordinates))
    for where, size in random.random((MAX_HOLES, 2))[:holes]:
        middle = coordinates[there[int(where * len(there))]]
        away = int((fractions[0] + (fractions[1] - fractions[0]) * size) * len(there))
        distances = ((coordinates[there] - middle) ** 2).sum(axis=1)
        there = np.delete(there, np.argpartition(distances, away)[:away])
    return there[:points]


def random_rotation(mode: RotationMode, random: np.random.Generator) -> FloatArray:
    """(3, 3) rotation, uniform about the vertical axis or over all rotations. All modes use three random values."""
    one, two, three = random.random(3)
    angle = 2 * math.pi * one
    cos, sin = math.cos(angle), math.sin(angle)
    about = np.array([[cos, -sin, 0.0], [sin, cos, 0.0], [0.0, 0.0, 1.0]])
    if mode == "none":
        return np.eye(3)
    if mode == "up":
        return about
    # Arvo's method: a rotation by 180° about `aside` maps the vertical axis to a uniform point of the sphere
    aside = np.array([math.cos(2 * math.pi * two), math.sin(2 * math.pi * two), 0.0]) * math.sqrt(three)
    aside[2] = math.sqrt(1 - three)
    return (2 * np.outer(aside, aside) - np.eye(3)) @ about


def add_noise(coordinates: FloatArray, noise: float, random: np.random.Generator) -> FloatArray:
    """Coordinates with Gaussian noise, by the Box–Muller transform, which is the same on every machine."""
    if not noise:
        return coordinates
    size, angle = random.random((2, *coordinates.shape))
    return coordinates + noise * np.sqrt(-2 * np.log1p(-size)) * np.cos(2 * math.pi * angle)
