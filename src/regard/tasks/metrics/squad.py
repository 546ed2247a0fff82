"""How well answers are spotted in their contexts: exact match and F1, by the rules of SQuAD 1.1 and 2.0.

Texts are compared in small letters, without punctuation, the articles a, an, the, and double blanks. Exact match asks
whether all is the same; F1 counts words in common. Of several right answers the best counts. Where a set has questions
without an answer, or a model may say nothing, the rules of 2.0 hold: nothing is the right answer to those, and to no
other; the score is told of both sorts, and a threshold decides when nothing is said.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.data.text.qa import QASample
from regard.draw.markdown_table import markdown_table
from regard.draw.per_class import LabelScore, draw_per_label
from regard.errors import RegardError
from regard.types import Prediction

FloatArray = NDArray[np.float64]

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """What is compared of a text."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction: str, reference: str) -> float:
    return float(normalize_answer(prediction) == normalize_answer(reference))


def word_f1(prediction: str, reference: str) -> float:
    """F1 of the words: nothing in common is 0, even of two texts of which nothing is left to compare (1.1)."""
    ours, theirs = normalize_answer(prediction).split(), normalize_answer(reference).split()
    same = sum((Counter(ours) & Counter(theirs)).values())
    if not same:
        return 0.0
    precision, recall = same / len(ours), same / len(theirs)
    return 2 * precision * recall / (precision + recall)


def word_f1_or_empty(prediction: str, reference: str) -> float:
    """The same, but two texts of which nothing is left are alike (2.0)."""
    return (
        word_f1(prediction, reference)
        if normalize_answer(prediction) and normalize_answer(reference)
        else exact_match(prediction, reference)
    )


def squad_scores(
    spans: Sequence[QASample],
    predictions: Sequence[str],
    no_answer_scores: Sequence[float] | None = None,
    threshold: float = 0.0,
) -> dict[str, float]:
    """Shares of 100: `exact`, `f1`, and by the rules of 2.0 those of both sorts.

    `said` is the best text of each question, or nothing for "the context does not say". `doubts` are how much more that
    is believed than the text (the score of nothing less the text's): beyond the threshold nothing is said. The thresholds
    that would have been best are told with their scores; they are to be chosen on validation data."""
    _check_lengths(spans, predictions, no_answer_scores)
    if no_answer_scores is None and all(span.is_answerable for span in spans):
        right = [span.answers for span in spans]
        return _mean_scores(
            _best_over_references(predictions, right, exact_match), _best_over_references(predictions, right, word_f1)
        )
    possible = np.array([span.is_answerable for span in spans])
    # in 2.0 an answer of which nothing is left, such as "the", is none
    right = [tuple(filter(normalize_answer, span.answers)) or ("",) for span in spans]
    raw = (
        _best_over_references(predictions, right, exact_match),
        _best_over_references(predictions, right, word_f1_or_empty),
    )
    believed = raw
    if no_answer_scores is not None:
        silent = np.asarray(no_answer_scores, dtype=np.float64) > threshold
        believed = np.where(silent, ~possible, raw[0]), np.where(silent, ~possible, raw[1])
    told = _mean_scores(*believed)
    for name, of in (("answerable", possible), ("unanswerable", ~possible)):
        if of.any():
            told |= {f"{name}_{key}": value for key, value in _mean_scores(*(part[of] for part in believed)).items()}
    if no_answer_scores is not None:
        for key, scores in zip(("exact_match", "f1"), raw, strict=True):
            best, where = best_threshold(scores, no_answer_scores, possible)
            told |= {f"best_{key}": 100 * best, f"best_{key}_threshold": where}
    return told


def best_threshold(
    scores: FloatArray, no_answer_scores: Sequence[float], possible: NDArray[np.bool_]
) -> tuple[float, float]:
    """The mean score at the best threshold, and the threshold: the lowest of the best, half-way to the next doubt.

    Questions are answered in the order of their doubt; those of equal doubt together, for no threshold divides them."""
    values = np.asarray(no_answer_scores, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    # what is gained by answering a question: its score, less the one that saying nothing has where nothing is right
    gains = np.cumsum((scores - ~possible)[order])
    ends = np.flatnonzero(np.append(np.diff(values[order]) > 0, True))
    totals = np.append(0.0, gains[ends]) + np.sum(~possible)
    place = int(np.argmax(totals))
    edges = [values.min() - 2.0, *values[order][ends], values.max() + 1.0]
    return float(totals[place]) / len(values), _midpoint(float(edges[place]), float(edges[place + 1]))


def _midpoint(low: float, high: float) -> float:
    """A number from `low` on and below `high`, with no more digits than it takes, but two."""
    middle = low + (high - low) / 2
    found = (round(middle, digits) for digits in range(2, 18))
    return next((number for number in found if low <= number < high), low)


def question_word_table(spans: Sequence[QASample], predictions: Sequence[Prediction]) -> str:
    """A table of how well questions are answered, by the word that asks; the most frequent first."""
    rows = [
        {
            "question": bar.name, "F1": _percent(bar.f1), "precision": _percent(bar.precision),
            "recall": _percent(bar.recall), "questions": bar.support,
        }
        for bar in (*_bars_by_word(spans, predictions), _bar("all", spans, predictions))
    ]  # fmt: skip
    return markdown_table(rows)


def draw_question_words(spans: Sequence[QASample], predictions: Sequence[Prediction], path: Path) -> Path:
    return draw_per_label(_bars_by_word(spans, predictions), _bar("all", spans, predictions), "questions", path)


QUESTION_WORDS = ("what", "which", "who", "whom", "whose", "when", "where", "why", "how")


def _question_word(question: str) -> str:
    """The first word that asks."""
    words = re.findall(r"\w+", question.lower())
    return next((word for word in words if word in QUESTION_WORDS), "other")


def _bars_by_word(spans: Sequence[QASample], answers: Sequence[Prediction]) -> list[LabelScore]:
    groups: dict[str, list[int]] = {}
    for number, span in enumerate(spans):
        groups.setdefault(_question_word(span.question), []).append(number)
    bars = [_bar(name, [spans[i] for i in some], [answers[i] for i in some]) for name, some in groups.items()]
    return sorted(bars, key=lambda bar: (-bar.support, bar.name))


def _bar(name: str, spans: Sequence[QASample], answers: Sequence[Prediction]) -> LabelScore:
    """Means over questions of what the words of an answer and those of the right one, the best of several, share."""
    parts = []
    for span, answer in zip(spans, answers, strict=True):
        shares = [_word_scores(str(answer.value), right) for right in span.answers or ("",)]
        parts.append(max(shares))
    f1, precision, recall = np.mean(parts, axis=0).tolist()
    return LabelScore(name, f1, precision, recall, len(spans))


def _word_scores(said: str, right: str) -> tuple[float, float, float]:
    """F1, precision and recall of the words; two texts of which nothing is left are alike."""
    ours, theirs = normalize_answer(said).split(), normalize_answer(right).split()
    if not ours or not theirs:
        alike = float(ours == theirs)
        return alike, alike, alike
    same = sum((Counter(ours) & Counter(theirs)).values())
    return word_f1(said, right), same / len(ours), same / len(theirs)


def _percent(share: float) -> float:
    return round(100 * share, 2)


def _best_over_references(
    said: Sequence[str], right: Sequence[tuple[str, ...]], score: Callable[[str, str], float]
) -> FloatArray:
    """The best over the right answers of each question."""
    return np.array([max(score(text, one) for one in some) for text, some in zip(said, right, strict=True)])


def _mean_scores(exact: FloatArray, f1: FloatArray) -> dict[str, float]:
    return {"exact_match": 100 * float(exact.mean()), "f1": 100 * float(f1.mean())}


def _check_lengths(spans: Sequence[QASample], said: Sequence[str], doubts: Sequence[float] | None) -> None:
    if not spans:
        raise RegardError("No questions to evaluate.")
    if len(said) != len(spans) or (doubts is not None and len(doubts) != len(spans)):
        raise RegardError(f"{len(said)} predictions do not match {len(spans)} questions.")
    if doubts is not None and np.isnan(np.asarray(doubts, dtype=np.float64)).any():
        raise RegardError("The no-answer score is NaN. The model has probably diverged in training.")
