"""What a body says: the loss of what it should say, and answers that a search has found, as a person reads them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.decode.search import Found
from regard.nn.blocks.losses import cross_entropy
from regard.processors.tokenizer.tokenizer import Text
from regard.tasks.protocol import Asked
from regard.types import Answer, Batch, States


def likelihood(model: Asked, states: States, labels: Tensor | None, smoothing: float) -> tuple[Tensor, Tensor]:
    """(sum, count) of the loss of what should be said. What a body asks for beside it (`side["penalty"]`, summed over what is
    said) counts while it learns."""
    assert labels is not None
    total, count = cross_entropy(model.body.read(states.sequence), labels, smoothing)
    if model.training and "penalty" in states.side:
        total = total + states.side["penalty"]
    return total, count


def spoken(text: Text, options: Sequence[Found]) -> Answer:
    """The best of them, with its ids and log-probabilities, and the others beside it."""
    values = text.decode([option.tokens for option in options])
    best = options[0]
    extra = {
        "ids": list(best.tokens),
        "ended": best.ended,
        "log_probabilities": [round(value, 6) for value in best.logs],
        "alternatives": [
            {"value": value, "score": option.score} for value, option in zip(values, options, strict=True)
        ],
    }
    pieces = text.pieces(best.tokens)
    return Answer(values[0], tuple(option.score for option in options), tuple(pieces), extra)


def pondered(model: Asked, batch: Batch) -> list[list[int]] | None:
    """How many steps each token of each source was thought about; None where all have the same."""
    if not hasattr(model.body, "pondered"):
        return None
    with torch.inference_mode():
        steps = model.body.pondered(batch)
    return None if steps is None else steps.tolist()
