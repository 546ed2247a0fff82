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
from regard.demos.shapes import COLORS, SHAPES, Background, Box, ImageArray
from regard.files import write_json, write_text

WordKind = Literal["size", "color", "shape", "relation", ""]
Item = TypeVar("Item")

SEED: Final = 2015
IMAGE_SIZE: Final = 64
"""pixels of a picture down and across"""
GRID_SIZE: Final = 3
"""cells of a scene down and across"""
MAX_OBJECTS: Final = 5
"""objects of a scene"""

SIZES: Final = {"small": 0.2, "middle": 0.3, "large": 0.4}
"""Radii in cells."""
NAMED_SIZES: Final = ("small", "large")
"""The sizes that there is a word for."""
JITTER: Final = 0.06
"""How far from the middle of its cell an object may lie, in cells."""
SHADE_RANGE: Final = 0.12
"""How much lighter or darker than its colour an object may be."""

RELATIONS: Final = ("above", "below", "left of", "right of")

SPLIT_SIZES: Final[dict[str, tuple[int, ...]]] = {
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


class SceneObject(NamedTuple):
    """An object, and the cell that it lies in."""

    size: str
    colour: str
    shape: str
    row: int
    column: int


class Appearance(NamedTuple):
    """What a caption does not say of an object: how far it is from the middle of its cell, and how light."""

    offset_y: float
    offset_x: float
    shade: float


class SceneWord(NamedTuple):
    """A word of a caption, what it tells, and the numbers of the objects that it tells it of; a relation is of two."""

    text: str
    kind: WordKind = ""
    objects: tuple[int, ...] = ()


class ParsedCaption(NamedTuple):
    """What a caption says: size, colour and shape of each object, and where the first stands, seen from each other."""

    objects: tuple[tuple[str, str, str], ...]
    relations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShapeScene:
    objects: tuple[SceneObject, ...]
    """in the order in which they are named"""
    appearances: tuple[Appearance, ...]
    background: Background


# What is said


def sort_objects(objects: Sequence[SceneObject]) -> tuple[SceneObject, ...]:
    colours = list(COLORS)
    return tuple(sorted(objects, key=lambda thing: (colours.index(thing.colour), thing.row, thing.column)))


def relation(first: SceneObject, other: SceneObject) -> str:
    """Where the first stands, seen from the other."""
    if first.row != other.row:
        return "above" if first.row < other.row else "below"
    return "left of" if first.column < other.column else "right of"


def caption_words(objects: Sequence[SceneObject]) -> list[SceneWord]:
    """The caption of objects in their order, word by word."""
    found: list[SceneWord] = []
    for number, thing in enumerate(objects):
        if number:
            near, *rest = relation(objects[0], thing).split()
            found += [SceneWord("and")] * (number > 1)
            found += [SceneWord(near, "relation", (0, number)), *(SceneWord(word) for word in rest)]
        phrase = [SceneWord(thing.size, "size", (number,))] if thing.size in NAMED_SIZES else []
        phrase += [SceneWord(thing.colour, "color", (number,)), SceneWord(thing.shape, "shape", (number,))]
        found += [SceneWord("an" if phrase[0].text[0] in "aeiou" else "a"), *phrase]
    return found


def caption(objects: Sequence[SceneObject]) -> str:
    return " ".join(word.text for word in caption_words(objects))


def parse_caption(text: str) -> ParsedCaption | None:
    """What these words say, or None where they are no caption of ours."""
    pieces = re.split(f" ({'|'.join(RELATIONS)}) ", text)
    phrases, relations = pieces[::2], pieces[1::2]
    if not all(phrase.endswith(" and") for phrase in phrases[1:-1]):
        return None
    phrases[1:-1] = [phrase.removesuffix(" and") for phrase in phrases[1:-1]]
    things = [thing for phrase in phrases if (thing := _parse_object(phrase))]
    order = [list(COLORS).index(colour) for _, colour, _ in things]
    whole = len(things) == len(phrases) <= MAX_OBJECTS and order == sorted(order)
    return ParsedCaption(tuple(things), tuple(relations)) if whole else None


def _parse_object(phrase: str) -> tuple[str, str, str] | None:
    article, *said = phrase.split(" ")
    size = said.pop(0) if said and said[0] in NAMED_SIZES else "middle"
    if len(said) != 2 or said[0] not in COLORS or said[1] not in SHAPES:
        return None
    right = "an" if size not in NAMED_SIZES and said[0][0] in "aeiou" else "a"
    return (size, said[0], said[1]) if article == right else None


# What is seen


def render_scene(scene: ShapeScene, image_size: int = IMAGE_SIZE) -> tuple[ImageArray, tuple[Box, ...]]:
    """The picture, and of each object the box that holds its pixels."""
    pixels, cell, boxes = shapes.render_background(scene.background, image_size), image_size / GRID_SIZE, []
    for thing, look in zip(scene.objects, scene.appearances, strict=True):
        middle = (thing.row + 0.5 + look.offset_y) * cell, (thing.column + 0.5 + look.offset_x) * cell
        box, shares = shapes.coverage(thing.shape, middle, SIZES[thing.size] * cell, image_size)
        light = 255.0 if look.shade > 0 else 0.0
        shapes.blend_color(
            pixels, box, shares, [part + abs(look.shade) * (light - part) for part in COLORS[thing.colour]]
        )
        boxes.append(box)
    return shapes.to_uint8(pixels), tuple(boxes)


# Drawing the parts


def combinations(objects: Sequence[SceneObject]) -> Iterator[tuple[str, ...]]:
    """What may be unseen: a colour with a shape, and two shapes in a relation."""
    for thing in objects:
        yield thing.colour, thing.shape
    for other in objects[1:]:
        yield objects[0].shape, relation(objects[0], other), other.shape


def generate_splits(seed: int = SEED, sizes: Mapping[str, Sequence[int]] = SPLIT_SIZES) -> dict[str, list[ShapeScene]]:
    """The scenes of each part, the same on every machine; no arrangement of objects occurs twice."""
    rng, taken = Random(seed), set()
    lacks = {name: list(many) for name, many in sizes.items()}
    found: dict[str, list[ShapeScene]] = {name: [] for name in sizes}
    while wanted := [count for count in range(MAX_OBJECTS) if any(many[count] for many in lacks.values())]:
        count = _pick(rng, wanted)
        things = _draw_objects(rng, count + 1)
        name = next((name for name in _allowed_splits(things) if name in lacks and lacks[name][count]), None)
        if name is None or frozenset(things) in taken:
            continue
        taken.add(frozenset(things))
        lacks[name][count] -= 1
        found[name].append(ShapeScene(things, tuple(_draw_appearance(rng) for _ in things), _draw_background(rng)))
    return found


def _allowed_splits(things: Sequence[SceneObject]) -> tuple[str, ...]:
    """Where a scene may belong, the smallest part first; nowhere, if it is new in both ways."""
    pairs, relations = (not unseen.isdisjoint(combinations(things)) for unseen in (UNSEEN_PAIRS, UNSEEN_RELATIONS))
    if pairs or relations:
        return () if pairs and relations else ("test-pairs",) if pairs else ("test-relations",)
    return "test", "valid", "train"


def _pick(rng: Random, items: Sequence[Item]) -> Item:
    # `random` alone is promised to give the same numbers in every version of Python; `choice` is not.
    return items[int(rng.random() * len(items))]


def _draw_objects(rng: Random, many: int) -> tuple[SceneObject, ...]:
    """Objects in cells of their own, no two of one colour and shape."""
    found: dict[tuple[int, int], SceneObject] = {}
    names: set[tuple[str, str]] = set()
    sizes, colours, forms = list(SIZES), list(COLORS), list(SHAPES)
    while len(found) < many:
        row, column = int(rng.random() * GRID_SIZE), int(rng.random() * GRID_SIZE)
        thing = SceneObject(_pick(rng, sizes), _pick(rng, colours), _pick(rng, forms), row, column)
        if (row, column) not in found and (thing.colour, thing.shape) not in names:
            found[row, column] = thing
            names.add((thing.colour, thing.shape))
    return sort_objects(list(found.values()))


def _draw_appearance(rng: Random) -> Appearance:
    down, across, shade = (2 * rng.random() - 1 for _ in range(3))
    return Appearance(JITTER * down, JITTER * across, SHADE_RANGE * shade)


def _draw_background(rng: Random) -> Background:
    return Background(_pick(rng, shapes.BACKGROUND_COLORS), _pick(rng, shapes.TEXTURES), int(rng.random() * 2**31))


# Writing them


def write_dataset(
    folder: Path,
    image_size: int = IMAGE_SIZE,
    scenes: Mapping[str, Sequence[ShapeScene]] | None = None,
    max_objects: int = MAX_OBJECTS,
) -> dict[str, Path]:
    """A folder for each part, with pictures as PNG files and a captions.jsonl, which is named; what stands there is kept. Of
    scenes that are not given, those with at most so many objects."""
    told, told_in = (
        {"seed": SEED, "side": image_size, **({"most": max_objects} if max_objects < MAX_OBJECTS else {})},
        folder / "scenes.json",
    )
    if scenes is not None or _read_manifest(told_in) != told:
        told_in.unlink(missing_ok=True)  # what it speaks of is there no longer
        found = limit_objects(generate_splits(), max_objects) if scenes is None else scenes
        for name, items in found.items():
            _write_split(folder / name, items, image_size)
        if scenes is None:  # last: what was interrupted is written anew, and so is what others have drawn
            write_json(told_in, told)
    return {name: folder / name / "captions.jsonl" for name in scenes or SPLIT_SIZES}


def _read_manifest(path: Path) -> Any:
    """What stands there; None where nothing does that can be read."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None


def limit_objects(scenes: Mapping[str, Sequence[ShapeScene]], max_objects: int) -> dict[str, list[ShapeScene]]:
    """Those with at most so many objects, each in its part."""
    return {name: [scene for scene in items if len(scene.objects) <= max_objects] for name, items in scenes.items()}


def _write_split(folder: Path, scenes: Sequence[ShapeScene], side: int) -> None:
    from PIL import Image

    (folder / "images").mkdir(parents=True, exist_ok=True)
    lines = []
    for number, scene in enumerate(scenes):
        picture, boxes = render_scene(scene, side)
        name = f"images/{folder.name}-{number:05d}.png"  # of two parts no two have one name: they are no leak
        Image.fromarray(picture).save(folder / name)
        things = [{**thing._asdict(), "box": list(box)} for thing, box in zip(scene.objects, boxes, strict=True)]
        said = [[word.text, word.kind, list(word.objects)] for word in caption_words(scene.objects)]
        lines.append(
            json.dumps({"image": name, "captions": [caption(scene.objects)], "objects": things, "words": said})
        )
    write_text(folder / "captions.jsonl", "".join(f"{line}\n" for line in lines))
