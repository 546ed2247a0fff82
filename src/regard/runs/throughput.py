"""The steps since the last line of the log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from regard.training.loop import Step


class Window:
    """The steps since the last line of the log: their mean loss and speed."""

    def __init__(
        self, tokens: Callable[[int], int], done: int, losses: Sequence[float] = (), counted: str = "tokens",
        waited: Callable[[], float] = lambda: 0.0,
    ) -> None:  # fmt: skip
        """`tokens(step)`: the real tokens of a step, in all processes, or what else is `counted`; `waited()`: the seconds that
        were spent on waiting for data, so far."""
        self.counted, self.waited = counted, waited
        self.rested = 0.0
        self.count, self.done = tokens, done
        self.steps: list[Step] = []
        self.losses = [torch.tensor(loss) for loss in losses]
        self.tokens, self.begun, self.pace = 0, time.perf_counter(), 0.0

    def add(self, step: Step) -> None:
        self.steps.append(step)
        self.losses.append(step.loss)
        self.tokens += self.count(step.number)

    def row(self) -> dict[str, Any]:
        device = self.steps[-1].loss.device
        # waits for the device: the time is honest
        loss = float(torch.stack([part.to(device) for part in self.losses]).mean())
        seconds, waited = max(time.perf_counter() - self.begun, 1e-9), self.waited()
        last = self.steps[-1]
        pace = seconds / len(self.steps)
        self.pace = pace if self.pace == 0.0 else 0.7 * self.pace + 0.3 * pace  # one slow moment is no forecast
        row = {
            "kind": "train", "step": last.number, "loss": loss, "rate": last.rate, "norm": float(last.norm),
            f"{self.counted}_per_s": self.tokens / seconds, "seconds": seconds,
            "waiting": min((waited - self.rested) / seconds, 1.0),
        }  # fmt: skip
        self.done, self.steps, self.losses = last.number, [], []
        self.tokens, self.begun, self.rested = 0, time.perf_counter(), waited
        return row

    def glance(self, steps: int) -> tuple[float, float]:
        """The speed since the last line of the log and the seconds left, while the next line is not due."""
        seconds, many = max(time.perf_counter() - self.begun, 1e-9), max(len(self.steps), 1)
        return self.tokens / seconds, (steps - self.done - len(self.steps)) * seconds / many

    def left(self, steps: int) -> float:
        return (steps - self.done) * self.pace

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time spent on validation is not training time."""
        before = time.perf_counter()
        yield
        self.begun += time.perf_counter() - before
