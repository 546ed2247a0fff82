"""Rows of files with columns: TSV, CSV, JSONL and Parquet.

A row is a line number and the values of the requested columns. Values are unchanged text; JSON and Parquet may also have a
list of texts in a column whose name ends in "s", such as `choices`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from regard.data.text.columns import ColumnSpec, count_columns, format_list, shorten
from regard.data.text.files import ErrorHandler, existing_file, raise_error, read_lines
from regard.data.text.parquet import parquet_columns, parquet_rows
from regard.errors import DataError, RegardError, UnknownColumnError

T = TypeVar("T")
Row = tuple[int, dict[str, Any]]
"""Line number, and values by the column names of the task."""
CellIterator = Iterator[tuple[int, list[str]]]
"""Line number and all cells of the line."""

TAB_SUFFIXES, JSON_SUFFIXES, PARQUET_SUFFIXES = (
    (".tsv", ".tab", ".txt"),
    (".jsonl", ".ndjson", ".json"),
    (".parquet", ".pq"),
)
MAX_FIELD_CHARS = 1 << 26
"""maximum characters of a CSV field: enough for a book, but an unclosed quote raises before memory runs out"""


@dataclass(frozen=True, slots=True)
class SkippedRow:
    """A row or document skipped because a value is empty."""

    path: str
    line: int
    reason: str = ""
    """the missing value, and the start of the other value"""


def iterate_rows(
    entry: str, required: tuple[str, ...], columns: Mapping[str, str] | None = None, on_error: ErrorHandler = raise_error,
    optional: tuple[str, ...] = (), numeric: tuple[str, ...] = (),
) -> Iterator[Row]:  # fmt: skip
    """Line numbers and values of the `required` and `optional` columns of one file.

    `columns` maps a column to its name in the file, for example {"source": "en"}, or to its position from 0 in a table
    without a header. By default, a header or keys with the names of the columns are used; a table without a header must
    have exactly the `required` columns, in this order. Rows have no entry for `optional` columns missing in the file.
    Numbers in `numeric` columns are returned as text.

    Blank lines and nulls become empty values. Invalid rows are skipped if `on_error` does not raise. A missing file raises
    at once; the content is checked during iteration.
    """
    wanted = ColumnSpec(required, columns, tuple(name for name in optional if name not in required), numeric)
    path = existing_file(entry)
    kind = file_format(path)
    if kind in JSON_SUFFIXES:
        return drop_invalid(lambda hear: _read_jsonl(path, wanted, hear), on_error)
    if kind in PARQUET_SUFFIXES and path.suffix.lower() != ".gz":
        return parquet_rows(path, wanted)
    if kind in TAB_SUFFIXES:
        rows = drop_invalid(lambda hear: _select_cells(path, _read_tsv(path, hear), wanted, hear), on_error)
    elif kind == ".csv":
        rows = drop_invalid(lambda hear: _select_cells(path, _read_csv(path, hear), wanted, hear), on_error)
    else:
        raise DataError(
            f"unsupported file type '{kind}'." if kind else "the file name has no extension.",
            path,
            advice="Supported: .tsv .tab .txt (tabs), .csv (commas), .jsonl .ndjson .json (one object per line), "
            f"each also with .gz, and .parquet .pq.{wanted.parallel_hint}",
        )
    return rows if columns is not None else _check_no_header(path, rows, wanted, on_error)


def read_header(entry: str) -> dict[str, bool]:
    """Column names from the first non-empty row of a file, with True for text columns.

    For a table without a header, the names are the values of the first row."""
    path = existing_file(entry)
    kind = file_format(path)
    if kind in PARQUET_SUFFIXES:
        return parquet_columns(path)
    deaf: ErrorHandler = lambda kind, error: None  # noqa: E731 - reading the rows reports errors
    if kind in JSON_SUFFIXES:
        for line, text in read_lines(path, deaf):
            if text.strip():
                try:
                    record = parse_json_object(path, line, text)
                except DataError:
                    return {}
                return {name: isinstance(value, str) for name, value in record.items()}
    cells = _read_csv(path, deaf) if kind == ".csv" else _read_tsv(path, deaf)
    first = next((row for _, row in cells if any(map(str.strip, row))), [])
    return {cell.strip(): True for cell in first}


def first_value(entry: str, column: str) -> str:
    """First value of a column; empty if the file cannot be read."""
    deaf: ErrorHandler = lambda kind, error: None  # noqa: E731 - reading the rows reports errors
    try:
        _, row = next(iterate_rows(entry, ("value",), {"value": column}, deaf, numeric=("value",)), (0, {}))
    except (RegardError, OSError):
        return ""
    return str(row.get("value") or "")


def file_format(path: str | Path) -> str:
    """Lowercased file extension, without .gz."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    return "".join(suffixes[-2:-1] if suffixes[-1:] == [".gz"] else suffixes[-1:])


def drop_invalid(make_rows: Callable[[ErrorHandler], Iterable[T]], on_error: ErrorHandler) -> Iterator[T]:
    """Yield rows without invalid rows: after each error the reader yields a placeholder row, which is dropped."""
    spoilt: list[str] = []

    def hear(kind: str, error: DataError) -> None:
        spoilt.append(kind)
        on_error(kind, error)

    for row in make_rows(hear):
        if not spoilt:
            yield row
        spoilt.clear()


def _check_no_header(path: Path, rows: Iterator[Row], wanted: ColumnSpec, complain: ErrorHandler) -> Iterator[Row]:
    """Yield all rows after checking the first 50 for a header."""
    first = list(islice(rows, 50))
    _reject_header(path, first, wanted, complain)
    yield from first
    yield from rows


def _reject_header(path: Path, first: list[Row], wanted: ColumnSpec, complain: ErrorHandler) -> None:
    """Report a first row with one word per column above rows of sentences: a header would become training data."""
    whole = [(line, [row[name].strip() for name in wanted.required]) for line, row in first]
    whole = [(line, cells) for line, cells in whole if all(cells)]
    if len(whole) < 5 or whole[0][0] != 1 or any(" " in cell for cell in whole[0][1]):
        return
    if sum(" " in cells[0] for _, cells in whole[1:]) > 0.8 * len(whole[1:]):
        names = whole[0][1]
        said = " ".join(f"{name}={cell}" for name, cell in zip(wanted.required, names, strict=True))
        complain("header", DataError(
            f"the first row ({', '.join(names)}) looks like a header.", path, 1,
            f"For a header, pass --columns {said}; for a data row, pass --columns {wanted.position_hint}.",
        ))  # fmt: skip


def _read_tsv(path: Path, complain: ErrorHandler) -> CellIterator:
    return ((line, text.split("\t")) for line, text in read_lines(path, complain))


def _read_csv(path: Path, complain: ErrorHandler) -> CellIterator:
    """Yield the first line number and the cells of each CSV record; a quoted field may contain line breaks."""
    csv.field_size_limit(max(MAX_FIELD_CHARS, csv.field_size_limit()))
    # csv.reader needs line breaks to keep the lines of a quoted field apart.
    reader = csv.reader((text + "\n" for _, text in read_lines(path, complain)), strict=True)
    start = 1
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            advice = 'Quote fields that contain a quote, a comma or a line break ("…"); write a quote inside as "".'
            problem = f"invalid CSV in the record that starts here: {error}."
            complain("format", DataError(problem, path, start, advice))
            cells = []
        yield start, cells
        start = reader.line_num + 1


def _select_cells(path: Path, rows: CellIterator, wanted: ColumnSpec, complain: ErrorHandler) -> Iterator[Row]:
    width, places = 0, dict.fromkeys(wanted.required, 0)
    for line, cells in rows:
        if not any(map(str.strip, cells)):
            yield line, dict.fromkeys(places, "")
            continue
        if not width:
            width = len(cells)
            names = [cell.strip() for cell in cells]
            pick = _columns_by_order if wanted.overrides is None else _columns_by_name
            places, header = pick(path, line, names, wanted)
            if header:
                continue
        if len(cells) != width:
            advice = "All rows need as many columns as the first row. Check for a missing or an extra separator."
            complain("format", DataError(count_columns(width, len(cells)), path, line, advice))
            cells = [""] * width
        yield line, {name: cells[place] for name, place in places.items()}


def _columns_by_order(path: Path, line: int, names: list[str], wanted: ColumnSpec) -> tuple[dict[str, int], bool]:
    """Column positions, and True if this first row is a header; without --columns."""
    lowered = [name.lower() for name in names]
    if set(wanted.required) <= set(lowered):
        return _column_positions(path, line, lowered, wanted.present_columns(lowered)), True
    by_position = f"Without a header, pass positions from 0: --columns {wanted.position_hint}."
    if len(wanted.required) == 1:  # a header and a first row of text cannot be distinguished
        advice = f"{wanted.choose_hint} (available: {format_list(names)}). {by_position}"
        raise DataError(f"no column is named '{wanted.required[0]}'.", path, line, advice)
    if len(names) == len(wanted.required):
        return {name: place for place, name in enumerate(wanted.required)}, False
    if len(names) == 1:
        advice = f"Commas separate columns in .csv files, tabs in other tables.{wanted.parallel_hint}"
        raise DataError(wanted.count_message(1), path, line, advice)
    advice = f"{wanted.choose_hint} (available: {format_list(names)}). {by_position}"
    raise DataError(wanted.count_message(len(names)), path, line, advice)


def _columns_by_name(path: Path, line: int, names: list[str], wanted: ColumnSpec) -> tuple[dict[str, int], bool]:
    """Column positions, and True if this first row is a header; with --columns by name or by position."""
    needed = wanted.required_columns
    if not set(needed.values()) <= set(names) and all(name.isascii() and name.isdigit() for name in needed.values()):
        for place in map(int, needed.values()):
            if place >= len(names):
                advice = f"Column positions range from 0 to {len(names) - 1}."
                raise DataError(f"column {place} does not exist.", path, line, advice)
        return {name: int(place) for name, place in needed.items()}, False
    for name in needed.values():
        if name not in names:
            found = f"--columns applies to every file. Header of {path}, line {line}: {format_list(names)}."
            raise UnknownColumnError(name, map(shorten, names), found)
    return _column_positions(path, line, names, wanted.present_columns(names)), True


def _column_positions(path: Path, line: int, names: list[str], called: dict[str, str]) -> dict[str, int]:
    for name in called.values():
        if names.count(name) > 1:
            raise DataError(f"duplicate column '{name}' in the header.", path, line, "Rename one of the columns.")
    return {name: names.index(column) for name, column in called.items()}


def _read_jsonl(path: Path, wanted: ColumnSpec, complain: ErrorHandler) -> Iterator[Row]:
    first, blank = True, dict.fromkeys(wanted.required, "")
    for line, text in read_lines(path, complain):
        try:
            values = _select_values(path, line, text, wanted, first) if text.strip() else blank
        except DataError as error:
            complain("format", error)
            values = blank
        first = first and not text.strip()
        yield line, values


def _select_values(path: Path, line: int, text: str, wanted: ColumnSpec, first: bool) -> dict[str, Any]:
    """Values of one JSON object; a chosen column missing in the first object raises `UnknownColumnError`."""
    record = parse_json_object(path, line, text)
    nested = record.get("translation")
    if isinstance(nested, dict) and not any(name in record for name in wanted.required_columns.values()):
        record = nested
    for name in wanted.required_columns.values():
        if name in record:
            continue
        keys = format_list(record)
        if wanted.overrides is not None and first:
            raise UnknownColumnError(name, map(shorten, record), f"Keys in {path}, line {line}: {keys}.")
        advice = f"{wanted.choose_hint}." if wanted.overrides is None else ""
        raise DataError(f"missing key '{name}' (keys: {keys}).", path, line, advice)
    return {
        name: text_value(path, line, column, record[column], name in wanted.numeric, name.endswith("s"))
        for name, column in wanted.present_columns(record).items()
    }


def parse_json_object(path: Path, line: int, text: str) -> dict[str, Any]:
    """JSON object of a line."""
    hint = "Write one JSON object per line"
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        program = "'.[]'" if text.lstrip().startswith("[") else "."
        advice = f"{hint}; to convert a file, run: jq -c {program} FILE"
        raise DataError(f"invalid JSON: {error}.", path, line, advice) from error
    if not isinstance(record, dict):
        advice = f"{hint}; to unpack a list, run: jq -c '.[]' FILE"
        raise DataError(f"expected a JSON object, got {type(record).__name__}.", path, line, advice)
    return record


def text_value(path: Path, line: int, name: str, value: object, allow_numbers: bool, allow_lists: bool) -> Any:
    """Validated text; numbers become text and lists are kept if allowed, None becomes an empty text."""
    if value is None:
        return ""
    if allow_lists and isinstance(value, list):
        return [text_value(path, line, name, item, allow_numbers, False) for item in value]
    if allow_numbers and isinstance(value, int | float):
        return json.dumps(value)
    if not isinstance(value, str):
        problem = f"expected text in '{name}', got {json.dumps(value)[:40]}."
        raise DataError(problem, path, line, "Write the value in quotes.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        code = f"\\u{ord(value[error.start]):04x}"
        advice = "Write a character beyond U+FFFF as two \\u escapes, or as the character itself."
        raise DataError(f"'{name}' contains {code}, half of a surrogate pair.", path, line, advice) from error
    return value
