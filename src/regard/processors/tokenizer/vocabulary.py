"""Tokenizers from a vocabulary of characters, words or word pieces.

With one token per character or per whitespace-separated word, units outside the vocabulary are errors. WordPiece, as in BERT,
splits a word into the longest tokens of the vocabulary; tokens after the first start with ##. A word with a character outside
the vocabulary, or with more than 100 characters, becomes `[UNK]`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from regard.errors import DataError, SettingError
from regard.processors.tokenizer.token_text import TokenFormat, component_state, detect_format

LONE_SURROGATE = "A text contains half of a character (a lone surrogate, usually caused by bytes that are not UTF-8)."
CONTINUATION_PREFIX = "\ue000"
"""Continuation prefix of the decoder: a private-use character in no token, because words are not split."""


def build_word_level(units: Collection[str], words: bool) -> Tokenizer:
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


def encode_units(text: str, alphabet: dict[str, int], words: bool) -> list[int]:
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


def unit_spans(text: str, words: bool) -> list[tuple[int, int]]:
    """Start and end of each token in the text."""
    return [found.span() for found in re.finditer(r"\S+" if words else r"[\s\S]", text)]


def _split_characters() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")


PREFIX = "##"
BERT_PAD, BERT_UNKNOWN, BERT_START, BERT_END, BERT_MASK = BERT_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""The first five ids of WordPiece tokenizers trained by regard."""

WORD_START = "\ue000"
"""Marks the start of each word during training. Absent from all texts: BERT's normalizer removes private-use characters."""


def build_wordpiece(
    ids: Mapping[str, int], normalizer: normalizers.BertNormalizer, unknown: str = BERT_UNKNOWN
) -> Tokenizer:
    """BERT's tokenizer with this vocabulary; tokens of BERT_TOKENS in the vocabulary become special."""
    backend = Tokenizer(models.WordPiece(dict(ids), unk_token=unknown))
    backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=PREFIX)
    backend.add_special_tokens([token for token in dict.fromkeys((*BERT_TOKENS, unknown)) if token in ids])
    return backend


def train_wordpiece(texts: Iterable[str], vocabulary: int, lowercase: bool) -> Tokenizer:
    """Train a vocabulary by merging the most frequent pairs.

    The WordPiece trainer of `tokenizers` numbers characters inside words in arbitrary order and breaks ties by these
    numbers, so each training differs. With a start mark on each word, BPE training gives the same vocabulary every time."""
    room = vocabulary - len(BERT_TOKENS)
    if room < 2:
        raise SettingError(
            f"A vocabulary of {vocabulary} tokens is too small: {len(BERT_TOKENS)} tokens are special tokens."
        )
    normaliser = normalizers.BertNormalizer(lowercase=lowercase)
    words = pre_tokenizers.BertPreTokenizer()
    marked = Tokenizer(models.BPE())
    marked.normalizer = normaliser
    marked.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.Metaspace(replacement=WORD_START, prepend_scheme="always", split=False)]
    )
    seen: Counter[str] = Counter()
    # more tokens than needed, because the number of characters, which also need ids, is not known in advance
    trainer = trainers.BpeTrainer(vocab_size=2 * vocabulary + 4000, min_frequency=2, show_progress=False)
    marked.train_from_iterator(_count_characters(texts, seen), trainer)
    letters = _count_normalized(seen, normaliser)
    if not letters:
        raise DataError("Cannot build a vocabulary: the texts contain no characters.")
    inner = {x for x in letters if len(words.pre_tokenize_str(normaliser.normalize_str("a" + x))) == 1}
    found = marked.get_vocab()
    merged = [name for name in sorted(found, key=found.__getitem__) if len(name) > 1]
    names = _make_vocabulary(letters, inner, merged, room // 2)
    if len(names) < vocabulary:  # ids not used by merges are used for more characters
        names = _make_vocabulary(letters, inner, merged, room // 2 + vocabulary - len(names))
    return build_wordpiece({name: number for number, name in enumerate(names[:vocabulary])}, normaliser)


def _count_characters(texts: Iterable[str], seen: Counter[str]) -> Iterator[str]:
    for text in texts:
        seen.update(text)
        yield text


def _count_normalized(seen: Mapping[str, int], normaliser: normalizers.BertNormalizer) -> Counter[str]:
    """Number of occurrences of each character after normalization, which maps É to e, for example."""
    letters: Counter[str] = Counter()
    for raw, count in seen.items():
        for letter in normaliser.normalize_str(raw).strip():
            letters[letter] += count
    return letters


def _make_vocabulary(letters: Counter[str], inner: set[str], merged: Iterable[str], room: int) -> list[str]:
    """All tokens: special tokens, the most frequent characters within `room` ids, and the merges of these characters.

    A character has one token for word starts and, if in `inner`, another for positions inside words."""
    kept: list[str] = []
    for letter in sorted(letters, key=lambda letter: (-letters[letter], letter)):
        room -= 2 if letter in inner else 1
        if room < 0 and kept:
            break
        kept.append(letter)
    known = {*kept, WORD_START}
    pieces = (_to_wordpiece(name) for name in merged if known.issuperset(name))
    inside = (PREFIX + letter for letter in sorted(inner.intersection(kept)))
    return list(dict.fromkeys((*BERT_TOKENS, *sorted(kept), *inside, *pieces)))


def _to_wordpiece(name: str) -> str:
    return name.removeprefix(WORD_START) if name.startswith(WORD_START) else PREFIX + name
