"""Text -> tokens, by the `tokenizers` library. Byte-pair encoding over bytes: no text is unknown, and decoding is exact."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from regard.disk import write_text
from regard.errors import DataError

PAD, START, END = "<pad>", "<s>", "</s>"
SPECIAL = (PAD, START, END)
"""The first three ids of every tokenizer that is trained here."""


CHUNK = 10_000
"""Texts that are encoded at once."""


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
        trainer = trainers.BpeTrainer(
            vocab_size=vocabulary, special_tokens=list(SPECIAL), show_progress=False, min_frequency=2,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )  # fmt: skip
        backend.train_from_iterator(texts, trainer)
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

    def save(self, path: Path) -> None:
        write_text(path, self.backend.to_str(pretty=True))

    @property
    def size(self) -> int:
        return self.backend.get_vocab_size()

    def id_of(self, token: str) -> int | None:
        return self.backend.token_to_id(token)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        ids: list[list[int]] = []
        for first in range(
            0, len(texts), CHUNK
        ):  # the library's own records of a text are many times larger than its ids
            part = list(texts[first : first + CHUNK])
            ids += [item.ids for item in self.backend.encode_batch_fast(part, add_special_tokens=False)]
        return ids

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
