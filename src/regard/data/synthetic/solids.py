"""Solids, the embedded set for telling clouds apart: ten kinds with proportions of their own, drawn by the project itself.

Number n of a part is of kind n modulo ten. Its proportions, points, rotation, holes and noise each come from a generator of
their own, keyed by the part and the number: so a solid is the same whatever else is made, and the same solid with more noise is
still that solid. No two parts share a key. What is drawn must never change under this name: `solids-1` is in the checksums of
a test, and other solids would be `solids-2`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from regard.data.points.cloud import Cloud
from regard.data.points.mesh_sampling import areas, between, spread
from regard.data.synthetic.corruption import Turn, blurred, left, needed, rotation
from regard.data.synthetic.meshes import Form, arc, box, extruded, pointed, revolved

SEED: Final = 2021
PARTS: Final = ("train", "valid", "test")
HOLES: Final = (0.03, 0.12)
"""shares of the points that one hole takes away"""

Chance = Callable[[float, float], float]
"""A number between two."""


def _box(of: Chance) -> Form:
    return box((of(0.4, 1), of(0.4, 1), of(0.4, 1.6)))


def _ball(of: Chance) -> Form:
    """A sphere, or longer or flatter than one by up to a third."""
    return revolved(arc(1, -math.pi / 2, math.pi / 2, 24)).scaled((1, of(0.75, 1), of(0.75, 1.35)))


def _cylinder(of: Chance) -> Form:
    height = of(0.6, 3)
    return revolved([(0, 0), (1, 0), (1, height), (0, height)])


def _cone(of: Chance) -> Form:
    return revolved([(0, 0), (1, 0), (0, of(0.8, 2.6))])


def _torus(of: Chance) -> Form:
    thick = of(0.2, 0.45)
    angles = 2 * math.pi * np.arange(25) / 24
    return revolved([(1 + thick * math.cos(angle), thick * math.sin(angle)) for angle in angles])


def _pyramid(of: Chance) -> Form:
    wide, height = of(0.6, 1), of(0.8, 2)
    return pointed([(-1, -wide), (1, -wide), (1, wide), (-1, wide)], height)


def _capsule(of: Chance) -> Form:
    half = of(0.5, 1.5)
    below = [(radius, height - half) for radius, height in arc(1, -math.pi / 2, 0, 12)]
    return revolved([*below, *((radius, height + half) for radius, height in arc(1, 0, math.pi / 2, 12))])


def _angle(of: Chance) -> Form:
    """A beam of two flanges."""
    one, other, thick, length = of(0.7, 1), of(0.7, 1), of(0.15, 0.3), of(1, 3)
    # the inner corner comes first: from there all of it is seen
    outline = [(thick, thick), (thick, other), (0, other), (0, 0), (one, 0), (one, thick)]
    return extruded(outline, length)


def _tube(of: Chance) -> Form:
    inner, height = of(0.5, 0.85), of(0.6, 3)
    return revolved([(inner, 0), (1, 0), (1, height), (inner, height), (inner, 0)])


def _wedge(of: Chance) -> Form:
    """A prism on a triangle."""
    tip, high, length = of(0, 1), of(0.6, 1.2), of(0.6, 2)
    return extruded([(0, 0), (1, 0), (tip, high)], length)


KINDS: Final[dict[str, Callable[[Chance], Form]]] = {
    "angle": _angle, "ball": _ball, "box": _box, "capsule": _capsule, "cone": _cone, "cylinder": _cylinder,
    "pyramid": _pyramid, "torus": _torus, "tube": _tube, "wedge": _wedge,
}  # fmt: skip


def kind_of(number: int) -> str:
    return list(KINDS)[number % len(KINDS)]


def form_of(part: str, number: int) -> Form:
    """The body, about its middle, with its farthest corner at distance 1."""
    random = _random(part, number, 0)
    form = KINDS[kind_of(number)](lambda low, high: low + (high - low) * random.random())
    low, high = form.corners.min(axis=0), form.corners.max(axis=0)
    centred = form.moved(-(low + high) / 2)
    return centred.scaled(1 / math.sqrt(float((centred.corners**2).sum(axis=1).max())))


def solid(
    part: str, number: int, points: int = 1024, noise: float = 0.01, holes: int = 1, turn: Turn = "any"
) -> Cloud:  # fmt: skip
    """A cloud of one solid; `noise` in radii, `holes` that each take some of it away."""
    form = form_of(part, number)
    sizes, normals = areas(form.corners, form.faces)
    face, weights = spread(sizes, needed(points, holes, HOLES), _random(part, number, 1))
    places = between(form.corners, form.faces[face], weights)
    turned = rotation(turn, _random(part, number, 2))
    there = left(places, points, holes, HOLES, _random(part, number, 3))
    found = blurred(places[there] @ turned.T, noise, _random(part, number, 4))
    return Cloud(found.astype(np.float32), normals=(normals[face[there]] @ turned.T).astype(np.float32))


def _random(part: str, number: int, use: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([SEED, PARTS.index(part), number, use]))
