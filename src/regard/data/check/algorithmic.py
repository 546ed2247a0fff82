"""What is wrong with questions and answers: of what is made by a rule how much there is and how long, of files what is wrong
with pairs of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from regard.data.check.pair_survey import ProgressCallback, no_progress
from regard.data.check.pairs import check_pairs
from regard.data.check.report import MAX_LOCATIONS, Finding, Lengths, Location, Report
from regard.data.settings import DataSettings
from regard.data.synthetic.algorithmic import AlgorithmicQuestion, generate_questions, parse_recipe

IGNORED_FINDINGS = (
    "identical_sides",
    "indistinguishable_languages",
    "same_language",
    "swapped_file",
    "swapped",
    "length_ratio",
)
"""findings that are odd in a translation, and nothing odd here"""


def check_algorithmic(
    data: Sequence[str], valid: Sequence[str], columns: Mapping[str, str] | None, settings: DataSettings,
    progress: ProgressCallback = no_progress,
) -> Report:  # fmt: skip
    entries = [data] if isinstance(data, str) else [str(entry) for entry in data]
    recipes = [parse_recipe(entry) for entry in entries]
    if not all(recipes):
        report = check_pairs(data, valid, columns, settings, progress)
        kept = tuple(finding for finding in report.findings if finding.id not in IGNORED_FINDINGS)
        lengths = replace(report.lengths, outliers=report.lengths.outliers[:0])
        return Report("algorithmic", report.counts, kept, lengths)
    train = [question for entry in entries for question in _generate(entry, progress)]
    held = [str(entry) for entry in ([valid] if isinstance(valid, str) else valid)]
    held = held or [str(recipe.for_split("valid")) for recipe in recipes if recipe is not None]
    judged = [question for entry in held for question in _generate(entry, progress)]
    beyond = sum(bool(question.is_longer) for question in judged)
    counts = {"questions": len(train), "validation_questions": len(judged), "validation_longer_questions": beyond}
    findings = [*_length_findings(train, settings.max_length), *_leak_findings(train, judged)]
    words = np.array([[len(side.split()) for side in (q.source, q.target)] for q in train])
    letters = np.array([[len(q.source), len(q.target)] for q in train])
    lengths = Lengths(
        words,
        letters,
        _token_counts(train),
        settings.max_length,
        np.zeros(0, np.int64),
        ("question", "answer"),
        "questions",
    )
    return Report("algorithmic", counts, tuple(findings), lengths)


def _generate(entry: str, advance: ProgressCallback) -> list[AlgorithmicQuestion]:
    advance(f"generating {entry}", 0)
    return list(generate_questions(entry))


def _token_counts(train: Sequence[AlgorithmicQuestion]) -> np.ndarray:
    """Whole words where there are blanks, else characters, as the tokenizer of the task has them."""
    words = any(" " in question.source for question in train)
    return np.array([[len(side.split() if words else side) for side in (q.source, q.target)] for q in train])


def _length_findings(train: Sequence[AlgorithmicQuestion], longest: int) -> list[Finding]:
    over = [q for q, sizes in zip(train, _token_counts(train), strict=True) if sizes.max() > longest]
    if not over:
        return []
    what = f"questions with a side longer than data.max_length={longest:,} tokens"
    advice = "Training skips these questions. Generate shorter questions, or raise data.max_length."
    return [Finding("warning", "long", what, len(over), len(over) / len(train), _locations(over), advice)]


def _leak_findings(train: Sequence[AlgorithmicQuestion], judged: Sequence[AlgorithmicQuestion]) -> list[Finding]:
    known = {question.source for question in train}
    shared = [question for question in judged if question.source in known]
    if not shared:
        return []
    what = "validation: questions also present in the training data"
    advice = "Use the training seed and part=valid for validation: splits with the same seed do not overlap."
    return [Finding("error", "leak", what, len(shared), len(shared) / len(judged), _locations(shared), advice)]


def _locations(found: Sequence[AlgorithmicQuestion]) -> tuple[Location, ...]:
    return tuple(Location(q.path, q.line, q.source[:60], "question") for q in found[:MAX_LOCATIONS])
