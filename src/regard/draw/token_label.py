"""Any token as one short line of text that a person can see."""

from __future__ import annotations

import unicodedata
from typing import Final

_VISIBLE_SYMBOLS: Final = {"\n": "↵", "\r": "␍", "\t": "⇥", "\u2028": "↵", "\u2029": "↵"}
_JOINERS: Final = "\u200c\u200d"  # they shape Persian, Hindi and emoji


def _visible_char(character: str) -> str:
    if character in _VISIBLE_SYMBOLS or character in _JOINERS:
        return _VISIBLE_SYMBOLS.get(character, character)
    category = unicodedata.category(character)
    if category in ("Cc", "Cs", "Cn"):  # neither XML nor UTF-8 can carry these
        return "\N{REPLACEMENT CHARACTER}"
    return "" if category == "Cf" else character  # direction marks would reorder the neighbours


def label(token: str, max_width: int = 16) -> str:
    """The token with blanks and control characters made visible, cut to `limit` columns with an ellipsis."""
    if not token.strip(" "):
        return "␣" * min(len(token), max_width) or "∅"
    return shorten("".join(map(_visible_char, token)), max_width)


def display_width(text: str) -> int:
    """How many columns the text takes where every letter is equally wide (Chinese signs and emoji take two)."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) > 0 for character in text)


def shorten(text: str, max_width: int) -> str:
    """The text itself, or its beginning and an ellipsis, never wider than `limit` columns."""
    if display_width(text) <= max_width:
        return text
    room = max_width - 1
    for at, character in enumerate(text):
        room -= display_width(character)
        if room < 0:
            return text[:at] + "…"
    return text
