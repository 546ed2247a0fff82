"""Pretraining BERT of 110 million parameters (MLM and NSP), compared with `transformers` in the same run.

    python benchmarks/bert_training.py [case ...] [--steps 20] [--rows 256] [--model bert-base] [--device cuda]

natural   documents of 90 tokens on average, at most 512: regard packs, `transformers` pads to 512; padding is not counted
full      sequences of 512 tokens

Both have the variants `transformers` (BertForPreTraining under torch.compile), `graph` and `compiled` (on a CPU `plain`). The
case `ceiling` is the matrix multiplication throughput of the device. All variants: dropout 0, bfloat16 autocast, gradients
clipped to 1, fused AdamW, random weights and token ids, the same number of sequences per step, 15 % masked tokens.
`transformers` repeats four batches in device memory; regard collates and masks new batches in two workers, as `regard train`.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
from clock import Clock, ceiling, report

from regard import build
from regard.data.batching.loader import prefetch
from regard.data.batching.windows import TokenMasker
from regard.data.settings import DataSettings
from regard.data.store import RaggedRows
from regard.tasks.base import Encoded, EncodingContext, LossWeights
from regard.tasks.mlm import num_special_tokens
from regard.training.distributed import ProcessGroup
from regard.training.loop import ExecutionMode, ForwardBackward, LossModule, micro_batch_indices, train_loop
from regard.training.optimizer import make_optimizer
from regard.training.settings import TrainSettings
from regard.types import Batch

MEAN, SHARE = 90, 0.15
OPENS = 2
TINY = {"width": 16, "depth": 1, "heads": 2, "ffn_dim": 32, "vocab_size": 64}
"""Configuration overrides in smoke mode."""


def made(asked: argparse.Namespace, **more: Any) -> Any:
    return build(asked.model, max_length=asked.length, **(TINY if harness.is_smoke() else {}), **more)


def special(config: Any) -> int:
    """First id of an ordinary token; lower ids count as special tokens."""
    return min(1000, config.vocab_size // 4)


def work(config: Any, length: float) -> float:
    """FLOPs per token at this sequence length: 6 per weight (vocabulary weights at masked tokens only), plus attention."""
    blocks = config.depth * (4 * config.width**2 + 2 * config.width * config.ffn_dim)
    asked = SHARE * config.width * (config.vocab_size + config.width)
    return 6.0 * (blocks + asked) + 12.0 * config.depth * config.width * length


def lengths(kind: str, count: int, config: Any) -> np.ndarray:
    """Document lengths: log-normal as in forums and news, or far longer than the maximum length (`full`)."""
    if kind == "full":
        return np.full(64, 256 * config.max_length)
    drawn = np.random.default_rng(0).lognormal(4.2, 0.8, count)
    return np.clip(drawn, 8, config.max_length - num_special_tokens(config)).astype(np.int64)


def documents(kind: str, rows: int, config: Any) -> Encoded:
    sizes = lengths(kind, 100 * rows, config)
    ids = np.random.default_rng(1).integers(special(config), config.vocab_size, int(sizes.sum()), dtype=np.int32)
    single = np.arange(len(sizes) + 1)  # one segment per document, so one value per row
    joints, numbered = RaggedRows(np.full(len(sizes), OPENS), single), RaggedRows(np.arange(len(sizes)), single)
    hiding = TokenMasker(config.mask_id, np.arange(config.vocab_size) >= special(config), SHARE)
    text = RaggedRows(ids, np.concatenate([[0], np.cumsum(sizes)]))
    data = DataSettings(max_length=config.max_length)
    context = EncodingContext(None, config.max_length, data, cache={"masker": hiding})
    return Encoded([], {"text": text, "joint": joints, "document": numbered}, [], context)


def settings_of(rows: int, mean: float) -> TrainSettings:
    return TrainSettings(
        steps=10**6, batch_tokens=int(rows * mean), label_smoothing=0.0, grad_clip=1.0, precision="bfloat16"
    )


def ours(clock: Clock, asked: argparse.Namespace, kind: str, way: ExecutionMode) -> dict[str, float]:
    model = made(asked, dropout=0.0, attention_dropout=0.0, head_dropout=0.0).to(clock.device)
    encoded = documents(kind, asked.rows, model.config)
    mean = (
        asked.length
        if kind == "full"
        else float(lengths(kind, 1000, model.config).mean()) + num_special_tokens(model.config)
    )
    settings = settings_of(asked.rows, mean)
    plan = model.task.objective.sampler(encoded, model.config, settings.batch_tokens, 1, clock.device == "cuda")
    compute = ForwardBackward(
        LossModule(model, LossWeights()),
        settings,
        torch.device(clock.device),
        ProcessGroup(),
        plan.static_shape,
    )
    compute.set_mode(way)
    compute.log = print

    def grain(number: int) -> Batch:
        return model.task.objective.collate(encoded, plan.micro_batch(number)[1], model.config, plan.shape)

    grains = prefetch(grain, micro_batch_indices(0, settings, ProcessGroup()), 2, pin=clock.device == "cuda")
    steps = train_loop(model, compute, grains, make_optimizer(model, settings), settings)
    try:
        seconds = clock.row(lambda: next(steps))
    finally:
        grains.close()
    return {"tokens": np.mean([plan.num_tokens(number) for number in range(clock.steps)]).item(), "seconds": seconds}


def theirs(clock: Clock, asked: argparse.Namespace, kind: str) -> dict[str, float]:
    """Tokens and seconds per step of `transformers` on the same sequences, padded."""
    from transformers import BertConfig, BertForPreTraining

    own = made(asked, device="meta")
    config, encoded = own.config, documents(kind, asked.rows, own.config)
    peer = BertForPreTraining(
        BertConfig(
            vocab_size=config.vocab_size, hidden_size=config.width, num_hidden_layers=config.depth,
            num_attention_heads=config.heads, intermediate_size=config.ffn_dim, max_position_embeddings=config.max_length,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="sdpa",
        )
    )  # fmt: skip
    peer = peer.to(clock.device).train()
    optimiser = torch.optim.AdamW(peer.parameters(), lr=1e-4, fused=True)
    called = torch.compile(peer) if clock.device == "cuda" else peer
    plan = own.task.objective.sampler(encoded, config, asked.rows * config.max_length, 1, False)
    rows = np.random.default_rng(2).permutation(plan.epoch_rows(0))
    rows = rows[plan.row_lengths(rows) == config.max_length] if kind == "full" else rows
    rows = np.concatenate([rows, np.ones((len(rows), 2), dtype=np.int64)], axis=1)
    batches = [padded(own, encoded, rows[at : at + asked.rows]) for at in range(0, 4 * asked.rows, asked.rows)]
    turns = itertools.cycle([{name: value.to(clock.device) for name, value in batch.items()} for batch in batches])

    def step() -> None:
        with torch.autocast(clock.device, torch.bfloat16):
            loss = called(**next(turns)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    real = np.mean(
        [float(batch.get("attention_mask", batch["input_ids"] + 1).bool().sum()) for batch in batches]
    ).item()
    return {"tokens": real, "seconds": clock.row(step)}


def padded(own: Any, encoded: Encoded, rows: np.ndarray) -> dict[str, torch.Tensor]:
    """A regard batch as inputs of BertForPreTraining, padded to the maximum length."""
    batch, length = own.task.objective.collate(encoded, rows, own.config), own.config.max_length
    assert (
        batch.labels is not None
        and batch.text.label_positions is not None
        and batch.text.token_types is not None
        and batch.text.nsp_labels is not None
    )
    B, L = batch.inputs.shape
    labels = torch.full((B * L,), -100)
    labels[batch.text.label_positions] = batch.labels

    def wide(table: torch.Tensor, value: int) -> torch.Tensor:
        return torch.nn.functional.pad(table.view(B, L), (0, length - L), value=value)

    found = {
        "input_ids": wide(batch.inputs, 0),
        "token_type_ids": wide(batch.text.token_types, 0),
        "labels": wide(labels, -100),
    }
    if batch.mask is not None:  # without a mask, SDPA selects its fastest kernel
        found["attention_mask"] = (torch.arange(length) < batch.mask[:, None]).long()
    return {**found, "next_sentence_label": batch.text.nsp_labels}


def main(argv: Sequence[str] | None = None) -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("cases", nargs="*", help="natural, full, or one variant such as natural:graph.")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--model", default="bert-base")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--length", type=int, default=512)
    asked = parser.parse_args(argv)
    torch.set_float32_matmul_precision("high")
    clock, found = Clock(asked.device, asked.steps), {}

    def kept(name: str, measure: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
        def measured() -> dict[str, Any]:
            found[name] = measure()
            return found[name]

        return measured

    config = made(asked, device="meta").config
    print(torch.__version__, torch.cuda.get_device_name() if asked.device == "cuda" else "CPU")
    ways = ("graph", "compiled") if asked.device == "cuda" else ("plain",)
    peers = {"transformers": theirs} if harness.installed("transformers") else {}
    for kind, length in (("natural", MEAN), ("full", asked.length)):
        cases = {name: lambda kind=kind, side=side: side(clock, asked, kind) for name, side in peers.items()}
        cases |= {way: lambda kind=kind, way=way: ours(clock, asked, kind, way) for way in ways}
        named: dict[str, Any] = {f"{kind}:{case}": kept(f"{kind}:{case}", measure) for case, measure in cases.items()}
        wanted = [name for name in named if not asked.cases or {kind, name} & {*asked.cases}]
        if not wanted:
            continue
        report({"ceiling": lambda: ceiling(clock), **named}, ["ceiling", *wanted], work(config, length))
        right = found.get(f"{kind}:transformers")
        for name in wanted[1:] if right else ():
            if name in found:
                memory = f", {found[name]['GiB'] / right['GiB']:.2f} x the memory" if "GiB" in right else ""
                pace = found[name]["tokens_per_s"] / right["tokens_per_s"]
                print(f"{name}: {pace:.2f} x the tokens per second{memory}", flush=True)


def smoke(folder: Path) -> None:
    main(["--device", "cpu", "--model", "bert-mini", "--length", "16", "--rows", "4", "--steps", "2"])
    harness.left_out("graph, compiled, packed rows")


if __name__ == "__main__":
    harness.run(main, smoke)
