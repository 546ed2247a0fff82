"""Small rooms, the embedded set for the classes of points: floor, walls, tables with chairs round them, lamps.

A room is a pure function of its part and its number, as solids are: furniture, points, rotation about the axis upwards, holes,
noise and colours come from generators of their own. Points are spread by area, more thinly on the floor and the walls, more
densely on lamps, which are small. Every piece of furniture, each wall and the floor has a colour of its own that chance
chooses among all: a colour says which points belong together, and not what they are. `rooms-1` never changes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.points.cloud import Cloud
from regard.data.points.mesh_sampling import areas, between, spread
from regard.data.synthetic.corruption import Turn, blurred, left, needed, rotation
from regard.data.synthetic.furniture import CLASSES, Chance, Thing, furnished
from regard.data.synthetic.meshes import Form, joined

SEED: Final = 1986
PARTS: Final = ("train", "valid", "test")
HOLES: Final = (0.005, 0.03)
"""shares of the points that one hole takes away"""
DENSE: Final = {"floor": 0.6, "wall": 0.4, "table": 1.0, "chair": 1.0, "lamp": 2.5}
"""how many points an area gets, against that of tables"""
SHADES: Final = 0.06
"""how much the colours of the points of one thing differ"""


class Room(NamedTuple):
    """What stands in it, as one body, and which thing each of its faces belongs to."""

    things: list[Thing]
    form: Form
    owner: NDArray[np.int64]


def room_of(part: str, number: int) -> Room:
    random = _random(part, number, 0)
    chance: Chance = lambda low, high: low + (high - low) * random.random()  # noqa: E731
    things = furnished(chance)
    owner = np.repeat(np.arange(len(things)), [len(thing.form.faces) for thing in things])
    return Room(things, joined([thing.form for thing in things]), owner)


def room(
    part: str, number: int, points: int = 8192, noise: float = 0.01, holes: int = 3, turn: Turn = "up"
) -> Cloud:  # fmt: skip
    """A cloud of one room; `noise` in metres, `holes` that each take some of it away."""
    made = room_of(part, number)
    label = np.array([CLASSES.index(thing.kind) for thing in made.things])
    dense = np.array([DENSE[thing.kind] for thing in made.things])
    sizes, normals = areas(made.form.corners, made.form.faces)
    face, weights = spread(sizes * dense[made.owner], needed(points, holes, HOLES), _random(part, number, 1))
    places = between(made.form.corners, made.form.faces[face], weights)
    turned = rotation(turn, _random(part, number, 2))
    there = left(places, points, holes, HOLES, _random(part, number, 3))
    found = blurred(places[there] @ turned.T, noise, _random(part, number, 4))
    owner = made.owner[face[there]]
    return Cloud(
        found.astype(np.float32), _painted(owner, len(made.things), _random(part, number, 5)),
        (normals[face[there]] @ turned.T).astype(np.float32), label[owner].astype(np.int64), CLASSES,
    )  # fmt: skip


def _painted(owner: NDArray[np.int64], things: int, random: np.random.Generator) -> NDArray[np.uint8]:
    """(N, 3) a colour for each thing, and a shade of it for each point."""
    colours = random.random((things, 3))[owner] + SHADES * (2 * random.random((len(owner), 1)) - 1)
    return np.rint(255 * np.clip(colours, 0, 1)).astype(np.uint8)


def _random(part: str, number: int, use: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([SEED, PARTS.index(part), number, use]))
