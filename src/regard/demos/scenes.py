"""Generated scenes of colored shapes with captions: the dataset of the captioning demo.

A scene has one to five objects in the cells of a grid, with distinct combinations of color and shape. Rules of the caption:

1. Objects are sorted by color (red, orange, yellow, green, blue, purple, black), then by row, then by column. Objects of
   middle size have no size word.
2. Each further object is named with the position of the first object relative to it: in "a red ring above a blue star and
   left of a black cross", the ring is above the star and left of the cross.
3. In different rows the relation is above or below, for any columns; in the same row left of or right of.

`generate_splits` draws the scenes of all splits without duplicates. Training and validation scenes contain no combination
of `UNSEEN_PAIRS` (color, shape) and `UNSEEN_RELATIONS` (shape, relation, shape). The dataset includes the bounding box of each
object, and the objects named by each word. Images are rendered by arithmetic only, with anti-aliasing, so a scene has the same
bytes on every machine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.demos.grammar import pick
from regard.files import write_file, write_json

ImageArray = NDArray[np.uint8]
FloatArray = NDArray[np.float64]
InsideTest = Callable[[FloatArray, FloatArray], NDArray[np.bool_]]

SAMPLES_PER_AXIS: Final = 4  # Sample points per pixel and axis for the coverage of a shape.


class Box(NamedTuple):
    """Bounding box in pixels from the top left; right and bottom are exclusive."""

    left: int
    top: int
    right: int
    bottom: int


class Background(NamedTuple):
    """Light background color, plain or with a faint texture."""

    color: tuple[int, int, int]
    texture: str = "plain"
    seed: int = 0


COLORS: Final[dict[str, tuple[int, int, int]]] = {
    "red": (206, 32, 38),
    "orange": (243, 128, 22),
    "yellow": (250, 210, 22),
    "green": (42, 148, 62),
    "blue": (34, 92, 200),
    "purple": (136, 52, 160),
    "black": (26, 26, 30),
}

BACKGROUND_COLORS: Final = ((250, 250, 248), (232, 236, 240), (245, 238, 224), (226, 238, 232), (240, 230, 240))
TEXTURES: Final = ("plain", "grain", "stripes", "checks")
TEXTURE_AMPLITUDE: Final = 7.0  # Maximum change of the background by a texture, in pixel values.


def _polygon(corners: Sequence[tuple[float, float]]) -> InsideTest:
    """Inside test of a polygon: a ray to the right crosses the border an odd number of times."""

    def inside(x: FloatArray, y: FloatArray) -> NDArray[np.bool_]:
        odd = np.zeros(np.broadcast_shapes(x.shape, y.shape), dtype=bool)
        for (x1, y1), (x2, y2) in zip(corners, [*corners[1:], corners[0]], strict=True):
            if y1 != y2:
                odd ^= ((y1 > y) != (y2 > y)) & (x < x1 + (y - y1) * ((x2 - x1) / (y2 - y1)))
        return odd

    return inside


_STAR = [  # from the top, with alternating distances from the center
    (radius * math.sin(math.pi * n / 5), -radius * math.cos(math.pi * n / 5))
    for n, radius in enumerate((1.0, 0.42) * 5)
]

SHAPES: Final[dict[str, InsideTest]] = {
    "circle": lambda x, y: x * x + y * y < 0.94**2,
    "square": lambda x, y: (abs(x) < 0.84) & (abs(y) < 0.84),
    "triangle": _polygon([(0.0, -0.95), (0.98, 0.85), (-0.98, 0.85)]),
    "star": _polygon(_STAR),
    "cross": lambda x, y: ((abs(x) < 0.3) & (abs(y) < 0.95)) | ((abs(y) < 0.3) & (abs(x) < 0.95)),
    "ring": lambda x, y: (x * x + y * y < 0.96**2) & (x * x + y * y > 0.52**2),
}
"""Inside tests; each shape is within a distance of 1 from the center on both axes."""


def coverage(shape: str, center: tuple[float, float], radius: float) -> tuple[Box, FloatArray]:
    """Bounding box of a shape, and the covered fraction of each pixel in the box. `center` is (y, x) in pixels."""
    across = math.ceil(2 * radius) + 3
    top, left = (math.floor(middle - radius) - 1 for middle in center)
    at = (np.arange(across * SAMPLES_PER_AXIS) + 0.5) / SAMPLES_PER_AXIS
    y, x = (at + top - center[0]) / radius, (at + left - center[1]) / radius
    inside = SHAPES[shape](x[None], y[:, None])
    shares = inside.reshape(across, SAMPLES_PER_AXIS, across, SAMPLES_PER_AXIS).mean((1, 3))
    rows, columns = shares.any(1).nonzero()[0], shares.any(0).nonzero()[0]
    (first, last), (start, end) = (rows[0], rows[-1] + 1), (columns[0], columns[-1] + 1)
    box = Box(left + int(start), top + int(first), left + int(end), top + int(last))
    return box, shares[first:last, start:end]


def render_background(background: Background, image_size: int) -> FloatArray:
    """(side, side, 3) background with texture."""
    at = np.arange(image_size)
    period = max(2, image_size // 16)
    shade = np.zeros((image_size, image_size))
    if background.texture == "grain":  # NumPy guarantees that the values of RandomState never change
        shade = 2 * np.random.RandomState(background.seed).random_sample((image_size, image_size)) - 1
    elif background.texture == "stripes":
        stripes = np.where((at + background.seed // 2) // period % 2, 1.0, -1.0)
        shade += stripes[:, None] if background.seed % 2 else stripes
    elif background.texture == "checks":
        shade += np.where((at[:, None] // period + at[None] // period + background.seed) % 2, 1.0, -1.0)
    return np.array(background.color, dtype=np.float64) + TEXTURE_AMPLITUDE * shade[..., None]


WordKind = Literal["size", "color", "shape", "relation", ""]

SEED: Final = 2015
IMAGE_SIZE: Final = 64  # image height and width in pixels
GRID_SIZE: Final = 3  # grid cells per side
MAX_OBJECTS: Final = 5  # maximum number of objects in a scene

SIZES: Final = {"small": 0.2, "middle": 0.3, "large": 0.4}  # Radius in cells.
NAMED_SIZES: Final = ("small", "large")  # Sizes with a size word.
JITTER: Final = 0.06  # Maximum offset of an object from the center of the cell, in cells.
SHADE_RANGE: Final = 0.12  # Maximum fraction by which a color is blended with white or black.

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


class ShapeScene(NamedTuple):
    objects: tuple[SceneObject, ...]  # in the order of the caption
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
    words: list[SceneWord] = []
    for number, thing in enumerate(objects):
        if number:
            near, *rest = relation(objects[0], thing).split()
            words += [SceneWord("and")] * (number > 1)
            words += [SceneWord(near, "relation", (0, number)), *map(SceneWord, rest)]
        phrase = [SceneWord(thing.size, "size", (number,))] if thing.size in NAMED_SIZES else []
        phrase += [SceneWord(thing.colour, "color", (number,)), SceneWord(thing.shape, "shape", (number,))]
        words += [SceneWord("an" if phrase[0].text[0] in "aeiou" else "a"), *phrase]
    return words


def caption(objects: Sequence[SceneObject]) -> str:
    return " ".join(word.text for word in caption_words(objects))


# Rendering


def render_scene(scene: ShapeScene, image_size: int = IMAGE_SIZE) -> tuple[ImageArray, tuple[Box, ...]]:
    """(side, side, 3) image, and the bounding box of each object."""
    pixels, cell, boxes = render_background(scene.background, image_size), image_size / GRID_SIZE, []
    for thing, look in zip(scene.objects, scene.appearances, strict=True):
        middle = (thing.row + 0.5 + look.offset_y) * cell, (thing.column + 0.5 + look.offset_x) * cell
        box, shares = coverage(thing.shape, middle, SIZES[thing.size] * cell)
        light = 255.0 if look.shade > 0 else 0.0
        color = np.array([value + abs(look.shade) * (light - value) for value in COLORS[thing.colour]])
        part = pixels[box.top : box.bottom, box.left : box.right]
        part += shares[..., None] * (color - part)
        boxes.append(box)
    return np.rint(pixels.clip(0, 255)).astype(np.uint8), tuple(boxes)


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
    missing = {name: list(many) for name, many in sizes.items()}
    splits: dict[str, list[ShapeScene]] = {name: [] for name in sizes}
    while wanted := [count for count in range(MAX_OBJECTS) if any(many[count] for many in missing.values())]:
        count = pick(rng, wanted)
        things = _draw_objects(rng, count + 1)
        # splits allowed for a scene, smallest first; none if the scene has both an unseen pair and an unseen relation
        pairs, relations = (not unseen.isdisjoint(combinations(things)) for unseen in (UNSEEN_PAIRS, UNSEEN_RELATIONS))
        allowed = ["test", "valid", "train"]
        if pairs or relations:
            allowed = [] if pairs and relations else ["test-pairs" if pairs else "test-relations"]
        name = next((name for name in allowed if name in missing and missing[name][count]), None)
        if name is None or frozenset(things) in taken:
            continue
        taken.add(frozenset(things))
        missing[name][count] -= 1
        appearances = []
        for _ in things:
            down, across, shade = (2 * rng.random() - 1 for _ in range(3))
            appearances.append(Appearance(JITTER * down, JITTER * across, SHADE_RANGE * shade))
        background = Background(pick(rng, BACKGROUND_COLORS), pick(rng, TEXTURES), int(rng.random() * 2**31))
        splits[name].append(ShapeScene(things, tuple(appearances), background))
    return splits


def _draw_objects(rng: Random, many: int) -> tuple[SceneObject, ...]:
    """Objects in distinct cells with distinct combinations of color and shape."""
    found: dict[tuple[int, int], SceneObject] = {}
    names: set[tuple[str, str]] = set()
    sizes, colours, forms = list(SIZES), list(COLORS), list(SHAPES)
    while len(found) < many:
        row, column = int(rng.random() * GRID_SIZE), int(rng.random() * GRID_SIZE)
        thing = SceneObject(pick(rng, sizes), pick(rng, colours), pick(rng, forms), row, column)
        if (row, column) not in found and (thing.colour, thing.shape) not in names:
            found[row, column] = thing
            names.add((thing.colour, thing.shape))
    return sort_objects(list(found.values()))


# Writing


def write_dataset(
    folder: Path,
    image_size: int = IMAGE_SIZE,
    scenes: Mapping[str, Sequence[ShapeScene]] | None = None,
    max_objects: int = MAX_OBJECTS,
) -> dict[str, Path]:
    """Write a folder per split with PNG images and captions.jsonl, unless already present; return the captions files. The
    default scenes are limited to `max_objects` objects."""
    manifest = {"seed": SEED, "side": image_size, **({"most": max_objects} if max_objects < MAX_OBJECTS else {})}
    path = folder / "scenes.json"
    try:
        is_complete = scenes is None and json.loads(path.read_text("utf-8")) == manifest
    except (OSError, ValueError):
        is_complete = False
    if not is_complete:
        path.unlink(missing_ok=True)  # the manifest is invalid while files are rewritten
        for name, items in (generate_splits() if scenes is None else scenes).items():
            limited = [scene for scene in items if scenes is not None or len(scene.objects) <= max_objects]
            _write_split(folder / name, limited, image_size)
        if scenes is None:  # written last, so that an interrupted or custom dataset is rewritten next time
            write_json(path, manifest)
    return {name: folder / name / "captions.jsonl" for name in scenes or SPLIT_SIZES}


def _write_split(folder: Path, scenes: Sequence[ShapeScene], side: int) -> None:
    from PIL import Image

    (folder / "images").mkdir(parents=True, exist_ok=True)
    lines = []
    for number, scene in enumerate(scenes):
        image, boxes = render_scene(scene, side)
        name = f"images/{folder.name}-{number:05d}.png"  # names differ between splits, so none looks like a leak
        Image.fromarray(image).save(folder / name)
        things = [{**thing._asdict(), "box": list(box)} for thing, box in zip(scene.objects, boxes, strict=True)]
        words = [[word.text, word.kind, list(word.objects)] for word in caption_words(scene.objects)]
        lines.append(
            json.dumps({"image": name, "captions": [caption(scene.objects)], "objects": things, "words": words})
        )
    write_file(folder / "captions.jsonl", "".join(f"{line}\n" for line in lines))
