"""Deferred handling of SIGINT and SIGTERM: training stops after the current step and saves a checkpoint."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class SignalHandler:
    """`number` is the received signal, 0 before."""

    def __init__(self) -> None:
        self.number = 0

    @contextmanager
    def defer(self, on_signal: Callable[[int], None] | None = None) -> Iterator[None]:
        """Record signals instead of stopping; `on_signal` is called immediately. No effect outside of the main thread."""

        def note(number: int, _: FrameType | None) -> None:
            if self.number:
                if number == signal.SIGINT:  # second Ctrl-C: stop immediately, with the last saved checkpoint
                    raise KeyboardInterrupt
                return  # schedulers and torchrun repeat SIGTERM: continue saving
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
