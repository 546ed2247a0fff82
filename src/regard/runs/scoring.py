"""The loss on data that is not trained on, and how far scores can be trusted."""

from __future__ import annotations

import torch

from regard.errors import DataError
from regard.model import Model
from regard.nn.kernels.linear import recheck
from regard.runs.settings import Settings
from regard.tasks.base import Encoded, Sums, Task
from regard.training.optimizer import autocast

ROUGH = 100
"""Fewer samples than this give scores that say little."""

ENOUGH = 8192
"""Tokens that are measured at once, where a step learns from fewer: without gradients there is room for them."""


def validation_sums(model: Model, encoded: Encoded, settings: Settings) -> Sums:
    """Negative log-likelihood of all that is to be said, without smoothing, and how much that is."""
    total = count = 0.0
    recheck()  # scores follow, by weights that have learnt since the last time
    with torch.no_grad(), autocast(model.device, settings.train):
        tokens = max(settings.train.tokens, ENOUGH)
        for batch in model.task.batches(encoded, model.config, tokens, settings.data):
            part, number = model.task.loss(model, batch.to(model.device))
            total, count = total + float(part), count + float(number)
    if not count:
        advice = f"See what is missing with 'regard check {model.task.name}', or give more of it: --valid PATH."
        raise DataError("no answer is known to anything in the validation data.", advice=advice)
    return Sums(total, count)


def rough(task: Task, samples: int) -> str:
    """What is to be thought of scores on so few samples; nothing where they are many."""
    if task.least == 1 or samples >= ROUGH:
        return ""
    worth = "" if task.lowest or task.paints else f": one answer is worth {100 / max(samples, 1):.1f} points of 100"
    return f"scores of {task.some(samples)} are rough{worth}"
