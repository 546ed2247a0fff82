"""Encoders of texts in place of the `tokenizers` library: characters, words, and the SentencePiece models of Marian.

Marian's ids must be those of the `sentencepiece` library. The `tokenizers` library normalizes grapheme clusters instead of
characters and adds scores in another precision, so its ids differ for some combining marks and repeated characters."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

from regard.errors import DataError, RegardError
from regard.files import write_file, write_json
from regard.processors.tokenizer.token_text import Span, trim_spans

LONE_SURROGATE = "A text contains half of a character (a lone surrogate, usually caused by bytes that are not UTF-8)."


class Segmenter(Protocol):
    """Encoder of texts without special tokens."""

    def encode(self, texts: Sequence[str], target: bool = False) -> list[list[int]]:
        """Token ids of each text. `target`: the texts are in the target language."""

    def spans(self, text: str) -> list[Span]:
        """Start and end of each token of a text."""


@dataclass(frozen=True)
class Units:
    """One token per whitespace-separated word or per character. Other units are errors, which name them."""

    alphabet: dict[str, int]
    words: bool

    def encode(self, texts: Sequence[str], target: bool = False) -> list[list[int]]:
        return [self._encode(text.split() if self.words else text) for text in texts]

    def spans(self, text: str) -> list[Span]:
        return [match.span() for match in re.finditer(r"\S+" if self.words else r"[\s\S]", text)]

    def _encode(self, units: Sequence[str]) -> list[int]:
        try:
            return [self.alphabet[unit] for unit in units]
        except KeyError:
            unknown = sorted(set(units) - set(self.alphabet), key=units.index)
        more = len(unknown) - 1
        others = f" and {more} other{'s' if more > 1 else ''}" if more else ""
        kind = "word" if self.words else "character"
        code = "" if self.words else f" (U+{ord(unknown[0]):04X})"
        raise DataError(
            f"The tokenizer ({len(self.alphabet):,} {kind}s) does not contain the {kind} {unknown[0]!r}{code}{others}.",
            advice=f"A {kind} tokenizer covers only the {kind}s of the training text. "
            "Byte-level tokenizers (data.tokenizer_type=byte_bpe) cover all text.",
        )


def import_sentencepiece(path: Path) -> Any:
    """The `sentencepiece` library, to read this file."""
    try:
        import sentencepiece
        import sentencepiece.sentencepiece_model_pb2
        import sentencepiece.sentencepiece_pb2
    except ImportError as error:
        raise RegardError(
            f"{path}: SentencePiece models need the package sentencepiece, which is the extra regard[sentencepiece]. "
            "Install it with: pip install sentencepiece"
        ) from error
    return sentencepiece


MARIAN_FILES = ("source.spm", "target.spm")
"""Models of the source and the target language."""
MARIAN_KEYS = ("source_lang", "target_lang")
"""Keys of tokenizer_config.json without effect on the tokens, which are kept."""


@dataclass(frozen=True)
class MarianPieces:
    """SentencePiece models of two languages, and ids of the pieces of both. Pieces without an id are unknown.

    A text may start with the code of the target language, such as `>>fra<<`, which is one token."""

    models: tuple[bytes, bytes]  # contents of MARIAN_FILES
    ids: Mapping[str, int]
    unknown: int
    settings: Mapping[str, Any]  # values of MARIAN_KEYS

    @classmethod
    def load(cls, folder: Path, ids: Mapping[str, int], unknown: int, settings: Mapping[str, Any]) -> MarianPieces:
        for key in ("separate_vocabs", "sp_model_kwargs"):
            if settings.get(key):
                raise DataError(f"{key}={settings[key]!r} is not supported.", folder / "tokenizer_config.json")
        contents = []
        for name in MARIAN_FILES:
            library, content = import_sentencepiece(folder / name), (folder / name).read_bytes()
            try:
                size = library.SentencePieceProcessor(model_proto=content).get_piece_size()
            except RuntimeError:
                size = 0
            if not size:
                raise DataError("cannot be read as a SentencePiece model.", folder / name)
            contents.append(content)
        kept = {key: settings[key] for key in MARIAN_KEYS if settings.get(key) is not None}
        return cls((contents[0], contents[1]), dict(ids), unknown, kept)

    @cached_property
    def _processors(self) -> list[Any]:
        library = import_sentencepiece(Path(MARIAN_FILES[0]))
        return [library.SentencePieceProcessor(model_proto=content) for content in self.models]

    def encode(self, texts: Sequence[str], target: bool = False) -> list[list[int]]:
        parts = [_split_language_code(text) for text in texts]
        try:
            rows = self._processors[target].encode([rest for _, rest in parts], out_type=str)
        except (RuntimeError, UnicodeError) as error:
            raise DataError(LONE_SURROGATE) from error
        pieces = ([code, *row] if code else row for (code, _), row in zip(parts, rows, strict=True))
        return [[self.ids.get(piece, self.unknown) for piece in row] for row in pieces]

    def spans(self, text: str) -> list[Span]:
        """Spans of the tokens of a source text."""
        code, rest = _split_language_code(text)
        library = import_sentencepiece(Path(MARIAN_FILES[0]))
        content = self._processors[0].EncodeAsSerializedProto(rest)
        pieces = library.sentencepiece_pb2.SentencePieceText.FromString(content).pieces
        at_byte = [at for at, letter in enumerate(rest) for _ in letter.encode()] + [len(rest)]
        found = trim_spans(rest, [(at_byte[piece.begin], at_byte[piece.end]) for piece in pieces], None)
        first = len(code)
        return [(0, first)] * bool(code) + [(first + start, first + end) for start, end in found]

    def decode(self, tokens: Sequence[str]) -> str:
        """Text of tokens, by the model of the source language as in `transformers`."""
        return str(self._processors[0].decode_pieces(list(tokens))).replace("▁", " ").strip()

    def fingerprint(self) -> str:
        """Hash of both models."""
        return blake2b(self.models[0] + self.models[1], digest_size=16).hexdigest()

    def save(self, folder: Path) -> None:
        for name, content in zip(MARIAN_FILES, self.models, strict=True):
            write_file(folder / name, content)
        write_json(folder / "vocab.json", dict(self.ids))


def _split_language_code(text: str) -> tuple[str, str]:
    """Language code at the start of a text, or an empty string, and the rest of the text."""
    code, end, rest = text.partition("<<") if text.startswith(">>") else ("", "", text)
    return (code + end, rest) if end else ("", text)
