"""The Universal Transformer compared with a plain Transformer of equal parameter count on algorithmic questions: exact match
at training lengths and beyond, ACT steps per token, and time.

    python benchmarks/universal.py trials OUT [--jobs 8]                       # selects lr and ponder cost on validation
    python benchmarks/universal.py train OUT [name ...] [--jobs 8] [--set ...]
    python benchmarks/universal.py time OUT [name ...]                             # short runs, one at a time
    python benchmarks/universal.py test OUT [name ...]                             # the test splits, once
    python benchmarks/universal.py figure OUT                                      # OUT/universal.png

A name is a system (plain, fixed, halting), a task (copy, …, facts-3, facts), or both (copy-plain).

plain      four layers of width 128 in encoder and decoder
fixed      one layer of width 256 in encoder and decoder, applied six times
halting    the same, up to eight times: adaptive computation time (ACT) per position

Pre-norm, as in the published code of the Universal Transformer, because all systems train faster. All systems train on the same
questions for the same number of steps; only the learning rate differs and, with ACT, the ponder cost. `trials` selects both in
short runs on two tasks (`train` uses OUT/chosen.json, or the first choice of each). In training, positions start at a random
offset, so that all systems are trained on the positions of questions of twice the length. Checkpoints are selected on
validation questions, half of which are longer than the training questions. `facts` is one halting model trained on stories of
all three kinds, to compare ACT steps between kinds with the same weights.

With ACT, a CPU computes as many steps as the slowest position needs; a GPU always computes eight
(nn/blocks/universal.py), so that
unused steps save no time on a GPU.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
from side_by_side import parameters, side_by_side
from universal_figure import DIGITS, FACTS, LONGEST, figure

from regard.data.synthetic.algorithmic import AlgorithmicQuestion, AlgorithmicRecipe, generate_questions

SIZES: dict[str, tuple[str, ...]] = {
    "plain": ("transformer-tiny", "width=128", "heads=4", "ffn_dim=512", "depth=4", "decoder_depth=4"),
    "fixed": ("universal-tiny", "width=256", "heads=4", "ffn_dim=1024", "num_steps=6"),
    "halting": ("universal-tiny-halting", "width=256", "heads=4", "ffn_dim=1024", "act_max_steps=8"),
}
"""Preset and model settings of each system."""
SMALL: dict[str, tuple[str, ...]] = {
    "plain": ("transformer-tiny", "depth=1", "decoder_depth=1"), "fixed": ("universal-tiny", "num_steps=2"),
    "halting": ("universal-tiny-halting", "act_max_steps=2"),
}  # fmt: skip
"""Preset and model settings in smoke mode."""
RATES = (1e-3, 2e-3)
PRICES = (1e-3, 1e-4)
"""Candidate ponder costs per ACT step. With the published value 0.01, all positions halt after the first step early in training
and no gradient reaches the halting gate afterwards."""
JOINT = "facts"
TASKS = (*reversed(FACTS), *DIGITS)
"""The slowest to train come first."""
NAMES = {f"{task}-{system}": (task, system) for task in TASKS for system in SIZES} | {
    "facts-halting": (JOINT, "halting")
}
SHIFTS = {"digits": 24, "facts": 48}
"""Maximum position offset: at least the difference between the longest test question and the longest training question."""
ALIKE = (
    "model.dropout=0.0",
    "model.norm_position=pre",
    "train.warmup_steps=250",
    "train.lr_schedule=linear",
    "train.label_smoothing=0.0",
    "train.grad_clip=1.0",
    "train.ema_decay=0",
    "data.eval_samples=300",
    "decode.num_beams=1",
)
BUDGETS = {
    "digits": ("train.steps=3000", "train.batch_tokens=8192", "train.eval_every=1500"),
    "facts": ("train.steps=6000", "train.batch_tokens=16384", "train.eval_every=3000"),
}
"""A story has a label of one word: training needs many steps, and fails with small batches."""
TRIED = ("reverse", "addition")
"""Tasks of the trials; stories train too slowly for a short run."""
TRIALS = ("train.steps=1000", "train.warmup_steps=100", "train.eval_every=1000")
TIMED = (
    "train.steps=300",
    "train.warmup_steps=100",
    "train.eval_every=300",
    "train.log_every=50",
    "data.eval_samples=10",
)
TIMED_ON = "sorting"


def family(task: str) -> str:
    return "facts" if task.startswith("facts") else "digits"


@dataclass(frozen=True)
class Sizes:
    """Number of training questions, and number of validation and test questions per kind."""

    samples: int
    count: int


def recipes(task: str, part: str, sizes: Sizes) -> list[AlgorithmicRecipe]:
    """Recipes of a split. Kinds share the training questions; each kind has `sizes.count` validation and test questions."""
    kinds = FACTS if task == JOINT else (task,)
    many = sizes.samples // len(kinds) if part == "train" else sizes.count
    longest = 4 if harness.is_smoke() else LONGEST[family(task)]
    return [AlgorithmicRecipe(kind, longest, many, part=part) for kind in kinds]


# -- trainings


def training(task: str, system: str, chosen: Iterable[str], many: Sizes, more: Iterable[str]) -> list[str]:
    preset, *sizes = (SMALL if harness.is_smoke() else SIZES)[system]
    own = [f"model.{size}" for size in sizes] + [f"model.max_position_offset={SHIFTS[family(task)]}", *chosen]
    own += BUDGETS[family(task)]
    data, valid = ([str(recipe) for recipe in recipes(task, part, many)] for part in ("train", "valid"))
    return ["algorithmic", "--model", preset, "--data", *data, "--valid", *valid, "--set", *ALIKE, *own, *more]


def choices(system: str) -> dict[str, list[str]]:
    """Candidate settings: learning rates and, for `halting`, ponder costs."""
    rates = RATES[:1] if harness.is_smoke() else RATES
    if system != "halting":
        return {str(rate): [f"train.lr={rate}"] for rate in rates}
    prices = PRICES[:1] if harness.is_smoke() else PRICES
    return {f"{rate}-{price}": [f"train.lr={rate}", f"model.ponder_cost={price}"] for rate in rates for price in prices}


def trials(out: Path, together: int, many: Sizes, more: Sequence[str]) -> None:
    """Select the settings of each system by average exact match, then by lower loss, on validation questions."""
    tasks = TRIED[:1] if harness.is_smoke() else TRIED
    asked = {
        f"{task}-{system}-{name}": training(task, system, chosen, many, [*TRIALS, *more])
        for task in tasks
        for system in reversed(SIZES)
        for name, chosen in choices(system).items()
    }
    side_by_side(asked, out / "trials", together, summed)

    def merit(system: str, name: str) -> tuple[float, float]:
        told = [json.loads((out / "trials" / f"{task}-{system}-{name}.json").read_text()) for task in tasks]
        return statistics.mean(one["valid"] for one in told), -statistics.mean(one["loss"] for one in told)

    found = {system: {name: merit(system, name) for name in choices(system)} for system in SIZES}
    best = {system: max(tried, key=lambda name: tried[name]) for system, tried in found.items()}
    (out / "chosen.json").write_text(json.dumps(best))
    print(json.dumps({"tried": found, "best": best}))


def chosen(out: Path) -> dict[str, str]:
    """Selected settings of each system, or the first candidate without finished trials."""
    told = out / "chosen.json"
    if told.exists():
        found: dict[str, str] = json.loads(told.read_text())
        return found
    first = {system: next(iter(choices(system))) for system in SIZES}
    print(f"no finished trials in {out}: using {json.dumps(first)}", flush=True)
    return first


def train(names: Sequence[str], out: Path, together: int, many: Sizes, more: Sequence[str]) -> None:
    best, asked = chosen(out), {}
    for name in names:
        task, system = NAMES[name]
        asked[name] = training(task, system, choices(system)[best[system]], many, more)
    side_by_side(asked, out, together, summed)
    counted = {name: json.loads(path.read_text())["parameters"] for name in names if (path := told(out, name)).exists()}
    for task in dict.fromkeys(NAMES[name][0] for name in counted):
        counts = {NAMES[name][1]: count for name, count in counted.items() if NAMES[name][0] == task}
        apart = 100 * (max(counts.values()) / min(counts.values()) - 1)
        print(
            f"{task}: {', '.join(f'{name} {count:,}' for name, count in counts.items())}; difference {apart:.2f} %",
            flush=True,
        )


def told(out: Path, name: str) -> Path:
    return out / f"{name}.json"


def summed(run: Path) -> dict[str, Any]:
    rows = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    best = json.loads((run / "regard.json").read_text())["best"]
    return {
        "parameters": parameters(run),
        "valid": best["exact_match"],
        "loss": best["loss"],
        "seconds_per_1000": pace([row for row in rows if row["kind"] == "train"]),
    }


def pace(rows: Sequence[Mapping[str, Any]]) -> float:
    """Seconds per 1,000 steps: the median over log lines without the first third, which covers graph capture and warmup."""
    spent = [1000 * row["seconds"] / (row["step"] - before["step"]) for before, row in itertools.pairwise(rows)]
    return round(statistics.median(spent[len(spent) // 3 :]), 3)


def time(out: Path, systems: Iterable[str], more: Sequence[str]) -> None:
    """Train each system briefly, one at a time, to measure its speed."""
    first = {system: next(iter(choices(system).values())) for system in systems}
    many = Sizes(24, 4) if harness.is_smoke() else Sizes(10_000, 20)
    asked = {s: training(TIMED_ON, s, said, many, [*TIMED, *more]) for s, said in first.items()}
    side_by_side(asked, out / "alone", 1, summed)


# -- evaluation


def test(names: Sequence[str], out: Path, many: Sizes) -> None:
    from regard.runs.evaluate import evaluate

    for name in names:
        place = out / f"{name}.test.json"
        if place.exists() or not told(out, name).exists():
            continue
        found: dict[str, Any] = {}
        for recipe in recipes(NAMES[name][0], "test", many):
            entry = str(recipe)
            scores = evaluate(out / name, [entry]).scores
            found[recipe.kind] = {
                key: value for key, value in scores.items() if key.startswith(("exact_match", "token_accuracy"))
            }
            found[recipe.kind]["samples"] = scores["samples"]
            if NAMES[name][1] == "halting":
                found[recipe.kind]["ponder"] = pondered(out / name, list(generate_questions(entry)))
        place.write_text(json.dumps(found))
        print(name, json.dumps(found), flush=True)


def pondered(run: Path, samples: Sequence[AlgorithmicQuestion]) -> dict[str, Any]:
    """Average ACT steps per token of the source and of the target, averaged over questions: within the training lengths, beyond
    them, and by number of digits or sentences; for stories also per supporting sentence, other sentence, and question."""
    import torch

    import regard
    from regard.tasks.base import EncodingContext
    from regard.training.distributed import pick_device
    from regard.types import IGNORE

    model = regard.load(run, device=pick_device("auto"))
    encoded = model.task.objective.encode(samples, model.config, EncodingContext(model.tokenizer))
    kept: dict[str, list[float]] = defaultdict(list)
    with torch.inference_mode():
        for first in range(0, len(samples), 100):
            some = range(first, min(first + 100, len(samples)))
            batch = model.task.objective.collate(encoded, some, model.config).to(model.device)
            states = model.body(batch)
            read = [row[row > 0].tolist() for row in states.act_steps.cpu()]
            says = (batch.labels != IGNORE).cpu()
            said = [
                row[real].tolist() for row, real in zip(states.aux_losses["target_ponder"].cpu(), says, strict=True)
            ]
            for sample, reading, saying in zip((samples[n] for n in some), read, said, strict=True):
                note(kept, sample, reading, saying)
    return {key: round(statistics.mean(values), 4) for key, values in sorted(kept.items())}


def note(kept: dict[str, list[float]], sample: AlgorithmicQuestion, read: Sequence[int], said: Sequence[int]) -> None:
    where = "beyond" if sample.is_longer else "inside"
    mean = statistics.mean(read)
    kept[f"read {where}"].append(mean)
    kept[f"said {where}"].append(statistics.mean(said))
    words = sample.source.split()
    if len(words) == 1:
        kept[f"read of {sum(map(str.isdigit, sample.source))}"].append(mean)
        kept[f"said of {sum(map(str.isdigit, sample.source))}"].append(statistics.mean(said))
        return
    sentence = 0
    parts: dict[str, list[int]] = defaultdict(list)
    for word, steps in zip(words, read, strict=False):  # the end token follows the last word
        last = sentence == words.count(".")
        parts["question" if last else "support" if sentence in sample.supporting_facts else "others"].append(steps)
        sentence += word == "."
    kept[f"read of {words.count('.')}"].append(mean)
    for part, steps in parts.items():
        kept[f"{part} {where}"].append(statistics.mean(steps))


def main(argv: Sequence[str] | None = None) -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("work", choices=("trials", "train", "time", "test", "figure"))
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", choices=(*NAMES, *TASKS, JOINT, *SIZES, []))
    parser.add_argument("--jobs", type=int, default=1, help="Number of parallel runs.")
    parser.add_argument("--samples", type=int, default=200_000, help="Number of training questions.")
    parser.add_argument("--count", type=int, default=1000, help="Number of validation and test questions per kind.")
    parser.add_argument("--set", nargs="*", default=[], help="Further training settings.")
    asked = parser.parse_args(argv)
    names = [name for name, parts in NAMES.items() if not asked.names or {name, *parts} & set(asked.names)]
    many = Sizes(asked.samples, asked.count)
    if asked.work == "trials":
        trials(asked.out, asked.jobs, many, asked.set)
    elif asked.work == "train":
        train(names, asked.out, asked.jobs, many, asked.set)
    elif asked.work == "time":
        time(asked.out, [name for name in SIZES if not asked.names or name in asked.names], asked.set)
    elif asked.work == "test":
        test(names, asked.out, many)
    else:
        figure(asked.out, NAMES)


def smoke(folder: Path) -> None:
    out, short = str(folder), [*harness.SHORT, "train.batch_tokens=512", "model.width=16", "decode.max_extra_tokens=2"]
    short += ["model.heads=2", "model.ffn_dim=32", "model.max_length=96"]
    few = ["--samples", "24", "--count", "4"]
    main(["trials", out, *few, "--set", *short])
    main(["train", out, "copy-plain", "facts-1-halting", *few, "--set", *short])
    main(["time", out, "fixed", "--set", *short, "train.steps=6", "train.log_every=1"])
    main(["test", out, "copy-plain", "facts-1-halting", *few])
    main(["figure", out])


if __name__ == "__main__":
    harness.run(main, smoke)
