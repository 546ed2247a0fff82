"""Text for figures and tables: visible labels of tokens, and Markdown tables that are also readable as plain text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Final

from regard.errors import InputError

_VISIBLE_SYMBOLS: Final = {"\n": "↵", "\r": "␍", "\t": "⇥", "\u2028": "↵", "\u2029": "↵"}
_JOINERS: Final = "\u200c\u200d"  # required for Persian, Hindi and emoji


def check_choice(what: str, number: int | None, count: int) -> None:
    """Raise an error if the layer or head `number`, counted from 1, does not exist; None: no choice."""
    if number is not None and not 1 <= number <= count:
        raise InputError(f"{what} must be between 1 and {count}, got {number}.")


def label(token: str, max_width: int = 16) -> str:
    """The token with visible line breaks, tabs and lone spaces, shortened to `max_width` columns with an ellipsis."""
    if not token.strip(" "):
        return "␣" * min(len(token), max_width) or "∅"
    visible = []
    for character in token:
        category = unicodedata.category(character)
        if character in _VISIBLE_SYMBOLS or character in _JOINERS:
            visible.append(_VISIBLE_SYMBOLS.get(character, character))
        elif category in ("Cc", "Cs", "Cn"):  # not allowed in XML or UTF-8
            visible.append("\N{REPLACEMENT CHARACTER}")
        elif category != "Cf":  # direction marks would reorder adjacent text
            visible.append(character)
    text, room = "".join(visible), max_width - 1
    if display_width(text) <= max_width:
        return text
    for at, character in enumerate(text):
        room -= display_width(character)
        if room < 0:
            return text[:at] + "…"
    return text


def display_width(text: str) -> int:
    """Width of the text in monospace columns; Chinese characters and emoji have width two."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) > 0 for character in text)


def markdown_table(rows: Sequence[Mapping[str, object]], columns: Sequence[str] | None = None) -> str:
    """GitHub table of `columns`, default all columns that occur; numeric columns are right-aligned."""
    names = list(dict.fromkeys(name for row in rows for name in row)) if columns is None else list(columns)
    if not names:
        return ""
    header = dict(zip(names, names, strict=True))
    cells = []
    for row in (header, *rows):
        line = []
        for value in map(row.get, names):
            text = "" if value is None else " ".join(str(value).split("\n")).replace("\r", "")
            if isinstance(value, float):
                text = f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
            # Backslashes directly before a pipe would cancel the escape of the pipe; only these are doubled.
            line.append(re.sub(r"(\\*)\|", lambda found: found[1] * 2 + r"\|", text))
        cells.append(line)
    widths = [max(3, *map(display_width, column)) for column in zip(*cells, strict=True)]
    numeric = []
    for name in names:
        values = [row[name] for row in rows if row.get(name) is not None]
        numeric.append(bool(values) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values))
    lines = []
    for line in cells:
        blanks = [" " * (width - display_width(text)) for text, width in zip(line, widths, strict=True)]
        padded = zip(line, blanks, numeric, strict=True)
        lines.append(f"| {' | '.join(blank + text if right else text + blank for text, blank, right in padded)} |")
    rule = ["-" * (width - 1) + ":" if right else "-" * width for width, right in zip(widths, numeric, strict=True)]
    lines.insert(1, f"| {' | '.join(rule)} |")
    return "\n".join(lines)
