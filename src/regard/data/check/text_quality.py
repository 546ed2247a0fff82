"""Measures of texts: estimated tokens, hashes, normalized text, and signs of damage such as lost characters and markup."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from hashlib import blake2b

BYTES_PER_TOKEN = 4
"""UTF-8 bytes per byte-pair token: 3.4 to 4.8 were measured on English and German"""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff]")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MARKUP = re.compile(r"&(?:[a-zA-Z]{2,8}|#\d{1,6}|#[xX][0-9a-fA-F]{1,5});|</?(?:br|p|b|i|a|div|span)\b[^<>]{0,40}>")

_CONTINUATION_CHARS = "\x80-\xbf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ"
"""continuation bytes of UTF-8 decoded as Latin-1 or Windows-1252"""
_MOJIBAKE = re.compile(f"[ÂÃÄÅÎÏÐÑâ][{_CONTINUATION_CHARS}]{{1,2}}")


def find_quality_issues(text: str) -> Iterator[tuple[str, int]]:
    """Finding id of each kind of damage in the text, and the position of the first occurrence."""
    if text.isascii():
        if not text.isprintable() and (match := _CONTROL.search(text)):
            yield "control_character", match.start()
    else:
        if match := _CONTROL.search(text):
            yield "control_character", match.start()
        if (at := text.find(_REPLACEMENT)) >= 0:
            yield "replacement_character", at
        if (at := find_mojibake(text)) >= 0:
            yield "mojibake", at
    if ("&" in text or "<" in text) and (match := _MARKUP.search(text)):
        yield "markup", match.start()


def find_mojibake(text: str) -> int:
    """Position of the first UTF-8 character decoded as Windows-1252 ("Ã¼" for "ü"), or −1."""
    for match in _MOJIBAKE.finditer(text):
        for encoding in ("cp1252", "latin-1"):
            try:
                once = match.group().encode(encoding).decode("utf-8", "ignore")
            except UnicodeEncodeError:
                continue
            # a quotation mark after a capital umlaut can be decoded too, but to a rare letter
            if once and (once[0] in _COMMON_LETTERS or unicodedata.category(once[0])[0] in "PSZ"):
                return match.start()
    return -1


_COMMON_LETTERS = set(
    "äöüÄÖÜßáàâãåæçéèêëíìîïñóòôõøœúùûýÿÁÀÂÃÅÆÇÉÈÊËÍÌÎÏÑÓÒÔÕØŒÚÙÛÝąćęłńśźżĄĆĘŁŃŚŹŻčďěňřšťůžČĎŘŠŤŮŽőűğışİŞăâîșțȘȚ"
) | {chr(code) for code in (*range(0x3B1, 0x3CA), *range(0x391, 0x3AA), *range(0x410, 0x450))}


class _NormalizationTable(dict[int, str | None]):
    """Table for `str.translate` without punctuation, symbols and control characters, filled on first use."""

    def __missing__(self, code: int) -> str | None:
        kind = unicodedata.category(chr(code))[0]
        self[code] = result = " " if kind == "Z" else None if kind in "PSC" else chr(code)
        return result


_NORMALIZATION = _NormalizationTable({ord("\t"): " ", ord("\n"): " "})


def normalize_text(text: str) -> str:
    """Text without case, punctuation and repeated spaces; a text of punctuation only is unchanged."""
    return " ".join(text.casefold().translate(_NORMALIZATION).split()) or text


def hash_text(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def estimate_tokens(words: int, num_bytes: int) -> int:
    """Estimated number of tokens: at least one per word."""
    return max(words, -(-num_bytes // BYTES_PER_TOKEN))
