"""Generated point cloud datasets by name, identical for the same name: `solids`, or `rooms#part=test,samples=50,noise=0.03`.

A name ends in a version, as in `solids-1`; without a version the newest is used. A number selects a single point cloud:
`solids-1#part=test,number=3`. The splits do not overlap.

`solids`, for classification, has ten classes of varying proportions; sample n of a split has class n modulo ten. Proportions,
points, rotation, holes and noise come from separate random generators, seeded by split and index: a solid does not depend on
other samples, and a change of the noise keeps its shape. The samples of `solids-1` must never change (a test has checksums);
other solids would be `solids-2`. `rooms`, for segmentation, is in rooms.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from regard.data.points.cloud import PointCloud
from regard.data.synthetic import SPLITS, Recipe
from regard.data.synthetic.meshes import (
    MAX_HOLES,
    Mesh,
    RotationMode,
    UniformFn,
    arc,
    box,
    extrude,
    pyramid,
    random_generator,
    revolve,
    scan_mesh,
    uniform_numbers,
)
from regard.data.synthetic.rooms import CLASSES, room_cloud
from regard.errors import DataError

SEED: Final = 2021
HOLE_FRACTIONS: Final = (0.03, 0.12)
"""minimum and maximum fraction of the points that a hole removes"""


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
    scan = scan_mesh(solid_mesh(split, index), 1.0, points, noise, (holes, HOLE_FRACTIONS), turn, generator)
    return PointCloud(scan.coordinates, normals=scan.normals)


TASKS = {"solids-1": "classify", "rooms-1": "segment"}
DEFAULT_SAMPLES = {"solids-1": (2000, 500, 500), "rooms-1": (500, 50, 100)}
"""number of point clouds in train, valid and test, if `samples` is 0"""
UNSET = {"points": 0, "noise": -1.0, "holes": -1, "turn": ""}
"""values of settings for the defaults of `solid_cloud` and `room_cloud`"""


@dataclass(frozen=True)
class CloudRecipe(Recipe):
    """Settings of a generated dataset."""

    part: str = "train"
    samples: int = 0
    """number of point clouds; 0: the default of the split"""
    points: int = 0
    """points per point cloud; 0: 1,024 for solids, 8,192 for rooms"""
    noise: float = -1.0
    """standard deviation of the noise, relative to the radius of a solid or in meters for rooms; -1: 0.01"""
    holes: int = -1
    """number of holes; each removes 3 to 12 % of the points of a solid, 0.5 to 3 % of a room; -1: 1 for solids, 3 for rooms"""
    turn: str = ""
    """none, up (about the vertical axis) or any; empty: any for solids, up for rooms"""
    number: int = -1
    """index of a single point cloud; -1: all"""

    def __post_init__(self) -> None:
        self.check(
            {"samples": 0, "points": 0, "number": -1, "holes": -1},
            (self.turn in ("", "none", "up", "any"), "turn", "none, up or any", f"'{self.turn}'"),
            (self.holes <= MAX_HOLES, "holes", f"at most {MAX_HOLES}", self.holes),
            (self.noise >= 0 or self.noise == -1, "noise", "at least 0", self.noise),
        )

    @property
    def count(self) -> int:
        return self.samples or DEFAULT_SAMPLES[self.kind][SPLITS.index(self.part)]

    @property
    def task(self) -> str:
        return TASKS[self.kind]

    def for_split(self, split: str) -> CloudRecipe:
        return replace(super().for_split(split), number=-1)

    @property
    def classes(self) -> tuple[str, ...]:
        """Classes of solids, or of the objects in rooms."""
        return SOLIDS if self.task == "classify" else CLASSES

    def clouds(self) -> Iterator[tuple[int, str, str]]:
        """Index, name for `read_cloud`, and class of each point cloud; no class if the points have labels."""
        for index in range(self.count) if self.number < 0 else (self.number,):
            name = str(replace(self, number=index, samples=0))
            yield index, name, class_name(index) if self.task == "classify" else ""

    def generate(self, index: int) -> PointCloud:
        make: Callable[..., PointCloud] = solid_cloud if self.task == "classify" else room_cloud
        return make(self.part, index, **{name: vars(self)[name] for name in UNSET if vars(self)[name] != UNSET[name]})


def parse_cloud_recipe(entry: str) -> CloudRecipe | None:
    """Recipe of a name such as `rooms#part=test`; None if the entry is a file."""
    name = entry.partition("#")[0]
    kind = {"solids": "solids-1", "rooms": "rooms-1"}.get(name, name)  # the newest version
    return CloudRecipe(kind).with_settings(entry) if kind in TASKS else None


def generate_cloud(name: str) -> PointCloud | None:
    """Point cloud of a name with `number`; None if the name is not a generated dataset."""
    if (recipe := parse_cloud_recipe(name)) is None:
        return None
    if recipe.number < 0:
        sign = "," if "#" in name else "#"
        advice = f"Select one point cloud: {name}{sign}number=0."
        raise DataError("expected one point cloud, got a dataset.", name, advice=advice)
    return recipe.generate(recipe.number)
