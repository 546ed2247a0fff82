"""Lines of numbers as arrays, quickly; what is no number is found by its line."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from regard.data.points.cloud import Wrong

_BETWEEN = re.compile(r"[\s,;]+")


def decoded(content: bytes) -> list[str]:
    """The lines of a text. Bytes that are no UTF-8 do not matter in comments and names; elsewhere they are no numbers."""
    utf16 = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    if utf16 or b"\0" in content[:4096]:
        advice = "Convert it to UTF-8." if utf16 else "Its ending says that it is text. Give it the one that it has."
        raise Wrong("is UTF-16, and UTF-8 is wanted." if utf16 else "is not text: it holds NUL bytes.", advice)
    text = content.decode("utf-8-sig", "replace")
    return (text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text).split("\n")


def words_of(text: str) -> list[str]:
    """What stands between blanks, tabs, commas or semicolons."""
    return [word for word in _BETWEEN.split(text) if word] if "," in text or ";" in text else text.split()


def rows_of(
    lines: Sequence[str], first: int, wide: int, what: str = "a row", more: bool = False
) -> NDArray[np.float64]:
    """(N, wide) the numbers of lines, of which the first has this number; `more` may stand behind them."""
    if not lines or not wide:
        return np.zeros((len(lines), wide))
    if len(words_of(lines[0])) < wide:  # where nothing stands at all, the reader would warn
        raise _wrong(lines, first, wide, what, more)
    if "," in lines[0] or ";" in lines[0]:
        plain: Sequence[str] = [text.replace(",", " ").replace(";", " ") for text in lines]
    else:
        plain = lines
    try:
        found: NDArray[np.float64] = np.loadtxt(
            plain, np.float64, comments=None, ndmin=2, usecols=range(wide) if more else None
        )
    except ValueError as error:
        raise _wrong(lines, first, wide, what, more) from error
    if found.shape != (len(lines), wide):  # blank lines are left out by it, and all may be too long
        raise _wrong(lines, first, wide, what, more)
    return found


def _wrong(lines: Sequence[str], first: int, wide: int, what: str, more: bool) -> Wrong:
    """The first line that is wrong, and how."""
    for line, text in enumerate(lines, start=first):
        words = words_of(text)
        if len(words) < wide or (len(words) > wide and not more):
            there = "1 number stands" if len(words) == 1 else f"{len(words)} numbers stand"
            return Wrong(f"{there} here, and {what} has {wide}: '{text.strip()[:60]}'.", "", line)
        for word in words[:wide]:
            if not _is_number(word):
                return Wrong(f"'{word[:40]}' is no number.", "", line)
    return Wrong("cannot be read as numbers.", "", first)


def _is_number(word: str) -> bool:
    try:
        return float(word) is not None and "_" not in word and word.isascii()
    except ValueError:
        return False
