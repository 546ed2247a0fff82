"""ModelNet10 voxels (30 x 30 x 30) as point files: one file per shape, in class folders.

    python benchmarks/modelnet.py prepare SOURCE DATA [--surface]     # SOURCE: an .npz with X_train, y_train, X_test, y_test
    python benchmarks/modelnet.py prepare SOURCE DATA --surface --points 2048 [--normals] [--held-out 5] [--all]

DATA gets train, valid and test, with a folder per class. A point is the index of an occupied voxel along x, y and z (up).
`--surface` drops voxels with occupied neighbors on all six sides; `--points N` samples N points per shape, uniformly within the
voxels. `--normals` adds outward normals, or zeros where the shape is too thin. One in ten training shapes, or one in
`--held-out`, is held out for validation by the hash of its voxels, so that duplicates are in the same split; with `--all` the
held-out shapes are also written to train, for the final training. Shapes without occupied voxels are skipped and counted in the
output: one test shape is empty and counts as an error.
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
"""One in this many training shapes is held out for validation."""
FLAT = 1e-3
"""Minimum gradient of the blurred voxels for a normal."""

Cells = NDArray[np.bool_]


@dataclass(frozen=True)
class Wanted:
    """Options of the written point files and of the validation split."""

    surface: bool = False
    points: int = 0
    """Points per shape; 0: one per voxel."""
    normals: bool = False
    held_out: int = HELD_OUT
    all: bool = False


def held_out(cells: Cells, of: int = HELD_OUT) -> bool:
    """True if a shape belongs to the validation split, decided by the hash of its voxels."""
    number = int.from_bytes(blake2b(np.packbits(cells).tobytes(), digest_size=4).digest(), "big")
    return number % of == 0


def surface(cells: Cells) -> Cells:
    """Voxels without occupied neighbors on all six sides."""
    around = np.pad(cells, 1)
    inside = around.copy()
    for axis in range(3):
        for step in (-1, 1):
            inside &= np.roll(around, step, axis)
    return cells & ~inside[1:-1, 1:-1, 1:-1]


def slopes(cells: Cells) -> NDArray[np.float64]:
    """Outward unit normals, (x, y, z, 3): the negative gradient of the voxels blurred with a 3-voxel kernel; 0 where the
    gradient is below `FLAT`, as in thin parts."""
    blurred = np.pad(cells.astype(np.float64), 2)
    for axis in range(3):
        blurred = (np.roll(blurred, 1, axis) + 2 * blurred + np.roll(blurred, -1, axis)) / 4
    down = -np.stack(np.gradient(blurred), axis=-1)[2:-2, 2:-2, 2:-2]
    steep = np.sqrt((down**2).sum(axis=-1, keepdims=True))
    return np.where(steep > FLAT, down / np.maximum(steep, FLAT), 0.0)


def spread(
    cells: NDArray[np.int64], many: int, random: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Random points, (many, 3), and the index of the voxel of each; voxels have equally many points, up to one."""
    rounds = [random.permutation(len(cells)) for _ in range(-(-many // len(cells)))]
    of = np.concatenate(rounds)[:many]
    return cells[of] + random.random((many, 3)) - 0.5, of


def written(cells: Cells, number: int, wanted: Wanted) -> NDArray[Any]:
    """Points of a shape, (N, 3) or with normals (N, 6)."""
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
    """Write the points of every shape and return the number of shapes per split."""
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
            print(f"{given}: skipped {empty} of {len(shapes)} shapes without occupied voxels")
    return counts


def main(argv: Sequence[str] | None = None) -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("work", choices=("prepare",))
    parser.add_argument("source", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--surface", action="store_true")
    parser.add_argument("--points", type=int, default=0, help="Points sampled per shape; 0: one per voxel.")
    parser.add_argument("--normals", action="store_true")
    parser.add_argument("--held-out", type=int, default=HELD_OUT, help="Hold out one in this many training shapes.")
    parser.add_argument("--all", action="store_true", help="Also train on the held-out shapes.")
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
