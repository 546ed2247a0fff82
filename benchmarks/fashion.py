"""Fashion-MNIST: image tables, and systems of several sizes trained on them, accuracy by training cost.

    python benchmarks/fashion.py tables SOURCE DATA            # SOURCE: the folder of the *-ubyte.gz files
    python benchmarks/fashion.py train DATA OUT [name ...]     # in parallel with --jobs; finished runs are skipped
    python benchmarks/fashion.py test DATA OUT name            # the test set, with the checkpoint selected on validation
    python benchmarks/fashion.py figure OUT FILE

DATA has train.parquet (55,000 images), valid.parquet (5,000 of the training images, sampled once) and test.parquet (10,000).
Names: `tiny-1` … are vit-tiny with the default recipe, one seed each, and horizontal flips. The other names are runs of
the figure: 20 epochs each with the same batches, augmentation, and schedule. Checkpoints are selected on the validation split;
the figure shows validation accuracy.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import numpy as np
import synthetic
from side_by_side import side_by_side

CLASSES = (
    "t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
HELD_OUT = 5_000
ALIKE = ("train.epochs=20", "train.batch_size=512", "train.lr=1.5e-3", "train.weight_decay=0.05", "train.warmup_steps=0.1",
         "train.lr_schedule=cosine", "train.label_smoothing=0.1", "data.shift=0.1", "data.flip=true", "data.random_erasing=0.3",
         "data.eval_samples=5000")  # fmt: skip


def vit(width: int, depth: int) -> tuple[str, ...]:
    return (f"model.width={width}", f"model.depth={depth}", f"model.heads={width // 32}", f"model.ffn_dim={4 * width}")


MEAN = "model.pool=mean"
SIZES: dict[str, tuple[str, tuple[str, ...]]] = {
    **{
        f"tiny-{seed}": ("vit-tiny", (f"train.seed={seed}", "data.flip=true", "data.eval_samples=5000"))
        for seed in (1, 2, 3)
    },
    "vit-64": ("vit-tiny", (*ALIKE, *vit(64, 4), MEAN)),
    "vit-128": ("vit-tiny", (*ALIKE, *vit(128, 6), MEAN)),
    "vit-192": ("vit-tiny", (*ALIKE, *vit(192, 9), MEAN)),
    "vit-256": ("vit-tiny", (*ALIKE, *vit(256, 12), MEAN)),
    "hybrid-64": ("hybrid-tiny", (*ALIKE, *vit(64, 2))),
    "hybrid-128": ("hybrid-tiny", (*ALIKE, *vit(128, 4))),
    "hybrid-192": ("hybrid-tiny", (*ALIKE, *vit(192, 6))),
    "resnet-8": ("resnet-tiny", (*ALIKE, "model.stem_channels=8", "model.widths=8,16,32,64")),
    "resnet-16": ("resnet-tiny", (*ALIKE, "model.stem_channels=16", "model.widths=16,32,64,128")),
    "resnet-32": ("resnet-tiny", ALIKE),
    "resnet-64": ("resnet-tiny", (*ALIKE, "model.stem_channels=64", "model.widths=64,128,256,512")),
}


def numbers(path: Path) -> np.ndarray:
    raw = gzip.decompress(path.read_bytes())
    sides = [int.from_bytes(raw[4 * (1 + n) : 4 * (2 + n)], "big") for n in range(raw[3])]
    return np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * len(sides)).reshape(sides)


def tables(source: Path, out: Path) -> None:
    """Write the images as PNG files inside Parquet tables."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    out.mkdir(parents=True, exist_ok=True)
    found = {
        part: (numbers(source / f"{name}-images-idx3-ubyte.gz"), numbers(source / f"{name}-labels-idx1-ubyte.gz"))
        for part, name in (("train", "train"), ("test", "t10k"))
    }
    order = np.random.default_rng(0).permutation(len(found["train"][0]))
    x, y = found["train"]
    held_out = min(HELD_OUT, len(x) // 4)
    parts = {
        "train": (x[order[held_out:]], y[order[held_out:]]),
        "valid": (x[order[:held_out]], y[order[:held_out]]),
        "test": found["test"],
    }
    for part, (pictures, labels) in parts.items():
        rows = []
        for picture in pictures:
            file = io.BytesIO()
            Image.fromarray(picture).save(file, "PNG")
            rows.append(file.getvalue())
        named = pa.array([CLASSES[label] for label in labels]).dictionary_encode()
        pq.write_table(pa.table({"image": pa.array(rows, pa.binary()), "label": named}), out / f"{part}.parquet")
        print(part, len(rows))


def train(names: list[str], data: Path, out: Path, together: int, more: list[str]) -> None:
    files = ["--data", str(data / "train.parquet"), "--valid", str(data / "valid.parquet")]
    trainings = {
        name: ["classify", "--model", model, *files, "--set", *settings, *more]
        for name, (model, settings) in SIZES.items()
        if not names or name in names
    }
    side_by_side(trainings, out, together, summed)


def summed(run: Path) -> dict[str, Any]:
    """Best validation accuracy of a run and its training cost, counted as three forward passes per image."""
    from regard.runs.info import info

    told, kept = info(str(run)), json.loads((run / "regard.json").read_text())
    rows = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    train = kept["settings"]["train"]
    images = max(row["step"] for row in rows if row["kind"] == "train") * train["batch_size"] * train["grad_accum"]
    return {
        "valid": max(row["accuracy"] for row in rows if row["kind"] == "valid"), "parameters": told.parameters,
        "MFLOP": round(told.flops / 1e6, 1), "images": images, "PFLOP": round(3 * told.flops * images / 1e15, 9),
        "images_per_s": round(rows[-2].get("images_per_s", 0)),
    }  # fmt: skip


def test(name: str, data: Path, out: Path) -> None:
    """Evaluate the test set with the checkpoint selected on the validation split."""
    from regard.runs.evaluate import evaluate

    scores = evaluate(out / name, [str(data / "test.parquet")], device="auto").scores
    print(name, json.dumps({key: value for key, value in scores.items() if key != "confusion"}), flush=True)
    (out / f"{name}.test.json").write_text(json.dumps(scores))


def figure(out: Path, picture: Path) -> None:
    """Plot validation accuracy by training FLOPs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    shown, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    looks = {"vit": ("#1f6f8b", "o"), "hybrid": ("#c2571a", "s"), "resnet": ("#5b8c2a", "^")}
    for system, (colour, mark) in looks.items():
        done = [out / f"{name}.json" for name in SIZES if name.startswith(f"{system}-")]
        rows = [json.loads(file.read_text()) for file in done if file.exists()]
        rows.sort(key=lambda row: row["PFLOP"])
        axes.plot(
            [row["PFLOP"] for row in rows], [row["valid"] for row in rows], mark + "-", color=colour, label=system
        )
        for row in rows:
            axes.annotate(
                f"{row['parameters'] / 1e6:.1f} M", (row["PFLOP"], row["valid"]), (5, -11), textcoords="offset points",
                fontsize=8, color=colour,
            )  # fmt: skip
    axes.set_xscale("log")
    axes.margins(x=0.1)
    axes.set_xlabel("training cost, 10¹⁵ operations")
    axes.set_ylabel("accuracy on 5,000 validation images, %")
    axes.set_title("Fashion-MNIST, 20 epochs: accuracy by training cost")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    shown.savefig(picture, dpi=130)


def main(argv: Sequence[str] | None = None) -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("work", choices=("tables", "train", "test", "figure"))
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--set", nargs="*", default=[])
    asked = parser.parse_args(argv)
    first, second = (Path(place) for place in asked.paths[:2])
    if asked.work == "tables":
        tables(first, second)
    elif asked.work == "train":
        train(asked.paths[2:], first, second, asked.jobs, asked.set)
    elif asked.work == "test":
        for name in asked.paths[2:]:
            test(name, first, second)
    else:
        figure(first, second)


def smoke(folder: Path) -> None:
    data, out = str(folder / "data"), str(folder / "out")
    main(["tables", str(synthetic.fashion(folder / "source")), data])
    short = [*harness.ONCE, "train.batch_size=8", *harness.TINY["encoder"]]
    main(["train", data, out, "vit-64", "--set", *short])
    main(["test", data, out, "vit-64"])
    main(["figure", out, str(folder / "fashion.png")])


if __name__ == "__main__":
    harness.run(main, smoke)
