"""How the names of tokens stand for text: as GPT-2's letters for bytes, as characters, or as words with an ending."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any

from tokenizers import Tokenizer, decoders

SENTENCES = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
"""Bytes of a text that was given a leading space."""


class Form(Enum):
    BYTES = "bytes"
    """as `Text.language` and GPT-2"""
    SENTENCES = "bytes, after a space that was added"
    """as `Text.train`"""
    JOINED = "names"
    """as `Text.characters`"""
    WORDS = "words with an ending"
    """as GPT-1"""
    OTHER = "other"
    """as published ones with a decoder of their own"""


def form_of(backend: Tokenizer) -> Form:
    """By its decoder, which every tokenizer.json has."""
    decoder = state(backend.decoder)
    if decoder == state(SENTENCES):
        return Form.SENTENCES
    kinds = {"ByteLevel": Form.BYTES, "Fuse": Form.JOINED, "BPEDecoder": Form.WORDS}
    return kinds.get(decoder.get("type", ""), Form.OTHER)


def state(part: Any) -> dict[str, Any]:
    """What a part of the library's tokenizer is, as its file says it."""
    return {} if part is None else json.loads(part.__getstate__())


def ending(backend: Tokenizer) -> str:
    """What the last piece of a word ends in, where words have an ending."""
    return str(state(backend.decoder).get("suffix", ""))


def _letters() -> dict[str, int]:
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + number): byte for number, byte in enumerate(rest)}


LETTERS = _letters()
"""GPT-2's letters for bytes: those that can be seen stand for themselves, the others for 256 and up, in order."""


def to_bytes(name: str) -> bytes:
    """A name that has other letters (an added token) is text already."""
    try:
        return bytes(LETTERS[letter] for letter in name)
    except KeyError:
        return name.encode("utf-8")


SIGNS = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}


def visible(raw: bytes) -> str:
    """Text in which blanks, bytes that are no whole character (‹e2›) and unprintable characters can be seen."""
    return "".join(map(_visible, raw.decode("utf-8", "surrogateescape")))


def _visible(letter: str) -> str:
    if letter in SIGNS:
        return SIGNS[letter]
    if "\udc80" <= letter <= "\udcff":  # a byte that did not decode
        return f"‹{ord(letter) - 0xDC00:02x}›"
    return letter if letter.isprintable() else f"‹U+{ord(letter):04X}›"
