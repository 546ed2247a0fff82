"""Recall at a distance: a fact stated N tokens before the end, facts about other people in between, and a question about it.

    python benchmarks/recall.py data OUT [--max-distance 160] [--rows 200000] [--people 4]
    python benchmarks/recall.py train OUT [name ...] [--width 128] [--jobs 4] [--set train.steps=...]
    python benchmarks/recall.py test OUT [name ...]                      # exact match by N
    python benchmarks/recall.py measure OUT [name ...]                   # paths, gradients and time by N
    python benchmarks/recall.py figure OUT                               # OUT/recall.png

`data` writes texts with distances up to `--max-distance` tokens; the test distances are well below, because few texts reach the
maximum. On a CPU: `--max-distance 80 --rows 100000`, then `--width 64 --set train.batch_tokens=4096`.

    mary comes from oslo . the rain had stopped . john comes from vienna . so then … where does john come from ?  →  vienna

N is the number of tokens from the last word of the fact to the question mark; each word is one token. All systems are trained
with the task `translate` on the same texts for the same number of steps; only the learning rate differs. Recurrent models read
the source in forward order: reversed as by Sutskever et al., the start of a text would be near. Paths are measured in float64
on the CPU, where autograd records torch's LSTM step by step; time is measured on `--device`.
"""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import harness
from side_by_side import parameters, side_by_side

NAMES = (
    "john", "mary", "peter", "anna", "paul", "clara", "felix", "laura", "simon", "julia", "martin", "helen", "oscar", "rosa",
    "victor", "emma", "hugo", "nora", "leo", "ida", "max", "eva", "karl", "alice", "bruno", "greta", "emil", "vera", "otto",
    "lena",
)  # fmt: skip
PLACES = (
    "vienna", "paris", "oslo", "rome", "madrid", "lisbon", "berlin", "prague", "dublin", "athens", "warsaw", "london", "bergen",
    "turin", "geneva", "krakow", "seville", "naples", "malmo", "porto", "graz", "lyon", "ghent", "bremen", "dresden", "verona",
    "tallinn", "riga", "vilnius", "zagreb",
)  # fmt: skip
PEOPLE = tuple(name + tail for tail in ("", "ski", "ova", "sen", "ez") for name in NAMES)
CLAUSES = (
    "the rain had stopped .", "nobody knew the time .", "they walked along the river .", "the train was late again .",
    "a dog barked at the moon .", "dinner was served at eight .", "the old clock struck twice .", "someone closed the window .",
)  # fmt: skip
WORDS = ("so", "then", "well", "indeed")
"""Filler words of one token each, for gaps shorter than a clause."""


def recurrent(cell: str) -> Callable[[int], tuple[str, ...]]:
    def sized(width: int) -> tuple[str, ...]:
        sizes = (f"model.width={width}", f"model.embedding_dim={width}")
        return (f"model.cell={cell}", "model.reverse_source=false", "model.depth=1", *sizes)

    return sized


def rnnsearch(width: int) -> tuple[str, ...]:
    sizes = {
        "width": width,
        "encoder_width": width // 2,
        "embedding_dim": width,
        "attention_dim": width,
        "maxout_dim": width,
    }
    return tuple(f"model.{name}={size}" for name, size in sizes.items())


def convs2s(width: int) -> tuple[str, ...]:
    return (
        f"model.encoder_stages={width}x3x3",
        f"model.embedding_dim={width}",
        f"model.output_dim={width}",
        "model.max_length=1024",
    )


def transformer(width: int) -> tuple[str, ...]:
    sizes = {"width": width, "ffn_dim": 2 * width, "depth": 2, "decoder_depth": 2, "heads": max(width // 32, 1)}
    return tuple(f"model.{name}={size}" for name, size in sizes.items())


SYSTEMS: dict[str, tuple[str, Callable[[int], tuple[str, ...]], tuple[str, ...]]] = {
    "rnn": ("rnn-tiny", recurrent("rnn"), ("train.lr=1e-3",)),
    "lstm": ("rnn-tiny", recurrent("lstm"), ("train.lr=2e-3",)),
    "rnnsearch": ("rnnsearch-tiny", rnnsearch, ("train.lr=2e-3",)),
    "convs2s": ("convs2s-tiny", convs2s, ("train.lr=2e-3",)),
    "transformer": ("transformer-tiny", transformer, ("train.lr=2e-3",)),
}
"""Preset, model settings as a function of the width, and training settings of each system."""

ALIKE = (
    "data.vocab_size=2000",
    "data.max_length=2000",
    "data.eval_samples=500",
    "model.dropout=0.0",
    "train.steps=5000",
    "train.batch_tokens=16384",
    "train.warmup_steps=500",
    "train.lr_schedule=linear",
    "train.label_smoothing=0.0",
    "train.grad_clip=1.0",
    "train.ema_decay=0",
    "train.eval_every=1000",
    "decode.num_beams=1",
)

LOOKS = {"rnn": "#a8b0bb", "lstm": "#6b7686", "rnnsearch": "#c8501e", "convs2s": "#5b8c2a", "transformer": "#2b51aa"}
QUESTION = "where does {} come from ?"


# -- texts


def sample(draw: random.Random, distance: int, known: int, before: int = 0) -> tuple[str, str]:
    """A text and its answer: `before` tokens, the fact, and the question mark `distance` tokens after the fact.

    `known` is the number of people. Draw `before` so that all positions of the fact are equally likely; otherwise the position
    alone would identify the fact in question."""
    people = draw.sample(PEOPLE[:known], known)
    asked, place = people.pop(), draw.choice(PLACES)
    question = QUESTION.format(asked).split()
    text = _between(draw, people, known, before)
    between = _between(draw, people, known, distance - len(question) - 1)  # minus the period after the fact
    return " ".join([*text, asked, "comes", "from", place, ".", *between, *question]), place


def _clause(draw: random.Random, people: list[str], known: int) -> list[str]:
    """A fact about another person, an unrelated clause, or a filler word."""
    kind = draw.random()
    if people and kind < 0.5:
        return [people.pop(), "comes", "from", draw.choice(PLACES), "."]
    return draw.choice(CLAUSES).split() if kind < 0.85 else [draw.choice(WORDS)]


def _between(draw: random.Random, people: list[str], known: int, length: int) -> list[str]:
    """Exactly `length` words. Filler words are inserted anywhere: only at the end, they would announce the fact in question."""
    clauses: list[list[str]] = []
    while (left := length - sum(map(len, clauses))) >= 7:
        clauses.append(_clause(draw, people, known))
    for _ in range(left):
        clauses.insert(draw.randint(0, len(clauses)), [draw.choice(WORDS)])
    return [word for clause in clauses for word in clause]


def distances(most: int) -> list[int]:
    """Test distances 8, 16, 32, … up to 80 % of the maximum."""
    return [2**power for power in range(3, int(math.log2(0.8 * most)) + 1)]


def data(out: Path, most: int, rows: int, known: int) -> None:
    """Write training, validation and test texts. Training texts have uniformly distributed lengths, and any of the facts may
    be in question: in mostly short texts, naming the only place would be right so often that a model learns nothing else."""
    out.mkdir(parents=True, exist_ok=True)
    draw = random.Random(1)
    (out / "known.json").write_text(json.dumps(known))
    parts = {"train": rows, "valid": min(1000, rows // 4)}
    for part, count in parts.items():
        lengths = (draw.randint(7, most) for _ in range(count))
        asked = ((length, draw.randint(7, length)) for length in lengths)
        _write(out / f"{part}.tsv", [sample(draw, far, known, length - far) for length, far in asked])
    for far in distances(most):
        befores = [draw.randint(0, most - far) for _ in range(min(1000, rows // 10))]
        _write(out / f"test-{far}.tsv", [sample(draw, far, known, before) for before in befores])


def _write(path: Path, pairs: list[tuple[str, str]]) -> None:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    print(path, len(pairs), flush=True)


def tested(out: Path) -> list[int]:
    return sorted(int(path.stem.partition("-")[2]) for path in out.glob("test-*.tsv"))


# -- training and answers


def train(names: list[str], out: Path, width: int, together: int, more: list[str]) -> None:
    words = ["--data", str(out / "train.tsv"), "--valid", str(out / "valid.tsv"), "--set", *ALIKE]
    trainings = {
        name: ["translate", "--model", preset, *words, *sized(width), *own, *more]
        for name, (preset, sized, own) in SYSTEMS.items()
        if name in names
    }
    side_by_side(trainings, out, together, summed)


def summed(run: Path) -> dict[str, Any]:
    rows = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    best = max(row["exact_match"] for row in rows if row["kind"] == "valid")
    return {"valid": best, "parameters": parameters(run)}


def test(names: list[str], out: Path) -> None:
    from regard.runs.evaluate import evaluate

    for name in names:
        found = {N: evaluate(out / name, [str(out / f"test-{N}.tsv")]).scores["exact_match"] for N in tested(out)}
        print(name, json.dumps(found), flush=True)
        (out / f"{name}.test.json").write_text(json.dumps(found))


# -- autograd graphs and timing


def told(model: Any, pairs: list[tuple[str, str]]) -> Any:
    """A batch of texts of the same length, collated by the task."""
    from regard.data.text.samples import Pair
    from regard.tasks.base import EncodingContext

    samples = [Pair(source, target, "", 0) for source, target in pairs]
    encoded = model.task.objective.encode(samples, model.config, EncodingContext(model.tokenizer))
    batch = model.task.objective.collate(encoded, range(len(pairs)), model.config)
    assert batch.inputs.shape[1] == len(pairs[0][0].split()) + 1, "a word is not one token"
    return batch


@contextmanager
def opened(body: Any, x: Any) -> Iterator[list[Any]]:
    """Context in which the source embeddings are leaves of the autograd graph, one per token."""
    import torch
    from torch import nn

    leaves: list[Any] = []

    def replaced(_: Any, given: Any, made: Any) -> Any:
        if given[0].shape != x.shape or not torch.equal(given[0], x):
            return None
        leaves[:] = [token.detach().requires_grad_() for token in made.unbind(1)]
        return torch.stack(leaves, 1)

    handles = [part.register_forward_hook(replaced) for part in body.modules() if isinstance(part, nn.Embedding)]
    try:
        yield leaves
    finally:
        for handle in handles:
            handle.remove()


def graph(model: Any, distance: int, known: int, count: int) -> dict[str, float]:
    """For the log-probability of the answer: shortest path to the fact, longest chain of products, gradient norm of the fact,
    and that norm relative to the largest of all tokens, because all gradients of a confident prediction are small."""
    import torch
    from paths import longest, shortest

    draw, rows = random.Random(distance), []
    for _ in range(count):
        batch = told(model, [sample(draw, distance, known)])
        with opened(model.body, batch.inputs) as leaves:
            logits = model.body.to_logits(model.body(batch).sequence)
        value = logits[0, 0].log_softmax(-1)[batch.labels[0, 0]]
        at = batch.inputs.shape[1] - 2 - distance  # the end token follows the question mark
        norms = [float(gradient.norm()) for gradient in torch.autograd.grad(value, leaves, retain_graph=True)]
        rows.append({"gradient": norms[at], "share": norms[at] / max(norms)})
    middle = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    return {"path": shortest(value, leaves[at], len(leaves)), "chain": longest(value), **middle}


def milliseconds(model: Any, distance: int, known: int, count: int, steps: int) -> float:
    from clock import Clock

    draw = random.Random(1)
    batch = told(model, [sample(draw, distance, known) for _ in range(count)]).to(model.device)
    clock = Clock(model.device.type, steps)

    def learn() -> None:
        total, number = model.task.objective.loss(model, batch)
        (total / number).backward()

    return round(1000 * clock.median(learn, warm=2), 3)


def measure(names: list[str], out: Path, device: str, count: int, rows: int) -> None:
    import torch

    import regard

    known = json.loads((out / "known.json").read_text())
    for name in names:
        plain, found = regard.load(out / name, dtype=torch.float64), []
        timed = regard.load(out / name).to(device)
        for N in tested(out):
            row = {"N": N, **graph(plain, N, known, count), "ms": milliseconds(timed, N, known, rows, 5)}
            print(name, json.dumps(row), flush=True)
            found.append(row)
        (out / f"{name}.measure.json").write_text(json.dumps({"device": device, "rows": rows, "found": found}))


# -- the figure

PANELS = {
    "exact_match": ("Recall", "accuracy, %", "linear"),
    "path": ("Shortest gradient path", "operations from answer to fact", "log"),
    "chain": ("Sequential computation", "matrix products in the longest chain", "log"),
    "gradient": ("Gradient of the fact", "norm of d log p(answer) / d fact", "log"),
    "share": ("Relative gradient of the fact", "fraction of the largest token gradient", "log"),
    "ms": ("Time", "forward and backward, ms", "log"),
}


def figure(out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    shown, grid = plt.subplots(2, 3, figsize=(14, 7.6), layout="constrained")
    for axes, (key, (title, unit, scale)) in zip(grid.flat, PANELS.items(), strict=True):
        for name, colour in LOOKS.items():
            points = read(out, name, key)
            if points:
                dashed = "--" if name == "convs2s" else "-"  # lines may overlap
                axes.plot(*zip(*points, strict=True), dashed, marker="o", ms=4, color=colour, label=name)
        axes.set(title=title, ylabel=unit, yscale=scale, xlabel="distance to the fact (tokens)")
        axes.set_xscale("log", base=2)
        axes.set_xticks(tested(out), [str(N) for N in tested(out)])
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}" if key in ("path", "chain", "ms") else "")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    grid.flat[0].set_ylim(0, 102)
    grid.flat[0].legend(frameon=False)
    shown.savefig(out / "recall.png", dpi=130)


def read(out: Path, name: str, key: str) -> list[tuple[int, float]]:
    told = out / f"{name}.test.json" if key == "exact_match" else out / f"{name}.measure.json"
    if not told.exists():
        return []
    kept = json.loads(told.read_text())
    return (
        [(int(N), share) for N, share in kept.items()]
        if key == "exact_match"
        else [(r["N"], r[key]) for r in kept["found"]]
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("work", choices=("data", "train", "test", "measure", "figure"))
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", choices=(*SYSTEMS, []))
    parser.add_argument("--max-distance", type=int, default=160, help="data: maximum distance.")
    parser.add_argument("--rows", type=int, default=200_000, help="data: number of training texts.")
    parser.add_argument("--people", type=int, default=4, help="data: number of people, at most 150.")
    parser.add_argument("--width", type=int, default=128, help="train: hidden size of all systems.")
    parser.add_argument("--jobs", type=int, default=1, help="train: number of parallel runs.")
    parser.add_argument("--set", nargs="*", default=[], help="train: further settings.")
    parser.add_argument("--device", default="cpu", help="measure: device of the timing.")
    parser.add_argument("--count", type=int, default=16, help="measure: number of texts for gradients.")
    parser.add_argument("--batch", type=int, default=32, help="measure: batch size of the timing.")
    asked = parser.parse_args(argv)
    names = [name for name in SYSTEMS if not asked.names or name in asked.names]
    there = [name for name in names if (asked.out / name / "regard.json").exists()]
    if asked.work == "data":
        data(asked.out, asked.max_distance, asked.rows, asked.people)
    elif asked.work == "train":
        train(names, asked.out, asked.width, asked.jobs, asked.set)
    elif asked.work == "test":
        test(there, asked.out)
    elif asked.work == "measure":
        measure(there, asked.out, asked.device, asked.count, asked.batch)
    else:
        figure(asked.out)


def smoke(folder: Path) -> None:
    out, names = str(folder), ("lstm", "transformer")
    main(["data", out, "--max-distance", "24", "--rows", "400"])
    short = [*harness.SHORT, "train.batch_tokens=1024", "decode.max_extra_tokens=2"]
    main(["train", out, *names, "--width", "16", "--set", *short])
    main(["test", out, *names])
    main(["measure", out, *names, "--count", "1", "--batch", "2"])
    main(["figure", out])


if __name__ == "__main__":
    harness.run(main, smoke)
