"""Tables of predictions as CSV, TSV, JSONL and Parquet files.

Rows are written to a temporary file of JSON values first, because only all rows determine the columns and their types."""

from __future__ import annotations

import csv
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from regard.data.text.files import chunked
from regard.data.text.formats import import_pyarrow
from regard.errors import RegardError, RunError
from regard.files import replacing

OUTPUT_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
BATCH_ROWS = 1024  # rows of Parquet converted at once
INPUT_COLUMN = "{}_input"  # name of a column of the input with the name of a column of predictions

Values = Mapping[str, Any]
_MUST_QUOTE = re.compile(r'"|.*[\t\r\n]', re.DOTALL)


def check_output(path: Path) -> None:
    """Raise an error for a format that is not supported, a missing library, or an existing file."""
    if path.exists():
        raise RunError(
            f"{path} exists. Choose another name, or remove {'the folder' if path.is_dir() else 'the file'}."
        )
    if path.suffix.lower() not in OUTPUT_SUFFIXES:
        raise RegardError(f"{path}: unsupported file type. Supported: {', '.join(OUTPUT_SUFFIXES)}.")
    if path.suffix.lower() == ".parquet":
        import_pyarrow(path)


class TableWriter:
    """Rows of a new table file, which appears when the context ends without an error.

    The columns of the input come first, then the columns of predictions. A column of the input with the name of a column of
    predictions is renamed, unless all values are equal."""

    def __init__(self, path: Path, separator: str = " ", types: Values | None = None) -> None:
        """`separator`: of lists of predictions in text formats. `types`: Arrow types of columns of the input."""
        self.path, self.separator, self.types = path, separator, dict(types or {})
        self.own: dict[str, set[str]] = {}  # kinds of the values by column of the input
        self.predicted: dict[str, set[str]] = {}  # kinds of the values by column of predictions
        self.differing: set[str] = set()  # columns of predictions with other values than the column of the input
        self._stack = ExitStack()

    def __enter__(self) -> TableWriter:
        with self._disk_errors():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._rows = self._stack.enter_context(tempfile.TemporaryFile("w+b", dir=self.path.parent))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack, self._disk_errors():
            if kind is None:
                self._convert()

    def write(self, own: Values, predicted: Values) -> None:
        """Add a row: the columns of the input, and the columns of the prediction."""
        for columns, values in ((self.own, own), (self.predicted, predicted)):
            for name, value in values.items():
                columns.setdefault(name, set()).add(_kind(value))
        self.differing |= {name for name in predicted if name not in own or not self._equal(own[name], predicted[name])}
        # a lone surrogate becomes an escape
        line = json.dumps([own, predicted], ensure_ascii=False).encode("utf-8", "backslashreplace")
        with self._disk_errors():
            self._rows.write(line + b"\n")

    def _equal(self, own: Any, predicted: Any) -> bool:
        return bool(own == predicted) or cell(own) == cell(predicted, self.separator)

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RegardError(f"Cannot write '{self.path}': {error.strerror or error}.") from error

    # -- conversion

    def _convert(self) -> None:
        while self.path.exists():  # another program has written a file of this name
            stem, dash, number = self.path.stem.rpartition("-")
            is_numbered = bool(dash) and number.isdigit()
            self.path = self.path.with_stem(f"{stem}-{int(number) + 1}" if is_numbered else f"{self.path.stem}-2")
        own = {name: name for name in self.own}
        for name in self.own.keys() & self.differing:
            while own[name] in self.own or own[name] in self.predicted:
                own[name] = INPUT_COLUMN.format(own[name])
        predicted = [name for name in self.predicted if name not in self.own or name in self.differing]
        predicted.sort(key=lambda name: name == "error")  # the last column
        writers: dict[str, Callable[..., None]] = {".jsonl": self._write_jsonl, ".parquet": self._write_parquet}
        with replacing(self.path) as aside:
            writers.get(self.path.suffix.lower(), self._write_text)(aside, own, predicted)

    def _read_rows(self) -> Iterator[tuple[Values, Values]]:
        self._rows.seek(0)
        return map(json.loads, self._rows)

    def _write_jsonl(self, path: Path, own: Mapping[str, str], predicted: Sequence[str]) -> None:
        with path.open("wb") as file:
            for theirs, ours in self._read_rows():
                row = {own[name]: value for name, value in theirs.items()}
                row |= {name: value for name, value in ours.items() if name in predicted}
                file.write(json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")

    def _write_text(self, path: Path, own: Mapping[str, str], predicted: Sequence[str]) -> None:
        with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            write: Callable[[list[str]], Any] = csv.writer(file, lineterminator="\n").writerow
            if self.path.suffix.lower() == ".tsv":
                write = lambda cells: file.write("\t".join(map(_quote_tsv, cells)) + "\n")  # noqa: E731
            if own or predicted:
                write([*own.values(), *predicted])
            shared = {name: self.separator for name in self.predicted if name not in self.differing}
            for theirs, ours in self._read_rows():
                cells = [cell(theirs.get(name), shared.get(name, "")) for name in own]
                write(cells + [cell(ours.get(name), self.separator) for name in predicted])

    def _write_parquet(self, path: Path, own: Mapping[str, str], predicted: Sequence[str]) -> None:
        pyarrow = import_pyarrow(path)
        types = {name: self.types.get(name) for name in own}
        types = {
            name: kind if _is_writable(kind) else _arrow_type(pyarrow, self.own[name]) for name, kind in types.items()
        }
        ours = {name: _arrow_type(pyarrow, self.predicted[name]) for name in predicted}
        columns = [(0, name, own[name], kind) for name, kind in types.items()]
        columns += [(1, name, name, kind) for name, kind in ours.items()]
        schema = pyarrow.schema([(shown, kind) for _, _, shown, kind in columns])
        with pyarrow.parquet.ParquetWriter(path, schema) as writer:
            for rows in chunked(self._read_rows(), BATCH_ROWS):
                arrays = [
                    _to_array(pyarrow, [row[side].get(name) for row in rows], kind) for side, name, _, kind in columns
                ]
                writer.write_batch(pyarrow.record_batch(arrays, schema))


def cell(value: Any, separator: str = "") -> str:
    """Value in a text format. With a separator, lists of texts and numbers are joined; other lists are JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    if separator and isinstance(value, list) and not any(isinstance(item, list | dict) for item in value):
        return separator.join(map(cell, value))
    return json.dumps(value, ensure_ascii=False)


def _quote_tsv(text: str) -> str:
    """Quoted only if necessary, because many programs read TSV without quotes."""
    return '"' + text.replace('"', '""') + '"' if _MUST_QUOTE.match(text) else text


# -- types of Parquet


def _kind(value: Any) -> str:
    """Kind of a JSON value: the name of a scalar type, 'list' with the kind of the items, or 'json'."""
    if value is None:
        return ""
    if isinstance(value, list):
        kinds = {_kind(item) for item in value} - {""}
        return "list" if not kinds else f"list {kinds.pop()}" if len(kinds) == 1 else "json"
    name = type(value).__name__
    return "json" if name not in ("str", "bool", "int", "float") or (name == "int" and abs(value) >= 2**63) else name


def _arrow_type(pyarrow: Any, kinds: set[str]) -> Any:
    """Arrow type of values of these kinds; text for values of different kinds, which are written as JSON."""
    scalars = {"str": pyarrow.string(), "bool": pyarrow.bool_(), "int": pyarrow.int64(), "float": pyarrow.float64()}
    found = kinds - {""}
    if found == {"int", "float"}:
        return pyarrow.float64()
    if found and all(kind.startswith("list") for kind in found):
        inner = {kind.removeprefix("list").strip() for kind in found}
        return pyarrow.list_(_arrow_type(pyarrow, inner)) if inner <= {"", *scalars} else pyarrow.string()
    return scalars.get(found.pop(), pyarrow.string()) if len(found) == 1 else pyarrow.string()


def _is_writable(kind: Any) -> bool:
    """True for Arrow types whose values are restored from JSON."""
    if kind is None:
        return False
    from pyarrow import types

    if types.is_dictionary(kind):
        return _is_writable(kind.value_type)
    if kind.num_fields:
        inner = [kind.field(place).type for place in range(kind.num_fields)]
        return not types.is_map(kind) and all(_is_writable(one) and not types.is_temporal(one) for one in inner)
    texts = types.is_string(kind) or types.is_large_string(kind)
    numbers = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind)
    return texts or numbers or types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind)


def _to_array(pyarrow: Any, values: list[Any], kind: Any) -> Any:
    """Arrow array of JSON values; texts are converted to dates, times and decimal numbers, and other values to texts."""
    if pyarrow.types.is_temporal(kind) or pyarrow.types.is_decimal(kind):
        return pyarrow.array(values, pyarrow.string()).cast(kind)
    if pyarrow.types.is_string(kind):
        values = [value if value is None else _clean(cell(value)) for value in values]
    return pyarrow.array(values, kind)


def _clean(text: str) -> str:
    """Text with escapes in place of lone surrogates, which Arrow cannot store."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
