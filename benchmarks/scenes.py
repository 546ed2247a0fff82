"""Dense prediction trained from scratch: a small DPT, its hybrid, and a ResNet of the same size with the same head.

    python benchmarks/scenes.py camvid|tum DATA OUT [name ...] [--jobs 3] [--set …]    # train, then the test split, once
    python benchmarks/scenes.py camvid|tum DATA OUT --figure FILE

DATA of camvid contains train/, val/ and test/, each with images/ and masks/, and classes.txt; DATA of tum contains train/ and
test/, each with images/ and depth/. CamVid checkpoints are selected on val. For TUM, the last 10 % of the training sequence are
held out for validation; the test split is another sequence. All models use random weights and the same settings.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import numpy as np
import synthetic
from side_by_side import parameters, side_by_side

ALIKE = (
    "train.batch_size=16",
    "train.lr=5e-4",
    "train.weight_decay=0.05",
    "train.warmup_steps=0.1",
    "train.lr_schedule=cosine",
    "data.crop_scale=0.4",
    "data.flip=true",
    "data.color_jitter=0.3",
)
MODELS: dict[str, tuple[str, ...]] = {
    "dpt": ("dpt-small",),
    "hybrid": ("dpt-hybrid-small",),
    "convolutions": ("resnet-18", "model.stem_channels=48", "model.widths=48,96,192,384"),
}
TASKS = {
    "camvid": ("segment", ("train.epochs=150", "data.image_size=192,256", "train.eval_every=860")),
    "tum": ("depth", ("train.epochs=100", "data.image_size=128,160", "train.eval_every=500")),
}


def held_out(data: Path, out: Path) -> list[str]:
    """Copy the last 10 % of the TUM sequence to a validation split; consecutive frames are too similar for a random split."""
    frames = sorted((data / "train/images").iterdir())
    for number, frame in enumerate(frames):
        part = "train" if number < 0.9 * len(frames) else "valid"
        for kind in ("images", "depth"):
            (out / part / kind).mkdir(parents=True, exist_ok=True)
            beside = next((data / "train" / kind).glob(f"{frame.stem}.*"))
            shutil.copy(beside, out / part / kind / beside.name)
    return ["--data", str(out / "train"), "--valid", str(out / "valid")]


def summed(run: Path) -> dict[str, Any]:
    kept = json.loads((run / "regard.json").read_text())
    return {"parameters": parameters(run), "valid": {k: v for k, v in kept["best"].items() if k != "kind"}}


def test(name: str, data: Path, out: Path) -> None:
    """Evaluate the test split with the checkpoint selected on the validation split."""
    from regard.runs.evaluate import evaluate

    told = out / f"{name}.test.json"
    if (out / f"{name}.json").exists() and not told.exists():
        told.write_text(json.dumps(evaluate(out / name, [str(data / "test")]).scores))
        print(name, "test", told.read_text(), flush=True)


def pictures(place: str, data: Path, out: Path, picture: Path) -> None:
    """Plot some test images with the ground truth and the prediction of each model."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    import regard
    from regard.data.images.image_io import read_depth, read_mask

    files = sorted((data / "test/images").iterdir())
    files = [
        files[number] for number in (np.linspace(0.1, 0.9, 2 if harness.is_smoke() else 5) * len(files)).astype(int)
    ]
    names = [name for name in MODELS if (out / name).exists()]
    shown, axes = plt.subplots(
        len(files), 2 + len(names), figsize=(2.6 * (2 + len(names)), 2.0 * len(files)), layout="constrained"
    )
    beside, kind = ("masks", "mask") if place == "camvid" else ("depth", "depth")
    models = {name: regard.load(out / name) for name in names}
    for row, file in zip(axes, files, strict=True):
        right = next((data / "test" / beside).glob(f"{file.stem}.*"))
        maps = [read_mask(str(right)) if place == "camvid" else read_depth(str(right))]
        maps += [model.predict(str(file)).extra[kind] for model in models.values()]
        row[0].imshow(plt.imread(file))
        known = maps[0] < 11 if place == "camvid" else maps[0] > 0
        for place_, found in zip(row[1:], maps, strict=True):
            seen = np.ma.masked_where(~known, found) if found is maps[0] else found
            if place == "camvid":
                place_.imshow(seen, cmap="tab20", vmin=0, vmax=11, interpolation="nearest")
            else:
                place_.imshow(seen, cmap="viridis_r", vmin=0.4, vmax=3.0)
    for place_, title in zip(axes[0], ("image", "ground truth", *names), strict=True):
        place_.set_title(title)
    for place_ in axes.flat:
        place_.axis("off")
    shown.savefig(picture, dpi=110)


def main(argv: Sequence[str] | None = None) -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("place", choices=tuple(TASKS))
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", default=list(MODELS))
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--set", nargs="*", default=[])
    asked = parser.parse_args(argv)
    if asked.figure:
        return pictures(asked.place, asked.data, asked.out, asked.figure)
    task, own = TASKS[asked.place]
    files = ["--data", str(asked.data / "train"), "--valid", str(asked.data / "val")]
    if asked.place == "tum":
        files = held_out(asked.data, asked.out / "parts")
    trainings = {
        name: [task, "--model", MODELS[name][0], *files, "--set", *ALIKE, *own, *MODELS[name][1:], *asked.set]
        for name in asked.names
    }
    side_by_side(trainings, asked.out, asked.jobs, summed)
    for name in asked.names:
        test(name, asked.data, asked.out)


def smoke(folder: Path) -> None:
    for place, make in (("camvid", synthetic.camvid), ("tum", synthetic.tum)):
        data, out = str(make(folder / place)), str(folder / f"{place}-out")
        sizes = [
            "data.image_size=32,32",
            "model.image_size=32",
            "model.depth=4",
            "model.out_layers=0,1,2,3",
            "model.neck_dims=8,8,16,16",
        ]
        sizes += ["model.width=16", "model.heads=2", "model.ffn_dim=32", "model.fusion_dim=16"]
        main([place, data, out, "dpt", "--set", *harness.ONCE, "train.batch_size=4", *sizes])
        main([place, data, out, "dpt", "--figure", str(folder / f"{place}.png")])


if __name__ == "__main__":
    harness.run(main, smoke)
