"""Model inputs from files with columns, one input per row; label columns are not read and may be missing.

Each function yields line numbers and inputs of one file; the input of an empty row is None. Invalid rows are skipped if
`on_error` does not raise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from regard.data.text.files import ErrorHandler
from regard.data.text.formats import has_column_names, read_header
from regard.data.text.tables import SIDES, ColumnSpec, SkippedRow, iterate_rows
from regard.errors import DataError

InputIterator = Iterator[tuple[int, Any]]


def read_texts(entry: str, columns: Mapping[str, str] | None, on_error: ErrorHandler) -> InputIterator:
    """Yield the column `text`, unchanged."""
    for line, row in iterate_rows(entry, ("text",), columns, on_error):
        yield line, row["text"] if row["text"].strip() else None


def read_sources(
    entry: str, columns: Mapping[str, str] | None, on_error: ErrorHandler, aliases: tuple[str, ...] = ("source",)
) -> InputIterator:
    """Yield source texts: the first of two columns without a header, else the column with one of the `aliases`."""
    overrides = dict(columns or {})
    ColumnSpec(("source",), overrides, ("target", "text"))  # raises for an unknown column choice
    names = read_header(entry)
    by_lower = {name.lower(): name for name in names}
    column = overrides.get("source") or overrides.get("text")
    column = column or next((by_lower[name] for name in aliases if name in by_lower), None)
    by_order = column is None and len(names) == len(SIDES) and not has_column_names(entry)
    needed, chosen = SIDES if by_order else ("source",), None if column is None else {"source": column}
    for line, row in iterate_rows(entry, needed, chosen, on_error):
        yield line, row["source"].strip() or None


def read_text_inputs(entry: str, columns: Mapping[str, str] | None, on_error: ErrorHandler) -> InputIterator:
    """Yield texts, or (text, second text) for pairs."""
    from regard.data.text.labeled import read_labeled

    for line, item in _report_incomplete(read_labeled(entry, columns, on_error, inputs_only=True), on_error):
        yield line, item and ((item.text, item.text_pair) if item.text_pair else item.text)


def read_question_inputs(entry: str, columns: Mapping[str, str] | None, on_error: ErrorHandler) -> InputIterator:
    """Yield multiple-choice questions."""
    from regard.data.text.labeled import read_questions

    return _report_incomplete(read_questions(entry, columns, on_error, inputs_only=True), on_error)


def read_sentence_inputs(entry: str, columns: Mapping[str, str] | None, on_error: ErrorHandler) -> InputIterator:
    """Yield lists of words."""
    from regard.data.text.tagged import read_tagged

    for line, item in _report_incomplete(read_tagged(entry, columns, on_error, tags=None), on_error):
        yield line, item and list(item.words)


def read_qa_inputs(entry: str, columns: Mapping[str, str] | None, on_error: ErrorHandler) -> InputIterator:
    """Yield (question, context)."""
    from regard.data.text.qa import read_qa

    for line, item in _report_incomplete(read_qa(entry, columns, on_error, inputs_only=True), on_error):
        yield line, item and (item.question, item.context)


def _report_incomplete(items: Iterable[Any], complain: ErrorHandler) -> InputIterator:
    """Yield lines and samples; partly empty rows are passed to `complain`, empty rows become None."""
    for item in items:
        if isinstance(item, SkippedRow) and item.reason:
            complain("format", DataError(f"{item.reason}.", item.path, item.line))
        else:
            yield item.line, None if isinstance(item, SkippedRow) else item
