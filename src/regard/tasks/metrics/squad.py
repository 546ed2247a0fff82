"""Exact match and F1 of extractive question answering, as in SQuAD 1.1 and 2.0.

Texts are lowercased and compared without punctuation, the articles a, an, the, and repeated spaces. F1 counts common words.
The best of several references counts. The rules of 2.0 apply if there are unanswerable questions or if the model may predict
no answer: the empty text is correct only for unanswerable questions, scores are also reported separately for answerable and
unanswerable questions, and a threshold decides between the best answer and no answer."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.data.text.qa import QASample
from regard.draw.charts import LabelScore, draw_per_label
from regard.draw.text import markdown_table
from regard.errors import RegardError
from regard.types import Prediction

FloatArray = NDArray[np.float64]

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Normalized text for the comparison."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction: str, reference: str) -> float:
    return float(normalize_answer(prediction) == normalize_answer(reference))


def word_f1(prediction: str, reference: str) -> float:
    """F1 of the words; 0 without common words, even if both texts are empty after normalization (1.1)."""
    ours, theirs = normalize_answer(prediction).split(), normalize_answer(reference).split()
    same = sum((Counter(ours) & Counter(theirs)).values())
    if not same:
        return 0.0
    precision, recall = same / len(ours), same / len(theirs)
    return 2 * precision * recall / (precision + recall)


def word_f1_or_empty(prediction: str, reference: str) -> float:
    """F1 of the words; 1 if both texts are empty after normalization (2.0)."""
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
    """Exact match and F1 in percent, and with the rules of 2.0 also for answerable and unanswerable questions.

    `predictions`: best text of each question, or an empty string for no answer. `no_answer_scores`: score of no answer minus
    score of the best text; above the threshold the prediction is empty. The best thresholds are returned with their scores
    and should be selected on validation data."""
    _check_lengths(spans, predictions, no_answer_scores)
    if no_answer_scores is None and all(span.is_answerable for span in spans):
        right = [span.answers for span in spans]
        return _mean_scores(
            _best_over_references(predictions, right, exact_match), _best_over_references(predictions, right, word_f1)
        )
    possible = np.array([span.is_answerable for span in spans])
    # in 2.0 references that are empty after normalization, such as "the", are removed
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
    """Average score at the best threshold, and the threshold: the lowest best one, halfway to the next no-answer score.

    Questions are sorted by no-answer score; no threshold separates questions with equal scores."""
    values = np.asarray(no_answer_scores, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    # gain of answering a question: its score, minus 1 if the question is unanswerable
    gains = np.cumsum((scores - ~possible)[order])
    ends = np.flatnonzero(np.append(np.diff(values[order]) > 0, True))
    totals = np.append(0.0, gains[ends]) + np.sum(~possible)
    place = int(np.argmax(totals))
    edges = [values.min() - 2.0, *values[order][ends], values.max() + 1.0]
    return float(totals[place]) / len(values), _midpoint(float(edges[place]), float(edges[place + 1]))


def _midpoint(low: float, high: float) -> float:
    """A value in [low, high) with as few digits as possible, at least two."""
    middle = low + (high - low) / 2
    found = (round(middle, digits) for digits in range(2, 18))
    return next((number for number in found if low <= number < high), low)


def question_word_table(spans: Sequence[QASample], predictions: Sequence[Prediction]) -> str:
    """Table of metrics by question word, most frequent first."""
    rows = [
        {
            "question": bar.name,
            "F1": _percent(bar.f1),
            "precision": _percent(bar.precision),
            "recall": _percent(bar.recall),
            "questions": bar.support,
        }
        for bar in (*_bars_by_word(spans, predictions), _bar("all", spans, predictions))
    ]
    return markdown_table(rows)


def draw_question_words(spans: Sequence[QASample], predictions: Sequence[Prediction], path: Path) -> Path:
    return draw_per_label(_bars_by_word(spans, predictions), _bar("all", spans, predictions), "questions", path)


QUESTION_WORDS = ("what", "which", "who", "whom", "whose", "when", "where", "why", "how")


def _question_word(question: str) -> str:
    """First question word of a question."""
    words = re.findall(r"\w+", question.lower())
    return next((word for word in words if word in QUESTION_WORDS), "other")


def _bars_by_word(spans: Sequence[QASample], answers: Sequence[Prediction]) -> list[LabelScore]:
    groups: dict[str, list[int]] = {}
    for number, span in enumerate(spans):
        groups.setdefault(_question_word(span.question), []).append(number)
    bars = [_bar(name, [spans[i] for i in some], [answers[i] for i in some]) for name, some in groups.items()]
    return sorted(bars, key=lambda bar: (-bar.support, bar.name))


def _bar(name: str, spans: Sequence[QASample], answers: Sequence[Prediction]) -> LabelScore:
    """Average F1, precision and recall of the words over questions, with the best of several references."""
    parts = []
    for span, answer in zip(spans, answers, strict=True):
        shares = [_word_scores(str(answer.value), right) for right in span.answers or ("",)]
        parts.append(max(shares))
    f1, precision, recall = np.mean(parts, axis=0).tolist()
    return LabelScore(name, f1, precision, recall, len(spans))


def _word_scores(said: str, right: str) -> tuple[float, float, float]:
    """F1, precision and recall of the words; 1 if both texts are empty after normalization."""
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
    """Best score over the references of each question."""
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
