"""Models with adaptive computation time (ACT): ponder cost during training, and ponder steps of predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from regard.data.batching.samplers import LengthBucketed
from regard.tasks.base import Encoded, Task
from regard.tasks.protocol import ModelProtocol
from regard.types import Batch, BodyOutput, Prediction

BATCH_TOKENS = 16_384
"""Tokens per batch."""


def add_act_cost(model: ModelProtocol, loss: tuple[Tensor, Tensor], *states: BodyOutput) -> tuple[Tensor, Tensor]:
    """(sum, count) of a loss. During training `count` × `aux_losses["cost"]`, the ponder cost averaged over tokens, is
    added; for several forward passes, the average of their costs."""
    total, count = loss
    costs = [one.aux_losses["cost"] for one in states if "cost" in one.aux_losses]
    if not model.training or not costs:
        return total, count
    return total + torch.stack(costs).mean() * count, count


def act_steps(model: ModelProtocol, batch: Batch) -> list[list[int]] | None:
    """Ponder steps of each token in each row, or None for a fixed number of steps. Inputs (S, K, L) have S·K rows."""
    if not model.config.traits.act:
        return None
    length = batch.inputs.shape[-1]
    mask = None if batch.mask is None else batch.mask.reshape(-1, *([length] if batch.mask.dtype == torch.bool else []))
    types = None if batch.token_types is None else batch.token_types.reshape(-1, length)
    with torch.inference_mode():
        steps = model.body(Batch(batch.inputs.reshape(-1, length), mask, token_types=types)).act_steps
    return [row[row > 0].tolist() for row in steps.cpu()]  # padding has 0 steps


def with_act_steps(
    task: Task, model: ModelProtocol, encoded: Encoded, predictions: Sequence[Prediction]
) -> list[Prediction]:
    """Predictions with the ponder steps of all input tokens including special tokens (`extra["act_steps"]`). The steps of
    several sequences or windows of a sample are concatenated."""
    if not model.config.traits.act or not len(encoded):
        return list(predictions)
    lengths, told = task.lengths(encoded), [list[int]() for _ in predictions]
    rows: dict[int, list[int]] = {}
    for some in LengthBucketed(lengths, max(BATCH_TOKENS, int(lengths.max())), seed=0).sequential():
        found = act_steps(model, task.collate(encoded, some, model.config).to(model.device))
        assert found is not None
        ways = len(found) // len(some)
        for number, row in enumerate(some.tolist()):
            rows[int(row)] = [step for way in found[number * ways : (number + 1) * ways] for step in way]
    for row in range(len(encoded)):
        # a sample has one row, or one row per window
        owner = int(encoded.fields["owner"][row][0]) if "owner" in encoded.fields else row
        told[owner] += rows[row]
    return [
        replace(answer, extra={**answer.extra, "act_steps": own}) for answer, own in zip(predictions, told, strict=True)
    ]
