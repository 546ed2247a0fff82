"""Arguments and tables of the command line, without torch."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from regard.errors import RegardError

PATH_OPTIONS = ("--data", "--valid", "--test")
MULTI_VALUE_OPTIONS = (*PATH_OPTIONS, "--columns", "--set")
"""Options with several values after one name."""


MIN_WRAP_WIDTH = 20
"""Minimum terminal columns for wrapping the last column of a table."""


def parse_columns(columns: Sequence[str] | None) -> dict[str, str]:
    """`["source=en", "target=de"]` as a dictionary."""
    found = {}
    for text in columns or ():
        name, sign, value = text.partition("=")
        if not (sign and name and value):
            raise RegardError(f"'{text}' names no column. Write --columns source=NAME target=NAME.")
        found[name] = value
    return found


def print_table(rows: list[dict[str, Any]], right_aligned: tuple[str, ...] = ()) -> None:
    """Print aligned columns. In a terminal, the last column is wrapped; in a pipe, lines are not wrapped."""
    if not rows:
        return
    names = list(rows[0])
    widths = {n: max(len(n), *(len(str(row[n])) for row in rows)) for n in names}
    before = sum(widths[n] + 2 for n in names[:-1])
    room = shutil.get_terminal_size().columns - before if sys.stdout.isatty() else 0
    for row in [{n: n for n in names}, *rows]:
        cells = [f"{row[n]!s:>{widths[n]}}" if n in right_aligned else f"{row[n]!s:<{widths[n]}}" for n in names]
        lines = textwrap.wrap(cells[-1].rstrip(), room) if room >= MIN_WRAP_WIDTH else []
        print("  ".join([*cells[:-1], lines[0] if lines else cells[-1]]).rstrip())
        for line in lines[1:]:
            print(" " * before + line)


def to_json(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)


def expand_options(args: Sequence[str]) -> list[str]:
    """`--data a b` -> `--data a --data b`: all words until the next option are values of a multi-value option.

    `--set` and `--columns` accept only words with a `=`; words after `--` are unchanged."""
    result: list[str] = []
    current, first = "", True
    for number, word in enumerate(args):
        if word == "--":
            return [*result, *args[number:]]
        if word.startswith("-"):
            current, first = (word if word in MULTI_VALUE_OPTIONS else ""), True
            result.append(word)
        elif current and not first and (current in PATH_OPTIONS or "=" in word):
            result += [current, word]
        else:
            result.append(word)
            first = False
            if current not in PATH_OPTIONS and "=" not in word:
                current = ""
    return result
