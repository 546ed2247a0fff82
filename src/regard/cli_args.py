"""Words of a command line, and how answers are put into lines: no command, and nothing that needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regard.errors import RegardError

FILES = ("--data", "--valid", "--test")
SEVERAL = (*FILES, "--columns", "--set")
"""Options that take several values after one name."""


def named(columns: Sequence[str] | None) -> dict[str, str]:
    """`["source=en", "target=de"]` as a dictionary."""
    found = {}
    for text in columns or ():
        name, sign, value = text.partition("=")
        if not (sign and name and value):
            raise RegardError(f"'{text}' names no column. Write --columns source=NAME target=NAME.")
        found[name] = value
    return found


def show(rows: list[dict[str, Any]], right: tuple[str, ...] = ()) -> None:
    """Aligned columns, plain enough for grep."""
    if not rows:
        return
    names = list(rows[0])
    widths = {n: max(len(n), *(len(str(row[n])) for row in rows)) for n in names}
    for row in [{n: n for n in names}, *rows]:
        cells = (f"{row[n]!s:>{widths[n]}}" if n in right else f"{row[n]!s:<{widths[n]}}" for n in names)
        print("  ".join(cells).rstrip())


def as_json(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)


def spread(words: Sequence[str]) -> list[str]:
    """`--data a b` -> `--data a --data b`: what follows such an option belongs to it until the next option.

    To `--set` and `--columns` belong only words with a `=`; after `--` all words are left alone."""
    result: list[str] = []
    current, first = "", True
    for number, word in enumerate(words):
        if word == "--":
            return [*result, *words[number:]]
        if word.startswith("-"):
            current, first = (word if word in SEVERAL else ""), True
            result.append(word)
        elif current and not first and (current in FILES or "=" in word):
            result += [current, word]
        else:
            result.append(word)
            first = False
            if current not in FILES and "=" not in word:
                current = ""
    return result
