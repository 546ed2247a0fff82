"""What happens to clouds that are made: they are turned, some of them is missing, and every point is a little off."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Turn = Literal["none", "up", "any"]
MOST = 5
"""holes"""

Places = NDArray[np.float64]
Shares = tuple[float, float]
"""The least and the largest share of the points that one hole takes away."""


def needed(points: int, holes: int, shares: Shares) -> int:
    """How many points are drawn, so that so many are left whatever the holes take."""
    many = points
    for _ in range(holes):
        many = math.ceil(many / (1 - shares[1])) + 1
    return many


def left(places: Places, points: int, holes: int, shares: Shares, random: np.random.Generator) -> NDArray[np.int64]:
    """Which points are left where each hole, a ball about one of them, takes some away; so many of those."""
    there = np.arange(len(places))
    for where, size in random.random((MOST, 2))[:holes]:
        middle = places[there[int(where * len(there))]]
        away = int((shares[0] + (shares[1] - shares[0]) * size) * len(there))
        distances = ((places[there] - middle) ** 2).sum(axis=1)
        there = np.delete(there, np.argpartition(distances, away)[:away])
    return there[:points]


def rotation(turn: Turn, random: np.random.Generator) -> Places:
    """(3, 3), every rotation about the axis upwards, or every one at all, as likely. The same chance is used for each."""
    one, two, three = random.random(3)
    angle = 2 * math.pi * one
    cos, sin = math.cos(angle), math.sin(angle)
    about = np.array([[cos, -sin, 0.0], [sin, cos, 0.0], [0.0, 0.0, 1.0]])
    if turn == "none":
        return np.eye(3)
    if turn == "up":
        return about
    # what points upwards goes anywhere on the sphere (Arvo): a reflection of the rotation about it
    aside = np.array([math.cos(2 * math.pi * two), math.sin(2 * math.pi * two), 0.0]) * math.sqrt(three)
    aside[2] = math.sqrt(1 - three)
    return (2 * np.outer(aside, aside) - np.eye(3)) @ about


def blurred(places: Places, noise: float, random: np.random.Generator) -> Places:
    """Every point moved by a normal number along each axis (Box and Muller: the same on every machine)."""
    if not noise:
        return places
    size, angle = random.random((2, *places.shape))
    return places + noise * np.sqrt(-2 * np.log1p(-size)) * np.cos(2 * math.pi * angle)
