"""Bodies of triangles, from which solids and furniture are built: boxes, what a turned profile sweeps, prisms and pyramids."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SEGMENTS = 48
"""flat stripes that a round body is made of; it is nowhere more than 0.3 % of its radius off the round one"""

Vector = Sequence[float] | NDArray[Any]


class Mesh(NamedTuple):
    """A body, or a part of one."""

    vertices: NDArray[np.float64]
    """(V, 3)"""
    faces: NDArray[np.int64]
    """(T, 3)"""

    def scale(self, factors: Vector | float) -> Mesh:
        return Mesh(self.vertices * np.asarray(factors, dtype=np.float64), self.faces)

    def translate(self, offset: Vector) -> Mesh:
        return Mesh(self.vertices + np.asarray(offset, dtype=np.float64), self.faces)

    def rotate_z(self, angle: float) -> Mesh:
        """About the axis that points upwards."""
        cos, sin = math.cos(angle), math.sin(angle)
        return Mesh(self.vertices @ np.array([[cos, sin, 0.0], [-sin, cos, 0.0], [0.0, 0.0, 1.0]]), self.faces)


def merge_meshes(meshes: Sequence[Mesh]) -> Mesh:
    """Several as one."""
    before = np.cumsum([0, *(len(form.vertices) for form in meshes[:-1])])
    return Mesh(
        np.concatenate([form.vertices for form in meshes]),
        np.concatenate([form.faces + first for form, first in zip(meshes, before, strict=True)]),
    )


def box(size: Vector) -> Mesh:
    """About the middle of its base, which stands at 0."""
    corners = np.array([[x, y, z] for z in (0.0, 1.0) for y in (-0.5, 0.5) for x in (-0.5, 0.5)])
    quads = ((0, 2, 3, 1), (4, 5, 7, 6), (0, 1, 5, 4), (2, 6, 7, 3), (0, 4, 6, 2), (1, 3, 7, 5))
    faces = [(a, b, c) for a, *rest in quads for b, c in itertools.pairwise(rest)]
    return Mesh(corners, np.array(faces)).scale(size)


def open_box(size: Vector) -> Mesh:
    """A box without its ends, which are hidden in what stands on it and in the floor."""
    whole = box(size)
    return Mesh(whole.vertices, whole.faces[4:])


def rectangle(origin: Vector, edge_u: Vector, edge_v: Vector) -> Mesh:
    """From a corner, by two of its edges."""
    a, u, v = (np.asarray(one, dtype=np.float64) for one in (origin, edge_u, edge_v))
    return Mesh(np.stack([a, a + u, a + u + v, a + v]), np.array([[0, 1, 2], [0, 2, 3]]))


def revolve(profile: Sequence[tuple[float, float]], segments: int = SEGMENTS) -> Mesh:
    """What points (radius, height) and the lines between them sweep about the axis that points upwards; a profile that
    rises has its outside outwards."""
    angles = 2 * math.pi / segments * np.arange(segments)
    radii, heights = np.array(profile, dtype=np.float64).T
    ring = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    corners = np.empty((len(radii), segments, 3))
    corners[:, :, :2] = radii[:, None, None] * ring
    corners[:, :, 2] = heights[:, None]
    here = np.arange((len(radii) - 1) * segments).reshape(-1, segments)
    beside, above = np.roll(here, -1, axis=1), here + segments
    over = np.roll(above, -1, axis=1)
    faces = np.stack([np.stack([here, beside, over], -1), np.stack([here, over, above], -1)])
    return Mesh(corners.reshape(-1, 3), faces.reshape(-1, 3))


def extrude(outline: Sequence[tuple[float, float]], height: float) -> Mesh:
    """A prism on an outline that runs against the clock; all of it must be seen from its first corner."""
    many = len(outline)
    flat = np.array(outline, dtype=np.float64)
    corners = np.concatenate([np.c_[flat, np.zeros(many)], np.c_[flat, np.full(many, height)]])
    fan = np.array([(0, b, b + 1) for b in range(1, many - 1)])
    here = np.arange(many)
    beside = np.roll(here, -1)
    sides = np.concatenate(
        [np.stack([here, beside, beside + many], 1), np.stack([here, beside + many, here + many], 1)]
    )
    return Mesh(corners, np.concatenate([fan[:, ::-1], fan + many, sides]))


def pyramid(outline: Sequence[tuple[float, float]], height: float) -> Mesh:
    """A pyramid over an outline, its tip above 0, 0."""
    many = len(outline)
    flat = np.array(outline, dtype=np.float64)
    corners = np.concatenate([np.c_[flat, np.zeros(many)], [[0.0, 0.0, height]]])
    fan = np.array([(0, b + 1, b) for b in range(1, many - 1)])
    here = np.arange(many)
    return Mesh(corners, np.concatenate([fan, np.stack([here, np.roll(here, -1), np.full(many, many)], 1)]))


def arc(radius: float, start_angle: float, end_angle: float, steps: int = 16) -> list[tuple[float, float]]:
    """Points of a profile on a circle about 0, from one angle to another, from the horizon upwards."""
    angles = start_angle + (end_angle - start_angle) * np.arange(steps + 1) / steps
    return [(max(radius * math.cos(angle), 0.0), radius * math.sin(angle)) for angle in angles]
