"""What a person sees while a model trains: one aligned line with the time left, and a line at each validation."""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from regard.runs.terminal import format_duration
from regard.training.loop import TrainStep

PLAIN_LINE_SECONDS = 15.0
"""Without a terminal a plain line is printed this often."""


MIN_WAIT_FRACTION = 0.05
"""Share of time spent on waiting for data that is worth a word."""

MAX_LINE_CHARS = 200
"""Characters of a line about a sample; the file of samples has it whole."""

REFRESH_SECONDS = 2.0
"""On a terminal the loss is refreshed at least this often."""


class PipeSafeConsole(Console):
    """A console that nobody need listen to: when a pipe is closed, what is said is lost, and the work goes on."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        with open(os.devnull, "w") as nowhere, suppress(OSError, ValueError):
            os.dup2(nowhere.fileno(), sys.stdout.fileno())  # or the interpreter would complain when it ends


class ProgressReporter:
    def __init__(self, steps: int, completed_steps: int, console: Console | None = None, unit: str = "tokens") -> None:
        self.unit = unit
        self.console = console or PipeSafeConsole()
        self.steps = steps
        self.last_line = time.monotonic()
        self.bar: Progress | None = None
        if self.console.is_terminal:
            self.bar = Progress(
                TextColumn("step"), MofNCompleteColumn(), BarColumn(bar_width=16),
                TextColumn("loss {task.fields[loss]:>7}"), TextColumn("rate {task.fields[rate]:>8}"),
                TextColumn("{task.fields[speed]:>9,.0f} " + f"{unit}/s" + "{task.fields[waiting]}"), TextColumn("left"),
                TimeRemainingColumn(compact=True), console=self.console, refresh_per_second=4,
            )  # fmt: skip
            self.bar_task = self.bar.add_task(
                "train", total=steps, completed=completed_steps, loss="–", rate="–", speed=0.0, waiting=""
            )

    def __enter__(self) -> ProgressReporter:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def log(self, text: str) -> None:
        print_line(self.console, text)

    def advance(self, step: TrainStep, speed: float, eta: float) -> None:
        """Between two lines of the log, which are far from each other where steps take long."""
        if self.bar is None:
            if time.monotonic() - self.last_line > PLAIN_LINE_SECONDS:
                self._log_line(step.step, float(step.loss), step.lr, speed, "", eta)
            return
        self.bar.update(self.bar_task, completed=step.step)
        if time.monotonic() - self.last_line > REFRESH_SECONDS:  # reading the loss waits for the device: not every step
            self.last_line = time.monotonic()
            self.bar.update(self.bar_task, loss=f"{float(step.loss):.4f}", rate=f"{step.lr:.2e}", speed=speed)

    def log_step(self, row: dict[str, Any], eta: float, force: bool = False) -> None:
        """Without a terminal a line now and then, and one that is `due`."""
        speed = row[f"{self.unit}_per_s"]
        # time in which the device had nothing to do, where there is some
        waiting = f", waiting {100 * row['waiting']:.0f} %" if row["waiting"] > MIN_WAIT_FRACTION else ""
        if self.bar is not None:
            shown = {"loss": f"{row['loss']:.4f}", "rate": f"{row['rate']:.2e}", "speed": speed, "waiting": waiting}
            self.bar.update(self.bar_task, **shown)
        elif force or time.monotonic() - self.last_line > PLAIN_LINE_SECONDS:
            self._log_line(row["step"], row["loss"], row["rate"], speed, waiting, eta)

    def _log_line(self, step: int, loss: float, rate: float, speed: float, waiting: str, left: float) -> None:
        self.last_line = time.monotonic()
        self.log(
            f"step {step:>7,}/{self.steps:,}  loss {loss:7.4f}  rate {rate:8.2e}  "
            f"{speed:>9,.0f} {self.unit}/s{waiting}  left {format_duration(left)}"
        )

    def log_validation(self, row: dict[str, Any], scores: str, is_best: bool) -> None:
        mark = "  best so far" if is_best else ""
        self.log(f"step {row['step']:>7,}  validation loss {row['loss']:7.4f}  {scores}{mark}")


def print_line(console: Console, text: str) -> None:
    """A plain line: no colours guessed, no markup read, no words broken."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def shorten_lines(text: str, max_chars: int = MAX_LINE_CHARS) -> str:
    """Lines that are no longer than a glance takes."""
    return "\n".join(
        line if len(line) <= max_chars else line[: max_chars - 2] + " …" for line in text.rstrip("\n").splitlines()
    )


def quiet_console() -> Console:
    """For the processes of a run that do not speak."""
    return Console(quiet=True)


def program_command() -> str:
    """How this program can be called again: it may stand in a virtual environment that is not on the path."""
    called = Path(sys.argv[0])
    if called.name != "regard":
        return "python -m regard" if called.name == "__main__.py" else "regard"
    return "regard" if shutil.which("regard") else os.path.relpath(called)
