"""Training GPT-2 of 124 million parameters on sequences of 1,024 tokens, compared with `transformers` and nanoGPT.

    python benchmarks/gpt2_training.py [case ...] [--steps 20] [--rows 32] [--nanogpt model.py]

Cases: ceiling, transformers, nanogpt, graph, compiled. All cases: dropout 0, bfloat16 autocast, gradients clipped to 1,
fused AdamW, random weights, the published vocabulary size 50,257 (nanoGPT: 50,304, its default). The nanogpt case needs the
`model.py` of nanoGPT and is skipped otherwise. On a CPU: gpt2-mini (6 layers x 256, vocabulary size 8,000) on sequences of 256
tokens without compilation, with the cases ceiling, transformers and plain.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
from clock import Clock, Step, ceiling, report

from regard import build
from regard.data.store import RaggedRows
from regard.tasks.base import Encoded, LossWeights
from regard.training.distributed import ProcessGroup
from regard.training.loop import ExecutionMode, ForwardBackward, LossModule, micro_batch_indices, train_loop
from regard.training.optimizer import make_optimizer
from regard.training.settings import TrainSettings


@dataclass(frozen=True)
class Size:
    """Preset with configuration overrides, sequences per batch, and sequence length."""

    model: str
    rows: int
    length: int
    changes: dict[str, int] = field(default_factory=dict)

    def build(self, **more: Any) -> Any:
        return build(self.model, max_length=self.length, **self.changes, **more)

    @property
    def config(self) -> Any:
        return self.build(device="meta").config


SIZES = {
    "cuda": Size("gpt2-small", 32, 1024),
    "cpu": Size("gpt2-mini", 4, 256),
    "smoke": Size(
        "gpt2-mini", 2, 16, {"width": 16, "depth": 1, "heads": 2, "ffn_dim": 32, "vocab_size": 64, "eos_id": 63}
    ),
}
"""Sizes by mode (`harness.mode`)."""


def work(size: Size) -> float:
    """FLOPs per token: 6 N for the weights, 12 · depth · width · length for attention (without the causal discount)."""
    parameters = sum(p.numel() for p in size.build(device="meta").parameters())
    return 6.0 * parameters + 12.0 * size.config.depth * size.config.width * size.length


def peer(device: str, model: Any, loss_of: Any, size: Size) -> Step:
    """A training step of another library, compiled on CUDA."""
    model = model.to(device).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    called = torch.compile(model) if device == "cuda" else model
    x = torch.randint(0, size.config.vocab_size, (size.rows, size.length), device=device)

    def step() -> float:
        with torch.autocast(device, torch.bfloat16):
            loss = loss_of(called, x)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return x.numel()

    return step


def transformers(device: str, size: Size) -> Step:
    from transformers import GPT2Config, GPT2LMHeadModel

    own = size.config
    config = GPT2Config(
        vocab_size=own.vocab_size, n_positions=size.length, n_embd=own.width, n_layer=own.depth, n_head=own.heads,
        n_inner=own.ffn_dim, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, attn_implementation="sdpa", bos_token_id=own.eos_id,
        eos_token_id=own.eos_id,
    )  # fmt: skip
    return peer(device, GPT2LMHeadModel(config), lambda f, x: f(input_ids=x, labels=x, use_cache=False).loss, size)


def nanogpt(device: str, size: Size, path: str) -> Step:
    spec = importlib.util.spec_from_file_location("nanogpt_model", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return peer(device, module.GPT(module.GPTConfig()), lambda f, x: f(x, x)[1], size)


def ours(device: str, way: ExecutionMode, size: Size, batches: int = 200) -> Step:
    """A step of the loop of `regard train` on windows of one long document with enough tokens for `batches` batches."""
    draw, vocabulary = np.random.default_rng(0), size.config.vocab_size
    values = draw.integers(0, vocabulary, batches * size.rows * size.length, dtype=np.int32)
    sides = {
        "text": RaggedRows(values, np.array([0, len(values)])),
        "joint": RaggedRows(np.array([2]), np.array([0, 1])),
    }
    encoded = Encoded([], sides, [])
    model = size.build(dropout=0.0, attention_dropout=0.0, embedding_dropout=0.0).to(device)
    settings = TrainSettings(
        steps=10**6, batch_tokens=size.rows * size.length, label_smoothing=0.0, grad_clip=1.0, precision="bfloat16"
    )
    plan = model.task.objective.sampler(encoded, model.config, settings.batch_tokens, 1, False)
    compute = ForwardBackward(
        LossModule(model, LossWeights()),
        settings,
        torch.device(device),
        ProcessGroup(),
        plan.static_shape,
    )
    compute.set_mode(way)
    compute.log = print

    def grain(number: int) -> Any:
        batch = model.task.objective.collate(encoded, plan.micro_batch(number)[1], model.config, plan.shape)
        return batch.pin_memory() if device == "cuda" else batch

    grains = map(grain, micro_batch_indices(0, settings, ProcessGroup()))
    steps = train_loop(model, compute, grains, make_optimizer(model, settings), settings)

    def step() -> float:
        next(steps)
        return size.rows * size.length

    return step


def main(argv: Sequence[str] | None = None) -> None:
    size, device = SIZES[harness.mode()], harness.device()
    parser = harness.parser(__doc__)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rows", type=int, default=size.rows)
    parser.add_argument("--nanogpt", default="")
    asked = parser.parse_args(argv)
    torch.set_float32_matmul_precision("high")
    clock, size = Clock(device, asked.steps), replace(size, rows=asked.rows)
    steps: dict[str, Any] = {
        "transformers": lambda: transformers(device, size),
        "nanogpt": lambda: nanogpt(device, size, asked.nanogpt),
        **{way: lambda way=way: ours(device, way, size) for way in ("graph", "compiled", "plain")},
    }
    cases = {name: lambda make=make: clock.pace(make()) for name, make in steps.items()}
    cases["ceiling"] = lambda: ceiling(clock)
    own = ("graph", "compiled") if device == "cuda" else ("plain",)
    peers = [*(["transformers"] if harness.installed("transformers") else []), *(["nanogpt"] if asked.nanogpt else [])]
    print(torch.__version__, harness.device_name(), f"{work(size) / 1e6:.2f} MFLOP per token")
    report(cases, asked.cases or ["ceiling", *peers, *own], work(size))


def smoke(folder: Path) -> None:
    main(["--steps", "2"])
    harness.left_out("graph, compiled")
    harness.left_out("nanogpt", "needs its model.py")


if __name__ == "__main__":
    harness.run(main, smoke)
