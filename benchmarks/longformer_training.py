"""Longformer-base, forward and backward over one long sequence, compared with `transformers`: time and memory by length.

    python benchmarks/longformer_training.py [plain graph compiled transformers] [--lengths 4096 16384] [--model NAME]

The first token is global in both libraries; dropout 0, random weights, bfloat16 autocast on a GPU, float32 on a CPU; the loss
is the mean square of the hidden states. `graph` and `compiled` are captured as a CUDA graph, as `regard train` does if all
sequences have the same length; `transformers` synchronizes with the device to count global tokens, which prevents capture. Each
case runs in its own process for a separate memory measurement. On a CPU, `--model longformer-mini` with lengths up to 65,536
shows whether the cost is linear (freed memory is retained for the next step, as in `regard train`). `--draw FILE` plots time
and memory by length.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import by_length
import harness
import torch
from clock import Clock, Step
from torch import Tensor

from regard import build, capabilities
from regard.nn.kernels.cuda_graph import capture
from regard.types import Batch, TextFields

NAMES = {"plain": "regard", "graph": "regard", "compiled": "regard, compiled"}
"""Labels of the variants in the figure."""
TINY = {"width": 16, "depth": 1, "heads": 2, "ffn_dim": 32, "vocab_size": 64, "attention_window": (8,)}
"""Configuration overrides in smoke mode."""


def made(name: str, **more: Any) -> Any:
    return build(name, **(TINY if harness.is_smoke() else {}), **more)


def ours(name: str, length: int, compiled: bool) -> tuple[torch.nn.Module, Callable[[Tensor], Tensor]]:
    device = harness.device()
    model = made(name, task="embed", max_length=length, dropout=0.0, attention_dropout=0.0).to(device).train()
    body: Any = torch.compile(model.body) if compiled else model.body
    marked = torch.zeros(1, length, dtype=torch.bool, device=device)
    marked[:, 0] = True
    return model, lambda x: body(Batch(x, text=TextFields(global_tokens=marked, max_global_tokens=1))).sequence


def theirs(name: str, length: int) -> tuple[torch.nn.Module, Callable[[Tensor], Tensor]]:
    """LongformerModel of `transformers` and its forward function, with the first token marked as global."""
    from transformers import LongformerConfig, LongformerModel

    config, device = made(name, device="meta").config, harness.device()
    model = LongformerModel(
        LongformerConfig(
            vocab_size=config.vocab_size, hidden_size=config.width, num_hidden_layers=config.depth,
            num_attention_heads=config.heads, intermediate_size=config.ffn_dim, max_position_embeddings=length + 2,
            attention_window=[2 * reach for reach in config.one_sided_windows], attention_probs_dropout_prob=0.0,
            hidden_dropout_prob=0.0, pad_token_id=1, type_vocab_size=1,
        )
    )  # fmt: skip
    marked = torch.zeros(1, length, dtype=torch.long, device=device)
    marked[:, 0] = 1
    model = model.to(device).train()
    return model, lambda x: model(input_ids=x, global_attention_mask=marked).last_hidden_state


def prepare(way: str, name: str, length: int) -> Step:
    """A step that runs forward and backward on one sequence and returns its number of tokens."""
    device = harness.device()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model, read = theirs(name, length) if way == "transformers" else ours(name, length, way == "compiled")
    x = torch.randint(5, made(name, device="meta").config.vocab_size, (1, length), device=device)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = read(x).float().pow(2).mean()
        loss.backward()

    repeated = step if way in ("plain", "transformers") else capture(step, torch.device(device))[0].replay

    def counted(kept: Any = (model, x)) -> float:  # a CUDA graph holds no references to its inputs
        repeated()
        return length

    return counted


def measure(way: str, name: str, length: int, steps: int) -> dict[str, Any]:
    cuda = harness.device() == "cuda"
    if way != "transformers" and not cuda:
        capabilities.retain_freed_memory()
    step = prepare(way, name, length)
    seconds = Clock(harness.device(), steps).median(step, warm=3 if cuda else 1)
    most = torch.cuda.max_memory_allocated() if cuda else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {"way": way, "length": length, "ms": round(1000 * seconds, 1), "tokens_per_s": round(length / seconds)}
    return {**found, "GiB": round(most / 2**30, 2)}


def apart(way: str, given: argparse.Namespace, length: int) -> dict[str, Any]:
    """Measurement in a separate process, except in smoke mode."""
    if harness.is_smoke():
        return measure(way, given.model, length, given.steps)
    words = [sys.executable, __file__, way, "--lengths", str(length), "--model", given.model, "--alone"]
    done = subprocess.run([*words, "--steps", str(given.steps)], capture_output=True, text=True)
    last = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()[-1:]
    return json.loads(last[0]) if done.returncode == 0 else {"way": way, "length": length, "failed": last}


def main(argv: Sequence[str] | None = None) -> None:
    cuda = harness.device() == "cuda"
    ways = ["plain", *(["graph", "compiled"] if cuda else [])]
    parser = harness.parser(__doc__)
    parser.add_argument("ways", nargs="*")
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 16_384, 65_536])
    parser.add_argument("--model", default="longformer-base")
    parser.add_argument("--steps", type=int, default=5 if cuda else 2)
    parser.add_argument("--draw", type=Path)
    parser.add_argument("--alone", action="store_true", help="Measure in this process.")
    given = parser.parse_args(argv)
    if given.alone:
        print(json.dumps(measure(given.ways[0], given.model, given.lengths[0], given.steps)))
        return
    print(torch.__version__, harness.device_name(), flush=True)
    given.ways = given.ways or [*ways, *(["transformers"] if harness.installed("transformers") else [])]
    rows: list[dict[str, Any]] = []
    for length in given.lengths:
        found = {way: apart(way, given, length) for way in given.ways}
        rows += [{**row, "way": NAMES.get(row["way"], row["way"])} for row in found.values() if "ms" in row]
        for way, row in found.items():
            print(json.dumps(row), flush=True)
            right = found.get("transformers", {})
            if way != "transformers" and "GiB" in row and "GiB" in right:
                pace, memory = row["tokens_per_s"] / right["tokens_per_s"], row["GiB"] / right["GiB"]
                print(f"{way} at {length:,}: {pace:.2f} x the tokens per second, {memory:.2f} x the memory", flush=True)
    if given.draw:
        where = torch.cuda.get_device_name() if cuda else "two CPU cores"
        title = f"{given.model}, forward and backward: {where}"
        by_length.draw(rows, {"ms": "time, ms", "GiB": "peak memory, GiB"}, title, given.draw)


def smoke(folder: Path) -> None:
    main(["--lengths", "16", "32", "--model", "longformer-mini", "--steps", "1", "--draw", str(folder / "lengths.png")])
    harness.left_out("graph, compiled")


if __name__ == "__main__":
    harness.run(main, smoke)
