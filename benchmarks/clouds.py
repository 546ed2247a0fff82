"""Point Transformer on ModelNet10 and on the embedded rooms: clean, rotated, with noise, and with missing points.

    python benchmarks/modelnet.py prepare SOURCE DATA --surface --points 8192 --normals --held-out 5 [--all]
    python benchmarks/clouds.py train OUT --modelnet DATA [name ...] [--jobs 4] [--set train.epochs=...]
    python benchmarks/clouds.py test OUT --modelnet DATA [name ...] [--device cuda]
    python benchmarks/clouds.py figure OUT                               # OUT/clouds.png

The run "modelnet" trains on upright shapes in their canonical orientation, the run "modelnet-rotated" on shapes rotated about
random axes, and the run "rooms" on rooms rotated about the vertical axis. Checkpoints are selected on the validation split. If
the validation shapes are also training shapes (`--all`), set `train.eval_every=100000` to keep the last checkpoint. `test`
evaluates the clean test split with several votes per shape, then each perturbation with one vote on as many points per shape as
in training. Noise is relative to the radius of a shape (rooms: in meters); missing points are random, a hole is a ball around a
random point.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import harness
import modelnet as cells
import numpy as np
import synthetic
from side_by_side import parameters, side_by_side

ROOMS = {"train": "rooms-1#samples=1500", "valid": "rooms-1#part=valid", "test": "rooms-1#part=test"}
SEEN = 1024
"""Points per shape in one forward pass."""
SHAPES = (
    f"data.num_points={SEEN}", "data.point_features=normals", "data.flip=true", "data.scale=0.8,1.25", "data.jitter=0.005",
    "train.batch_size=32", "train.epochs=100", "train.lr=2e-3", "train.ema_decay=0.999",
)  # fmt: skip
TRAININGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "modelnet": ("classify", SHAPES),
    "modelnet-rotated": ("classify", (*SHAPES, "data.rotate=any")),
    "rooms": (
        "segment",
        (
            "data.point_features=none",
            "data.num_points=4096",
            "data.rotate=up",
            "data.scale=0.9,1.1",
            "data.jitter=0.005",
            "train.batch_size=8",
            "train.epochs=15",
            "train.lr=4e-3",
        ),
    ),
}
"""Task and settings of each run."""

VOTES = 8
"""Votes per shape, each on a different sample of its points."""
LOOKS = {"modelnet": "#2b51aa", "modelnet-rotated": "#5b8c2a", "rooms": "#c8501e"}

Points = np.ndarray
"""Coordinates (N, 3), or coordinates and normals (N, 6)."""
Spoil = Callable[[Points, float, np.random.Generator], tuple[Points, np.ndarray]]
"""(points, severity, generator) -> perturbed points and the indices of the points kept."""


# -- perturbations of a point cloud


def _turned(points: Points, axis: np.ndarray, degrees: float) -> Points:
    (x, y, z), angle = axis / np.linalg.norm(axis), np.radians(degrees)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    turn = (np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * (cross @ cross)).T  # Rodrigues' formula
    return np.concatenate([points[:, at : at + 3] @ turn for at in range(0, points.shape[1], 3)], axis=1)


def spin(points: Points, much: float, random: np.random.Generator) -> tuple[Points, np.ndarray]:
    """Rotate about the vertical axis by `much` degrees."""
    return _turned(points, np.array([0.0, 0.0, 1.0]), much), np.arange(len(points))


def tilt(points: Points, much: float, random: np.random.Generator) -> tuple[Points, np.ndarray]:
    """Rotate about a random horizontal axis by `much` degrees."""
    return _turned(points, np.array([*random.normal(size=2), 0.0]), much), np.arange(len(points))


def noise(points: Points, much: float, random: np.random.Generator) -> tuple[Points, np.ndarray]:
    """Add Gaussian noise to the coordinates; normals are unchanged."""
    moved = points.copy()
    moved[:, :3] += much * random.normal(size=(len(points), 3))
    return moved, np.arange(len(points))


def missing(points: Points, much: float, random: np.random.Generator) -> tuple[Points, np.ndarray]:
    kept = np.sort(random.permutation(len(points))[: max(round((1 - much) * len(points)), 1)])
    return points[kept], kept


def hole(points: Points, much: float, random: np.random.Generator) -> tuple[Points, np.ndarray]:
    """Remove a random point and its nearest neighbors, a fraction `much` of all points."""
    places = points[:, :3]
    far = ((places - places[random.integers(len(places))]) ** 2).sum(1)
    kept = np.sort(np.argsort(far, kind="stable")[round(much * len(places)) :])
    return points[kept], kept


WAYS: dict[str, tuple[Spoil, tuple[float, ...], str, str]] = {
    "spin": (spin, (0, 15, 45, 90, 135, 180), "Rotation about the vertical axis", "degrees"),
    "tilt": (tilt, (0, 15, 30, 60, 90), "Tilt", "degrees"),
    "noise": (noise, (0, 0.01, 0.02, 0.04, 0.08), "Gaussian noise", "radii (rooms: meters)"),
    "missing": (missing, (0, 0.25, 0.5, 0.75, 0.9), "Random missing points", "fraction"),
    "hole": (hole, (0, 0.1, 0.25, 0.5, 0.75), "Missing points in one region", "fraction"),
}


# -- training and testing


def data_of(name: str, part: str, modelnet: Path | None) -> str:
    if name == "rooms":
        return f"rooms-1#part={part},samples=2,points=128" if harness.is_smoke() else ROOMS[part]
    assert modelnet is not None, "missing option: --modelnet DATA, the folder of the shapes"
    return str(modelnet / part)


def train(names: list[str], out: Path, modelnet: Path | None, model: str, together: int, more: list[str]) -> None:
    trainings = {}
    for name in names:
        task, own = TRAININGS[name]
        parts = ["--data", data_of(name, "train", modelnet), "--valid", data_of(name, "valid", modelnet)]
        settings = ["data.eval_samples=1000", "train.eval_every=500", *own, *more]
        trainings[name] = [task, *parts, "--model", model, "--set", *settings]
    side_by_side(trainings, out, together, summed)


def summed(run: Path) -> dict[str, Any]:
    rows = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    valid = [row for row in rows if row["kind"] == "valid"]
    best = {key: max(row[key] for row in valid) for key in ("accuracy", "miou") if key in valid[-1]}
    return {**best, "parameters": parameters(run)}


def clouds_of(name: str, modelnet: Path | None, normals: bool) -> Iterator[tuple[Points, Any]]:
    """Points of each test sample (shapes scaled to radius 1), and the label: one class, or one class per point."""
    from regard.data.points.cloud_files import read_cloud
    from regard.data.points.labeled import iterate_clouds, iterate_labeled_clouds

    iterate = iterate_labeled_clouds if name == "rooms" else iterate_clouds
    for sample in iterate([data_of(name, "test", modelnet)], None):
        cloud = sample.read() if hasattr(sample, "read") else read_cloud(sample.source)
        places = cloud.coordinates.astype(np.float64)
        if name != "rooms":
            places -= places.mean(0)
            places /= np.sqrt((places**2).sum(1).max())
        beside = [cloud.normals.astype(np.float64)] if normals and cloud.normals is not None else []
        yield np.concatenate([places, *beside], axis=1), cloud.labels if name == "rooms" else sample.label


def thinned(clouds: Sequence[tuple[Points, Any]]) -> list[tuple[Points, Any]]:
    """SEEN random points of each shape. With more points, many could be removed without any effect on the sampled input."""
    random = np.random.default_rng(2)
    return [(points[random.permutation(len(points))[:SEEN]], right) for points, right in clouds]


def share(
    name: str, model: Any, clouds: Sequence[tuple[Points, Any]], spoil: Spoil, much: float, votes: int = 1
) -> float:
    """Accuracy, or mIoU for rooms, in percent."""
    from regard.tasks.metrics.segmentation_depth import SegmentationMetrics

    random = np.random.default_rng([1, round(1000 * much)])
    spoilt = [(spoil(points, much, random), right) for points, right in clouds]
    more = {} if name == "rooms" else {"num_votes": votes}
    answers = model.predict([points.astype(np.float32) for (points, _), _ in spoilt], **more)
    if name != "rooms":
        return 100 * float(np.mean([a.value == right for a, (_, right) in zip(answers, spoilt, strict=True)]))
    overlap = SegmentationMetrics(len(model.spec.options.labels), -100)
    for answer, ((_, kept), right) in zip(answers, spoilt, strict=True):
        overlap.add(answer.extra["classes"], right[kept])
    return 100 * overlap.mean_iou()


def test(names: list[str], out: Path, modelnet: Path | None, device: str) -> None:
    """Write the scores of each run. Test shapes without any points are missing here; `modelnet.py prepare` reports them."""
    import regard

    for name in names:
        model = regard.load(out / name, device=device)
        clouds = list(clouds_of(name, modelnet, "normals" in model.processor.features))
        found: dict[str, Any] = {"clouds": len(clouds)}
        if name != "rooms":
            found["clean"] = round(share(name, model, clouds, noise, 0.0, VOTES), 2)
            print(name, found, flush=True)
            clouds = thinned(clouds)
        for way, (spoil, steps, _, _) in WAYS.items():
            steps = steps[:2] if harness.is_smoke() else steps
            found[way] = {much: round(share(name, model, clouds, spoil, much), 2) for much in steps}
            print(name, way, json.dumps(found[way]), flush=True)
        (out / f"{name}.test.json").write_text(json.dumps(found))


def figure(out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    shown, grid = plt.subplots(1, len(WAYS), figsize=(17, 3.8), layout="constrained", sharey=True)
    for axes, (way, (_, _, title, unit)) in zip(grid, WAYS.items(), strict=True):
        for name, colour in LOOKS.items():
            if not (out / f"{name}.test.json").exists():
                continue
            told = json.loads((out / f"{name}.test.json").read_text())[way]
            axes.plot([float(much) for much in told], list(told.values()), marker="o", ms=4, color=colour, label=name)
        axes.set(title=title, xlabel=unit, ylim=(0, 102))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    grid[0].set_ylabel("accuracy, % (rooms: mIoU, %)")
    grid[0].legend(frameon=False, loc="lower left")
    shown.savefig(out / "clouds.png", dpi=130)


def main(argv: Sequence[str] | None = None) -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("work", choices=("train", "test", "figure"))
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", choices=(*TRAININGS, []))
    parser.add_argument("--modelnet", type=Path)
    parser.add_argument("--model", default="point-small")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--set", nargs="*", default=[])
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args(argv)
    names = [name for name in TRAININGS if not asked.names or name in asked.names]
    if asked.work == "train":
        train(names, asked.out, asked.modelnet, asked.model, asked.jobs, asked.set)
    elif asked.work == "test":
        there = [name for name in names if (asked.out / name / "regard.json").exists()]
        test(there, asked.out, asked.modelnet, asked.device)
    else:
        figure(asked.out)


def smoke(folder: Path) -> None:
    voxels, shapes, out = folder / "voxels.npz", folder / "shapes", str(folder / "out")
    cells.main(
        ["prepare", str(synthetic.voxels(voxels)), str(shapes), "--points", "64", "--normals", "--held-out", "2"]
    )
    data = ["--modelnet", str(shapes), "--model", "point-tiny"]
    short = ["data.num_points=32", "train.epochs=1", "train.batch_size=4", "data.eval_samples=2"]
    main(["train", out, "modelnet", "rooms", *data, "--set", *short])
    main(["test", out, "modelnet", "rooms", *data])
    main(["figure", out])


if __name__ == "__main__":
    harness.run(main, smoke)
