"""Generated rooms: dataset for point cloud segmentation, with floor, walls, tables with chairs, and lamps.

As for solids, a room depends only on split and index: furniture, points, rotation about the vertical axis, holes, noise and
colors come from separate random generators. Points are sampled by area, fewer on the floor and the walls, more on the small
lamps. Each object, wall and floor has a random color: colors separate objects, but carry no information about the class. All
lengths are in meters. The samples of `rooms-1` must never change.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.points.cloud import PointCloud
from regard.data.synthetic import solids

CLASSES: Final = ("floor", "wall", "table", "chair", "lamp")
ROUND_SEGMENTS: Final = solids.SEGMENTS // 3  # segments of round furniture, fewer because furniture is small
MAX_TRIES: Final = 30  # attempts to find a free spot for an object
WALL_PROBABILITY: Final = 0.8  # probability of a wall, because a scanner does not cover every side


class TableSpec(NamedTuple):
    x: float
    y: float
    width: float
    depth: float
    height: float
    angle: float
    is_round: bool


class RoomBuilder:
    """Objects of a room centered at 0, with the floor at height 0."""

    def __init__(self, chance: solids.UniformFn) -> None:
        self.chance = chance
        self.wide, self.deep, self.high = chance(2.8, 5), chance(2.8, 5), chance(2.3, 3)
        self.objects: list[tuple[str, solids.Mesh]] = []  # class and mesh
        self.taken: list[tuple[float, float, float]] = []  # x, y and radius of the occupied circles on the floor
        self.tables: list[TableSpec] = []  # tables without a lamp on or above them

    def build(self) -> list[tuple[str, solids.Mesh]]:
        wide, deep, chance = self.wide, self.deep, self.chance
        self.objects = [("floor", solids.rectangle((-wide / 2, -deep / 2, 0), (wide, 0, 0), (0, deep, 0)))]
        for number, (length, behind) in enumerate(((wide, deep), (deep, wide)) * 2):
            exists = chance(0, 1) < WALL_PROBABILITY or (number == 3 and len(self.objects) == 1)  # at least one wall
            wall = _wall_mesh(chance, length, self.high).translate((0, -behind / 2, 0))
            if exists:
                self.objects.append(("wall", wall.rotate_z(number * math.pi / 2)))
        for _ in range(1 + int(chance(0, 2))):
            self.add_table()
        for _ in range(int(chance(0, 3))):
            if (spot := self.occupy(0.35)) is not None:
                self.objects.append(("chair", _chair_mesh(chance).rotate_z(chance(0, 2 * math.pi)).translate(spot)))
        for _ in range(1 + int(chance(0, 3))):
            self.add_lamp()
        return self.objects

    def occupy(self, radius: float) -> tuple[float, float, float] | None:
        """Center (x, y, 0) of a free circle on the floor, from now on occupied; None if there is none."""
        for _ in range(MAX_TRIES):
            x = self.chance(-1, 1) * max(self.wide / 2 - radius, 0)
            y = self.chance(-1, 1) * max(self.deep / 2 - radius, 0)
            if all(math.hypot(x - left, y - front) >= radius + other for left, front, other in self.taken):
                self.taken.append((x, y, radius))
                return x, y, 0.0
        return None

    def add_table(self) -> None:
        """Add a table with chairs, if there is a free spot."""
        chance = self.chance
        is_round, angle = chance(0, 1) < 0.4, int(chance(0, 2)) * math.pi / 2 + chance(-0.2, 0.2)
        width, depth = chance(0.9, 1.7), chance(0.65, 0.9)
        if is_round:
            width = depth = chance(0.7, 1.2)
        height = chance(0.68, 0.8)
        if (spot := self.occupy(math.hypot(width, depth) / 2 + 0.3)) is not None:
            table = TableSpec(spot[0], spot[1], width, depth, height, angle, is_round)
            self.tables.append(table)
            self.objects.append(("table", _table_mesh(chance, table)))
            self.add_chairs(table)

    def add_chairs(self, table: TableSpec) -> None:
        """Add chairs that face the table at a random distance, except inside a wall or another object."""
        others, chance = self.taken[:-1], self.chance
        for number in range(4):
            direction = number * math.pi / 2 + (chance(-0.4, 0.4) if table.is_round else 0.0)
            reach = (table.width if number % 2 == 0 else table.depth) / 2 + chance(0.02, 0.3)
            aside = 0.0 if table.is_round or number % 2 == 0 else chance(-0.25, 0.25) * table.width
            exists, slant = chance(0, 1) < 0.7, chance(-0.3, 0.3)
            chair = _chair_mesh(chance)
            cos, sin = math.cos(table.angle + direction), math.sin(table.angle + direction)
            x, y = table.x + reach * cos - aside * sin, table.y + reach * sin + aside * cos
            inside = abs(x) < self.wide / 2 - 0.25 and abs(y) < self.deep / 2 - 0.25
            is_free = all(math.hypot(x - left, y - front) > other + 0.2 for left, front, other in others)
            if exists and inside and is_free:
                # rotated by 180°, so that the front faces the table and the back points away
                chair = chair.rotate_z(table.angle + direction + math.pi + slant).translate((x, y, 0))
                self.objects.append(("chair", chair))
                self.taken.append((x, y, 0.25))

    def add_lamp(self) -> None:
        """Add a floor lamp, pendant lamp or table lamp, if there is a free spot."""
        chance = self.chance
        kind, which = chance(0, 1), int(chance(0, max(len(self.tables), 1)))
        if kind < 0.4:
            if (spot := self.occupy(0.25)) is not None:
                lamp = _standing_lamp_mesh(chance, (1.2, 1.6), (0.12, 0.2), (0.015, 0.03), 0.2, 0.03, 0.05)
                self.objects.append(("lamp", lamp.translate(spot)))
        elif self.tables:
            table = self.tables.pop(which)
            aside = chance(-0.25, 0.25) * table.width
            x, y = table.x + aside * math.cos(table.angle), table.y + aside * math.sin(table.angle)
            if kind < 0.75:
                shade, top = _lampshade_mesh(chance, 0.2, chance(1.45, 1.8))
                lamp = solids.merge_meshes([shade, _pole_mesh(0.012, top, max(self.high, top + 0.2))]).translate(
                    (x, y, 0)
                )
            else:
                lamp = _standing_lamp_mesh(chance, (0.18, 0.35), (0.06, 0.1), (0.01, 0.02), 0.12, 0.025, 0.03)
                lamp = lamp.translate((x, y, table.height))
            self.objects.append(("lamp", lamp))


# -- meshes


def _wall_mesh(chance: solids.UniformFn, length: float, high: float) -> solids.Mesh:
    """Wall along x; with probability 0.5, the wall has a door or a window."""
    opens, door = chance(0, 1) < 0.5, chance(0, 1) < 0.5
    width, middle = chance(0.8, 1.1) if door else chance(0.8, 1.8), chance(-0.3, 0.3) * length
    low, top = (0.0, chance(1.9, 2.1)) if door else (chance(0.8, 1.1), chance(1.7, 2.1))

    def part(left: float, right: float, bottom: float, upper: float) -> solids.Mesh:
        return solids.rectangle((left, 0, bottom), (right - left, 0, 0), (0, 0, upper - bottom))

    half = length / 2
    if not opens:
        return part(-half, half, 0, high)
    left, right = max(middle - width / 2, -half), min(middle + width / 2, half)
    sides = [part(-half, left, 0, high), part(right, half, 0, high)]
    return solids.merge_meshes([*sides, part(left, right, top, high), part(left, right, 0, low)])


def _disc_mesh(radius: float, bottom: float, top: float) -> solids.Mesh:
    """Closed cylinder."""
    return solids.revolve([(0, bottom), (radius, bottom), (radius, top), (0, top)], ROUND_SEGMENTS)


def _pole_mesh(radius: float, bottom: float, top: float) -> solids.Mesh:
    """Cylinder without its hidden ends."""
    return solids.revolve([(radius, bottom), (radius, top)], ROUND_SEGMENTS // 2)


def _leg_meshes(across: float, along: float, thick: float, height: float) -> list[solids.Mesh]:
    return [
        solids.open_box((thick, thick, height)).translate((side * (across - thick) / 2, front * (along - thick) / 2, 0))
        for side in (-1, 1)
        for front in (-1, 1)
    ]


def _table_mesh(chance: solids.UniformFn, table: TableSpec) -> solids.Mesh:
    thick, slim, central, panels = chance(0.025, 0.06), chance(0.04, 0.09), chance(0, 1) < 0.5, chance(0, 1) < 0.25
    under = table.height - thick
    if table.is_round:
        parts = [_disc_mesh(table.width / 2, under, table.height)]
        if central:
            foot = chance(0.2, 0.32)
            parts += [_pole_mesh(slim / 1.5, 0.03, under), _disc_mesh(foot, 0.0, 0.03)]
        else:
            parts += _leg_meshes(0.6 * table.width, 0.6 * table.width, slim, under)
    else:
        parts = [solids.box((table.width, table.depth, thick)).translate((0, 0, under))]
        if panels:
            panel = solids.open_box((slim / 2, 0.9 * table.depth, under))
            parts += [panel.translate((side * (table.width / 2 - slim), 0, 0)) for side in (-1, 1)]
        else:
            parts += _leg_meshes(0.94 * table.width, 0.92 * table.depth, slim, under)
    return solids.merge_meshes(parts).rotate_z(table.angle).translate((table.x, table.y, 0))


def _chair_mesh(chance: solids.UniformFn) -> solids.Mesh:
    """Chair facing along x, with the backrest at negative x."""
    wide, deep, seat, thick = chance(0.38, 0.48), chance(0.38, 0.46), chance(0.42, 0.5), chance(0.02, 0.06)
    back, slim, swivel, slats = chance(0.32, 0.55), chance(0.025, 0.05), chance(0, 1) < 0.25, int(chance(1, 4))
    gap, rear = back / (2 * slats - 1), -deep / 2 + slim / 2
    parts = [solids.box((deep, wide, thick)).translate((0, 0, seat - thick))]
    parts += [solids.box((slim, wide, gap)).translate((rear, 0, seat + 2 * number * gap)) for number in range(slats)]
    if slats > 1:
        post = solids.open_box((slim, slim, back))
        parts += [post.translate((rear, side * (wide - slim) / 2, seat)) for side in (-1, 1)]
    if swivel:
        parts += [_pole_mesh(0.03, 0.04, seat - thick), _disc_mesh(chance(0.2, 0.28), 0.0, 0.04)]
    else:
        parts += _leg_meshes(deep, wide, slim, seat - thick)
    return solids.merge_meshes(parts)


def _lampshade_mesh(chance: solids.UniformFn, size: float, bottom: float) -> tuple[solids.Mesh, float]:
    """Lampshade (open cone or ball), and the height of its top."""
    wide, narrow, high, ball = size * chance(0.85, 1.15), chance(0.35, 0.9), size * chance(1, 1.6), chance(0, 1) < 0.3
    if ball:
        middle = bottom + wide
        profile = [(radius, height + middle) for radius, height in solids.arc(wide, -math.pi / 2, math.pi / 2, 10)]
        return solids.revolve(profile, ROUND_SEGMENTS), bottom + 2 * wide
    return solids.revolve([(wide, bottom), (narrow * wide, bottom + high)], ROUND_SEGMENTS), bottom + high


Range = tuple[float, float]


def _standing_lamp_mesh(
    chance: solids.UniformFn, heights: Range, feet: Range, poles: Range, shade: float, base: float, inside: float
) -> solids.Mesh:
    """Lamp with ranges of height, foot radius and pole radius, and sizes of shade, foot and the pole inside the shade."""
    top, radius = chance(*heights), chance(*feet)
    cover, _ = _lampshade_mesh(chance, shade, top)
    pole = _pole_mesh(chance(*poles), base, top + inside)
    return solids.merge_meshes([_disc_mesh(radius, 0.0, base), pole, cover])


SEED: Final = 1986
HOLE_FRACTIONS: Final = (0.005, 0.03)  # minimum and maximum fraction of the points that a hole removes
POINT_DENSITY: Final = {"floor": 0.6, "wall": 0.4, "table": 1.0, "chair": 1.0, "lamp": 2.5}
"""points per area, relative to tables"""
SHADE_RANGE: Final = 0.06  # maximum color difference between the points of an object


def sample_room(split: str, index: int) -> tuple[list[str], solids.Mesh, NDArray[np.int64]]:
    """Class of each object in a room, the merged mesh, and the object index of each face."""
    kinds, meshes = zip(
        *RoomBuilder(solids.uniform_numbers(solids.random_generator(SEED, split, index, 0))).build(), strict=True
    )
    return (
        list(kinds),
        solids.merge_meshes(meshes),
        np.repeat(np.arange(len(meshes)), [len(mesh.faces) for mesh in meshes]),
    )


def room_cloud(
    split: str, index: int, points: int = 8192, noise: float = 0.01, holes: int = 3, turn: solids.RotationMode = "up"
) -> PointCloud:
    """Labeled point cloud of a room with colors and normals; `noise` is in meters, and each hole removes some points."""
    kinds, mesh, face_object = sample_room(split, index)
    labels = np.array([CLASSES.index(kind) for kind in kinds])
    density = np.array([POINT_DENSITY[kind] for kind in kinds])[face_object]
    generator = partial(solids.random_generator, SEED, split, index)
    coordinates, normals, faces = solids.scan_mesh(
        mesh, density, points, noise, (holes, HOLE_FRACTIONS), turn, generator
    )
    owner = face_object[faces]
    random = generator(5)  # one color per object, with a random shade per point
    colors = random.random((len(kinds), 3))[owner] + SHADE_RANGE * (2 * random.random((len(owner), 1)) - 1)
    pixels = np.rint(255 * np.clip(colors, 0, 1)).astype(np.uint8)
    return PointCloud(coordinates, pixels, normals, labels[owner].astype(np.int64), CLASSES)
