"""Rows of tables with paths of images or point clouds; Parquet may embed the files, as Hugging Face datasets do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.data.text.files import ErrorHandler, existing_file
from regard.data.text.formats import BINARY_SUFFIXES, Row, file_format, find_format, read_class_names, read_header
from regard.data.text.tables import ColumnSpec, format_list, iterate_rows, match_columns, shorten
from regard.errors import DataError, UnknownColumnError

COLUMN_ALIASES = {
    "image": ("image", "img", "picture", "photo", "image_path", "file_name", "filename", "file", "path"),
    "label": ("label", "class", "labels"),
    "mask": ("mask", "segmentation", "annotation", "label"),
    "depth": ("depth", "depth_map"),
    "cloud": ("cloud", "point_cloud", "pointcloud", "mesh", "scan", "file_name", "filename", "file", "path"),
}
"""Usual column names, in order of preference."""


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
    chosen = match_columns(read_header(path), {name: COLUMN_ALIASES[name] for name in names}, columns)
    complete = set(names) <= chosen.keys()
    if file_format(path) in BINARY_SUFFIXES:
        return _embedded_rows(path, names, chosen if columns or complete else {}, on_error)
    numeric = tuple(name for name in names if name == "label")
    rows = iterate_rows(entry, names, chosen if columns or complete else None, on_error, numeric=numeric)
    return ((line, {name: value.strip() for name, value in row.items()}) for line, row in rows)


def _embedded_rows(
    path: Path, names: tuple[str, ...], columns: Mapping[str, str], on_error: ErrorHandler
) -> Iterator[Row]:
    """Yield the rows of a file with a schema, such as Parquet."""
    form = find_format(path)
    existing = [item.name for item in form.schema(path)] if form.schema is not None else []
    for name in columns.values():
        if name not in existing:
            raise UnknownColumnError(name, map(shorten, existing), f"Columns in {path}: {format_list(existing)}.")
    if not set(names) <= columns.keys():
        choices = " ".join(f"{name}=NAME" for name in names)
        advice = f"Pass --columns {choices} (available: {format_list(existing)})."
        raise DataError(f"no columns found for {' and '.join(names)}.", path, advice=advice)
    classes = read_class_names(path, columns.get("label", ""))
    for number, record in form.read(path, on_error, [(name,) for name in dict.fromkeys(columns.values())]):
        try:
            row = {name: cell_value(path, number, record[column], column) for name, column in columns.items()}
        except DataError as error:
            on_error("format", error)
            continue
        label = row.get("label")
        if isinstance(label, str) and label.isdigit() and int(label) < len(classes):
            row["label"] = classes[int(label)]
        yield number, row


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
