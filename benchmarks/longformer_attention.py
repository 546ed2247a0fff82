"""Longformer attention with each kernel of regard and with `transformers`: time and memory by sequence length.

    python benchmarks/longformer_attention.py [chunked flash transformers] [--lengths 4096 16384 65536] [--dtype bfloat16]

One sequence, 12 heads x 64, window 512, the first token global, no dropout; projections included, forward and backward.
One JSON line per case: median time in ms, tokens per second, and peak GiB beyond weights and input. Each case runs in its own
process. CUDA-only kernels are skipped on other devices.
"""

from __future__ import annotations

import gc
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import torch
from clock import Clock
from torch import Tensor

from regard.nn.attention.longformer import LongformerAttention
from regard.nn.attention.masks import GlobalTokens, SlidingWindow
from regard.nn.kernels.local_attention import LOCAL_KERNELS, LocalCall, LocalPattern


@dataclass(frozen=True)
class Size:
    width: int
    heads: int
    window: int


BASE, TINY = Size(768, 12, 512), Size(16, 2, 8)


def size() -> Size:
    return TINY if harness.is_smoke() else BASE


class Asked(LongformerAttention):
    """Longformer attention with a fixed kernel."""

    way: Any = None

    def local_attention(self, x: Tensor, pattern: LocalPattern, record: Any, position: Any = None) -> Tensor:
        q, k, v = self.project(x)
        kernel = next(kernel for kernel in LOCAL_KERNELS if kernel.name == self.way)
        return kernel.run(LocalCall(q, k, v, pattern, self.scale))


def ours(way: str, length: int) -> tuple[torch.nn.Module, Callable[[Any, Tensor], Tensor]]:
    module, reach = Asked(size().width, size().heads), size().window // 2
    module.way = way
    marks = torch.zeros(1, length, dtype=torch.bool, device=harness.device())
    marks[:, 0] = True
    rule = SlidingWindow(reach, reach) | GlobalTokens(marks, max_count=1)
    return module, lambda module, x: module(x, mask=rule)


def theirs(length: int) -> tuple[torch.nn.Module, Callable[[Any, Tensor], Tensor]]:
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    width = size().width
    config = LongformerConfig(
        hidden_size=width, num_attention_heads=size().heads, attention_window=[size().window], num_hidden_layers=1,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    module = torch.nn.Module()
    module.attend, module.out = LongformerSelfAttention(config, 0), torch.nn.Linear(width, width)
    told = torch.zeros(1, length, device=harness.device())
    told[:, 0] = 10_000

    def run(module: Any, x: Tensor) -> Tensor:
        return module.out(module.attend(x, told, told < 0, told > 0, True)[0])

    return module, run


def peak() -> float:
    """Peak memory in GiB: allocated tensors on a GPU, resident size of the process on a CPU."""
    if harness.device() == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure(way: str, length: int, dtype: torch.dtype, steps: int) -> dict[str, Any]:
    torch.manual_seed(0)
    device, width = harness.device(), size().width
    module, run = theirs(length) if way == "transformers" else ours(way, length)
    module.to(device, dtype).train()
    x = torch.randn(1, length, width, device=device, dtype=dtype, requires_grad=True)
    told = torch.randn(1, length, width, device=device, dtype=dtype)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    x.grad = torch.zeros_like(x)

    def step() -> None:
        run(module, x).backward(told)

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    gc.collect()
    before, begun = peak(), time.perf_counter()
    step()
    first = time.perf_counter() - begun
    if device == "cuda":  # exclude compilation from the measured memory
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() / 2**30
    seconds = Clock(device, steps).median(step, warm=1)
    return {
        "way": way, "length": length, "dtype": str(dtype).removeprefix("torch."), "ms": round(1000 * seconds, 2),
        "tokens_per_s": round(length / seconds), "GiB": round(peak() - before, 3), "first_s": round(first, 2),
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    cuda = harness.device() == "cuda"
    parser = harness.parser(__doc__)
    parser.add_argument("ways", nargs="*")
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 16_384, 65_536])
    parser.add_argument("--dtype", nargs="+", default=["bfloat16"] if cuda else ["float32", "bfloat16"])
    parser.add_argument("--steps", type=int, default=10 if cuda else 3)
    parser.add_argument("--alone", action="store_true", help="Measure in this process.")
    given = parser.parse_args(argv)
    own = ["chunked", *(["flash"] if cuda else [])]
    given.ways = given.ways or [*own, *(["transformers"] if harness.installed("transformers") else [])]
    for dtype in given.dtype:
        for length in given.lengths:
            for way in given.ways:
                if given.alone or harness.is_smoke():
                    found = json.dumps(measure(way, length, getattr(torch, dtype), given.steps))
                else:
                    words = [sys.executable, __file__, way, "--lengths", str(length), "--dtype", dtype, "--alone"]
                    done = subprocess.run([*words, "--steps", str(given.steps)], capture_output=True, text=True)
                    last = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()[-1:]
                    found = (
                        last[0] if done.returncode == 0 else json.dumps({"way": way, "length": length, "failed": last})
                    )
                print(found, flush=True)


def smoke(folder: Path) -> None:
    main(["--lengths", "32", "--steps", "1"])
    harness.left_out("flash")


if __name__ == "__main__":
    harness.run(main, smoke)
