"""Timing on a device, and the measured peak throughput of the device."""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import harness
import torch

Step = Callable[[], float]
"""Runs one step and returns the number of processed tokens or images."""


class Clock:
    """Times an action on a device after warmup calls."""

    def __init__(self, device: str, steps: int) -> None:
        self.device, self.steps = device, steps

    def now(self) -> float:
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def median(self, action: Any, warm: int = 4) -> float:
        for _ in range(warm):
            action()
        return self.timed(action)

    def row(self, action: Any, warm: int = 6) -> float:
        """Average time of consecutive calls, without synchronization in between, as in training."""
        for _ in range(warm):
            action()
        begun = self.now()
        for _ in range(self.steps):
            action()
        return (self.now() - begun) / self.steps

    def pace(self, step: Step, warm: int = 6) -> dict[str, float]:
        """Average tokens and seconds per step of consecutive steps, without synchronization in between, as in training."""
        for _ in range(warm):
            step()
        begun = self.now()
        tokens = [step() for _ in range(self.steps)]
        return {"tokens": sum(tokens) / self.steps, "seconds": (self.now() - begun) / self.steps}

    def timed(self, action: Any) -> float:
        times = []
        for _ in range(self.steps):
            begun = self.now()
            action()
            times.append(self.now() - begun)
        return statistics.median(times)


def ceiling(clock: Clock) -> dict[str, float]:
    n = harness.pick(cuda=8192, cpu=512, smoke=64)
    a, b = (torch.randn(n, n, device=clock.device, dtype=torch.bfloat16) for _ in range(2))
    return {"TFLOP_per_s": round(2 * n**3 / clock.median(lambda: a @ b) / 1e12, 4)}


def report(cases: Mapping[str, Callable[[], dict[str, Any]]], names: Sequence[str], work: float) -> None:
    """Print one JSON line per case: tokens/s, FLOP/s (`work` FLOPs per token), and the fraction of the ceiling if a ceiling
    case ran earlier."""
    cuda, most = harness.device() == "cuda", 0.0
    for name in names:
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        begun = time.perf_counter()
        try:
            found = cases[name]()
        except Exception as error:  # the remaining cases still run
            if harness.is_smoke():
                raise
            print(name, repr(error)[:2000], flush=True)
            continue
        if "tokens" in found:
            found["tokens_per_s"] = round(found["tokens"] / found["seconds"])
            found["ms"] = round(1000 * found.pop("seconds"), 2)
            found["TFLOP_per_s"] = round(found["tokens_per_s"] * work / 1e12, 4)
            found |= {"fraction_of_ceiling": round(found["TFLOP_per_s"] / most, 3)} if most else {}
        else:
            most = found["TFLOP_per_s"]
        if cuda:
            found["GiB"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        found["wall_s"] = round(time.perf_counter() - begun, 1)
        print(name, json.dumps(found), flush=True)
        gc.collect()
        torch.cuda.empty_cache()
        torch._dynamo.reset()


def bandwidth(clock: Clock) -> float:
    """Bytes per second of a device copy, reads plus writes."""
    count = harness.pick(cuda=2**30, cpu=2**26, smoke=2**12)
    x = torch.ones(count, dtype=torch.bfloat16, device=clock.device)
    y = torch.empty_like(x)
    return 2 * x.numel() * x.element_size() / clock.median(lambda: y.copy_(x))
