"""Markdown tables that are also readable as plain text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from regard.draw.token_label import display_width as width_of


def markdown_table(rows: Sequence[Mapping[str, object]], columns: Sequence[str] | None = None) -> str:
    """GitHub table of `columns`, default all columns that occur; numeric columns are right-aligned."""
    names = list(dict.fromkeys(name for row in rows for name in row)) if columns is None else list(columns)
    if not names:
        return ""
    cells = [[_escape(name) for name in names], *([_format_cell(row.get(name)) for name in names] for row in rows)]
    right = [_is_numeric([row.get(name) for row in rows]) for name in names]
    widths = [max(3, *(width_of(line[at]) for line in cells)) for at in range(len(names))]

    def row_of(line: Sequence[str]) -> str:
        padded = (_pad(text, width, flush) for text, width, flush in zip(line, widths, right, strict=True))
        return f"| {' | '.join(padded)} |"

    rule = [("-" * (width - 1) + ":") if flush else "-" * width for width, flush in zip(widths, right, strict=True)]
    return "\n".join([row_of(cells[0]), row_of(rule), *map(row_of, cells[1:])])


def _is_numeric(values: Sequence[object]) -> bool:
    present = [value for value in values if value is not None]
    return bool(present) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in present)


def _format_cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
    return _escape(str(value))


def _escape(text: str) -> str:
    # Backslashes directly before a pipe would cancel the escape of the pipe; only these are doubled.
    one_line = " ".join(text.split("\n")).replace("\r", "")
    return re.sub(r"(\\*)\|", lambda found: found[1] * 2 + r"\|", one_line)


def _pad(text: str, width: int, flush_right: bool) -> str:
    blank = " " * (width - width_of(text))
    return blank + text if flush_right else text + blank
