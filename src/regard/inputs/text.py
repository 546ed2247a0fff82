"""Text -> tokens, by the `tokenizers` library. Byte-pair encoding over bytes: no text is unknown, and decoding is exact."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from regard.disk import write_text
from regard.errors import DataError, SettingError
from regard.inputs import published
from regard.inputs.spelling import SENTENCES, Form, ending, form_of, state, to_bytes, visible

PAD, START, END = "<pad>", "<s>", "</s>"
SPECIAL = (PAD, START, END)
"""The first three ids of every tokenizer that is trained here on sentences."""

END_OF_TEXT = "<|endoftext|>"
"""Ends a document and begins the next; the only special token of a language model's tokenizer."""

CHUNK = 10_000
"""Texts that are encoded at once."""

LOAD = 4_000_000
"""Characters that are encoded at once: the library's own records of a text take over 100 bytes for each."""

HALF = "a text has half of a character (a lone surrogate, as bytes that are not UTF-8 leave behind)."


class Piece(NamedTuple):
    """A token as it is shown, whether it begins and ends a word, and whether it is a special one."""

    text: str
    starts: bool = False
    ends: bool = False
    special: bool = False


class Text:
    """A tokenizer with the few calls that tasks need. It adds no special tokens: tasks say where those belong."""

    def __init__(self, backend: Tokenizer) -> None:
        self.backend = backend
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
        """A tokenizer.json, or a folder with one or with vocab.json and merges.txt."""
        path = Path(path)
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.exists() and (found := published.find(path)):
            return cls(published.read(*found, end=END_OF_TEXT))
        if not file.exists():
            raise DataError(
                "there is no such tokenizer.", file,
                advice="Give a tokenizer.json, or a folder that holds one or vocab.json and merges.txt.",
            )  # fmt: skip
        try:
            return cls(Tokenizer.from_file(str(file)))
        except Exception as error:  # the library raises bare Exception for any file it cannot read
            raise DataError(f"cannot be read as a tokenizer.json ({error}).", file) from error

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
        backend = Tokenizer.from_str(self.backend.to_str())
        backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in tokens])
        return type(self)(backend)

    def save(self, path: Path) -> None:
        write_text(path, self.backend.to_str(pretty=True))

    def between(self, single: str, pair: str, marks: Sequence[str]) -> Text:
        """A copy that puts marks around a text or a pair for others who read it; here tasks do that themselves."""
        backend = Tokenizer.from_str(self.backend.to_str())
        known = [(mark, self.backend.token_to_id(mark)) for mark in marks]
        backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=known)
        return Text(backend)

    def names(self) -> dict[str, str]:
        """Its special tokens under the names that published tokenizers give them."""
        known = {"bos_token": (START, END_OF_TEXT), "eos_token": (END, END_OF_TEXT), "pad_token": (PAD,)}
        found = {name: [token for token in tokens if self.id_of(token) is not None] for name, tokens in known.items()}
        return {name: tokens[0] for name, tokens in found.items() if tokens}

    def fingerprint(self) -> str:
        """Two tokenizers with the same one are the same."""
        return blake2b(self.backend.to_str().encode(), digest_size=16).hexdigest()

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
        """The id of each character, of a tokenizer by `characters`."""
        if not isinstance(self.backend.model, models.WordLevel):
            return None
        splits = state(self.backend.pre_tokenizer) == state(_each_character())
        return self.backend.get_vocab(with_added_tokens=False) if splits else None

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        if self.alphabet is not None:
            return [self._letters(text, self.alphabet) for text in texts]
        ids: list[list[int]] = []
        for load in _loads(texts):
            try:
                ids += [item.ids for item in self.backend.encode_batch_fast(load, add_special_tokens=False)]
            except TypeError as error:
                raise DataError(HALF) from error
        return ids

    def _letters(self, text: str, alphabet: dict[str, int]) -> list[int]:
        try:
            return [alphabet[letter] for letter in text]
        except KeyError:
            unknown = sorted(set(text) - set(alphabet), key=text.index)
            more = len(unknown) - 1
            others = f" and {more} other{'s' if more > 1 else ''} are" if more else " is"
            raise DataError(
                f"the character {unknown[0]!r} (U+{ord(unknown[0]):04X}){others} not among the {len(alphabet):,} "
                "characters of the tokenizer.",
                advice="It knows those that it was made from; a byte-level vocabulary knows all.",
            ) from None

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
            self._pieces[token] = self._make_piece(token)
        return self._pieces[token]

    def _make_piece(self, token: int) -> Piece:
        name = self.name_of(token) or "?"
        if token in self.special:
            return Piece(name, special=True)
        if self.form is Form.BYTES:
            return Piece(visible(to_bytes(name)))
        if self.form is Form.JOINED:
            return Piece(visible(name.encode("utf-8")))
        if self.form is Form.WORDS:
            mark = ending(self.backend)
            return Piece(name.removesuffix(mark), ends=name.endswith(mark))
        return Piece(self.backend.decode([token], skip_special_tokens=False), starts=name.startswith(("Ġ", "▁")))


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


def _each_character() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")


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
