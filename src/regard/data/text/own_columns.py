"""All columns of a table, unchanged, for tables of predictions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any

from regard.data.text.files import Columns, existing_file, raise_error
from regard.data.text.formats import Row, find_format, read_schema
from regard.errors import DataError

TEXT_TYPES = (date, time, timedelta, Decimal)  # values that become texts


def read_own_rows(entry: str, columns: Columns = None) -> Iterator[Row]:
    """Line numbers and rows of a table: cells, values by column, or None for an empty or invalid row. Columns of Parquet with
    binary values are left out."""
    path = existing_file(entry)
    form, ignored = find_format(path), list[DataError]()  # the reader of the task reports the errors
    if form.schema is None:
        yield from form.read(path, ignored.append, ())
        return
    names = [(field.name,) for field in form.schema(path) if not _is_binary(field.type)]
    for number, row in form.read(path, raise_error, names):
        yield number, {name: _to_json(value) for name, value in row.items()}


class OwnColumns:
    """Values of all columns of the rows of a table by line. `rows`: as of `read_own_rows`; None: a file without columns."""

    def __init__(self, rows: Iterator[Row] | None) -> None:
        self._rows = rows
        self._next = None if rows is None else next(rows, None)
        self._header: Sequence[str] = ()

    def at(self, line: int) -> dict[str, Any] | None:
        """Values of the row on this line, empty for an empty or invalid row; None for a file without columns. Lines must
        increase.

        A row above the first line is a header. Columns without a name are named by their position: `column_0`."""
        if self._rows is None:
            return None
        while self._next is not None and self._next[0] < line:
            row = self._next[1]
            if isinstance(row, list) and not self._header and any(map(str.strip, row)):
                self._header = unique_names(row)
            self._next = next(self._rows, None)
        if self._next is None or self._next[0] != line:
            return {}
        row = self._next[1]
        if not isinstance(row, list):
            return dict(row or {})
        if not any(map(str.strip, row)):
            return {}
        self._header = self._header or unique_names([""] * len(row))
        return dict(zip(self._header, row, strict=False))


def column_types(entries: Iterable[str]) -> dict[str, Any]:
    """Arrow types of the columns of files with a schema, if all of these files agree."""
    found: dict[str, set[Any]] = {}
    for entry in entries:
        for field in read_schema(existing_file(entry)) or ():
            found.setdefault(field.name, set()).add(field.type)
    return {name: kinds.pop() for name, kinds in found.items() if len(kinds) == 1}


def unique_names(cells: Sequence[str]) -> list[str]:
    """Names of columns from the cells of a header, without empty and equal names."""
    names: list[str] = []
    for place, cell in enumerate(cells):
        name = base = cell.strip() or f"column_{place}"
        number = 1
        while name in names:
            number += 1
            name = f"{base}_{number}"
        names.append(name)
    return names


def _is_binary(kind: Any) -> bool:
    """True for Arrow types of bytes, and of lists and structs with bytes."""
    inner = [kind.field(place).type for place in range(kind.num_fields)]
    return "binary" in str(kind) if not inner else any(map(_is_binary, inner))


def _to_json(value: Any) -> Any:
    """Value for JSON; dates, times and decimal numbers become texts."""
    if isinstance(value, dict):
        return {name: _to_json(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_to_json(item) for item in value]
    return str(value) if isinstance(value, TEXT_TYPES) else value
