"""Words and tokens: character spans of tokens, word index of each token, and word starts."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np

from regard.errors import DataError
from regard.processors.tokenizer.token_text import TokenFormat, to_bytes

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
