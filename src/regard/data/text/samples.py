"""Samples of text tasks from tables, JSONL and Parquet: text pairs, labeled texts and multiple-choice questions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from regard.data.reader import Reader, with_target
from regard.data.text import tables
from regard.data.text.files import Columns, ErrorHandler, existing_file, read_lines, split_parallel
from regard.data.text.formats import JSON_SUFFIXES, Row, file_format, has_column_names, read_header, reject_document
from regard.errors import DataError

PAIR_COLUMNS = (tables.SIDES, ("anchor", "positive"), ("question", "answer"), ("text", "pair"), ("a", "b"))
"""Names of the two columns for contrastive training."""
SIMILARITY_COLUMNS = ("label", "score", "similarity")  # A column of this name indicates that some pairs are negative
LABELED_COLUMNS = ("text", "pair", "label", "labels")
QUESTION_COLUMNS = ("context", "question", "choices", "label")  # Column names accepted by --columns
NON_TEXT_COLUMNS = ("id", "idx", "index", "guid", "pair")  # Columns that are never used as the text
CHOICE_COLUMN = re.compile(r"choice\d+")
LABEL_SEPARATOR = "|"  # Separator of several labels in one cell
PROBE_ROWS = 50  # Rows examined to detect lists of labels


@dataclass(frozen=True, slots=True)
class Pair:
    """A source and a target text, with file and line."""

    source: str
    target: str
    path: str
    line: int


@dataclass(frozen=True, slots=True)
class LabeledText:
    """A text or text pair with one or several labels, and its file and line."""

    text: str
    text_pair: str  # second text of a pair, else empty
    label: str  # empty for unlabeled inputs; several labels are joined by commas
    path: str = ""
    line: int = 0
    label_set: tuple[str, ...] | None = None  # labels of multi-label data, possibly empty; None for single-label data

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.label,) if self.label_set is None else self.label_set

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.text, self.text_pair) if self.text_pair else (self.text,)


@dataclass(frozen=True, slots=True)
class ChoiceSample:
    """A multiple-choice question: context, question, choices and the correct choice, with file and line."""

    context: str
    question: str  # empty: the choices continue the context
    choices: tuple[str, ...]
    label: int = -1  # index of the correct choice, from 0; -1 for unlabeled inputs
    path: str = ""
    line: int = 0

    @property
    def prompt(self) -> str:
        return f"{self.context} {self.question}".strip()

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.prompt, *self.choices)


# -- text pairs


def read_pairs(entry: str, columns: Columns = None) -> tables.Samples[Pair]:
    """Yield the pairs of one file or of two parallel files 'SRC:TGT', and `SkippedRow` for rows with an empty side.

    Texts are unchanged, without normalization; only surrounding whitespace is removed. `columns` names the two columns by
    header or key; in a table without a header, by position from 0."""
    sides = split_parallel(entry)
    if sides is None:
        rows = tables.iterate_rows(entry, tables.SIDES, columns)
    else:
        tables.ColumnSpec(tables.SIDES, columns)  # raises for an unknown column choice
        source_file, target_file = map(existing_file, sides)
        rows = tables.with_errors(lambda report: _zip_files(source_file, target_file, report))

    def make_pair(line: int, row: dict[str, str]) -> Pair | tables.SkippedRow:
        source, target = row["source"].strip(), row["target"].strip()
        skipped = None if source and target else tables.find_missing(entry, line, {"source": source, "target": target})
        return skipped or Pair(source, target, entry, line)

    return tables.make_samples(rows, make_pair)


def _zip_files(source: Path, target: Path, on_error: ErrorHandler) -> Iterator[Row]:
    source_lines, target_lines = read_lines(source, on_error), read_lines(target, on_error)
    for line, pair in enumerate(zip_longest(source_lines, target_lines), start=1):
        if None not in pair:
            yield line, {"source": pair[0][1], "target": pair[1][1]}
        else:
            longer, shorter = (target, source) if pair[0] is None else (source, target)
            count = line + sum(1 for _ in chain(source_lines, target_lines))  # one of them has no more lines
            problem = (
                f"no matching line in '{shorter}' from here on: '{longer}' has {count} lines, "
                f"'{shorter}' has {line - 1}."
            )
            advice = "Parallel files must have the same number of lines, with matching texts on the same line."
            yield line, DataError(problem, longer, line, advice, "line_count_mismatch")


def read_sources(entry: str, columns: Columns, aliases: tuple[str, ...] = ("source",)) -> tables.InputIterator:
    """Yield source texts: the first of two columns without a header, else the column with one of the `aliases`."""
    tables.ColumnSpec(("source",), columns, ("target", "text"))  # raises for an unknown column choice
    names = read_header(entry)
    column = (columns or {}).get("source") or (columns or {}).get("text")
    chosen = tables.match_columns(names, {"source": aliases}, {"source": column} if column else None)
    by_order = not chosen and len(names) == len(tables.SIDES) and not has_column_names(entry)
    rows = tables.iterate_rows(entry, tables.SIDES if by_order else ("source",), chosen or None)
    return tables.convert_rows(rows, lambda line, row: row["source"].strip() or None)


def read_positive_pairs(entry: str, columns: Columns = None) -> tables.Samples[Pair]:
    """Yield the pairs of one file, whose columns may have any names of `PAIR_COLUMNS`, or of two parallel files."""
    if columns or split_parallel(entry) is not None:
        return read_pairs(entry, columns)
    names = {name.lower(): name for name in read_header(entry)}
    sides = next((sides for sides in PAIR_COLUMNS if set(sides) <= names.keys()), tables.SIDES)
    found = {side: names.get(name, name) for side, name in zip(tables.SIDES, sides, strict=True)}
    label = next((name for name in SIMILARITY_COLUMNS if name in names), None)
    if label is not None and set(sides) <= names.keys():
        choices = " ".join(f"{side}={name}" for side, name in found.items())
        raise DataError(
            f"column '{names[label]}' looks like a similarity label, but embed treats every row as a positive pair.",
            entry,
            advice=f"Keep only the positive rows and pass --columns {choices}.",
        )
    return read_pairs(entry, None if sides == tables.SIDES else found)


# -- labeled texts


def iterate_labeled(data: Sequence[str], columns: Columns = None) -> Iterator[LabeledText | tables.SkippedRow]:
    """Yield the labeled texts of all files and patterns in input order; raise `DataError` if single-label and multi-label
    files are mixed."""
    first: LabeledText | None = None
    advice = "Each row needs a text and a label."
    for item in tables.iterate_all(read_labeled, "texts", advice, data, columns):
        if isinstance(item, LabeledText):
            first = first or item
            if (item.label_set is None) != (first.label_set is None):
                formats = ("one label", "several labels")
                label_format, first_format = formats if item.label_set is None else formats[::-1]
                problem = f"mixed label formats: {label_format} here, {first_format} in {first.path}."
                advice = "Use the column label in all files, or labels in all files (a list, or labels separated by |)."
                raise DataError(problem, item.path, item.line, advice)
        yield item


def read_labeled(entry: str, columns: Columns = None, inputs_only: bool = False) -> tables.Samples[LabeledText]:
    """Yield the labeled texts of one file with columns `text`, `label` and optionally `pair`.

    The only text column next to `label` may have any name. Multi-label data has a column `labels`: a list, or labels
    separated by |; a list in `label` is also accepted. In a table of two columns without a header, the text is first. Only
    surrounding whitespace is removed from texts. With `inputs_only`, labels are not read and may be missing."""
    tables.ColumnSpec(("text", "label"), columns, ("pair", "labels"))  # raises for an unknown column choice
    if columns is not None and {"label", "labels"} <= columns.keys():
        advice = "Use labels=NAME for texts with several labels."
        raise DataError("--columns accepts either label or labels, not both.", entry, advice=advice)
    required, chosen = _labeled_columns(entry, columns, inputs_only)
    rows = tables.iterate_rows(entry, required, chosen, optional=("pair",), numeric=("label", "labels"))

    def make_sample(line: int, row: Mapping[str, Any]) -> LabeledText | tables.SkippedRow:
        value = "" if inputs_only else row["labels"] if "labels" in row else row["label"].strip()
        label_set: tuple[str, ...] | None = None
        if "labels" in row:
            items = value.split(LABEL_SEPARATOR) if isinstance(value, str) else value
            label_set = tuple(dict.fromkeys(label for label in map(str.strip, items) if label))  # possibly empty
            value = ", ".join(sorted(label_set))
        text, second = row["text"].strip(), row.get("pair", "").strip()
        optional = ["second text"] * ("pair" not in row) + ["label"] * (inputs_only or label_set is not None)
        skipped = tables.find_missing(entry, line, {"text": text, "second text": second, "label": value}, optional)
        return skipped or LabeledText(text, second, value, entry, line, label_set)

    return tables.make_samples(rows, make_sample)


def _labeled_columns(entry: str, columns: Columns, inputs_only: bool) -> tuple[tuple[str, ...], Columns]:
    """Required columns, and the column names in the file: as chosen by the user, else detected; None: by column order."""
    names = read_header(entry)
    chosen = tables.match_columns(names, {name: (name,) for name in LABELED_COLUMNS}, columns)
    if "label" in chosen and "labels" not in (columns or {}):
        chosen.pop("labels", None)
        if has_column_names(entry):  # a column of one label may have lists
            rows = tables.iterate_rows(entry, ("labels",), {"labels": chosen["label"]}, numeric=("labels",))
            values = (row["labels"] for _, row in rows if not isinstance(row, DataError))
            if any(isinstance(value, list) for value in islice(values, PROBE_ROWS)):
                chosen["labels"] = chosen["label"]
    label = "labels" if "labels" in chosen else "label"
    if label not in chosen and not inputs_only:
        return ("text", "label"), columns
    if "text" not in chosen:
        others = [name for name, is_text in names.items() if is_text and name not in chosen.values()]
        others = [name for name in others if name.lower() not in NON_TEXT_COLUMNS]
        if label not in chosen and not (has_column_names(entry) and len(others) == 1):
            # a table without a header, possibly with labels
            return ("text", "label") if len(names) == 2 and not columns else ("text",), columns
        if not tables.uses_positions(chosen, names):
            if len(others) != 1:
                advice = f"Pass --columns text=NAME, and pair=NAME for a second text (available: {tables.format_list(names)})."
                raise DataError("no column is named 'text'.", entry, 1, advice)
            if file_format(entry) in JSON_SUFFIXES:
                reject_document(entry)
            chosen["text"] = others[0]
    required = ("text",) if inputs_only else ("text", label)
    return required, _renamed_columns({name: chosen[name] for name in (*required, "pair") if name in chosen})


def _renamed_columns(chosen: Mapping[str, str]) -> dict[str, str]:
    """Columns whose name in the file differs. Others are found by name, and optional columns may be missing in a row."""
    return {name: column for name, column in chosen.items() if name != column}


# -- multiple-choice questions


def read_questions(entry: str, columns: Columns = None, inputs_only: bool = False) -> tables.Samples[ChoiceSample]:
    """Yield the questions of one file. `choices` is a list, or columns choice0, choice1, …; `label` is the index of the
    correct choice from 0, its letter, or its text.

    In a column `answer`, a number that equals the text of a choice selects that choice. With `inputs_only`, the label is
    not read and may be missing."""
    names, chosen = _question_columns(entry, columns)
    if inputs_only:
        names = [name for name in names if name != "label"]
        chosen = None if chosen is None else {name: column for name, column in chosen.items() if name != "label"}
    # choice columns after the second may be empty in a row
    needed = tuple(
        name for name in names if name != "question" and not (CHOICE_COLUMN.fullmatch(name) and int(name[6:]) > 1)
    )
    by_text = (chosen or {}).get("label") == "answer"
    rows = tables.iterate_rows(entry, needed, chosen, optional=tuple(names), numeric=("label",))
    return tables.make_samples(rows, lambda line, row: _make_question(entry, line, row, by_text, inputs_only))


def _question_columns(entry: str, columns: Columns) -> tuple[list[str], dict[str, str] | None]:
    """Columns to read, and the column names in the file."""
    names = read_header(entry)
    chosen = tables.match_columns(names, {name: (name,) for name in (*QUESTION_COLUMNS, "answer")}, columns)
    question = ["question"]
    choice_columns = [name for name in names if CHOICE_COLUMN.fullmatch(name.lower())]
    choice_columns = choice_columns or [name for name in chosen if CHOICE_COLUMN.fullmatch(name)]
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
            problem = f"expected 'choice0' as the first choice column, got '{columns_to_read[2]}'."
            raise DataError(problem, entry, 1, advice)
    if chosen and not tables.uses_positions(chosen, names):
        for name, form in (("context", ""), (columns_to_read[2], " (a list), and none is named choice0, choice1, …")):
            if name not in chosen:
                raise tables.missing_column(entry, name, names, form)
    return [*columns_to_read, *question], _renamed_columns(chosen) if chosen else None


def _make_question(
    path: str, line: int, row: Mapping[str, Any], by_text: bool, inputs_only: bool
) -> ChoiceSample | tables.SkippedRow:
    context, label = row["context"].strip(), "" if inputs_only else row["label"].strip()
    question = row.get("question", "").strip()
    listed = row.get("choices", [value for name, value in row.items() if CHOICE_COLUMN.fullmatch(name)])
    if isinstance(listed, str) and listed.strip():
        raise DataError("expected a list in 'choices', got one text.", path, line, 'Write choices as ["…", "…"].')
    choices = [choice.strip() for choice in listed]
    while choices and not choices[-1] and "choices" not in row:
        choices.pop()  # empty cells of rows with fewer choices
    fields = {"context": context or question, "label": label, "choices": " ".join(choices).strip()}
    if (skipped := tables.find_missing(path, line, fields, ["label"] * inputs_only)) is not None:
        return skipped
    if len(choices) < 2:
        raise DataError("expected at least 2 choices, got 1.", path, line)
    if not all(choices):
        raise DataError(f"choice {choices.index('')} is empty.", path, line)
    if duplicates := [choice for choice in choices if choices.count(choice) > 1]:
        raise DataError(f"choice '{duplicates[0][:40]}' is listed more than once.", path, line)
    sample = ChoiceSample(context, question, tuple(choices), -1, path, line)
    if inputs_only:
        return sample
    places, letters = list(map(str, range(len(choices)))), list(ascii_uppercase[: len(choices)])
    for names in (choices, places, letters) if by_text else (places, choices, letters):
        if label in names:
            return replace(sample, label=names.index(label))
    if label.lstrip("-").isdigit():
        raise DataError(f"label must be between 0 and {len(choices) - 1}, got {label}.", path, line)
    problem = f"label '{label[:40]}' does not match any of the {len(choices)} choices."
    raise DataError(problem, path, line, "Use the number (from 0), the letter or the text of a choice.")


PAIRS = Reader(
    unit="pairs",
    columns=tables.SIDES,
    sample_type=Pair,
    samples=partial(tables.iterate_all, read_pairs, "pairs", "Each row needs two texts."),
    inputs=read_sources,
    split_key=lambda pair: pair.source,
    contents=lambda pair: (pair.source, pair.target),
    texts=lambda pair: (pair.source, pair.target),
)
SIMILAR_PAIRS = replace(
    PAIRS,
    samples=partial(tables.iterate_all, read_positive_pairs, "pairs", "Each row needs two texts."),
    inputs=partial(read_sources, aliases=tuple(first for first, _ in PAIR_COLUMNS)),
)
"""Pairs of similar texts for embeddings."""


LABELED = Reader(
    unit="texts",
    columns=LABELED_COLUMNS,
    sample_type=LabeledText,
    samples=iterate_labeled,
    inputs=partial(tables.sample_inputs, read_labeled, lambda item: item.texts if item.text_pair else item.text),
    split_key=lambda sample: f"{sample.text}\0{sample.text_pair}",
    contents=lambda sample: with_target(
        sample.texts, sample.label if sample.label_set is None else json.dumps(sorted(sample.label_set))
    ),
    texts=lambda sample: sample.texts,
    labels=lambda sample: sample.labels,
)
QUESTIONS = Reader(
    unit="questions",
    columns=QUESTION_COLUMNS,
    sample_type=ChoiceSample,
    samples=partial(
        tables.iterate_all,
        read_questions,
        "questions",
        "Each row needs a context, choices and the label of the correct choice.",
    ),
    inputs=partial(tables.sample_inputs, read_questions, lambda item: item),
    split_key=lambda sample: "\0".join(sample.texts),
    contents=lambda sample: with_target(sample.texts, str(sample.label)),
    texts=lambda sample: sample.texts,
)
"""Multiple-choice questions."""
