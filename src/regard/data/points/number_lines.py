"""Parse lines of numbers into arrays; errors have the line number."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from regard.data.points.cloud import CloudFormatError

_SEPARATOR = re.compile(r"[\s,;]+")


def decode_lines(content: bytes) -> list[str]:
    """Lines of a text file. Invalid UTF-8 is replaced, which is harmless in comments and names, and an error in numbers."""
    utf16 = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    if utf16 or b"\0" in content[:4096]:
        advice = "Convert the file to UTF-8." if utf16 else "Use the extension that matches the file format."
        raise CloudFormatError(
            "expected UTF-8, got UTF-16." if utf16 else "expected a text file, but the file contains NUL bytes.", advice
        )
    text = content.decode("utf-8-sig", "replace")
    return (text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text).split("\n")


def split_fields(text: str) -> list[str]:
    """Fields separated by spaces, tabs, commas or semicolons."""
    return [word for word in _SEPARATOR.split(text) if word] if "," in text or ";" in text else text.split()


def parse_rows(
    lines: Sequence[str], first_line: int, width: int, what: str = "per row", allow_extra: bool = False
) -> NDArray[np.float64]:
    """(N, width) numbers of lines that start at line `first_line`; `allow_extra` ignores further fields."""
    if not lines or not width:
        return np.zeros((len(lines), width))
    if len(split_fields(lines[0])) < width:  # np.loadtxt would warn about empty input
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
    if found.shape != (len(lines), width):  # np.loadtxt skips empty lines and accepts lines that are all too long
        raise _row_error(lines, first_line, width, what, allow_extra)
    return found


def _row_error(lines: Sequence[str], first: int, wide: int, what: str, more: bool) -> CloudFormatError:
    """Error for the first invalid line."""
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
