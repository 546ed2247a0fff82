"""`regard demo`: train, evaluate, predict and explain on generated data, in a few minutes; and the interface of a demo."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console

from regard.demos import DEMOS
from regard.errors import Interrupted, UnknownNameError
from regard.files import write_json
from regard.model import Model, load
from regard.runs.evaluate import evaluate
from regard.runs.folder import RunFolder
from regard.runs.progress import PipeSafeConsole, print_line, program_command
from regard.runs.terminal import format_duration
from regard.runs.train import train

LogFn = Callable[[str], None]
ResultRows = Sequence[Mapping[str, str]]
"""Test samples with predictions and references."""


class Demo(ABC):
    name: ClassVar[str]
    """argument of `regard demo`"""
    task: ClassVar[str]
    metric: ClassVar[str] = "exact_match"
    """test score that `demo` returns"""
    out: ClassVar[str]
    """default run folder"""
    settings: ClassVar[tuple[str, ...]]
    input_key: ClassVar[str]
    """key of the input in a test sample"""
    titles: ClassVar[Mapping[str, str]]
    """titles of the stages: corpus, train, score, predict, explain"""

    @abstractmethod
    def write_data(self, folder: Path) -> dict[str, str]:
        """Write the data in a file format for users' own data; return the paths of train, valid and test."""

    @abstractmethod
    def show_predictions(self, model: Model, rows: ResultRows, log: LogFn) -> None: ...

    @abstractmethod
    def explain(self, model: Model, run: Path, data: Mapping[str, str], rows: ResultRows, log: LogFn) -> dict[str, Any]:
        """Save figures and pages in the run folder; return measurements for demo.json."""

    @abstractmethod
    def next_steps(self, program: str, run: Path, data: Path) -> str:
        """Text with commands to try next, for the run folder and the data folder."""


def quote_path(path: Path) -> str:
    """Path quoted for a shell."""
    return shlex.quote(str(path))


def demo(
    what: str = "translate", out: str | os.PathLike[str] | None = None, overwrite: bool = False,
    console: Console | None = None,
) -> float:  # fmt: skip
    """Run a demo and return the test score in percent: exact match, or mIoU for point clouds.

    An interrupted demo is resumed. A finished demo is not trained again, unless `overwrite` is set."""
    if what not in DEMOS:
        raise UnknownNameError("demo", what, DEMOS)
    shown, console, begun = DEMOS[what], console or PipeSafeConsole(), time.perf_counter()
    folder = Path(shown.out if out is None else out)
    beside = folder.with_name(folder.name + "-data")
    times: dict[str, float] = {}

    def stage(name: str) -> None:
        times[name] = time.perf_counter()
        console.print(f"\n[bold]{len(times)}  {shown.titles[name]}[/bold]", highlight=False, soft_wrap=True)

    def say(line: str) -> None:
        print_line(console, f"  {line}")

    stage("corpus")
    data = shown.write_data(beside)
    stage("train")
    model = train_or_load(shown, folder, data, overwrite, console)
    stage("score")
    result = evaluate(folder, [data["test"]], device="cpu")
    say(", ".join(f"{k} {v}" for k, v in result.scores.items() if k != "signature" and "\n" not in str(v)))
    show_mistakes(shown, result.rows, say)
    stage("predict")
    shown.show_predictions(model, result.rows, say)
    stage("explain")
    found = shown.explain(model, folder, data, result.rows, say)
    times["end"] = time.perf_counter()
    seconds = {a: round(times[b] - times[a], 1) for a, b in zip(list(times), list(times)[1:], strict=False)}
    write_json(folder / "demo.json", {"seconds": seconds, "test": result.scores, **found})
    print_line(
        console,
        f"\nDone in {format_duration(time.perf_counter() - begun)} "
        f"({', '.join(f'{k} {v} s' for k, v in seconds.items())}).",
    )
    print_line(console, shown.next_steps(program_command(), folder, beside))
    return float(result.scores[shown.metric])


def train_or_load(spec: Demo, folder: Path, data: dict[str, str], overwrite: bool, console: Console) -> Model:
    """Train, resume, or load the model of an earlier demo; `train` rejects a folder with other content."""
    run = RunFolder(folder)
    facts = run.read_metadata() if run.exists() else {}
    ours = facts.get("sources", {}).get("data") == [os.path.abspath(data["train"])]
    if ours and overwrite:
        shutil.rmtree(folder)
    elif ours and "scores" in facts:
        print_line(
            console,
            f"  note: {folder} was trained by an earlier demo. "
            f"To train again, run: {demo_command(spec, folder)} --overwrite",
        )
        return load(folder)
    try:
        return train(
            spec.task, [data["train"]], valid=[data["valid"]], out=folder, settings=spec.settings, console=console,
            resume=ours and not overwrite,
        )  # fmt: skip
    except Interrupted as stopped:  # the demo command resumes training and runs the remaining stages
        stopped.args = (f"Interrupted; checkpoint saved. Resume with:\n  {demo_command(spec, folder)}",)
        raise


def demo_command(spec: Demo, folder: Path) -> str:
    """Shortest command line of this demo."""
    which = "" if spec.name == "translate" else f" {spec.name}"
    where = "" if folder == Path(spec.out) else f" --out {quote_path(folder)}"
    return f"regard demo{which}{where}"


def show_mistakes(spec: Demo, rows: ResultRows, log: LogFn) -> None:
    wrong = [row for row in rows if "reference" in row and row["prediction"] != row["reference"]]
    if wrong:
        log(f"Predictions that differ from the reference: {len(wrong)} of {len(rows)}, for example:")
        log(
            f"  {wrong[0][spec.input_key]}\n"
            f"    prediction: {wrong[0]['prediction']}\n"
            f"    reference:  {wrong[0]['reference']}"
        )
