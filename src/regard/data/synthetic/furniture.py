"""What stands in a room: tables, chairs round them, lamps that stand, hang or are put on a table, the floor and the walls.

All lengths are metres, and nothing is drawn but by the chance that is given, in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

from regard.data.synthetic.meshes import SEGMENTS, Form, arc, box, joined, leg, rectangle, revolved

CLASSES: Final = ("floor", "wall", "table", "chair", "lamp")
ROUND: Final = SEGMENTS // 3
"""flat stripes of what is round: furniture is small"""
TRIES: Final = 30
"""places that are tried for a thing before the room is full"""
WALL: Final = 0.8
"""how often a wall is there: a scanner does not see every side"""

Chance = Callable[[float, float], float]
"""A number between two."""


class Thing(NamedTuple):
    kind: str
    form: Form


class Taken(NamedTuple):
    """A circle of the floor where something stands."""

    x: float
    y: float
    radius: float


class Table(NamedTuple):
    x: float
    y: float
    wide: float
    deep: float
    height: float
    angle: float
    round: bool


def furnished(chance: Chance) -> list[Thing]:
    """A room about 0, its floor at 0."""
    wide, deep, high = chance(2.8, 5), chance(2.8, 5), chance(2.3, 3)
    things = [Thing("floor", rectangle((-wide / 2, -deep / 2, 0), (wide, 0, 0), (0, deep, 0)))]
    things += _walls(chance, wide, deep, high)
    taken: list[Taken] = []
    tables: list[Table] = []
    for _ in range(1 + int(chance(0, 2))):
        made = _table_at(chance, wide, deep, taken)
        if made is not None:
            tables.append(made)
            things.append(Thing("table", _table(chance, made)))
            things += [Thing("chair", chair) for chair in _chairs_round(chance, made, wide, deep, taken)]
    for _ in range(int(chance(0, 3))):
        spot = _spot(chance, wide, deep, 0.35, taken)
        if spot is not None:
            chair = _chair(chance).turned(chance(0, 2 * math.pi)).moved((spot.x, spot.y, 0))
            things.append(Thing("chair", chair))
    for _ in range(1 + int(chance(0, 3))):
        lamp = _lamp_somewhere(chance, wide, deep, high, tables, taken)
        if lamp is not None:
            things.append(Thing("lamp", lamp))
    return things


# -- where things stand


def _spot(chance: Chance, wide: float, deep: float, radius: float, taken: list[Taken]) -> Taken | None:
    """A free place for something so large, which is then taken."""
    for _ in range(TRIES):
        x = chance(-1, 1) * max(wide / 2 - radius, 0)
        y = chance(-1, 1) * max(deep / 2 - radius, 0)
        if all(math.hypot(x - other.x, y - other.y) >= radius + other.radius for other in taken):
            taken.append(Taken(x, y, radius))
            return taken[-1]
    return None


def _walls(chance: Chance, wide: float, deep: float, high: float) -> list[Thing]:
    found: list[Thing] = []
    for number, (length, behind) in enumerate(((wide, deep), (deep, wide)) * 2):
        there = chance(0, 1) < WALL or (number == 3 and not found)  # one at least
        wall = _wall(chance, length, high).moved((0, -behind / 2, 0)).turned(number * math.pi / 2)
        if there:
            found.append(Thing("wall", wall))
    return found


def _wall(chance: Chance, length: float, high: float) -> Form:
    """Along x, with an opening in every second one: a door, or a window."""
    opens, door = chance(0, 1) < 0.5, chance(0, 1) < 0.5
    width, middle = chance(0.8, 1.1) if door else chance(0.8, 1.8), chance(-0.3, 0.3) * length
    low, top = (0.0, chance(1.9, 2.1)) if door else (chance(0.8, 1.1), chance(1.7, 2.1))

    def part(left: float, right: float, bottom: float, upper: float) -> Form:
        return rectangle((left, 0, bottom), (right - left, 0, 0), (0, 0, upper - bottom))

    half = length / 2
    if not opens:
        return part(-half, half, 0, high)
    left, right = max(middle - width / 2, -half), min(middle + width / 2, half)
    return joined([
        part(-half, left, 0, high), part(right, half, 0, high), part(left, right, top, high), part(left, right, 0, low),
    ])  # fmt: skip


def _table_at(chance: Chance, wide: float, deep: float, taken: list[Taken]) -> Table | None:
    rounded, angle = chance(0, 1) < 0.4, int(chance(0, 2)) * math.pi / 2 + chance(-0.2, 0.2)
    width, depth = chance(0.9, 1.7), chance(0.65, 0.9)
    if rounded:
        width = depth = chance(0.7, 1.2)
    height = chance(0.68, 0.8)
    spot = _spot(chance, wide, deep, math.hypot(width, depth) / 2 + 0.3, taken)
    return None if spot is None else Table(spot.x, spot.y, width, depth, height, angle, rounded)


def _chairs_round(chance: Chance, table: Table, wide: float, deep: float, taken: list[Taken]) -> list[Form]:
    """Each looks at the table, pushed under it more or less; those that would stand in a wall or in others are left out."""
    found, others = [], taken[:-1]
    for number in range(4):
        direction = number * math.pi / 2 + (chance(-0.4, 0.4) if table.round else 0.0)
        reach = (table.wide if number % 2 == 0 else table.deep) / 2 + chance(0.02, 0.3)
        aside = 0.0 if table.round or number % 2 == 0 else chance(-0.25, 0.25) * table.wide
        there, slant = chance(0, 1) < 0.7, chance(-0.3, 0.3)
        chair = _chair(chance)
        cos, sin = math.cos(table.angle + direction), math.sin(table.angle + direction)
        at = table.x + reach * cos - aside * sin, table.y + reach * sin + aside * cos
        inside = abs(at[0]) < wide / 2 - 0.25 and abs(at[1]) < deep / 2 - 0.25
        if there and inside and all(math.hypot(at[0] - one.x, at[1] - one.y) > one.radius + 0.2 for one in others):
            # its back is on its own left, away from the table
            found.append(chair.turned(table.angle + direction + math.pi + slant).moved((*at, 0)))
            taken.append(Taken(*at, 0.25))
    return found


# -- things


def _round(radius: float, bottom: float, top: float) -> Form:
    """A disc, or a pole."""
    return revolved([(0, bottom), (radius, bottom), (radius, top), (0, top)], ROUND)


def _pole(radius: float, bottom: float, top: float) -> Form:
    """Without its ends, which are hidden."""
    return revolved([(radius, bottom), (radius, top)], ROUND // 2)


def _legs(across: float, along: float, thick: float, height: float) -> list[Form]:
    return [
        leg((thick, thick, height)).moved((side * (across - thick) / 2, front * (along - thick) / 2, 0))
        for side in (-1, 1)
        for front in (-1, 1)
    ]


def _table(chance: Chance, table: Table) -> Form:
    thick, slim, central, panels = chance(0.025, 0.06), chance(0.04, 0.09), chance(0, 1) < 0.5, chance(0, 1) < 0.25
    under = table.height - thick
    if table.round:
        parts = [_round(table.wide / 2, under, table.height)]
        if central:
            foot = chance(0.2, 0.32)
            parts += [_pole(slim / 1.5, 0.03, under), _round(foot, 0.0, 0.03)]
        else:
            parts += _legs(0.6 * table.wide, 0.6 * table.wide, slim, under)
    else:
        parts = [box((table.wide, table.deep, thick)).moved((0, 0, under))]
        if panels:
            parts += [
                leg((slim / 2, 0.9 * table.deep, under)).moved((side * (table.wide / 2 - slim), 0, 0))
                for side in (-1, 1)
            ]
        else:
            parts += _legs(0.94 * table.wide, 0.92 * table.deep, slim, under)
    return joined(parts).turned(table.angle).moved((table.x, table.y, 0))


def _chair(chance: Chance) -> Form:
    """Looking along x, its back behind it."""
    wide, deep, seat, thick = chance(0.38, 0.48), chance(0.38, 0.46), chance(0.42, 0.5), chance(0.02, 0.06)
    back, slim, swivel, slats = chance(0.32, 0.55), chance(0.025, 0.05), chance(0, 1) < 0.25, int(chance(1, 4))
    parts = [box((deep, wide, thick)).moved((0, 0, seat - thick))]
    gap = back / (2 * slats - 1) if slats > 1 else back
    for number in range(slats):
        parts.append(box((slim, wide, gap)).moved((-deep / 2 + slim / 2, 0, seat + 2 * number * gap)))
    if slats > 1:
        posts = [
            leg((slim, slim, back)).moved((-deep / 2 + slim / 2, side * (wide - slim) / 2, seat)) for side in (-1, 1)
        ]
        parts += posts
    if swivel:
        parts += [_pole(0.03, 0.04, seat - thick), _round(chance(0.2, 0.28), 0.0, 0.04)]
    else:
        parts += _legs(deep, wide, slim, seat - thick)
    return joined(parts)


def _shade(chance: Chance, size: float, bottom: float) -> tuple[Form, float]:
    """Open below and above, or a ball; and where it ends."""
    wide, narrow, high, ball = size * chance(0.85, 1.15), chance(0.35, 0.9), size * chance(1, 1.6), chance(0, 1) < 0.3
    if ball:
        middle = bottom + wide
        profile = [(radius, height + middle) for radius, height in arc(wide, -math.pi / 2, math.pi / 2, 10)]
        return revolved(profile, ROUND), bottom + 2 * wide
    return revolved([(wide, bottom), (narrow * wide, bottom + high)], ROUND), bottom + high


def _lamp_somewhere(
    chance: Chance, wide: float, deep: float, high: float, tables: list[Table], taken: list[Taken]
) -> Form | None:
    """It stands on the floor, hangs, or stands on a table; a table has one at most."""
    kind, which = chance(0, 1), int(chance(0, max(len(tables), 1)))
    if kind < 0.4:
        spot = _spot(chance, wide, deep, 0.25, taken)
        return None if spot is None else _standing(chance).moved((spot.x, spot.y, 0))
    if not tables:
        return None
    table = tables.pop(which)
    aside = chance(-0.25, 0.25) * table.wide
    at = (table.x + aside * math.cos(table.angle), table.y + aside * math.sin(table.angle))
    if kind < 0.75:
        return _hanging(chance, high).moved((*at, 0))
    return _small(chance).moved((*at, table.height))


def _standing(chance: Chance) -> Form:
    tall, foot = chance(1.2, 1.6), chance(0.12, 0.2)
    shade, _ = _shade(chance, 0.2, tall)
    return joined([_round(foot, 0.0, 0.03), _pole(chance(0.015, 0.03), 0.03, tall + 0.05), shade])


def _hanging(chance: Chance, high: float) -> Form:
    low = chance(1.45, 1.8)
    shade, top = _shade(chance, 0.2, low)
    return joined([shade, _pole(0.012, top, max(high, top + 0.2))])


def _small(chance: Chance) -> Form:
    """On a table."""
    tall, foot = chance(0.18, 0.35), chance(0.06, 0.1)
    shade, _ = _shade(chance, 0.12, tall)
    return joined([_round(foot, 0.0, 0.025), _pole(chance(0.01, 0.02), 0.025, tall + 0.03), shade])
