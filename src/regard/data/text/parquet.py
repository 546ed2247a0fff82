"""Rows of Parquet files, read in batches, so that a file can be larger than memory. Requires pyarrow."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from regard.data.text.columns import ColumnSpec, format_list, shorten
from regard.errors import DataError, RegardError, UnknownColumnError

MAX_BATCH_ROWS = 4096
"""maximum number of rows converted at once"""
MAX_BATCH_BYTES = 1 << 24
"""approximate maximum number of bytes converted at once"""
TRANSLATION_COLUMN = "translation"
"""struct column with one field per language in Hugging Face translation datasets"""


def parquet_rows(path: Path, spec: ColumnSpec) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield row numbers from 1 and values; null becomes an empty text."""
    arrow, parquet = _import_pyarrow(path)
    if os.path.getsize(path) == 0:
        raise DataError("the file is empty.", path)
    number = 0
    try:
        # reads a row group in parts of 1 MiB instead of as a whole
        with parquet.ParquetFile(path, buffer_size=1 << 20) as file:
            outer, names = _choose_columns(path, file.schema_arrow, spec)
            columns = [outer] if outer else list(dict.fromkeys(names.values()))
            for batch in file.iter_batches(batch_size=_batch_rows(file.metadata), columns=columns):
                if outer:  # a null struct becomes null in both languages
                    pick = arrow.compute.struct_field
                    found = [pick(batch.column(outer), [name]) for name in names.values()]
                else:
                    found = [batch.column(name) for name in names.values()]
                columns_of = zip(found, names.values(), strict=True)
                for values in zip(*(_to_texts(path, column, name, number) for column, name in columns_of), strict=True):
                    number += 1
                    yield number, dict(zip(names, values, strict=True))
    except (arrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise DataError(f"cannot be read: {error.strerror}.", path) from error
        where = f" after row {number:,}" if number else ""
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        advice = "Copy or download the file again."
        raise DataError(f"not a Parquet file, or damaged{where} ({reason}).", path, advice=advice) from error


def parquet_columns(path: Path) -> dict[str, bool]:
    """Column names, with True for text columns."""
    arrow, parquet = _import_pyarrow(path)
    try:
        return {field.name: _is_text(field.type) for field in parquet.read_schema(path)}
    except (arrow.ArrowException, OSError):
        return {}  # reading the rows raises the error


def _import_pyarrow(path: Path) -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as error:
        raise RegardError(
            f"{path}: reading Parquet files requires pyarrow, which is not installed. Run: pip install pyarrow"
        ) from error
    return pyarrow, pyarrow.parquet


def _batch_rows(metadata: Any) -> int:
    """Rows per batch; fewer if the rows are long."""
    size = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    return max(1, min(MAX_BATCH_ROWS, MAX_BATCH_BYTES * metadata.num_rows // max(size, 1)))


def _choose_columns(path: Path, schema: Any, wanted: ColumnSpec) -> tuple[str, dict[str, str]]:
    """Struct column that contains the requested columns, else "", and the column names in the file."""
    kinds = {field.name: field.type for field in schema}
    outer = ""
    nested = kinds.get(TRANSLATION_COLUMN)
    if (
        nested is not None
        and _is_struct(nested)
        and not any(name in kinds for name in wanted.required_columns.values())
    ):
        outer, kinds = TRANSLATION_COLUMN, {field.name: field.type for field in nested}
    texts = [name for name, kind in kinds.items() if _is_text(kind)]
    if wanted.overrides is None and not set(wanted.required) <= kinds.keys():
        if len(texts) == len(wanted.required) and not outer:  # struct fields are often sorted, so order is not used
            return outer, dict(zip(wanted.required, texts, strict=True))
        found = f"column '{outer}' has no fields named {' and '.join(wanted.required)}."
        raise DataError(
            found if outer else wanted.count_message(len(texts), "text "),
            path,
            advice=f"{wanted.choose_hint} (available: {format_list(texts)}).",
        )
    for name in wanted.required_columns.values():
        if name not in kinds:
            raise UnknownColumnError(name, map(shorten, kinds), f"Columns in {path}: {format_list(kinds)}.")
    for name, column in wanted.present_columns(kinds).items():
        if not _is_supported(kinds[column], number=name in wanted.numeric, several=name.endswith("s")):
            advice = (
                f"{wanted.choose_hint} (available: {format_list(texts)})." if texts else "The file has no text columns."
            )
            raise DataError(f"expected text in column '{column}', got {kinds[column]}.", path, advice=advice)
    return outer, wanted.present_columns(kinds)


def _is_struct(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_struct(kind))


def _is_supported(kind: Any, number: bool, several: bool) -> bool:
    from pyarrow import types

    if several and (types.is_list(kind) or types.is_large_list(kind)):
        kind = kind.value_type
    tests = [types.is_integer, types.is_floating, types.is_boolean] if number else []
    return _is_text(kind) or any(test(kind) for test in tests)


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    tests: list[Callable[[Any], bool]] = [types.is_string, types.is_large_string]
    return any(test(kind) for test in (*tests, getattr(types, "is_string_view", types.is_string)))


def _to_texts(path: Path, column: Any, name: str, before: int) -> list[Any]:
    try:
        return [value if isinstance(value, str) else _to_text(value) for value in column.to_pylist()]
    except UnicodeDecodeError:
        for row in range(len(column)):
            try:
                column[row].as_py()
            except UnicodeDecodeError as error:
                problem = (
                    f"invalid UTF-8 in '{name}' of row {before + row + 1} (byte 0x{error.object[error.start]:02x})."
                )
                raise DataError(problem, path, advice="Export the file again from UTF-8 text.") from error
        raise


def _to_text(value: Any) -> Any:
    """Text of a value: empty for None, a list for a list, JSON for a number."""
    if value is None:
        return ""
    if isinstance(value, list):
        return [item if isinstance(item, str) else _to_text(item) for item in value]
    return json.dumps(value)
