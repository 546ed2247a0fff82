"""Overhead of attention recording when nothing is recorded: forward passes of BERT-mini, timed in turn.

    python benchmarks/watching.py [--device cuda] [--rounds 15]

never      a model that was never recorded
before     a model that was recorded earlier
without    a model whose attention has no argument for a recorder
recording  a model while all layers are recorded
"""

from __future__ import annotations

import copy
import statistics
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import torch
from clock import Clock
from torch import Tensor

from regard import build
from regard.nn.attention.attention import Attention
from regard.nn.kernels.dispatch import AttentionCall, attend
from regard.nn.recording import record_attention
from regard.types import Batch


def bare(attention: Attention, x: Tensor, context: None = None, *, mask: Any = None, **_: Any) -> Tensor:
    """Self-attention without an argument for a recorder."""
    q, k, v = attention.project(x)
    return attention.out(attend(AttentionCall(q, k, v, attention.scale, mask)).transpose(1, 2).flatten(2))


def main(argv: Sequence[str] | None = None) -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--device", default=harness.device())
    parser.add_argument("--rounds", type=int, default=15)
    asked = parser.parse_args(argv)
    torch.manual_seed(0)
    tiny = {"width": 16, "depth": 1, "heads": 2, "ffn_dim": 32} if harness.is_smoke() else {}
    never = build("bert-mini", task="embed", **tiny).to(asked.device).eval()
    before, without = copy.deepcopy(never), copy.deepcopy(never)
    for module in without.modules():
        if isinstance(module, Attention):
            module.forward = types.MethodType(bare, module)  # type: ignore[method-assign]
    batch = Batch(torch.randint(5, 100, (8, harness.pick(cuda=128, cpu=128, smoke=8)), device=asked.device))
    clock = Clock(asked.device, 9)
    found: dict[str, list[float]] = {"never": [], "before": [], "without": [], "recording": []}
    models = {"never": never, "before": before, "without": without}
    with torch.inference_mode():
        with record_attention(before):
            before.body(batch)
        for _ in range(asked.rounds):
            for name, model in models.items():
                found[name].append(clock.median(lambda model=model: model.body(batch), warm=2))
            with record_attention(never):
                found["recording"].append(clock.median(lambda: never.body(batch), warm=2))
    right = statistics.median(found["without"])
    print(torch.__version__, asked.device)
    for name, times in found.items():
        ms = statistics.median(times)
        print(f"{name:9} {1000 * ms:.2f} ms, {ms / right:.3f} x without (median of {asked.rounds} rounds)")


def smoke(folder: Path) -> None:
    main(["--rounds", "1"])


if __name__ == "__main__":
    harness.run(main, smoke)
