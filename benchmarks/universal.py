"""The Universal Transformer beside the plain one at equal parameters: questions made by rules, as long as those learnt from and
longer, how long each token was thought about, and what that costs.

    python benchmarks/universal.py trials OUT [--together 8]                       # rates and prices, on validation
    python benchmarks/universal.py train OUT [name ...] [--together 8] [--set ...]
    python benchmarks/universal.py time OUT [name ...]                             # each alone on the device, for some steps
    python benchmarks/universal.py test OUT [name ...]                             # the test parts, once
    python benchmarks/universal.py figure OUT                                      # OUT/universal.png

A name is a system (plain, fixed, halting), a task (copy, …, facts-3, facts), or both (copy-plain).

plain      four blocks of width 128 on each side
fixed      one block of width 256 on each side, applied six times
halting    the same, up to eight times: each position stops by itself

Norms stand in front, as in the published code of the Universal Transformer; with few steps that learns faster, for both. All
see the same questions for the same number of steps and differ in their highest rate alone, and where positions stop by
themselves in the price of a step. `trials` chooses rate and price by short trainings of two tasks (train takes
OUT/chosen.json, or the first of each). While learning, positions begin anywhere, so that those of questions twice as long are
known to all. The checkpoint is the one that did best on validation questions, half of which are longer than those that are
learnt from. `facts` is one halting model for stories of all three kinds: what it thinks about differs, and its weights do not.

Where positions stop by themselves CPUs compute as many steps as the slowest needs; GPUs always compute eight
(nn/blocks/act.py), so that there a step that nobody takes is not saved.
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
"""The preset, and its sizes."""
SMALL: dict[str, tuple[str, ...]] = {
    "plain": ("transformer-tiny", "depth=1", "decoder_depth=1"), "fixed": ("universal-tiny", "num_steps=2"),
    "halting": ("universal-tiny-halting", "act_max_steps=2"),
}  # fmt: skip
"""The same in the smoke mode."""
RATES = (1e-3, 2e-3)
PRICES = (1e-3, 1e-4)
"""Of a step, where positions stop by themselves. The published one, 0.01, makes all of them stop after the first before
anything is learnt; then no gradient reaches the gate any more."""
JOINT = "facts"
TASKS = (*reversed(FACTS), *DIGITS)
"""Those that take longest to make come first."""
NAMES = {f"{task}-{system}": (task, system) for task in TASKS for system in SIZES} | {
    "facts-halting": (JOINT, "halting")
}
SHIFTS = {"digits": 24, "facts": 48}
"""At least the tokens by which the longest questions of the test are longer than those of the training."""
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
"""A story has one word to learn from: who is where is found out late, and with small batches not at all."""
TRIED = ("reverse", "addition")
"""Tasks that rates and prices are tried on: a story is learnt too late for a short training to tell."""
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
    """Questions to learn from, and to validate and to test by."""

    samples: int
    count: int


def recipes(task: str, part: str, sizes: Sizes) -> list[AlgorithmicRecipe]:
    """Of several kinds as many to learn from in all, and as many of each to judge by."""
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
    """What is tried: rates, and prices of a step where there is one."""
    rates = RATES[:1] if harness.is_smoke() else RATES
    if system != "halting":
        return {str(rate): [f"train.lr={rate}"] for rate in rates}
    prices = PRICES[:1] if harness.is_smoke() else PRICES
    return {f"{rate}-{price}": [f"train.lr={rate}", f"model.ponder_cost={price}"] for rate in rates for price in prices}


def trials(out: Path, together: int, many: Sizes, more: Sequence[str]) -> None:
    """For each system the choice with the higher mean of exact answers, then the lower loss, on validation questions."""
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
    """The choice for each system."""
    told = out / "chosen.json"
    if told.exists():
        found: dict[str, str] = json.loads(told.read_text())
        return found
    first = {system: next(iter(choices(system))) for system in SIZES}
    print(f"no trials have ended in {out}: taken is {json.dumps(first)}", flush=True)
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
            f"{task}: {', '.join(f'{name} {count:,}' for name, count in counts.items())}; {apart:.2f} % apart",
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
    """Seconds for 1,000 steps: the median over lines of the log but the first ones, which record and warm up."""
    spent = [1000 * row["seconds"] / (row["step"] - before["step"]) for before, row in itertools.pairwise(rows)]
    return round(statistics.median(spent[len(spent) // 3 :]), 3)


def time(out: Path, systems: Iterable[str], more: Sequence[str]) -> None:
    """The same trainings, one at a time and short."""
    first = {system: next(iter(choices(system).values())) for system in systems}
    many = Sizes(24, 4) if harness.is_smoke() else Sizes(10_000, 20)
    asked = {s: training(TIMED_ON, s, said, many, [*TIMED, *more]) for s, said in first.items()}
    side_by_side(asked, out / "alone", 1, summed)


# -- what was learnt


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
    """Mean steps for the tokens of a sample, those that are read and those that are said, averaged over samples: of all inside
    the trained length and beyond it, by the number of digits or sentences; of stories also for the sentences that decide the
    answer, for the others, and for the question."""
    import torch

    import regard
    from regard.runs.devices import pick_device
    from regard.types import IGNORE

    model = regard.load(run, device=pick_device("auto"))
    encoded = model.task.encode(samples, model.require_tokenizer(), model.config, 10**9)
    kept: dict[str, list[float]] = defaultdict(list)
    with torch.inference_mode():
        for first in range(0, len(samples), 100):
            some = range(first, min(first + 100, len(samples)))
            batch = model.task.collate(encoded, some, model.config).to(model.device)
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
    for word, steps in zip(words, read, strict=False):  # the end token stands behind the last word
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
    parser.add_argument("--together", type=int, default=1, help="trainings at a time")
    parser.add_argument("--samples", type=int, default=200_000, help="questions to learn from")
    parser.add_argument("--count", type=int, default=1000, help="questions of each kind to validate and to test by")
    parser.add_argument("--set", nargs="*", default=[], help="further settings of the trainings")
    asked = parser.parse_args(argv)
    names = [name for name, parts in NAMES.items() if not asked.names or {name, *parts} & set(asked.names)]
    many = Sizes(asked.samples, asked.count)
    if asked.work == "trials":
        trials(asked.out, asked.together, many, asked.set)
    elif asked.work == "train":
        train(names, asked.out, asked.together, many, asked.set)
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
