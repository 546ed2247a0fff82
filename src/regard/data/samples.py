"""Helpers of all sample readers: iteration over several files, and empty rows at the end of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from regard.data.sources import expand_patterns
from regard.data.text.tables import SkippedRow
from regard.errors import DataError

S = TypeVar("S")


def iterate_all(
    data: Sequence[str], read: Callable[[str], Iterator[S | SkippedRow]], unit: str, advice: str
) -> Iterator[S | SkippedRow]:
    """Yield the samples of all files and patterns in input order; raise `DataError` if there is no sample."""
    entries = expand_patterns(data)
    if not entries:
        raise DataError("No data given.", advice="Pass at least one file.")
    found = skipped = 0
    first_reason = ""
    for entry in entries:
        for item in read(entry):
            if isinstance(item, SkippedRow):
                skipped += 1
                first_reason = first_reason or item.reason
            else:
                found += 1
            yield item
    if not found:
        reason = "the data contains no rows or files"
        if skipped:
            reason = f"all {skipped} entries were skipped" if skipped > 1 else "the only entry was skipped"
            reason += f" ({'first: ' * (skipped > 1)}{first_reason})" if first_reason else ""
        raise DataError(f"no {unit} found: {reason}.", ", ".join(entries), advice=advice)


def drop_trailing_blanks(path: str, rows: Iterable[tuple[int, S | SkippedRow | None]]) -> Iterator[S | SkippedRow]:
    """Yield samples and skipped rows; empty rows (None) become `SkippedRow`, except at the end of the file."""
    blank: list[SkippedRow] = []
    for line, item in rows:
        if item is None:
            blank.append(SkippedRow(path, line))
            continue
        yield from blank
        blank.clear()
        yield item
