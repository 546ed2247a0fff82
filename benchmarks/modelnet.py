"""ModelNet10 as 30 x 30 x 30 occupied cells: a file of points for each shape, in folders of classes.

    python benchmarks/modelnet.py prepare SOURCE DATA [--surface]     # SOURCE: an .npz with X_train, y_train, X_test, y_test

DATA has train, valid and test, each with a folder for a class. A point is the number of an occupied cell along x, y and z,
which points upwards; `--surface` leaves out cells that are surrounded by others on all six sides. A tenth of what is trained on
is held out for validation by the hash of its cells, so that shapes that are there twice are on one side. Shapes without any
cell cannot be written, and are told: one of the test part has none, and counts as answered wrongly.
"""

from __future__ import annotations

import argparse
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CLASSES = (
    "bathtub", "bed", "chair", "desk", "dresser", "monitor", "night_stand", "sofa", "table", "toilet",
)  # fmt: skip
HELD_OUT = 10
"""One of so many is validated on."""

Cells = NDArray[np.bool_]


def part_of(cells: Cells) -> str:
    """Whether a shape is trained on or validated on: by its cells alone."""
    number = int.from_bytes(blake2b(np.packbits(cells).tobytes(), digest_size=4).digest(), "big")
    return "valid" if number % HELD_OUT == 0 else "train"


def surface(cells: Cells) -> Cells:
    """Those that are not surrounded by others on all six sides."""
    around = np.pad(cells, 1)
    inside = around.copy()
    for axis in range(3):
        for step in (-1, 1):
            inside &= np.roll(around, step, axis)
    return cells & ~inside[1:-1, 1:-1, 1:-1]


def prepare(source: Path, out: Path, hollow: bool = False) -> dict[str, int]:
    """Write the points of every shape; how many each part has."""
    counts: dict[str, int] = {}
    with np.load(source, allow_pickle=False) as arrays:
        found = {part: (arrays[f"X_{part}"], arrays[f"y_{part}"]) for part in ("train", "test")}
    for given, (shapes, labels) in found.items():
        empty = 0
        for number, (shape, label) in enumerate(zip(shapes, labels, strict=True)):
            cells = shape.astype(bool)
            part = part_of(cells) if given == "train" else given
            points = np.argwhere(surface(cells) if hollow else cells).astype(np.uint8)
            if not len(points):
                empty += 1
                continue
            folder = out / part / CLASSES[int(label)]
            folder.mkdir(parents=True, exist_ok=True)
            np.save(folder / f"{given}-{number:04d}.npy", points)
            counts[part] = counts.get(part, 0) + 1
        if empty:
            print(f"{given}: {empty} of {len(shapes)} shapes have no cell, and are not written")
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=("prepare",))
    parser.add_argument("source", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--surface", action="store_true")
    asked = parser.parse_args()
    for part, many in prepare(asked.source, asked.data, asked.surface).items():
        print(f"{part}: {many:,} shapes")


if __name__ == "__main__":
    main()
