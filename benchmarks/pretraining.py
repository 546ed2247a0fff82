"""Pretraining `bert-mini` on WikiText-2 from scratch, then fine-tuning on SST-2 from that checkpoint and from random weights.

    python benchmarks/pretraining.py DATA OUT [--seeds 1 2 3] [--lr 1e-4 3e-4 1e-3] [--set train.steps=…] [--device cuda]

DATA contains the compressed files of wikitext-2/ and sst2/. Each article of WikiText is a document. Both fine-tunings use the
tokenizer of the pretrained model and the same settings except the learning rate: the best of `--lr` for the first seed on
every fiftieth sentence of the training file, which is held out. The dev split of SST-2 is evaluated once per seed, with the
checkpoint selected on the held-out sentences.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import harness
import synthetic

from regard.runs.evaluate import evaluate

TITLE = re.compile(r" = [^=].* = \n?")
"""First line of an article; section headings have more equals signs."""

SETTINGS = ["data.detokenize=wikitext", "train.batch_tokens=16384", "train.eval_every=500"]
TUNING = ["train.epochs=3", "data.max_length=128", "data.eval_samples=100000"]
SHORT_TUNING = ["train.epochs=1", "train.batch_tokens=256", "data.max_length=32", "data.eval_samples=4"]


def unpacked(path: Path) -> str:
    return gzip.open(path, "rt", encoding="utf-8").read()


def articles(lines: Iterable[str]) -> Iterator[str]:
    own: list[str] = []
    for line in lines:
        if TITLE.fullmatch(line) and own:
            yield "".join(own)
            own = []
        own.append(line)
    yield "".join(own)


def prepare(data: Path, out: Path) -> dict[str, str]:
    out.mkdir(parents=True, exist_ok=True)
    texts = {}
    for name in ("train", "valid"):
        found = articles(unpacked(data / f"wikitext-2/wiki.{name}.raw.gz").splitlines(keepends=True))
        texts[f"wiki.{name}.jsonl"] = "".join(json.dumps({"text": text}) + "\n" for text in found if text.strip())
    head, *lines = unpacked(data / "sst2/train.tsv.gz").splitlines()
    texts["sst.train.tsv"] = "\n".join([head, *(line for i, line in enumerate(lines) if i % 50)]) + "\n"
    texts["sst.valid.tsv"] = "\n".join([head, *lines[::50]]) + "\n"
    texts["sst.test.tsv"] = unpacked(data / "sst2/dev.tsv.gz")
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
    return {name.rpartition(".")[0]: str(out / name) for name in texts}


def pretrain(files: dict[str, str], run: Path, settings: list[str], device: str) -> None:
    begun = time.perf_counter()
    harness.train(
        "mlm", files["wiki.train"], valid=files["wiki.valid"], model="bert-mini", out=run, device=device,
        settings=[*SETTINGS, *settings],
    )  # fmt: skip
    took = time.perf_counter() - begun
    for line in (run / "log.jsonl").read_text().splitlines():
        if (row := json.loads(line))["kind"] == "valid":
            print(json.dumps(row), flush=True)
    facts = json.loads((run / "regard.json").read_text())
    print(json.dumps({"pretraining": {**facts["best"], **facts["scores"], "seconds": round(took, 1)}}), flush=True)


def tune(
    files: dict[str, str], start: str, pretrained: Path, run: Path, rate: float, seed: int, device: str
) -> dict[str, Any]:
    learnt = start == "pretrained"
    settings = [*(SHORT_TUNING if harness.is_smoke() else TUNING), f"train.lr={rate}", f"train.seed={seed}"]
    settings += [] if learnt else [f"data.tokenizer={pretrained}"]
    settings += harness.TINY["encoder"] if harness.is_smoke() and not learnt else ()
    harness.train(
        "classify", files["sst.train"], valid=files["sst.valid"], model=str(pretrained) if learnt else "bert-mini",
        out=run, settings=settings, device=device,
    )  # fmt: skip
    best = json.loads((run / "regard.json").read_text())["best"]["accuracy"]
    return {"start": start, "rate": rate, "seed": seed, "valid": best}


def compare(files: dict[str, str], pretrained: Path, out: Path, asked: argparse.Namespace) -> None:
    means = {}
    for start in ("pretrained", "random"):

        def one(rate: float, seed: int, start: str = start) -> tuple[dict[str, Any], Path]:
            run = out / f"{start}-{rate:g}-{seed}"
            return tune(files, start, pretrained, run, rate, seed, asked.device), run

        first = {rate: one(rate, asked.seeds[0]) for rate in asked.lr}
        for found, _ in first.values():
            print(json.dumps(found), flush=True)
        rate = max(first, key=lambda rate: first[rate][0]["valid"])
        scores = []
        for seed in asked.seeds:
            found, run = first[rate] if seed == asked.seeds[0] else one(rate, seed)
            test = evaluate(run, [files["sst.test"]], device=asked.device).scores
            scores.append(float(test["accuracy"]))
            print(json.dumps({**found, "test": test["accuracy"]}), flush=True)
        means[start] = statistics.mean(scores)
        spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
        print(
            f"from {start} weights: accuracy {means[start]:.2f} ± {spread:.2f} over {len(scores)} runs, lr {rate:g}",
            flush=True,
        )
    print(f"gain from pretraining: {means['pretrained'] - means['random']:+.2f} points")


def main(argv: Sequence[str] | None = None) -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--lr", type=float, nargs="+", default=[1e-4, 3e-4, 1e-3])
    parser.add_argument("--set", nargs="*", default=[], help="Settings of the pretraining.")
    parser.add_argument("--device", default="auto")
    asked = parser.parse_args(argv)
    files = prepare(asked.data, asked.out / "data")
    run = asked.out / "pretrained"
    if not (run / "README.md").exists():
        pretrain(files, run, asked.set, asked.device)
    compare(files, run, asked.out, asked)


def smoke(folder: Path) -> None:
    synthetic.wikitext(folder / "data/wikitext-2")
    synthetic.sst2(folder / "data/sst2")
    short = [
        *harness.SHORT,
        *harness.TINY["encoder"],
        "model.max_length=32",
        "train.batch_tokens=128",
        "data.vocab_size=300",
    ]
    rates = ["--seeds", "1", "--lr", "1e-3"]
    main([str(folder / "data"), str(folder / "out"), *rates, "--device", "cpu", "--set", *short])


if __name__ == "__main__":
    harness.run(main, smoke)
