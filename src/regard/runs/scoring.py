"""The loss on data that is not trained on."""

from __future__ import annotations

from typing import Any

import torch

from regard.data.plan import Plan
from regard.learn.optimiser import autocast
from regard.model import Model
from regard.runs.settings import Settings


def validation_loss(model: Model, encoded: Any, settings: Settings) -> float:
    """Mean negative log-likelihood of a target token, without smoothing."""
    plan = Plan(encoded.lengths(), max(settings.train.tokens, int(encoded.lengths().sum(1).max())), seed=0)
    total = count = 0.0
    with torch.no_grad(), autocast(model.device, settings.train):
        for rows in plan.sequential():
            batch = model.task.collate(encoded, rows, model.config).to(model.device)
            part, number = model.task.loss(model, batch)
            total, count = total + float(part), count + float(number)
    return total / count
