"""WordPiece, BERT's way to spell: a word is cut into the longest pieces that are known, and all but its first begin with ##.

A word with a letter that is not in the vocabulary is `[UNK]` as a whole, and so is one of more than a hundred letters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from regard.errors import DataError, SettingError

PREFIX = "##"
PAD, UNKNOWN, START, END, MASK = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""The first five ids of every tokenizer of this kind that is trained here."""

WORD_START = "\ue000"
"""Stands before each word while pieces are learnt. No text has it: BERT's normaliser takes such characters out."""


def build_tokenizer(
    ids: Mapping[str, int], normalizer: normalizers.BertNormalizer, unknown: str = UNKNOWN
) -> Tokenizer:
    """BERT's tokenizer with this vocabulary; those of BERT's own tokens that it has are special."""
    backend = Tokenizer(models.WordPiece(dict(ids), unk_token=unknown))
    backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=PREFIX)
    backend.add_special_tokens([token for token in dict.fromkeys((*SPECIAL_TOKENS, unknown)) if token in ids])
    return backend


def train(texts: Iterable[str], vocabulary: int, lowercase: bool) -> Tokenizer:
    """Pieces by the merges of pairs that are most frequent, from an iterator.

    The library's own trainer numbers the letters inside words as it happens to find them and settles ties by these
    numbers: no two trainings agree. Words with a mark before them have no such letters."""
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
    # more than will be kept: how many letters there are, which also take a place, is not known before
    trainer = trainers.BpeTrainer(vocab_size=2 * vocabulary + 4000, min_frequency=2, show_progress=False)
    marked.train_from_iterator(_count_characters(texts, seen), trainer)
    letters = _count_normalized(seen, normaliser)
    if not letters:
        raise DataError("Cannot build a vocabulary: the texts contain no characters.")
    inner = {x for x in letters if len(words.pre_tokenize_str(normaliser.normalize_str("a" + x))) == 1}
    found = marked.get_vocab()
    merged = [name for name in sorted(found, key=found.__getitem__) if len(name) > 1]
    names = _make_vocabulary(letters, inner, merged, room // 2)
    if len(names) < vocabulary:  # what merges leave is for letters
        names = _make_vocabulary(letters, inner, merged, room // 2 + vocabulary - len(names))
    return build_tokenizer({name: number for number, name in enumerate(names[:vocabulary])}, normaliser)


def _count_characters(texts: Iterable[str], seen: Counter[str]) -> Iterator[str]:
    for text in texts:
        seen.update(text)
        yield text


def _count_normalized(seen: Mapping[str, int], normaliser: normalizers.BertNormalizer) -> Counter[str]:
    """How often each letter stands in the texts as they are read: É may count as e."""
    letters: Counter[str] = Counter()
    for raw, count in seen.items():
        for letter in normaliser.normalize_str(raw).strip():
            letters[letter] += count
    return letters


def _make_vocabulary(letters: Counter[str], inner: set[str], merged: Iterable[str], room: int) -> list[str]:
    """All tokens: as many letters as there is room for, the most frequent, and what is merged of these.

    A letter has one name where a word begins and, if it is an `inner` one, another inside of words."""
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
