"""`demo`: a whole job on embedded data — train, score, ask, show what was looked at — in a few minutes."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from rich.console import Console

from regard.demos import DEMOS
from regard.demos.demo import Demo, Rows, Say, quoted
from regard.errors import Interrupted, UnknownName
from regard.files import write_json
from regard.model import Model, load
from regard.runs.evaluate import evaluate
from regard.runs.folder import RunFolder
from regard.runs.progress import Screen, own_command, tell
from regard.runs.terminal import clock
from regard.runs.train import train


def demo(
    what: str = "translate", out: str | os.PathLike[str] | None = None, again: bool = False,
    console: Console | None = None,
) -> float:  # fmt: skip
    """Returns the score of the test, in percent: the share of samples that were answered exactly, of clouds the mean overlap.

    A demo that was interrupted goes on; one that is finished is shown without training, unless `again`."""
    if what not in DEMOS:
        raise UnknownName("demo", what, DEMOS)
    shown, console, begun = DEMOS[what], console or Screen(), time.perf_counter()
    folder = Path(shown.out if out is None else out)
    beside = folder.with_name(folder.name + "-data")
    times: dict[str, float] = {}

    def stage(name: str) -> None:
        times[name] = time.perf_counter()
        console.print(f"\n[bold]{len(times)}  {shown.titles[name]}[/bold]", highlight=False, soft_wrap=True)

    def say(line: str) -> None:
        tell(console, f"  {line}")

    stage("corpus")
    data = shown.write(beside)
    stage("train")
    model = trained(shown, folder, data, again, console)
    stage("score")
    result = evaluate(folder, [data["test"]], device="cpu")
    say(", ".join(f"{k} {v}" for k, v in result.scores.items() if k != "signature" and "\n" not in str(v)))
    show_mistakes(shown, result.rows, say)
    stage("answer")
    shown.ask(model, result.rows, say)
    stage("explain")
    found = shown.explain(model, folder, data, result.rows, say)
    times["end"] = time.perf_counter()
    seconds = {a: round(times[b] - times[a], 1) for a, b in zip(list(times), list(times)[1:], strict=False)}
    write_json(folder / "demo.json", {"seconds": seconds, "test": result.scores, **found})
    tell(
        console,
        f"\ndone in {clock(time.perf_counter() - begun)} ({', '.join(f'{k} {v} s' for k, v in seconds.items())})",
    )
    tell(console, shown.further(own_command(), folder, beside))
    return float(result.scores[shown.metric])


def trained(shown: Demo, folder: Path, data: dict[str, str], again: bool, console: Console) -> Model:
    """Train, go on, or take what an earlier demo left; a folder that holds anything else is refused by `train`."""
    run = RunFolder(folder)
    facts = run.facts() if run.exists() else {}
    ours = facts.get("sources", {}).get("data") == [os.path.abspath(data["train"])]
    if ours and again:
        shutil.rmtree(folder)
    elif ours and "scores" in facts:
        tell(console, f"  an earlier demo trained {folder}; to train anew use: {command(shown, folder)} --again")
        return load(folder)
    try:
        return train(
            shown.task, [data["train"]], valid=[data["valid"]], out=folder, settings=shown.settings, console=console,
            resume=ours and not again,
        )  # fmt: skip
    except Interrupted as stopped:  # the demo goes on too, and shows the rest
        stopped.args = (f"stopped and saved. Go on with:\n  {command(shown, folder)}",)
        raise


def command(shown: Demo, folder: Path) -> str:
    """This demo once more, in as few words as say so."""
    which = "" if shown.name == "translate" else f" {shown.name}"
    where = "" if folder == Path(shown.out) else f" --out {quoted(folder)}"
    return f"regard demo{which}{where}"


def show_mistakes(shown: Demo, rows: Rows, say: Say) -> None:
    wrong = [row for row in rows if "reference" in row and row["answer"] != row["reference"]]
    if wrong:
        say(f"{len(wrong)} of {len(rows)} differ, for example:")
        say(f"  {wrong[0][shown.given]}\n    → {wrong[0]['answer']}\n    = {wrong[0]['reference']}")
