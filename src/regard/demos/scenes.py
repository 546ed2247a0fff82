"""Generated scenes of colored shapes with captions: the dataset of the captioning demo.

A scene has one to five objects in the cells of a grid, with distinct combinations of color and shape. Rules of the caption:

1. Objects are sorted by color (red, orange, yellow, green, blue, purple, black), then by row, then by column. Objects of
   middle size have no size word.
2. Each further object is named with the position of the first object relative to it: in "a red ring above a blue star and
   left of a black cross", the ring is above the star and left of the cross.
3. In different rows the relation is above or below, for any columns; in the same row left of or right of.

`generate_splits` draws the scenes of all splits without duplicates. Training and validation scenes contain no combination
of `UNSEEN_PAIRS` (color, shape) and `UNSEEN_RELATIONS` (shape, relation, shape). The dataset includes the bounding box of each
object, and the objects named by each word.
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
"""image height and width in pixels"""
GRID_SIZE: Final = 3
"""grid cells per side"""
MAX_OBJECTS: Final = 5
"""maximum number of objects in a scene"""

SIZES: Final = {"small": 0.2, "middle": 0.3, "large": 0.4}
"""Radius in cells."""
NAMED_SIZES: Final = ("small", "large")
"""Sizes with a size word."""
JITTER: Final = 0.06
"""Maximum offset of an object from the center of the cell, in cells."""
SHADE_RANGE: Final = 0.12
"""Maximum fraction by which a color is blended with white or black."""

RELATIONS: Final = ("above", "below", "left of", "right of")

SPLIT_SIZES: Final[dict[str, tuple[int, ...]]] = {
    "test": (100, 475, 475, 475, 475),
    "test-pairs": (100, 475, 475, 475, 475),
    "test-relations": (0, 500, 500, 500, 500),
    "valid": (40, 240, 240, 240, 240),
    "train": (600, 4850, 4850, 4850, 4850),
}
"""Number of scenes with one, two, … objects per split. Each scene of `test-pairs` has a color and shape combination that is
absent from training, each scene of `test-relations` a relation of two shapes that is absent; `test` has neither."""

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
    """Object and grid cell."""

    size: str
    colour: str
    shape: str
    row: int
    column: int


class Appearance(NamedTuple):
    """Properties absent from the caption: offset from the center of the cell, and brightness."""

    offset_y: float
    offset_x: float
    shade: float


class SceneWord(NamedTuple):
    """Word of a caption, kind of word, and indices of the named objects; a relation names two."""

    text: str
    kind: WordKind = ""
    objects: tuple[int, ...] = ()


class ParsedCaption(NamedTuple):
    """Size, color and shape of each object, and the relations of the first object to the others."""

    objects: tuple[tuple[str, str, str], ...]
    relations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShapeScene:
    objects: tuple[SceneObject, ...]
    """in the order of the caption"""
    appearances: tuple[Appearance, ...]
    background: Background


# Captions


def sort_objects(objects: Sequence[SceneObject]) -> tuple[SceneObject, ...]:
    colours = list(COLORS)
    return tuple(sorted(objects, key=lambda thing: (colours.index(thing.colour), thing.row, thing.column)))


def relation(first: SceneObject, other: SceneObject) -> str:
    """Position of the first object relative to the other."""
    if first.row != other.row:
        return "above" if first.row < other.row else "below"
    return "left of" if first.column < other.column else "right of"


def caption_words(objects: Sequence[SceneObject]) -> list[SceneWord]:
    """Words of the caption of sorted objects."""
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
    """Objects and relations of a caption; None for text outside the grammar of captions."""
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


# Rendering


def render_scene(scene: ShapeScene, image_size: int = IMAGE_SIZE) -> tuple[ImageArray, tuple[Box, ...]]:
    """(side, side, 3) image, and the bounding box of each object."""
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


# Generating the splits


def combinations(objects: Sequence[SceneObject]) -> Iterator[tuple[str, ...]]:
    """Combinations that may be held out: (color, shape) and (shape, relation, shape)."""
    for thing in objects:
        yield thing.colour, thing.shape
    for other in objects[1:]:
        yield objects[0].shape, relation(objects[0], other), other.shape


def generate_splits(seed: int = SEED, sizes: Mapping[str, Sequence[int]] = SPLIT_SIZES) -> dict[str, list[ShapeScene]]:
    """Scenes of each split, identical on every machine, without duplicate arrangements of objects."""
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
    """Splits allowed for a scene, smallest first; none if the scene has both an unseen pair and an unseen relation."""
    pairs, relations = (not unseen.isdisjoint(combinations(things)) for unseen in (UNSEEN_PAIRS, UNSEEN_RELATIONS))
    if pairs or relations:
        return () if pairs and relations else ("test-pairs",) if pairs else ("test-relations",)
    return "test", "valid", "train"


def _pick(rng: Random, items: Sequence[Item]) -> Item:
    # Python guarantees the same values of `random` in all versions, but not of `choice`.
    return items[int(rng.random() * len(items))]


def _draw_objects(rng: Random, many: int) -> tuple[SceneObject, ...]:
    """Objects in distinct cells with distinct combinations of color and shape."""
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


# Writing


def write_dataset(
    folder: Path,
    image_size: int = IMAGE_SIZE,
    scenes: Mapping[str, Sequence[ShapeScene]] | None = None,
    max_objects: int = MAX_OBJECTS,
) -> dict[str, Path]:
    """Write a folder per split with PNG images and captions.jsonl, unless already present; return the captions files. The
    default scenes are limited to `max_objects` objects."""
    told, told_in = (
        {"seed": SEED, "side": image_size, **({"most": max_objects} if max_objects < MAX_OBJECTS else {})},
        folder / "scenes.json",
    )
    if scenes is not None or _read_manifest(told_in) != told:
        told_in.unlink(missing_ok=True)  # the manifest is invalid while files are rewritten
        found = limit_objects(generate_splits(), max_objects) if scenes is None else scenes
        for name, items in found.items():
            _write_split(folder / name, items, image_size)
        if scenes is None:  # written last, so that an interrupted or custom dataset is rewritten next time
            write_json(told_in, told)
    return {name: folder / name / "captions.jsonl" for name in scenes or SPLIT_SIZES}


def _read_manifest(path: Path) -> Any:
    """Content of the manifest; None if missing or unreadable."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None


def limit_objects(scenes: Mapping[str, Sequence[ShapeScene]], max_objects: int) -> dict[str, list[ShapeScene]]:
    """Scenes with at most `max_objects` objects, per split."""
    return {name: [scene for scene in items if len(scene.objects) <= max_objects] for name, items in scenes.items()}


def _write_split(folder: Path, scenes: Sequence[ShapeScene], side: int) -> None:
    from PIL import Image

    (folder / "images").mkdir(parents=True, exist_ok=True)
    lines = []
    for number, scene in enumerate(scenes):
        picture, boxes = render_scene(scene, side)
        name = f"images/{folder.name}-{number:05d}.png"  # names differ between splits, so none looks like a leak
        Image.fromarray(picture).save(folder / name)
        things = [{**thing._asdict(), "box": list(box)} for thing, box in zip(scene.objects, boxes, strict=True)]
        said = [[word.text, word.kind, list(word.objects)] for word in caption_words(scene.objects)]
        lines.append(
            json.dumps({"image": name, "captions": [caption(scene.objects)], "objects": things, "words": said})
        )
    write_text(folder / "captions.jsonl", "".join(f"{line}\n" for line in lines))
