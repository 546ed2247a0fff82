"""How the names of tokens stand for text: as GPT-2's letters for bytes, as characters, or as words with an ending or with
pieces that are marked as going on."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any, NamedTuple

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
    PIECES = "words whose further pieces have a mark in front"
    """as `Text.wordpiece` and BERT"""
    OTHER = "other"
    """as published ones with a decoder of their own"""

    @property
    def of_bytes(self) -> bool:
        return self in (Form.BYTES, Form.SENTENCES)


def form_of(backend: Tokenizer) -> Form:
    """By its decoder, which every tokenizer.json has."""
    decoder = state(backend.decoder)
    if decoder == state(SENTENCES):
        return Form.SENTENCES
    kinds = {"ByteLevel": Form.BYTES, "Fuse": Form.JOINED, "BPEDecoder": Form.WORDS, "WordPiece": Form.PIECES}
    return kinds.get(decoder.get("type", ""), Form.OTHER)


def state(part: Any) -> dict[str, Any]:
    """What a part of the library's tokenizer is, as its file says it."""
    return {} if part is None else json.loads(part.__getstate__())


def ending(backend: Tokenizer) -> str:
    """What the last piece of a word ends in, where words have an ending."""
    return str(state(backend.decoder).get("suffix", ""))


def prefix(backend: Tokenizer) -> str:
    """What pieces begin with that go on with a word, where they have a mark."""
    return str(state(backend.decoder).get("prefix", ""))


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


class Piece(NamedTuple):
    """A token as it is shown, whether it begins and ends a word, and whether it is a special one."""

    text: str
    starts: bool = False
    ends: bool = False
    special: bool = False


def piece_of(backend: Tokenizer, token: int) -> Piece:
    """A token that is not a special one."""
    name, form = backend.id_to_token(token) or "?", form_of(backend)
    if form is Form.BYTES:
        return Piece(visible(to_bytes(name)))
    if form is Form.JOINED:
        return Piece(visible(name.encode("utf-8")))
    if form is Form.WORDS:
        mark = ending(backend)
        return Piece(name.removesuffix(mark), ends=name.endswith(mark))
    if form is Form.PIECES:
        mark = prefix(backend)
        return Piece(name.removeprefix(mark), starts=not name.startswith(mark))
    return Piece(backend.decode([token], skip_special_tokens=False), starts=name.startswith(("Ġ", "▁")))
