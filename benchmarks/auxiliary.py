"""Ablation of the auxiliary language-modeling loss of GPT-1: a small GPT fine-tuned on subsets of SST-2 with and without it.

    python benchmarks/auxiliary.py measure FOLDER_OF_SST2 OUT [--text FILE…] [--sizes 500 1500 5000] [--seeds 1 2 3]
    python benchmarks/auxiliary.py draw OUT/auxiliary.json docs/auxiliary.png

The model is first pretrained as a language model on the SST-2 sentences without labels, or on the files of `--text` (for
example WikiText). Fine-tuning takes three epochs on N labeled examples, sampled per seed and identical for both variants, with
`train.lm_loss_weight` 0.5 and 0. The reported accuracy is measured after the last step on the 872 examples of dev.tsv; no
checkpoint is selected on dev.tsv. `--set model.depth=… train.lr=…` changes the model or its pretraining.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import synthetic

from regard.data.text.samples import LabeledText, iterate_labeled
from regard.draw.colors import ACCENT, INK, LINE, MUTED, WARM
from regard.draw.figure import new_figure

MODEL = ("model.width=192", "model.depth=4", "model.heads=4", "model.ffn_dim=768", "model.max_length=128")
BEFORE = (
    "data.vocab_size=4000",
    "train.steps=1500",
    "train.batch_tokens=2048",
    "train.warmup_steps=100",
    "train.eval_every=1000000",
)
TUNING = (
    "train.epochs=3",
    "train.batch_tokens=512",
    "train.lr=5e-4",
    "train.warmup_steps=0.1",
    "train.eval_every=1000000",
    "data.eval_samples=2000",
)
"""About 32 texts per step. A model this small needs a higher learning rate than GPT-1; the rest is the paper's recipe."""

WAYS = {"with": 0.5, "without": 0.0}


def files(folder: Path) -> tuple[list[LabeledText], str]:
    """Labeled training texts, and the path of the dev file."""
    paths = [next(folder.glob(f"{name}.tsv*")) for name in ("train", "dev")]
    found = [item for item in iterate_labeled([str(paths[0])]) if isinstance(item, LabeledText)]
    return found, str(paths[1])


def pretrain(samples: Sequence[LabeledText], text: Sequence[str], out: Path, changes: Sequence[str]) -> Path:
    run = out / "lm"
    if (run / "README.md").exists():
        return run
    given = list(text)
    if not given:
        path = out / "sentences.txt"
        path.write_text("".join(f"{sample.text}\n" for sample in samples), encoding="utf-8")
        given = [str(path)]
    mine = [change for change in changes if not change.startswith("tuning.")]
    harness.train("lm", given, model="gpt2-mini", out=run, settings=[*MODEL, *BEFORE, *mine])
    return run


def tune(start: Path, samples: Sequence[LabeledText], dev: str, run: Path, settings: Sequence[str]) -> dict[str, Any]:
    path = run.with_suffix(".tsv")
    path.write_text(
        "text\tlabel\n" + "".join(f"{sample.text}\t{sample.label}\n" for sample in samples), encoding="utf-8"
    )
    begun = time.perf_counter()
    harness.train("classify", str(path), valid=dev, model=str(start), out=run, settings=settings)
    facts = json.loads((run / "regard.json").read_text())
    found = {name: facts["scores"][name] for name in ("accuracy", "macro_f1", "mcc")}
    return {**found, "loss": facts["best"]["loss"], "seconds": round(time.perf_counter() - begun, 1)}


def measure(asked: argparse.Namespace) -> None:
    asked.out.mkdir(parents=True, exist_ok=True)
    samples, dev = files(asked.data)
    start = pretrain(samples, asked.text, asked.out, asked.set)
    tuning = [change.replace("tuning.", "train.") for change in asked.set if change.startswith("tuning.")]
    rows = []
    for size in asked.sizes:
        for seed in asked.seeds:
            part = random.Random(seed).sample(samples, size)
            for way, weight in WAYS.items():
                settings = [*TUNING, *tuning, f"train.seed={seed}", f"train.lm_loss_weight={weight}"]
                found = tune(start, part, dev, asked.out / f"{way}-{size}-{seed}", settings)
                rows.append({"way": way, "examples": size, "seed": seed, **found})
                print(json.dumps(rows[-1]), flush=True)
                (asked.out / "auxiliary.json").write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    for size in asked.sizes:
        both = {way: [row["accuracy"] for row in rows if (row["way"], row["examples"]) == (way, size)] for way in WAYS}
        means = {way: f"{statistics.mean(values):.2f}" for way, values in both.items()}
        print(f"{size:>7,} examples: with {means['with']}, without {means['without']} of {len(asked.seeds)}")


def draw(source: Path, target: Path) -> None:
    rows = json.loads(source.read_text())["rows"]
    sizes = sorted({row["examples"] for row in rows})
    seeds = len({row["seed"] for row in rows})
    with new_figure(target, 7.2, 4.9) as sheet:
        sheet.text(0.45, 0.3, "Fine-tuning with and without the auxiliary loss", size=13, weight="bold")
        said = f"SST-2, accuracy on the 872 dev examples: average and range over {seeds} seeds"
        sheet.text(0.45, 0.6, said, size=8.5, color=MUTED)
        axes = sheet.axes(0.95, 1.1, 5.9, 3.1)
        for way, colour in (("with", ACCENT), ("without", WARM)):
            values = [[row["accuracy"] for row in rows if (row["way"], row["examples"]) == (way, n)] for n in sizes]
            name = "with 0.5 × language-modeling loss" if way == "with" else "without"
            axes.fill_between(sizes, [min(v) for v in values], [max(v) for v in values], color=colour, alpha=0.14, lw=0)
            axes.plot(sizes, [statistics.mean(v) for v in values], color=colour, lw=1.8, marker="o", ms=4, label=name)
            for n, several in zip(sizes, values, strict=True):
                axes.plot([n] * len(several), several, ".", color=colour, ms=3, alpha=0.7)
        axes.set_xscale("log")
        axes.set_xticks(sizes, [f"{n:,}" for n in sizes])
        axes.minorticks_off()
        axes.set_xlabel("labeled examples", size=9)
        axes.set_ylabel("accuracy, %", size=9)
        axes.grid(color=LINE, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(length=0, labelsize=8.5)
        axes.legend(loc="lower right", fontsize=8.5, labelcolor=INK, frameon=False)


def main(argv: Sequence[str] | None = None) -> None:
    parser = harness.parser(__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    measuring = verbs.add_parser("measure")
    measuring.add_argument("data", type=Path)
    measuring.add_argument("out", type=Path)
    measuring.add_argument("--text", nargs="*", default=[])
    measuring.add_argument("--sizes", type=int, nargs="+", default=[500, 1500, 5000])
    measuring.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    measuring.add_argument("--set", nargs="*", default=[], help="Pretraining settings; tuning.lr=… for fine-tuning.")
    drawing = verbs.add_parser("draw")
    drawing.add_argument("source", type=Path)
    drawing.add_argument("target", type=Path)
    asked = parser.parse_args(argv)
    measure(asked) if asked.verb == "measure" else draw(asked.source, asked.target)


def smoke(folder: Path) -> None:
    data, figures = synthetic.sst2(folder / "sst2"), folder / "out/auxiliary.json"
    tiny = (
        *harness.TINY["encoder"],
        "model.max_length=32",
        "data.vocab_size=300",
        "train.steps=2",
        "train.warmup_steps=1",
    )
    sizes = ["--sizes", "8", "--seeds", "1"]
    main(
        ["measure", str(data), str(folder / "out"), *sizes, "--set", *tiny, "train.batch_tokens=256", "tuning.epochs=1"]
    )
    main(["draw", str(figures), str(folder / "auxiliary.png")])


if __name__ == "__main__":
    harness.run(main, smoke)
