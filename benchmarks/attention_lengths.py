"""Memory and time of one causal self-attention against the length of its row, forward and backward.

    python benchmarks/attention_lengths.py measure FIGURES.json
    python benchmarks/attention_lengths.py draw FIGURES.json lengths.png

8 heads x 64, one row; bfloat16 on CUDA, float32 on a CPU. Ways: plain (weights written out: what a watcher sees), fused
(what the rule Causal chooses), packed (documents of 128 tokens in one row, CUDA), window (256 back, in one document, CUDA).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import by_length
import torch

from regard.draw.colour import ACCENT, INK, QUIET, WARM
from regard.nn.attention import Attention, Recorder
from regard.nn.rules import Causal, Packed, Window
from regard.waists import Offsets, Seen

CUDA = torch.cuda.is_available()
WIDTH, HEADS = 512, 8


def ways(length: int) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {"fused": {"rule": Causal()}}
    if length <= (16_384 if CUDA else 4096):
        found["plain"] = {"rule": Causal(), "seen": Recorder("x", Seen())}
    if CUDA:
        many = Offsets(torch.arange(0, length + 1, 128, device="cuda"), 128)
        one = Offsets(torch.tensor([0, length], device="cuda"), length)
        found["packed"] = {"rule": Causal() & Packed(many, many)}
        found["window"] = {"rule": Causal() & Packed(one, one) & Window(256, 0)}
    return found


def measure(length: int, given: dict[str, Any]) -> dict[str, float]:
    device, dtype = ("cuda", torch.bfloat16) if CUDA else ("cpu", torch.float32)
    attention = Attention(WIDTH, HEADS).to(device, dtype)
    x = torch.randn(1, length, WIDTH, device=device, dtype=dtype, requires_grad=True)

    def once() -> None:
        attention(x, **given).sum().backward()
        if "seen" in given:
            given["seen"].into.looks.clear()

    once()
    if CUDA:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if CUDA else 0
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        once()
        if CUDA:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    found = {"length": length, "ms": 1000 * sorted(times)[2]}
    if CUDA:  # at most, beyond the weights and the input; a CPU does not tell
        found["MiB"] = (torch.cuda.max_memory_allocated() - before) / 2**20
    return found


def measure_all(path: Path) -> None:
    lengths = [2**n for n in range(9, 17 if CUDA else 13)]
    rows = []
    for length in lengths:
        for name, given in ways(length).items():
            rows.append({"way": name, **measure(length, given)})
            print(json.dumps(rows[-1]), flush=True)
            if CUDA:
                torch.cuda.empty_cache()
    where = torch.cuda.get_device_name() if CUDA else "CPU"
    path.write_text(json.dumps({"device": where, "torch": torch.__version__, "rows": rows}, indent=1))


def draw(source: Path, target: Path) -> None:
    found = json.loads(source.read_text())
    colours = {"plain": WARM, "fused": ACCENT, "packed": INK, "window": QUIET}
    title = f"one causal self-attention, forward and backward: {found['device']}"
    by_length.draw(found["rows"], {"MiB": "memory, MiB", "ms": "time, ms"}, title, target, colours)


if __name__ == "__main__":
    verb, *paths = sys.argv[1:]
    measure_all(Path(paths[0])) if verb == "measure" else draw(*map(Path, paths))
