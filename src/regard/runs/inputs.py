"""Inputs of predictions and explanations: arguments, lines of files, rows of tables, images, point clouds, and standard
input."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import Any

from regard.data.file_discovery import IMAGE_SUFFIXES, sniff_format, walk_files
from regard.data.memory_tables import save_stream, temporary_entry
from regard.data.standard_input import (
    PEEK_BYTES,
    STDIN_ARGUMENT,
    detect_json,
    detect_suffix,
    named_suffix,
    open_stdin,
    peek_text,
    uses_stdin,
)
from regard.data.text.files import STDIN_NAME, existing_file, expand_patterns, read_lines, reject_url
from regard.data.text.formats import ALL_TABLE_SUFFIXES, TABLE_SUFFIXES, file_format
from regard.data.text.own_columns import OwnColumns
from regard.data.text.tables import SkippedRow, iterate_rows
from regard.errors import DataError, RegardError, name_places
from regard.tasks import Task, find_task

Columns = Mapping[str, str] | None

FILE_NAME = re.compile(rf"\S+({'|'.join(map(re.escape, (*ALL_TABLE_SUFFIXES, '.conll', '.conllu', '.gz')))})")
"""Arguments of this form are file names, so that a misspelled file name is an error instead of a text."""

MAX_PATH_CHARS = 4096  # Maximum length of a file path.

FILE_START = {
    "image": re.compile(r"P[1-7]$"),
    "points": re.compile(r"(ply|C?N?OFF|solid\b.*|v\s.*|#.*|[-+.\deE]+([\s,;]+[-+.\deE]+)+)$"),
}
"""First line of a file in a text format, to distinguish its content from paths on standard input."""
STDIN_FILE = "stdin"  # name of an image or a point cloud on standard input


@dataclass(frozen=True)
class PredictInput:
    """One input and its location."""

    value: Any  # input of `Objective.predict`; None for an empty or unreadable input
    location: str = ""  # file and line; empty for a command-line argument
    error: RegardError | None = None  # error of an unreadable input
    name: str = ""  # displayed name of an input without text or path, such as an image inside a table
    own: Mapping[str, Any] | None = None  # columns of the row of the input, for tables of predictions

    def to_json(self) -> Any:
        """The input in JSON output."""
        if self.name:
            return self.name
        if is_dataclass(self.value):
            known = ((field.name, getattr(self.value, field.name)) for field in fields(self.value))
            return {name: value for name, value in known if name not in ("label", "path", "line")}
        return "" if self.value is None else self.value


def read_inputs(
    task: Task, inputs: Sequence[str], columns: Columns = None, form: str | None = None, own: bool = False
) -> Iterator[PredictInput]:
    """Inputs from arguments, from lines or rows of files, or from standard input. `form`: format of standard input. `own`: with
    the columns of the input.

    The value of an empty line is None, except for generation tasks."""
    entries = list(inputs) or [STDIN_ARGUMENT] * (not task.objective.allows_empty_prompt)
    has_file = uses_stdin(form, *entries) or any(_is_file(task, entry) or _is_table(task, entry) for entry in entries)
    if columns and not has_file:
        raise RegardError("--columns requires an input file.")
    found = _InputReader(task, columns, form).read(entries)
    yield from (replace(item, own=_own_columns(task, item)) for item in found) if own else found


def _own_columns(task: Task, item: PredictInput) -> Mapping[str, Any]:
    """Columns of an input: all columns of its row, or one column with the text, the words or the file."""
    if item.own is not None:
        return item.own
    if task.input != "text":
        return {task.modality.input_field: item.to_json()}
    return {"words" if isinstance(item.value, list) else "text": item.to_json()}


@dataclass(frozen=True)
class _InputReader:
    """Reads the inputs of a task."""

    task: Task
    columns: Columns
    form: str | None  # format of standard input

    def read(self, entries: Sequence[str]) -> Iterator[PredictInput]:
        if not entries:
            yield PredictInput("")
        for entry in entries:
            if entry == STDIN_ARGUMENT:
                yield from self.stdin()
            elif self.task.reader.suffixes:
                yield from self.path(entry)
            elif not _is_file(self.task, entry):
                yield self.text(entry)
            elif self.columns or file_format(entry) in self.task.reader.table_suffixes:
                yield from self.rows(entry)
            else:
                yield from self.lines(entry)

    def stdin(self) -> Iterator[PredictInput]:
        unit = "text" if self.task.input == "text" else "path"
        with open_stdin(f"Type one {unit} per line; Ctrl-D ends.") as stream:
            if suffix := _stdin_suffix(self.task, stream, self.columns, self.form):
                with temporary_entry(lambda folder: save_stream(stream, suffix, folder)) as entry:
                    yield from self.rows(entry)
            elif self.task.input == "text":
                yield from self.lines(STDIN_NAME, stream)
            elif _is_content(self.task, stream.peek(PEEK_BYTES)):
                yield PredictInput(stream.read(), STDIN_NAME, name=STDIN_FILE)
            else:
                for line in stream:
                    yield from self.path(os.fsdecode(line).strip())

    def path(self, entry: str) -> Iterator[PredictInput]:
        """Inputs of a file, a folder, a pattern or a table of files."""
        if not entry:
            yield PredictInput("" if self.task.objective.allows_empty_prompt else None)
        elif _is_table(self.task, entry):
            yield from self.rows(entry)
        else:  # an error in a file of a folder or pattern (with a location) stops no other input
            for path in expand_files(self.task, [entry]):
                yield PredictInput(path, "" if path == entry else entry)

    def rows(self, entry: str) -> Iterator[PredictInput]:
        """Inputs of the rows of a table, which may list or contain files."""
        reader, kept = self.task.reader, None
        for item in reader.inputs(entry, self.columns):
            line, value = item if isinstance(item, tuple) else (item.line or 0, item)
            is_file = bool(reader.suffixes) and isinstance(value, reader.sample_type)
            if is_file and value.source == entry:  # a table of points is a point cloud
                yield PredictInput(entry)
                continue
            if kept is None:
                kept = OwnColumns(reader.own_rows(entry, self.columns))
            own = kept.at(line)
            if isinstance(value, SkippedRow):
                value = DataError(f"{value.reason}.", value.path, line) if value.reason else None
            if isinstance(value, DataError):
                if value.kind == "header":
                    raise value
                yield PredictInput(None, name_places(entry), value, own=own)
            elif is_file:
                inside = f"{Path(value.path).stem}-{line}" if value.content else ""
                own = {**own, self.task.modality.input_field: inside} if inside and own is not None else own
                yield PredictInput(
                    value.content or value.source, name_places(f"{value.path}, row {line}"), None, inside, own
                )
            else:
                yield PredictInput(value, name_places(f"{entry}, line {line}"), own=own)

    def lines(self, path: str, stream: BufferedReader | None = None) -> Iterator[PredictInput]:
        """Inputs of the lines of a file, or of the `stream` of this name."""
        from regard.data.points.labeled import CLOUD_ONLY_SUFFIXES

        ending = file_format(path)
        if ending in (*CLOUD_ONLY_SUFFIXES, *IMAGE_SUFFIXES):
            kind = "a point cloud" if ending in CLOUD_ONLY_SUFFIXES else "an image"
            raise RegardError(f"{path}: expected text, got {kind}.")
        if not Path(path).suffix and stream is None:  # the argument could also be a text
            print(f"Reading the lines of file {path}", file=sys.stderr)
        found: list[DataError] = []
        for number, text in read_lines(path, found.append, stream):
            yield PredictInput(None, path, found.pop()) if found else self.text(text, f"{path}, line {number}")
            found.clear()

    def text(self, text: str, place: str = "") -> PredictInput:
        return PredictInput(text if text.strip() or self.task.objective.generates else None, place)


def read_stdin_file(task: Task) -> Any:
    """One image or point cloud on standard input: its content, or its path."""
    found = [item.value for item in _InputReader(task, None, None).stdin() if item.value is not None]
    if len(found) != 1:
        raise DataError(f"expected one of {task.reader.unit}, got {len(found):,}.", STDIN_NAME)
    return found[0]


# -- kinds of entries


def _stdin_suffix(task: Task, stream: BufferedReader, columns: Columns, form: str | None) -> str:
    """File extension of a table on standard input; empty for lines of texts or paths, or the content of a file."""
    if form is not None:
        suffix = named_suffix(form, task.reader)
        return suffix if columns or suffix in task.reader.table_suffixes else ""
    if columns:
        return detect_suffix(stream, task.reader)
    kind = detect_json(peek_text(stream))
    if not kind or (kind == "document" and task.objective.generates):
        return ""
    rule = " (one text per line: --format txt)" if kind == "object" and task.input == "text" else ""
    print(f"note: standard input has JSON, which is read as rows{rule}.", file=sys.stderr)
    return ".json"


def _is_content(task: Task, first: bytes) -> bool:
    """True for the first bytes of an image or a point cloud, False for a list of paths."""
    line = first.partition(b"\n")[0].strip()
    if not line or os.path.lexists(os.path.expanduser(os.fsdecode(line))):
        return False
    try:
        text = line.decode()
    except UnicodeDecodeError:
        return True
    return not text.isprintable() or bool(FILE_START[task.input].match(text) or sniff_format(first))


def expand_files(task: Task, inputs: Iterator[str] | Sequence[str]) -> Iterator[str]:
    """Paths of the task's files for paths, patterns and folders; files of a folder are sorted by name."""
    for entry in expand_patterns(inputs):
        if not os.path.isdir(entry):
            yield entry
            continue
        found = [item.path for item in walk_files(entry, task.reader.suffixes) if not item.reason]
        if not found:
            raise DataError(f"contains no {task.reader.unit}.", entry)
        yield from found


def _is_table(task: Task, entry: str) -> bool:
    """True for a table of files, or for a part of one such as captions.json#val."""
    if os.path.isfile(entry):
        return file_format(entry) in task.reader.table_suffixes
    name = next(iter(task.reader.paths(entry)), entry) if "#" in entry else entry
    return name != entry and (os.path.isdir(name) or file_format(name) in task.reader.table_suffixes)


def may_be_path(text: str) -> bool:
    """False for a text that is too long for a path. Raise `DataError` for a folder or a URL."""
    if len(text) >= MAX_PATH_CHARS:
        return False
    as_text = " To use this text itself, pass it on standard input."
    reject_url(text, as_text)
    if os.path.isdir(text):
        advice = f"Pass files, or a quoted pattern such as '{os.path.join(text, '*.txt')}'.{as_text}"
        raise DataError("expected a text or a file, got a folder.", text, advice=advice)
    return True


def _is_file(task: Task, text: str) -> bool:
    if task.input == "text" and not may_be_path(text):
        return False
    tables = task.reader.table_suffixes
    if os.path.isfile(text) and (task.input == "text" or file_format(text) in tables):  # images have no columns
        return True
    return bool(FILE_NAME.fullmatch(text)) or Path(text).suffix.lower() in tables


# -- texts of a search


def read_search_texts(file: str, columns: Mapping[str, str], form: str | None = None) -> dict[int, str]:
    """Texts of a file or of standard input by line number: one per line, or the column 'text' of a table, without empty
    texts."""
    if file == STDIN_ARGUMENT:
        task = find_task("embed")
        with open_stdin() as stream:
            suffix = _stdin_suffix(task, stream, columns, form)
            if not suffix:
                return _nonempty(STDIN_NAME, read_lines(STDIN_NAME, stream=stream))
            with temporary_entry(lambda folder: save_stream(stream, suffix, folder)) as entry:
                return _nonempty(entry, _text_rows(entry, columns))
    path = existing_file(file)
    if file_format(path) in TABLE_SUFFIXES:
        return _nonempty(file, _text_rows(file, columns))
    if columns:
        raise DataError("a text file has no columns.", path, advice="Remove --columns.")
    return _nonempty(file, read_lines(path))


def _text_rows(entry: str, columns: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    for line, row in iterate_rows(entry, ("text",), columns or None):
        if isinstance(row, DataError):
            raise row
        yield line, str(row["text"])


def _nonempty(entry: str, texts: Iterable[tuple[int, str]]) -> dict[int, str]:
    found = {line: text.strip() for line, text in texts if text.strip()}
    if not found:
        raise DataError("contains no text.", entry, advice="Use one text per line, or a table with a column 'text'.")
    count = f"{len(found):,} text{'s'[: len(found) > 1]}"
    print(f"Searching {count} in {name_places(entry)}", file=sys.stderr)
    return found
