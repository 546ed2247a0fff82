"""Formats of tokens (bytes in GPT-2's alphabet, characters, words with an end-of-word suffix, word pieces with a continuation
prefix), their text and character spans, and incremental decoding."""

from __future__ import annotations

import codecs
import unicodedata
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import decoders

from regard.errors import SettingError

if TYPE_CHECKING:
    from regard.processors.tokenizer.tokenizer import TextTokenizer

SENTENCE_DECODER = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
"""Byte-level decoder that removes the added leading space."""


class TokenFormat(Enum):
    BYTES = "bytes"  # `TextTokenizer.train_lm_bpe`, GPT-2
    PREFIXED_BYTES = "bytes with a leading space"  # `TextTokenizer.train_sentence_bpe`
    CHARACTERS = "characters"  # `TextTokenizer.from_characters`
    WORD_SUFFIX = "end-of-word suffix"  # GPT-1
    WORDPIECE = "continuation prefix"  # `TextTokenizer.train_wordpiece`, `TextTokenizer.from_words`, BERT
    OTHER = "other"  # tokenizers of checkpoints with another decoder

    @property
    def is_byte_level(self) -> bool:
        return self in (TokenFormat.BYTES, TokenFormat.PREFIXED_BYTES)


DECODER_FORMATS = {
    "ByteLevel": TokenFormat.BYTES, "Fuse": TokenFormat.CHARACTERS, "BPEDecoder": TokenFormat.WORD_SUFFIX,
    "WordPiece": TokenFormat.WORDPIECE,
}  # fmt: skip
"""Token format by the type of the decoder."""


_PLAIN_BYTES = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTE_DECODER = {chr(byte): byte for byte in _PLAIN_BYTES} | {
    chr(256 + number): byte for number, byte in enumerate(byte for byte in range(256) if byte not in _PLAIN_BYTES)
}
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
    shown = []
    for letter in raw.decode("utf-8", "surrogateescape"):
        if "\udc80" <= letter <= "\udcff":  # an undecodable byte, as a surrogate
            shown.append(f"‹{ord(letter) - 0xDC00:02x}›")
        else:
            plain = letter if letter.isprintable() else f"‹U+{ord(letter):04X}›"
            shown.append(WHITESPACE_SYMBOLS.get(letter, plain))
    return "".join(shown)


Span = tuple[int, int]  # Start and end (exclusive) of a token in the text, in characters.


def trim_spans(text: str, spans: Sequence[Span], is_whitespace: np.ndarray | None) -> list[Span]:
    """Spans without leading spaces, extended by the combining accents after the token that the normalizer removed.

    `is_whitespace` marks byte-level tokens of spaces only: an added leading space gets an empty span."""
    if not spans or (is_whitespace is None and text.isascii()):
        return list(spans)
    trimmed = []
    limits = [start for start, _ in spans[1:]] + [len(text)]
    for number, ((start, end), limit) in enumerate(zip(spans, limits, strict=True)):
        if is_whitespace is not None and is_whitespace[number] and not text[start:end].isspace():
            end = start
        while start < end and text[start].isspace():
            start += 1
        while end < limit and unicodedata.category(text[end]) == "Mn":
            end += 1
        trimmed.append((start, end))
    return trimmed


# -- incremental decoding


class StreamDecoder:
    """The joined results of `add` and `end` are the text of all tokens, cut before the earliest stop string.

    `add` holds back incomplete characters and text that may become a stop string."""

    def __init__(self, text: TextTokenizer, stop: Sequence[str] = ()) -> None:
        if isinstance(stop, str) or not all(stop):
            raise SettingError("Stop strings must be a list of non-empty strings.")
        self._text, self._stop_strings = text, tuple(stop)
        make = _ByteDetokenizer if text.token_format.is_byte_level else _WindowDetokenizer
        self._detokenizer: _ByteDetokenizer | _WindowDetokenizer = make(text)
        self._pending = ""
        self.stopped = False  # a stop string was found

    def add(self, ids: Sequence[int]) -> str:
        """Text that later tokens cannot change."""
        special = self._text.special_ids
        return self._emit("".join(self._detokenizer.add(token) for token in ids if token not in special), is_last=False)

    def end(self) -> str:
        """Remaining text, after the last token."""
        return self._emit(self._detokenizer.end(), is_last=True)

    def _emit(self, text: str, is_last: bool) -> str:
        if self.stopped:
            return ""
        self._pending += text
        starts = [start for stop in self._stop_strings if (start := self._pending.find(stop)) >= 0]
        end = len(self._pending)
        if not is_last:  # hold back a suffix that later tokens may extend to a stop string
            places = range(max(0, end - max(map(len, self._stop_strings), default=1) + 1), end)
            begun = (at for at in places if any(stop.startswith(self._pending[at:]) for stop in self._stop_strings))
            end = next(begun, end)
        end = min([*starts, end])
        self.stopped = end in starts
        emitted, self._pending = self._pending[:end], "" if self.stopped else self._pending[end:]
        return emitted


class _ByteDetokenizer:
    """Byte-level tokens: text of complete UTF-8 characters; invalid bytes become U+FFFD, as in `decode`."""

    def __init__(self, text: TextTokenizer) -> None:
        self._text, self._strip = text, text.token_format is TokenFormat.PREFIXED_BYTES
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        return self._strip_prefix(self._decoder.decode(to_bytes(self._text.id_to_token(token))))

    def end(self) -> str:
        return self._strip_prefix(self._decoder.decode(b"", final=True))

    def _strip_prefix(self, text: str) -> str:
        """Text without the leading space added by the tokenizer."""
        if text and self._strip:
            self._strip = False
            return text.removeprefix(" ")
        return text


class _WindowDetokenizer:
    """Other tokens: difference of the decoded text with and without the new tokens. U+FFFD marks partial characters."""

    CONTEXT = 8  # tokens of context for decoding, and maximum number of tokens held back because of a partial character

    def __init__(self, text: TextTokenizer) -> None:
        self._text = text
        self._context: list[int] = []
        self._pending: list[int] = []

    def add(self, token: int) -> str:
        self._pending.append(token)
        more = self.end()
        if more.endswith("\ufffd") and len(self._pending) < self.CONTEXT:
            return ""
        self._context, self._pending = (self._context + self._pending)[-self.CONTEXT :], []
        return more

    def end(self) -> str:
        before, after = self._text.decode([self._context, self._context + self._pending])
        return after[len(before) :]
