"""Flickr8k-small: four captioning models, trained from scratch and with a pretrained image encoder.

    python benchmarks/flickr.py DATA OUT [name ...] [--encoder FOLDER] [--jobs 2] [--set …]    # train, then test, once
    python benchmarks/flickr.py DATA OUT [name ...] --figures FOLDER

DATA contains captions.jsonl (2,400 images for training, 200 for validation, 400 for testing, five captions each) and images/.
The FOLDER of `--encoder` is a run folder of an image classifier: a ResNet for the first three models, a ViT for the last; those
runs get the suffix "-pretrained". All models use the same settings. Checkpoints are selected by CIDEr on the dev split; the
test split is evaluated once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import harness
import synthetic
from scene_captions import MODELS, summed
from side_by_side import side_by_side

ALIKE = (
    "train.epochs=30",
    "train.batch_size=64",
    "train.lr=5e-4",
    "train.warmup_steps=0.05",
    "train.lr_schedule=cosine",
    "train.weight_decay=0.05",
    "train.label_smoothing=0.1",
    "train.eval_every=500",
    "data.vocab_size=3000",
    "data.crop_scale=0.6",
    "data.flip=true",
    "model.image_size=96",
)
RESNET = ("model.stem_channels=8", "model.widths=8,8,16,16")
"""Encoder size in smoke mode."""
SHOWN = 6
"""Number of explained test images."""


def test(name: str, data: Path, out: Path) -> None:
    """Evaluate the test split with the checkpoint selected on the dev split."""
    from regard.runs.evaluate import evaluate

    told = out / f"{name}.test.json"
    if (out / f"{name}.json").exists() and not told.exists():
        told.write_text(json.dumps(evaluate(out / name, [f"{data / 'captions.jsonl'}#test"]).scores))
        print(name, "test", told.read_text(), flush=True)


def pictures(name: str, data: Path, out: Path, folder: Path) -> None:
    """Save the generated captions of some test images with the attention map of each word."""
    import regard

    if not (out / name).exists():
        return
    model = regard.load(out / name)
    rows = [json.loads(line) for line in (data / "captions.jsonl").read_text("utf-8").splitlines()]
    files = [row["image"] for row in rows if row["split"] == "test"]
    folder.mkdir(parents=True, exist_ok=True)
    shown = 1 if harness.is_smoke() else SHOWN
    for number in range(shown):
        file = data / files[number * len(files) // shown]
        found = model.explain(str(file))
        print(name, found.title, found.save(folder / f"{name}-{file.stem}.png"))


def main(argv: Sequence[str] | None = None) -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", default=list(MODELS))
    parser.add_argument("--encoder", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--figures", type=Path)
    parser.add_argument("--set", nargs="*", default=[])
    asked = parser.parse_args(argv)
    if asked.figures:
        for name in asked.names:
            for run in (name, f"{name}-pretrained"):
                pictures(run, asked.data, asked.out, asked.figures)
        return
    captions = asked.data / "captions.jsonl"
    files = ["--data", f"{captions}#train", "--valid", f"{captions}#dev"]
    more = [f"model.encoder={asked.encoder.resolve()}"] if asked.encoder else []
    ending = "-pretrained" if asked.encoder else ""
    trainings = {
        name + ending: ["caption", "--model", MODELS[name], *files, "--set", *ALIKE, *more, *asked.set]
        for name in asked.names
    }
    side_by_side(trainings, asked.out, asked.jobs, summed)
    for name in trainings:
        test(name, asked.data, asked.out)


def smoke(folder: Path) -> None:
    data, out = str(synthetic.flickr(folder / "data")), str(folder / "out")
    seen = synthetic.classes(folder / "classes")
    harness.train(
        "classify", str(seen), model="resnet-tiny", out=folder / "encoder", settings=[*harness.SHORT, *RESNET]
    )
    short = [
        "--set",
        *harness.ONCE,
        "train.batch_size=8",
        "data.vocab_size=300",
        "model.image_size=32",
        "decode.max_new_tokens=4",
        "model.max_length=32",
    ]
    main([data, out, "attend", *short])
    main([data, out, "attend", "--encoder", str(folder / "encoder"), *short])
    main([data, out, "attend", "--figures", str(folder / "pictures")])


if __name__ == "__main__":
    harness.run(main, smoke)
