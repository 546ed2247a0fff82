"""Loss and predictions of models with a decoder: translation and captioning."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.decode.search import Hypothesis
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.tasks.protocol import ModelProtocol
from regard.types import Batch, BodyOutput, Prediction


def seq2seq_loss(
    model: ModelProtocol, states: BodyOutput, labels: Tensor | None, smoothing: float
) -> tuple[Tensor, Tensor]:
    """(sum, count) of the cross-entropy over target tokens, in training plus the sum `aux_losses["penalty"]`."""
    assert labels is not None
    total, count = model.body.cross_entropy(states.sequence, labels, smoothing)
    if model.training and "penalty" in states.aux_losses:
        total = total + states.aux_losses["penalty"]
    return total, count


def text_prediction(text: TextTokenizer, hypotheses: Sequence[Hypothesis]) -> Prediction:
    """Prediction from the best hypothesis, with token ids, log-probabilities, and the other hypotheses as alternatives."""
    values = text.decode([option.tokens for option in hypotheses])
    best = hypotheses[0]
    extra = {
        "token_ids": list(best.tokens),
        "finish_reason": "eos" if best.has_eos else "length",
        "logprobs": [round(value, 6) for value in best.log_probs],
        "alternatives": [
            {"value": value, "score": option.score} for value, option in zip(values, hypotheses, strict=True)
        ],
    }
    pieces = text.display_tokens(best.tokens)
    return Prediction(values[0], tuple(option.score for option in hypotheses), tuple(pieces), extra)


def source_act_steps(model: ModelProtocol, batch: Batch) -> list[list[int]] | None:
    """Number of ACT steps of each source token; None if the model has a fixed number of steps."""
    with torch.inference_mode():
        steps = model.body.act_steps(batch)
    return None if steps is None else steps.tolist()
