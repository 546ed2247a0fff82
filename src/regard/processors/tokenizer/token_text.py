"""How the names of tokens stand for text: as GPT-2's letters for bytes, as characters, or as words with an ending or with
pieces that are marked as going on."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any, NamedTuple

from tokenizers import Tokenizer, decoders

SENTENCE_DECODER = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
"""Bytes of a text that was given a leading space."""


class TokenFormat(Enum):
    BYTES = "bytes"
    """as `Text.language` and GPT-2"""
    PREFIXED_BYTES = "bytes with a leading space"
    """as `Text.train`"""
    CHARACTERS = "characters"
    """as `Text.characters`"""
    WORD_SUFFIX = "end-of-word suffix"
    """as GPT-1"""
    WORDPIECE = "continuation prefix"
    """as `Text.wordpiece` and BERT"""
    OTHER = "other"
    """as published ones with a decoder of their own"""

    @property
    def is_byte_level(self) -> bool:
        return self in (TokenFormat.BYTES, TokenFormat.PREFIXED_BYTES)


def detect_format(backend: Tokenizer) -> TokenFormat:
    """By its decoder, which every tokenizer.json has."""
    decoder = component_state(backend.decoder)
    if decoder == component_state(SENTENCE_DECODER):
        return TokenFormat.PREFIXED_BYTES
    kinds = {
        "ByteLevel": TokenFormat.BYTES,
        "Fuse": TokenFormat.CHARACTERS,
        "BPEDecoder": TokenFormat.WORD_SUFFIX,
        "WordPiece": TokenFormat.WORDPIECE,
    }
    return kinds.get(decoder.get("type", ""), TokenFormat.OTHER)


def component_state(component: Any) -> dict[str, Any]:
    """What a part of the library's tokenizer is, as its file says it."""
    return {} if component is None else json.loads(component.__getstate__())


def word_suffix(backend: Tokenizer) -> str:
    """What the last piece of a word ends in, where words have an ending."""
    return str(component_state(backend.decoder).get("suffix", ""))


def continuation_prefix(backend: Tokenizer) -> str:
    """What pieces begin with that go on with a word, where they have a mark."""
    return str(component_state(backend.decoder).get("prefix", ""))


def _make_byte_decoder() -> dict[str, int]:
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + number): byte for number, byte in enumerate(rest)}


BYTE_DECODER = _make_byte_decoder()
"""GPT-2's letters for bytes: those that can be seen stand for themselves, the others for 256 and up, in order."""


def to_bytes(name: str) -> bytes:
    """A name that has other letters (an added token) is text already."""
    try:
        return bytes(BYTE_DECODER[letter] for letter in name)
    except KeyError:
        return name.encode("utf-8")


WHITESPACE_SYMBOLS = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}


def to_visible(raw: bytes) -> str:
    """Text in which blanks, bytes that are no whole character (‹e2›) and unprintable characters can be seen."""
    return "".join(map(_visible_char, raw.decode("utf-8", "surrogateescape")))


def _visible_char(letter: str) -> str:
    if letter in WHITESPACE_SYMBOLS:
        return WHITESPACE_SYMBOLS[letter]
    if "\udc80" <= letter <= "\udcff":  # a byte that did not decode
        return f"‹{ord(letter) - 0xDC00:02x}›"
    return letter if letter.isprintable() else f"‹U+{ord(letter):04X}›"


class TokenText(NamedTuple):
    """A token as it is shown, whether it begins and ends a word, and whether it is a special one."""

    text: str
    starts_word: bool = False
    ends_word: bool = False
    is_special: bool = False


def describe_token(backend: Tokenizer, token: int) -> TokenText:
    """A token that is not a special one."""
    name, form = backend.id_to_token(token) or "?", detect_format(backend)
    if form is TokenFormat.BYTES:
        return TokenText(to_visible(to_bytes(name)))
    if form is TokenFormat.CHARACTERS:
        return TokenText(to_visible(name.encode("utf-8")))
    if form is TokenFormat.WORD_SUFFIX:
        mark = word_suffix(backend)
        return TokenText(name.removesuffix(mark), ends_word=name.endswith(mark))
    if form is TokenFormat.WORDPIECE:
        mark = continuation_prefix(backend)
        return TokenText(name.removeprefix(mark), starts_word=not name.startswith(mark))
    return TokenText(backend.decode([token], skip_special_tokens=False), starts_word=name.startswith(("Ġ", "▁")))
