"""Cost of self-attention over a whole image: over its patches, its pixels, and its color values.

    python benchmarks/patch_attention.py [--device cuda] [--max-tokens 150528] [--figure docs/patches.png]

An image of 224 x 224 x 3 and the attention of ViT-B (hidden size 768, 12 heads), forward and backward. Time and memory are per
image; short sequences are measured in a batch that fills the device. `plain` materializes the scores; `fused` is the kernel
selected by `Attention`, which does not. The columns `tokens` and `scores` are computed, not measured. Scores are entries of a
matrix, not parameters; the number of parameters is 4 · 768² + 4 · 768 for every sequence length.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import torch
from clock import Clock

from regard.nn.attention.attention import Attention
from regard.nn.attention.masks import Full
from regard.nn.kernels import dispatch

SIDE, WIDTH, HEADS = 224, 768, 12
ROWS = {f"patches of {patch}": (SIDE // patch) ** 2 + 1 for patch in (32, 16, 8, 4, 2)} | {
    "pixels": SIDE**2, "color values": 3 * SIDE**2,
}  # fmt: skip
TOGETHER = 50176
"""Tokens per batch of short sequences."""


class Plain(Attention):
    """Attention with materialized scores."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        q, k, v = self.project(x)
        mixed = dispatch.eager_attention(q, k, v, None, (WIDTH // HEADS) ** -0.5)[0]
        return self.out(mixed.transpose(1, 2).flatten(2))


def measured(attention: torch.nn.Module, length: int, clock: Clock, rule: Any) -> dict[str, float]:
    """Milliseconds, and MiB beyond the weights (CUDA), per image."""
    cuda, kind = clock.device == "cuda", torch.bfloat16
    count = max(1, TOGETHER // length) if cuda else 1
    x = torch.randn(count, length, WIDTH, device=clock.device, dtype=kind, requires_grad=True)

    def work() -> None:
        (attention(x) if rule is None else attention(x, mask=rule)).float().square().mean().backward()

    if cuda:
        work()  # allocates weight gradients and library workspaces before the measurement
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    seconds = clock.median(work, warm=2)
    used = (torch.cuda.max_memory_allocated() - before) / 2**20 / count if cuda else 0.0
    return {"ms": round(1000 * seconds / count, 4)} | ({"MiB": round(used, 2)} if cuda else {})


def main(argv: Sequence[str] | None = None) -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--device", default=harness.device())
    parser.add_argument("--max-tokens", type=int, default=3 * SIDE**2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--figure", type=Path)
    asked = parser.parse_args(argv)
    clock, found = Clock(asked.device, asked.steps), []
    room = torch.cuda.get_device_properties(0).total_memory if asked.device == "cuda" else 6 * 2**30
    ours, plain = (kind(WIDTH, HEADS).to(asked.device, torch.bfloat16) for kind in (Attention, Plain))
    for name, length in ROWS.items():
        row: dict[str, Any] = {"what": name, "tokens": length, "scores": length**2}
        if length <= asked.max_tokens:
            row["fused"] = measured(ours, length, clock, Full())
            # memory of scores, weights, and their gradients
            if 4 * 2 * HEADS * length * max(length, TOGETHER) < 0.9 * room:
                row["plain"] = measured(plain, length, clock, None)
        found.append(row)
        print(json.dumps(row), flush=True)
    if asked.figure:
        draw(found, asked.figure)


def draw(found: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    shown, axes = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    for place, key, title in zip(axes, ("MiB", "ms"), ("memory, MiB (CUDA)", "time, ms"), strict=True):
        if not any(key in row.get("fused", {}) for row in found):
            place.set_visible(False)
            continue
        for way, mark, colour in (("plain", "o-", "#c2571a"), ("fused", "s-", "#1f6f8b")):
            rows = [row for row in found if key in row.get(way, {})]
            place.plot([row["tokens"] for row in rows], [row[way][key] for row in rows], mark, color=colour, label=way)
        place.set_xscale("log")
        place.set_yscale("log")
        place.set_xlabel("tokens of an image of 224 × 224 pixels")
        place.set_title(title)
        place.grid(alpha=0.25)
        place.legend(frameon=False)
    places = [row["tokens"] for row in found]
    for axis in axes:
        axis.set_xticks(places, [f"{row['what'].replace('patches of ', '/')}\n{row['tokens']:,}" for row in found])
        axis.tick_params(axis="x", labelsize=7)
        axis.minorticks_off()
    shown.savefig(path, dpi=130)


def smoke(folder: Path) -> None:
    main(["--max-tokens", "50", "--steps", "1", "--figure", str(folder / "patches.png")])
    harness.left_out("memory per image")


if __name__ == "__main__":
    harness.run(main, smoke)
