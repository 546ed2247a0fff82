"""Rows of tables with paths of images or point clouds; Parquet may embed the files, as Hugging Face datasets do."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.data.text.columns import ColumnSpec, format_list, shorten
from regard.data.text.files import ErrorHandler, existing_file
from regard.data.text.parquet import parquet_columns
from regard.data.text.tables import PARQUET_SUFFIXES, Row, file_format, iterate_rows, read_header
from regard.errors import DataError, UnknownColumnError

COLUMN_ALIASES = {
    "image": ("image", "img", "picture", "photo", "image_path", "file_name", "filename", "file", "path"),
    "label": ("label", "class", "labels"),
    "mask": ("mask", "segmentation", "annotation", "label"),
    "depth": ("depth", "depth_map"),
    "cloud": ("cloud", "point_cloud", "pointcloud", "mesh", "scan", "file_name", "filename", "file", "path"),
}
"""Usual column names, in order of preference."""
MAX_BATCH_BYTES = 1 << 24
"""approximate bytes of a Parquet table read at once"""


@dataclass(frozen=True)
class EmbeddedFile:
    """A file embedded in a table."""

    content: bytes = field(repr=False)
    name: str = ""


def iterate_file_table(
    entry: str, target: str, columns: Mapping[str, str] | None, on_error: ErrorHandler, input_column: str = "image"
) -> Iterator[Row]:
    """Yield the line of each row and the values of `input_column` (an image or a point cloud) and of `target`, if given.

    Values are text, or an `EmbeddedFile` if the table contains the file."""
    names = (input_column, target) if target else (input_column,)
    ColumnSpec(names, columns)  # raises for an unknown column choice
    path = existing_file(entry)
    if file_format(path) in PARQUET_SUFFIXES:
        return _parquet_rows(path, names, _resolve_columns(parquet_columns(path), names, columns), on_error)
    chosen = _resolve_columns(read_header(entry), names, columns)
    rows = iterate_rows(entry, names, chosen, on_error, numeric=tuple(name for name in names if name == "label"))
    return ((line, {name: value.strip() for name, value in row.items()}) for line, row in rows)


def _resolve_columns(
    there: Mapping[str, bool], names: Sequence[str], columns: Mapping[str, str] | None
) -> dict[str, str] | None:
    """Column names in the file: as chosen by the user, else the usual names; None: by column order."""
    said = dict(columns or {})
    small = {name.lower(): name for name in there}
    for name in names:
        taken = set(said.values())
        known = next((small[word] for word in COLUMN_ALIASES[name] if word in small and small[word] not in taken), None)
        if name not in said and known is not None:
            said[name] = known
    return said if said and (columns or set(names) <= said.keys()) else None


# -- Parquet


def _parquet_rows(
    path: Path, names: Sequence[str], chosen: Mapping[str, str] | None, complain: ErrorHandler
) -> Iterator[Row]:
    import pyarrow  # parquet_columns has checked that pyarrow is installed
    from pyarrow import parquet

    if os.path.getsize(path) == 0:
        raise DataError("the file is empty.", path)
    number = 0
    try:
        with parquet.ParquetFile(path, buffer_size=1 << 20) as file:
            columns = _check_columns(path, file.schema_arrow, names, chosen)
            classes = _class_names(file.schema_arrow, columns.get("label", ""))
            size = sum(file.metadata.row_group(group).total_byte_size for group in range(file.metadata.num_row_groups))
            batch = max(1, min(1024, MAX_BATCH_BYTES * file.metadata.num_rows // max(size, 1)))
            for rows in file.iter_batches(batch_size=batch, columns=list(dict.fromkeys(columns.values()))):
                for values in rows.to_pylist():
                    number += 1
                    try:
                        found = {
                            name: cell_value(path, number, values[column], column) for name, column in columns.items()
                        }
                    except DataError as error:
                        complain("format", error)
                        continue
                    label = found.get("label")
                    if isinstance(label, str) and label.isdigit() and int(label) < len(classes):
                        found["label"] = classes[int(label)]
                    yield number, found
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        where = f" after row {number:,}" if number else ""
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        advice = "Copy or download the file again."
        raise DataError(f"not a Parquet file, or damaged{where} ({reason}).", path, advice=advice) from error


def _check_columns(path: Path, schema: Any, names: Sequence[str], chosen: Mapping[str, str] | None) -> dict[str, str]:
    there = [item.name for item in schema]
    if chosen is None:
        hint = " ".join(f"{name}=NAME" for name in names)
        advice = f"Pass --columns {hint} (available: {format_list(there)})."
        raise DataError(f"no columns found for {' and '.join(names)}.", path, advice=advice)
    for name in chosen.values():
        if name not in there:
            raise UnknownColumnError(name, map(shorten, there), f"Columns in {path}: {format_list(there)}.")
    return dict(chosen)


def _class_names(schema: Any, column: str) -> list[str]:
    """Class names from the metadata of the `datasets` library; empty if missing."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return [str(name) for name in features[column]["names"]]
    except (KeyError, TypeError, ValueError):
        return []


def cell_value(path: Path, row: int, value: Any, column: str) -> Any:
    """Text of a cell, or an `EmbeddedFile`."""
    if isinstance(value, dict) and {"bytes", "path"} & value.keys():
        content, name = value.get("bytes"), value.get("path") or ""
        return EmbeddedFile(content, name) if content else name
    if isinstance(value, bytes):
        return EmbeddedFile(value) if value else ""
    if value is None:
        return ""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, int | float):  # includes bool
        return json.dumps(value)
    advice = "Expected a path, the bytes of a file, or a class."
    raise DataError(f"unsupported value in '{column}' ({type(value).__name__}).", path, row, advice)
