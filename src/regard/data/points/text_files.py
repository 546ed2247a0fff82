"""Point clouds in text files: .xyz, .txt, .pts, .asc, .csv.

Each line has the same number of fields, separated by spaces, tabs, commas or semicolons. Comment lines start with #, // or %.
A first line with a single integer is the number of points and is ignored. A header may name the columns, also in a comment;
the module `columns` determines the meaning of the columns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from regard.data.points.cloud import MAX_POINTS, CloudFormatError, Columns, RawCloud
from regard.data.points.columns import cloud_from_table
from regard.data.points.number_lines import decode_lines, parse_rows, split_fields

_COMMENT = re.compile(r"\s*(#|//|%)+")
_NUMBER = re.compile(r"[-+]?(\d|\.\d).*|[-+]?(nan|inf|infinity)", re.IGNORECASE)


def read_points(content: bytes, columns: Columns | None = None, suffix: str = ".xyz") -> RawCloud:
    texts = decode_lines(content)
    first, names = _find_first_row(texts)
    if first == len(texts):
        raise CloudFormatError(
            "the file is empty." if not content.strip() else "the file contains no numbers.",
            "Copy or write the file again, or remove the file.",
        )
    if ";" in texts[first] and "," in texts[first]:
        raise CloudFormatError("semicolons and commas in one line.", "Use a point as the decimal separator.", first + 1)
    wide = len(split_fields(texts[first]))
    rows, lines = texts[first:], range(first + 1, len(texts) + 1)
    if any(not text or text[0] in "#/%" or text.isspace() for text in rows):
        full = [
            (line, text) for line, text in zip(lines, rows, strict=True) if text.strip() and not _COMMENT.match(text)
        ]
        rows, lines = [text for _, text in full], [line for line, _ in full]  # type: ignore[assignment]
    if len(rows) > MAX_POINTS:
        raise CloudFormatError(
            f"{len(rows):,} points exceed the maximum of {MAX_POINTS:,}.", "Split the file into smaller files."
        )
    try:
        table = parse_rows(rows, 1, wide, "as in the first row")
    except CloudFormatError as error:
        raise CloudFormatError(error.problem, error.advice, lines[(error.line or 1) - 1]) from error
    if names and len(names) != wide:
        problem = f"the numbers of columns differ: {len(names)} in the header, {wide} in the first row."
        raise CloudFormatError(problem, "Write one name per column.", first + 1)
    return cloud_from_table(table, names, columns, scanner_order=suffix == ".pts")


def _find_first_row(texts: Sequence[str]) -> tuple[int, list[str]]:
    """Index of the first line of numbers, and the column names; empty without a header."""
    names: list[str] = []
    counted = False
    for at, text in enumerate(texts):
        sign = _COMMENT.match(text)
        words = [word.strip("\"'") for word in split_fields(text[sign.end() :] if sign else text)]
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
                raise CloudFormatError(
                    f"expected a row of numbers or a header, got '{shown}'.",
                    "A header must contain x, y and z.",
                    at + 1,
                )
        else:
            return at, names
    return len(texts), names
