"""WordPiece as in BERT: a word is split into the longest tokens of the vocabulary; tokens after the first start with ##.

A word with a character outside the vocabulary, or with more than 100 characters, becomes `[UNK]`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from regard.errors import DataError, SettingError

PREFIX = "##"
PAD, UNKNOWN, START, END, MASK = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""The first five ids of WordPiece tokenizers trained by regard."""

WORD_START = "\ue000"
"""Marks the start of each word during training. Absent from all texts: BERT's normalizer removes private-use characters."""


def build_tokenizer(
    ids: Mapping[str, int], normalizer: normalizers.BertNormalizer, unknown: str = UNKNOWN
) -> Tokenizer:
    """BERT's tokenizer with this vocabulary; tokens of SPECIAL_TOKENS in the vocabulary become special."""
    backend = Tokenizer(models.WordPiece(dict(ids), unk_token=unknown))
    backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=PREFIX)
    backend.add_special_tokens([token for token in dict.fromkeys((*SPECIAL_TOKENS, unknown)) if token in ids])
    return backend


def train(texts: Iterable[str], vocabulary: int, lowercase: bool) -> Tokenizer:
    """Train a vocabulary by merging the most frequent pairs.

    The WordPiece trainer of `tokenizers` numbers characters inside words in arbitrary order and breaks ties by these
    numbers, so each training differs. With a start mark on each word, BPE training gives the same vocabulary every time."""
    room = vocabulary - len(SPECIAL_TOKENS)
    if room < 2:
        raise SettingError(
            f"A vocabulary of {vocabulary} tokens is too small: {len(SPECIAL_TOKENS)} tokens are special tokens."
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
    return build_tokenizer({name: number for number, name in enumerate(names[:vocabulary])}, normaliser)


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
    return list(dict.fromkeys((*SPECIAL_TOKENS, *sorted(kept), *inside, *pieces)))


def _to_wordpiece(name: str) -> str:
    return name.removeprefix(WORD_START) if name.startswith(WORD_START) else PREFIX + name
