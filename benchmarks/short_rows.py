"""Plain matrix products, fused attention, and fused attention in float32 on this CPU, forward and backward, by row length.

It is what SHORT_ROW and MIDDLE_ROW of `regard.nn.kernels` rest on. Rows x length is constant, as in a batch by token budget.
"""

from __future__ import annotations

import statistics
import time

import torch

from regard.nn import kernels
from regard.nn.rules import Causal, Real

HEADS, WIDTH, TOKENS = 4, 32, 8192


def milliseconds(kernel: str, dtype: torch.dtype, length: int, padded: bool) -> float:
    rows = TOKENS // length
    q, k, v = (torch.randn(rows, HEADS, length, WIDTH).to(dtype).requires_grad_() for _ in range(3))
    rule = Real(torch.randint(1, length + 1, (rows,))) if padded else Causal()
    times = []
    for _ in range(12):
        begun = time.perf_counter()
        if kernel == "plain":
            out, _ = kernels.plain(q, k, v, kernels.allowed(q, k, rule, None), WIDTH**-0.5)
        elif kernel == "widened":
            out = kernels.widened(q, k, v, rule, None, WIDTH**-0.5, 0.0)
        else:
            out = kernels.sdpa(q, k, v, rule, None, WIDTH**-0.5, 0.0)
        out.sum().backward()
        times.append(time.perf_counter() - begun)
    return 1e3 * statistics.median(times[2:])


print(
    f"{'dtype':10} {'rule':7} {'length':>6} {'plain':>9} {'fused':>9} {'widened':>9}  "
    f"ms for {TOKENS} tokens, {HEADS} heads x {WIDTH}"
)
for dtype in (torch.bfloat16, torch.float32):
    for padded in (False, True):
        for length in (8, 16, 32, 64, 128, 256, 512, 1024):
            kinds = ("plain", "sdpa", "widened")
            plain, fused, widened = (milliseconds(kernel, dtype, length, padded) for kernel in kinds)
            name = str(dtype).removeprefix("torch.")
            print(
                f"{name:10} {'padded' if padded else 'causal':7} {length:6} {plain:9.2f} {fused:9.2f} {widened:9.2f}",
                flush=True,
            )
