"""Text, character spans and words of tokens by format: bytes in GPT-2's alphabet, characters, words with an end-of-word suffix,
or word pieces with a continuation prefix."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer, decoders

from regard.errors import DataError

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


Encode = Callable[[Sequence[str]], list[list[int]]]
Span = tuple[int, int]
"""Start and end (exclusive) of a token in the text, in characters."""


def encode_split_words(
    sentences: Sequence[Sequence[str]], encode: Encode, unknown: int | None
) -> list[tuple[list[int], list[int]]]:
    """Token ids of split words, and the word index of each token.

    Every word has at least one token: a word without tokens becomes the unknown token."""
    words = list(dict.fromkeys(chain.from_iterable(sentences)))  # each distinct word is encoded once
    known = dict(zip(words, encode(words), strict=True))
    for word in (word for word, ids in known.items() if not ids):
        if unknown is None:
            raise DataError(f"The tokenizer produces no token for the word {word!r} and has no unknown token.")
        known[word] = [unknown]
    return [
        (
            [token for word in sentence for token in known[word]],
            [number for number, word in enumerate(sentence) for _ in known[word]],
        )
        for sentence in sentences
    ]


def encode_with_masks(
    texts: Sequence[str], encode: Encode, mask_token: str, mask_id: int, strip_space: bool
) -> list[list[int]]:
    """Token ids of texts in which `mask_token` is replaced by `mask_id`; `strip_space` also removes the spaces before it."""
    parts = [text.split(mask_token) for text in texts]
    cut = [part.rstrip() if strip_space and at + 1 < len(row) else part for row in parts for at, part in enumerate(row)]
    rows = iter(encode(cut))
    return [[*next(rows), *(token for _ in row[1:] for token in (mask_id, *next(rows)))] for row in parts]


def trim_spans(text: str, spans: Sequence[Span], is_whitespace: np.ndarray | None) -> list[Span]:
    """Spans without leading spaces, extended by the combining accents after the token that the normalizer removed.

    `is_whitespace` marks byte-level tokens of spaces only: an added leading space gets an empty span."""
    if not spans or (is_whitespace is None and text.isascii()):
        return list(spans)
    found = []
    limits = [start for start, _ in spans[1:]] + [len(text)]
    for number, ((start, end), limit) in enumerate(zip(spans, limits, strict=True)):
        if is_whitespace is not None and is_whitespace[number] and not text[start:end].isspace():
            end = start
        while start < end and text[start].isspace():
            start += 1
        while end < limit and unicodedata.category(text[end]) == "Mn":
            end += 1
        found.append((start, end))
    return found


def whitespace_mask(names: Sequence[str]) -> np.ndarray:
    """(N,) mask of the byte-level tokens that contain only whitespace."""
    return np.array([not to_bytes(name).strip() for name in names], dtype=bool)


def word_boundaries(names: Sequence[str], token_format: TokenFormat, mark: str) -> np.ndarray:
    """(N, 2) mask of the tokens that start a word, and of the tokens after which a word starts."""
    return np.array([_word_boundary(name, token_format, mark) for name in names], dtype=bool).reshape(-1, 2)


def _word_boundary(name: str, form: TokenFormat, mark: str) -> tuple[bool, bool]:
    if form is TokenFormat.WORDPIECE:
        return not name.startswith(mark), False
    if form is TokenFormat.WORD_SUFFIX:
        return False, name.endswith(mark)
    if form is TokenFormat.OTHER:
        return name.startswith(("Ġ", "▁")), False
    text = name if form is TokenFormat.CHARACTERS else to_bytes(name).decode("ascii", "replace")
    return text[:1].isspace(), text[-1:].isspace()
