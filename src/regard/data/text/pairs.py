"""Pairs of texts: from two columns, from the keys of JSON objects, from Parquet, or from two parallel files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from regard.data.sources import expand, parallel
from regard.data.text.columns import SIDES, Wanted
from regard.data.text.files import Complain, existing, lines, refuse
from regard.data.text.tables import Empty as Empty
from regard.data.text.tables import iterate_rows, unspoilt
from regard.errors import DataError

Row = tuple[int, str, str]
"""A line number, a source and a target."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts that belong together, and where they were read."""

    source: str
    target: str
    path: str
    line: int


@dataclass(frozen=True, slots=True)
class PairSet:
    """What files held: their pairs, and the place of each row left out because a side was blank."""

    pairs: list[Pair]
    empty: list[tuple[str, int]]


def read_pairs(data: Sequence[str], columns: Mapping[str, str] | None = None) -> PairSet:
    """Read every file, pair of parallel files 'SRC:TGT' or pattern of either, in the order given.

    Texts are kept exactly as they are written, without any normalisation; only whitespace around them is removed.
    `columns` names the two columns by header or key; in a table without a header, by position from 0.
    """
    found = PairSet([], [])
    for item in iterate_pairs(data, columns):
        if isinstance(item, Pair):
            found.pairs.append(item)
        else:
            found.empty.append((item.path, item.line))
    return found


def iterate_pairs(data: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[Pair | Empty]:
    """The same one by one, for files that are larger than memory."""
    entries = expand(data)
    if not entries:
        raise DataError("no data was given.", advice="Name at least one file, or two parallel ones as SRC:TGT.")
    pairs = empty = 0
    for entry in entries:
        for item in iterate_entry(entry, columns):
            pairs, empty = (pairs + 1, empty) if isinstance(item, Pair) else (pairs, empty + 1)
            yield item
    if not pairs:
        found = f"all {empty} rows have a blank side" if empty else "there is no row of text"
        raise DataError(f"no pairs were found: {found}.", ", ".join(entries), advice="Each row needs two texts.")


def iterate_entry(
    entry: str, columns: Mapping[str, str] | None = None, complain: Complain = refuse
) -> Iterator[Pair | Empty]:
    """Those of one file or pair of files. Rows that are complained of are left out, where `complain` does not raise."""
    sides = parallel(entry)
    if sides is None:
        rows = iterate_rows(entry, SIDES, columns, complain)
        return _sort_out(entry, ((line, row["source"], row["target"]) for line, row in rows))
    Wanted(SIDES, columns)  # a wrong choice is refused here as well
    source, target = map(existing, sides)
    return _sort_out(entry, unspoilt(lambda hear: _side_by_side(source, target, hear), complain))


def _sort_out(path: str, rows: Iterable[Row]) -> Iterator[Pair | Empty]:
    """Whole pairs, and the places of others."""
    blank: list[Empty] = []  # held back: blank lines at the end of a file are no lost pairs
    for line, source, target in rows:
        source, target = source.strip(), target.strip()
        if not source and not target:
            blank.append(Empty(path, line))
            continue
        yield from blank
        blank.clear()
        if source and target:
            yield Pair(source, target, path, line)
        else:
            yield Empty(path, line, f"no {'target' if source else 'source'} beside: {(source or target)[:60]}")


def _side_by_side(source: Path, target: Path, complain: Complain) -> Iterator[Row]:
    line = 0
    left, right = lines(source, complain), lines(target, complain)
    for line, (here, there) in enumerate(zip_longest(left, right), start=1):
        if here is not None and there is not None:
            yield line, here[1], there[1]
            continue
        shorter, longer = (source, target) if here is None else (target, source)
        count = line + sum(1 for _ in (right if here is None else left))
        error = DataError(
            f"is the first line without a partner: '{longer}' has {count} lines, and '{shorter}' has {line - 1}.",
            longer,
            line,
            "Parallel files need the same number of lines, line by line.",
        )
        return complain("counts", error)
