"""The loss on data that is not trained on, and how far scores can be trusted."""

from __future__ import annotations

import torch

from regard.errors import DataError
from regard.model import Model
from regard.nn.kernels.linear import recheck_packed
from regard.runs.settings import Settings
from regard.tasks.base import Encoded, LossSum, Task
from regard.training.optimizer import autocast

MIN_RELIABLE_SAMPLES = 100
"""Fewer samples than this give scores that say little."""

MIN_BATCH_TOKENS = 8192
"""Tokens that are measured at once, where a step learns from fewer: without gradients there is room for them."""


def validation_loss(model: Model, encoded: Encoded, settings: Settings) -> LossSum:
    """Negative log-likelihood of all that is to be said, without smoothing, and how much that is."""
    total = count = 0.0
    recheck_packed()  # scores follow, by weights that have learnt since the last time
    with torch.no_grad(), autocast(model.device, settings.train):
        tokens = max(settings.train.batch_tokens, MIN_BATCH_TOKENS)
        for batch in model.task.eval_batches(encoded, model.config, tokens, settings.data):
            part, number = model.task.loss(model, batch.to(model.device))
            total, count = total + float(part), count + float(number)
    if not count:
        advice = f"'regard check {model.task.name}' lists missing labels; add validation data with --valid PATH."
        raise DataError("No validation sample has a usable label.", advice=advice)
    return LossSum(total, count)


def small_sample_warning(task: Task, num_samples: int) -> str:
    """What is to be thought of scores on so few samples; nothing where they are many."""
    if task.min_valid_samples == 1 or num_samples >= MIN_RELIABLE_SAMPLES:
        return ""
    worth = (
        ""
        if task.lower_is_better or task.has_file_output
        else f": each sample counts {100 / max(num_samples, 1):.1f} points"
    )
    return f"scores on {task.format_count(num_samples)} are imprecise{worth}"
