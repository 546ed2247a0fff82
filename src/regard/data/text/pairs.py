"""Text pairs from tables, JSONL, Parquet or two parallel files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from regard.data.sources import expand_patterns, split_parallel
from regard.data.text.columns import SIDES, ColumnSpec
from regard.data.text.files import ErrorHandler, existing_file, raise_error, read_lines
from regard.data.text.tables import SkippedRow, drop_invalid, iterate_rows
from regard.errors import DataError

PairRow = tuple[int, str, str]
"""Line number, source and target."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A source and a target text, with file and line."""

    source: str
    target: str
    path: str
    line: int


def iterate_pairs(data: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[Pair | SkippedRow]:
    """Pairs of every file, pair of parallel files 'SRC:TGT' or pattern of either, in the order given, one by one; rows with
    an empty side as `SkippedRow`.

    Texts are kept exactly as they are written, without normalization; only whitespace around them is removed.
    `columns` names the two columns by header or key; in a table without a header, by position from 0.
    """
    entries = expand_patterns(data)
    if not entries:
        raise DataError("No data given.", advice="Pass at least one file, or two parallel files as SRC:TGT.")
    pairs = empty = 0
    for entry in entries:
        for item in iterate_entry_pairs(entry, columns):
            pairs, empty = (pairs + 1, empty) if isinstance(item, Pair) else (pairs, empty + 1)
            yield item
    if not pairs:
        reason = "the data contains no rows"
        if empty:
            reason = f"all {empty} rows have an empty side" if empty > 1 else "the only row has an empty side"
        raise DataError(f"no pairs found: {reason}.", ", ".join(entries), advice="Each row needs two texts.")


def iterate_entry_pairs(
    entry: str, columns: Mapping[str, str] | None = None, on_error: ErrorHandler = raise_error
) -> Iterator[Pair | SkippedRow]:
    """Yield the pairs of one file or of two parallel files. Invalid rows are skipped if `on_error` does not raise."""
    sides = split_parallel(entry)
    if sides is None:
        rows = iterate_rows(entry, SIDES, columns, on_error)
        return _filter_pairs(entry, ((line, row["source"], row["target"]) for line, row in rows))
    ColumnSpec(SIDES, columns)  # raises for an unknown column choice
    source, target = map(existing_file, sides)
    return _filter_pairs(entry, drop_invalid(lambda hear: _zip_files(source, target, hear), on_error))


def _filter_pairs(path: str, rows: Iterable[PairRow]) -> Iterator[Pair | SkippedRow]:
    """Yield pairs, and `SkippedRow` if a side is empty."""
    blank: list[SkippedRow] = []  # delayed, because blank lines at the end of a file are ignored
    for line, source, target in rows:
        source, target = source.strip(), target.strip()
        if not source and not target:
            blank.append(SkippedRow(path, line))
            continue
        yield from blank
        blank.clear()
        if source and target:
            yield Pair(source, target, path, line)
        else:
            yield SkippedRow(path, line, f"missing {'target' if source else 'source'} for: {(source or target)[:60]}")


def _zip_files(source: Path, target: Path, complain: ErrorHandler) -> Iterator[PairRow]:
    line = 0
    left, right = read_lines(source, complain), read_lines(target, complain)
    for line, (here, there) in enumerate(zip_longest(left, right), start=1):
        if here is not None and there is not None:
            yield line, here[1], there[1]
            continue
        shorter, longer = (source, target) if here is None else (target, source)
        count = line + sum(1 for _ in (right if here is None else left))
        error = DataError(
            f"no matching line in '{shorter}' from here on: '{longer}' has {count} lines, '{shorter}' has {line - 1}.",
            longer,
            line,
            "Parallel files must have the same number of lines, with matching texts on the same line.",
        )
        return complain("line_count_mismatch", error)
