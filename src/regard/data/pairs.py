"""Pairs of texts: from two columns, from the keys of JSON objects, from Parquet, or from two parallel files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path

from regard.data.columns import CHOOSE, SIDES, listed, short, wanted_columns
from regard.data.entries import expand, parallel
from regard.data.files import Complain, existing, lines, refuse
from regard.data.parquet import parquet_rows
from regard.errors import DataError, UnknownName

Cells = Iterator[tuple[int, list[str]]]
"""A line number and the columns found there."""
Row = tuple[int, str, str]
"""A line number, a source and a target."""

_TABS, _OBJECTS, _PARQUET = (".tsv", ".tab", ".txt"), (".jsonl", ".ndjson", ".json"), (".parquet", ".pq")


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts that belong together, and where they were read."""

    source: str
    target: str
    path: str
    line: int


@dataclass(frozen=True, slots=True)
class Empty:
    """The place of a row that is left out because a side is blank."""

    path: str
    line: int
    text: str = ""
    """which side is blank, and what stands on the other"""


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
    wanted = None if columns is None else wanted_columns(columns)
    spoilt: list[str] = []

    def hear(kind: str, error: DataError) -> None:
        spoilt.append(kind)
        complain(kind, error)

    rows, is_table = _rows(entry, wanted, hear)
    items = _sort_out(entry, _unspoilt(rows, spoilt))
    return _without_header(items, complain) if is_table and wanted is None else items


def _unspoilt(rows: Iterable[Row], spoilt: list[str]) -> Iterator[Row]:
    """A row follows each complaint about one, so that parallel files stay aligned; it is dropped here."""
    for row in rows:
        if not spoilt:
            yield row
        spoilt.clear()


def _without_header(items: Iterator[Pair | Empty], complain: Complain) -> Iterator[Pair | Empty]:
    """Nothing is given on before the first fifty were looked at together."""
    first = list(islice(items, 50))
    _refuse_header([item for item in first if isinstance(item, Pair)], complain)
    yield from first
    yield from items


def _refuse_header(first: list[Pair], complain: Complain) -> None:
    """One word a side above a file of sentences is a header that was not asked for, and would be trained on."""
    if len(first) < 5 or first[0].line != 1 or " " in first[0].source + first[0].target:
        return
    if sum(" " in pair.source for pair in first[1:]) > 0.8 * len(first[1:]):
        names = first[0].source, first[0].target
        complain("header", DataError(
            f"the first row ({names[0]}, {names[1]}) looks like a header.", first[0].path, 1,
            f"Say --columns source={names[0]} target={names[1]}, or source=0 target=1 if it is a pair like the others.",
        ))  # fmt: skip


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


def _rows(entry: str, wanted: tuple[str, str] | None, complain: Complain) -> tuple[Iterator[Row], bool]:
    """The rows, and whether they are those of a table, whose first may be a header."""
    sides = parallel(entry)
    if sides:
        source, target = map(existing, sides)
        return _side_by_side(source, target, complain), False
    path = existing(entry)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    kind = "".join(suffixes[-2:-1] if suffixes[-1:] == [".gz"] else suffixes[-1:])
    if kind in _OBJECTS:
        return _objects(path, wanted, complain), False
    if path.suffix.lower() in _PARQUET:
        return parquet_rows(path, wanted), False
    if kind == ".csv":
        return _table(path, _comma_cells(path, complain), wanted, complain), True
    if kind in _TABS:
        return _table(path, ((line, text.split("\t")) for line, text in lines(path, complain)), wanted, complain), True
    raise DataError(
        f"the suffix '{kind}' says nothing about its columns." if kind else "has no suffix that tells its format.",
        path,
        advice="Known are .tsv .tab .txt (tabs), .csv (commas) and .jsonl .ndjson .json (an object a line), "
        "each also with .gz, and .parquet .pq. Two parallel files are given as SRC:TGT.",
    )


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


def _comma_cells(path: Path, complain: Complain) -> Cells:
    """The records of a CSV file, each numbered by the line where it starts; a quoted field may run over lines."""
    # Line ends go back on, for the reader would otherwise join the lines of a quoted field.
    reader = csv.reader((text + "\n" for _, text in lines(path, complain)), strict=True)
    start = 1
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            advice = 'A field that holds a quote, a comma or a line end is written "…", and a quote inside it "".'
            problem = f"the record that starts here is not CSV: {error}."
            complain("format", DataError(problem, path, start, advice))
            cells = []
        yield start, cells
        start = reader.line_num + 1


def _table(path: Path, rows: Cells, wanted: tuple[str, str] | None, complain: Complain) -> Iterator[Row]:
    width = source = target = 0
    for line, cells in rows:
        if not any(map(str.strip, cells)):
            yield line, "", ""
            continue
        if not width:
            width = len(cells)
            names = [cell.strip() for cell in cells]
            source, target, header = _by_name(path, line, names, wanted) if wanted else _by_order(path, line, names)
            if header:
                continue
        if len(cells) != width:
            found = "1 column was found" if len(cells) == 1 else f"{len(cells)} columns were found"
            advice = "Each row needs as many as the first: look for a missing or an extra separator."
            complain("format", DataError(f"{found}, and {width} are wanted.", path, line, advice))
            cells = [""] * width
        yield line, cells[source], cells[target]


def _by_order(path: Path, line: int, names: list[str]) -> tuple[int, int, bool]:
    """Source column, target column, and whether this first row is a header, where no columns were asked for."""
    lowered = [name.lower() for name in names]
    if sorted(lowered) == sorted(SIDES):
        return lowered.index("source"), lowered.index("target"), True
    if len(names) == 2:
        return 0, 1, False
    if len(names) == 1:
        advice = "A .csv file separates columns by commas, others by tabs. Two parallel files are given as SRC:TGT."
        raise DataError("1 column was found, and 2 are wanted.", path, line, advice)
    raise DataError(
        f"{len(names)} columns were found, and 2 are wanted.",
        path,
        line,
        f"{CHOOSE}, of: {listed(names)}; without a header, by position from 0: --columns source=0 target=1.",
    )


def _by_name(path: Path, line: int, names: list[str], wanted: tuple[str, str]) -> tuple[int, int, bool]:
    """The same, where columns were asked for by the names of a header or by position."""
    if not set(wanted) <= set(names) and all(name.isascii() and name.isdigit() for name in wanted):
        for place in map(int, wanted):
            if place >= len(names):
                raise DataError(
                    f"there is no column {place}.", path, line, f"Columns count from 0, to {len(names) - 1} here."
                )
        return int(wanted[0]), int(wanted[1]), False
    for name in wanted:
        if name not in names:
            found = f"--columns holds for every file, and the header, {path}, line {line}, has: {listed(names)}."
            raise UnknownName("column", name, map(short, names), found)
        if names.count(name) > 1:
            raise DataError(f"the header names '{name}' more than once.", path, line, "Rename one of them.")
    return names.index(wanted[0]), names.index(wanted[1]), True


def _objects(path: Path, wanted: tuple[str, str] | None, complain: Complain) -> Iterator[Row]:
    first = True
    for line, text in lines(path, complain):
        try:
            sides = _texts(path, line, text, wanted, first) if text.strip() else ("", "")
        except DataError as error:
            complain("format", error)
            sides = "", ""
        first = first and not text.strip()
        yield line, *sides


def _texts(path: Path, line: int, text: str, wanted: tuple[str, str] | None, first: bool) -> tuple[str, str]:
    """Source and target of an object; where columns were asked for, the first one shows whether they exist."""
    names, record = wanted or SIDES, _object(path, line, text)
    nested = record.get("translation")
    if isinstance(nested, dict) and not any(name in record for name in names):
        record = nested
    for name in names:
        if name in record:
            continue
        found = f"has: {listed(record)}"
        if wanted and first:
            raise UnknownName("column", name, map(short, record), f"{path}, line {line}, {found}.")
        raise DataError(f"has no key '{name}'; it {found}.", path, line, "" if wanted else f"{CHOOSE}.")
    return _text(path, line, names[0], record[names[0]]), _text(path, line, names[1], record[names[1]])


def _object(path: Path, line: int, text: str) -> dict[str, object]:
    whole = "Each line holds one whole JSON object"
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        program = "'.[]'" if text.lstrip().startswith("[") else "."
        advice = f"{whole}; jq -c {program} writes a file so."
        raise DataError(f"is not JSON: {error}.", path, line, advice) from error
    if not isinstance(record, dict):
        raise DataError(f"is a JSON {type(record).__name__}.", path, line, f"{whole}; jq -c '.[]' unpacks a list.")
    return record


def _text(path: Path, line: int, name: str, value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"'{name}' is not text but {json.dumps(value)[:40]}.", path, line, "Write it in quotes.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        code = f"\\u{ord(value[error.start]):04x}"
        advice = "A character beyond U+FFFF is written as two such escapes, or as itself."
        raise DataError(f"'{name}' holds {code}, half of a character.", path, line, advice) from error
    return value
