"""What is wrong with questions and answers: of what is made by a rule how much there is and how long, of files what is wrong
with pairs of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from regard.data.check.findings import SHOWN, Finding, Lengths, Place, Report
from regard.data.check.pair_survey import Advance, unheard
from regard.data.check.pairs import check_pairs
from regard.data.settings import Data
from regard.data.synthetic.algorithmic import Question, questions, recipe_of

NATURAL = ("copies", "alike", "one_language", "turned", "swapped", "ratio")
"""findings that are odd in a translation, and nothing odd here"""


def check_recall(
    data: Sequence[str], valid: Sequence[str], columns: Mapping[str, str] | None, settings: Data,
    advance: Advance = unheard,
) -> Report:  # fmt: skip
    entries = [data] if isinstance(data, str) else [str(entry) for entry in data]
    recipes = [recipe_of(entry) for entry in entries]
    if not all(recipes):
        report = check_pairs(data, valid, columns, settings, advance)
        kept = tuple(finding for finding in report.findings if finding.kind not in NATURAL)
        lengths = replace(report.lengths, outliers=report.lengths.outliers[:0])
        return Report("recall", report.counts, kept, lengths)
    train = [question for entry in entries for question in _read(entry, advance)]
    held = [str(entry) for entry in ([valid] if isinstance(valid, str) else valid)]
    held = held or [str(recipe.judged("valid")) for recipe in recipes if recipe is not None]
    judged = [question for entry in held for question in _read(entry, advance)]
    beyond = sum(bool(question.beyond) for question in judged)
    counts = {"questions": len(train), "validation_questions": len(judged), "validation_longer": beyond}
    findings = [*_long(train, settings.longest), *_leaks(train, judged)]
    words = np.array([[len(side.split()) for side in (q.source, q.target)] for q in train])
    letters = np.array([[len(q.source), len(q.target)] for q in train])
    lengths = Lengths(
        words, letters, _tokens(train), settings.longest, np.zeros(0, np.int64), ("question", "answer"), "questions"
    )
    return Report("recall", counts, tuple(findings), lengths)


def _read(entry: str, advance: Advance) -> list[Question]:
    advance(entry, 0)
    return list(questions(entry))


def _tokens(train: Sequence[Question]) -> np.ndarray:
    """Whole words where there are blanks, else characters, as the tokenizer of the task has them."""
    words = any(" " in question.source for question in train)
    return np.array([[len(side.split() if words else side) for side in (q.source, q.target)] for q in train])


def _long(train: Sequence[Question], longest: int) -> list[Finding]:
    over = [q for q, sizes in zip(train, _tokens(train), strict=True) if sizes.max() > longest]
    if not over:
        return []
    what = f"questions with more than data.longest={longest:,} tokens on a side"
    advice = "Training skips them. Make them shorter, or raise data.longest."
    return [Finding("warning", "long", what, len(over), len(over) / len(train), _places(over), advice)]


def _leaks(train: Sequence[Question], judged: Sequence[Question]) -> list[Finding]:
    known = {question.source for question in train}
    shared = [question for question in judged if question.source in known]
    if not shared:
        return []
    what, advice = "validation: questions that are also trained on", "Give both the same seed, which keeps them apart."
    return [Finding("error", "leak", what, len(shared), len(shared) / len(judged), _places(shared), advice)]


def _places(found: Sequence[Question]) -> tuple[Place, ...]:
    return tuple(Place(q.path, q.line, q.source[:60], "question") for q in found[:SHOWN])
