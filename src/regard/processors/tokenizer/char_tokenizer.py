"""Tokens that are whole: every character that occurs, or every word between blanks. What does not occur is refused."""

from __future__ import annotations

import re
from collections.abc import Collection

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from regard.errors import DataError
from regard.processors.tokenizer.token_text import TokenFormat, component_state, detect_format

LONE_SURROGATE = "A text contains half of a character (a lone surrogate, usually caused by bytes that are not UTF-8)."
CONTINUATION_PREFIX = "\ue000"
"""What a piece would begin with that goes on with a word: a letter that stands for nothing, as no word has pieces."""


def build_tokenizer(units: Collection[str], words: bool) -> Tokenizer:
    """Of these characters or words, in the order of Unicode."""
    if not units:
        raise DataError("Cannot build a vocabulary: the texts contain no characters.")
    if any("\ud800" <= letter <= "\udfff" for unit in units for letter in unit):
        raise DataError(LONE_SURROGATE)
    # words, not BPE without merges: the library then refuses what is unknown and does not leave it out
    backend = Tokenizer(models.WordLevel({unit: i for i, unit in enumerate(sorted(units))}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit() if words else _split_characters()
    backend.decoder = decoders.WordPiece(CONTINUATION_PREFIX, cleanup=False) if words else decoders.Fuse()
    return backend


def word_level_vocabulary(backend: Tokenizer) -> dict[str, int] | None:
    """The id of each character or word; None of tokenizers of another kind."""
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
    """Where each token stands in its text."""
    return [found.span() for found in re.finditer(r"\S+" if words else r"[\s\S]", text)]


def _split_characters() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
