"""Labeled texts and multiple-choice questions from files with columns: tables, JSONL, Parquet."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from regard.data.reader import Reader, with_target
from regard.data.text.files import ErrorHandler, raise_error
from regard.data.text.formats import has_column_names, ignore_error, read_header
from regard.data.text.tables import (
    ColumnSpec,
    InputIterator,
    SkippedRow,
    format_list,
    iterate_all,
    iterate_rows,
    make_samples,
    match_columns,
    report_incomplete,
    uses_positions,
)
from regard.errors import DataError

LABELED_COLUMNS = ("text", "pair", "label", "labels")
QUESTION_COLUMNS = ("context", "question", "choices", "label")
"""Column names accepted by --columns."""

NON_TEXT_COLUMNS = ("id", "idx", "index", "guid", "pair")
"""Columns that are never used as the text."""
CHOICE_COLUMN = re.compile(r"choice\d+")
LABEL_SEPARATOR = "|"
"""Separator of several labels in one cell."""
PROBE_ROWS = 50
"""Rows examined to detect lists of labels."""


@dataclass(frozen=True, slots=True)
class LabeledText:
    """A text or text pair with one or several labels, and its file and line."""

    text: str
    text_pair: str
    """second text of a pair, else empty"""
    label: str
    """empty for unlabeled inputs; several labels are joined by commas"""
    path: str = ""
    line: int = 0
    label_set: tuple[str, ...] | None = None
    """labels of multi-label data, possibly empty; None for single-label data"""

    def __post_init__(self) -> None:
        if self.label_set is not None:  # a list if loaded from JSON
            object.__setattr__(self, "label_set", tuple(self.label_set))

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.label,) if self.label_set is None else self.label_set


@dataclass(frozen=True, slots=True)
class ChoiceSample:
    """A multiple-choice question: context, question, choices and the correct choice, with file and line."""

    context: str
    question: str
    """empty: the choices continue the context"""
    choices: tuple[str, ...]
    label: int = -1
    """index of the correct choice, from 0; -1 for unlabeled inputs"""
    path: str = ""
    line: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", tuple(self.choices))  # a list if loaded from JSON

    @property
    def prompt(self) -> str:
        return f"{self.context} {self.question}".strip()


def iterate_labeled(
    data: Sequence[str], columns: Mapping[str, str] | None = None
) -> Iterator[LabeledText | SkippedRow]:
    """Yield the labeled texts of all files and patterns in input order."""
    advice = "Each row needs a text and a label."
    return _check_consistent_labels(iterate_all(data, lambda entry: read_labeled(entry, columns), "texts", advice))


def iterate_questions(
    data: Sequence[str], columns: Mapping[str, str] | None = None
) -> Iterator[ChoiceSample | SkippedRow]:
    advice = "Each row needs a context, choices and the label of the correct choice."
    return iterate_all(data, lambda entry: read_questions(entry, columns), "questions", advice)


def read_labeled(
    entry: str,
    columns: Mapping[str, str] | None = None,
    on_error: ErrorHandler = raise_error,
    inputs_only: bool = False,
) -> Iterator[LabeledText | SkippedRow]:
    """Yield the labeled texts of one file with columns `text`, `label` and optionally `pair`.

    The only text column next to `label` may have any name. Multi-label data has a column `labels`: a list, or labels
    separated by |; a list in `label` is also accepted. In a table of two columns without a header, the text is first. Only
    surrounding whitespace is removed from texts. With `inputs_only`, labels are not read and may be missing."""
    ColumnSpec(("text", "label"), columns, ("pair", "labels"))  # raises for an unknown column choice
    if columns is not None and {"label", "labels"} <= columns.keys():
        advice = "Use labels=NAME for texts with several labels."
        raise DataError("--columns accepts either label or labels, not both.", entry, advice=advice)
    if inputs_only:
        needed, chosen = _input_columns(entry, columns)
    else:
        label, chosen = _labeled_columns(entry, columns)
        needed = ("text", label)
    numbers = ("label", "labels")
    rows = iterate_rows(entry, needed, chosen, on_error, optional=("pair",), numeric=numbers)
    return make_samples(entry, rows, lambda line, row: _make_labeled(entry, line, row, inputs_only), on_error)


def read_questions(
    entry: str,
    columns: Mapping[str, str] | None = None,
    on_error: ErrorHandler = raise_error,
    inputs_only: bool = False,
) -> Iterator[ChoiceSample | SkippedRow]:
    """Yield the questions of one file. `choices` is a list, or columns choice0, choice1, …; `label` is the index of the
    correct choice from 0, its letter, or its text.

    In a column `answer`, a number that equals the text of a choice selects that choice. With `inputs_only`, the label is
    not read and may be missing."""
    names, chosen = _question_columns(entry, columns)
    if inputs_only:
        names = [name for name in names if name != "label"]
        chosen = None if chosen is None else {name: column for name, column in chosen.items() if name != "label"}
    needed = tuple(name for name in names if name not in ("question", *_optional_choices(names)))
    by_text = (chosen or {}).get("label") == "answer"

    rows = iterate_rows(entry, needed, chosen, on_error, optional=tuple(names), numeric=("label",))
    return make_samples(entry, rows, lambda line, row: _make_question(entry, line, row, by_text, inputs_only), on_error)


def read_text_inputs(entry: str, columns: Mapping[str, str] | None, on_error: ErrorHandler) -> InputIterator:
    """Yield texts without labels, or (text, second text) for pairs."""
    for line, item in report_incomplete(read_labeled(entry, columns, on_error, inputs_only=True), on_error):
        yield line, item and ((item.text, item.text_pair) if item.text_pair else item.text)


# -- labeled texts


def _check_consistent_labels(items: Iterator[LabeledText | SkippedRow]) -> Iterator[LabeledText | SkippedRow]:
    """Yield all items; raise `DataError` if single-label and multi-label files are mixed."""
    first: LabeledText | None = None
    for item in items:
        if isinstance(item, LabeledText):
            first = first or item
            if (item.label_set is None) != (first.label_set is None):
                formats = ("one label", "several labels")
                label_format, first_format = formats if item.label_set is None else formats[::-1]
                problem = f"mixed label formats: {label_format} here, {first_format} in {first.path}."
                advice = "Use the column label in all files, or labels in all files (a list, or labels separated by |)."
                raise DataError(problem, item.path, item.line, advice)
        yield item


def _labeled_columns(entry: str, columns: Mapping[str, str] | None) -> tuple[str, Mapping[str, str] | None]:
    """Name of the label column (`label` or `labels`), and the column names: as chosen by the user, else detected."""
    names = read_header(entry)
    chosen = match_columns(names, {name: (name,) for name in LABELED_COLUMNS}, columns)
    multi_label = chosen.pop("labels", None)
    if multi_label is not None and "label" in chosen and "labels" not in (columns or {}):
        multi_label = None
    if "label" in chosen and multi_label is None and _holds_lists(entry, chosen["label"]):
        multi_label = chosen["label"]
    if multi_label is not None:
        chosen = {**{name: column for name, column in chosen.items() if name != "label"}, "labels": multi_label}
    elif "label" not in chosen:
        return "label", columns
    return "label" if multi_label is None else "labels", _add_text_column(entry, chosen, names)


def _holds_lists(entry: str, column: str) -> bool:
    """True if one of the first `PROBE_ROWS` rows has a list in this column."""
    if not has_column_names(entry):
        return False
    rows = iterate_rows(entry, ("labels",), {"labels": column}, ignore_error, numeric=("labels",))
    return any(isinstance(row["labels"], list) for _, row in islice(rows, PROBE_ROWS))


def _add_text_column(entry: str, chosen: Mapping[str, str], names: Mapping[str, bool]) -> dict[str, str]:
    """Column names, with the only remaining text column as `text` if none was chosen."""
    if "text" in chosen or uses_positions(chosen, names):
        return _renamed_columns(chosen)
    others = [
        name
        for name, text in names.items()
        if text and name not in chosen.values() and name.lower() not in NON_TEXT_COLUMNS
    ]
    if len(others) != 1:
        advice = f"Pass --columns text=NAME, and pair=NAME for a second text (available: {format_list(names)})."
        raise DataError("no column is named 'text'.", entry, 1, advice)
    return _renamed_columns({**chosen, "text": others[0]})


def _input_columns(entry: str, columns: Mapping[str, str] | None) -> tuple[tuple[str, ...], Mapping[str, str] | None]:
    """Required columns of unlabeled inputs, and the column names in the file."""
    names = read_header(entry)
    matched = match_columns(names, {name: (name,) for name in LABELED_COLUMNS}, columns)
    texts = [name for name, text in names.items() if text and name.lower() not in NON_TEXT_COLUMNS]
    if {"label", "labels"} & matched.keys():
        chosen = _labeled_columns(entry, columns)[1] or {}
    elif "text" in matched:
        chosen = _renamed_columns(matched)
    elif has_column_names(entry) and len(texts) == 1:
        chosen = _renamed_columns({**matched, "text": texts[0]})
    else:  # a table without a header, possibly with labels
        return ("text", "label") if len(names) == 2 and not columns else ("text",), columns
    return ("text",), {name: column for name, column in chosen.items() if name not in ("label", "labels")}


def _renamed_columns(chosen: Mapping[str, str]) -> dict[str, str]:
    """Columns whose name in the file differs. Others are found by name, and optional columns may be missing in a row."""
    return {name: column for name, column in chosen.items() if name != column}


def _make_labeled(
    path: str, line: int, row: Mapping[str, Any], inputs_only: bool = False
) -> LabeledText | SkippedRow | None:
    if "labels" in row:
        return _make_multilabel(path, line, row)
    text, label = row["text"].strip(), "" if inputs_only else row["label"].strip()
    second = row.get("pair", "").strip()
    if not text and not label and not second:
        return None
    missing = [name for name, value in (("text", text), ("label", inputs_only or label)) if not value]
    missing += ["second text"] * ("pair" in row and not second)
    if missing:
        return SkippedRow(path, line, f"missing {' and '.join(missing)} for: {(text or second or label)[:60]}")
    return LabeledText(text, second, label, path, line)


def _make_multilabel(path: str, line: int, row: Mapping[str, Any]) -> LabeledText | SkippedRow | None:
    """Multi-label sample; an empty label set is valid."""
    text, second, value = row["text"].strip(), row.get("pair", "").strip(), row["labels"]
    items = value.split(LABEL_SEPARATOR) if isinstance(value, str) else value
    labels = tuple(dict.fromkeys(label for label in map(str.strip, items) if label))
    if not text and not second and not labels:
        return None
    missing = ["text"] * (not text) + ["second text"] * ("pair" in row and not second)
    if missing:
        return SkippedRow(path, line, f"missing {' and '.join(missing)} for: {(text or second or labels[0])[:60]}")
    return LabeledText(text, second, ", ".join(sorted(labels)), path, line, labels)


# -- multiple-choice questions


def _question_columns(entry: str, columns: Mapping[str, str] | None) -> tuple[list[str], dict[str, str] | None]:
    """Columns to read, and the column names in the file."""
    names = read_header(entry)
    chosen = match_columns(names, {name: (name,) for name in (*QUESTION_COLUMNS, "answer")}, columns)
    question = ["question"]
    choice_columns = [name for name in names if CHOICE_COLUMN.fullmatch(name.lower())] or [
        n for n in chosen if CHOICE_COLUMN.fullmatch(n)
    ]
    answer = chosen.pop("answer", None)
    if "label" not in chosen and answer is not None:
        chosen["label"] = answer
    if "context" not in chosen and "question" in chosen:
        chosen["context"] = chosen.pop("question")
        question = []
    columns_to_read = ["context", "label"]
    if "choices" in chosen or not choice_columns:
        columns_to_read.append("choices")
    else:
        columns_to_read += sorted((name.lower() for name in choice_columns), key=lambda name: int(name[6:]))
        chosen |= {name.lower(): name for name in choice_columns if name.lower() not in chosen}
        if columns_to_read[2] != "choice0":
            advice = "Number the choice columns from choice0, because labels also start at 0."
            raise DataError(
                f"expected 'choice0' as the first choice column, got '{columns_to_read[2]}'.", entry, 1, advice
            )
    if chosen and not uses_positions(chosen, names):
        for name, form in (("context", ""), (columns_to_read[2], " (a list), and none is named choice0, choice1, …")):
            if name not in chosen:
                advice = f"Pass --columns {name}=NAME (available: {format_list(names)})."
                raise DataError(f"no column is named '{name}'{form}.", entry, 1, advice)
    return [*columns_to_read, *question], _renamed_columns(chosen) if chosen else None


def _optional_choices(names: Iterable[str]) -> list[str]:
    """Choice columns after the second, which may be empty in a row."""
    return [name for name in names if CHOICE_COLUMN.fullmatch(name) and int(name[6:]) > 1]


def _make_question(
    path: str, line: int, row: Mapping[str, Any], by_text: bool, inputs_only: bool = False
) -> ChoiceSample | SkippedRow | None:
    context, label = row["context"].strip(), "" if inputs_only else row["label"].strip()
    question = row.get("question", "").strip()
    listed = row.get("choices", [value for name, value in row.items() if CHOICE_COLUMN.fullmatch(name)])
    if isinstance(listed, str) and listed.strip():
        raise DataError("expected a list in 'choices', got one text.", path, line, 'Write choices as ["…", "…"].')
    choices = [choice.strip() for choice in listed]
    while choices and not choices[-1] and "choices" not in row:
        choices.pop()  # empty cells of rows with fewer choices
    if not any((context, question, label, *choices)):
        return None
    if not (context or question) or not (label or inputs_only) or not choices:
        missing = "context" if not (context or question) else "label" if not (label or inputs_only) else "choices"
        return SkippedRow(path, line, f"missing {missing} for: {(context or question or label)[:60]}")
    if len(choices) < 2:
        raise DataError("expected at least 2 choices, got 1.", path, line)
    if not all(choices):
        raise DataError(f"choice {choices.index('')} is empty.", path, line)
    if len(set(choices)) < len(choices):
        duplicate = next(choice for choice in choices if choices.count(choice) > 1)
        raise DataError(f"choice '{duplicate[:40]}' is listed more than once.", path, line)
    correct = -1 if inputs_only else _correct_choice(path, line, label, choices, by_text)
    return ChoiceSample(context, question, tuple(choices), correct, path, line)


def _correct_choice(path: str, line: int, label: str, choices: Sequence[str], by_text: bool) -> int:
    places = {str(place): place for place in range(len(choices))}
    texts = {choice: place for place, choice in enumerate(choices)}
    letters = {chr(ord("A") + place): place for place in range(min(len(choices), 26))}
    for table in (texts, places, letters) if by_text else (places, texts, letters):
        if label in table:
            return table[label]
    if label.lstrip("-").isdigit():
        raise DataError(f"label must be between 0 and {len(choices) - 1}, got {label}.", path, line)
    problem = f"label '{label[:40]}' does not match any of the {len(choices)} choices."
    raise DataError(problem, path, line, "Use the number (from 0), the letter or the text of a choice.")


def _labeled_texts(sample: LabeledText) -> tuple[str, ...]:
    return (sample.text, sample.text_pair) if sample.text_pair else (sample.text,)


LABELED = Reader(
    unit="texts",
    columns=LABELED_COLUMNS,
    sample_type=LabeledText,
    samples=iterate_labeled,
    inputs=read_text_inputs,
    split_key=lambda sample: f"{sample.text}\0{sample.text_pair}",
    contents=lambda sample: with_target(
        _labeled_texts(sample), sample.label if sample.label_set is None else json.dumps(sorted(sample.label_set))
    ),
    texts=_labeled_texts,
    labels=lambda sample: sample.labels,
)
QUESTIONS = Reader(
    unit="questions",
    columns=QUESTION_COLUMNS,
    sample_type=ChoiceSample,
    samples=iterate_questions,
    inputs=lambda entry, columns, complain: report_incomplete(
        read_questions(entry, columns, complain, inputs_only=True), complain
    ),
    split_key=lambda sample: "\0".join((sample.prompt, *sample.choices)),
    contents=lambda sample: with_target((sample.prompt, *sample.choices), str(sample.label)),
    texts=lambda sample: (sample.prompt, *sample.choices),
)
"""Multiple-choice questions."""
