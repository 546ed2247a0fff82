"""Generated solids: dataset for point cloud classification, with ten classes of varying proportions.

Sample n of a split has class n modulo ten. Proportions, points, rotation, holes and noise come from separate random generators,
seeded by split and index: a solid does not depend on other samples, and a change of the noise keeps its shape. Splits have
distinct seeds. The samples of `solids-1` must never change (a test has checksums); other solids would be `solids-2`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from regard.data.points.cloud import PointCloud, interpolate, sample_triangles, triangle_areas
from regard.data.synthetic.corruption import (
    RotationMode,
    add_noise,
    indices_outside_holes,
    oversample_count,
    random_rotation,
)
from regard.data.synthetic.meshes import Mesh, arc, box, extrude, pyramid, revolve

SEED: Final = 2021
SPLITS: Final = ("train", "valid", "test")
HOLE_FRACTIONS: Final = (0.03, 0.12)
"""minimum and maximum fraction of the points that a hole removes"""

UniformFn = Callable[[float, float], float]
"""Uniform random number between two limits."""


def _box(of: UniformFn) -> Mesh:
    return box((of(0.4, 1), of(0.4, 1), of(0.4, 1.6)))


def _ball(of: UniformFn) -> Mesh:
    """Ellipsoid with axes of different length, close to a sphere."""
    return revolve(arc(1, -math.pi / 2, math.pi / 2, 24)).scale((1, of(0.75, 1), of(0.75, 1.35)))


def _cylinder(of: UniformFn) -> Mesh:
    height = of(0.6, 3)
    return revolve([(0, 0), (1, 0), (1, height), (0, height)])


def _cone(of: UniformFn) -> Mesh:
    return revolve([(0, 0), (1, 0), (0, of(0.8, 2.6))])


def _torus(of: UniformFn) -> Mesh:
    thick = of(0.2, 0.45)
    angles = 2 * math.pi * np.arange(25) / 24
    return revolve([(1 + thick * math.cos(angle), thick * math.sin(angle)) for angle in angles])


def _pyramid(of: UniformFn) -> Mesh:
    wide, height = of(0.6, 1), of(0.8, 2)
    return pyramid([(-1, -wide), (1, -wide), (1, wide), (-1, wide)], height)


def _capsule(of: UniformFn) -> Mesh:
    half = of(0.5, 1.5)
    below = [(radius, height - half) for radius, height in arc(1, -math.pi / 2, 0, 12)]
    return revolve([*below, *((radius, height + half) for radius, height in arc(1, 0, math.pi / 2, 12))])


def _angle_beam(of: UniformFn) -> Mesh:
    """L-shaped beam of two flanges."""
    one, other, thick, length = of(0.7, 1), of(0.7, 1), of(0.15, 0.3), of(1, 3)
    # `extrude` needs an outline that is visible from the first vertex: here the inner corner
    outline = [(thick, thick), (thick, other), (0, other), (0, 0), (one, 0), (one, thick)]
    return extrude(outline, length)


def _tube(of: UniformFn) -> Mesh:
    inner, height = of(0.5, 0.85), of(0.6, 3)
    return revolve([(inner, 0), (1, 0), (1, height), (inner, height), (inner, 0)])


def _wedge(of: UniformFn) -> Mesh:
    """Triangular prism."""
    tip, high, length = of(0, 1), of(0.6, 1.2), of(0.6, 2)
    return extrude([(0, 0), (1, 0), (tip, high)], length)


MESH_BUILDERS: Final[dict[str, Callable[[UniformFn], Mesh]]] = {
    "angle": _angle_beam, "ball": _ball, "box": _box, "capsule": _capsule, "cone": _cone, "cylinder": _cylinder,
    "pyramid": _pyramid, "torus": _torus, "tube": _tube, "wedge": _wedge,
}  # fmt: skip


def class_name(index: int) -> str:
    return list(MESH_BUILDERS)[index % len(MESH_BUILDERS)]


def solid_mesh(split: str, index: int) -> Mesh:
    """Mesh of a solid, centered at its bounding box, with a maximum vertex distance of 1."""
    random = _generator(split, index, 0)
    form = MESH_BUILDERS[class_name(index)](lambda low, high: low + (high - low) * random.random())
    low, high = form.vertices.min(axis=0), form.vertices.max(axis=0)
    centred = form.translate(-(low + high) / 2)
    return centred.scale(1 / math.sqrt(float((centred.vertices**2).sum(axis=1).max())))


def solid_cloud(
    split: str, index: int, points: int = 1024, noise: float = 0.01, holes: int = 1, rotation_mode: RotationMode = "any"
) -> PointCloud:  # fmt: skip
    """Point cloud of a solid with normals; `noise` is relative to the radius, and each hole removes some points."""
    form = solid_mesh(split, index)
    sizes, normals = triangle_areas(form.vertices, form.faces)
    face, weights = sample_triangles(
        sizes, oversample_count(points, holes, HOLE_FRACTIONS), _generator(split, index, 1)
    )
    places = interpolate(form.vertices, form.faces[face], weights)
    turned = random_rotation(rotation_mode, _generator(split, index, 2))
    there = indices_outside_holes(places, points, holes, HOLE_FRACTIONS, _generator(split, index, 3))
    found = add_noise(places[there] @ turned.T, noise, _generator(split, index, 4))
    return PointCloud(found.astype(np.float32), normals=(normals[face[there]] @ turned.T).astype(np.float32))


def _generator(part: str, number: int, use: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([SEED, SPLITS.index(part), number, use]))
