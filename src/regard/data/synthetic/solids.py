"""Generated solids: triangle meshes, and their point clouds with rotation, holes and noise; rooms use the same meshes.

`solids`, for classification, has ten classes of varying proportions; sample n of a split has class n modulo ten. Proportions,
points, rotation, holes and noise come from separate random generators, seeded by split and index: a solid does not depend on
other samples, and a change of the noise keeps its shape. The samples of `solids-1` must never change (a test has checksums);
other solids would be `solids-2`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.points.cloud import PointCloud, interpolate, sample_triangles, triangle_areas
from regard.data.synthetic import SPLITS

SEGMENTS = 48  # segments of a round mesh; the deviation from the exact surface is below 0.3 % of the radius

Vector = Sequence[float] | NDArray[Any]
UniformFn = Callable[[float, float], float]  # Uniform random number between two limits.


class Mesh(NamedTuple):
    """Triangle mesh."""

    vertices: NDArray[np.float64]  # (V, 3)
    faces: NDArray[np.int64]  # (T, 3)

    def scale(self, factors: Vector | float) -> Mesh:
        return Mesh(self.vertices * np.asarray(factors, dtype=np.float64), self.faces)

    def translate(self, offset: Vector) -> Mesh:
        return Mesh(self.vertices + np.asarray(offset, dtype=np.float64), self.faces)

    def rotate_z(self, angle: float) -> Mesh:
        """Mesh rotated about the vertical axis."""
        cos, sin = math.cos(angle), math.sin(angle)
        return Mesh(self.vertices @ np.array([[cos, sin, 0.0], [-sin, cos, 0.0], [0.0, 0.0, 1.0]]), self.faces)


def merge_meshes(meshes: Sequence[Mesh]) -> Mesh:
    """All meshes as a single mesh."""
    before = np.cumsum([0, *(len(form.vertices) for form in meshes[:-1])])
    return Mesh(
        np.concatenate([form.vertices for form in meshes]),
        np.concatenate([form.faces + first for form, first in zip(meshes, before, strict=True)]),
    )


def box(size: Vector) -> Mesh:
    """Box centered at x = y = 0, with the base at z = 0."""
    corners = np.array([[x, y, z] for z in (0.0, 1.0) for y in (-0.5, 0.5) for x in (-0.5, 0.5)])
    quads = ((0, 2, 3, 1), (4, 5, 7, 6), (0, 1, 5, 4), (2, 6, 7, 3), (0, 4, 6, 2), (1, 3, 7, 5))
    faces = [(a, b, c) for a, *rest in quads for b, c in itertools.pairwise(rest)]
    return Mesh(corners, np.array(faces)).scale(size)


def open_box(size: Vector) -> Mesh:
    """Box without top and bottom, which are hidden by the object on top and by the floor."""
    whole = box(size)
    return Mesh(whole.vertices, whole.faces[4:])


def rectangle(origin: Vector, edge_u: Vector, edge_v: Vector) -> Mesh:
    """Rectangle from a corner and two edge vectors."""
    a, u, v = (np.asarray(one, dtype=np.float64) for one in (origin, edge_u, edge_v))
    return Mesh(np.stack([a, a + u, a + u + v, a + v]), np.array([[0, 1, 2], [0, 2, 3]]))


def revolve(profile: Sequence[tuple[float, float]], segments: int = SEGMENTS) -> Mesh:
    """Surface of revolution about the vertical axis, from a profile of (radius, height) points. Normals of a rising profile
    point outwards."""
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
    """Prism over a counterclockwise outline. The whole outline must be visible from the first vertex (triangle fan)."""
    many = len(outline)
    corners = np.concatenate([np.c_[outline, np.zeros(many)], np.c_[outline, np.full(many, height)]])
    fan = np.array([(0, b, b + 1) for b in range(1, many - 1)])
    here = np.arange(many)
    beside = np.roll(here, -1)
    sides = np.concatenate(
        [np.stack([here, beside, beside + many], 1), np.stack([here, beside + many, here + many], 1)]
    )
    return Mesh(corners, np.concatenate([fan[:, ::-1], fan + many, sides]))


def pyramid(outline: Sequence[tuple[float, float]], height: float) -> Mesh:
    """Pyramid over an outline, with the tip above (0, 0)."""
    many = len(outline)
    corners = np.concatenate([np.c_[outline, np.zeros(many)], [[0.0, 0.0, height]]])
    fan = np.array([(0, b + 1, b) for b in range(1, many - 1)])
    here = np.arange(many)
    return Mesh(corners, np.concatenate([fan, np.stack([here, np.roll(here, -1), np.full(many, many)], 1)]))


def arc(radius: float, start_angle: float, end_angle: float, steps: int = 16) -> list[tuple[float, float]]:
    """Profile points (radius, height) on a circle around 0; angles are measured upwards from the horizontal."""
    angles = start_angle + (end_angle - start_angle) * np.arange(steps + 1) / steps
    return [(max(radius * math.cos(angle), 0.0), radius * math.sin(angle)) for angle in angles]


RotationMode = Literal["none", "up", "any"]
MAX_HOLES = 5


def random_generator(seed: int, split: str, index: int, use: int) -> np.random.Generator:
    """Generator for one use in a sample, such as the noise."""
    return np.random.Generator(np.random.PCG64([seed, SPLITS.index(split), index, use]))


def uniform_numbers(random: np.random.Generator) -> UniformFn:
    return lambda low, high: low + (high - low) * random.random()


def scan_mesh(
    mesh: Mesh,
    density: NDArray[np.float64] | float,
    points: int,
    noise: float,
    holes: tuple[int, tuple[float, float]],
    rotation_mode: RotationMode,
    generator: Callable[[int], np.random.Generator],
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]:
    """Points sampled by area times `density` of the faces, without the points in the holes, rotated and with Gaussian noise:
    coordinates, normals, and the face index of each point.

    A hole is a ball around a random point and removes its neighbors; `holes` is the number of holes, with the minimum and
    maximum fraction of the points that a hole removes."""
    num_holes, (least, most) = holes
    num_samples = points
    for _ in range(num_holes):  # at least `points` points are left after the holes
        num_samples = math.ceil(num_samples / (1 - most)) + 1
    areas, normals = triangle_areas(mesh.vertices, mesh.faces)
    face, weights = sample_triangles(areas * density, num_samples, generator(1))
    surface = interpolate(mesh.vertices, mesh.faces[face], weights)
    rotation, (one, two, three) = np.eye(3), generator(2).random(3)
    if rotation_mode != "none":
        cos, sin = math.cos(2 * math.pi * one), math.sin(2 * math.pi * one)
        rotation = np.array([[cos, -sin, 0.0], [sin, cos, 0.0], [0.0, 0.0, 1.0]])
    if rotation_mode == "any":
        # Arvo's method: a rotation by 180° about `aside` maps the vertical axis to a uniform point of the sphere
        aside = np.array([math.cos(2 * math.pi * two), math.sin(2 * math.pi * two), 0.0]) * math.sqrt(three)
        aside[2] = math.sqrt(1 - three)
        rotation = (2 * np.outer(aside, aside) - np.eye(3)) @ rotation
    kept = np.arange(num_samples)
    for where, size in generator(3).random((MAX_HOLES, 2))[:num_holes]:
        middle = surface[kept[int(where * len(kept))]]
        away = int((least + (most - least) * size) * len(kept))
        distances = ((surface[kept] - middle) ** 2).sum(axis=1)
        kept = np.delete(kept, np.argpartition(distances, away)[:away])
    kept = kept[:points]
    coordinates = surface[kept] @ rotation.T
    if noise:  # the Box–Muller transform is the same on every machine
        size, angle = generator(4).random((2, *coordinates.shape))
        coordinates = coordinates + noise * np.sqrt(-2 * np.log1p(-size)) * np.cos(2 * math.pi * angle)
    return coordinates.astype(np.float32), (normals[face[kept]] @ rotation.T).astype(np.float32), face[kept]


# -- solids

SEED: Final = 2021
HOLE_FRACTIONS: Final = (0.03, 0.12)  # minimum and maximum fraction of the points that a hole removes
SOLIDS: Final = ("angle", "ball", "box", "capsule", "cone", "cylinder", "pyramid", "torus", "tube", "wedge")


def build_solid(kind: str, of: UniformFn) -> Mesh:
    """Mesh of a class with random proportions."""
    match kind:
        case "angle":  # L-shaped beam of two flanges
            one, other, thick, length = of(0.7, 1), of(0.7, 1), of(0.15, 0.3), of(1, 3)
            # `extrude` needs an outline that is visible from the first vertex: here the inner corner
            outline = [(thick, thick), (thick, other), (0, other), (0, 0), (one, 0), (one, thick)]
            return extrude(outline, length)
        case "ball":  # ellipsoid with axes of different length, close to a sphere
            return revolve(arc(1, -math.pi / 2, math.pi / 2, 24)).scale((1, of(0.75, 1), of(0.75, 1.35)))
        case "box":
            return box((of(0.4, 1), of(0.4, 1), of(0.4, 1.6)))
        case "capsule":
            half = of(0.5, 1.5)
            below = [(radius, height - half) for radius, height in arc(1, -math.pi / 2, 0, 12)]
            return revolve([*below, *((radius, height + half) for radius, height in arc(1, 0, math.pi / 2, 12))])
        case "cone":
            return revolve([(0, 0), (1, 0), (0, of(0.8, 2.6))])
        case "cylinder":
            height = of(0.6, 3)
            return revolve([(0, 0), (1, 0), (1, height), (0, height)])
        case "pyramid":
            wide, height = of(0.6, 1), of(0.8, 2)
            return pyramid([(-1, -wide), (1, -wide), (1, wide), (-1, wide)], height)
        case "torus":
            thick = of(0.2, 0.45)
            angles = 2 * math.pi * np.arange(25) / 24
            return revolve([(1 + thick * math.cos(angle), thick * math.sin(angle)) for angle in angles])
        case "tube":
            inner, height = of(0.5, 0.85), of(0.6, 3)
            return revolve([(inner, 0), (1, 0), (1, height), (inner, height), (inner, 0)])
        case _:  # wedge: triangular prism
            tip, high, length = of(0, 1), of(0.6, 1.2), of(0.6, 2)
            return extrude([(0, 0), (1, 0), (tip, high)], length)


def class_name(index: int) -> str:
    return SOLIDS[index % len(SOLIDS)]


def solid_mesh(split: str, index: int) -> Mesh:
    """Mesh of a solid, centered at its bounding box, with a maximum vertex distance of 1."""
    form = build_solid(class_name(index), uniform_numbers(random_generator(SEED, split, index, 0)))
    low, high = form.vertices.min(axis=0), form.vertices.max(axis=0)
    centred = form.translate(-(low + high) / 2)
    return centred.scale(1 / math.sqrt(float((centred.vertices**2).sum(axis=1).max())))


def solid_cloud(
    split: str, index: int, points: int = 1024, noise: float = 0.01, holes: int = 1, turn: RotationMode = "any"
) -> PointCloud:
    """Point cloud of a solid with normals; `noise` is relative to the radius, and each hole removes some points."""
    generator = partial(random_generator, SEED, split, index)
    mesh, fractions = solid_mesh(split, index), (holes, HOLE_FRACTIONS)
    coordinates, normals, _ = scan_mesh(mesh, 1.0, points, noise, fractions, turn, generator)
    return PointCloud(coordinates, normals=normals)
