"""Progress of a training run in the terminal: a progress bar or plain lines, and one line per validation."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from regard.runs.terminal import format_duration
from regard.training.loop import TrainStep

PLAIN_LINE_SECONDS = 15.0
"""Interval of plain lines without a terminal."""


MIN_WAIT_FRACTION = 0.05
"""Fraction of the time spent waiting for data from which it is printed."""

MAX_LINE_CHARS = 200
"""Maximum length of a printed example; samples.txt contains the complete text."""

REFRESH_SECONDS = 2.0
"""Interval at which the bar shows a new loss."""


class PipeSafeConsole(Console):
    """Console that ignores a closed pipe: the run continues without output."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        with open(os.devnull, "w") as nowhere, suppress(OSError, ValueError):
            os.dup2(nowhere.fileno(), sys.stdout.fileno())  # avoids an error message at interpreter exit


class ProgressReporter:
    def __init__(self, steps: int, completed_steps: int, console: Console | None = None, unit: str = "tokens") -> None:
        self.unit = unit
        self.speed_unit = "tok/s" if unit == "tokens" else f"{unit}/s"
        self.console = console or PipeSafeConsole()
        self.steps = steps
        self.last_line = time.monotonic()
        self.bar: Progress | None = None
        if self.console.is_terminal:
            self.bar = Progress(
                TextColumn("step"),
                MofNCompleteColumn(),
                BarColumn(bar_width=16),
                TextColumn("loss {task.fields[loss]:>7}"),
                TextColumn("lr {task.fields[lr]:>8}"),
                TextColumn("{task.fields[speed]:>9,.0f} " + self.speed_unit + "{task.fields[data_wait]}"),
                TextColumn("ETA"),
                TimeRemainingColumn(compact=True),
                console=self.console,
                refresh_per_second=4,
            )
            self.bar_task = self.bar.add_task(
                "train", total=steps, completed=completed_steps, loss="–", lr="–", speed=0.0, data_wait=""
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

    def advance(self, step: TrainStep, speed: float, eta: float) -> None:
        """Update the bar between two log rows, or print a plain line after PLAIN_LINE_SECONDS."""
        if self.bar is None:
            if time.monotonic() - self.last_line > PLAIN_LINE_SECONDS:
                self._log_line(step.step, float(step.loss), step.lr, speed, "", eta)
            return
        self.bar.update(self.bar_task, completed=step.step)
        if time.monotonic() - self.last_line > REFRESH_SECONDS:  # reading the loss synchronizes the device
            self.last_line = time.monotonic()
            self.bar.update(self.bar_task, loss=f"{float(step.loss):.4f}", lr=f"{step.lr:.2e}", speed=speed)

    def log_step(self, row: dict[str, Any], eta: float, force: bool = False) -> None:
        """Show a log row: in the bar, or as a plain line after PLAIN_LINE_SECONDS or with `force`."""
        speed = row[f"{self.unit}_per_s"]
        wait = f"  data wait {100 * row['data_wait']:.0f} %" if row["data_wait"] > MIN_WAIT_FRACTION else ""
        if self.bar is not None:
            shown = {"loss": f"{row['loss']:.4f}", "lr": f"{row['lr']:.2e}", "speed": speed, "data_wait": wait}
            self.bar.update(self.bar_task, **shown)
        elif force or time.monotonic() - self.last_line > PLAIN_LINE_SECONDS:
            self._log_line(row["step"], row["loss"], row["lr"], speed, wait, eta)

    def _log_line(self, step: int, loss: float, lr: float, speed: float, wait: str, eta: float) -> None:
        self.last_line = time.monotonic()
        print_line(
            self.console,
            f"step {step:>7,}/{self.steps:,}  loss {loss:7.4f}  lr {lr:8.2e}  "
            f"{speed:>9,.0f} {self.speed_unit}{wait}  ETA {format_duration(eta)}",
        )


def print_line(console: Console, text: str) -> None:
    """Print a line without highlighting, markup or wrapping."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def shorten_lines(text: str, max_chars: int = MAX_LINE_CHARS) -> str:
    """The lines of a text, each cut to `max_chars` characters."""
    return "\n".join(
        line if len(line) <= max_chars else line[: max_chars - 2] + " …" for line in text.rstrip("\n").splitlines()
    )


def quiet_console() -> Console:
    """Console without output, for all processes of a distributed run except the first."""
    return Console(quiet=True)


def program_command() -> str:
    """The command that starts this program; its virtual environment may not be on the path."""
    called = Path(sys.argv[0])
    if called.name != "regard":
        return "python -m regard" if called.name == "__main__.py" else "regard"
    return "regard" if shutil.which("regard") else shlex.quote(os.path.relpath(called))


class ThroughputMeter:
    """Average loss and throughput of the steps since the last log row."""

    def __init__(
        self,
        step_tokens: Callable[[int], int],
        completed_steps: int,
        losses: Sequence[float] = (),
        unit: str = "tokens",
        wait_seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`step_tokens(step)`: number of tokens (or other `unit`) of a step in all processes, without padding;
        `wait_seconds()`: total seconds spent waiting for data."""
        self.unit, self.wait_seconds = unit, wait_seconds
        self.last_wait = 0.0
        self.step_tokens, self.completed_steps = step_tokens, completed_steps
        self.steps: list[TrainStep] = []
        self.losses = [torch.tensor(loss) for loss in losses]
        self.tokens, self.start_time, self.seconds_per_step = 0, time.perf_counter(), 0.0

    def add(self, step: TrainStep) -> None:
        self.steps.append(step)
        self.losses.append(step.loss)
        self.tokens += self.step_tokens(step.step)

    def log_row(self) -> dict[str, Any]:
        device = self.steps[-1].loss.device
        # synchronizes the device, so that the measured time includes all kernels
        loss = float(torch.stack([part.to(device) for part in self.losses]).mean())
        seconds, waited = max(time.perf_counter() - self.start_time, 1e-9), self.wait_seconds()
        last = self.steps[-1]
        pace = seconds / len(self.steps)
        self.seconds_per_step = (
            pace if self.seconds_per_step == 0.0 else 0.7 * self.seconds_per_step + 0.3 * pace
        )  # moving average against outliers
        row = {
            "kind": "train",
            "step": last.step,
            "loss": loss,
            "lr": last.lr,
            "grad_norm": float(last.grad_norm),
            f"{self.unit}_per_s": self.tokens / seconds,
            "seconds": seconds,
            "data_wait": min((waited - self.last_wait) / seconds, 1.0),
        }
        self.completed_steps, self.steps, self.losses = last.step, [], []
        self.tokens, self.start_time, self.last_wait = 0, time.perf_counter(), waited
        return row

    def current_speed(self, steps: int) -> tuple[float, float]:
        """Speed since the last log row, and estimated seconds left."""
        seconds, many = max(time.perf_counter() - self.start_time, 1e-9), max(len(self.steps), 1)
        return self.tokens / seconds, (steps - self.completed_steps - len(self.steps)) * seconds / many

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Exclude the time of validation from the training time."""
        before = time.perf_counter()
        yield
        self.start_time += time.perf_counter() - before
