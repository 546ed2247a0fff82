"""Alternating measurements of several libraries, one process each, because spinning threads would slow the next library."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import harness
import torch

Action = Callable[[int], int]
"""Generates for a batch of that size and returns the number of generated tokens."""


def measure(action: Action, batches: Sequence[int], repeat: int) -> dict[str, Any]:
    """Tokens per second at each batch size: the median, after two warmup calls."""
    found: dict[str, Any] = {}
    for batch in batches:
        times, said = [], 0
        for _ in range(repeat + 2):
            begun = time.perf_counter()
            said = action(batch)
            if harness.device() == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - begun)
        found[str(batch)] = {"tokens_per_s": said / statistics.median(times[2:]), "first_s": times[0]}
    return found


@dataclass(frozen=True)
class Speed:
    """Throughput of one library at one batch size, in all rounds."""

    name: str
    batch: int
    speeds: list[float]
    first: float

    def __str__(self) -> str:
        middle = statistics.median(self.speeds)
        return (
            f"{self.name:20} batch {self.batch:<4} {middle:9,.0f} tokens/s ({min(self.speeds):,.0f} to "
            f"{max(self.speeds):,.0f}), {1000 * self.batch / middle:.3f} ms per step, first call {self.first:.2f} s"
        )


def arguments(description: str | None, argv: Sequence[str] | None) -> argparse.Namespace:
    parser = harness.parser(description)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--alone", action="store_true", help="Measure once in this process.")
    return parser.parse_args(argv)


def in_turns(
    script: str, cases: Sequence[str], rounds: int, repeat: int, alone: Callable[[str], dict[str, Any]]
) -> Iterator[Speed]:
    """Throughput of each case and batch size over all rounds. `script CASE --alone` measures one case in its own process and
    prints JSON; in smoke mode `alone(CASE)` measures in this process."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, results in found.items():
            if harness.is_smoke():
                results.append(alone(name))
                continue
            words = [sys.executable, script, name, "--alone", "--repeat", str(repeat)]
            said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
            results.append(json.loads(said.splitlines()[-1]))
    for name, results in found.items():
        for batch in results[0]:
            speeds = [result[batch]["tokens_per_s"] for result in results]
            yield Speed(name, int(batch), speeds, statistics.median(result[batch]["first_s"] for result in results))
