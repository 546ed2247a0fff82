"""Progress of long computations as plain lines on standard error."""

from __future__ import annotations

import sys
import time

PRINT_INTERVAL = 10.0  # Seconds between two lines.


class ProgressPrinter:
    """Prints one line of progress to standard error every PRINT_INTERVAL seconds."""

    def __init__(self, unit: str) -> None:
        self.unit, self.start_time = unit, time.monotonic()
        self.last_print = self.start_time

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.last_print > PRINT_INTERVAL and 0 < done < total:
            self.last_print = now
            speed = done / (now - self.start_time)
            left = format_duration((total - done) / speed)
            print(
                f"  {done:,} of {total:,} {self.unit}, {speed:,.{0 if speed >= 10 else 1}f} per second, ETA {left}",
                file=sys.stderr,
            )


def format_duration(seconds: float) -> str:
    minutes, rest = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
