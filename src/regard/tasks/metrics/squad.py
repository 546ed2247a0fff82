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

import numpy as np
from numpy.typing import NDArray

from regard.data.text.qa import QASample
from regard.draw.charts import LabelScore
from regard.errors import RegardError
from regard.types import Prediction

FloatArray = NDArray[np.float64]

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Normalized text for the comparison."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def word_scores(prediction: str, reference: str) -> tuple[float, float, float]:
    """F1, precision and recall of the words; 1 if both texts are empty after normalization."""
    ours, theirs = normalize_answer(prediction).split(), normalize_answer(reference).split()
    same = sum((Counter(ours) & Counter(theirs)).values())
    if not same:
        alike = float(ours == theirs)
        return alike, alike, alike
    precision, recall = same / len(ours), same / len(theirs)
    return 2 * precision * recall / (precision + recall), precision, recall


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
    if not spans:
        raise RegardError("No questions to evaluate.")
    if len(predictions) != len(spans) or (no_answer_scores is not None and len(no_answer_scores) != len(spans)):
        raise RegardError(f"{len(predictions)} predictions do not match {len(spans)} questions.")
    doubts = None if no_answer_scores is None else np.asarray(no_answer_scores, dtype=np.float64)
    if doubts is not None and np.isnan(doubts).any():
        raise RegardError("The no-answer score is NaN. The model has probably diverged in training.")
    possible = np.array([span.is_answerable for span in spans])
    first_rules = doubts is None and bool(possible.all())
    # in 2.0 references that are empty after normalization, such as "the", are removed
    references = [
        span.answers if first_rules else tuple(filter(normalize_answer, span.answers)) or ("",) for span in spans
    ]

    def best(score: Callable[[str, str], float]) -> FloatArray:
        """Best score over the references of each question."""
        pairs = zip(predictions, references, strict=True)
        return np.array([max(score(text, one) for one in some) for text, some in pairs])

    def f1(text: str, reference: str) -> float:
        """F1 of the words; in 1.1 texts that are empty after normalization do not match."""
        return word_scores(text, reference)[0] if normalize_answer(text) or not first_rules else 0.0

    raw = {
        "exact_match": best(lambda text, one: float(normalize_answer(text) == normalize_answer(one))),
        "f1": best(f1),
    }
    silent = np.zeros(len(spans), bool) if doubts is None else doubts > threshold
    scores = {name: np.where(silent, ~possible, values) for name, values in raw.items()}
    found = {name: 100 * float(values.mean()) for name, values in scores.items()}
    if first_rules:
        return found
    for kind, of in (("answerable", possible), ("unanswerable", ~possible)):
        if of.any():
            found |= {f"{kind}_{name}": 100 * float(values[of].mean()) for name, values in scores.items()}
    if doubts is not None:
        for name, values in raw.items():
            highest, where = best_threshold(values, doubts, possible)
            found |= {f"best_{name}": 100 * highest, f"best_{name}_threshold": where}
    return found


def best_threshold(
    scores: FloatArray, no_answer_scores: Sequence[float] | FloatArray, possible: NDArray[np.bool_]
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
    low, high = [float(edge) for edge in (values.min() - 2.0, *values[order][ends], values.max() + 1.0)][
        place : place + 2
    ]
    # a value in [low, high) with as few digits as possible, at least two
    rounded = (round(low + (high - low) / 2, digits) for digits in range(2, 18))
    return float(totals[place]) / len(values), next((number for number in rounded if low <= number < high), low)


QUESTION_WORDS = ("what", "which", "who", "whom", "whose", "when", "where", "why", "how")


def question_word_scores(spans: Sequence[QASample], predictions: Sequence[Prediction]) -> list[LabelScore]:
    """Average F1, precision and recall of the words by question word, most frequent first, and of all questions; the best of
    several references counts."""
    groups: dict[str, list[tuple[float, float, float]]] = {}
    whole = []
    for span, prediction in zip(spans, predictions, strict=True):
        word = next((word for word in re.findall(r"\w+", span.question.lower()) if word in QUESTION_WORDS), "other")
        whole.append(max(word_scores(str(prediction.value), reference) for reference in span.answers or ("",)))
        groups.setdefault(word, []).append(whole[-1])
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    bars = []
    for name, scores in (*ordered, ("all", whole)):
        f1, precision, recall = np.mean(scores, axis=0).tolist()
        bars.append(LabelScore(name, f1, precision, recall, len(scores)))
    return bars
