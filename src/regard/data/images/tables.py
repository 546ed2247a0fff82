"""Rows of tables that name pictures or clouds, or hold them: Parquet may have their bytes, as published sets have."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.data.text.columns import Wanted, listed, short
from regard.data.text.files import Complain, existing
from regard.data.text.parquet import parquet_names
from regard.data.text.tables import PARQUET, Row, format_of, heading, iterate_rows
from regard.errors import DataError, UnknownColumn

CALLED = {
    "image": ("image", "img", "picture", "photo", "image_path", "file_name", "filename", "file", "path"),
    "label": ("label", "class", "labels"),
    "mask": ("mask", "segmentation", "annotation", "label"),
    "depth": ("depth", "depth_map"),
    "cloud": ("cloud", "point_cloud", "pointcloud", "mesh", "scan", "file_name", "filename", "file", "path"),
}
"""What columns may be called, the likeliest first."""
ROOM = 1 << 24
"""bytes of a table that are read together"""


@dataclass(frozen=True)
class Inside:
    """A file that lies in a table."""

    content: bytes = field(repr=False)
    name: str = ""


def iterate_table(
    entry: str, beside: str, columns: Mapping[str, str] | None, complain: Complain, first: str = "image"
) -> Iterator[Row]:
    """Of each row the line and the values of `first`, a picture or a cloud, and of what stands `beside` it: texts, or what lies
    `Inside`."""
    names = (first, beside) if beside else (first,)
    Wanted(names, columns)  # a wrong choice is refused before names are looked for
    path = existing(entry)
    if format_of(path) in PARQUET:
        return _parquet(path, names, _chosen(parquet_names(path), names, columns), complain)
    chosen = _chosen(heading(entry), names, columns)
    rows = iterate_rows(entry, names, chosen, complain, numbers=tuple(name for name in names if name == "label"))
    return ((line, {name: value.strip() for name, value in row.items()}) for line, row in rows)


def _chosen(
    there: Mapping[str, bool], names: Sequence[str], columns: Mapping[str, str] | None
) -> dict[str, str] | None:
    """What is called how: as a person said, else by the names that such columns have; None: by their order."""
    said = dict(columns or {})
    small = {name.lower(): name for name in there}
    for name in names:
        taken = set(said.values())
        known = next((small[word] for word in CALLED[name] if word in small and small[word] not in taken), None)
        if name not in said and known is not None:
            said[name] = known
    return said if said and (columns or set(names) <= said.keys()) else None


# -- Parquet


def _parquet(path: Path, names: Sequence[str], chosen: Mapping[str, str] | None, complain: Complain) -> Iterator[Row]:
    import pyarrow  # that it is there was seen when the names were read
    from pyarrow import parquet

    if os.path.getsize(path) == 0:
        raise DataError("is empty.", path)
    number = 0
    try:
        with parquet.ParquetFile(path, buffer_size=1 << 20) as file:
            columns = _columns(path, file.schema_arrow, names, chosen)
            classes = _class_names(file.schema_arrow, columns.get("label", ""))
            size = sum(file.metadata.row_group(group).total_byte_size for group in range(file.metadata.num_row_groups))
            batch = max(1, min(1024, ROOM * file.metadata.num_rows // max(size, 1)))
            for rows in file.iter_batches(batch_size=batch, columns=list(dict.fromkeys(columns.values()))):
                for values in rows.to_pylist():
                    number += 1
                    try:
                        found = {
                            name: value_in(path, number, values[column], column) for name, column in columns.items()
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
        advice = "Copy or download it again."
        raise DataError(f"is no Parquet file, or a damaged one{where} ({reason}).", path, advice=advice) from error


def _columns(path: Path, schema: Any, names: Sequence[str], chosen: Mapping[str, str] | None) -> dict[str, str]:
    there = [item.name for item in schema]
    if chosen is None:
        said, what = " ".join(f"{name}=NAME" for name in names), "clouds" if names[0] == "cloud" else "pictures"
        advice = f"Say which to use: --columns {said}, of: {listed(there)}."
        raise DataError(f"no columns have names that {what} and what belongs to them have.", path, advice=advice)
    for name in chosen.values():
        if name not in there:
            raise UnknownColumn(name, map(short, there), f"{path} has: {listed(there)}.")
    return dict(chosen)


def _class_names(schema: Any, column: str) -> list[str]:
    """The names of numbered classes, where the library `datasets` wrote them beside the columns."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return [str(name) for name in features[column]["names"]]
    except (KeyError, TypeError, ValueError):
        return []


def value_in(path: Path, row: int, value: Any, column: str) -> Any:
    """A text, or a file that lies in the table."""
    if isinstance(value, dict) and {"bytes", "path"} & value.keys():
        content, name = value.get("bytes"), value.get("path") or ""
        return Inside(content, name) if content else name
    if isinstance(value, bytes):
        return Inside(value) if value else ""
    if value is None:
        return ""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, int | float):  # True too
        return json.dumps(value)
    advice = "A path, the bytes of a file, or a class is wanted."
    raise DataError(f"'{column}' holds a {type(value).__name__}.", path, row, advice)
