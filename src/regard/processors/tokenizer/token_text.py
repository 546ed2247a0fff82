"""Text of tokens by format: bytes in GPT-2's alphabet, characters, words with an end-of-word suffix, or word pieces with a
continuation prefix."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any, NamedTuple

from tokenizers import Tokenizer, decoders

SENTENCE_DECODER = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
"""Byte-level decoder that removes the added leading space."""


class TokenFormat(Enum):
    BYTES = "bytes"
    """`TextTokenizer.train_lm_bpe`, GPT-2"""
    PREFIXED_BYTES = "bytes with a leading space"
    """`TextTokenizer.train_sentence_bpe`"""
    CHARACTERS = "characters"
    """`TextTokenizer.from_characters`"""
    WORD_SUFFIX = "end-of-word suffix"
    """GPT-1"""
    WORDPIECE = "continuation prefix"
    """`TextTokenizer.train_wordpiece`, `TextTokenizer.from_words`, BERT"""
    OTHER = "other"
    """tokenizers of checkpoints with another decoder"""

    @property
    def is_byte_level(self) -> bool:
        return self in (TokenFormat.BYTES, TokenFormat.PREFIXED_BYTES)


def detect_format(backend: Tokenizer) -> TokenFormat:
    """Token format, detected from the decoder in tokenizer.json."""
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
    """JSON state of a tokenizer component, as in tokenizer.json."""
    return {} if component is None else json.loads(component.__getstate__())


def word_suffix(backend: Tokenizer) -> str:
    """Suffix of the last token of a word; empty for formats without a suffix."""
    return str(component_state(backend.decoder).get("suffix", ""))


def continuation_prefix(backend: Tokenizer) -> str:
    """Prefix of tokens that continue a word; empty for formats without a prefix."""
    return str(component_state(backend.decoder).get("prefix", ""))


def _make_byte_decoder() -> dict[str, int]:
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + number): byte for number, byte in enumerate(rest)}


BYTE_DECODER = _make_byte_decoder()
"""GPT-2's alphabet for bytes: printable characters map to themselves, the other bytes to code points from 256 on."""


def to_bytes(name: str) -> bytes:
    """Bytes of a byte-level token. Added tokens contain other characters and are encoded as UTF-8."""
    try:
        return bytes(BYTE_DECODER[letter] for letter in name)
    except KeyError:
        return name.encode("utf-8")


WHITESPACE_SYMBOLS = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}


def to_visible(raw: bytes) -> str:
    """Text with symbols for whitespace, incomplete characters (‹e2›) and unprintable characters."""
    return "".join(map(_visible_char, raw.decode("utf-8", "surrogateescape")))


def _visible_char(letter: str) -> str:
    if letter in WHITESPACE_SYMBOLS:
        return WHITESPACE_SYMBOLS[letter]
    if "\udc80" <= letter <= "\udcff":  # an undecodable byte, as a surrogate
        return f"‹{ord(letter) - 0xDC00:02x}›"
    return letter if letter.isprintable() else f"‹U+{ord(letter):04X}›"


class TokenText(NamedTuple):
    """Readable text of a token, and flags for word start, word end and special tokens."""

    text: str
    starts_word: bool = False
    ends_word: bool = False
    is_special: bool = False


def describe_token(backend: Tokenizer, token: int) -> TokenText:
    """Readable text of an ordinary token."""
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
