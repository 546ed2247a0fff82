"""Generation with GPT-2 of 124 million parameters against the number of rows and the length of the context, as a figure.

    python benchmarks/generation_sizes.py measure FIGURES.json
    python benchmarks/generation_sizes.py draw FIGURES.json generation.png

Greedy, random weights, through the public `answer`; bfloat16 on CUDA, float32 on a CPU. Rows: 128 tokens given. Context: so
many tokens given that the last one said stands at that place; time of a step and memory beyond the weights.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from gpt2_generation import CUDA, ours

ROWS = (1, 2, 4, 8, 16, 32, 64, 128) if CUDA else (1, 2, 4, 8)
CONTEXTS = (64, 128, 256, 512, 1024) if CUDA else (64, 128, 256, 512)
SAID = 48 if CUDA else 8


def timed(answer: Any, rows: int, given: int, said: int) -> float:
    """Seconds of an answer, the better of three after one that does not count."""
    times = []
    for _ in range(4):
        begun = time.perf_counter()
        answer(rows, given, said)
        if CUDA:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return min(times[1:])


def measure(path: Path) -> None:
    answer = ours(torch.bfloat16 if CUDA else torch.float32)
    found: dict[str, Any] = {"device": torch.cuda.get_device_name() if CUDA else "CPU", "torch": torch.__version__}
    found["rows"], found["contexts"] = [], []
    for rows in ROWS:
        found["rows"].append({"rows": rows, "tokens_per_s": rows * SAID / timed(answer, rows, 128, SAID)})
        print(json.dumps(found["rows"][-1]), flush=True)
    for context in CONTEXTS:
        if CUDA:
            torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() if CUDA else 0
        few, many = (timed(answer, 8, context - said, said) for said in (SAID // 4, SAID))
        row = {"context": context, "ms": 1000 * (many - few) / (SAID - SAID // 4)}
        if CUDA:
            row["MiB"] = (torch.cuda.max_memory_allocated() - before) / 2**20
        found["contexts"].append(row)
        print(json.dumps(row), flush=True)
    path.write_text(json.dumps(found, indent=1))


def draw(source: Path, target: Path) -> None:
    import matplotlib.pyplot as plt

    from regard.draw.colour import ACCENT, LINE, WARM

    found = json.loads(source.read_text())
    panels: list[tuple[str, str, str, str, str]] = [
        ("rows", "rows", "tokens_per_s", "tokens a second", ACCENT),
        ("contexts", "context", "ms", "a step of 8 rows, ms", WARM),
    ]  # fmt: skip
    if "MiB" in found["contexts"][0]:
        panels.append(("contexts", "context", "MiB", "memory of 8 rows, MiB", WARM))
    figure, axes = plt.subplots(1, len(panels), figsize=(4.4 * len(panels), 3.8), constrained_layout=True)
    for panel, (part, across, up, title, colour) in zip(axes, panels, strict=True):
        points = [(row[across], row[up]) for row in found[part]]
        panel.plot(*zip(*points, strict=True), marker="o", ms=4, color=colour)
        panel.set(xscale="log", title=title, xlabel=across, yscale="log" if part == "rows" else "linear")
        panel.set_xticks([x for x, _ in points], [str(x) for x, _ in points])
        if part == "rows":
            ticks = [step * 10**power for power in (2, 3, 4, 5) for step in (1, 2, 5)]
            low, high = min(y for _, y in points), max(y for _, y in points)
            panel.set_yticks([tick for tick in ticks if low / 2 < tick < 2 * high])
        panel.minorticks_off()
        panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 10 else f"{value:g}")
        panel.set_ylim(bottom=0 if part != "rows" else None)
        panel.grid(color=LINE, lw=0.5)
        panel.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"GPT-2 124M, greedy: {found['device']}", x=0.01, ha="left", weight="bold")
    figure.savefig(target, dpi=130)


if __name__ == "__main__":
    verb, *paths = sys.argv[1:]
    measure(Path(paths[0])) if verb == "measure" else draw(*map(Path, paths))
