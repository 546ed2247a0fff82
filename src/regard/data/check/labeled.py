"""What is wrong with texts and their classes, or with questions and their choices, before an hour is lost on them.

What must be put right is an error: training would refuse it, or learn from it what nobody wants. "Much" is more than a
tenth of the rows.

| finding       | what it is                                                     | error    | warning | note   |
|---------------|----------------------------------------------------------------|----------|---------|--------|
| unreadable    | a file that cannot be read to its end                          | always   |         |        |
| encoding      | lines that are not UTF-8                                       | always   |         |        |
| format        | other columns than the first row, broken JSON, bad choices     | always   |         |        |
| header        | a first row that looks like the names of columns               | always   |         |        |
| few           | rows                                                           | < 2      | < 100   |        |
| empty         | rows without a text or a label, which are skipped              | if much  | else    |        |
| mojibake      | UTF-8 that was decoded as another encoding                     | if much  | else    |        |
| lost          | U+FFFD where a character was lost                              | if much  | else    |        |
| control       | control characters inside a text                               |          | always  |        |
| markup        | entities and tags of HTML                                      |          |         | always |
| classes       | how often each class, or place of the right choice, occurs     |          |         | always |
| one_class     | there is nothing to tell apart                                 | always   |         |        |
| many_classes  | more than half as many classes as rows: the label is a text    | always   |         |        |
| several       | labels of rows that may have several                           |          |         | always |
| rare          | classes of fewer than five rows                                |          | always  |        |
| imbalance     | one class (or place) is nine tenths of all                     |          | always  |        |
| duplicates    | rows that occur before                                         |          | always  |        |
| contradiction | the same text with another label                               | if much  | else    |        |
| long          | rows of more than data.longest tokens, by estimate             |          | always  |        |
| unknown       | classes of the validation set that are not trained on          | always   |         |        |
| leak          | rows of the validation set that are also trained on            | always   |         |        |
| leak_text     | the same with another label                                    |          | always  |        |
| leak_near     | the same but for case and punctuation                          |          | always  |        |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from regard.data.check.class_counts import ClassReport, Spread
from regard.data.check.findings import SHOWN, Finding, Lengths, Report
from regard.data.check.labeled_survey import Read, TableSurvey
from regard.data.check.pair_survey import Advance, Surveyed, unheard
from regard.data.check.pairs import (
    ESTIMATE,
    MUCH,
    SEEN,
    Kinds,
    Leaks,
    among,
    answered_otherwise,
    counted,
    duplicated,
    leaks,
    named,
    tallied,
)
from regard.data.settings import Data
from regard.data.sources import expand
from regard.data.text.labeled import labelled_of, questions_of

FEW = 100
RARE = 5
MOST = 0.9
"""share of one class from which on saying it always is nearly as good"""
SPREAD = 1000
"""classes up to which their spread is shown: beyond, the label is a text"""
MARKS = 3
"""tokens that stand around texts"""


def check_labelled(
    data: Sequence[str], valid: Sequence[str], columns: Mapping[str, str] | None, settings: Data,
    advance: Advance = unheard,
) -> Report:  # fmt: skip
    """Look at training texts and their classes, and at those of validation against them."""
    return _check("classify", "texts", labelled_of, data, valid, columns, settings, advance)


def check_questions(
    data: Sequence[str], valid: Sequence[str], columns: Mapping[str, str] | None, settings: Data,
    advance: Advance = unheard,
) -> Report:  # fmt: skip
    return _check("choose", "questions", questions_of, data, valid, columns, settings, advance)


def _check(
    task: str, unit: str, read: Read, data: Sequence[str], valid: Sequence[str], columns: Mapping[str, str] | None,
    settings: Data, advance: Advance,
) -> ClassReport:  # fmt: skip
    train, held = TableSurvey(expand(data), columns, read), TableSurvey(expand(valid), columns, read)
    train.read(advance, "training data")
    held.read(advance, "validation data")
    findings: list[Finding] = []
    for name, survey in named(train, held):
        findings += tallied(name, survey.tallies, survey.rows, _KINDS)
        findings += [*too_few(name, unit, survey, bool(held.entries)), *classes(name, task, survey)]
        findings += [*repeated(name, unit, survey), *long(name, unit, survey, settings.longest)]
    findings += [*unknown(task, train, held), *leaks(train, held, _LEAKS)]

    def counts(survey: TableSurvey) -> dict[str, int]:
        told = {"classes": len(survey.classes)} if task == "classify" and survey is train else {}
        return {unit: len(survey), "files": len(survey.entries), **told}

    names = ("told", "longest choice") if task == "choose" else ("text", "pair") if train.paired else ("text",)
    words, characters, tokens = (train.sizes(name) for name in ("words", "characters", "tokens"))
    lengths = Lengths(words, characters, tokens, settings.longest, np.zeros(0, dtype=np.int64), names, unit)
    title = "places of the right choice" if task == "choose" else "classes"
    spreads = (Spread(title, train.classes, held.classes),) if 1 < len(train.classes) <= SPREAD else ()
    return ClassReport(task, counted(train, held, counts), tuple(findings), lengths, spreads=spreads)


_KINDS: Kinds = {
    **{kind: SEEN[kind] for kind in ("unreadable", "encoding", "format", "header")},
    "empty": ("rows in which something is blank", "They are skipped.", "warning", True),
    **{kind: SEEN[kind] for kind in ("mojibake", "lost", "control", "markup")},
}

_LEAKS: Leaks = (
    ("leak", "rows that are also trained on", "error", "Remove them from one of the two: the score would be too good."),
    ("leak_text", "rows that are also trained on, with another label", "warning", "See which label is right."),
    ("leak_near", "rows that are also trained on but for case and punctuation", "warning", "Better remove them from training."),
)  # fmt: skip


def too_few(name: str, unit: str, survey: Surveyed[Any], has_valid: bool) -> Iterable[Finding]:
    many, different = len(survey), len(np.unique(survey.hashes(1)))
    if not many:
        yield Finding(
            "error",
            "few",
            f"{name}there are no usable {unit}",
            0,
            0.0,
            (),
            f"Name files that hold {unit}; what is skipped stands above.",
        )
    elif not name and different < 2 and not has_valid:
        advice = "Add data, or give validation data of its own with --valid."
        yield Finding("error", "few", f"{unit} alike, of which none can be held out", many, 0.0, (), advice)
    elif not name and many < FEW:
        yield Finding("warning", "few", f"{unit} are few", many, 0.0, (), "Hundreds are a start, better thousands.")


def classes(name: str, task: str, survey: TableSurvey) -> Iterable[Finding]:
    """How the classes are spread, or in which place the right choices stand."""
    counts, many = dict(sorted(survey.classes.items(), key=lambda item: -item[1])), len(survey)
    if not many:
        return
    choose = task == "choose"
    what = "places of the right choice, from 0" if choose else "classes"
    yield Finding("note", "classes", f"{name}{what} ({told(counts)})", len(counts), 0.0)
    if survey.several:
        labels = sum(counts.values())
        what = f"{name}labels, {labels / many:.2f} to a row in the mean ({survey.none:,} rows have none)"
        yield Finding("note", "several", what, labels, 0.0)
    if choose:
        counts = counts if len(counts) > 1 else {**counts, "others": 0}
    elif len(counts) == 1:
        yield Finding("error", "one_class", f"{name}there is one class only", 1, 0.0, (), "Nothing can be told apart.")
        return
    elif len(counts) > max(many // 2, 20):
        advice = "Is the right column taken for the label? Say --columns label=NAME."
        yield Finding("error", "many_classes", f"{name}classes, nearly as many as rows", len(counts), 0.0, (), advice)
        return
    first, most = next(iter(counts.items()))
    if most / many > MOST:
        said = f"{name}{'right choices stand in place' if choose else 'rows have the class'} '{first}'"
        advice = f"Always saying that is right {100 * most / many:.0f} times in 100: accuracy says little."
        yield Finding("warning", "imbalance", said, most, most / many, (), advice)
    rare = {label: count for label, count in counts.items() if count < RARE}
    if rare and not choose:
        advice = "A class is learnt from examples. Add some, or join it with another."
        yield Finding(
            "warning", "rare", f"{name}classes of fewer than {RARE} rows ({told(rare)})", len(rare), 0.0, (), advice
        )


def repeated(
    name: str, unit: str, survey: Surveyed[Any], other: str = "another label",
    advice: str = "One of the two is wrong, or the classes overlap.",
) -> Iterable[Finding]:  # fmt: skip
    """Rows that are there twice, and the same texts with another label."""
    findings, once = duplicated(name, unit, survey)
    yield from findings
    others, said = answered_otherwise(survey, once)
    if len(others):
        yield among(
            survey, others, said, "error" if len(others) / survey.rows > MUCH else "warning", "contradiction",
            f"{name}{unit} that have {other} elsewhere", advice,
        )  # fmt: skip


def long(name: str, unit: str, survey: TableSurvey, longest: int) -> Iterable[Finding]:
    tokens = survey.sizes("tokens").sum(axis=1) + MARKS
    over = np.flatnonzero(tokens > longest)
    if len(over):
        what = f"{name}{unit} with more than data.longest={longest:,} tokens, {ESTIMATE}"
        advice = "They are cut in their middle. Raise data.longest if the model's context is longer."
        said = {int(n): f"about {tokens[n]:,} tokens" for n in over[:SHOWN]}
        yield among(survey, over, said, "warning", "long", what, advice)


def unknown(task: str, train: TableSurvey, held: TableSurvey) -> Iterable[Finding]:
    strange = {label: count for label, count in held.classes.items() if label not in train.classes}
    if strange and task == "classify":
        yield Finding(
            "error", "unknown", f"validation: classes that are not trained on ({told(strange)})", len(strange), 0.0, (),
            "Add rows of them to the training data, or leave them out.",
        )  # fmt: skip


def told(counts: Mapping[str, int], most: int = 12) -> str:
    shown = ", ".join(f"{label[:24]}: {count:,}" for label, count in list(counts.items())[:most])
    return shown + (", …" if len(counts) > most else "")
