"""ModelNet10 as 30 x 30 x 30 occupied cells: a file of points for each shape, in folders of classes.

    python benchmarks/modelnet.py prepare SOURCE DATA [--surface]     # SOURCE: an .npz with X_train, y_train, X_test, y_test
    python benchmarks/modelnet.py prepare SOURCE DATA --surface --points 2048 [--normals] [--held-out 5] [--all]

DATA has train, valid and test, each with a folder for a class. A point is the number of an occupied cell along x, y and z,
which points upwards; `--surface` leaves out cells that are surrounded by others on all six sides, and `--points` spreads so
many points in the cells of every shape, each somewhere in its cell. `--normals` point out of the body, where it is thick enough
to have an inside. A tenth of what is trained on, or what `--held-out` says, is held out for validation by the hash of its
cells, so that shapes that are there twice are on one side; with `--all` it is trained on too, once everything is chosen. Shapes
without any cell cannot be written, and are told: one of the test part has none, and counts as answered wrongly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import harness
import numpy as np
import synthetic
from numpy.typing import NDArray

CLASSES = (
    "bathtub", "bed", "chair", "desk", "dresser", "monitor", "night_stand", "sofa", "table", "toilet",
)  # fmt: skip
HELD_OUT = 10
"""One of so many is validated on."""
FLAT = 1e-3
"""the least slope of the blurred body that a normal is read from"""

Cells = NDArray[np.bool_]


@dataclass(frozen=True)
class Wanted:
    """What is written of a shape, and which are held out."""

    surface: bool = False
    points: int = 0
    """0: one for each cell"""
    normals: bool = False
    held_out: int = HELD_OUT
    all: bool = False


def held_out(cells: Cells, of: int = HELD_OUT) -> bool:
    """Whether a shape is validated on: by its cells alone."""
    number = int.from_bytes(blake2b(np.packbits(cells).tobytes(), digest_size=4).digest(), "big")
    return number % of == 0


def surface(cells: Cells) -> Cells:
    """Those that are not surrounded by others on all six sides."""
    around = np.pad(cells, 1)
    inside = around.copy()
    for axis in range(3):
        for step in (-1, 1):
            inside &= np.roll(around, step, axis)
    return cells & ~inside[1:-1, 1:-1, 1:-1]


def slopes(cells: Cells) -> NDArray[np.float64]:
    """(x, y, z, 3) the direction out of the body, of length 1, or 0 where it is as thick on both sides: how the body, blurred
    over three cells along each axis, falls off."""
    blurred = np.pad(cells.astype(np.float64), 2)
    for axis in range(3):
        blurred = (np.roll(blurred, 1, axis) + 2 * blurred + np.roll(blurred, -1, axis)) / 4
    down = -np.stack(np.gradient(blurred), axis=-1)[2:-2, 2:-2, 2:-2]
    steep = np.sqrt((down**2).sum(axis=-1, keepdims=True))
    return np.where(steep > FLAT, down / np.maximum(steep, FLAT), 0.0)


def spread(
    cells: NDArray[np.int64], many: int, random: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """(many, 3) places, and the number of the cell of each: every cell has as many, give or take one."""
    rounds = [random.permutation(len(cells)) for _ in range(-(-many // len(cells)))]
    of = np.concatenate(rounds)[:many]
    return cells[of] + random.random((many, 3)) - 0.5, of


def written(cells: Cells, number: int, wanted: Wanted) -> NDArray[Any]:
    """(N, 3 or 6) the rows of a shape."""
    there = np.argwhere(surface(cells) if wanted.surface else cells)
    if not len(there):
        return there
    places, of = there, np.arange(len(there))
    if wanted.points:
        places, of = spread(there, wanted.points, np.random.default_rng(number))
    if wanted.normals:
        places = np.concatenate([places, slopes(cells)[tuple(there[of].T)]], axis=1)
    return places.astype(np.float16 if wanted.points or wanted.normals else np.uint8)


def prepare(source: Path, out: Path, wanted: Wanted | None = None) -> dict[str, int]:
    """Write the points of every shape; how many each part has."""
    wanted = wanted or Wanted()
    counts: dict[str, int] = {}
    with np.load(source, allow_pickle=False) as arrays:
        found = {part: (arrays[f"X_{part}"], arrays[f"y_{part}"]) for part in ("train", "test")}
    for given, (shapes, labels) in found.items():
        empty = 0
        for number, (shape, label) in enumerate(zip(shapes, labels, strict=True)):
            cells = shape.astype(bool)
            points = written(cells, number, wanted)
            if not len(points):
                empty += 1
                continue
            out_of_it = given == "train" and held_out(cells, wanted.held_out)
            for part in ("valid", "train")[: 1 + wanted.all] if out_of_it else (given,):
                folder = out / part / CLASSES[int(label)]
                folder.mkdir(parents=True, exist_ok=True)
                np.save(folder / f"{given}-{number:04d}.npy", points)
                counts[part] = counts.get(part, 0) + 1
        if empty:
            print(f"{given}: {empty} of {len(shapes)} shapes have no cell, and are not written")
    return counts


def main(argv: Sequence[str] | None = None) -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("work", choices=("prepare",))
    parser.add_argument("source", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--surface", action="store_true")
    parser.add_argument("--points", type=int, default=0, help="so many of each shape, spread in its cells")
    parser.add_argument("--normals", action="store_true")
    parser.add_argument("--held-out", type=int, default=HELD_OUT, help="one of so many is validated on")
    parser.add_argument("--all", action="store_true", help="what is held out is trained on too")
    asked = parser.parse_args(argv)
    wanted = Wanted(asked.surface, asked.points, asked.normals, asked.held_out, asked.all)
    for part, many in prepare(asked.source, asked.data, wanted).items():
        print(f"{part}: {many:,} shapes")


def smoke(folder: Path) -> None:
    source = str(synthetic.voxels(folder / "voxels.npz"))
    main(["prepare", source, str(folder / "cells")])
    main(
        [
            "prepare",
            source,
            str(folder / "points"),
            "--surface",
            "--points",
            "64",
            "--normals",
            "--held-out",
            "2",
            "--all",
        ]
    )


if __name__ == "__main__":
    harness.run(main, smoke)
