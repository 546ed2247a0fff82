"""Tokens as short visible labels of one line."""

from __future__ import annotations

import unicodedata
from typing import Final

_VISIBLE_SYMBOLS: Final = {"\n": "↵", "\r": "␍", "\t": "⇥", "\u2028": "↵", "\u2029": "↵"}
_JOINERS: Final = "\u200c\u200d"  # required for Persian, Hindi and emoji


def _visible_char(character: str) -> str:
    if character in _VISIBLE_SYMBOLS or character in _JOINERS:
        return _VISIBLE_SYMBOLS.get(character, character)
    category = unicodedata.category(character)
    if category in ("Cc", "Cs", "Cn"):  # not allowed in XML or UTF-8
        return "\N{REPLACEMENT CHARACTER}"
    return "" if category == "Cf" else character  # direction marks would reorder adjacent text


def label(token: str, max_width: int = 16) -> str:
    """The token with visible line breaks, tabs and lone spaces, shortened to `max_width` columns with an ellipsis."""
    if not token.strip(" "):
        return "␣" * min(len(token), max_width) or "∅"
    return shorten("".join(map(_visible_char, token)), max_width)


def display_width(text: str) -> int:
    """Width of the text in monospace columns; Chinese characters and emoji have width two."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) > 0 for character in text)


def shorten(text: str, max_width: int) -> str:
    """The text, or the start of the text with an ellipsis, at most `max_width` columns wide."""
    if display_width(text) <= max_width:
        return text
    room = max_width - 1
    for at, character in enumerate(text):
        room -= display_width(character)
        if room < 0:
            return text[:at] + "…"
    return text
