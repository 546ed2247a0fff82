"""Tokenizers with one token per character or per whitespace-separated word; units outside the vocabulary are errors."""

from __future__ import annotations

import re
from collections.abc import Collection

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from regard.errors import DataError
from regard.processors.tokenizer.token_text import TokenFormat, component_state, detect_format

LONE_SURROGATE = "A text contains half of a character (a lone surrogate, usually caused by bytes that are not UTF-8)."
CONTINUATION_PREFIX = "\ue000"
"""Continuation prefix of the decoder: a private-use character in no token, because words are not split."""


def build_tokenizer(units: Collection[str], words: bool) -> Tokenizer:
    """Tokenizer with these characters or words, sorted by code point."""
    if not units:
        raise DataError("Cannot build a vocabulary: the texts contain no characters.")
    if any("\ud800" <= letter <= "\udfff" for unit in units for letter in unit):
        raise DataError(LONE_SURROGATE)
    # WordLevel raises an error for unknown units; BPE without merges would silently drop them
    backend = Tokenizer(models.WordLevel({unit: i for i, unit in enumerate(sorted(units))}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit() if words else _split_characters()
    backend.decoder = decoders.WordPiece(CONTINUATION_PREFIX, cleanup=False) if words else decoders.Fuse()
    return backend


def word_level_vocabulary(backend: Tokenizer) -> dict[str, int] | None:
    """Ids by character or word; None for other kinds of tokenizers."""
    if not isinstance(backend.model, models.WordLevel):
        return None
    wanted = (
        pre_tokenizers.WhitespaceSplit() if detect_format(backend) is TokenFormat.WORDPIECE else _split_characters()
    )
    splits = component_state(backend.pre_tokenizer) == component_state(wanted)
    return backend.get_vocab(with_added_tokens=False) if splits else None


def encode(text: str, alphabet: dict[str, int], words: bool) -> list[int]:
    units = text.split() if words else text
    try:
        return [alphabet[unit] for unit in units]
    except KeyError:
        unknown = sorted(set(units) - set(alphabet), key=units.index)
        more = len(unknown) - 1
        others = f" and {more} other{'s' if more > 1 else ''}" if more else ""
        kind = "word" if words else "character"
        code = "" if words else f" (U+{ord(unknown[0]):04X})"
        raise DataError(
            f"The tokenizer ({len(alphabet):,} {kind}s) does not contain the {kind} {unknown[0]!r}{code}{others}.",
            advice=f"A {kind} tokenizer covers only the {kind}s of the training text. "
            "Byte-level tokenizers (data.tokenizer_type=byte_bpe) cover all text.",
        ) from None


def token_spans(text: str, words: bool) -> list[tuple[int, int]]:
    """Start and end of each token in the text."""
    return [found.span() for found in re.finditer(r"\S+" if words else r"[\s\S]", text)]


def _split_characters() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
