"""Text -> tokens, by the `tokenizers` library. Byte-pair encoding over bytes: no text is unknown, and decoding is exact.
WordPiece, as encoders have it: words in pieces, and what has a strange letter is unknown."""

from __future__ import annotations

from collections import Counter
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
from regard.processors.tokenizer.char_tokenizer import HALF
from regard.processors.tokenizer.templates import Frame, frame_of
from regard.processors.tokenizer.token_text import SENTENCES, Form, Piece, ending, form_of, piece_of, prefix
from regard.processors.tokenizer.words import Span, apart, around, blanks, edges, trimmed

PAD, START, END = "<pad>", "<s>", "</s>"
SPECIAL = (PAD, START, END)
"""The first three ids of every tokenizer that is trained here on sentences."""

END_OF_TEXT = "<|endoftext|>"
"""Ends a document and begins the next; the only special token of a language model's tokenizer."""

KNOWN = {
    "bos_token": (START, END_OF_TEXT), "eos_token": (END, END_OF_TEXT), "pad_token": (PAD, wordpiece.PAD),
    "unk_token": (wordpiece.UNKNOWN, published.UNKNOWN), "cls_token": (wordpiece.START,), "sep_token": (wordpiece.END,),
    "mask_token": (wordpiece.MASK, published.GAP),
}  # fmt: skip
"""The special tokens of published tokenizers, where a folder says nothing else, by the names of their parts."""

Role = Literal["start", "end", "pad", "mask", "unknown"]
ROLES: dict[Role, tuple[str, ...]] = {
    "start": ("cls_token", "bos_token"), "end": ("sep_token", "eos_token"), "pad": ("pad_token",),
    "mask": ("mask_token",), "unknown": ("unk_token",),
}  # fmt: skip

CHUNK = 10_000
"""Texts that are encoded at once."""

LOAD = 4_000_000
"""Characters that are encoded at once: the library's own records of a text take over 100 bytes for each."""


class Text:
    """A tokenizer with the few calls that tasks need. It adds no special tokens: tasks say where those belong."""

    def __init__(self, backend: Tokenizer, named: Mapping[str, str] | None = None) -> None:
        self.backend = backend
        self.named = dict(named or {})
        """special tokens by the published names of their parts (`mask_token`, …), where a folder says them"""
        self.notes: list[str] = []
        """how it differs from what was published"""
        self.backend.no_padding()
        self.backend.no_truncation()  # nothing is ever truncated silently
        self._pieces: dict[int, Piece] = {}
        self.backend.encode_special_tokens = True  # "</s>" in a person's text is text, and ends nothing

    @classmethod
    def train(cls, texts: Iterable[str], vocabulary: int) -> Text:
        """Byte-level BPE from an iterator. A leading space is added, so that a word is the same token anywhere."""
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        backend.decoder = SENTENCES
        _learn(backend, texts, vocabulary, SPECIAL)
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
        _learn(backend, texts, vocabulary - 1)
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
        backend = char_tokenizer.learn(found, words=False)
        backend.add_special_tokens([END_OF_TEXT])
        return cls(backend)

    @classmethod
    def whole(cls, texts: Iterable[str], words: bool = True) -> Text:
        """A token for each word between blanks, or for each character where no text has a blank or no `words` are wanted; and
        those of sentences."""
        letters, found = set[str](), set[str]()
        for text in texts:
            letters.update(text)
            found.update(text.split())
        words = words and any(letter.isspace() for letter in letters)
        return cls(char_tokenizer.learn(found if words else letters, words)).add(SPECIAL)

    @classmethod
    def wordpiece(cls, texts: Iterable[str], vocabulary: int, lower: bool = True) -> Text:
        """WordPiece as BERT's, from an iterator; with `lower`, case and accents make no difference."""
        try:
            return cls(wordpiece.learn(texts, vocabulary, lower))
        except UnicodeEncodeError as error:
            raise DataError(HALF) from error

    @classmethod
    def load(cls, path: str | Path) -> Text:
        """A tokenizer.json, or a folder with one, with vocab.txt (BERT), or with vocab.json and merges.txt (GPT, RoBERTa).

        RoFormer finds Chinese words by jieba; here it is read as BERT, and `notes` says so."""
        path = Path(path)
        file = path / "tokenizer.json" if path.is_dir() else path
        found = None if file.name == "tokenizer.json" and file.exists() else published.find(path)
        if not found and not file.exists():
            raise DataError(
                "there is no such tokenizer.", file,
                advice="Give a tokenizer.json, or a folder that holds one, vocab.txt, or vocab.json and merges.txt.",
            )  # fmt: skip
        # a file of another name says nothing of what stands beside it
        settings = published.settings_of(file.parent) if found or file.name == "tokenizer.json" else {}
        if found:
            backend = published.read(found, end=END_OF_TEXT)
        else:
            try:
                backend = Tokenizer.from_file(str(file))
            except Exception as error:  # the library raises bare Exception for any file it cannot read
                raise DataError(f"cannot be read as a tokenizer.json ({error}).", file) from error
            published.adjust(backend, settings, file.parent)
        text = cls(backend, published.named(settings))
        text.notes += [published.JIEBA] if published.needs_jieba(settings) else []
        return text

    @staticmethod
    def exists(folder: str | Path) -> bool:
        """Whether `load` finds a tokenizer in this folder."""
        return (Path(folder) / "tokenizer.json").exists() or published.find(Path(folder)) is not None

    def add(self, tokens: Sequence[str]) -> Text:
        """Another one that has these special tokens too: those that are new get the next ids."""
        for token in tokens:
            known = self.id_of(token)
            if not token or (known is not None and known not in self.special):
                raise DataError(f"'{token}' cannot be made a special token: it is text, or empty.")
        backend = self._copied()
        backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in tokens])
        return type(self)(backend, self.named)

    def save(self, path: Path) -> None:
        write_text(path, self.backend.to_str(pretty=True))

    def between(self, single: str, pair: str, marks: Sequence[str]) -> Text:
        """A copy that puts marks around a text or a pair for others who read it; here tasks do that themselves."""
        backend = self._copied()
        known = [(mark, self.backend.token_to_id(mark)) for mark in marks]
        backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=known)
        return Text(backend, self.named)

    def framed(self, frame: Frame | None = None) -> Text:
        """The same that puts a frame around a text or a pair for others: its own, or that of the model that it belongs to."""
        frame = frame or self.frame
        if frame_of(self.backend) == frame:
            return self
        backend = self._copied()
        backend.post_processor = frame.template(self.name_of)
        return Text(backend, self.named)

    def _copied(self) -> Tokenizer:
        return Tokenizer.from_str(self.backend.to_str())

    def names(self) -> dict[str, str]:
        """Its special tokens under the names that published tokenizers give them."""
        known = {name: (*([self.named[name]] if name in self.named else []), *KNOWN[name]) for name in KNOWN}
        if self.id_of(published.GAP) is not None:  # as RoBERTa, whose first and last token have two names
            known |= {"cls_token": (*known["cls_token"], START), "sep_token": (*known["sep_token"], END)}
        found = {name: [token for token in tokens if self.id_of(token) is not None] for name, tokens in known.items()}
        return {name: tokens[0] for name, tokens in found.items() if tokens}

    def role(self, role: Role) -> int | None:
        """The id of the special token that plays a part: the first is [CLS] or <s>, the last [SEP] or </s>."""
        names = self.names()
        return next((self.id_of(names[name]) for name in ROLES[role] if name in names), None)

    @cached_property
    def frame(self) -> Frame:
        """The special tokens around a text or a pair: as its file has them, otherwise BERT's, or RoBERTa's for bytes."""
        if (found := frame_of(self.backend)) is not None:
            return found
        start, end = (() if (number := self.role(role)) is None else (number,) for role in ("start", "end"))
        return Frame(start, end, end, 1) if self.form is Form.PIECES else Frame(start, end + end, end, 0)

    def fingerprint(self) -> str:
        """Two tokenizers with the same one make the same tokens of a text, whatever they put around it for others."""
        return blake2b(self._bare.to_str().encode(), digest_size=16).hexdigest()

    @cached_property
    def _bare(self) -> Tokenizer:
        """Without what is put around a text: it moves the places of tokens in it."""
        backend = self._copied()
        backend.post_processor = None
        backend.encode_special_tokens = True
        return backend

    @property
    def size(self) -> int:
        return self.backend.get_vocab_size()

    def id_of(self, token: str) -> int | None:
        return self.backend.token_to_id(token)

    def name_of(self, token: int) -> str:
        """As the vocabulary has it; nothing for an id that it does not have."""
        return self.backend.id_to_token(token) or ""

    @cached_property
    def special(self) -> frozenset[int]:
        """Ids that stand for no text: `decode` leaves them out."""
        added = self.backend.get_added_tokens_decoder().items()
        return frozenset(number for number, token in added if token.special)

    @cached_property
    def form(self) -> Form:
        return form_of(self.backend)

    @cached_property
    def alphabet(self) -> dict[str, int] | None:
        """The id of each character or word, of a tokenizer by `characters` or `whole`."""
        return char_tokenizer.known(self.backend)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        if self.alphabet is not None:
            return [char_tokenizer.ids(text, self.alphabet, self.form is Form.PIECES) for text in texts]
        return [item.ids for item in self._encoded(texts, self.backend.encode_batch_fast)]

    def encode_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[Span]]]:
        """With the place of each token in its text, without blanks in front; half a character has the place of the whole."""
        if self.alphabet is not None:
            rows = zip(self.encode(texts), texts, strict=True)
            return [(ids, char_tokenizer.places(text, self.form is Form.PIECES)) for ids, text in rows]
        found = []
        for text, item in zip(texts, self._encoded(texts, self._bare.encode_batch), strict=True):
            ids = item.ids
            found.append((ids, trimmed(text, item.offsets, None if self._blanks is None else self._blanks[ids])))
        return found

    def encode_words(self, sentences: Sequence[Sequence[str]]) -> list[tuple[list[int], list[int]]]:
        """Words that are given one by one, with the number of the word of each token; every word has a token.

        Among bytes a word begins with its blank, wherever it stands."""
        if not self.form.of_bytes:
            return apart(sentences, self.encode, self.role("unknown"))

        def encode(words: Sequence[str]) -> list[list[int]]:
            return self.encode([word if word.startswith(" ") else f" {word}" for word in words])

        return apart(sentences, encode, self.role("unknown"))

    def encode_gaps(self, texts: Sequence[str]) -> list[list[int]]:
        """As `encode`, but where the name of the mask stands in a text, the mask is meant."""
        if (mask := self.role("mask")) is None:
            return self.encode(texts)
        added = self.backend.get_added_tokens_decoder().get(mask)
        return around(texts, self.encode, self.name_of(mask), mask, blank=added is not None and added.lstrip)

    def unknown(self, texts: Sequence[str]) -> Counter[str]:
        """What in these texts has become the unknown token, and how often; `.total()` is the sum."""
        token = self.role("unknown")
        rows = zip(texts, self.encode_offsets(texts), strict=True)
        return Counter(text[a:b] for text, row in rows for i, (a, b) in zip(*row, strict=True) if i == token)

    def starts_word(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Whether each token of a row begins a word, so that whole words can be masked; a special token is one itself.

        Among bytes it is the blank that begins a word: marks such as a comma go with the word before."""
        row = np.asarray(ids, dtype=np.int64)
        starts = self._edges[row, 0]
        starts[1:] |= self._edges[row[:-1], 1]
        starts[:1] = True
        return starts

    @cached_property
    def _edges(self) -> np.ndarray:
        mark = prefix(self.backend) if self.form is Form.PIECES else ending(self.backend)
        found = edges(self._names, self.form, mark)
        found[list(self.special)] = True
        return found

    @cached_property
    def _blanks(self) -> np.ndarray | None:
        return blanks(self._names) if self.form.of_bytes else None

    @property
    def _names(self) -> list[str]:
        """Of all ids; nothing for those that have none."""
        return [self.name_of(token) for token in range(max(self.backend.get_vocab().values(), default=-1) + 1)]

    def _encoded(self, texts: Sequence[str], encode: Callable[..., list[Encoding]]) -> Iterator[Encoding]:
        for load in _loads(texts):
            try:
                yield from encode(load, add_special_tokens=False)
            except TypeError as error:
                raise DataError(HALF) from error

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return self.backend.decode_batch([list(row) for row in ids], skip_special_tokens=True)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The tokens as a person reads them.

        Where blanks belong to the text they are seen; elsewhere a piece that continues a word begins with a dot."""
        known = [self._piece(i) for i in ids]
        if self.form in (Form.BYTES, Form.JOINED):
            return [piece.text for piece in known]
        shown = []
        for number, piece in enumerate(known):
            last = known[number - 1]
            first = number == 0 or piece.starts or piece.special or last.special or last.ends
            shown.append((piece.text.strip() or "␣") if first else "·" + piece.text)
        return shown

    def _piece(self, token: int) -> Piece:
        if token not in self._pieces:
            special = token in self.special
            self._pieces[token] = Piece(self.name_of(token), special=True) if special else piece_of(self.backend, token)
        return self._pieces[token]


def _learn(backend: Tokenizer, texts: Iterable[str], vocabulary: int, special: Sequence[str] = ()) -> None:
    """All bytes are tokens, whether they occur or not."""
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=list(special), show_progress=False, min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    try:
        backend.train_from_iterator(texts, trainer)
    except UnicodeEncodeError as error:
        raise DataError(HALF) from error


def _loads(texts: Iterable[str]) -> Iterator[list[str]]:
    """As many texts as are encoded at once."""
    load: list[str] = []
    room = LOAD
    for text in texts:
        load.append(text)
        room -= len(text)
        if room <= 0 or len(load) == CHUNK:
            yield load
            load, room = [], LOAD
    if load:
        yield load
