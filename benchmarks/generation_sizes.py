"""Generation with GPT-2 of 124 million parameters by batch size and by context length, as a figure.

    python benchmarks/generation_sizes.py measure RESULTS.json
    python benchmarks/generation_sizes.py draw RESULTS.json generation.png

Greedy decoding with random weights through `predict`; bfloat16 on CUDA, float32 on a CPU. Batch sizes: prompts of 128 tokens.
Context lengths: prompt plus generated tokens with batch size 8; time per step, and memory beyond the weights.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import torch
from gpt2_generation import SIZES as MODELS
from gpt2_generation import ours


@dataclass(frozen=True)
class Size:
    """Batch sizes, prompt length for the batch sizes, context lengths, and number of generated tokens."""

    rows: tuple[int, ...]
    given: int
    contexts: tuple[int, ...]
    said: int


SIZES = {
    "cuda": Size((1, 2, 4, 8, 16, 32, 64, 128), 128, (64, 128, 256, 512, 1024), 48),
    "cpu": Size((1, 2, 4, 8), 128, (64, 128, 256, 512), 8),
    "smoke": Size((1, 2), 4, (12, 16), 4),
}
"""Sizes by mode (`harness.mode`)."""


def timed(answer: Any, rows: int, given: int, said: int) -> float:
    """Seconds per generation call: the minimum of three after one warmup call."""
    times = []
    for _ in range(4):
        begun = time.perf_counter()
        answer(rows, given, said)
        if harness.device() == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return min(times[1:])


def measure(path: Path) -> None:
    size, cuda = SIZES[harness.mode()], harness.device() == "cuda"
    answer = ours(torch.bfloat16 if cuda else torch.float32, MODELS[harness.mode()])
    found: dict[str, Any] = {"device": harness.device_name(), "torch": torch.__version__}
    found["rows"], found["contexts"] = [], []
    for rows in size.rows:
        seconds = timed(answer, rows, size.given, size.said)
        found["rows"].append({"rows": rows, "tokens_per_s": rows * size.said / seconds})
        print(json.dumps(found["rows"][-1]), flush=True)
    for context in size.contexts:
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() if cuda else 0
        few, many = (timed(answer, 8, context - said, said) for said in (size.said // 4, size.said))
        row = {"context": context, "ms": 1000 * (many - few) / (size.said - size.said // 4)}
        if cuda:
            row["MiB"] = (torch.cuda.max_memory_allocated() - before) / 2**20
        found["contexts"].append(row)
        print(json.dumps(row), flush=True)
    path.write_text(json.dumps(found, indent=1))


def draw(source: Path, target: Path) -> None:
    import matplotlib.pyplot as plt

    from regard.draw.colors import ACCENT, LINE, WARM

    found = json.loads(source.read_text())
    panels: list[tuple[str, str, str, str, str]] = [
        ("rows", "rows", "tokens_per_s", "tokens per second", ACCENT),
        ("contexts", "context", "ms", "time per step, batch 8, ms", WARM),
    ]  # fmt: skip
    if "MiB" in found["contexts"][0]:
        panels.append(("contexts", "context", "MiB", "memory, batch 8, MiB", WARM))
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


def main(argv: Sequence[str] | None = None) -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("work", choices=("measure", "draw"))
    parser.add_argument("results", type=Path)
    parser.add_argument("figure", type=Path, nargs="?", default=Path("generation.png"))
    asked = parser.parse_args(argv)
    measure(asked.results) if asked.work == "measure" else draw(asked.results, asked.figure)


def smoke(folder: Path) -> None:
    main(["measure", str(folder / "figures.json")])
    main(["draw", str(folder / "figures.json"), str(folder / "generation.png")])
    harness.left_out("memory of the contexts")


if __name__ == "__main__":
    harness.run(main, smoke)
