"""Four captioning models trained with the same settings on the embedded scenes: exact match, and attention on named objects.

    python benchmarks/scene_captions.py OUT [name ...] [--jobs 2] [--set …]    # train, then the test splits, once
    python benchmarks/scene_captions.py OUT --figure FILE

The scenes are drawn into OUT/scenes. Checkpoints are selected on the validation split. Exact match is reported by number of
objects, for scenes with combinations in the training data and for scenes with a new combination. Attention is scored with the
reference caption as input: the fraction on the objects named by each word, how often the maximum is on a named object, and the
fraction under uniform attention; for the average of all heads, and for the best head on validation scenes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import harness
from side_by_side import parameters, side_by_side

from regard.demos import scenes

SIDE = 96
"""Image size in pixels: 32 per cell of a scene; the captioning models attend to grids of 6 x 6 and 8 x 8 positions."""
MODELS = {
    "fixed": "caption-fixed-tiny",
    "attend": "caption-attend-tiny",
    "transformer": "caption-transformer-tiny",
    "vit": "caption-vit-tiny",
}
COLOURS = dict(zip(MODELS, ("C0", "C1", "C2", "C3"), strict=True))
ALIKE = (
    "train.epochs=60",
    "train.batch_size=128",
    "train.lr=1e-3",
    "train.warmup_steps=0.05",
    "train.lr_schedule=cosine",
    "train.weight_decay=0.05",
    "train.label_smoothing=0",
    "train.eval_every=1000",
    "data.shift=0.06",
    "data.vocab_size=400",
    "data.eval_samples=1000",
    f"model.image_size={SIDE}",
    "decode.num_beams=1",
)
TESTS = {
    "test": "All combinations in training data",
    "test-pairs": "New color and shape",
    "test-relations": "New relation",
}
LOOKS = 500
"""Number of test scenes with scored attention."""
FEW = {"train": (10, 10, 0, 0, 0)}
"""Number of scenes by number of objects in smoke mode; the other splits have two scenes of two objects and one of three."""
CHOICES = 100
"""Number of validation scenes for selecting the best head."""

Which = tuple[int | None, int | None]
"""Layer and head; None: the average of all."""


def summed(run: Path) -> dict[str, Any]:
    kept = json.loads((run / "regard.json").read_text())
    return {"parameters": parameters(run), "valid": {k: v for k, v in kept["best"].items() if k != "kind"}}


def test(name: str, places: dict[str, Path], out: Path) -> None:
    """Evaluate the test splits with the checkpoint selected on the validation split."""
    from regard.runs.evaluate import evaluate

    told = out / f"{name}.test.json"
    if not (out / f"{name}.json").exists() or told.exists():
        return
    found: dict[str, Any] = {"exact_match": {}}
    for part in TESTS:
        right, many = Counter[int](), Counter[int]()
        for row in evaluate(out / name, [str(places[part])]).rows:
            objects = sum(word in scenes.SHAPES for word in row["reference"].split())
            many[objects] += 1
            right[objects] += row["prediction"] == row["reference"]
        found["exact_match"][part] = {n: 100 * right[n] / many[n] for n in sorted(many)}
        found["exact_match"][part]["all"] = 100 * right.total() / many.total()
    found["looked"] = looked(out / name, places)
    told.write_text(json.dumps(found))
    print(name, told.read_text(), flush=True)


def looked(run: Path, places: dict[str, Path]) -> dict[str, Any]:
    """Attention scores for the average of all heads and for the best head on validation scenes; empty without attention."""
    import regard
    from regard.explain.captioning import ALL_KINDS, BY_OCCLUSION
    from regard.training.distributed import pick_device

    model = regard.load(run, device=pick_device("auto"))
    first = next(samples(places["valid"], 1))
    seen = model.explain(*first[:2]).attention
    if seen.method == BY_OCCLUSION:
        return {}
    heads: list[Which] = [(n, h + 1) for n, layer in enumerate(seen.layers, 1) for h in range(len(layer.weights))]
    tried = regions(model, samples(places["valid"], CHOICES), heads)
    best = max(heads, key=lambda which: tried[which][ALL_KINDS].inside_fraction)
    found = regions(model, samples(places["test"], LOOKS), [(None, None), best])
    told = {"mean": found[None, None], f"layer {best[0]}, head {best[1]}": found[best]}
    return {which: {kind: asdict(score) for kind, score in scores.items()} for which, scores in told.items()}


def samples(place: Path, many: int) -> Any:
    """Image path, caption, words and boxes of about `many` evenly spaced scenes of a split."""
    lines = place.read_text().splitlines()
    for number in range(0, len(lines), max(len(lines) // many, 1)):
        row = json.loads(lines[number])
        yield str(place.parent / row["image"]), row["captions"][0], row["words"], [one["box"] for one in row["objects"]]


def regions(model: Any, given: Any, which: Sequence[Which]) -> dict[Which, Any]:
    from regard.explain.captioning import score_by_kind, word_attentions

    found: dict[Which, list[Any]] = {one: [] for one in which}
    for picture, caption, words, boxes in given:
        told = model.explain(picture, caption).attention
        for one, kept in found.items():
            kept += word_attentions(told.maps(*one), words, boxes, (SIDE, SIDE))
    return {one: score_by_kind(kept) for one, kept in found.items()}


def figure(out: Path, picture: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    told = {name: json.loads(path.read_text()) for name in MODELS if (path := out / f"{name}.test.json").exists()}
    shown, axes = plt.subplots(1, 4, figsize=(17, 3.6), layout="constrained", width_ratios=(1, 1, 1, 1.5))
    for place, (part, title) in zip(axes, TESTS.items(), strict=False):
        for name, found in told.items():
            counts = {int(n): value for n, value in found["exact_match"][part].items() if n != "all"}
            place.plot(list(counts), list(counts.values()), marker="o", color=COLOURS[name], label=MODELS[name])
        place.set(title=title, xlabel="objects", ylim=(0, 102), xticks=range(1, scenes.MAX_OBJECTS + 1))
        place.grid(axis="y", alpha=0.3)
    axes[0].set_ylabel("exact match, %")
    axes[1].legend(fontsize=8, loc="center")
    attending = {name: found["looked"] for name, found in told.items() if found["looked"]}
    kinds = ("color", "shape", "size", "relation")
    for number, (name, looks) in enumerate(attending.items()):
        (_, best) = looks
        at = [kind + (number - (len(attending) - 1) / 2) * 0.25 for kind in range(len(kinds))]
        share, hit, even = (
            [100 * looks[best][kind][what] for kind in kinds]
            for what in ("inside_fraction", "hit_rate", "uniform_fraction")
        )
        axes[3].bar(at, share, 0.22, color=COLOURS[name], label=f"{MODELS[name]}: {best}")
        axes[3].plot(at, hit, "k_", ms=9, label=None if number else "maximum on a named object")
        axes[3].plot(at, even, "kx", ms=4, label=None if number else "uniform attention")
    axes[3].set(title="Attention on the named objects, %", ylim=(0, 102), xticks=range(len(kinds)))
    axes[3].set_xticklabels(["color", *kinds[1:]])
    if attending:
        axes[3].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    shown.savefig(picture, dpi=130)


def main(argv: Sequence[str] | None = None) -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", default=list(MODELS))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--set", nargs="*", default=[])
    asked = parser.parse_args(argv)
    if asked.figure:
        return figure(asked.out, asked.figure)
    few = (
        scenes.generate_splits(sizes={name: FEW.get(name, (0, 2, 1, 0, 0)) for name in scenes.SPLIT_SIZES})
        if harness.is_smoke()
        else None
    )
    places = scenes.write_dataset(asked.out / "scenes", SIDE, few)
    files = ["--data", str(places["train"]), "--valid", str(places["valid"])]
    trainings = {
        name: ["caption", "--model", MODELS[name], *files, "--set", *ALIKE, *asked.set] for name in asked.names
    }
    side_by_side(trainings, asked.out, asked.jobs, summed)
    for name in asked.names:
        test(name, places, asked.out)


def smoke(folder: Path) -> None:
    short = [
        *harness.ONCE,
        "train.batch_size=20",
        "data.vocab_size=300",
        "decode.max_new_tokens=4",
        f"model.image_size={SIDE // 2}",
        "model.max_length=64",
    ]
    out = str(folder / "out")
    main([out, "attend", "--set", *short])
    main([out, "--figure", str(folder / "scenes.png")])


if __name__ == "__main__":
    harness.run(main, smoke)
