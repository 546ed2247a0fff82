"""Laws of all objectives, and short calls of their methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.settings import DataSettings
from regard.tasks.base import EncodingContext, EvalSpec, HeadOptions, LossWeights
from regard.types import Batch
from tiny import gradients, near
from tiny_text_models import language_loss


def encode(
    model: Any, samples: Sequence[Any], longest: int = 10**9, data: Any = None, options: HeadOptions | None = None
) -> Any:
    options = model.spec.options if options is None else options
    return model.objective.encode(samples, model.config, EncodingContext(model.processor, longest, data, options))


def collate(model: Any, encoded: Any, chosen: Iterable[int] | None = None, tokens: int = 0) -> Batch:
    """A batch of all rows or the chosen rows, padded, or packed with the shape of micro-batches of `tokens` tokens."""
    shape = model.objective.sampler(encoded, model.config, tokens, 0, True).shape if tokens else None
    return model.objective.collate(encoded, range(len(encoded)) if chosen is None else chosen, model.config, shape)


def scores_of(
    model: Any, encoded: Any, data: Any = None, decode: Any = None, loss: Any = None, most: int | None = None
) -> tuple[dict[str, Any], list[Any]]:
    data = DataSettings() if data is None else data
    return model.objective.evaluate(model, encoded, EvalSpec(decode or model.spec.decode, data, loss, most))


def assert_loss(model: Any, encoded: Any, right: Any, tokens: int, terms: LossWeights | None = None) -> None:
    """The loss of all rows, padded and packed, equals `right`, with all gradients."""
    expected = gradients(model, right)
    for room in (0, tokens):
        batch = collate(model, encoded, tokens=room)
        assert (batch.packing is not None) == bool(room)
        total, count = model.objective.loss(model, batch, terms or LossWeights())
        near(total, right)
        assert int(count) == len(encoded)
        found = gradients(model, total)
        # distributed training requires a gradient for every parameter, including unused ones
        assert found.keys() >= expected.keys()
        for name, gradient in found.items():
            near(gradient, expected.get(name, torch.zeros_like(gradient)), 1e-10)


def paper_loss(
    model: Any, encoded: Any, terms: LossWeights, log_probabilities: Callable[[list[list[int]]], Tensor]
) -> Tensor:
    """The loss of the paper in loops over samples and tokens, from the log-probabilities of the token sequences of a sample."""
    total = torch.zeros((), dtype=torch.float64)
    for row, ways, label in zip(*(encoded.fields[name] for name in ("text", "ways", "label")), strict=True):
        parts = [part.tolist() for part in np.split(row, np.cumsum(ways)[:-1])]
        logs, right = log_probabilities(parts), int(label[0])
        others = (logs.sum() - logs[right]) / (len(logs) - 1)
        total = total - (1 - terms.smoothing) * logs[right] - terms.smoothing * others
        total = total + terms.auxiliary * sum(language_loss(model, part) for part in parts) / len(parts)
    return total


def assert_one_shape(model: Any, encoded: Any, tokens: int) -> list[Batch]:
    """All packed micro-batches have one shape."""
    plan = model.objective.sampler(encoded, model.config, tokens, 0, True)
    batches = [model.objective.collate(encoded, some, model.config, plan.shape) for some in plan.epoch(0)]
    assert len(batches) > 2 and len({tuple(t.shape for t in batch.tensors()) for batch in batches}) == 1
    return batches
