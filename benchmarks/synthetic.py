"""Small deterministic data sets for `--smoke`, in the file layouts that the benchmark scripts read."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import numpy as np

SUBJECTS = ("the cat", "a dog", "the old man", "my sister", "the small bird", "a teacher")
VERBS = ("sees", "likes", "finds", "follows", "hears", "draws")
OBJECTS = ("the house", "a red ball", "the green tree", "some water", "the long river", "an apple")
PLACES = ("Oslo", "Vienna", "Paris", "Rome")


def sentence(draw: random.Random) -> str:
    return f"{draw.choice(SUBJECTS)} {draw.choice(VERBS)} {draw.choice(OBJECTS)} ."


def sentences(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [sentence(draw) for _ in range(count)]


def _write(path: Path, text: str) -> Path:
    """Write a text file, compressed if its name ends in .gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), 1) if path.suffix == ".gz" else text.encode())
    return path


def _lines(rows: list[str]) -> str:
    return "".join(f"{row}\n" for row in rows)


def parallel(folder: Path, names: tuple[str, ...], count: int = 24) -> Path:
    """NAME.en.gz and NAME.de.gz: sentences, and the same words in reversed order."""
    for seed, name in enumerate(names):
        rows = sentences(count, seed)
        _write(folder / f"{name}.en.gz", _lines(rows))
        _write(folder / f"{name}.de.gz", _lines([" ".join(reversed(row.split())) for row in rows]))
    return folder


def sst2(folder: Path, count: int = 60) -> Path:
    """train.tsv.gz and dev.tsv.gz with the columns sentence and label."""
    for seed, (name, many) in enumerate((("train", count), ("dev", 12))):
        rows = [f"{row}\t{number % 2}" for number, row in enumerate(sentences(many, seed))]
        _write(folder / f"{name}.tsv.gz", _lines(["sentence\tlabel", *rows]))
    return folder


def conll(folder: Path, count: int = 12) -> Path:
    """Sentences that end in a place name, tagged as in CoNLL-2003."""
    for seed, name in enumerate(("train", "dev", "test")):
        draw, blocks = random.Random(seed), []
        for row in sentences(count, seed):
            words = [(word, "O") for word in row.split()[:-1]] + [
                ("in", "O"),
                (draw.choice(PLACES), "I-LOC"),
                (".", "O"),
            ]
            blocks.append("".join(f"{word} X X {tag}\n" for word, tag in words))
        _write(folder / f"{name}.conll.gz", "\n".join(blocks))
    return folder


def squad(folder: Path, articles: int = 6) -> Path:
    """Articles of one paragraph with one question, in the layout of SQuAD 1.1."""
    for seed, name in enumerate(("train", "dev")):
        draw, made = random.Random(seed), []
        for number in range(articles):
            place = draw.choice(PLACES)
            start = f"{sentence(draw)} {draw.choice(SUBJECTS)} lives in "
            asked = {
                "id": f"{name}-{number}", "question": "where is it ?",
                "answers": [{"text": place, "answer_start": len(start)}],
            }  # fmt: skip
            made.append({"title": str(number), "paragraphs": [{"context": f"{start}{place} .", "qas": [asked]}]})
        _write(folder / f"{name}.json.gz", json.dumps({"version": "1.1", "data": made}))
    return folder


def wikitext(folder: Path, articles: int = 6) -> Path:
    """wiki.train.raw.gz, wiki.valid.raw.gz and wiki.test.raw.gz: articles with a title line."""
    for seed, name in enumerate(("train", "valid", "test")):
        made = [f" = Article {n} = \n\n {' '.join(sentences(6, 100 * seed + n))} \n" for n in range(articles)]
        _write(folder / f"wiki.{name}.raw.gz", "".join(made))
    return folder


def shakespeare(folder: Path, count: int = 60) -> Path:
    """input.txt of tiny Shakespeare."""
    _write(folder / "input.txt", _lines(sentences(count)))
    return folder


def fashion(folder: Path, train: int = 24, test: int = 8) -> Path:
    """The four *-ubyte.gz files of Fashion-MNIST with random images."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    for name, count in (("train", train), ("t10k", test)):
        tables = {
            "images-idx3": draw.integers(0, 256, (count, 28, 28), dtype=np.uint8),
            "labels-idx1": (np.arange(count) % 2).astype(np.uint8),
        }
        for kind, values in tables.items():
            head = bytes([0, 0, 8, values.ndim]) + b"".join(side.to_bytes(4, "big") for side in values.shape)
            (folder / f"{name}-{kind}-ubyte.gz").write_bytes(gzip.compress(head + values.tobytes(), 1))
    return folder


def _picture(path: Path, values: np.ndarray) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)


def classes(folder: Path, side: int = 32) -> Path:
    """Images in one folder for each of two classes."""
    draw = np.random.default_rng(0)
    for number in range(12):
        _picture(folder / f"class{number % 2}/{number}.png", draw.integers(0, 256, (side, side, 3), dtype=np.uint8))
    return folder


def camvid(folder: Path, side: int = 32) -> Path:
    """train, val and test, each with images and masks, and classes.txt."""
    draw = np.random.default_rng(0)
    _write(folder / "classes.txt", _lines([f"class{number}" for number in range(3)]))
    for part, count in (("train", 4), ("val", 2), ("test", 5)):
        for number in range(count):
            _picture(folder / part / f"images/{number}.png", draw.integers(0, 256, (side, side, 3), dtype=np.uint8))
            _picture(folder / part / f"masks/{number}.png", draw.integers(0, 3, (side, side), dtype=np.uint8))
    return folder


def tum(folder: Path, side: int = 32) -> Path:
    """train and test, each with images and depth in units of 1/5000 m."""
    draw = np.random.default_rng(0)
    for part, count in (("train", 10), ("test", 5)):
        for number in range(count):
            _picture(folder / part / f"images/{number}.png", draw.integers(0, 256, (side, side, 3), dtype=np.uint8))
            _picture(folder / part / f"depth/{number}.png", draw.integers(3000, 9000, (side, side), dtype=np.uint16))
    return folder


def flickr(folder: Path, side: int = 32) -> Path:
    """captions.jsonl with the splits train, dev and test, and images."""
    draw, rows = np.random.default_rng(0), []
    for part, count in (("train", 8), ("dev", 2), ("test", 6)):
        for number in range(count):
            name = f"images/{part}-{number}.png"
            _picture(folder / name, draw.integers(0, 256, (side, side, 3), dtype=np.uint8))
            rows.append(json.dumps({"image": name, "captions": sentences(2, number), "split": part}))
    _write(folder / "captions.jsonl", _lines(rows))
    return folder


def voxels(path: Path, count: int = 8) -> Path:
    """An .npz of boxes in 30 x 30 x 30 voxels, of two classes, in the layout of ModelNet10."""
    draw = np.random.default_rng(0)
    arrays = {}
    for part in ("train", "test"):
        cells, labels = np.zeros((count, 30, 30, 30), dtype=np.uint8), np.arange(count) % 2
        for shape, label in zip(cells, labels, strict=True):
            x, y, z = draw.integers(6, 12, 3)
            shape[x : x + 12, y : y + (12 if label else 4), z : z + 8] = 1
        arrays |= {f"X_{part}": cells, f"y_{part}": labels}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path
