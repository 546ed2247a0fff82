"""The loss on data that is not trained on."""

from __future__ import annotations

import torch

from regard.errors import DataError
from regard.learn.optimiser import autocast
from regard.model import Model
from regard.nn.linear import recheck
from regard.runs.settings import Settings
from regard.tasks.task import Encoded, Sums

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
