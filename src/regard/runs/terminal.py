"""Progress of long computations as plain lines on standard error."""

from __future__ import annotations

import sys
import time

PAUSE = 10.0
"""Seconds between two lines about a long work."""


class Pace:
    """Every ten seconds a line on standard error says how much of a long work is done."""

    def __init__(self, unit: str) -> None:
        self.unit, self.begun = unit, time.monotonic()
        self.told = self.begun

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.told > PAUSE and 0 < done < total:
            self.told = now
            speed = done / (now - self.begun)
            left = clock((total - done) / speed)
            print(
                f"  {done:,} of {total:,} {self.unit}, {speed:,.{0 if speed >= 10 else 1}f} a second, left {left}",
                file=sys.stderr,
            )


def clock(seconds: float) -> str:
    minutes, rest = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
