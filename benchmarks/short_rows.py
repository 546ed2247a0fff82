"""CPU attention by sequence length, forward and backward: materialized weights, SDPA, and SDPA in float32.

The constants SHORT_ROW and MIDDLE_ROW of `regard.nn.kernels.dispatch` are based on these numbers. Rows x length is constant, as
in a batch by token budget.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import harness
import torch

from regard.nn.attention.masks import Causal, Padding
from regard.nn.kernels import dispatch
from regard.nn.kernels.dispatch import AttentionCall

HEADS, WIDTH, TOKENS = 4, 32, 8192
LENGTHS = (8, 16, 32, 64, 128, 256, 512, 1024)


def milliseconds(kernel: str, dtype: torch.dtype, length: int, rows: int, padded: bool) -> float:
    q, k, v = (torch.randn(rows, HEADS, length, WIDTH).to(dtype).requires_grad_() for _ in range(3))
    rule = Padding(torch.randint(1, length + 1, (rows,))) if padded else Causal()
    times = []
    for _ in range(12):
        begun = time.perf_counter()
        if kernel == "plain":
            out, _ = dispatch.eager_attention(q, k, v, dispatch.bool_mask(q, k, rule, None), WIDTH**-0.5)
        elif kernel == "widened":
            out = dispatch.sdpa_float32(AttentionCall(q, k, v, WIDTH**-0.5, rule, None, 0.0))
        else:
            out = dispatch.sdpa(AttentionCall(q, k, v, WIDTH**-0.5, rule, None, 0.0))
        out.sum().backward()
        times.append(time.perf_counter() - begun)
    return 1e3 * statistics.median(times[2:])


def main(argv: Sequence[str] | None = None) -> None:
    harness.parser(__doc__).parse_args(argv)
    lengths = harness.pick(cuda=LENGTHS, cpu=LENGTHS, smoke=(4, 8))
    tokens = harness.pick(cuda=TOKENS, cpu=TOKENS, smoke=16)
    print(
        f"{'dtype':10} {'rule':7} {'length':>6} {'plain':>9} {'fused':>9} {'widened':>9}  "
        f"ms for {tokens} tokens, {HEADS} heads x {WIDTH}"
    )
    for dtype in (torch.bfloat16, torch.float32):
        for padded in (False, True):
            for length in lengths:
                kinds = ("plain", "sdpa", "widened")
                times = (milliseconds(kernel, dtype, length, tokens // length, padded) for kernel in kinds)
                name, rule = str(dtype).removeprefix("torch."), "padded" if padded else "causal"
                print(f"{name:10} {rule:7} {length:6}", *(f"{ms:9.2f}" for ms in times), flush=True)


def smoke(folder: Path) -> None:
    main([])


if __name__ == "__main__":
    harness.run(main, smoke)
