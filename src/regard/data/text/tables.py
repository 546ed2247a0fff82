"""Rows of files with columns: the values of the columns that a task needs.

`iterate_rows` yields texts by column, `read_records` nested values of JSON objects and Parquet rows. `make_samples` makes
samples of such rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from regard.data.text import files, formats
from regard.errors import DataError, RegardError, UnknownColumnError, UnknownNameError

T = TypeVar("T")
InputIterator = Iterator[tuple[int, Any]]  # Line number, and input of a prediction, None for an empty row, or an error

SIDES = ("source", "target")
PARALLEL_HINT = " Pass two parallel files as SRC:TGT."
TRANSLATION_COLUMN = "translation"  # struct column with one field per language in Hugging Face translation datasets


@dataclass(frozen=True, slots=True)
class SkippedRow:
    """A row or document skipped because a value is empty."""

    path: str
    line: int
    reason: str = ""  # the missing value, and the start of the other value


Samples = Iterator[T | SkippedRow | DataError]  # Samples of a file, with skipped rows, and the errors of invalid rows


# -- column names


@dataclass(frozen=True)
class ColumnSpec:
    """Columns required by a task, and the column names chosen by the user (--columns)."""

    required: tuple[str, ...]  # columns of every row
    overrides: files.Columns = None  # names in the file of renamed columns; None: column order may be used
    optional: tuple[str, ...] = ()  # columns that may be missing
    numeric: tuple[str, ...] = ()  # columns that may contain numbers, which are returned as text

    def __post_init__(self) -> None:
        known = self.required + self.optional
        for name in self.overrides or ():
            if name not in known:
                raise UnknownNameError("column choice", name, known, f"{self.choose_hint}.")

    def find(self, names: Container[str] | None = None) -> dict[str, str]:
        """Names in the file of all columns that exist in `names`. Without names, of all required columns; an optional
        column chosen by the user is required too."""
        chosen = self.overrides or {}
        columns = {name: chosen.get(name, name) for name in self.required + self.optional}
        if names is None:
            return {name: column for name, column in columns.items() if name in self.required or name in chosen}
        return {name: column for name, column in columns.items() if column in names}

    @property
    def choose_hint(self) -> str:
        return "Pass --columns " + " ".join(f"{name}=NAME" for name in self.required)

    @property
    def position_hint(self) -> str:
        return " ".join(f"{name}={place}" for place, name in enumerate(self.required))


def match_columns(
    names: Iterable[str], aliases: Mapping[str, Sequence[str]], overrides: files.Columns
) -> dict[str, str]:
    """Column names in the file: as chosen by the user, else the first unused alias, ignoring case.

    No alias is used if the user chose positions, because the file has no header."""
    columns = dict(overrides or {})
    by_lower = {name.lower(): name for name in reversed(list(names))}
    if not uses_positions(columns, by_lower.values()):
        for column, usual in aliases.items():
            unused = (by_lower[name] for name in usual if name in by_lower and by_lower[name] not in columns.values())
            if column not in columns and (name := next(unused, None)) is not None:
                columns[column] = name
    return columns


def is_position(name: str) -> bool:
    return name.isascii() and name.isdigit()


def check_positions(path: Path, line: int, places: Iterable[int], num_columns: int) -> None:
    for place in (place for place in places if place >= num_columns):
        advice = f"Column positions range from 0 to {num_columns - 1}."
        raise DataError(f"column {place} does not exist.", path, line, advice)


def find_columns(
    path: Path | str,
    aliases: Mapping[str, Sequence[str]],
    required: Sequence[str],
    overrides: files.Columns,
    by_order: bool = False,
) -> dict[str, str] | None:
    """Column names in the file, as `match_columns`; raise `DataError` for a missing column.

    With `by_order`, None for a table without any usual name, which has no header."""
    names = formats.read_header(path)
    chosen = match_columns(names, aliases, overrides)
    missing = next((name for name in required if name not in chosen), None)
    if missing is None or uses_positions(chosen, names):
        return chosen
    if by_order and not chosen and not formats.has_column_names(path):
        return None
    raise missing_column(path, missing, names)


def uses_positions(columns: Mapping[str, str], names: Iterable[str]) -> bool:
    """True if columns were chosen by position, so that the file has no header."""
    return any(name.isdigit() and name not in names for name in columns.values())


def count_columns(expected: int, actual: int, kind: str = "", at_least: bool = False) -> str:
    """Message about a wrong number of columns; `kind` qualifies the columns, as in "text "."""
    minimum = "at least " if at_least else ""
    return f"expected {minimum}{expected} {kind}column{'s'[: expected != 1]}, got {actual}."


def require_columns(columns: Iterable[str], names: Collection[str], place: str, advice: str = "") -> None:
    """Raise `UnknownColumnError` for a column not in `names`; `place` describes the names."""
    for column in columns:
        if column not in names:
            raise UnknownColumnError(column, map(_shorten, names), f"{place}: {format_list(names)}.{advice}")


def missing_column(path: Path | str, name: str, names: Iterable[str], form: str = "") -> DataError:
    """Error about a column without any of the usual names."""
    advice = f"Pass --columns {name}=NAME (available: {format_list(names)})."
    return DataError(f"no column is named '{name}'{form}.", path, 1, advice)


def format_list(names: Iterable[str]) -> str:
    shown = [_shorten(name) for name in names]
    return ", ".join(shown[:12]) + (", …" if len(shown) > 12 else "") if shown else "none"


def _shorten(name: str) -> str:
    return name if len(name) <= 40 else name[:39] + "…"


# -- rows of texts


def convert_rows(rows: Iterable[formats.Row], convert: Callable[[int, Any], T]) -> Iterator[tuple[int, T | DataError]]:
    """Yield line numbers and converted rows, or the errors of invalid rows and of conversions."""
    for line, row in rows:
        try:
            converted = row if isinstance(row, DataError) else convert(line, row)
        except DataError as error:
            converted = error
        yield line, converted


def iterate_rows(
    entry: str,
    required: tuple[str, ...],
    columns: files.Columns = None,
    optional: tuple[str, ...] = (),
    numeric: tuple[str, ...] = (),
) -> Iterator[formats.Row]:
    """Line numbers and values of the `required` and `optional` columns of one file, or the errors of invalid rows.

    `columns` maps a column to its name in the file, for example {"source": "en"}, or to its position from 0 in a table
    without a header. By default, a header or keys with the names of the columns are used; a table without a header must
    have exactly the `required` columns, in this order. Rows have no entry for `optional` columns missing in the file.
    Numbers in `numeric` columns are returned as text; JSON and Parquet may have a list of texts in a column whose name
    ends in "s", such as `choices`.

    Blank lines and nulls become empty values. A missing file raises at once; the content is checked during iteration."""
    spec = ColumnSpec(required, columns, tuple(name for name in optional if name not in required), numeric)
    path = files.existing_file(entry)
    form = formats.find_format(path, PARALLEL_HINT if required == SIDES else "")
    if form.schema is not None:
        return _typed_rows(path, form, spec)
    select = _select_values if form.is_named else _select_cells
    rows = with_errors(lambda report: select(path, form.read(path, report, ()), spec))
    return rows if form.is_named or columns is not None else _reject_header(path, rows, spec)


def with_errors(read_rows: Callable[[files.ErrorHandler], Iterable[formats.Row]]) -> Iterator[formats.Row]:
    """Yield rows; the reported errors of an invalid line take the place of its row."""
    errors: list[DataError] = []
    try:
        for line, row in read_rows(errors.append):
            yield from ((line, error) for error in errors)
            if not errors or isinstance(row, DataError):
                yield line, row
            errors.clear()
    except RegardError:  # reading ends after the reported errors
        yield from ((error.line or 0, error) for error in errors)
        raise


def _reject_header(path: Path, rows: Iterator[formats.Row], spec: ColumnSpec) -> Iterator[formats.Row]:
    """Yield all rows. A first row with one word per column above rows of sentences is reported, because a header would
    become training data."""
    first: list[formats.Row] = []
    try:
        first.extend(islice(rows, 50))
    except RegardError:  # earlier errors come first
        yield from (item for item in first if isinstance(item[1], DataError))
        raise
    valid = [(line, row) for line, row in first if not isinstance(row, DataError)]
    complete = [(line, [row[name].strip() for name in spec.required]) for line, row in valid]
    complete = [(line, cells) for line, cells in complete if all(cells)]
    if len(complete) >= 5 and complete[0][0] == 1 and not any(" " in cell for cell in complete[0][1]):
        if sum(" " in cells[0] for _, cells in complete[1:]) > 0.8 * len(complete[1:]):
            names = complete[0][1]
            choice = " ".join(f"{name}={cell}" for name, cell in zip(spec.required, names, strict=True))
            advice = f"For a header, pass --columns {choice}; for a data row, pass --columns {spec.position_hint}."
            problem = f"the first row ({', '.join(names)}) looks like a header."
            yield 1, DataError(problem, path, 1, advice, "header")
    yield from first
    yield from rows


def _select_cells(path: Path, rows: Iterator[formats.Row], spec: ColumnSpec) -> Iterator[formats.Row]:
    width, places = 0, dict.fromkeys(spec.required, 0)
    for line, cells in rows:
        if not any(map(str.strip, cells)):
            yield line, dict.fromkeys(places, "")
            continue
        if not width:
            width = len(cells)
            places, is_header = _locate_columns(path, line, list(map(str.strip, cells)), spec)
            if is_header:
                continue
        if len(cells) == width:
            yield line, {name: cells[place] for name, place in places.items()}
        else:
            advice = "All rows need as many columns as the first row. Check for a missing or an extra separator."
            yield line, DataError(count_columns(width, len(cells)), path, line, advice)


def _locate_columns(path: Path, line: int, names: list[str], spec: ColumnSpec) -> tuple[dict[str, int], bool]:
    """Column positions, and True if this first row is a header."""
    required = spec.find()
    if spec.overrides is None:
        lowered = [name.lower() for name in names]
        names = lowered if set(required) <= set(lowered) else names
        # without a header, one column is not enough, because a header and a first row of text cannot be distinguished
        if not set(required) <= set(names) and 1 < len(required) == len(names):
            return {name: place for place, name in enumerate(required)}, False
        if not set(required) <= set(names):
            problem = count_columns(len(required), len(names))
            advice = f"Without a header, pass positions from 0: --columns {spec.position_hint}."
            advice = f"{spec.choose_hint} (available: {format_list(names)}). {advice}"
            if len(required) == 1:
                problem = f"no column is named '{spec.required[0]}'."
            elif len(names) == 1:
                advice = "Commas separate columns in .csv files, tabs in other tables."
                advice += PARALLEL_HINT if spec.required == SIDES else ""
            raise DataError(problem, path, line, advice)
    elif not set(required.values()) <= set(names) and all(map(is_position, required.values())):
        places = {name: int(place) for name, place in required.items()}
        check_positions(path, line, places.values(), len(names))
        return places, False
    header = f"--columns applies to every file. Header of {path}, line {line}"
    require_columns(required.values(), names, header)
    columns = spec.find(names)
    for name in columns.values():
        if names.count(name) > 1:
            raise DataError(f"duplicate column '{name}' in the header.", path, line, "Rename one of the columns.")
    return {name: names.index(column) for name, column in columns.items()}, True


def _select_values(path: Path, records: Iterator[formats.Row], spec: ColumnSpec) -> Iterator[formats.Row]:
    """Yield the texts of JSON objects; a chosen column missing in the first object raises `UnknownColumnError`."""
    unchecked, required = spec.overrides is not None, spec.find().values()

    def select(line: int, record: dict[str, Any] | None) -> dict[str, Any]:
        nonlocal unchecked
        if record is None:
            return dict.fromkeys(spec.required, "")
        nested = record.get(TRANSLATION_COLUMN)
        if isinstance(nested, dict) and not any(name in record for name in required):
            record = nested
        if unchecked:
            require_columns(required, record, f"Keys in {path}, line {line}")
            unchecked = False
        if missing := [name for name in required if name not in record]:
            advice = f"{spec.choose_hint}." if spec.overrides is None else ""
            raise DataError(f"missing key '{missing[0]}' (keys: {format_list(record)}).", path, line, advice)
        return {
            name: text_value(path, line, column, record[column], name in spec.numeric, name.endswith("s"))
            for name, column in spec.find(record).items()
        }

    return convert_rows(records, select)


def text_value(
    path: Path, line: int, name: str, value: object, allow_numbers: bool = False, allow_lists: bool = False
) -> Any:
    """Validated text; numbers become text and lists are kept if allowed, None becomes an empty text."""
    if value is None:
        return ""
    if allow_lists and isinstance(value, list):
        return [text_value(path, line, name, item, allow_numbers) for item in value]
    if allow_numbers and isinstance(value, int | float):
        return json.dumps(value)
    if not isinstance(value, str):
        problem = f"expected text in '{name}', got {json.dumps(value)[:40]}."
        raise DataError(problem, path, line, "Write the value in quotes.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        code = f"\\u{ord(value[error.start]):04x}"
        advice = "Write a character beyond U+FFFF as two \\u escapes, or as the character itself."
        raise DataError(f"'{name}' contains {code}, half of a surrogate pair.", path, line, advice) from error
    return value


def _typed_rows(path: Path, form: formats.TableFormat, spec: ColumnSpec) -> Iterator[formats.Row]:
    """Yield the texts of a file with a schema, which decides whether columns are supported."""
    schema = form.schema(path) if form.schema is not None else ()
    columns = _typed_columns(path, schema, spec)
    for number, record in form.read(path, files.raise_error, list(dict.fromkeys(columns.values()))):
        row = {name: record[column[-1]] for name, column in columns.items()}
        for name, value in row.items():
            if not isinstance(value, str):
                row[name] = text_value(path, number, name, value, True, True)
        yield number, row


def _typed_columns(path: Path, schema: Any, spec: ColumnSpec) -> dict[str, formats.ColumnPath]:
    """Columns in the file, or fields of the struct column with translations."""
    from pyarrow import types

    kinds = {field.name: field.type for field in schema}
    outer: formats.ColumnPath = ()
    is_nested = TRANSLATION_COLUMN in kinds and types.is_struct(kinds[TRANSLATION_COLUMN])
    if is_nested and not any(name in kinds for name in spec.find().values()):
        outer, kinds = (TRANSLATION_COLUMN,), {field.name: field.type for field in kinds[TRANSLATION_COLUMN]}
    texts = [name for name, kind in kinds.items() if formats.is_text(kind)]
    advice = f"{spec.choose_hint} (available: {format_list(texts)})."
    if spec.overrides is None and not set(spec.required) <= kinds.keys():
        if len(texts) == len(spec.required) and not outer:  # struct fields are often sorted, so order is not used
            return {name: (text,) for name, text in zip(spec.required, texts, strict=True)}
        problem = count_columns(len(spec.required), len(texts), "text ")
        if outer:
            problem = f"column '{outer[0]}' has no fields named {' and '.join(spec.required)}."
        raise DataError(problem, path, advice=advice)
    require_columns(spec.find().values(), kinds, f"Columns in {path}")
    columns = spec.find(kinds)
    for name, column in columns.items():
        kind = kinds[column]
        if name.endswith("s") and (types.is_list(kind) or types.is_large_list(kind)):
            kind = kind.value_type
        is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
        if not (formats.is_text(kind) or (is_number and name in spec.numeric)):
            problem = f"expected text in column '{column}', got {kinds[column]}."
            raise DataError(problem, path, advice=advice if texts else "The file has no text columns.")
    return {name: (*outer, column) for name, column in columns.items()}


def first_value(entry: str, column: str) -> str:
    """First value of a column; empty if the file cannot be read."""
    try:
        rows = iterate_rows(entry, ("value",), {"value": column}, numeric=("value",))
        return next((str(row["value"]) for _, row in rows if not isinstance(row, DataError)), "")
    except (RegardError, OSError):
        return ""


# -- records with nested values


def read_json_document(path: Path, keys: Sequence[str] = ("data",)) -> Any:
    """Content of a .json file with one document; None for a file with one object per line.

    The file is JSONL if the first line is an object without any of `keys`; otherwise the whole file is loaded."""
    first = next((text for _, text in files.read_lines(path) if text.strip()), "")
    try:
        content = json.loads(first)
        return content if isinstance(content, list) or any(key in content for key in keys) else None
    except (ValueError, RecursionError, TypeError):
        return formats.read_document(path)  # the document has more lines


def read_records(
    path: Path,
    document: list[Any] | None,
    aliases: Mapping[str, Sequence[str]],
    required: Sequence[str],
    overrides: files.Columns,
) -> Iterator[formats.Row]:
    """Yield the nested values of JSON objects or Parquet rows under the names of `aliases`, or the errors of invalid rows.

    The records are the items of the `document`, or of the file if None; empty records stay empty."""
    seen: set[str] = set()

    def select(line: int, record: Any) -> dict[str, Any]:
        if document is None and record is None:  # an empty line
            return {}
        if not isinstance(record, dict):
            raise DataError(f"expected a JSON object, got {type(record).__name__}.", path, line)
        columns = match_columns(record, aliases, overrides) if record else {}
        require_columns(columns.values(), record, f"Keys in {path}, line {line}")
        missing = [name for name in required if name not in columns]
        if record and missing:
            advice = f"Pass --columns {missing[0]}=NAME."
            if missing[0] in seen:
                advice = "Earlier rows have this key. Add the key, or remove the row."
            raise DataError(f"missing key '{missing[0]}' (keys: {format_list(record)}).", path, line, advice)
        seen.update(columns)
        return {name: record[column] for name, column in columns.items()}

    rows: Iterable[formats.Row] = enumerate(document or (), start=1)
    if document is None:
        rows = with_errors(lambda report: formats.find_format(path).read(path, report, ()))
    return convert_rows(rows, select)


# -- samples and inputs of prediction


def iterate_all(
    read: Callable[[str, files.Columns], Samples[T]],
    unit: str,
    advice: str,
    data: Sequence[str],
    columns: files.Columns = None,
) -> Iterator[T | SkippedRow]:
    """Yield the samples of all files and patterns in input order; raise the first error, or `DataError` if there is no
    sample."""
    entries = files.expand_patterns(data)
    if not entries:
        raise DataError("No data given.", advice="Pass at least one file or folder.")
    count = skipped = 0
    first_reason = ""
    for entry in entries:
        for item in read(entry, columns):
            if isinstance(item, DataError):
                raise item
            if isinstance(item, SkippedRow):
                skipped += 1
                first_reason = first_reason or item.reason
            else:
                count += 1
            yield item
    if not count:
        reason = "the data contains no rows or files"
        if skipped:
            reason = f"all {skipped} entries were " if skipped > 1 else "the only entry was "
            reason += f"skipped ({'first: ' * (skipped > 1)}{first_reason})" if first_reason else "empty"
        raise DataError(f"no {unit} found: {reason}.", ", ".join(entries), advice=advice)


def make_samples(rows: Iterable[formats.Row], make: Callable[[int, Any], T | SkippedRow]) -> Samples[T]:
    """Yield `make(line, row)` of all rows, or the errors of invalid rows, except empty rows (skipped without a reason) at
    the end of the file."""
    empty: list[SkippedRow] = []
    for _, item in convert_rows(rows, make):
        if isinstance(item, SkippedRow) and not item.reason:
            empty.append(item)
            continue
        if empty and not isinstance(item, DataError):
            yield from empty
            empty.clear()
        yield item


def drop_trailing_blanks(items: Iterable[T | SkippedRow]) -> Samples[T]:
    """Yield samples and skipped rows, except empty rows at the end of the file."""
    return make_samples(enumerate(items), lambda number, item: item)


def find_missing(path: str, line: int, fields: Mapping[str, str], optional: Sequence[str] = ()) -> SkippedRow | None:
    """`SkippedRow` if a field except the `optional` ones is empty, without a reason if all fields are empty; else None."""
    missing = [name for name, value in fields.items() if not value and name not in optional]
    present = next((value for value in fields.values() if value), "")
    if not missing and present:
        return None
    return SkippedRow(path, line, f"missing {' and '.join(missing)} for: {present[:60]}" if present else "")


def read_text_column(entry: str, columns: files.Columns) -> InputIterator:
    """Yield line numbers and the column `text`, unchanged; None for an empty row."""
    rows = iterate_rows(entry, ("text",), columns)
    return convert_rows(rows, lambda line, row: row["text"] if row["text"].strip() else None)


def sample_inputs(
    read: Callable[..., Iterable[Any]], convert: Callable[[Any], Any], entry: str, columns: files.Columns
) -> InputIterator:
    """Yield line numbers and inputs of prediction, converted from samples without labels: partly empty rows are errors,
    and empty rows are None."""
    for item in read(entry, columns, inputs_only=True):
        if isinstance(item, DataError):
            yield item.line or 0, item
        elif isinstance(item, SkippedRow):
            yield item.line, DataError(f"{item.reason}.", item.path, item.line) if item.reason else None
        else:
            yield item.line, convert(item)
