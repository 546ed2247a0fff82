"""File formats of tables: TSV, CSV, JSONL and Parquet, as numbered rows before columns are selected.

`FORMATS` lists the formats. A further format is one function that yields numbered rows, and one entry of `FORMATS`.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.data.text.files import ErrorHandler, existing_file, read_blocks, read_lines
from regard.errors import DataError, RegardError

Row = tuple[int, Any]  # Line number (row number in Parquet), and values by column or the error of an invalid row
ColumnPath = tuple[str, ...]  # Column name, or names of a struct column and its field

MAX_FIELD_CHARS = 1 << 26  # maximum CSV field: enough for a book, but an unclosed quote raises before memory runs out
MAX_BATCH_ROWS = 4096  # maximum number of Parquet rows converted at once
MAX_BATCH_BYTES = 1 << 24  # approximate maximum number of bytes of Parquet rows converted at once


def _read_csv(path: Path, on_error: ErrorHandler, columns: Sequence[ColumnPath]) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line number and the cells of each CSV record; a quoted field may contain line breaks."""
    csv.field_size_limit(max(MAX_FIELD_CHARS, csv.field_size_limit()))
    # csv.reader needs line breaks to keep the lines of a quoted field apart.
    reader = csv.reader((text + "\n" for _, text in read_lines(path, on_error)), strict=True)
    start = 1
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            advice = 'Quote fields that contain a quote, a comma or a line break ("…"); write a quote inside as "".'
            problem = f"invalid CSV in the record that starts here: {error}."
            on_error(DataError(problem, path, start, advice))
            cells = []
        yield start, cells
        start = reader.line_num + 1


def _read_jsonl(
    path: Path, on_error: ErrorHandler, columns: Sequence[ColumnPath]
) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yield line numbers and JSON objects; None for an empty or invalid line."""
    hint, is_first = "Write one JSON object per line", True
    for line, text in read_lines(path, on_error):
        record = None
        if text.strip():
            is_first, at_start = False, is_first
            try:
                record = json.loads(text)
            except (ValueError, RecursionError) as error:
                if at_start and getattr(error, "pos", 0) >= len(text.rstrip()):  # the value continues on the next line
                    _reject_long_document(path)
                program = "'.[]'" if text.lstrip().startswith("[") else "."
                advice = f"{hint}; to convert a file, run: jq -c {program} FILE"
                on_error(DataError(f"invalid JSON: {error}.", path, line, advice))
            else:
                if not isinstance(record, dict):
                    problem = f"expected a JSON object, got {type(record).__name__}."
                    advice = f"{hint}; to unpack a list, run: jq -c '.[]' FILE"
                    on_error(DataError(problem, path, line, advice))
                    record = None
        yield line, record


def read_document(path: Path) -> Any:
    """The JSON value of a whole file; raise `DataError` for invalid JSON."""
    try:
        return json.loads("".join(text for _, text in read_blocks(path)))
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        raise DataError(f"invalid JSON: {error}.", path, line, "To find the error, run: jq . FILE") from error


def _reject_long_document(path: Path) -> None:
    """Raise `DataError` for a JSON document of several lines."""
    try:
        document = read_document(path)
    except DataError:  # the error of the line is reported
        return
    raise _document_error(path, document)


def reject_document(entry: str | Path) -> None:
    """Raise `DataError` for a JSON document on a single line, such as SQuAD: an object with a list of objects."""
    path, ignored = existing_file(entry), list[DataError]()
    rows = (row for _, row in _read_jsonl(path, ignored.append, ()) if row)
    first = next(rows, {})
    if any(map(_is_record_list, first.values())) and next(rows, None) is None:
        raise _document_error(path, first)


def _document_error(path: Path, document: Any) -> DataError:
    found, program = f"a list of {len(document):,} values", ".[]"
    if isinstance(document, dict):
        found = f"one JSON document with the keys {', '.join(document)}"
        program = next((f".{key}[]" for key, value in document.items() if _is_record_list(value)), ".")
    problem = f"expected one JSON object per line, got {found}."
    return DataError(problem, path, advice=f"To convert the file, run: jq -c '{program}' FILE", kind="header")


def _is_record_list(value: object) -> bool:
    """True for a list of JSON objects."""
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _read_parquet(path: Path, on_error: ErrorHandler, columns: Sequence[ColumnPath]) -> Iterator[Row]:
    """Yield row numbers from 1 and values, in batches, so that a file can be larger than memory."""
    pyarrow = import_pyarrow(path)
    number = 0
    try:
        # reads a row group in parts of 1 MiB instead of as a whole
        with pyarrow.parquet.ParquetFile(path, buffer_size=1 << 20) as file:
            groups = range(file.metadata.num_row_groups)
            size = sum(file.metadata.row_group(group).total_byte_size for group in groups)
            rows = max(1, min(MAX_BATCH_ROWS, MAX_BATCH_BYTES * file.metadata.num_rows // max(size, 1)))
            top_level = list(dict.fromkeys(column[0] for column in columns)) or None
            for batch in file.iter_batches(batch_size=rows, columns=top_level):
                names, arrays = batch.schema.names, batch.columns
                if columns:
                    names, arrays = [column[-1] for column in columns], []
                    for outer, *fields in columns:
                        array = batch.column(outer)
                        arrays.append(pyarrow.compute.struct_field(array, fields) if fields else array)
                lists = [to_list(path, array, name, number) for name, array in zip(names, arrays, strict=True)]
                for values in zip(*lists, strict=True):
                    number += 1
                    yield number, dict(zip(names, values, strict=True))
    except (pyarrow.ArrowException, OSError) as error:
        raise _parquet_error(path, error, number) from error


def to_list(path: Path | str, array: Any, name: str, rows_before: int) -> list[Any]:
    """Values of an Arrow array; raise `DataError` for invalid UTF-8."""
    try:
        return list(array.to_pylist())
    except UnicodeDecodeError:
        for row in range(len(array)):
            try:
                array[row].as_py()
            except UnicodeDecodeError as error:
                byte = f"0x{error.object[error.start]:02x}"
                problem = f"invalid UTF-8 in '{name}' of row {rows_before + row + 1} (byte {byte})."
                raise DataError(problem, path, advice="Export the file again from UTF-8 text.") from error
        raise
    except ValueError:  # nanoseconds, without pandas
        return list(array.cast("string").to_pylist())


def _parquet_schema(path: Path) -> Any:
    """Arrow schema of a Parquet file."""
    pyarrow = import_pyarrow(path)
    try:
        return pyarrow.parquet.read_schema(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise _parquet_error(path, error) from error


def _parquet_error(path: Path, error: Exception, rows: int = 0) -> DataError:
    """Error of a file that failed after this number of rows."""
    if isinstance(error, OSError) and error.errno:
        return DataError(f"cannot be read: {error.strerror}.", path)
    if os.path.getsize(path) == 0:
        return DataError("the file is empty.", path)
    where = f" after row {rows:,}" if rows else ""
    reason = str(error).strip().partition("\n")[0].rstrip(".")
    advice = "Copy or download the file again."
    return DataError(f"not a Parquet file, or damaged{where} ({reason}).", path, advice=advice)


def import_pyarrow(path: Path) -> Any:
    """The library of Parquet files; a missing library is an error."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as error:
        raise RegardError(
            f"{path}: Parquet files require pyarrow (the extra regard[parquet]), which is not installed. "
            "Run: pip install pyarrow"
        ) from error
    return pyarrow


@dataclass(frozen=True)
class TableFormat:
    """Reader of the files with these extensions."""

    suffixes: tuple[str, ...]
    read: Callable[[Path, ErrorHandler, Sequence[ColumnPath]], Iterator[tuple[int, Any]]]
    """row numbers with a list of cells, or with values by column name (None for an empty row); a format with a schema
    reads only the given columns, or all columns if none are given"""
    row_hint: str = ""  # description of a row of a text file, for messages
    is_named: bool = True  # True if rows have column names; otherwise the first row may be a header
    schema: Callable[[Path], Any] | None = None  # Arrow schema of a binary file; text files may be gzipped


TAB_SUFFIXES = (".tsv", ".tab", ".txt")
JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
FORMATS = (
    TableFormat(
        TAB_SUFFIXES,
        lambda path, on_error, columns: ((line, text.split("\t")) for line, text in read_lines(path, on_error)),
        "tabs",
        is_named=False,
    ),
    TableFormat((".csv",), _read_csv, "commas", is_named=False),
    TableFormat(JSON_SUFFIXES, _read_jsonl, "one object per line"),
    TableFormat((".parquet", ".pq"), _read_parquet, schema=_parquet_schema),
)
_FORMAT_BY_SUFFIX = {suffix: form for form in FORMATS for suffix in form.suffixes}

ALL_TABLE_SUFFIXES = tuple(_FORMAT_BY_SUFFIX)
TABLE_SUFFIXES = tuple(suffix for suffix in ALL_TABLE_SUFFIXES if suffix != ".txt")
"""Extensions of files with columns. Plain text (.txt) has columns only if --columns is given."""
BINARY_SUFFIXES = tuple(suffix for suffix, form in _FORMAT_BY_SUFFIX.items() if form.schema is not None)


def file_format(path: str | Path) -> str:
    """Lowercased file extension, without .gz."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    return "".join(suffixes[-2:-1] if suffixes[-1:] == [".gz"] else suffixes[-1:])


def has_column_names(path: str | Path) -> bool:
    """True if the file format has column names in every row, so that no header can be missing."""
    form = _FORMAT_BY_SUFFIX.get(file_format(path))
    return form is not None and form.is_named


def find_format(path: Path, advice: str = "") -> TableFormat:
    """Format of a file by its extension; raise `DataError` for an unsupported extension."""
    form = _FORMAT_BY_SUFFIX.get(file_format(path))
    if form is not None and (form.schema is None or path.suffix.lower() != ".gz"):
        return form
    texts = (f"{' '.join(form.suffixes)} ({form.row_hint})" for form in FORMATS if form.schema is None)
    supported = f"Supported: {', '.join(texts)}, each also with .gz, and {' '.join(BINARY_SUFFIXES)}."
    raise unsupported_type(path, supported + advice)


def unsupported_type(path: Path, advice: str) -> DataError:
    suffix = file_format(path)
    problem = f"unsupported file type '{suffix}'." if suffix else "the file name has no extension."
    return DataError(problem, path, advice=advice)


def read_schema(path: Path) -> Any:
    """Arrow schema; None if the format has no schema, or the file cannot be read."""
    form = _FORMAT_BY_SUFFIX.get(file_format(path))
    try:
        return None if form is None or form.schema is None else form.schema(path)
    except DataError:  # reading the rows raises the error
        return None


def read_class_names(path: Path, column: str) -> tuple[str, ...]:
    """Class names of a column of a file; empty if missing."""
    return parse_class_names(getattr(read_schema(path), "metadata", None), column)


def parse_class_names(metadata: Mapping[bytes, bytes] | None, column: str) -> tuple[str, ...]:
    """Class names of a column from the metadata of the `datasets` library; empty if missing."""
    try:
        feature = json.loads((metadata or {})[b"huggingface"])["info"]["features"][column]
        feature = feature[0] if isinstance(feature, list) else feature.get("feature", feature)
        return tuple(map(str, feature["names"]))
    except (ValueError, LookupError, TypeError, AttributeError):
        return ()


def read_header(entry: str | Path) -> dict[str, bool]:
    """Column names from the first non-empty row of a file, with True for text columns.

    For a table without a header, the names are the values of the first row."""
    path = existing_file(entry)
    form = _FORMAT_BY_SUFFIX.get(file_format(path), FORMATS[0])
    if form.schema is not None:
        return {field.name: is_text(field.type) for field in read_schema(path) or ()}
    ignored: list[DataError] = []  # reading the rows reports the errors
    for _, row in form.read(path, ignored.append, ()):
        if isinstance(row, dict):
            return {name: isinstance(value, str) for name, value in row.items()}
        if row and any(map(str.strip, row)):
            return {cell.strip(): True for cell in row}
    return {}


def is_text(kind: Any) -> bool:
    """True for Arrow types of text, also if the values are stored in a dictionary."""
    name = str(kind.value_type if str(kind).startswith("dictionary") else kind)
    return name in ("string", "large_string", "string_view")
