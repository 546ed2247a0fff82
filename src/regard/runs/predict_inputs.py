"""Inputs of `predict`: arguments, lines of files, rows of tables, images, point clouds, or standard input."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from regard.data.file_discovery import IMAGE_SUFFIXES, walk_files
from regard.data.sources import expand_patterns
from regard.data.text.files import ErrorHandler, read_lines
from regard.data.text.formats import ALL_TABLE_SUFFIXES, file_format
from regard.errors import DataError, RegardError
from regard.tasks import Task

FILE_NAME = re.compile(rf"\S+({'|'.join(map(re.escape, (*ALL_TABLE_SUFFIXES, '.conll', '.conllu', '.gz')))})")
"""Arguments of this form are file names, so that a misspelled file name is an error instead of a text."""

STDIN_NAME = "standard input"

POINT_FILE_START = re.compile(r"(ply|C?N?OFF|solid\b.*|v\s.*|#.*|[-+.\deE]+([\s,;]+[-+.\deE]+)+)$")
"""First line of a point cloud file, to detect file contents instead of paths on standard input."""


@dataclass(frozen=True)
class PredictInput:
    """One input and its location."""

    value: Any
    """input of `Objective.predict`; None for an empty or unreadable input"""
    location: str = ""
    """file and line; empty for a command-line argument"""
    error: RegardError | None = None
    """error of an unreadable input"""
    name: str = ""
    """displayed name of an input without text or path, such as an image inside a table"""

    @property
    def title(self) -> Any:
        return self.name or self.value

    def to_json(self) -> Any:
        """The input in JSON output."""
        if self.name:
            return self.name
        if is_dataclass(self.value):
            known = ((field.name, getattr(self.value, field.name)) for field in fields(self.value))
            return {name: value for name, value in known if name not in ("label", "path", "line")}
        return "" if self.value is None else self.value


def read_inputs(task: Task, inputs: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[PredictInput]:
    """Inputs from arguments, from lines or rows of files, or from lines of standard input.

    The value of an empty line is None, except for generation tasks."""
    if columns and not any(_is_file(task, entry) or _is_table(task, entry) for entry in inputs):
        raise RegardError("--columns requires an input file.")
    if task.objective.allows_empty_prompt and not inputs:
        yield PredictInput("")
    elif task.reader.suffixes:
        for entry in _stdin_paths(task) if not inputs or list(inputs) == ["-"] else inputs:
            if _is_table(task, entry):
                yield from _table_inputs(task, entry, columns)
            else:
                yield from (
                    _file_inputs(task, entry)
                    if entry
                    else (PredictInput("" if task.objective.allows_empty_prompt else None),)
                )
    elif not inputs:
        yield from _stdin_inputs(task)
    else:
        for entry in inputs:
            if not _is_file(task, entry):
                if os.path.isdir(entry):
                    print(f"note: {entry} is a folder; its name is used as text.", file=sys.stderr)
                yield _text_input(task, entry)
            elif columns or file_format(entry) in task.reader.table_suffixes:
                yield from _row_inputs(task, entry, columns)
            elif kind := _non_text_kind(entry):
                raise RegardError(f"{entry}: expected text, got {'an' if kind == 'image' else 'a'} {kind}.")
            else:
                if not Path(entry).suffix:  # the argument could also be a text
                    print(f"Reading the lines of file {entry}", file=sys.stderr)
                yield from _line_inputs(task, entry)


def _stdin_paths(task: Task) -> Iterator[str]:
    """Lines of standard input. If standard input is the content of a file, a single error is raised."""
    try:
        for number, line in enumerate(sys.stdin):
            entry = line.strip()
            if not number and entry and not os.path.exists(entry) and POINT_FILE_START.match(entry):
                raise RegardError(
                    f"Standard input: expected one path per line, got the content of a file ('{entry:.40}'). Pass the path."
                )
            yield entry
    except UnicodeDecodeError as error:
        raise RegardError(
            f"Standard input: expected one path per line, got binary data. Pass the paths of {task.reader.unit} as arguments."
        ) from error


def _file_inputs(task: Task, entry: str) -> Iterator[PredictInput]:
    """Inputs of a path, folder or pattern. An error in a file of a folder or pattern (with a location) stops no other
    input."""
    return (PredictInput(path, "" if path == entry else entry) for path in expand_files(task, [entry]))


def expand_files(task: Task, inputs: Iterator[str] | Sequence[str]) -> Iterator[str]:
    """Paths of the task's files for paths, patterns and folders; files of a folder are sorted by name."""
    for entry in expand_patterns(inputs):
        if not os.path.isdir(entry):
            yield entry
            continue
        found = [item.path for item in walk_files(entry, task.reader.suffixes) if item.matches]
        if not found:
            raise DataError(f"contains no {task.reader.unit}.", entry)
        yield from found


def _is_table(task: Task, entry: str) -> bool:
    """True for a table of files, or for a part of one such as captions.json#val."""
    if os.path.isfile(entry):
        return file_format(entry) in task.reader.table_suffixes
    name = next(iter(task.reader.paths(entry)), entry) if "#" in entry else entry
    return name != entry and (os.path.isdir(name) or file_format(name) in task.reader.table_suffixes)


def _table_inputs(task: Task, entry: str, columns: Mapping[str, str] | None) -> Iterator[PredictInput]:
    """Inputs of the files listed or contained in a table, in order."""
    found: list[DataError] = []
    for sample in task.reader.inputs(entry, columns, lambda kind, error: found.append(error)):
        path = sample.path
        yield from (PredictInput(None, path, found.pop(0)) for _ in range(len(found)))
        if isinstance(sample, task.reader.sample_type):
            inside = f"{Path(path).stem}-{sample.line}" if sample.content else ""
            where = (
                "" if sample.source == entry else f"{path}, row {sample.line}"
            )  # a table of points is a point cloud itself
            yield PredictInput(sample.content or sample.source, where, name=inside)
    yield from (PredictInput(None, entry, error) for error in found)


def _is_file(task: Task, text: str) -> bool:
    if len(text) >= 4096:
        return False
    there = os.path.isfile(text) and (
        task.input == "text" or file_format(text) in task.reader.table_suffixes
    )  # images have no columns
    return there or bool(FILE_NAME.fullmatch(text)) or Path(text).suffix.lower() in task.reader.table_suffixes


def _non_text_kind(entry: str) -> str:
    """Kind of a file other than text."""
    from regard.data.points.labeled import CLOUD_ONLY_SUFFIXES

    ending = file_format(entry)
    return "point cloud" if ending in CLOUD_ONLY_SUFFIXES else "image" if ending in IMAGE_SUFFIXES else ""


def _text_input(task: Task, text: str, place: str = "") -> PredictInput:
    return PredictInput(text if text.strip() or task.objective.generates else None, place)


def _stdin_inputs(task: Task) -> Iterator[PredictInput]:
    if sys.stdin.isatty():
        print("Type one text per line; Ctrl-D ends.", file=sys.stderr)
    for number, line in enumerate(sys.stdin, start=1):
        try:
            line.encode()  # invalid UTF-8 bytes are lone surrogates
        except UnicodeEncodeError:
            yield PredictInput(
                None, STDIN_NAME, DataError("is not UTF-8.", STDIN_NAME, number, "Convert the file with iconv.")
            )
            continue
        yield _text_input(task, line.rstrip("\r\n"), f"{STDIN_NAME}, line {number}")


def _line_inputs(task: Task, path: str) -> Iterator[PredictInput]:
    found: list[DataError] = []
    complain: ErrorHandler = lambda kind, error: found.append(error)  # noqa: E731 - other lines are predicted
    for number, text in read_lines(path, complain):
        yield PredictInput(None, path, found.pop()) if found else _text_input(task, text, f"{path}, line {number}")
        found.clear()


def _row_inputs(task: Task, path: str, columns: Mapping[str, str] | None) -> Iterator[PredictInput]:
    """Inputs and errors of a table in line order. Rows are read in chunks, so errors may arrive before earlier rows."""
    found: list[DataError] = []

    def complain(kind: str, error: DataError) -> None:
        if kind == "header":
            raise error
        found.append(error)

    for number, value in task.reader.inputs(path, columns, complain):
        while found and (found[0].line or 0) <= number:
            yield PredictInput(None, path, found.pop(0))
        yield PredictInput(value, f"{path}, line {number}")
    yield from (PredictInput(None, path, error) for error in found)
