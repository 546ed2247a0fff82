"""Any token as one short line of text that a person can see."""

from __future__ import annotations

import unicodedata
from typing import Final

_VISIBLE: Final = {"\n": "↵", "\r": "␍", "\t": "⇥", "\u2028": "↵", "\u2029": "↵"}
_JOINERS: Final = "\u200c\u200d"  # they shape Persian, Hindi and emoji


def _seen(character: str) -> str:
    if character in _VISIBLE or character in _JOINERS:
        return _VISIBLE.get(character, character)
    category = unicodedata.category(character)
    if category in ("Cc", "Cs", "Cn"):  # neither XML nor UTF-8 can carry these
        return "\N{REPLACEMENT CHARACTER}"
    return "" if category == "Cf" else character  # direction marks would reorder the neighbours


def label(token: str, limit: int = 16) -> str:
    """The token with blanks and control characters made visible, cut to `limit` columns with an ellipsis."""
    if not token.strip(" "):
        return "␣" * min(len(token), limit) or "∅"
    return shorten("".join(map(_seen, token)), limit)


def columns(text: str) -> int:
    """How many columns the text takes where every letter is equally wide (Chinese signs and emoji take two)."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) > 0 for character in text)


def shorten(text: str, limit: int) -> str:
    """The text itself, or its beginning and an ellipsis, never wider than `limit` columns."""
    if columns(text) <= limit:
        return text
    room = limit - 1
    for at, character in enumerate(text):
        room -= columns(character)
        if room < 0:
            return text[:at] + "…"
    return text
