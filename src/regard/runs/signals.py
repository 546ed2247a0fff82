"""SIGINT and SIGTERM are noted and obeyed after the step, so that nothing is lost; between steps, at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class SignalHandler:
    """`number` is the signal that arrived, 0 until then."""

    def __init__(self) -> None:
        self.number = 0

    @contextmanager
    def defer(self, on_signal: Callable[[int], None] | None = None) -> Iterator[None]:
        """`leave` is what obeys at once. Outside of the main thread signals are not ours."""

        def note(number: int, _: FrameType | None) -> None:
            if self.number:
                if number == signal.SIGINT:  # a person who asks a second time: at once, and what was saved before stays
                    raise KeyboardInterrupt
                return  # schedulers and torchrun send SIGTERM to all and once more: the save goes on
            self.number = number
            if on_signal is not None:
                on_signal(number)

        try:
            before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
