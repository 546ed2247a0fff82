"""Lines of numbers as arrays, quickly; what is no number is found by its line."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from regard.data.points.cloud import CloudFormatError

_SEPARATOR = re.compile(r"[\s,;]+")


def decode_lines(content: bytes) -> list[str]:
    """The lines of a text. Bytes that are no UTF-8 do not matter in comments and names; elsewhere they are no numbers."""
    utf16 = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    if utf16 or b"\0" in content[:4096]:
        advice = "Convert the file to UTF-8." if utf16 else "Use the extension that matches the file format."
        raise CloudFormatError(
            "expected UTF-8, got UTF-16." if utf16 else "expected a text file, but the file contains NUL bytes.", advice
        )
    text = content.decode("utf-8-sig", "replace")
    return (text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text).split("\n")


def split_fields(text: str) -> list[str]:
    """What stands between blanks, tabs, commas or semicolons."""
    return [word for word in _SEPARATOR.split(text) if word] if "," in text or ";" in text else text.split()


def parse_rows(
    lines: Sequence[str], first_line: int, width: int, what: str = "per row", allow_extra: bool = False
) -> NDArray[np.float64]:
    """(N, wide) the numbers of lines, of which the first has this number; `more` may stand behind them."""
    if not lines or not width:
        return np.zeros((len(lines), width))
    if len(split_fields(lines[0])) < width:  # where nothing stands at all, the reader would warn
        raise _row_error(lines, first_line, width, what, allow_extra)
    if "," in lines[0] or ";" in lines[0]:
        plain: Sequence[str] = [text.replace(",", " ").replace(";", " ") for text in lines]
    else:
        plain = lines
    try:
        found: NDArray[np.float64] = np.loadtxt(
            plain, np.float64, comments=None, ndmin=2, usecols=range(width) if allow_extra else None
        )
    except ValueError as error:
        raise _row_error(lines, first_line, width, what, allow_extra) from error
    if found.shape != (len(lines), width):  # blank lines are left out by it, and all may be too long
        raise _row_error(lines, first_line, width, what, allow_extra)
    return found


def _row_error(lines: Sequence[str], first: int, wide: int, what: str, more: bool) -> CloudFormatError:
    """The first line that is wrong, and how."""
    for line, text in enumerate(lines, start=first):
        words = split_fields(text)
        if len(words) < wide or (len(words) > wide and not more):
            return CloudFormatError(
                f"expected {wide} number{'s' if wide > 1 else ''} {what}, got {len(words)}: '{text.strip()[:60]}'.",
                "",
                line,
            )
        for word in words[:wide]:
            if not _is_number(word):
                return CloudFormatError(f"'{word[:40]}' is not a number.", "", line)
    return CloudFormatError("cannot be read as numbers.", "", first)


def _is_number(word: str) -> bool:
    try:
        return float(word) is not None and "_" not in word and word.isascii()
    except ValueError:
        return False
