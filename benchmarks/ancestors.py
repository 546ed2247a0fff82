"""Multi30k English → German: four generations of translation models with equal parameter counts, on the same data.

    python benchmarks/ancestors.py train DATA OUT [name ...] [--jobs 2] [--set train.steps=...]
    python benchmarks/ancestors.py test DATA OUT [name ...]      # test2016, evaluated once with the best checkpoint
    python benchmarks/ancestors.py figure DATA OUT [name ...]    # OUT/ancestors.png, and the table

DATA is the folder of the tokenized files (train.lc.norm.tok.en.gz …). All systems train on the same tokens for as many steps,
with the same label smoothing, dropout, EMA and beam search; only the learning rate differs. The three older systems
use padded batches with a larger `train.batch_tokens`, so that an optimizer step has the same number of pairs. Parameter counts
are within 2 % of `transformer-tiny`; `check_sizes` verifies the counts before training. Parallel runs slow each other down: use
`--jobs 1` for comparable times.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import synthetic
from side_by_side import side_by_side

ALIKE = (
    "data.vocab_size=10000",
    "data.pretokenized=true",
    "data.eval_samples=200",
    "model.dropout=0.3",
    "train.steps=6000",
    "train.batch_tokens=16384",
    "train.warmup_steps=1500",
    "train.lr_schedule=linear",
    "train.label_smoothing=0.1",
    "train.betas=0.9,0.98",
    "train.grad_clip=1.0",
    "train.ema_decay=0.999",
    "train.eval_every=250",
    "decode.num_beams=5",
    "decode.length_penalty=0.6",
    "decode.length_penalty_type=wu",
)

PADDED = "train.batch_tokens=23552"
"""Batch size for padded micro-batches (30 % padding): 54 per epoch, as many as the packed micro-batches of the Transformer."""

SYSTEMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "rnn": (
        "rnn-tiny",
        (
            "model.width=200",
            "model.embedding_dim=200",
            "model.depth=1",
            "model.init_range=0.08",
            "train.lr=2e-3",
            PADDED,
        ),
    ),
    "rnnsearch": (
        "rnnsearch-tiny",
        (
            "model.width=272",
            "model.encoder_width=144",
            "model.embedding_dim=144",
            "model.attention_dim=144",
            "model.maxout_dim=144",
            "train.lr=2e-3",
            PADDED,
        ),
    ),
    "convs2s": ("convs2s-tiny", ("train.lr=4e-3", PADDED)),
    "transformer": ("transformer-tiny", ("train.lr=4e-3",)),
}
"""Preset and settings of each system in addition to `ALIKE`."""

LOOKS = {"rnn": "#6b7686", "rnnsearch": "#c8501e", "convs2s": "#5b8c2a", "transformer": "#2b51aa"}
BINS = ((1, 8), (9, 10), (11, 12), (13, 15), (16, 19), (20, 99))
"""Ranges of source words, with about the same number of sentences each."""


def files(data: Path, part: str) -> str:
    return ":".join(str(data / f"{part}.lc.norm.tok.{side}.gz") for side in ("en", "de"))


def parameters(preset: str, settings: tuple[str, ...]) -> int:
    """Number of parameters of a preset with the given settings, built on the meta device."""
    import torch

    from regard.config import override
    from regard.runs.settings import collect_overrides
    from regard.systems import find_preset

    system, found = find_preset(preset)
    config = override(found.config, collect_overrides(settings).get("model", {}), "model.")
    with torch.device("meta"):
        return sum(p.numel() for p in system.build(config).parameters())


def check_sizes(names: list[str]) -> None:
    right = parameters("transformer-tiny", ())
    for name in names:
        count = parameters(*SYSTEMS[name])
        print(f"{name:12} {count:,} parameters, {100 * (count / right - 1):+.1f} %", flush=True)
        assert abs(count / right - 1) <= 0.02, f"{name} has {count:,} parameters, transformer-tiny {right:,}"


def train(names: list[str], data: Path, out: Path, together: int, more: list[str]) -> None:
    check_sizes(names)
    words = ["--data", files(data, "train"), "--valid", files(data, "val"), "--set", *ALIKE]
    side_by_side(
        {name: ["translate", "--model", SYSTEMS[name][0], *words, *SYSTEMS[name][1], *more] for name in names},
        out, together, summed,
    )  # fmt: skip


def validations(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == "valid"]


def summed(run: Path) -> dict[str, Any]:
    rows = validations(run)
    best = max(rows, key=lambda row: (row["bleu"], -row["loss"]))
    return {"loss": min(row["loss"] for row in rows), "valid": best["bleu"], "elapsed": rows[-1]["elapsed"]}


def test(names: list[str], data: Path, out: Path) -> None:
    """Evaluate on test2016; runs with an existing result file are skipped."""
    from regard.runs.evaluate import evaluate, write_predictions

    for name in names:
        done = out / f"{name}.test.json"
        if not done.exists():
            result = evaluate(out / name, [files(data, "test_2016_flickr")])
            write_predictions(result, out / f"{name}.test.jsonl")
            done.write_text(json.dumps(result.scores))
        print(name, done.read_text(), flush=True)


def by_length(answers: Path) -> list[tuple[float, float, int]]:
    """Average source words, BLEU and number of sentences of each non-empty length bin."""
    from sacrebleu.metrics.bleu import BLEU

    rows = [json.loads(line) for line in answers.read_text().splitlines()]
    found = []
    for least, most in BINS:
        part = [row for row in rows if least <= len(row["source"].split()) <= most]
        if part:
            said, meant = [row["prediction"] for row in part], [row["reference"] for row in part]
            bleu = BLEU(tokenize="none", force=True).corpus_score(said, [meant]).score
            found.append((sum(len(row["source"].split()) for row in part) / len(part), bleu, len(part)))
    return found


def table(names: list[str], out: Path) -> float:
    """Print the results and return the lowest validation loss that every run reached."""
    runs = {name: validations(out / name) for name in names}
    equal = max(min(row["loss"] for row in rows) for rows in runs.values())
    print(f"{'':12} {'BLEU':>6} {'loss':>7} {'seconds':>8} {'to ' + format(equal, '.3f'):>9}")
    for name, rows in runs.items():
        tested = out / f"{name}.test.json"
        bleu = json.loads(tested.read_text())["bleu"] if tested.exists() else float("nan")
        first = next(row["elapsed"] for row in rows if row["loss"] <= equal)
        loss = min(row["loss"] for row in rows)
        print(f"{name:12} {bleu:6.2f} {loss:7.3f} {rows[-1]['elapsed']:8.0f} {first:9.0f}")
    return equal


def figure(names: list[str], out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    equal = table(names, out)
    shown, (lengths, times, steps) = plt.subplots(1, 3, figsize=(14, 4.2), layout="constrained")
    for name in names:
        rows, colour = validations(out / name), LOOKS[name]
        answers = out / f"{name}.test.jsonl"
        if answers.exists():
            bins = by_length(answers)
            lengths.plot([x for x, _, _ in bins], [y for _, y, _ in bins], "o-", ms=4, color=colour, label=name)
        for axes, key in ((times, "elapsed"), (steps, "step")):
            axes.plot([row[key] for row in rows], [row["loss"] for row in rows], color=colour, label=name)
    times.axhline(equal, color="#6b7686", lw=0.8, ls=":")
    lengths.set(title="BLEU on test2016 by length", xlabel="source words", ylabel="BLEU")
    times.set(title="Validation loss by time", xlabel="seconds", ylabel="validation loss", ylim=(None, equal + 2))
    steps.set(title="Validation loss by step", xlabel="steps", ylabel="validation loss", ylim=(None, equal + 2))
    for axes in (lengths, times, steps):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    times.legend(frameon=False)
    shown.savefig(out / "ancestors.png", dpi=130)


def main(argv: Sequence[str] | None = None) -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("work", choices=("train", "test", "figure"))
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", choices=(*SYSTEMS, []))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--set", nargs="*", default=[])
    asked = parser.parse_args(argv)
    names = [name for name in SYSTEMS if not asked.names or name in asked.names]
    if asked.work == "train":
        train(names, asked.data, asked.out, asked.jobs, asked.set)
    elif asked.work == "test":
        test(names, asked.data, asked.out)
    else:
        figure([name for name in names if (asked.out / name / "log.jsonl").exists()], asked.out)


def smoke(folder: Path) -> None:
    parts = ("train", "val", "test_2016_flickr")
    data = synthetic.parallel(folder / "data", tuple(f"{part}.lc.norm.tok" for part in parts))
    names, out = ("rnnsearch", "transformer"), str(folder / "out")
    for name in names:
        short = [
            *harness.SHORT,
            *harness.TINY[name],
            "train.batch_tokens=256",
            "decode.num_beams=1",
            "decode.max_extra_tokens=4",
        ]
        main(["train", str(data), out, name, "--set", *short, "data.vocab_size=300"])
    main(["test", str(data), out, *names])
    main(["figure", str(data), out, *names])


if __name__ == "__main__":
    harness.run(main, smoke)
