"""Answers that a search has found, as a person reads them."""

from __future__ import annotations

from collections.abc import Sequence

from regard.decode.search import Found
from regard.inputs.text import Text
from regard.waists import Answer


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
