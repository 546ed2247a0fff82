"""Tokens and words: where a token stands in its text, which word it belongs to, and where words begin."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np

from regard.errors import DataError
from regard.processors.tokenizer.token_text import TokenFormat, to_bytes

Encode = Callable[[Sequence[str]], list[list[int]]]
Span = tuple[int, int]
"""Where a token stands in its text: its first character, and the one behind its last."""


def encode_split_words(
    sentences: Sequence[Sequence[str]], encode: Encode, unknown: int | None
) -> list[tuple[list[int], list[int]]]:
    """The tokens of words that are given one by one, and the number of the word that each belongs to.

    Every word has a token: one of which nothing is left is unknown."""
    words = list(dict.fromkeys(chain.from_iterable(sentences)))  # each is encoded once, however often it stands there
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
    """The tokens of texts in which `name` stands for the mask, with `blank` together with the blanks before it."""
    parts = [text.split(mask_token) for text in texts]
    cut = [part.rstrip() if strip_space and at + 1 < len(row) else part for row in parts for at, part in enumerate(row)]
    rows = iter(encode(cut))
    return [[*next(rows), *(token for _ in row[1:] for token in (mask_id, *next(rows)))] for row in parts]


def trim_spans(text: str, spans: Sequence[Span], is_whitespace: np.ndarray | None) -> list[Span]:
    """The places of tokens without blanks in front, and with the accents behind them that were taken off.

    `blank` says of bytes which tokens are blanks altogether: one may have been put in front, and stands nowhere."""
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
    """Which tokens of bytes are nothing but blanks."""
    return np.array([not to_bytes(name).strip() for name in names], dtype=bool)


def word_boundaries(names: Sequence[str], token_format: TokenFormat, mark: str) -> np.ndarray:
    """(N, 2): whether a word begins with the token of each name, and whether one begins behind it."""
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
