"""What is wrong with texts and their classes, or with questions and their choices, before an hour is lost on them.

What must be put right is an error: training would refuse it, or learn from it what nobody wants. "Much" is more than a
tenth of the rows.

| finding                  | what it is                                                  | error   | warning | note   |
|--------------------------|-------------------------------------------------------------|---------|---------|--------|
| unreadable               | a file that cannot be read to its end                       | always  |         |        |
| encoding                 | lines that are not UTF-8                                    | always  |         |        |
| format                   | other columns than the first row, broken JSON, bad choices  | always  |         |        |
| header                   | a first row that looks like the names of columns            | always  |         |        |
| few                      | rows                                                        | < 2     | < 100   |        |
| empty                    | rows without a text or a label, which are skipped           | if much | else    |        |
| mojibake                 | UTF-8 that was decoded as another encoding                  | if much | else    |        |
| replacement_character    | U+FFFD where a character was lost                           | if much | else    |        |
| control_character        | control characters inside a text                            |         | always  |        |
| markup                   | entities and tags of HTML                                   |         |         | always |
| classes                  | number of rows of each class                                |         |         | always |
| correct_choice_positions | number of questions by position of the correct choice       |         |         | always |
| single_class             | there is nothing to tell apart                              | always  |         |        |
| too_many_classes         | more than half as many classes as rows: the label is a text | always  |         |        |
| multiple_labels          | labels of rows that may have several                        |         |         | always |
| rare                     | classes of fewer than five rows                             |         | always  |        |
| imbalance                | one class (or place) is nine tenths of all                  |         | always  |        |
| duplicates               | rows that occur before                                      |         | always  |        |
| conflicting_labels       | the same text with another label                            | if much | else    |        |
| long                     | rows of more than data.max_length tokens, by estimate       |         | always  |        |
| unseen_classes           | classes of the validation set that are not trained on       | always  |         |        |
| leak                     | rows of the validation set that are also trained on         | always  |         |        |
| leak_conflicting_labels  | the same with another label                                 |         | always  |        |
| leak_near_duplicate      | the same but for case and punctuation                       |         | always  |        |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from regard.data.check.labeled_survey import EntryReader, TableSurvey
from regard.data.check.pair_survey import DatasetSurvey, ProgressCallback, no_progress
from regard.data.check.pairs import (
    COMMON_FINDINGS,
    HIGH_FRACTION,
    LEAK_ADVICE,
    NEAR_LEAK_ADVICE,
    TOKEN_ESTIMATE_NOTE,
    FindingSpecs,
    LeakSpecs,
    find_conflicts,
    find_duplicates,
    leak_findings,
    named_splits,
    sample_finding,
    split_counts,
    tally_findings,
)
from regard.data.check.report import MAX_LOCATIONS, ClassCounts, Finding, Lengths, Report
from regard.data.settings import DataSettings
from regard.data.sources import expand_patterns
from regard.data.text.labeled import read_labeled, read_questions

MIN_SAMPLES = 100
MIN_CLASS_SAMPLES = 5
MAX_CLASS_FRACTION = 0.9
"""share of one class from which on saying it always is nearly as good"""
MAX_CLASSES = 1000
"""classes up to which their spread is shown: beyond, the label is a text"""
NUM_SPECIAL_TOKENS = 3
"""tokens that stand around texts"""


def check_labeled(
    data: Sequence[str], valid: Sequence[str], columns: Mapping[str, str] | None, settings: DataSettings,
    progress: ProgressCallback = no_progress,
) -> Report:  # fmt: skip
    """Look at training texts and their classes, and at those of validation against them."""
    return _check("classify", "texts", read_labeled, data, valid, columns, settings, progress)


def check_multiple_choice(
    data: Sequence[str], valid: Sequence[str], columns: Mapping[str, str] | None, settings: DataSettings,
    progress: ProgressCallback = no_progress,
) -> Report:  # fmt: skip
    return _check("choose", "questions", read_questions, data, valid, columns, settings, progress)


def _check(
    task: str, unit: str, read: EntryReader, data: Sequence[str], valid: Sequence[str], columns: Mapping[str, str] | None,
    settings: DataSettings, advance: ProgressCallback,
) -> Report:  # fmt: skip
    train, held = TableSurvey(expand_patterns(data), columns, read), TableSurvey(expand_patterns(valid), columns, read)
    train.read(advance, "training data")
    held.read(advance, "validation data")
    findings: list[Finding] = []
    for name, survey in named_splits(train, held):
        findings += tally_findings(name, survey.tallies, survey.rows, _FINDINGS)
        findings += [
            *sample_count_findings(name, unit, survey, bool(held.entries)),
            *class_findings(name, task, survey),
        ]
        findings += [*duplicate_findings(name, unit, survey), *length_findings(name, unit, survey, settings.max_length)]
    findings += [*unknown_class_findings(task, train, held), *leak_findings(train, held, _LEAKS)]

    def counts(survey: TableSurvey) -> dict[str, int]:
        told = {"classes": len(survey.classes)} if task == "classify" and survey is train else {}
        return {unit: len(survey), "files": len(survey.entries), **told}

    names = ("context", "longest_choice") if task == "choose" else ("text", "pair") if train.has_pairs else ("text",)
    words, characters, tokens = (train.sizes(name) for name in ("words", "characters", "tokens"))
    lengths = Lengths(words, characters, tokens, settings.max_length, np.zeros(0, dtype=np.int64), names, unit)
    name = "correct_choice_positions" if task == "choose" else "classes"
    spreads = (ClassCounts(name, train.classes, held.classes),) if 1 < len(train.classes) <= MAX_CLASSES else ()
    return Report(task, split_counts(train, held, counts), tuple(findings), lengths, class_counts=spreads)


_FINDINGS: FindingSpecs = {
    **{kind: COMMON_FINDINGS[kind] for kind in ("unreadable", "encoding", "format", "header")},
    "empty": ("rows with an empty field", "Training skips these rows.", "warning", True),
    **{kind: COMMON_FINDINGS[kind] for kind in ("mojibake", "replacement_character", "control_character", "markup")},
}

_LEAKS: LeakSpecs = (
    ("leak", "rows also present in the training data", "error", LEAK_ADVICE),
    (
        "leak_conflicting_labels", "rows also present in the training data, with another label", "warning",
        "Check which label is correct.",
    ),
    (
        "leak_near_duplicate", "rows also present in the training data, ignoring case and punctuation", "warning",
        NEAR_LEAK_ADVICE,
    ),
)  # fmt: skip


def sample_count_findings(prefix: str, unit: str, survey: DatasetSurvey[Any], has_valid: bool) -> Iterable[Finding]:
    many, different = len(survey), len(np.unique(survey.hashes(1)))
    if not many:
        yield Finding(
            "error",
            "few",
            f"{prefix}no usable {unit}",
            0,
            0.0,
            (),
            f"Pass files with {unit}. Skipped files and rows are listed above.",
        )
    elif not prefix and different < 2 and not has_valid:
        what = f"{unit} with identical content, so no validation split is possible"
        advice = "Add data, or pass separate validation data with --valid."
        yield Finding("error", "few", what, many, 0.0, (), advice)
    elif not prefix and many < MIN_SAMPLES:
        advice = f"Aim for several hundred {unit}, better several thousand."
        yield Finding("warning", "few", f"small dataset, number of {unit}", many, 0.0, (), advice)


def class_findings(prefix: str, task: str, survey: TableSurvey) -> Iterable[Finding]:
    """How the classes are spread, or in which place the right choices stand."""
    counts, many = dict(sorted(survey.classes.items(), key=lambda item: -item[1])), len(survey)
    if not many:
        return
    choose = task == "choose"
    what = "positions of the correct choice, counted from 0" if choose else "classes"
    finding_id = "correct_choice_positions" if choose else "classes"
    yield Finding("note", finding_id, f"{prefix}{what} ({format_counts(counts)})", len(counts), 0.0)
    if survey.num_multilabel:
        labels = sum(counts.values())
        what = f"{prefix}labels, {labels / many:.2f} per row on average ({survey.num_unlabeled:,} rows without a label)"
        yield Finding("note", "multiple_labels", what, labels, 0.0)
    if choose:
        counts = counts if len(counts) > 1 else {**counts, "others": 0}
    elif len(counts) == 1:
        advice = "Classification needs at least two classes."
        yield Finding("error", "single_class", f"{prefix}too few classes", 1, 0.0, (), advice)
        return
    elif len(counts) > max(many // 2, 20):
        what = f"{prefix}too many classes (more than half the number of samples)"
        advice = "Is the label column correct? Select the label column with --columns label=NAME."
        yield Finding("error", "too_many_classes", what, len(counts), 0.0, (), advice)
        return
    first, most = next(iter(counts.items()))
    if most / many > MAX_CLASS_FRACTION:
        said = (
            "the correct choice is unevenly distributed: questions with the correct choice at position"
            if choose
            else "class imbalance, samples of class"
        )
        advice = f"Predicting only '{first}' scores {100 * most / many:.0f} % accuracy."
        advice += "" if choose else " Check macro-F1."
        yield Finding("warning", "imbalance", f"{prefix}{said} '{first}'", most, most / many, (), advice)
    rare = {label: count for label, count in counts.items() if count < MIN_CLASS_SAMPLES}
    if rare and not choose:
        advice = "Add samples, or merge rare classes with other classes."
        yield Finding(
            "warning",
            "rare",
            f"{prefix}classes with fewer than {MIN_CLASS_SAMPLES} samples ({format_counts(rare)})",
            len(rare),
            0.0,
            (),
            advice,
        )


def duplicate_findings(
    prefix: str, unit: str, survey: DatasetSurvey[Any], conflict: str = "different labels",
    advice: str = "Correct the wrong labels, or merge overlapping classes.",
) -> Iterable[Finding]:  # fmt: skip
    """Rows that are there twice, and the same texts with another label."""
    findings, once = find_duplicates(prefix, unit, survey)
    yield from findings
    others, said = find_conflicts(survey, once)
    if len(others):
        yield sample_finding(
            survey, others, said, "error" if len(others) / survey.rows > HIGH_FRACTION else "warning", "conflicting_labels",
            f"{prefix}identical {unit} with {conflict}", advice,
        )  # fmt: skip


def length_findings(prefix: str, unit: str, survey: TableSurvey, max_length: int) -> Iterable[Finding]:
    tokens = survey.sizes("tokens").sum(axis=1) + NUM_SPECIAL_TOKENS
    over = np.flatnonzero(tokens > max_length)
    if len(over):
        what = f"{prefix}{unit} longer than data.max_length={max_length:,} tokens {TOKEN_ESTIMATE_NOTE}"
        advice = (
            f"Training truncates long {unit} in the middle. If the model's context is longer, raise data.max_length."
        )
        said = {int(n): f"about {tokens[n]:,} tokens" for n in over[:MAX_LOCATIONS]}
        yield sample_finding(survey, over, said, "warning", "long", what, advice)


def unknown_class_findings(task: str, train: TableSurvey, valid: TableSurvey) -> Iterable[Finding]:
    strange = {label: count for label, count in valid.classes.items() if label not in train.classes}
    if strange and task == "classify":
        yield Finding(
            "error",
            "unseen_classes",
            f"validation: classes absent from the training data ({format_counts(strange)})",
            len(strange),
            0.0,
            (),
            "Add samples of these classes to the training data, or remove these classes from the validation data.",
        )


def format_counts(counts: Mapping[str, int], limit: int = 12) -> str:
    shown = ", ".join(f"{label[:24]}: {count:,}" for label, count in list(counts.items())[:limit])
    return shown + (", …" if len(counts) > limit else "")
