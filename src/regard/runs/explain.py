"""Inputs of the command `explain`: texts, text files or standard input, and query positions."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.data.standard_input import STDIN_ARGUMENT, open_stdin, uses_stdin
from regard.data.text.files import STDIN_NAME, existing_file, read_blocks
from regard.errors import DataError, RegardError
from regard.runs.inputs import FILE_NAME, may_be_path, read_stdin_file
from regard.tasks import Task


def read_texts(task: Task, inputs: Sequence[str]) -> list[Any]:
    """Texts, contents of text files, and standard input for `-`.

    Arguments with the form of a file name are files, so that a misspelled name is an error. The task reads image and point
    files; their content may be standard input."""
    if len(inputs) > 2:
        raise RegardError(
            f"'regard explain' takes one or two inputs, got {len(inputs)}. Quote texts that contain spaces."
        )
    uses_stdin(None, *inputs)
    if task.input == "text":
        return [_read_text(text) for text in inputs]
    first, *others = inputs
    source = read_stdin_file(task) if first == STDIN_ARGUMENT else first
    return [source, *(_read_text(text) if text == STDIN_ARGUMENT else text for text in others)]


def parse_position(at: str | None, modality: str = "image") -> Any:
    """Row and column of a pixel, or index or coordinates of a point, from a command-line argument."""
    if at is None:
        return None
    if modality != "points":
        row, comma, column = at.partition(",")
        if not comma or not row.strip().isdecimal() or not column.strip().isdecimal():
            raise RegardError(f"--at: expected ROW,COLUMN of a pixel such as 12,30, got '{at}'.")
        return int(row), int(column)
    if at.strip().isdecimal():
        return int(at)
    try:
        x, y, z = map(float, at.split(","))
        if not all(map(math.isfinite, (x, y, z))):
            raise ValueError(at)
        return x, y, z
    except ValueError as error:
        raise RegardError(
            f"--at: expected the INDEX of a point such as 512, or X,Y,Z such as 1.5,0.2,0.9, got '{at}'."
        ) from error


def _read_text(text: str) -> str:
    where, stream = text, None
    if text == STDIN_ARGUMENT:
        where, stream = STDIN_NAME, open_stdin()
    elif not may_be_path(text) or not (os.path.isfile(text) or FILE_NAME.fullmatch(text)):
        return text
    elif not Path(existing_file(text)).suffix:  # the argument could also be a text
        print(f"Reading file {text}", file=sys.stderr)
    text = "".join(part for _, part in read_blocks(where, stream=stream)).strip("\r\n")
    if not text.strip():
        raise DataError("is empty.", where)
    return text
