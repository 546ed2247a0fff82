"""Training GPT-2 of 124 million parameters on rows of 1,024 tokens, beside `transformers` and nanoGPT in the same run.

    python benchmarks/gpt2_training.py [case ...] [--steps 20] [--rows 32] [--nanogpt model.py]

Cases: ceiling, transformers, nanogpt, graph, compiled. All sides: dropout 0, bfloat16 autocast, gradients clipped to 1,
fused AdamW, random weights, the published vocabulary of 50,257 (nanoGPT: padded to 50,304, as it does). nanoGPT's
`model.py` is a file that you bring; without it that case is left out. On the GPU only.
"""

from __future__ import annotations

import argparse
import importlib.util
from typing import Any

import numpy as np
import torch
from clock import Clock, ceiling, report

from regard import build
from regard.data.store import Rows
from regard.learn.compute import Compute, Loss, Way
from regard.learn.loop import loop, numbers
from regard.learn.optimiser import make_optimiser
from regard.learn.settings import Train
from regard.learn.world import World
from regard.tasks.task import Encoded, Terms

LENGTH, VOCABULARY, DEPTH, WIDTH, PARAMETERS = 1024, 50_257, 12, 768, 124_439_808


def work() -> float:
    """Operations of a token: 6 N for the weights, 12 · depth · width · length for attention (all of it, as papers count)."""
    return 6.0 * PARAMETERS + 12.0 * DEPTH * WIDTH * LENGTH


def peer(clock: Clock, model: Any, loss_of: Any, rows: int) -> dict[str, float]:
    model = model.to(clock.device).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    called = torch.compile(model)
    x = torch.randint(0, VOCABULARY, (rows, LENGTH), device=clock.device)

    def step() -> None:
        with torch.autocast(clock.device, torch.bfloat16):
            loss = loss_of(called, x)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return {"tokens": rows * LENGTH, "seconds": clock.row(step)}


def transformers(clock: Clock, rows: int) -> dict[str, float]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, attn_implementation="sdpa")
    return peer(clock, GPT2LMHeadModel(config), lambda f, x: f(input_ids=x, labels=x, use_cache=False).loss, rows)


def nanogpt(clock: Clock, rows: int, path: str) -> dict[str, float]:
    spec = importlib.util.spec_from_file_location("nanogpt_model", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return peer(clock, module.GPT(module.GPTConfig()), lambda f, x: f(x, x)[1], rows)


def ours(clock: Clock, way: Way, rows: int) -> dict[str, float]:
    """The loop of `regard train` on windows of one long document."""
    draw = np.random.default_rng(0)
    values = draw.integers(0, VOCABULARY, 200 * rows * LENGTH, dtype=np.int32)
    sides = {"text": Rows(values, np.array([0, len(values)])), "joint": Rows(np.array([2]), np.array([0, 1]))}
    encoded = Encoded([], sides, [])
    model = build("gpt2-small", dropout=0.0, attention_dropout=0.0, embedding_dropout=0.0).to(clock.device)
    settings = Train(steps=10**6, tokens=rows * LENGTH, smoothing=0.0, clip=1.0, precision="bfloat16")
    plan = model.task.plan(encoded, model.config, settings.tokens, 1, False)
    compute = Compute(Loss(model, model.task, Terms()), settings, torch.device(clock.device), World(), plan.steady)
    compute.choose(way)
    compute.say = print

    def grain(number: int) -> Any:
        return model.task.collate(encoded, plan.grain(number)[1], model.config, plan.shape).pin_memory()

    grains = map(grain, numbers(0, settings, World()))
    steps = loop(model, compute, grains, make_optimiser(model, settings), settings)
    return {"tokens": rows * LENGTH, "seconds": clock.row(lambda: next(steps))}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--nanogpt", default="")
    asked = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    clock = Clock("cuda", asked.steps)
    cases: dict[str, Any] = {
        "ceiling": lambda: ceiling(clock),
        "transformers": lambda: transformers(clock, asked.rows),
        "nanogpt": lambda: nanogpt(clock, asked.rows, asked.nanogpt),
        "graph": lambda: ours(clock, "graph", asked.rows),
        "compiled": lambda: ours(clock, "compiled", asked.rows),
    }
    print(torch.__version__, torch.cuda.get_device_name(), f"{work() / 1e6:.0f} MFLOP a token")
    report(cases, asked.cases or [case for case in cases if case != "nanogpt" or asked.nanogpt], work())


if __name__ == "__main__":
    main()
