"""Generated rooms: dataset for point cloud segmentation, with floor, walls, tables with chairs, and lamps.

As for solids, a room depends only on split and index: furniture, points, rotation about the vertical axis, holes, noise and
colors come from separate random generators. Points are sampled by area, fewer on the floor and the walls, more on the small
lamps. Each object, wall and floor has a random color: colors separate objects, but carry no information about the class. The
samples of `rooms-1` must never change.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.points.cloud import PointCloud, interpolate, sample_triangles, triangle_areas
from regard.data.synthetic.corruption import (
    RotationMode,
    add_noise,
    indices_outside_holes,
    oversample_count,
    random_rotation,
)
from regard.data.synthetic.furniture import CLASSES, RoomObject, UniformFn, build_room
from regard.data.synthetic.meshes import Mesh, merge_meshes

SEED: Final = 1986
SPLITS: Final = ("train", "valid", "test")
HOLE_FRACTIONS: Final = (0.005, 0.03)
"""minimum and maximum fraction of the points that a hole removes"""
POINT_DENSITY: Final = {"floor": 0.6, "wall": 0.4, "table": 1.0, "chair": 1.0, "lamp": 2.5}
"""points per area, relative to tables"""
SHADE_RANGE: Final = 0.06
"""maximum color difference between the points of an object"""


class Room(NamedTuple):
    """Objects of a room, their merged mesh, and the object index of each face."""

    objects: list[RoomObject]
    mesh: Mesh
    face_object: NDArray[np.int64]


def sample_room(split: str, index: int) -> Room:
    random = _generator(split, index, 0)
    chance: UniformFn = lambda low, high: low + (high - low) * random.random()  # noqa: E731
    things = build_room(chance)
    owner = np.repeat(np.arange(len(things)), [len(thing.mesh.faces) for thing in things])
    return Room(things, merge_meshes([thing.mesh for thing in things]), owner)


def room_cloud(
    split: str, index: int, points: int = 8192, noise: float = 0.01, holes: int = 3, rotation_mode: RotationMode = "up"
) -> PointCloud:  # fmt: skip
    """Labeled point cloud of a room with colors and normals; `noise` is in meters, and each hole removes some points."""
    made = sample_room(split, index)
    label = np.array([CLASSES.index(thing.kind) for thing in made.objects])
    dense = np.array([POINT_DENSITY[thing.kind] for thing in made.objects])
    sizes, normals = triangle_areas(made.mesh.vertices, made.mesh.faces)
    face, weights = sample_triangles(
        sizes * dense[made.face_object], oversample_count(points, holes, HOLE_FRACTIONS), _generator(split, index, 1)
    )
    places = interpolate(made.mesh.vertices, made.mesh.faces[face], weights)
    turned = random_rotation(rotation_mode, _generator(split, index, 2))
    there = indices_outside_holes(places, points, holes, HOLE_FRACTIONS, _generator(split, index, 3))
    found = add_noise(places[there] @ turned.T, noise, _generator(split, index, 4))
    owner = made.face_object[face[there]]
    return PointCloud(
        found.astype(np.float32), _point_colors(owner, len(made.objects), _generator(split, index, 5)),
        (normals[face[there]] @ turned.T).astype(np.float32), label[owner].astype(np.int64), CLASSES,
    )  # fmt: skip


def _point_colors(owner: NDArray[np.int64], things: int, random: np.random.Generator) -> NDArray[np.uint8]:
    """(N, 3) colors: one color per object with a random shade per point."""
    colours = random.random((things, 3))[owner] + SHADE_RANGE * (2 * random.random((len(owner), 1)) - 1)
    return np.rint(255 * np.clip(colours, 0, 1)).astype(np.uint8)


def _generator(part: str, number: int, use: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([SEED, SPLITS.index(part), number, use]))
