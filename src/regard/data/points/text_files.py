"""Points as lines of numbers: .xyz, .txt, .pts, .asc, .csv.

Numbers stand between blanks, tabs, commas or semicolons, as many in each line. Lines that begin with #, // or % say nothing,
nor does a first line of one whole number, which counts the others; a heading may name the columns, also behind such a sign.
What the columns are, `point_columns` says.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from regard.data.points.cloud import LIMIT, Columns, Raw, Wrong
from regard.data.points.columns import raw_of
from regard.data.points.number_lines import decoded, rows_of, words_of

_SIGN = re.compile(r"\s*(#|//|%)+")
_NUMBER = re.compile(r"[-+]?(\d|\.\d).*|[-+]?(nan|inf|infinity)", re.IGNORECASE)


def read_points(content: bytes, columns: Columns | None = None, ending: str = ".xyz") -> Raw:
    texts = decoded(content)
    first, names = _begins(texts)
    if first == len(texts):
        raise Wrong(
            "is empty." if not content.strip() else "holds no numbers.", "Copy or write it again, or remove it."
        )
    if ";" in texts[first] and "," in texts[first]:
        raise Wrong("has semicolons and commas.", "Decimals are written with a point.", first + 1)
    wide = len(words_of(texts[first]))
    rows, lines = texts[first:], range(first + 1, len(texts) + 1)
    if any(not text or text[0] in "#/%" or text.isspace() for text in rows):
        full = [(line, text) for line, text in zip(lines, rows, strict=True) if text.strip() and not _SIGN.match(text)]
        rows, lines = [text for _, text in full], [line for line, _ in full]  # type: ignore[assignment]
    if len(rows) > LIMIT:
        raise Wrong(f"has {len(rows):,} points, and at most {LIMIT:,} are read.", "Cut it into parts.")
    try:
        table = rows_of(rows, 1, wide, "the first row")
    except Wrong as error:
        raise Wrong(error.problem, error.advice, lines[(error.line or 1) - 1]) from error
    if names and len(names) != wide:
        problem = f"its heading names {len(names)} columns, and {wide} numbers stand in the first row."
        raise Wrong(problem, "A name for each is wanted.", first + 1)
    return raw_of(table, names, columns, scanned=ending == ".pts")


def _begins(texts: Sequence[str]) -> tuple[int, list[str]]:
    """Where the numbers begin, from 0, and what the columns are called, if anything says so."""
    names: list[str] = []
    counted = False
    for at, text in enumerate(texts):
        sign = _SIGN.match(text)
        words = [word.strip("\"'") for word in words_of(text[sign.end() :] if sign else text)]
        if sign:
            names = words if {"x", "y", "z"} <= {word.lower() for word in words} else names
        elif not words:
            continue
        elif len(words) == 1 and words[0].isdigit() and not counted:
            counted = True
        elif not any(_NUMBER.fullmatch(word) for word in words) and not names:
            names = words
            if not {"x", "y", "z"} & {word.lower().removeprefix("scalar_") for word in words}:
                shown = " ".join(text.split())[:60]
                raise Wrong(f"'{shown}' are neither numbers nor names of columns.", "x, y and z are wanted.", at + 1)
        else:
            return at, names
    return len(texts), names
