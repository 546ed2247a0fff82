"""Text pairs from tables, JSONL, Parquet or two parallel files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path

from regard.data.reader import Reader
from regard.data.sources import expand_patterns, split_parallel
from regard.data.text.files import ErrorHandler, existing_file, raise_error, read_lines
from regard.data.text.formats import Row, has_column_names, read_header
from regard.data.text.tables import (
    SIDES,
    ColumnSpec,
    InputIterator,
    SkippedRow,
    drop_invalid,
    iterate_all,
    iterate_rows,
    make_samples,
)
from regard.errors import DataError

PAIR_COLUMNS = (SIDES, ("anchor", "positive"), ("question", "answer"), ("text", "pair"), ("a", "b"))
"""Names of the two columns for contrastive training."""
SIMILARITY_COLUMNS = ("label", "score", "similarity")
"""A column of this name indicates that some pairs are negative."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A source and a target text, with file and line."""

    source: str
    target: str
    path: str
    line: int


def iterate_pairs(data: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[Pair | SkippedRow]:
    """Yield the pairs of all files, parallel files 'SRC:TGT' and patterns in input order, and `SkippedRow` for rows with an
    empty side.

    Texts are unchanged, without normalization; only surrounding whitespace is removed.
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
    else:
        ColumnSpec(SIDES, columns)  # raises for an unknown column choice
        source_file, target_file = map(existing_file, sides)
        rows = drop_invalid(lambda report: _zip_files(source_file, target_file, report), on_error)

    def make_pair(line: int, row: dict[str, str]) -> Pair | SkippedRow | None:
        source, target = row["source"].strip(), row["target"].strip()
        if source and target:
            return Pair(source, target, entry, line)
        if not source and not target:
            return None
        return SkippedRow(entry, line, f"missing {'target' if source else 'source'} for: {(source or target)[:60]}")

    return make_samples(entry, rows, make_pair, on_error)


def _zip_files(source: Path, target: Path, on_error: ErrorHandler) -> Iterator[Row]:
    line = 0
    source_lines, target_lines = read_lines(source, on_error), read_lines(target, on_error)
    for line, (source_line, target_line) in enumerate(zip_longest(source_lines, target_lines), start=1):
        if source_line is not None and target_line is not None:
            yield line, {"source": source_line[1], "target": target_line[1]}
            continue
        shorter, longer = (source, target) if source_line is None else (target, source)
        count = line + sum(1 for _ in (target_lines if source_line is None else source_lines))
        error = DataError(
            f"no matching line in '{shorter}' from here on: '{longer}' has {count} lines, '{shorter}' has {line - 1}.",
            longer,
            line,
            "Parallel files must have the same number of lines, with matching texts on the same line.",
        )
        return on_error("line_count_mismatch", error)


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


# -- positive pairs for contrastive training


def iterate_positive_pairs(
    data: Sequence[str], columns: Mapping[str, str] | None = None
) -> Iterator[Pair | SkippedRow]:
    """Yield the pairs of all files, and rows skipped because one text is empty."""
    return iterate_all(data, lambda entry: read_positive_pairs(entry, columns), "pairs", "Each row needs two texts.")


def read_positive_pairs(
    entry: str, columns: Mapping[str, str] | None = None, on_error: ErrorHandler = raise_error
) -> Iterator[Pair | SkippedRow]:
    """Yield the pairs of one file or of two parallel files."""
    return iterate_entry_pairs(entry, columns or _find_pair_columns(entry), on_error)


def _find_pair_columns(entry: str) -> dict[str, str] | None:
    """Names of the two columns of a file if they are listed in `PAIR_COLUMNS`, else None."""
    if split_parallel(entry) is not None:
        return None
    names = {name.lower(): name for name in read_header(entry)}
    sides = next((sides for sides in PAIR_COLUMNS if set(sides) <= names.keys()), None)
    if sides is None:
        return None
    columns = {side: names[name] for side, name in zip(SIDES, sides, strict=True)}
    if label := next((name for name in SIMILARITY_COLUMNS if name in names), None):
        choices = " ".join(f"{side}={name}" for side, name in columns.items())
        raise DataError(
            f"column '{names[label]}' looks like a similarity label, but embed treats every row as a positive pair.",
            entry,
            advice=f"Keep only the positive rows and pass --columns {choices}.",
        )
    return None if sides == SIDES else columns


PAIRS = Reader(
    unit="pairs",
    columns=SIDES,
    sample_type=Pair,
    samples=iterate_pairs,
    inputs=read_sources,
    split_key=lambda pair: pair.source,
    contents=lambda pair: (pair.source, pair.target),
    texts=lambda pair: (pair.source, pair.target),
)
SIMILAR_PAIRS = replace(
    PAIRS,
    samples=iterate_positive_pairs,
    inputs=partial(read_sources, aliases=tuple(first for first, _ in PAIR_COLUMNS)),
)
"""Pairs of similar texts for embeddings."""
