"""What `run` is given: arguments, lines of files, rows of tables, pictures, clouds, or lines of standard input."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from regard.data.file_discovery import PICTURES, walk
from regard.data.sources import expand
from regard.data.text.files import Complain, lines
from regard.data.text.tables import format_of
from regard.errors import DataError, RegardError
from regard.tasks import Task
from regard.tasks.file_task import Opened

FILE_NAME = re.compile(r"\S+\.(txt|tsv|tab|csv|jsonl|ndjson|json|parquet|pq|conll|conllu|gz)")
"""An argument of this form is taken for a file, so that a misspelt one is not translated."""

STDIN = "standard input"

CONTENT = re.compile(r"(ply|C?N?OFF|solid\b.*|v\s.*|#.*|[-+.\deE]+([\s,;]+[-+.\deE]+)+)$")
"""How a file of points begins, where a path is expected."""


@dataclass(frozen=True)
class Given:
    """One input, and where it stands."""

    value: Any
    """what a task is asked; None where there is nothing to ask"""
    place: str = ""
    """nothing where it is an argument"""
    problem: RegardError | None = None
    """why it cannot even be read"""
    name: str = ""
    """how it is called where it has no words of its own: a picture inside a table"""

    @property
    def title(self) -> Any:
        return self.name or self.value

    def written(self) -> Any:
        """The input as JSON says it."""
        if self.name:
            return self.name
        if is_dataclass(self.value):
            known = ((field.name, getattr(self.value, field.name)) for field in fields(self.value))
            return {name: value for name, value in known if name not in ("label", "path", "line")}
        return "" if self.value is None else self.value


def given(task: Task, inputs: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[Given]:
    """Arguments as they are, the lines or rows of those that are files, or the lines of standard input.

    A blank line is one with nothing to ask, but to tasks that answer it themselves."""
    if columns and not any(_is_file(task, entry) or _is_table(task, entry) for entry in inputs):
        raise RegardError("--columns names columns of a file, and none is given.")
    if task.unprompted and not inputs:
        yield Given("")
    elif isinstance(task, Opened):
        for entry in _paths(task) if not inputs or list(inputs) == ["-"] else inputs:
            if _is_table(task, entry):
                yield from _listed(task, entry, columns)
            else:
                yield from _opened(task, entry) if entry else (Given("" if task.unprompted else None),)
    elif not inputs:
        yield from _piped(task)
    else:
        for entry in inputs:
            if not _is_file(task, entry):
                if os.path.isdir(entry):
                    print(f"{entry} is a folder; its name is read as a text", file=sys.stderr)
                yield _asked(task, entry)
            elif columns or format_of(entry) in task.tables:
                yield from _rows(task, entry, columns)
            elif kind := _other(entry):
                raise RegardError(f"{entry} is a {kind}, and this model reads text.")
            else:
                if not Path(entry).suffix:  # it could have been meant as a text
                    print(f"reading the lines of the file {entry}", file=sys.stderr)
                yield from _lines(task, entry)


def _paths(task: Opened) -> Iterator[str]:
    """The lines of standard input; a file that was piped in itself is told of once, not line by line."""
    try:
        for number, line in enumerate(sys.stdin):
            entry = line.strip()
            if not number and entry and not os.path.exists(entry) and CONTENT.match(entry):
                raise RegardError(
                    f"standard input is read as paths, one a line, and '{entry:.40}' is how a file begins: name that file."
                )
            yield entry
    except UnicodeDecodeError as error:
        raise RegardError(
            f"standard input is read as paths of {task.unit}, one a line, and this is no text: name the file instead."
        ) from error


def _opened(task: Opened, entry: str) -> Iterator[Given]:
    """A file is itself; those of a folder or a pattern stand in it, where one that is bad is none of the others' affair."""
    return (Given(path, "" if path == entry else entry) for path in files(task, [entry]))


def files(task: Opened, inputs: Iterator[str] | Sequence[str]) -> Iterator[str]:
    """The paths of the task's files that paths, patterns and folders stand for, those of a folder in the order of their
    names."""
    for entry in expand(inputs):
        if not os.path.isdir(entry):
            yield entry
            continue
        found = [item.path for item in walk(entry, task.suffixes) if item.fits]
        if not found:
            raise DataError(f"holds no {task.unit.removesuffix('s')}.", entry)
        yield from found


def _is_table(task: Task, entry: str) -> bool:
    """Whether an entry is a table of such files, or a part of one: captions.json#val."""
    if os.path.isfile(entry):
        return format_of(entry) in task.tables
    name = next(iter(task.paths(entry)), entry) if "#" in entry else entry
    return name != entry and (os.path.isdir(name) or format_of(name) in task.tables)


def _listed(task: Any, entry: str, columns: Mapping[str, str] | None) -> Iterator[Given]:
    """Files that a table names or holds, in its order."""
    found: list[DataError] = []
    for sample in task.listed(entry, columns, lambda kind, error: found.append(error)):
        path = sample.path
        yield from (Given(None, path, found.pop(0)) for _ in range(len(found)))
        if isinstance(sample, task.sample):
            inside = f"{Path(path).stem}-{sample.line}" if sample.content else ""
            where = (
                "" if sample.source == entry else f"{path}, row {sample.line}"
            )  # a table of points is a cloud itself
            yield Given(sample.content or sample.source, where, name=inside)
    yield from (Given(None, entry, error) for error in found)


def _is_file(task: Task, text: str) -> bool:
    if len(text) >= 4096:
        return False
    there = os.path.isfile(text) and (
        task.reads == "text" or format_of(text) in task.tables
    )  # a picture has no columns
    return there or bool(FILE_NAME.fullmatch(text)) or Path(text).suffix.lower() in task.tables


def _other(entry: str) -> str:
    """What a file is that holds no text."""
    from regard.data.points.labeled import SOLELY

    ending = format_of(entry)
    return "point cloud" if ending in SOLELY else "picture" if ending in PICTURES else ""


def _asked(task: Task, text: str, place: str = "") -> Given:
    return Given(text if text.strip() or task.generates else None, place)


def _piped(task: Task) -> Iterator[Given]:
    if sys.stdin.isatty():
        print("type one text a line; Ctrl-D ends", file=sys.stderr)
    for number, line in enumerate(sys.stdin, start=1):
        try:
            line.encode()  # a byte that is not UTF-8 arrives as half of a character
        except UnicodeEncodeError:
            yield Given(None, STDIN, DataError("is not UTF-8.", STDIN, number, "Convert it with iconv."))
            continue
        yield _asked(task, line.rstrip("\r\n"), f"{STDIN}, line {number}")


def _lines(task: Task, path: str) -> Iterator[Given]:
    found: list[DataError] = []
    complain: Complain = lambda kind, error: found.append(error)  # noqa: E731 - others are answered
    for number, text in lines(path, complain):
        yield Given(None, path, found.pop()) if found else _asked(task, text, f"{path}, line {number}")
        found.clear()


def _rows(task: Task, path: str, columns: Mapping[str, str] | None) -> Iterator[Given]:
    """In their order: what is complained of is heard before it, or with others that are read together."""
    found: list[DataError] = []

    def complain(kind: str, error: DataError) -> None:
        if kind == "header":
            raise error
        found.append(error)

    for number, value in task.inputs_of(path, columns, complain):
        while found and (found[0].line or 0) <= number:
            yield Given(None, path, found.pop(0))
        yield Given(value, f"{path}, line {number}")
    yield from (Given(None, path, error) for error in found)
