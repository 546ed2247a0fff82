"""Training a Transformer-base on sentences of natural lengths, beside `transformers` (Marian) in the same run.

    python benchmarks/translation_training.py [case ...] [--steps 30]

Cases: ceiling, peer_padded, peer_full, plain, graph, compiled, compiled_large. Both sides: the same sizes (6 + 6 layers x
512, 37,000 tokens), dropout 0, bfloat16 autocast, gradients clipped to 1, fused AdamW, random weights and ids. Source and
target tokens are counted, real ones only.

On a CPU: a small translator (3 + 3 layers x 256, 8,000 tokens), 64 pairs of 24 + 24 tokens, nothing compiled.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import Any

import numpy as np
import torch
from clock import Clock, ceiling, report
from marian import CUDA, SIZE, peer_model

from regard import build
from regard.data.plan import Packs, Plan
from regard.learn.compute import Compute, Loss, Way
from regard.learn.loop import loop, numbers
from regard.learn.optimiser import make_optimiser
from regard.learn.settings import Train
from regard.learn.world import World
from regard.tasks.task import Encoded, Terms

LONGEST, PAIRS = (64, 512) if CUDA else (24, 64)


def natural(count: int) -> np.ndarray:
    """Lengths as of sentences, median 22, at most 64; on the CPU all are 24."""
    if not CUDA:
        return np.full(count, LONGEST)
    torch.manual_seed(0)
    return torch.clamp(torch.distributions.LogNormal(3.1, 0.5).sample((count,)).long(), 4, LONGEST).numpy()


def work() -> float:
    """Matrix operations of one source and one target token, forward and backward: 6 for each weight that is used."""
    square, feed = SIZE["width"] ** 2, 2 * SIZE["width"] * SIZE["hidden"]
    encoder, decoder = SIZE["depth"] * (4 * square + feed), SIZE["depth"] * (8 * square + feed)
    return 6.0 * (encoder + decoder + SIZE["width"] * SIZE["vocabulary"])


def peer(clock: Clock, full: bool) -> dict[str, float]:
    model = peer_model().to(clock.device).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    called = torch.compile(model) if CUDA else model  # on the CPU compiling did not pay
    lengths = torch.from_numpy(natural(PAIRS))
    x = torch.randint(2, SIZE["vocabulary"], (PAIRS, LONGEST), device=clock.device)
    given: dict[str, torch.Tensor] = {"input_ids": x, "labels": x}
    if not full:
        mask = (torch.arange(LONGEST) < lengths[:, None]).to(clock.device)
        given = {"input_ids": x, "attention_mask": mask.long(), "labels": torch.where(mask, x, -100)}

    def step() -> None:
        with torch.autocast(clock.device, torch.bfloat16):
            loss = called(**given).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    tokens = 2 * (PAIRS * LONGEST if full else int(lengths.sum()))
    return {"tokens": tokens, "seconds": clock.median(step)}


def ours(clock: Clock, way: Way, share: float = 1.0) -> dict[str, float]:
    """The loop of `regard train`, batches made and moved as there, on other sentences in each step.

    A step has as many real tokens as the peer's padded batch, or `share` times as many."""
    lengths = natural(40 * PAIRS)
    draw = np.random.default_rng(0)
    rows = [draw.integers(3, SIZE["vocabulary"], length, dtype=np.int32) for length in lengths]
    targets = [np.concatenate([[1], row]) for row in rows]
    encoded = Encoded([], {"source": rows, "target": targets}, [])  # fmt: skip
    model = build("transformer-base", decoder_depth=SIZE["depth"], dropout=0.0, **SIZE).to(clock.device)
    settings = Train(
        steps=10**6, tokens=int(share * 2 * natural(PAIRS).sum()), smoothing=0.0, clip=1.0, precision="bfloat16"
    )
    kind: Any = Packs if clock.device == "cuda" else Plan
    plan = kind(model.task.lengths(encoded), settings.tokens, 1)
    compute = Compute(Loss(model, model.task, Terms()), settings, torch.device(clock.device), World(), kind is Packs)
    compute.choose(way)
    shape = getattr(plan, "shape", None)

    def grain(number: int) -> Any:
        batch = model.task.collate(encoded, plan.grain(number)[1], model.config, shape)
        return batch.pin_memory() if clock.device == "cuda" else batch

    grains = map(grain, numbers(0, settings, World()))
    steps = loop(model, compute, grains, make_optimiser(model, settings), settings)
    for _ in range(6):
        next(steps)
    begun = clock.now()
    last = [next(steps) for _ in range(clock.steps)][-1]
    seconds = clock.now() - begun
    first = last.number - clock.steps
    tokens = sum(plan.tokens(number) for number in range(first, last.number))
    return {"tokens": tokens / clock.steps, "seconds": seconds / clock.steps, "padding": round(plan.padding(), 4)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--alone", action="store_true", help="in this process, once")
    asked = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    clock = Clock("cuda" if CUDA else "cpu", asked.steps)
    cases: dict[str, Any] = {
        "ceiling": lambda: ceiling(clock),
        "peer_padded": lambda: peer(clock, full=False), "peer_full": lambda: peer(clock, full=True),
        "plain": lambda: ours(clock, "plain"), "graph": lambda: ours(clock, "graph"),
        "compiled": lambda: ours(clock, "compiled"),
        # as many positions in a step as the peer's batch has with its padding: packing leaves room for them
        "compiled_large": lambda: ours(clock, "compiled", LONGEST * PAIRS / natural(PAIRS).sum()),
    }  # fmt: skip
    print(torch.__version__, torch.cuda.get_device_name() if clock.device == "cuda" else "cpu")
    if not CUDA:
        torch.set_num_threads(2)
        cases = {name: cases[name] for name in ("ceiling", "peer_full", "plain")}
        if not asked.alone:  # a process for each, so that neither takes over what the other has set
            for name in list(asked.cases or cases) * asked.rounds:
                words = [sys.executable, __file__, name, "--alone", "--steps", str(asked.steps)]
                print(
                    subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()[-1],
                    flush=True,
                )
            return
    report(cases, asked.cases or list(cases), work() / 2)


if __name__ == "__main__":
    main()
