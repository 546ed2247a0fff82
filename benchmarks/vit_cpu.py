"""ViT-B/16 inference on a CPU in bfloat16, beside transformers in the same run, and the rate of the matrices alone.

    python benchmarks/vit_cpu.py [--batch 8] [--rounds 7]

Sides take turns; medians. The ceiling is the rate of ViT's own matrix products (qkv, out, up, down), one after another with
nothing between, in operations a second; ours has those of the patches and of the attention besides.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

import regard

WIDTH, HIDDEN, DEPTH, TOKENS = 768, 3072, 12, 197
PRODUCTS = 2 * DEPTH * TOKENS * (4 * WIDTH**2 + 2 * WIDTH * HIDDEN)
WHOLE = PRODUCTS + 4 * DEPTH * TOKENS**2 * WIDTH + 2 * (TOKENS - 1) * WIDTH**2
"""Operations for a picture."""


def matrices(batch: int) -> Callable[[], None]:
    shapes = [(WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH)]
    made = [
        (torch.randn(batch * TOKENS, inner, dtype=torch.bfloat16), torch.randn(outer, inner, dtype=torch.bfloat16))
        for inner, outer in shapes
    ]

    def work() -> None:
        for _ in range(DEPTH):
            for x, weight in made:
                F.linear(x, weight)

    return work


def main() -> None:
    import transformers as t

    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    x = torch.randn(asked.batch, 3, 224, 224, dtype=torch.bfloat16)
    config = t.ViTConfig(num_labels=1000, attn_implementation="sdpa")
    theirs = t.ViTForImageClassification(config).eval().bfloat16()
    ours = regard.build("vit-base-16", task="classify").eval().bfloat16()
    sides: dict[str, Callable[[], Any]] = {
        "transformers": lambda: theirs(pixel_values=x),
        "ours": lambda: ours.states(x).summary,
        "matrices": matrices(asked.batch),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    with torch.inference_mode():
        for number in range(asked.rounds + 2):
            for name, work in sides.items():
                begun = time.perf_counter()
                work()
                if number > 1:
                    times[name].append(time.perf_counter() - begun)
    found = {name: asked.batch / statistics.median(values) for name, values in times.items()}
    print(torch.__version__, t.__version__, torch.get_num_threads(), "threads")
    print(json.dumps({name: round(value, 2) for name, value in found.items()}), "images/s")
    rate, most = found["ours"] * WHOLE / 1e9, found["matrices"] * PRODUCTS / 1e9
    print(
        f"{found['ours'] / found['transformers']:.3f} x transformers; {rate:.0f} GFLOP/s, {rate / most:.1%} of {most:.0f}"
    )


if __name__ == "__main__":
    main()
