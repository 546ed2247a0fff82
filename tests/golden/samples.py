"""Tiny training files for all kinds of data, computed from integers only, for identical bytes on all machines."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

NOUNS = ("cat", "dog", "cow", "hen", "fox", "owl")
VERBS = ("sees", "eats", "finds", "likes")
THINGS = ("bread", "fish", "milk", "corn", "grass")
TRANSLATED = dict(
    zip(
        (*NOUNS, *VERBS, *THINGS),
        ("Katze", "Hund", "Kuh", "Huhn", "Fuchs", "Eule", "sieht", "isst", "findet", "mag", "Brot", "Fisch", "Milch", "Mais",
         "Gras"),
        strict=True,
    )
)  # fmt: skip
COLORS = ("red", "green", "blue", "white")


def words(number: int) -> tuple[str, str, str]:
    return NOUNS[number % 6], VERBS[number * 5 % 4], THINGS[number * 7 % 5]


def sentence(number: int) -> str:
    """1 to 3 clauses, for different lengths."""
    return " and ".join(" ".join(words(number + 11 * part)) for part in range(1 + number % 3))


def written(path: Path, rows: Iterable[str]) -> str:
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return str(path)


def translation(folder: Path) -> str:
    texts = [sentence(number) for number in range(30)]
    rows = [f"{text}\t{' '.join(TRANSLATED.get(word, 'und') for word in text.split())}" for text in texts]
    return written(folder / "pairs.tsv", rows)


def reversal(folder: Path) -> str:
    rows = [[str((number * 7 + place * place) % 10) for place in range(2 + number % 4)] for number in range(40)]
    return written(folder / "questions.tsv", dict.fromkeys(f"{' '.join(row)}\t{' '.join(row[::-1])}" for row in rows))


def documents(folder: Path) -> str:
    (folder / "documents").mkdir()
    for number in range(20):
        text = "".join(f"the {sentence(number + 4 * part)}.\n" for part in range(2 + number % 4))
        (folder / "documents" / f"{number:02}.txt").write_text(text, encoding="utf-8")
    return str(folder / "documents")


def labeled(folder: Path) -> str:
    rows = [f"{sentence(number)}\t{words(number)[1]}" for number in range(30)]
    return written(folder / "labels.tsv", ["text\tlabel", *rows])


def tagged(folder: Path) -> str:
    tags = {**dict.fromkeys(NOUNS, "B-A"), **dict.fromkeys(THINGS, "B-B")}
    texts = [[f"{word} {tags.get(word, 'O')}" for word in sentence(number).split()] for number in range(30)]
    return written(folder / "tags.conll", ["\n\n".join(map("\n".join, texts))])


def questions(folder: Path) -> str:
    rows = []
    for number in range(30):
        noun, verb, thing = words(number)
        context = f"today {sentence(number)} here"
        answer = {"answer": thing, "start": context.index(thing)} if number % 5 else {"answer": ""}
        rows.append(json.dumps({"question": f"what does the {noun} {verb} ?", "context": context, **answer}))
    return written(folder / "questions.jsonl", rows)


def choices(folder: Path) -> str:
    rows = []
    for number in range(30):
        offered = [NOUNS[(number + 2 * place) % 6] for place in range(2 + number % 2)]
        right = number % len(offered)
        row = {"context": f"a {offered[right]} came", "question": "who ?", "choices": offered, "label": right}
        rows.append(json.dumps(row))
    return written(folder / "choices.jsonl", rows)


def related(folder: Path) -> str:
    rows = [f"{' '.join(words(number))}\twhat {' '.join(reversed(words(number)))} ?" for number in range(30)]
    return written(folder / "related.tsv", dict.fromkeys(rows))


def pixels(number: int, height: int = 20, width: int = 24) -> np.ndarray:
    """Image with two gradients and a rectangle whose position and color depend on the number: (height, width, 3) uint8."""
    y, x = np.mgrid[:height, :width]
    image = np.stack([(y * 9 + number * 31) % 256, (x * 8 + number * 17) % 256, (x * y + number * 5) % 256], -1)
    top, left = number * 3 % (height // 2), number * 5 % (width // 2)
    image[top : top + height // 2, left : left + width // 2, number % 3] = 255
    return image.astype(np.uint8)


def region(number: int, height: int = 20, width: int = 24) -> np.ndarray:
    """Class mask with classes 0 to 2, (height, width); 1 and 2 are the rectangle of `pixels`."""
    mask = np.zeros((height, width), np.uint8)
    top, left = number * 3 % (height // 2), number * 5 % (width // 2)
    mask[top : top + height // 2, left : left + width // 2] = 1 + number % 2
    return mask


def saved(path: Path, content: np.ndarray) -> None:
    """Write an image or an array."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".png":
        Image.fromarray(content).save(path)
    else:
        np.save(path, content)


def sorted_images(folder: Path) -> str:
    for number in range(18):
        saved(folder / "classes" / "abc"[number % 3] / f"{number:02}.png", pixels(number))
    return str(folder / "classes")


def segmented_images(folder: Path) -> str:
    for number in range(10):
        saved(folder / "scenes" / "images" / f"{number}.png", pixels(number))
        saved(folder / "scenes" / "masks" / f"{number}.png", region(number))
    return str(folder / "scenes")


def depth_images(folder: Path) -> str:
    for number in range(10):
        saved(folder / "spaces" / "images" / f"{number}.png", pixels(number))
        depth = 1 + region(number).astype(np.float32) + np.arange(24, dtype=np.float32) / 16
        saved(folder / "spaces" / "depth" / f"{number}.npy", depth)
    return str(folder / "spaces")


def captioned_images(folder: Path) -> str:
    rows = []
    for number in range(14):
        color = COLORS[number % 4]
        saved(folder / "album" / "images" / f"{number}.png", pixels(number))
        captions = [f"a {color} thing", f"this is {color} , really"]
        rows.append(json.dumps({"image": f"{number}.png", "captions": captions}))
    written(folder / "album" / "captions.jsonl", rows)
    return str(folder / "album")


def cloud(number: int, points: int = 40) -> np.ndarray:
    """Points on a plane or in a box, (points, 3), at multiples of 1/64, which floats represent exactly."""
    index = np.arange(points)
    places = np.stack([index * 7 + number, index * 13 + 3 * number, index * 29 + index**2], -1) % 61
    places[:, 2] //= 20 if number % 2 else 1
    return (places / 64).astype(np.float32)


def sorted_clouds(folder: Path) -> str:
    for number in range(14):
        saved(folder / "solids" / ("box", "plane")[number % 2] / f"{number:02}.npy", cloud(number))
    return str(folder / "solids")


def segmented_clouds(folder: Path) -> str:
    (folder / "rooms").mkdir()
    for number in range(10):
        rows = [f"{x},{y},{z},{int(x > 0.5)}" for x, y, z in cloud(number).tolist()]
        written(folder / "rooms" / f"{number}.csv", ["x,y,z,label", *rows])
    return str(folder / "rooms")
