"""Validation loss, and reliability of scores."""

from __future__ import annotations

import torch

from regard.errors import DataError
from regard.model import Model
from regard.nn.kernels.linear import recheck_packed
from regard.runs.settings import Settings
from regard.tasks.base import Encoded, LossSum, Task
from regard.training.optimizer import autocast

MIN_RELIABLE_SAMPLES = 100
"""Minimum number of samples for reliable scores."""

MIN_BATCH_TOKENS = 8192
"""Minimum tokens per validation batch: without gradients more tokens fit into memory than in training."""


def validation_loss(model: Model, encoded: Encoded, settings: Settings) -> LossSum:
    """Sum of the negative log-likelihood without label smoothing, and count."""
    total = count = 0.0
    recheck_packed()  # the weights have changed since the last validation
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
    """Warning about imprecise scores on few samples, or an empty string."""
    if task.min_valid_samples == 1 or num_samples >= MIN_RELIABLE_SAMPLES:
        return ""
    worth = (
        ""
        if task.lower_is_better or task.has_file_output
        else f": each sample counts {100 / max(num_samples, 1):.1f} points"
    )
    return f"scores on {task.format_count(num_samples)} are imprecise{worth}"
