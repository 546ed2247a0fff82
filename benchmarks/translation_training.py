"""Training a Transformer-base on sentences of natural lengths, compared with `transformers` (Marian) in the same run.

    python benchmarks/translation_training.py [case ...] [--steps 30]

Cases: ceiling, peer_padded, peer_full, plain, graph, compiled, compiled_large, torch_nn. All cases: the same model size (6 + 6
layers x 512, vocabulary size 37,000), dropout 0, bfloat16 autocast, gradients clipped to 1, fused AdamW, random weights and
token ids. Source and target tokens are counted without padding.

On a CPU: a small Transformer (3 + 3 layers x 256, vocabulary size 8,000), 64 pairs of 24 + 24 tokens, without compilation.
`torch_nn` is torch.nn.Transformer with embeddings and projection, the baseline in plain PyTorch.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import marian
import numpy as np
import torch
from clock import Clock, Step, ceiling, report

from regard import build
from regard.data.batching.samplers import LengthBucketed, PackedSampler
from regard.tasks.base import Encoded, LossWeights
from regard.training.distributed import ProcessGroup
from regard.training.loop import ExecutionMode, ForwardBackward, LossModule, micro_batch_indices, train_loop
from regard.training.optimizer import make_optimizer
from regard.training.settings import TrainSettings


@dataclass(frozen=True)
class Size:
    """Model size, pairs per batch, and maximum tokens per side; all sentences have the maximum unless `natural`."""

    model: dict[str, int]
    pairs: int
    longest: int
    natural: bool = False

    def lengths(self, count: int) -> np.ndarray:
        """Sentence lengths: log-normal with median 22, or all of the maximum."""
        if not self.natural:
            return np.full(count, self.longest)
        torch.manual_seed(0)
        return torch.clamp(torch.distributions.LogNormal(3.1, 0.5).sample((count,)).long(), 4, self.longest).numpy()

    @property
    def tokens(self) -> int:
        """Source and target tokens per batch without padding."""
        return 2 * int(self.lengths(self.pairs).sum())


SIZES = {
    "cuda": Size(marian.SIZES["cuda"], 512, 64, natural=True),
    "cpu": Size(marian.SIZES["cpu"], 64, 24),
    "smoke": Size(marian.SIZES["smoke"], 4, 6),
}
"""Sizes by mode (`harness.mode`)."""


def work(size: Size) -> float:
    """FLOPs of one source and one target token, forward and backward: 6 per weight."""
    own = size.model
    square, feed = own["width"] ** 2, 2 * own["width"] * own["ffn_dim"]
    encoder, decoder = own["depth"] * (4 * square + feed), own["depth"] * (8 * square + feed)
    return 6.0 * (encoder + decoder + own["width"] * own["vocab_size"])


def trained(device: str, model: torch.nn.Module, loss_of: Any, tokens: int) -> Step:
    """A training step of another library."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> float:
        with torch.autocast(device, torch.bfloat16):
            loss = loss_of()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return tokens

    return step


def peer(device: str, size: Size, full: bool) -> Step:
    """Marian of `transformers` on padded sequences or, if `full`, on sequences without padding; compiled on CUDA."""
    model = marian.peer_model(size.model).to(device).train()
    called = torch.compile(model) if device == "cuda" else model  # torch.compile was not faster on the CPU
    x = torch.randint(2, size.model["vocab_size"], (size.pairs, size.longest), device=device)
    given: dict[str, torch.Tensor] = {"input_ids": x, "labels": x}
    if not full:
        mask = (torch.arange(size.longest) < torch.from_numpy(size.lengths(size.pairs))[:, None]).to(device)
        given = {"input_ids": x, "attention_mask": mask.long(), "labels": torch.where(mask, x, -100)}
    return trained(device, model, lambda: called(**given).loss, 2 * x.numel() if full else size.tokens)


def torch_nn(device: str, size: Size) -> Step:
    """torch.nn.Transformer of that size on sequences without padding."""
    own, nn = size.model, torch.nn
    core = nn.Transformer(
        own["width"], own["heads"], own["depth"], own["depth"], own["ffn_dim"], dropout=0.0, batch_first=True
    )
    model = nn.ModuleDict({"core": core, "tokens": nn.Embedding(own["vocab_size"], own["width"])}).to(device).train()
    x = torch.randint(2, own["vocab_size"], (size.pairs, size.longest), device=device)
    causal = nn.Transformer.generate_square_subsequent_mask(size.longest, device=device)

    def loss() -> torch.Tensor:
        table = model["tokens"]
        states = core(table(x), table(x), tgt_mask=causal, tgt_is_causal=True)
        return nn.functional.cross_entropy((states @ table.weight.T).flatten(0, 1).float(), x.flatten())

    return trained(device, model, loss, 2 * x.numel())


def ours(device: str, way: ExecutionMode, size: Size, share: float = 1.0) -> Step:
    """A step of the loop of `regard train`, including collation and transfer, on new sentences in each step.

    A step has `share` times as many tokens (without padding) as the peer's padded batch."""
    draw = np.random.default_rng(0)
    lengths, vocabulary = size.lengths(40 * size.pairs), size.model["vocab_size"]
    rows = [draw.integers(3, vocabulary, length, dtype=np.int32) for length in lengths]
    targets = [np.concatenate([[1], row]) for row in rows]
    encoded = Encoded([], {"source": rows, "target": targets}, [])
    model = build("transformer-base", decoder_depth=size.model["depth"], dropout=0.0, **size.model).to(device)
    settings = TrainSettings(
        steps=10**6, batch_tokens=int(share * size.tokens), label_smoothing=0.0, grad_clip=1.0, precision="bfloat16"
    )
    kind: Any = PackedSampler if device == "cuda" else LengthBucketed
    plan = kind(encoded.lengths(), settings.batch_tokens, 1)
    compute = ForwardBackward(
        LossModule(model, LossWeights()),
        settings,
        torch.device(device),
        ProcessGroup(),
        kind is PackedSampler,
    )
    compute.set_mode(way)
    shape = getattr(plan, "shape", None)

    def grain(number: int) -> Any:
        batch = model.task.objective.collate(encoded, plan.micro_batch(number)[1], model.config, shape)
        return batch.pin_memory() if device == "cuda" else batch

    grains = map(grain, micro_batch_indices(0, settings, ProcessGroup()))
    steps = zip(
        train_loop(model, compute, grains, make_optimizer(model, settings), settings), itertools.count(), strict=False
    )
    print(f"{way}: {plan.padding_fraction():.2%} padding", flush=True)
    return lambda: plan.num_tokens(next(steps)[1])


def main(argv: Sequence[str] | None = None) -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--alone", action="store_true", help="Measure once in this process.")
    asked = parser.parse_args(argv)
    torch.set_float32_matmul_precision("high")
    device, size = harness.device(), SIZES[harness.mode()]
    clock = Clock(device, asked.steps)
    steps: dict[str, Any] = {
        "peer_padded": lambda: peer(device, size, full=False), "peer_full": lambda: peer(device, size, full=True),
        **{way: lambda way=way: ours(device, way, size) for way in ("plain", "graph", "compiled")},
        # as many tokens per step as the peer's batch including padding: packing leaves room for more
        "compiled_large": lambda: ours(device, "compiled", size, 2 * size.longest * size.pairs / size.tokens),
        "torch_nn": lambda: torch_nn(device, size),
    }  # fmt: skip
    if device == "cpu":
        harness.limit_threads(2)
        steps = {name: steps[name] for name in ("peer_full", "torch_nn", "plain")}
    if not (asked.alone or harness.installed("transformers")):
        steps = {name: make for name, make in steps.items() if not name.startswith("peer")}
    cases = {"ceiling": lambda: ceiling(clock)}
    cases |= {name: lambda make=make: clock.pace(make()) for name, make in steps.items()}
    print(torch.__version__, harness.device_name())
    if (
        harness.mode() == "cpu" and not asked.alone
    ):  # one process per case, because thread settings of one library would affect the other
        for name in list(asked.cases or cases) * asked.rounds:
            words = [sys.executable, __file__, name, "--alone", "--steps", str(asked.steps)]
            said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
            print(said.splitlines()[-1], flush=True)
        return
    report(cases, asked.cases or list(cases), work(size) / 2)


def smoke(folder: Path) -> None:
    main(["--steps", "2"])
    if harness.installed("transformers"):
        size = SIZES["smoke"]
        print("peer_padded", Clock("cpu", 2).pace(peer("cpu", size, full=False), warm=1))
    harness.left_out("graph, compiled, compiled_large")


if __name__ == "__main__":
    harness.run(main, smoke)
