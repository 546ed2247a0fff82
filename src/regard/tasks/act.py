"""Bodies whose tokens stop by themselves: what their steps cost while they learn, and how many an answer took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from regard.data.batching.samplers import Plan
from regard.tasks.base import Encoded, Task
from regard.tasks.protocol import Asked
from regard.types import Answer, Batch, States

BUDGET = 16_384
"""Tokens that are looked at together."""


def costed(model: Asked, loss: tuple[Tensor, Tensor], *states: States) -> tuple[Tensor, Tensor]:
    """(sum, count) of a loss with what reading cost, while a model learns: `side["cost"]` is a mean over tokens, and counts for
    each of what is asked. Of several readings it is their mean."""
    total, count = loss
    costs = [one.side["cost"] for one in states if "cost" in one.side]
    if not model.training or not costs:
        return total, count
    return total + torch.stack(costs).mean() * count, count


def steps_of(model: Asked, batch: Batch) -> list[list[int]] | None:
    """How many steps each token of each row took; None where all take as many. A sample that is read in several ways has as
    many rows: `batch.x` is (S, K, L) then."""
    if not getattr(model.config, "halting", False):
        return None
    length = batch.x.shape[-1]
    mask = None if batch.mask is None else batch.mask.reshape(-1, *([length] if batch.mask.dtype == torch.bool else []))
    types = None if batch.types is None else batch.types.reshape(-1, length)
    with torch.inference_mode():
        steps = model.body(Batch(batch.x.reshape(-1, length), mask, types=types)).ponder
    return [row[row > 0].tolist() for row in steps.cpu()]  # padding took none


def thought(task: Task, model: Asked, encoded: Encoded, answers: Sequence[Answer]) -> list[Answer]:
    """The answers, each with the steps of all tokens that were read for it (`extra["steps"]`): those of the text with the marks
    around it, of several ways or windows one after another."""
    if not getattr(model.config, "halting", False) or not len(encoded):
        return list(answers)
    lengths, told = task.lengths(encoded), [list[int]() for _ in answers]
    rows: dict[int, list[int]] = {}
    for some in Plan(lengths, max(BUDGET, int(lengths.max())), seed=0).sequential():
        found = steps_of(model, task.collate(encoded, some, model.config).to(model.device))
        assert found is not None
        ways = len(found) // len(some)
        for number, row in enumerate(some.tolist()):
            rows[int(row)] = [step for way in found[number * ways : (number + 1) * ways] for step in way]
    for row in range(len(encoded)):
        # a sample has a row, or several windows
        owner = int(encoded.sides["owner"][row][0]) if "owner" in encoded.sides else row
        told[owner] += rows[row]
    return [replace(answer, extra={**answer.extra, "steps": own}) for answer, own in zip(answers, told, strict=True)]
