"""What files with columns ask, one input a row: answers that stand beside it are not read, and need not be there.

Each function gives, of one file, the line of a row and what a model is asked; None where the row is blank. Rows that are
complained of are left out, where `complain` does not raise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from regard.data.text.columns import SIDES, ColumnSpec
from regard.data.text.files import ErrorHandler
from regard.data.text.tables import JSON_SUFFIXES, PARQUET_SUFFIXES, SkippedRow, file_format, iterate_rows, read_header
from regard.errors import DataError

InputIterator = Iterator[tuple[int, Any]]

TABLE_SUFFIXES = (".tsv", ".tab", ".csv", *JSON_SUFFIXES, *PARQUET_SUFFIXES)
"""Suffixes of files with columns. Plain text (.txt) is one input a line, unless columns are named."""


def read_texts(entry: str, columns: Mapping[str, str] | None, on_error: ErrorHandler) -> InputIterator:
    """The column `text`, exactly as it is written."""
    for line, row in iterate_rows(entry, ("text",), columns, on_error):
        yield line, row["text"] if row["text"].strip() else None


def read_sources(
    entry: str, columns: Mapping[str, str] | None, on_error: ErrorHandler, aliases: tuple[str, ...] = ("source",)
) -> InputIterator:
    """The first texts of pairs: of a table without a header the first of two columns, else one of the `usual` names."""
    said = dict(columns or {})
    ColumnSpec(("source",), said, ("target", "text"))  # a wrong choice is refused before names are looked for
    names = read_header(entry)
    small = {name.lower(): name for name in names}
    found = said.get("source") or said.get("text") or next((small[name] for name in aliases if name in small), None)
    ordered = (
        found is None and len(names) == len(SIDES) and file_format(entry) not in (*JSON_SUFFIXES, *PARQUET_SUFFIXES)
    )
    needed, chosen = SIDES if ordered else ("source",), None if found is None else {"source": found}
    for line, row in iterate_rows(entry, needed, chosen, on_error):
        yield line, row["source"].strip() or None


def read_text_inputs(entry: str, columns: Mapping[str, str] | None, on_error: ErrorHandler) -> InputIterator:
    """A text, or two that are looked at together."""
    from regard.data.text.labeled import read_labeled

    for line, item in _report_incomplete(read_labeled(entry, columns, on_error, inputs_only=True), on_error):
        yield line, item and ((item.text, item.text_pair) if item.text_pair else item.text)


def read_question_inputs(entry: str, columns: Mapping[str, str] | None, on_error: ErrorHandler) -> InputIterator:
    """A question with its choices."""
    from regard.data.text.labeled import read_questions

    return _report_incomplete(read_questions(entry, columns, on_error, inputs_only=True), on_error)


def read_sentence_inputs(entry: str, columns: Mapping[str, str] | None, on_error: ErrorHandler) -> InputIterator:
    """The words of a sentence."""
    from regard.data.text.tagged import read_tagged

    for line, item in _report_incomplete(read_tagged(entry, columns, on_error, tags=None), on_error):
        yield line, item and list(item.words)


def read_qa_inputs(entry: str, columns: Mapping[str, str] | None, on_error: ErrorHandler) -> InputIterator:
    """A question and its context."""
    from regard.data.text.qa import read_qa

    for line, item in _report_incomplete(read_qa(entry, columns, on_error, inputs_only=True), on_error):
        yield line, item and (item.question, item.context)


def _report_incomplete(items: Iterable[Any], complain: ErrorHandler) -> InputIterator:
    """Samples by their lines. Of rows in which only something is blank it is complained."""
    for item in items:
        if isinstance(item, SkippedRow) and item.reason:
            complain("format", DataError(f"{item.reason}.", item.path, item.line))
        else:
            yield item.line, None if isinstance(item, SkippedRow) else item
