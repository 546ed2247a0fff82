"""Inputs of the command `explain`: texts, text files or standard input, and query positions."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.data.text.files import existing_file, read_blocks
from regard.errors import DataError, RegardError
from regard.runs.predict import FILE_NAME, may_be_path
from regard.tasks import Task

STDIN_ARGUMENT = "-"


def read_texts(task: Task, inputs: Sequence[str]) -> list[str]:
    """Texts, contents of text files, and standard input for `-`.

    Arguments with the form of a file name are files, so that a misspelled name is an error. The task reads image and point
    files."""
    if len(inputs) > 2:
        raise RegardError(
            f"'regard explain' takes one or two inputs, got {len(inputs)}. Quote texts that contain spaces."
        )
    if list(inputs).count(STDIN_ARGUMENT) > 1:
        raise RegardError("Standard input (-) can be used only once. Pass a file for the second text.")
    return list(inputs) if task.input != "text" else [_read_text(text) for text in inputs]


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
    where = text
    if text == STDIN_ARGUMENT:
        text, where = sys.stdin.read(), "standard input"
    elif not may_be_path(text) or not (os.path.isfile(text) or FILE_NAME.fullmatch(text)):
        return text
    else:
        path = existing_file(text)
        if not Path(text).suffix:  # the argument could also be a text
            print(f"Reading file {text}", file=sys.stderr)
        text = "".join(part for _, part in read_blocks(path))
    try:
        text.encode()  # invalid UTF-8 bytes are lone surrogates
    except UnicodeEncodeError as error:
        raise DataError("is not UTF-8.", where, advice="Convert the file with iconv.") from error
    text = text.strip("\r\n")
    if not text.strip():
        raise DataError("is empty.", where)
    return text
