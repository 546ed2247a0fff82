"""Pairs from Parquet files, batch by batch, so that a file may be larger than memory. Needs pyarrow."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from regard.data.columns import CHOOSE, SIDES, listed, short
from regard.errors import DataError, RegardError, UnknownName

BATCH = 4096
"""rows that are turned into text together"""
NESTED = "translation"
"""the column under which published sets keep their two languages"""


def parquet_rows(path: Path, wanted: tuple[str, str] | None) -> Iterator[tuple[int, str, str]]:
    """Each row with its number, from 1, its source and its target; a null is a blank text."""
    arrow, parquet = _library(path)
    if os.path.getsize(path) == 0:
        raise DataError("is empty.", path)
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            outer, names = _choose(path, file.schema_arrow, wanted)
            columns = [outer] if outer else list(dict.fromkeys(names))
            for batch in file.iter_batches(batch_size=BATCH, columns=columns):
                if outer:  # a null in place of both languages leaves both blank
                    pick = arrow.compute.struct_field
                    sides = [pick(batch.column(outer), [name]) for name in names]
                else:
                    sides = [batch.column(name) for name in names]
                for source, target in zip(*(_texts(path, sides[at], names[at], number) for at in (0, 1)), strict=True):
                    number += 1
                    yield number, source, target
    except (arrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise DataError(f"cannot be read: {error.strerror}.", path) from error
        where = f" after row {number:,}" if number else ""
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        advice = "Copy or download it again."
        raise DataError(f"is no Parquet file, or a damaged one{where} ({reason}).", path, advice=advice) from error


def _library(path: Path) -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as error:
        raise RegardError(
            f"{path}: Parquet files are read by pyarrow, which is not installed. Install it: pip install 'regard[parquet]'"
        ) from error
    return pyarrow, pyarrow.parquet


def _choose(path: Path, schema: Any, wanted: tuple[str, str] | None) -> tuple[str, tuple[str, str]]:
    """The outer column where the two are nested in one, else "", and the names of source and target."""
    kinds = {field.name: field.type for field in schema}
    outer = ""
    nested = kinds.get(NESTED)
    if nested is not None and _is_struct(nested) and not any(name in kinds for name in wanted or SIDES):
        outer, kinds = NESTED, {field.name: field.type for field in nested}
    texts = [name for name, kind in kinds.items() if _is_text(kind)]
    if wanted is None:
        if set(SIDES) <= kinds.keys():
            wanted = SIDES
        elif len(texts) == 2 and not outer:  # the fields of a struct are often in the order of the alphabet
            wanted = texts[0], texts[1]
        else:
            found = f"the languages of '{outer}' are not named source and target." if outer else _count(texts)
            raise DataError(found, path, advice=f"{CHOOSE}, of: {listed(texts)}.")
    for name in wanted:
        if name not in kinds:
            raise UnknownName("column", name, map(short, kinds), f"{path} has: {listed(kinds)}.")
        if not _is_text(kinds[name]):
            advice = f"{CHOOSE}, of: {listed(texts)}." if texts else "No column of it does."
            raise DataError(f"the column '{name}' holds {kinds[name]}, not text.", path, advice=advice)
    return outer, wanted


def _count(texts: list[str]) -> str:
    found = "no column" if not texts else "1 column" if len(texts) == 1 else f"{len(texts)} columns"
    return f"{found} of text {'was' if len(texts) == 1 else 'were'} found, and 2 are wanted."


def _is_struct(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_struct(kind))


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    tests: list[Callable[[Any], bool]] = [types.is_string, types.is_large_string]
    return any(test(kind) for test in (*tests, getattr(types, "is_string_view", types.is_string)))


def _texts(path: Path, column: Any, name: str, before: int) -> list[str]:
    try:
        return [text or "" for text in column.to_pylist()]
    except UnicodeDecodeError:
        for row in range(len(column)):
            try:
                column[row].as_py()
            except UnicodeDecodeError as error:
                problem = f"'{name}' of row {before + row + 1} is not UTF-8 (byte 0x{error.object[error.start]:02x})."
                raise DataError(problem, path, advice="Write the file again from text.") from error
        raise
