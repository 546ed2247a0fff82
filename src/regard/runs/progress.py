"""Progress in the terminal: a progress bar or plain lines for a training run, plain lines for other long computations."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from regard.training.loop import TrainStep

PRINT_INTERVAL = 10.0  # Seconds between two lines of a long computation.
PLAIN_LINE_SECONDS = 15.0  # Interval of plain lines without a terminal.
MIN_WAIT_FRACTION = 0.05  # Fraction of the time spent waiting for data from which it is printed.
MAX_LINE_CHARS = 200  # Maximum length of a printed example; samples.txt contains the complete text.
REFRESH_SECONDS = 2.0  # Interval at which the bar shows a new loss.


class PipeSafeConsole(Console):
    """Console that ignores a closed pipe: the run continues without output."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        with open(os.devnull, "w") as nowhere, suppress(OSError, ValueError):
            os.dup2(nowhere.fileno(), sys.stdout.fileno())  # avoids an error message at interpreter exit


class ProgressReporter:
    """Average loss and speed of the steps since the last log row, shown in a progress bar or as plain lines."""

    def __init__(
        self,
        steps: int,
        completed_steps: int,
        console: Console,
        unit: str = "tokens",
        losses: Sequence[float] = (),
    ) -> None:
        """`losses`: losses since the last log row before the run was resumed."""
        self.steps, self.console, self.unit = steps, console, unit
        self.speed_unit = "tok/s" if unit == "tokens" else f"{unit}/s"
        self.losses = [torch.tensor(loss) for loss in losses]
        self.num_steps = self.tokens = 0  # steps and tokens (or other `unit`, without padding) since the last log row
        self.start_time, self.data_wait, self.seconds_per_step = time.perf_counter(), 0.0, 0.0
        self.last_line = time.monotonic()
        self.bar: Progress | None = None
        if console.is_terminal:
            self.bar = Progress(
                TextColumn("step"),
                MofNCompleteColumn(),
                BarColumn(bar_width=16),
                TextColumn("loss {task.fields[loss]:>7}"),
                TextColumn("lr {task.fields[lr]:>8}"),
                TextColumn("{task.fields[speed]:>9,.0f} " + self.speed_unit + "{task.fields[data_wait]}"),
                TextColumn("ETA"),
                TimeRemainingColumn(compact=True),
                console=console,
                refresh_per_second=4,
            )
            self.bar_task = self.bar.add_task(
                "train", total=steps, completed=completed_steps, loss="–", lr="–", speed=0.0, data_wait=""
            )

    def advance(self, step: TrainStep, tokens: int) -> None:
        """Add a step to the averages. Update the bar, or print a plain line after PLAIN_LINE_SECONDS."""
        self.losses.append(step.loss)
        self.num_steps, self.tokens = self.num_steps + 1, self.tokens + tokens
        self.data_wait += step.data_wait
        seconds = max(time.perf_counter() - self.start_time, 1e-9)
        speed, waited = self.tokens / seconds, time.monotonic() - self.last_line
        if self.bar is not None:
            self.bar.update(self.bar_task, completed=step.step)
            if waited > REFRESH_SECONDS:  # reading the loss synchronizes the device
                self.last_line = time.monotonic()
                self.bar.update(self.bar_task, loss=f"{float(step.loss):.4f}", lr=f"{step.lr:.2e}", speed=speed)
        elif waited > PLAIN_LINE_SECONDS:
            eta = (self.steps - step.step) * seconds / self.num_steps
            self._log_line(step.step, float(step.loss), step.lr, speed, "", eta)

    def log_row(self, last: TrainStep, force: bool = False) -> dict[str, Any]:
        """Averages of the steps since the last row, which end with step `last`, also shown: in the bar, or as a plain line
        after PLAIN_LINE_SECONDS or with `force`."""
        # synchronizes the device, so that the measured time includes all kernels
        loss = float(torch.stack([part.to(last.loss.device) for part in self.losses]).mean())
        seconds = max(time.perf_counter() - self.start_time, 1e-9)
        pace, speed, waited = seconds / self.num_steps, self.tokens / seconds, min(self.data_wait / seconds, 1.0)
        # moving average against outliers
        self.seconds_per_step = 0.7 * self.seconds_per_step + 0.3 * pace if self.seconds_per_step else pace
        row = {
            "kind": "train",
            "step": last.step,
            "loss": loss,
            "lr": last.lr,
            "grad_norm": float(last.grad_norm),
            f"{self.unit}_per_s": speed,
            "seconds": seconds,
            "data_wait": waited,
        }
        self.losses, self.num_steps, self.tokens = [], 0, 0
        self.start_time, self.data_wait = time.perf_counter(), 0.0
        wait = f"  data wait {100 * waited:.0f} %" if waited > MIN_WAIT_FRACTION else ""
        if self.bar is not None:
            self.bar.update(self.bar_task, loss=f"{loss:.4f}", lr=f"{last.lr:.2e}", speed=speed, data_wait=wait)
        elif force or time.monotonic() - self.last_line > PLAIN_LINE_SECONDS:
            self._log_line(last.step, loss, last.lr, speed, wait, (self.steps - last.step) * self.seconds_per_step)
        return row

    def _log_line(self, step: int, loss: float, lr: float, speed: float, wait: str, eta: float) -> None:
        self.last_line = time.monotonic()
        print_line(
            self.console,
            f"step {step:>7,}/{self.steps:,}  loss {loss:7.4f}  lr {lr:8.2e}  "
            f"{speed:>9,.0f} {self.speed_unit}{wait}  ETA {format_duration(eta)}",
        )

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Exclude the time of validation from the training time."""
        before = time.perf_counter()
        yield
        self.start_time += time.perf_counter() - before


class ProgressPrinter:
    """Prints one line of progress to standard error every PRINT_INTERVAL seconds."""

    def __init__(self, unit: str) -> None:
        self.unit, self.start_time = unit, time.monotonic()
        self.last_print = self.start_time

    def __call__(self, done: int, total: int | None = None) -> None:
        """`total`: None if the number is unknown."""
        now = time.monotonic()
        if now - self.last_print > PRINT_INTERVAL and done > 0 and (total is None or done < total):
            self.last_print = now
            speed = done / max(now - self.start_time, 1e-9)
            count = f"{done:,}" if total is None else f"{done:,} of {total:,}"
            eta = "" if total is None else f", ETA {format_duration((total - done) / speed)}"
            print(f"  {count} {self.unit}, {speed:,.{0 if speed >= 10 else 1}f} per second{eta}", file=sys.stderr)


def format_duration(seconds: float) -> str:
    minutes, rest = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


def print_line(console: Console, text: str) -> None:
    """Print a line without highlighting, markup or wrapping."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def shorten_lines(text: str) -> str:
    """The lines of a text, each cut to MAX_LINE_CHARS characters."""
    lines = text.rstrip("\n").splitlines()
    return "\n".join(line if len(line) <= MAX_LINE_CHARS else f"{line[: MAX_LINE_CHARS - 2]} …" for line in lines)


def program_command() -> str:
    """The command that starts this program; its virtual environment may not be on the path."""
    called = Path(sys.argv[0])
    if called.name != "regard":
        return "python -m regard" if called.name == "__main__.py" else "regard"
    return "regard" if shutil.which("regard") else shlex.quote(os.path.relpath(called))
