"""Memory and time of one causal self-attention layer by sequence length, forward and backward.

    python benchmarks/attention_lengths.py measure RESULTS.json
    python benchmarks/attention_lengths.py draw RESULTS.json lengths.png

8 heads x 64, one sequence; bfloat16 on CUDA, float32 on a CPU. Variants: plain (materialized weights), fused (the kernel for
`Causal`), packed (documents of 128 tokens in one sequence, CUDA), window (sliding window of 256 tokens, CUDA).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import by_length
import harness
import torch

from regard.draw.colors import ACCENT, INK, MUTED, WARM
from regard.nn.attention.attention import Attention
from regard.nn.attention.masks import Causal, PackedDocuments, SlidingWindow
from regard.types import Packing

WIDTH, HEADS = 512, 8


def ways(length: int) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {"fused": {"mask": Causal()}}
    if length <= harness.pick(cuda=16_384, cpu=4096, smoke=32):
        found["plain"] = {"mask": Causal(), "record": lambda weights: weights}
    if harness.device() == "cuda":
        many = Packing(torch.arange(0, length + 1, 128, device="cuda"), 128)
        one = Packing(torch.tensor([0, length], device="cuda"), length)
        found["packed"] = {"mask": Causal() & PackedDocuments(many, many)}
        found["window"] = {"mask": Causal() & PackedDocuments(one, one) & SlidingWindow(256, 0)}
    return found


def measure(length: int, given: dict[str, Any]) -> dict[str, float]:
    device, cuda = harness.device(), harness.device() == "cuda"
    dtype = torch.bfloat16 if cuda else torch.float32
    attention = Attention(WIDTH, HEADS).to(device, dtype)
    x = torch.randn(1, length, WIDTH, device=device, dtype=dtype, requires_grad=True)

    def once() -> None:
        attention(x, **given).sum().backward()
        if "record" in given:
            given["record"].records.records.clear()

    once()
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if cuda else 0
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        once()
        if cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    found = {"length": length, "ms": 1000 * sorted(times)[2]}
    if cuda:  # peak beyond weights and input; PyTorch has no such counter for a CPU
        found["MiB"] = (torch.cuda.max_memory_allocated() - before) / 2**20
    return found


def measure_all(path: Path) -> None:
    lengths = [2**n for n in harness.pick(cuda=range(9, 17), cpu=range(9, 13), smoke=range(5, 7))]
    rows = []
    for length in lengths:
        for name, given in ways(length).items():
            rows.append({"way": name, **measure(length, given)})
            print(json.dumps(rows[-1]), flush=True)
            if harness.device() == "cuda":
                torch.cuda.empty_cache()
    path.write_text(json.dumps({"device": harness.device_name(), "torch": torch.__version__, "rows": rows}, indent=1))


def draw(source: Path, target: Path) -> None:
    found = json.loads(source.read_text())
    colours = {"plain": WARM, "fused": ACCENT, "packed": INK, "window": MUTED}
    title = f"One causal self-attention layer, forward and backward: {found['device']}"
    by_length.draw(found["rows"], {"MiB": "memory, MiB", "ms": "time, ms"}, title, target, colours)


def main(argv: Sequence[str] | None = None) -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("work", choices=("measure", "draw"))
    parser.add_argument("results", type=Path)
    parser.add_argument("figure", type=Path, nargs="?", default=Path("lengths.png"))
    asked = parser.parse_args(argv)
    measure_all(asked.results) if asked.work == "measure" else draw(asked.results, asked.figure)


def smoke(folder: Path) -> None:
    main(["measure", str(folder / "figures.json")])
    main(["draw", str(folder / "figures.json"), str(folder / "lengths.png")])
    harness.left_out("packed, window")


if __name__ == "__main__":
    harness.run(main, smoke)
