"""Samples that are files, such as images and point clouds: class folders, other folders, and tables with paths.

Parquet may embed the files, as Hugging Face datasets do. Files are not decoded here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from regard.data.file_discovery import find_subfolder, walk_files
from regard.data.memory_tables import is_saved_file, table_folders
from regard.data.text import tables
from regard.data.text.files import Columns, existing_file, is_url, raise_error
from regard.data.text.formats import (
    BINARY_SUFFIXES,
    Row,
    file_format,
    find_format,
    has_column_names,
    read_class_names,
    read_header,
)
from regard.errors import DataError

COLUMN_ALIASES = {
    "image": ("image", "img", "picture", "photo", "image_path", "file_name", "filename", "file", "path"),
    "label": ("label", "class", "labels"),
    "mask": ("mask", "segmentation", "annotation", "label"),
    "depth": ("depth", "depth_map"),
    "cloud": ("cloud", "point_cloud", "pointcloud", "mesh", "scan", "file_name", "filename", "file", "path"),
}
"""Usual column names, in order of preference."""
SPLIT_FOLDERS = ("train", "training", "valid", "val", "validation", "dev", "test", "testing")
"""Folders with these names are splits of the data, not classes."""

S = TypeVar("S")


@dataclass(frozen=True)
class FileKind:
    """Kind of files in folders and tables."""

    noun: str
    column: str  # column of a table with the files
    suffixes: tuple[str, ...]
    folders: tuple[str, ...]  # names of a folder next to a table with the files, the usual name first


@dataclass(frozen=True)
class EmbeddedFile:
    """A file embedded in a table."""

    content: bytes = field(repr=False)
    name: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class FileSample:
    """A file with its label, and the location in the data."""

    source: str  # path, or name of a generated sample; for an embedded file its name, or empty
    label: str = ""  # class; empty for other targets and for unlabeled inputs
    path: str = ""  # table, folder or dataset name
    line: int = 0  # row of the table, or number of the file in the folder
    content: bytes = field(default=b"", repr=False)  # content of a file embedded in a table

    @property
    def location(self) -> tuple[str, int] | None:
        """Table and row of an embedded file, for error messages; else None."""
        return (self.path, self.line) if self.content or is_saved_file(self.source, self.path) else None


# -- folders


def read_folder(
    kind: FileKind, entry: str, has_classes: bool, make: Callable[..., S]
) -> Iterator[S | tables.SkippedRow]:
    """Yield `make(path, label, line=number)` of the files of a folder, at any depth; other files become `SkippedRow`.

    With `has_classes`, the first subfolder is the label; deeper folders have no meaning."""
    labeled = outside = 0
    for number, file in enumerate(walk_files(os.path.expanduser(entry), kind.suffixes, kind.noun), start=1):
        label = file.parts[0] if has_classes and len(file.parts) > 1 else ""
        if file.reason:
            yield tables.SkippedRow(entry, number, file.reason)
        elif has_classes and not label:
            outside += 1
            yield tables.SkippedRow(entry, number, f"not in a class folder: {file.name}")
        else:
            labeled += 1
            yield make(file.path, label, line=number)
    if outside and not labeled:
        advice = "Create one folder per class (the folder name is the label), or pass a table with the labels."
        raise DataError(f"no class folders, only {outside:,} {kind.noun}{'s'[: outside > 1]}.", entry, advice=advice)


def subfolder_names(entry: str) -> list[str]:
    """Names of the subfolders that are not hidden, sorted."""
    with os.scandir(os.path.expanduser(entry)) as items:
        return sorted(item.name for item in items if item.is_dir() and not item.name.startswith("."))


def reject_split_folders(entry: str, names: Sequence[str]) -> None:
    """Raise `DataError` if all folders are splits of the data, because each split is passed separately."""
    if names and all(name.lower() in SPLIT_FOLDERS for name in names):
        held_out = [name for name in names if not name.lower().startswith("train")]
        valid = f" --valid {os.path.join(entry, held_out[0])}" if held_out and len(names) > 1 else ""
        first = next((name for name in names if name.lower().startswith("train")), names[0])
        problem = f"expected class folders, found splits of the data ({tables.format_list(names)})."
        raise DataError(
            problem, entry, advice=f"Pass each split separately: --data {os.path.join(entry, first)}{valid}."
        )


# -- tables


def read_table(kind: FileKind, entry: str, target: str, columns: Columns, make: Callable[..., S]) -> tables.Samples[S]:
    """Yield `make(path, value, line=…, content=…)` of each row of a table, with the value of the column `target`, if any."""

    def make_sample(line: int, row: Mapping[str, Any]) -> S | tables.SkippedRow:
        file, value = row[kind.column], row[target] if target else ""
        fields = {kind.noun: str(file), target: str(value)}
        if (skipped := tables.find_missing(entry, line, fields, () if target else ("",))) is not None:
            return skipped
        if target == "label" and isinstance(value, EmbeddedFile):
            problem = "the label is binary data, not text."
            raise DataError(problem, entry, line, "Pass --columns label=NAME.", "missing")
        source, content = resolve_file(kind, entry, line, file)
        return make(source, value, line=line, content=content)

    names = (kind.column, target) if target else (kind.column,)
    tables.ColumnSpec(names, columns)  # raises for an unknown column choice
    path = existing_file(entry)
    chosen = tables.match_columns(read_header(path), {name: COLUMN_ALIASES[name] for name in names}, columns)
    used = chosen if columns or set(names) <= chosen.keys() else None
    if file_format(path) in BINARY_SUFFIXES:
        rows = _embedded_rows(path, names, used or {})
    elif has_column_names(path):
        aliases = {name: COLUMN_ALIASES[name] for name in names}
        records = tables.read_records(path, None, aliases, names, columns)
        rows = tables.convert_rows(
            records, lambda line, row: {name: cell_value(path, line, row.get(name), name) for name in names}
        )
    else:
        cells = tables.iterate_rows(entry, names, used, numeric=("label",))
        rows = tables.convert_rows(cells, lambda line, row: {name: value.strip() for name, value in row.items()})
    return tables.make_samples(rows, make_sample)


def _embedded_rows(path: Path, names: tuple[str, ...], columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield the rows of a file with a schema, such as Parquet, or the errors of invalid rows."""
    form = find_format(path)
    existing = [item.name for item in form.schema(path)] if form.schema is not None else []
    tables.require_columns(columns.values(), existing, f"Columns in {path}")
    if not set(names) <= columns.keys():
        choices = " ".join(f"{name}=NAME" for name in names)
        advice = f"Pass --columns {choices} (available: {tables.format_list(existing)})."
        raise DataError(f"no columns found for {' and '.join(names)}.", path, advice=advice)
    classes = read_class_names(path, columns.get("label", ""))

    def convert(number: int, record: Mapping[str, Any]) -> dict[str, Any]:
        row = {name: cell_value(path, number, record[column], column) for name, column in columns.items()}
        label = row.get("label")
        if isinstance(label, str) and label.isdigit() and int(label) < len(classes):
            row["label"] = classes[int(label)]
        return row

    records = form.read(path, raise_error, [(name,) for name in dict.fromkeys(columns.values())])
    return tables.convert_rows(records, convert)


def cell_value(path: Path, row: int, value: Any, column: str) -> Any:
    """Text of a cell, or an `EmbeddedFile`."""
    if isinstance(value, bytes):
        value = {"bytes": value}
    if isinstance(value, dict) and {"bytes", "path"} & value.keys():
        content, name = value.get("bytes"), value.get("path") or ""
        return EmbeddedFile(content, name) if content else name
    if isinstance(value, str | None):
        return (value or "").strip()
    if isinstance(value, int | float):  # includes bool
        return json.dumps(value)
    advice = "Expected a path, the bytes of a file, or a class."
    raise DataError(f"unsupported value in '{column}' ({type(value).__name__}).", path, row, advice)


def resolve_file(
    kind: FileKind,
    entry: str,
    line: int | None,
    value: str | EmbeddedFile,
    noun: str = "",
    folders: Sequence[str] | None = None,
) -> tuple[str, bytes]:
    """Path of an existing file and b"", or name and content of an embedded file; `noun` names the file in errors.

    `folders` are searched for the file; None: the folder of relative paths and its subfolder of files."""
    if isinstance(value, EmbeddedFile):
        return value.name, value.content
    if is_url(value):
        problem = f"URLs are not supported: '{value[:80]}'."
        raise DataError(problem, entry, line, "Download the file and use its path.", "missing")
    own = table_folders(entry)
    for folder in (*own, None) if folders is None else folders:
        if folder is None:
            folder = find_subfolder(own[-1] or ".", kind.folders)
        if folder is not None and os.path.isfile(path := os.path.join(folder, os.path.expanduser(value))):
            return path, b""
    start = "folder of the table" if len(own) == 1 else "working directory"
    advice = f"Paths are relative to the {start}, or to a folder '{kind.folders[0]}' there."
    if line == 1:
        advice += f" If the first row is a header, pass --columns {kind.column}=NAME."
    raise DataError(f"{noun or kind.noun} '{value[:80]}' not found.", entry, line, advice, "missing")
