"""What files with columns ask, one input a row: answers that stand beside it are not read, and need not be there.

Each function gives, of one file, the line of a row and what a model is asked; None where the row is blank. Rows that are
complained of are left out, where `complain` does not raise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from regard.data.text.columns import SIDES, Wanted
from regard.data.text.files import Complain
from regard.data.text.tables import OBJECTS, PARQUET, Empty, format_of, heading, iterate_rows
from regard.errors import DataError

Rows = Iterator[tuple[int, Any]]

TABLES = (".tsv", ".tab", ".csv", *OBJECTS, *PARQUET)
"""Suffixes of files with columns. Plain text (.txt) is one input a line, unless columns are named."""


def texts(entry: str, columns: Mapping[str, str] | None, complain: Complain) -> Rows:
    """The column `text`, exactly as it is written."""
    for line, row in iterate_rows(entry, ("text",), columns, complain):
        yield line, row["text"] if row["text"].strip() else None


def sources(
    entry: str, columns: Mapping[str, str] | None, complain: Complain, usual: tuple[str, ...] = ("source",)
) -> Rows:
    """The first texts of pairs: of a table without a header the first of two columns, else one of the `usual` names."""
    said = dict(columns or {})
    Wanted(("source",), said, ("target", "text"))  # a wrong choice is refused before names are looked for
    names = heading(entry)
    small = {name.lower(): name for name in names}
    found = said.get("source") or said.get("text") or next((small[name] for name in usual if name in small), None)
    ordered = found is None and len(names) == len(SIDES) and format_of(entry) not in (*OBJECTS, *PARQUET)
    needed, chosen = SIDES if ordered else ("source",), None if found is None else {"source": found}
    for line, row in iterate_rows(entry, needed, chosen, complain):
        yield line, row["source"].strip() or None


def labelled(entry: str, columns: Mapping[str, str] | None, complain: Complain) -> Rows:
    """A text, or two that are looked at together."""
    from regard.data.text.labeled import labelled_of

    for line, item in _whole(labelled_of(entry, columns, complain, asked=True), complain):
        yield line, item and ((item.text, item.other) if item.other else item.text)


def questions(entry: str, columns: Mapping[str, str] | None, complain: Complain) -> Rows:
    """A question with its choices."""
    from regard.data.text.labeled import questions_of

    return _whole(questions_of(entry, columns, complain, asked=True), complain)


def sentences(entry: str, columns: Mapping[str, str] | None, complain: Complain) -> Rows:
    """The words of a sentence."""
    from regard.data.text.tagged import tagged_of

    for line, item in _whole(tagged_of(entry, columns, complain, tags=None), complain):
        yield line, item and list(item.words)


def spans(entry: str, columns: Mapping[str, str] | None, complain: Complain) -> Rows:
    """A question and its context."""
    from regard.data.text.qa import spans_of

    for line, item in _whole(spans_of(entry, columns, complain, asked=True), complain):
        yield line, item and (item.question, item.context)


def _whole(items: Iterable[Any], complain: Complain) -> Rows:
    """Samples by their lines. Of rows in which only something is blank it is complained."""
    for item in items:
        if isinstance(item, Empty) and item.text:
            complain("format", DataError(f"has {item.text}.", item.path, item.line))
        else:
            yield item.line, None if isinstance(item, Empty) else item
