"""Loss and throughput since the last log row."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from regard.training.loop import TrainStep


class ThroughputMeter:
    """Average loss and throughput of the steps since the last log row."""

    def __init__(
        self, step_tokens: Callable[[int], int], completed_steps: int, losses: Sequence[float] = (), unit: str = "tokens",
        wait_seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:  # fmt: skip
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
            "kind": "train", "step": last.step, "loss": loss, "lr": last.lr, "grad_norm": float(last.grad_norm),
            f"{self.unit}_per_s": self.tokens / seconds, "seconds": seconds,
            "data_wait": min((waited - self.last_wait) / seconds, 1.0),
        }  # fmt: skip
        self.completed_steps, self.steps, self.losses = last.step, [], []
        self.tokens, self.start_time, self.last_wait = 0, time.perf_counter(), waited
        return row

    def current_speed(self, steps: int) -> tuple[float, float]:
        """Speed since the last log row, and estimated seconds left."""
        seconds, many = max(time.perf_counter() - self.start_time, 1e-9), max(len(self.steps), 1)
        return self.tokens / seconds, (steps - self.completed_steps - len(self.steps)) * seconds / many

    def seconds_left(self, steps: int) -> float:
        return (steps - self.completed_steps) * self.seconds_per_step

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Exclude the time of validation from the training time."""
        before = time.perf_counter()
        yield
        self.start_time += time.perf_counter() - before
