"""Scenes of coloured shapes with captions, drawn by the project itself: the embedded set for captioners.

A scene has one to five objects in the cells of a grid, no two of one colour and shape. It has exactly one caption, by rules:

1. Objects are named in the order of their colours (red, orange, yellow, green, blue, purple, black); those of one colour row by
   row, from left to right. What is neither small nor large has no word for its size.
2. Each further object is named with where the first one stands, seen from it: "a red ring above a blue star and left of a black
   cross" says that the ring is above the star and left of the cross.
3. In another row the first is above or below it, whatever the columns are; in the same row left of it or right of it.

`parts` draws the scenes of all parts, no arrangement of objects twice. What is learnt from and validated on holds none of
`UNSEEN_PAIRS`, a colour with a shape, and none of `UNSEEN_RELATIONS`, two shapes and a relation. Every object knows its pixels,
and every word of a caption the objects that it names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, Literal, NamedTuple, TypeVar

from regard.demos import shapes
from regard.demos.shapes import COLOURS, SHAPES, Box, Ground, Picture
from regard.files import write_json, write_text

Kind = Literal["size", "colour", "shape", "relation", ""]
Item = TypeVar("Item")

SEED: Final = 2015
SIDE: Final = 64
"""pixels of a picture down and across"""
GRID: Final = 3
"""cells of a scene down and across"""
MOST: Final = 5
"""objects of a scene"""

SIZES: Final = {"small": 0.2, "middle": 0.3, "large": 0.4}
"""Radii in cells."""
NAMED: Final = ("small", "large")
"""The sizes that there is a word for."""
JITTER: Final = 0.06
"""How far from the middle of its cell an object may lie, in cells."""
SHADE: Final = 0.12
"""How much lighter or darker than its colour an object may be."""

RELATIONS: Final = ("above", "below", "left of", "right of")

PARTS: Final[dict[str, tuple[int, ...]]] = {
    "test": (100, 475, 475, 475, 475),
    "test-pairs": (100, 475, 475, 475, 475),
    "test-relations": (0, 500, 500, 500, 500),
    "valid": (40, 240, 240, 240, 240),
    "train": (600, 4850, 4850, 4850, 4850),
}
"""How many scenes of one, two, … objects each part has. Each scene of `test-pairs` holds a colour with a shape that is not seen
in training, each of `test-relations` two shapes in a relation that is not; `test` has neither, only other scenes."""

UNSEEN_PAIRS: Final = frozenset(
    {("red", "star"), ("orange", "square"), ("yellow", "cross"), ("green", "circle"), ("blue", "triangle"),
     ("purple", "ring"), ("black", "star")}
)  # fmt: skip
UNSEEN_RELATIONS: Final = frozenset(
    {("circle", "above", "square"), ("cross", "above", "triangle"), ("triangle", "below", "ring"),
     ("square", "below", "cross"), ("square", "left of", "star"), ("ring", "left of", "circle"),
     ("star", "right of", "triangle"), ("circle", "right of", "cross")}
)  # fmt: skip


class Thing(NamedTuple):
    """An object, and the cell that it lies in."""

    size: str
    colour: str
    shape: str
    row: int
    column: int


class Look(NamedTuple):
    """What a caption does not say of an object: how far it is from the middle of its cell, and how light."""

    down: float
    across: float
    shade: float


class Word(NamedTuple):
    """A word of a caption, what it tells, and the numbers of the objects that it tells it of; a relation is of two."""

    text: str
    kind: Kind = ""
    things: tuple[int, ...] = ()


class Said(NamedTuple):
    """What a caption says: size, colour and shape of each object, and where the first stands, seen from each other."""

    things: tuple[tuple[str, str, str], ...]
    relations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scene:
    things: tuple[Thing, ...]
    """in the order in which they are named"""
    looks: tuple[Look, ...]
    ground: Ground


# What is said


def ordered(things: Sequence[Thing]) -> tuple[Thing, ...]:
    colours = list(COLOURS)
    return tuple(sorted(things, key=lambda thing: (colours.index(thing.colour), thing.row, thing.column)))


def relation(first: Thing, other: Thing) -> str:
    """Where the first stands, seen from the other."""
    if first.row != other.row:
        return "above" if first.row < other.row else "below"
    return "left of" if first.column < other.column else "right of"


def words(things: Sequence[Thing]) -> list[Word]:
    """The caption of objects in their order, word by word."""
    found: list[Word] = []
    for number, thing in enumerate(things):
        if number:
            near, *rest = relation(things[0], thing).split()
            found += [Word("and")] * (number > 1)
            found += [Word(near, "relation", (0, number)), *(Word(word) for word in rest)]
        phrase = [Word(thing.size, "size", (number,))] if thing.size in NAMED else []
        phrase += [Word(thing.colour, "colour", (number,)), Word(thing.shape, "shape", (number,))]
        found += [Word("an" if phrase[0].text[0] in "aeiou" else "a"), *phrase]
    return found


def caption(things: Sequence[Thing]) -> str:
    return " ".join(word.text for word in words(things))


def parsed(text: str) -> Said | None:
    """What these words say, or None where they are no caption of ours."""
    pieces = re.split(f" ({'|'.join(RELATIONS)}) ", text)
    phrases, relations = pieces[::2], pieces[1::2]
    if not all(phrase.endswith(" and") for phrase in phrases[1:-1]):
        return None
    phrases[1:-1] = [phrase.removesuffix(" and") for phrase in phrases[1:-1]]
    things = [thing for phrase in phrases if (thing := _thing(phrase))]
    order = [list(COLOURS).index(colour) for _, colour, _ in things]
    whole = len(things) == len(phrases) <= MOST and order == sorted(order)
    return Said(tuple(things), tuple(relations)) if whole else None


def _thing(phrase: str) -> tuple[str, str, str] | None:
    article, *said = phrase.split(" ")
    size = said.pop(0) if said and said[0] in NAMED else "middle"
    if len(said) != 2 or said[0] not in COLOURS or said[1] not in SHAPES:
        return None
    right = "an" if size not in NAMED and said[0][0] in "aeiou" else "a"
    return (size, said[0], said[1]) if article == right else None


# What is seen


def drawn(scene: Scene, side: int = SIDE) -> tuple[Picture, tuple[Box, ...]]:
    """The picture, and of each object the box that holds its pixels."""
    pixels, cell, boxes = shapes.laid(scene.ground, side), side / GRID, []
    for thing, look in zip(scene.things, scene.looks, strict=True):
        middle = (thing.row + 0.5 + look.down) * cell, (thing.column + 0.5 + look.across) * cell
        box, shares = shapes.coverage(thing.shape, middle, SIZES[thing.size] * cell, side)
        light = 255.0 if look.shade > 0 else 0.0
        shapes.put(pixels, box, shares, [part + abs(look.shade) * (light - part) for part in COLOURS[thing.colour]])
        boxes.append(box)
    return shapes.to_bytes(pixels), tuple(boxes)


# Drawing the parts


def combinations(things: Sequence[Thing]) -> Iterator[tuple[str, ...]]:
    """What may be unseen: a colour with a shape, and two shapes in a relation."""
    for thing in things:
        yield thing.colour, thing.shape
    for other in things[1:]:
        yield things[0].shape, relation(things[0], other), other.shape


def parts(seed: int = SEED, sizes: Mapping[str, Sequence[int]] = PARTS) -> dict[str, list[Scene]]:
    """The scenes of each part, the same on every machine; no arrangement of objects occurs twice."""
    rng, taken = Random(seed), set()
    lacks = {name: list(many) for name, many in sizes.items()}
    found: dict[str, list[Scene]] = {name: [] for name in sizes}
    while wanted := [count for count in range(MOST) if any(many[count] for many in lacks.values())]:
        count = _pick(rng, wanted)
        things = _draw(rng, count + 1)
        name = next((name for name in _parts_for(things) if name in lacks and lacks[name][count]), None)
        if name is None or frozenset(things) in taken:
            continue
        taken.add(frozenset(things))
        lacks[name][count] -= 1
        found[name].append(Scene(things, tuple(_look(rng) for _ in things), _ground(rng)))
    return found


def _parts_for(things: Sequence[Thing]) -> tuple[str, ...]:
    """Where a scene may belong, the smallest part first; nowhere, if it is new in both ways."""
    pairs, relations = (not unseen.isdisjoint(combinations(things)) for unseen in (UNSEEN_PAIRS, UNSEEN_RELATIONS))
    if pairs or relations:
        return () if pairs and relations else ("test-pairs",) if pairs else ("test-relations",)
    return "test", "valid", "train"


def _pick(rng: Random, items: Sequence[Item]) -> Item:
    # `random` alone is promised to give the same numbers in every version of Python; `choice` is not.
    return items[int(rng.random() * len(items))]


def _draw(rng: Random, many: int) -> tuple[Thing, ...]:
    """Objects in cells of their own, no two of one colour and shape."""
    found: dict[tuple[int, int], Thing] = {}
    names: set[tuple[str, str]] = set()
    sizes, colours, forms = list(SIZES), list(COLOURS), list(SHAPES)
    while len(found) < many:
        row, column = int(rng.random() * GRID), int(rng.random() * GRID)
        thing = Thing(_pick(rng, sizes), _pick(rng, colours), _pick(rng, forms), row, column)
        if (row, column) not in found and (thing.colour, thing.shape) not in names:
            found[row, column] = thing
            names.add((thing.colour, thing.shape))
    return ordered(list(found.values()))


def _look(rng: Random) -> Look:
    down, across, shade = (2 * rng.random() - 1 for _ in range(3))
    return Look(JITTER * down, JITTER * across, SHADE * shade)


def _ground(rng: Random) -> Ground:
    return Ground(_pick(rng, shapes.GROUNDS), _pick(rng, shapes.TEXTURES), int(rng.random() * 2**31))


# Writing them


def write(
    folder: Path, side: int = SIDE, scenes: Mapping[str, Sequence[Scene]] | None = None, most: int = MOST
) -> dict[str, Path]:
    """A folder for each part, with pictures as PNG files and a captions.jsonl, which is named; what stands there is kept. Of
    scenes that are not given, those with at most so many objects."""
    told, told_in = {"seed": SEED, "side": side, **({"most": most} if most < MOST else {})}, folder / "scenes.json"
    if scenes is not None or _told(told_in) != told:
        told_in.unlink(missing_ok=True)  # what it speaks of is there no longer
        found = fewer(parts(), most) if scenes is None else scenes
        for name, items in found.items():
            _write(folder / name, items, side)
        if scenes is None:  # last: what was interrupted is written anew, and so is what others have drawn
            write_json(told_in, told)
    return {name: folder / name / "captions.jsonl" for name in scenes or PARTS}


def _told(path: Path) -> Any:
    """What stands there; None where nothing does that can be read."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None


def fewer(scenes: Mapping[str, Sequence[Scene]], most: int) -> dict[str, list[Scene]]:
    """Those with at most so many objects, each in its part."""
    return {name: [scene for scene in items if len(scene.things) <= most] for name, items in scenes.items()}


def _write(folder: Path, scenes: Sequence[Scene], side: int) -> None:
    from PIL import Image

    (folder / "images").mkdir(parents=True, exist_ok=True)
    lines = []
    for number, scene in enumerate(scenes):
        picture, boxes = drawn(scene, side)
        name = f"images/{folder.name}-{number:05d}.png"  # of two parts no two have one name: they are no leak
        Image.fromarray(picture).save(folder / name)
        things = [{**thing._asdict(), "box": list(box)} for thing, box in zip(scene.things, boxes, strict=True)]
        said = [[word.text, word.kind, list(word.things)] for word in words(scene.things)]
        lines.append(json.dumps({"image": name, "captions": [caption(scene.things)], "objects": things, "words": said}))
    write_text(folder / "captions.jsonl", "".join(f"{line}\n" for line in lines))
