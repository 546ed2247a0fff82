"""`demo`: the main job on the embedded corpus — train, score, translate, show what was looked at — in a few minutes."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from regard.data.grammar import Pair, corpus
from regard.disk import write_json
from regard.model import Model, load
from regard.runs.evaluating import evaluate
from regard.runs.folder import RunFolder
from regard.runs.progress import Screen, clock, own_command, tell
from regard.runs.training import train

SENTENCE = "the cat danced"
MOVED = "the man said that the woman bought the red book"
"""Its translation has the verb at the end: the cross-attention must reach back for it."""

SETTINGS = (
    "model.depth=2", "model.decoder_depth=2", "model.hidden=512", "model.dropout=0", "data.vocabulary=1000",
    "train.steps=1200", "train.tokens=2048", "train.rate=3e-3", "train.warmup=100", "train.schedule=linear",
    "train.smoothing=0", "train.average=0", "train.every=400", "train.log=20", "data.score=300", "decode.beam=1",
)  # fmt: skip
"""A smaller transformer-tiny: the grammar has about 200 words a side."""


def demo(out: str | os.PathLike[str] = "runs/demo", again: bool = False, console: Console | None = None) -> float:
    """Returns the share of test sentences that were translated exactly, in percent.

    A demo that was interrupted goes on; one that is finished is shown without training, unless `again`."""
    console, folder, begun = console or Screen(), Path(out), time.perf_counter()
    times: dict[str, float] = {}

    def stage(name: str, title: str) -> None:
        times[name] = time.perf_counter()
        console.print(f"\n[bold]{title}[/bold]", highlight=False, soft_wrap=True)

    stage("corpus", "1  The corpus: an English–German grammar written for regard")
    data = write_corpus(folder.with_name(folder.name + "-data"))
    stage("train", "2  Training a Transformer on it")
    model = trained(folder, data, again, console)
    stage("score", "3  Scoring it on 2,000 sentences with word combinations it has never seen")
    result = evaluate(folder, [data["test"]], device="cpu")
    tell(console, "  " + ", ".join(f"{k} {v}" for k, v in result.scores.items() if k != "signature"))
    show_mistakes(result.rows, console)
    stage("answer", "4  Asking it")
    for text in (SENTENCE, MOVED):
        tell(console, f"  {text}  →  {model.answer(text).value}")
    stage("explain", "5  What it looked at")
    for name, text in (("cat", SENTENCE), ("moved", MOVED)):
        found = model.explain(text)
        for suffix in ("html", "png"):
            tell(console, f"  {found.save(folder / f'attention-{name}.{suffix}')}")
    tell(console, "  In the second the last German word is the verb: its row reaches back to the middle of the source.")
    times["end"] = time.perf_counter()
    seconds = {a: round(times[b] - times[a], 1) for a, b in zip(list(times), list(times)[1:], strict=False)}
    exact = float(result.scores["exact"])
    write_json(folder / "demo.json", {"seconds": seconds, "test": result.scores})
    tell(
        console,
        f"\ndone in {clock(time.perf_counter() - begun)} ({', '.join(f'{k} {v} s' for k, v in seconds.items())})",
    )
    tell(console, own_data(folder))
    return exact


def trained(folder: Path, data: dict[str, str], again: bool, console: Console) -> Model:
    """Train, go on, or take what an earlier demo left; a folder that holds anything else is refused by `train`."""
    run = RunFolder(folder)
    facts = run.facts() if run.exists() else {}
    ours = facts.get("sources", {}).get("data") == [os.path.abspath(data["train"])]
    if ours and again:
        shutil.rmtree(folder)
    elif ours and "scores" in facts:
        tell(console, f"  an earlier demo trained {folder}; to train anew use: regard demo --again")
        return load(folder)
    return train(
        "translate", [data["train"]], valid=[data["valid"]], out=folder, settings=SETTINGS, console=console,
        resume=ours and not again,
    )  # fmt: skip


def write_corpus(folder: Path) -> dict[str, str]:
    """As tab-separated files, so that a person can see what their own should look like."""
    folder.mkdir(parents=True, exist_ok=True)
    made = corpus()
    paths = {}
    for name, pairs in (("train", made.train), ("valid", made.valid), ("test", made.test)):
        paths[name] = str(folder / f"{name}.tsv")
        _write(Path(paths[name]), pairs)
    return paths


def _write(path: Path, pairs: Sequence[Pair]) -> None:
    path.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in pairs), encoding="utf-8")


def show_mistakes(rows: Sequence[Mapping[str, str]], console: Console) -> None:
    wrong = [row for row in rows if row["answer"] != row["reference"]]
    if wrong:
        tell(console, f"  {len(wrong)} of {len(rows)} differ, for example:")
        tell(console, "    {source}\n    → {answer}\n    = {reference}".format(**wrong[0]))


def own_data(folder: Path) -> str:
    regard = own_command()
    return f"""
Your own data: a file with a sentence, a tab and its translation on each line (or CSV, JSONL, or two files SRC:TGT), then

  {regard} train translate --data pairs.tsv --model transformer-tiny --out runs/mine
  {regard} evaluate runs/mine
  {regard} run runs/mine "a sentence"
  {regard} explain runs/mine "a sentence" --out map.html

What the demo made is in {folder}. Ask it more:

  {regard} run {folder} "the old woman does not buy a red bicycle"
"""
