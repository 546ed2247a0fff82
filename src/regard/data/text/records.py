"""JSON objects and Parquet rows with nested lists and structs, which `iterate_rows` does not support."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.data.text.columns import format_list, shorten
from regard.data.text.files import ErrorHandler, read_blocks, read_lines
from regard.data.text.parquet import parquet_columns
from regard.data.text.tables import JSON_SUFFIXES, file_format, parse_json_object
from regard.errors import DataError, UnknownColumnError

RecordIterator = Iterator[tuple[int, dict[str, Any]]]
"""Number of a line or row from 1, and the record; empty for a blank line."""

PARQUET_BATCH_ROWS = 256
"""Parquet rows converted at once; low, because contexts are long"""


def read_records(path: Path, on_error: ErrorHandler) -> RecordIterator:
    """Yield the records of a JSONL or Parquet file. Invalid lines are skipped if `on_error` does not raise."""
    return _read_jsonl(path, on_error) if file_format(path) in JSON_SUFFIXES else _read_parquet(path)


def read_json_document(path: Path, keys: Sequence[str] = ("data",)) -> Any:
    """Content of a .json file with one document; None for a file with one object per line.

    The file is JSONL if the first line is an object without any of `keys`; otherwise the whole file is loaded."""
    first = next((text for _, text in read_lines(path) if text.strip()), "")
    try:
        found = json.loads(first)
        return found if isinstance(found, list) or any(key in found for key in keys) else None
    except (ValueError, RecursionError, TypeError):
        pass  # the document has more lines
    try:
        return json.loads("".join(text for _, text in read_blocks(path)))
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        raise DataError(f"invalid JSON: {error}.", path, line, "To find the error, run: jq . FILE") from error


def select_fields(
    path: Path, line: int, record: Mapping[str, Any], aliases: Mapping[str, Sequence[str]], overrides: Mapping[str, str]
) -> dict[str, Any]:
    """Values of the requested fields: under the name in `overrides`, else under the first alias that exists."""
    small = {name.lower(): name for name in reversed(list(record))}
    found = {}
    for wanted, names in aliases.items():
        if wanted in overrides:
            if overrides[wanted] not in record:
                has = f"Keys in {path}, line {line}: {format_list(record)}."
                raise UnknownColumnError(overrides[wanted], map(shorten, record), has)
            found[wanted] = record[overrides[wanted]]
        elif (name := next((small[name] for name in names if name in small), None)) is not None:
            found[wanted] = record[name]
    return found


def select_columns(
    path: Path, records: Iterator[tuple[int, Any]], aliases: Mapping[str, Sequence[str]], required: Sequence[str],
    overrides: Mapping[str, str] | None, on_error: ErrorHandler,
) -> RecordIterator:  # fmt: skip
    """Yield the fields of each record selected by `select_fields`. Records without a required field are skipped if
    `on_error` does not raise; empty records stay empty."""
    before: set[str] = set()
    for line, record in records:
        if not isinstance(record, dict):
            problem = f"expected a JSON object, got {type(record).__name__}."
            on_error("format", DataError(problem, path, line))
            continue
        row = select_fields(path, line, record, aliases, overrides or {}) if record else {}
        missing = [name for name in required if name not in row]
        if record and missing:
            advice = f"Pass --columns {missing[0]}=NAME."
            if missing[0] in before:
                advice = "Earlier rows have this key. Add the key, or remove the row."
            problem = f"missing key '{missing[0]}' (keys: {format_list(record)})."
            on_error("format", DataError(problem, path, line, advice))
            continue
        before.update(row)
        yield line, row


def _read_jsonl(path: Path, complain: ErrorHandler) -> RecordIterator:
    spoilt: list[str] = []

    def hear(kind: str, error: DataError) -> None:
        spoilt.append(kind)
        complain(kind, error)

    for line, text in read_lines(path, hear):
        try:
            record = parse_json_object(path, line, text) if text.strip() and not spoilt else {}
        except DataError as error:
            hear("format", error)
        if not spoilt:
            yield line, record
        spoilt.clear()


def _read_parquet(path: Path) -> RecordIterator:
    parquet_columns(path)  # raises if pyarrow is not installed
    from pyarrow import ArrowException, parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=PARQUET_BATCH_ROWS):
                for record in batch.to_pylist():
                    number += 1
                    yield number, record
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        where = f" after row {number:,}" if number else ""
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        problem = f"not a Parquet file, or damaged{where} ({reason})."
        raise DataError(problem, path, advice="Copy or download the file again.") from error
