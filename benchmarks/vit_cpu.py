"""ViT-B/16 inference on a CPU in bfloat16, compared with transformers and with the matrix products alone.

    python benchmarks/vit_cpu.py [--batch 8] [--rounds 7]

The sides are timed in turn; medians. The ceiling is the FLOP/s of ViT's linear layers (qkv, out, up, down) without any other
work. The FLOP/s of `regard` also counts patch embedding and attention.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import harness
import torch
from torch.nn import functional as F
from vision_speed import SIZES, Size, transformers_side

import regard


def products(config: Any) -> list[tuple[int, int]]:
    """Input and output sizes of the linear layers of a block: qkv, out, up, down."""
    width, hidden = config.width, config.ffn_dim
    return [(width, 3 * width), (width, width), (width, hidden), (hidden, width)]


def operations(config: Any) -> tuple[int, int]:
    """FLOPs per image: linear layers only, and all."""
    tokens = (config.image_size // config.patch_size) ** 2 + 1
    matrices = 2 * config.depth * tokens * sum(inner * outer for inner, outer in products(config))
    patches = 2 * (tokens - 1) * config.width * config.in_channels * config.patch_size**2
    return matrices, matrices + 4 * config.depth * tokens**2 * config.width + patches


def matrices(size: Size) -> Callable[[], None]:
    config = size.config
    rows = size.batch * ((config.image_size // config.patch_size) ** 2 + 1)
    made = [
        (torch.randn(rows, inner, dtype=torch.bfloat16), torch.randn(outer, inner, dtype=torch.bfloat16))
        for inner, outer in products(config)
    ]

    def work() -> None:
        for _ in range(config.depth):
            for x, weight in made:
                F.linear(x, weight)

    return work


def main(argv: Sequence[str] | None = None) -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args(argv)
    size = Size("vit-base-16", asked.batch, SIZES["smoke"]["vit"].changes if harness.is_smoke() else {})
    x = torch.randn(asked.batch, 3, size.config.image_size, size.config.image_size, dtype=torch.bfloat16)
    ours = regard.build(size.model, task="classify", **size.changes).eval().bfloat16()
    sides: dict[str, Callable[[], Any]] = {"regard": lambda: ours.states(x).pooled, "matrices": matrices(size)}
    if harness.installed("transformers"):
        theirs = transformers_side("vit", size)[0].eval().bfloat16()
        sides = {"transformers": lambda: theirs(pixel_values=x), **sides}
    times: dict[str, list[float]] = {name: [] for name in sides}
    with torch.inference_mode():
        for number in range(asked.rounds + 2):
            for name, work in sides.items():
                begun = time.perf_counter()
                work()
                if number > 1:
                    times[name].append(time.perf_counter() - begun)
    found = {name: asked.batch / statistics.median(values) for name, values in times.items()}
    print(torch.__version__, *harness.versions("transformers").values(), torch.get_num_threads(), "threads")
    print(json.dumps({name: round(value, 2) for name, value in found.items()}), "images/s")
    layers, whole = operations(size.config)
    rate, most = found["regard"] * whole / 1e9, found["matrices"] * layers / 1e9
    ratio = f"{found['regard'] / found['transformers']:.3f} x transformers; " if "transformers" in found else ""
    print(f"{ratio}{rate:.0f} GFLOP/s, {rate / most:.1%} of {most:.0f}")


def smoke(folder: Path) -> None:
    main(["--batch", "2", "--rounds", "1"])


if __name__ == "__main__":
    harness.run(main, smoke)
