"""Text -> tokens, by the `tokenizers` library. Byte-pair encoding over bytes: no text is unknown, and decoding is exact.
WordPiece, as encoders have it: words in pieces, and what has a strange letter is unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Literal

import numpy as np
from tokenizers import AddedToken, Encoding, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from regard.errors import DataError, SettingError
from regard.files import write_text
from regard.processors.tokenizer import char_tokenizer, published, wordpiece
from regard.processors.tokenizer.char_tokenizer import LONE_SURROGATE
from regard.processors.tokenizer.templates import TokenTemplate, template_of
from regard.processors.tokenizer.token_text import (
    SENTENCE_DECODER,
    TokenFormat,
    TokenText,
    continuation_prefix,
    describe_token,
    detect_format,
    word_suffix,
)
from regard.processors.tokenizer.words import (
    Span,
    encode_split_words,
    encode_with_masks,
    trim_spans,
    whitespace_mask,
    word_boundaries,
)

PAD, START, END = "<pad>", "<s>", "</s>"
SPECIAL_TOKENS = (PAD, START, END)
"""The first three ids of every tokenizer that is trained here on sentences."""

END_OF_TEXT = "<|endoftext|>"
"""Ends a document and begins the next; the only special token of a language model's tokenizer."""

DEFAULT_SPECIAL_TOKENS = {
    "bos_token": (START, END_OF_TEXT), "eos_token": (END, END_OF_TEXT), "pad_token": (PAD, wordpiece.PAD),
    "unk_token": (wordpiece.UNKNOWN, published.GPT1_UNKNOWN), "cls_token": (wordpiece.START,), "sep_token": (wordpiece.END,),
    "mask_token": (wordpiece.MASK, published.ROBERTA_MASK),
}  # fmt: skip
"""The special tokens of published tokenizers, where a folder says nothing else, by the names of their parts."""

Role = Literal["start", "end", "pad", "mask", "unknown"]
ROLE_KEYS: dict[Role, tuple[str, ...]] = {
    "start": ("cls_token", "bos_token"), "end": ("sep_token", "eos_token"), "pad": ("pad_token",),
    "mask": ("mask_token",), "unknown": ("unk_token",),
}  # fmt: skip

ENCODE_BATCH = 10_000
"""Texts that are encoded at once."""

MAX_BATCH_CHARS = 4_000_000
"""Characters that are encoded at once: the library's own records of a text take over 100 bytes for each."""


class TextTokenizer:
    """A tokenizer with the few calls that tasks need. It adds no special tokens: tasks say where those belong."""

    def __init__(self, backend: Tokenizer, declared_tokens: Mapping[str, str] | None = None) -> None:
        self.backend = backend
        self.declared_tokens = dict(declared_tokens or {})
        """special tokens by the published names of their parts (`mask_token`, …), where a folder says them"""
        self.notes: list[str] = []
        """how it differs from what was published"""
        self.backend.no_padding()
        self.backend.no_truncation()  # nothing is ever truncated silently
        self._token_texts: dict[int, TokenText] = {}
        self.backend.encode_special_tokens = True  # "</s>" in a person's text is text, and ends nothing

    @classmethod
    def train_sentence_bpe(cls, texts: Iterable[str], vocabulary: int) -> TextTokenizer:
        """Byte-level BPE from an iterator. A leading space is added, so that a word is the same token anywhere."""
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        backend.decoder = SENTENCE_DECODER
        _train_bpe(backend, texts, vocabulary, SPECIAL_TOKENS)
        return cls(backend)

    @classmethod
    def train_lm_bpe(cls, texts: Iterable[str], vocabulary: int) -> TextTokenizer:
        """Byte-level BPE as GPT-2's: nothing is added in front, so any text comes back exactly as it was."""
        if vocabulary <= 256:
            raise SettingError(
                f"A vocabulary of {vocabulary} tokens is too small: the 256 bytes and {END_OF_TEXT} need 257."
            )
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        _train_bpe(backend, texts, vocabulary - 1)
        # The last id, as GPT-2 has it: the ids before it are the bytes and then the merges in their order, which is
        # what vocab.json + merges.txt and tiktoken's ranks say, so that those can be written from it.
        backend.add_special_tokens([END_OF_TEXT])
        return cls(backend)

    @classmethod
    def from_characters(cls, texts: Iterable[str]) -> TextTokenizer:
        """A token for each character that occurs, in the order of Unicode, and the end of text."""
        found: set[str] = set()
        for text in texts:
            found.update(text)
        backend = char_tokenizer.build_tokenizer(found, words=False)
        backend.add_special_tokens([END_OF_TEXT])
        return cls(backend)

    @classmethod
    def from_words(cls, texts: Iterable[str], words: bool = True) -> TextTokenizer:
        """A token for each word between blanks, or for each character where no text has a blank or no `words` are wanted; and
        those of sentences."""
        letters, found = set[str](), set[str]()
        for text in texts:
            letters.update(text)
            found.update(text.split())
        words = words and any(letter.isspace() for letter in letters)
        return cls(char_tokenizer.build_tokenizer(found if words else letters, words)).with_special_tokens(
            SPECIAL_TOKENS
        )

    @classmethod
    def train_wordpiece(cls, texts: Iterable[str], vocabulary: int, lowercase: bool = True) -> TextTokenizer:
        """WordPiece as BERT's, from an iterator; with `lower`, case and accents make no difference."""
        try:
            return cls(wordpiece.train(texts, vocabulary, lowercase))
        except UnicodeEncodeError as error:
            raise DataError(LONE_SURROGATE) from error

    @classmethod
    def load(cls, path: str | Path) -> TextTokenizer:
        """A tokenizer.json, or a folder with one, with vocab.txt (BERT), or with vocab.json and merges.txt (GPT, RoBERTa).

        RoFormer finds Chinese words by jieba; here it is read as BERT, and `notes` says so."""
        path = Path(path)
        file = path / "tokenizer.json" if path.is_dir() else path
        found = None if file.name == "tokenizer.json" and file.exists() else published.find_files(path)
        if not found and not file.exists():
            raise DataError(
                "tokenizer not found.", file,
                advice="Pass tokenizer.json, or a folder with tokenizer.json, vocab.txt, or vocab.json and merges.txt.",
            )  # fmt: skip
        # a file of another name says nothing of what stands beside it
        settings = published.read_tokenizer_settings(file.parent) if found or file.name == "tokenizer.json" else {}
        if found:
            backend = published.read_tokenizer(found, end=END_OF_TEXT)
        else:
            try:
                backend = Tokenizer.from_file(str(file))
            except Exception as error:  # the library raises bare Exception for any file it cannot read
                raise DataError(f"cannot be read as a tokenizer.json ({error}).", file) from error
            published.apply_settings(backend, settings, file.parent)
        text = cls(backend, published.special_tokens(settings))
        text.notes += [published.JIEBA_NOTE] if published.needs_jieba(settings) else []
        return text

    @staticmethod
    def exists(folder: str | Path) -> bool:
        """Whether `load` finds a tokenizer in this folder."""
        return (Path(folder) / "tokenizer.json").exists() or published.find_files(Path(folder)) is not None

    def with_special_tokens(self, tokens: Sequence[str]) -> TextTokenizer:
        """Another one that has these special tokens too: those that are new get the next ids."""
        for token in tokens:
            known = self.token_to_id(token)
            if not token or (known is not None and known not in self.special_ids):
                raise DataError(f"'{token}' cannot become a special token: the token is empty or an ordinary token.")
        backend = self._copy_backend()
        backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in tokens])
        return type(self)(backend, self.declared_tokens)

    def save(self, path: Path) -> None:
        write_text(path, self.backend.to_str(pretty=True))

    def with_post_processor(self, single: str, pair: str, special_tokens: Sequence[str]) -> TextTokenizer:
        """A copy that puts marks around a text or a pair for others who read it; here tasks do that themselves."""
        backend = self._copy_backend()
        known = [(mark, self.backend.token_to_id(mark)) for mark in special_tokens]
        backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=known)
        return TextTokenizer(backend, self.declared_tokens)

    def with_template(self, template: TokenTemplate | None = None) -> TextTokenizer:
        """The same that puts a frame around a text or a pair for others: its own, or that of the model that it belongs to."""
        template = template or self.template
        if template_of(self.backend) == template:
            return self
        backend = self._copy_backend()
        backend.post_processor = template.post_processor(self.id_to_token)
        return TextTokenizer(backend, self.declared_tokens)

    def _copy_backend(self) -> Tokenizer:
        return Tokenizer.from_str(self.backend.to_str())

    def special_tokens_map(self) -> dict[str, str]:
        """Its special tokens under the names that published tokenizers give them."""
        known = {
            name: (
                *([self.declared_tokens[name]] if name in self.declared_tokens else []),
                *DEFAULT_SPECIAL_TOKENS[name],
            )
            for name in DEFAULT_SPECIAL_TOKENS
        }
        if (
            self.token_to_id(published.ROBERTA_MASK) is not None
        ):  # as RoBERTa, whose first and last token have two names
            known |= {"cls_token": (*known["cls_token"], START), "sep_token": (*known["sep_token"], END)}
        found = {
            name: [token for token in tokens if self.token_to_id(token) is not None] for name, tokens in known.items()
        }
        return {name: tokens[0] for name, tokens in found.items() if tokens}

    def special_id(self, role: Role) -> int | None:
        """The id of the special token that plays a part: the first is [CLS] or <s>, the last [SEP] or </s>."""
        names = self.special_tokens_map()
        return next((self.token_to_id(names[name]) for name in ROLE_KEYS[role] if name in names), None)

    @cached_property
    def template(self) -> TokenTemplate:
        """The special tokens around a text or a pair: as its file has them, otherwise BERT's, or RoBERTa's for bytes."""
        if (found := template_of(self.backend)) is not None:
            return found
        start, end = (() if (number := self.special_id(role)) is None else (number,) for role in ("start", "end"))
        return (
            TokenTemplate(start, end, end, 1)
            if self.token_format is TokenFormat.WORDPIECE
            else TokenTemplate(start, end + end, end, 0)
        )

    def fingerprint(self) -> str:
        """Two tokenizers with the same one make the same tokens of a text, whatever they put around it for others."""
        return blake2b(self._plain_backend.to_str().encode(), digest_size=16).hexdigest()

    @cached_property
    def _plain_backend(self) -> Tokenizer:
        """Without what is put around a text: it moves the places of tokens in it."""
        backend = self._copy_backend()
        backend.post_processor = None
        backend.encode_special_tokens = True
        return backend

    @property
    def size(self) -> int:
        return self.backend.get_vocab_size()

    def token_to_id(self, token: str) -> int | None:
        return self.backend.token_to_id(token)

    def id_to_token(self, token: int) -> str:
        """As the vocabulary has it; nothing for an id that it does not have."""
        return self.backend.id_to_token(token) or ""

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that stand for no text: `decode` leaves them out."""
        added = self.backend.get_added_tokens_decoder().items()
        return frozenset(number for number, token in added if token.special)

    @cached_property
    def token_format(self) -> TokenFormat:
        return detect_format(self.backend)

    @cached_property
    def alphabet(self) -> dict[str, int] | None:
        """The id of each character or word, of a tokenizer by `characters` or `whole`."""
        return char_tokenizer.word_level_vocabulary(self.backend)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        if self.alphabet is not None:
            return [
                char_tokenizer.encode(text, self.alphabet, self.token_format is TokenFormat.WORDPIECE) for text in texts
            ]
        return [item.ids for item in self._encode_batches(texts, self.backend.encode_batch_fast)]

    def encode_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[Span]]]:
        """With the place of each token in its text, without blanks in front; half a character has the place of the whole."""
        if self.alphabet is not None:
            rows = zip(self.encode(texts), texts, strict=True)
            return [
                (ids, char_tokenizer.token_spans(text, self.token_format is TokenFormat.WORDPIECE))
                for ids, text in rows
            ]
        found = []
        for text, item in zip(texts, self._encode_batches(texts, self._plain_backend.encode_batch), strict=True):
            ids = item.ids
            found.append(
                (
                    ids,
                    trim_spans(
                        text, item.offsets, None if self._whitespace_tokens is None else self._whitespace_tokens[ids]
                    ),
                )
            )
        return found

    def encode_words(self, sentences: Sequence[Sequence[str]]) -> list[tuple[list[int], list[int]]]:
        """Words that are given one by one, with the number of the word of each token; every word has a token.

        Among bytes a word begins with its blank, wherever it stands."""
        if not self.token_format.is_byte_level:
            return encode_split_words(sentences, self.encode, self.special_id("unknown"))

        def encode(words: Sequence[str]) -> list[list[int]]:
            return self.encode([word if word.startswith(" ") else f" {word}" for word in words])

        return encode_split_words(sentences, encode, self.special_id("unknown"))

    def encode_masked(self, texts: Sequence[str]) -> list[list[int]]:
        """As `encode`, but where the name of the mask stands in a text, the mask is meant."""
        if (mask := self.special_id("mask")) is None:
            return self.encode(texts)
        added = self.backend.get_added_tokens_decoder().get(mask)
        return encode_with_masks(
            texts, self.encode, self.id_to_token(mask), mask, strip_space=added is not None and added.lstrip
        )

    def starts_word(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Whether each token of a row begins a word, so that whole words can be masked; a special token is one itself.

        Among bytes it is the blank that begins a word: marks such as a comma go with the word before."""
        row = np.asarray(ids, dtype=np.int64)
        starts = self._word_boundaries[row, 0]
        starts[1:] |= self._word_boundaries[row[:-1], 1]
        starts[:1] = True
        return starts

    @cached_property
    def _word_boundaries(self) -> np.ndarray:
        mark = (
            continuation_prefix(self.backend)
            if self.token_format is TokenFormat.WORDPIECE
            else word_suffix(self.backend)
        )
        found = word_boundaries(self._token_names, self.token_format, mark)
        found[list(self.special_ids)] = True
        return found

    @cached_property
    def _whitespace_tokens(self) -> np.ndarray | None:
        return whitespace_mask(self._token_names) if self.token_format.is_byte_level else None

    @property
    def _token_names(self) -> list[str]:
        """Of all ids; nothing for those that have none."""
        return [self.id_to_token(token) for token in range(max(self.backend.get_vocab().values(), default=-1) + 1)]

    def _encode_batches(self, texts: Sequence[str], encode: Callable[..., list[Encoding]]) -> Iterator[Encoding]:
        for load in _batches(texts):
            try:
                yield from encode(load, add_special_tokens=False)
            except TypeError as error:
                raise DataError(LONE_SURROGATE) from error

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return self.backend.decode_batch([list(row) for row in ids], skip_special_tokens=True)

    def display_tokens(self, ids: Sequence[int]) -> list[str]:
        """The tokens as a person reads them.

        Where blanks belong to the text they are seen; elsewhere a piece that continues a word begins with a dot."""
        known = [self._token_text(i) for i in ids]
        if self.token_format in (TokenFormat.BYTES, TokenFormat.CHARACTERS):
            return [piece.text for piece in known]
        shown = []
        for number, piece in enumerate(known):
            last = known[number - 1]
            first = number == 0 or piece.starts_word or piece.is_special or last.is_special or last.ends_word
            shown.append((piece.text.strip() or "␣") if first else "·" + piece.text)
        return shown

    def _token_text(self, token: int) -> TokenText:
        if token not in self._token_texts:
            special = token in self.special_ids
            self._token_texts[token] = (
                TokenText(self.id_to_token(token), is_special=True) if special else describe_token(self.backend, token)
            )
        return self._token_texts[token]


def _train_bpe(backend: Tokenizer, texts: Iterable[str], vocabulary: int, special: Sequence[str] = ()) -> None:
    """All bytes are tokens, whether they occur or not."""
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=list(special), show_progress=False, min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    try:
        backend.train_from_iterator(texts, trainer)
    except UnicodeEncodeError as error:
        raise DataError(LONE_SURROGATE) from error


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """As many texts as are encoded at once."""
    load: list[str] = []
    room = MAX_BATCH_CHARS
    for text in texts:
        load.append(text)
        room -= len(text)
        if room <= 0 or len(load) == ENCODE_BATCH:
            yield load
            load, room = [], MAX_BATCH_CHARS
    if load:
        yield load
