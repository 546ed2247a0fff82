"""Text -> tokens, by the `tokenizers` library. Byte-pair encoding over bytes: no text is unknown, and decoding is exact."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from regard.disk import write_text
from regard.errors import DataError, SettingError

PAD, START, END = "<pad>", "<s>", "</s>"
SPECIAL = (PAD, START, END)
"""The first three ids of every tokenizer that is trained here on sentences."""

END_OF_TEXT = "<|endoftext|>"
"""Ends a document and begins the next; the only special token of a language model's tokenizer."""

CHUNK = 10_000
"""Texts that are encoded at once."""

LOAD, LONG = 4_000_000, 100_000
"""Characters that are encoded at once, and of a text before it is cut: the library takes over 100 bytes for each."""

BREAK = re.compile(r"(?<=\S)[ \n]")
"""A place where GPT-2's expression always splits: it has no blank after anything else, and never looks back."""

HALF = "a text has half of a character (a lone surrogate, as bytes that are not UTF-8 leave behind)."


class Text:
    """A tokenizer with the few calls that tasks need. It adds no special tokens: tasks say where those belong."""

    def __init__(self, backend: Tokenizer) -> None:
        self.backend = backend
        self.backend.no_padding()
        self.backend.no_truncation()  # nothing is ever truncated silently
        self._pieces: dict[int, tuple[str, bool, bool]] = {}
        self.backend.encode_special_tokens = True  # "</s>" in a person's text is text, and ends nothing

    @classmethod
    def train(cls, texts: Iterable[str], vocabulary: int) -> Text:
        """Byte-level BPE from an iterator. A leading space is added, so that a word is the same token anywhere."""
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
        backend.train_from_iterator(texts, _trainer(vocabulary, SPECIAL))
        return cls(backend)

    @classmethod
    def language(cls, texts: Iterable[str], vocabulary: int) -> Text:
        """Byte-level BPE as GPT-2's: nothing is added in front, so any text comes back exactly as it was."""
        if vocabulary <= 256:
            raise SettingError(
                f"a vocabulary of {vocabulary} tokens is too small: the 256 bytes and {END_OF_TEXT} need 257."
            )
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        parts = (part for text in texts for part in _cut(text))
        try:
            backend.train_from_iterator(parts, _trainer(vocabulary - 1))
        except UnicodeEncodeError as error:
            raise DataError(HALF) from error
        # The last id, as GPT-2 has it: the ids before it are the bytes and then the merges in their order, which is
        # what vocab.json + merges.txt and tiktoken's ranks say, so that those can be written from it.
        backend.add_special_tokens([END_OF_TEXT])
        return cls(backend)

    @classmethod
    def characters(cls, texts: Iterable[str]) -> Text:
        """A token for each character that occurs, in the order of Unicode, and the end of text."""
        found: set[str] = set()
        for text in texts:
            found.update(text)
        if not found:
            raise DataError("there is no character to make an alphabet of.")
        if any("\ud800" <= letter <= "\udfff" for letter in found):
            raise DataError(HALF)
        # words, not BPE without merges: the library then refuses what is unknown and does not leave it out
        backend = Tokenizer(models.WordLevel({letter: i for i, letter in enumerate(sorted(found))}, unk_token="<unk>"))
        backend.pre_tokenizer = _each_character()
        backend.decoder = decoders.Fuse()
        backend.add_special_tokens([END_OF_TEXT])
        return cls(backend)

    @classmethod
    def load(cls, path: str | Path) -> Text:
        path = Path(path)
        if path.is_dir():
            path = path / "tokenizer.json"
        if not path.exists():
            raise DataError(
                "there is no such tokenizer.", path, advice="Give a tokenizer.json or a folder that holds one."
            )
        try:
            return cls(Tokenizer.from_file(str(path)))
        except Exception as error:  # the library raises bare Exception for any file it cannot read
            raise DataError(f"cannot be read as a tokenizer.json ({error}).", path) from error

    @staticmethod
    def exists(folder: str | Path) -> bool:
        """Whether `load` finds a tokenizer in this folder."""
        return (Path(folder) / "tokenizer.json").exists()

    def save(self, path: Path) -> None:
        write_text(path, self.backend.to_str(pretty=True))

    def fingerprint(self) -> str:
        """Two tokenizers with the same one are the same."""
        return blake2b(self.backend.to_str().encode(), digest_size=16).hexdigest()

    @property
    def size(self) -> int:
        return self.backend.get_vocab_size()

    def id_of(self, token: str) -> int | None:
        return self.backend.token_to_id(token)

    @cached_property
    def alphabet(self) -> dict[str, int] | None:
        """The id of each character, of a tokenizer by `characters`."""
        if not isinstance(self.backend.model, models.WordLevel):
            return None
        splits = _state(self.backend.pre_tokenizer) == _state(_each_character())
        return self.backend.get_vocab(with_added_tokens=False) if splits else None

    @cached_property
    def _cuts(self) -> bool:
        """Whether a long text may be cut: as `language` and GPT-2 split it, the tokens stay the same."""
        split = _state(self.backend.pre_tokenizer)
        plain = split.get("type") == "ByteLevel" and split["use_regex"] and not split["add_prefix_space"]
        words = [token for token in self.backend.get_added_tokens_decoder().values() if not token.special]
        return plain and self.backend.normalizer is None and not words

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        if self.alphabet is not None:
            return [self._letters(text, self.alphabet) for text in texts]
        ids: list[list[int]] = [[] for _ in texts]
        for numbers, parts in self._loads(texts):
            try:
                found = self.backend.encode_batch_fast(parts, add_special_tokens=False)
            except TypeError as error:
                raise DataError(HALF) from error
            for number, item in zip(numbers, found, strict=True):
                ids[number] += item.ids
        return ids

    def _loads(self, texts: Sequence[str]) -> Iterator[tuple[list[int], list[str]]]:
        """Parts of texts and the numbers of those: the library's own records of a text are many times larger than it."""
        numbers: list[int] = []
        parts: list[str] = []
        room = LOAD
        for number, text in enumerate(texts):
            for part in _cut(text) if self._cuts else (text,):
                numbers.append(number)
                parts.append(part)
                room -= len(part)
                if room <= 0 or len(parts) == CHUNK:
                    yield numbers, parts
                    numbers, parts, room = [], [], LOAD
        if parts:
            yield numbers, parts

    def _letters(self, text: str, alphabet: dict[str, int]) -> list[int]:
        try:
            return [alphabet[letter] for letter in text]
        except KeyError:
            unknown = sorted(set(text) - set(alphabet), key=text.index)
            others = f" and {len(unknown) - 1} others are" if len(unknown) > 1 else " is"
            raise DataError(
                f"the character {unknown[0]!r} (U+{ord(unknown[0]):04X}){others} not among the {len(alphabet):,} "
                "characters of the tokenizer.",
                advice="It knows those that it was made from; a byte-level vocabulary knows all.",
            ) from None

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return self.backend.decode_batch([list(row) for row in ids], skip_special_tokens=True)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The tokens as a person reads them: a piece that continues a word begins with a dot."""
        known = [self._piece(i) for i in ids]
        shown = []
        for number, (text, starts, special) in enumerate(known):
            first = number == 0 or starts or special or known[number - 1][2]
            shown.append((text.strip() or "␣") if first else "·" + text)
        return shown

    def _piece(self, token: int) -> tuple[str, bool, bool]:
        """Its text, whether it begins a word, and whether it is a special one."""
        if token not in self._pieces:
            name = self.backend.id_to_token(token) or "?"
            special = name in SPECIAL
            text = name if special else self.backend.decode([token], skip_special_tokens=False)
            self._pieces[token] = text, name.startswith(("Ġ", "▁")), special
        return self._pieces[token]


def _trainer(vocabulary: int, special: Sequence[str] = ()) -> trainers.BpeTrainer:
    return trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=list(special), show_progress=False, min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip


def _each_character() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")


def _state(part: Any) -> dict[str, Any]:
    """What a part of the library's tokenizer is, as its file says it."""
    return {} if part is None else json.loads(part.__getstate__())


def _cut(text: str) -> Iterator[str]:
    """Long texts in parts that have, one after another, the tokens of the whole."""
    first = 0
    while len(text) - first > LONG and (found := BREAK.search(text, first + LONG)):
        yield text[first : found.start()]
        first = found.start()
    yield text[first:]
