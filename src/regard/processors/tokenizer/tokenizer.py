"""Tokenizers, based on the `tokenizers` library: byte-level BPE (encodes any text, exact decoding), WordPiece (a word with an
unknown character becomes the unknown token), characters and words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tokenizers import AddedToken, Encoding, Tokenizer, decoders, models, pre_tokenizers, processors

from regard.errors import DataError, SettingError
from regard.files import write_file
from regard.processors.tokenizer.segmenters import LONE_SURROGATE, MarianPieces, Segmenter, Units
from regard.processors.tokenizer.token_text import (
    DECODER_FORMATS,
    SENTENCE_DECODER,
    Span,
    TokenFormat,
    to_bytes,
    to_visible,
    trim_spans,
)
from regard.processors.tokenizer.vocabulary import (
    ADDED_TOKEN_FIELDS,
    ADDED_TOKENS_KEY,
    BERT_END,
    BERT_MASK,
    BERT_PAD,
    BERT_START,
    BERT_UNKNOWN,
    GPT1_UNKNOWN,
    ROBERTA_MASK,
    SPLIT_KEY,
    build_word_level,
    component_state,
    find_files,
    read_tokenizer,
    split_units,
    train_bpe,
    train_wordpiece,
)


@dataclass(frozen=True)
class TokenTemplate:
    """Special tokens around a text or a pair: `[CLS] A [SEP] B [SEP]` for BERT, `<s> A </s></s> B </s>` for RoBERTa."""

    start: tuple[int, ...] = ()
    separator: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    second_type: int = 0  # token type id of the second text and of the tokens after it; all earlier tokens have type 0

    def post_processor(self, id_to_token: Callable[[int], str]) -> processors.PostProcessor:
        """Equivalent post-processor of the `tokenizers` library."""
        end = [f"{id_to_token(i)}:0" for i in self.end]
        first = [*(f"{id_to_token(i)}:0" for i in self.start), "$A:0"]
        second = [f"$B:{self.second_type}", *(f"{id_to_token(i)}:{self.second_type}" for i in self.end)]
        pair = [*first, *(f"{id_to_token(i)}:0" for i in self.separator), *second]
        known = {(id_to_token(i), i) for i in (*self.start, *self.separator, *self.end)}
        return processors.TemplateProcessing(single=[*first, *end], pair=pair, special_tokens=sorted(known))


def template_of(backend: Tokenizer) -> TokenTemplate | None:
    """Template of the library's post-processor; None if the post-processor adds no tokens."""
    if backend.post_processor is None:
        return None
    probe = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))  # the post-processor contains the special token ids
    probe.post_processor = backend.post_processor
    pair = probe.encode("a", "a")
    a, b = pair.sequence_ids.index(0), pair.sequence_ids.index(1)
    ids = pair.ids
    frame = TokenTemplate(tuple(ids[:a]), tuple(ids[a + 1 : b]), tuple(ids[b + 1 :]), pair.type_ids[b])
    return frame if probe.encode("a").ids != [0] else None


PAD, START, END = "<pad>", "<s>", "</s>"
SPECIAL_TOKENS = (PAD, START, END)  # The first three ids of tokenizers trained on sentences.

END_OF_TEXT = "<|endoftext|>"  # Separator of documents; the only special token of a language model's tokenizer.

DEFAULT_SPECIAL_TOKENS = {
    "bos_token": (START, END_OF_TEXT), "eos_token": (END, END_OF_TEXT), "pad_token": (PAD, BERT_PAD),
    "unk_token": (BERT_UNKNOWN, GPT1_UNKNOWN), "cls_token": (BERT_START,), "sep_token": (BERT_END,),
    "mask_token": (BERT_MASK, ROBERTA_MASK),
}  # fmt: skip
"""Default special tokens by their `transformers` keys, for folders that declare none."""

Role = Literal["start", "end", "pad", "mask", "unknown"]
ROLE_KEYS: dict[Role, tuple[str, ...]] = {
    "start": ("cls_token", "bos_token"), "end": ("sep_token", "eos_token"), "pad": ("pad_token",),
    "mask": ("mask_token",), "unknown": ("unk_token",),
}  # fmt: skip

ENCODE_BATCH = 10_000  # Maximum number of texts per call of the library.

MAX_BATCH_CHARS = 4_000_000
"""Maximum number of characters per call: the encodings of the library take over 100 bytes per character."""


class TextTokenizer:
    """Tokenizer for tasks. Encoding adds no special tokens around a text: the tasks add them. The text of a special token
    inside a text is this token, as in `transformers`, unless `split_special_tokens` is true."""

    def __init__(
        self,
        backend: Tokenizer,
        declared_tokens: Mapping[str, str] | None = None,
        notes: Iterable[str] = (),
        split_special_tokens: bool = False,
        pieces: MarianPieces | None = None,
    ) -> None:
        """`declared_tokens` are the special tokens of a folder by their `transformers` keys (`mask_token`, …), `notes` are
        differences from the original tokenizer, `pieces` the models of Marian, whose vocabulary is in `backend`."""
        self.backend, self.declared_tokens, self.notes = backend, dict(declared_tokens or {}), list(notes)
        self.size = backend.get_vocab_size()
        self.backend.no_padding()
        self.backend.no_truncation()  # tasks truncate explicitly and report the truncation
        self.split_special_tokens = split_special_tokens
        decoder = component_state(backend.decoder)
        self.word_mark = str(decoder.get("suffix") or decoder.get("prefix") or "")
        """suffix of the last token of a word, or prefix of tokens that continue a word; empty for other formats"""
        self.token_format = DECODER_FORMATS.get(decoder.get("type", ""), TokenFormat.OTHER)
        if decoder == component_state(SENTENCE_DECODER):
            self.token_format = TokenFormat.PREFIXED_BYTES
        self._token_texts: dict[int, tuple[str, bool, bool]] = {}
        """text and word edges of the tokens shown so far: a prediction shows thousands of tokens"""
        self.pieces = pieces
        self.segmenter: Segmenter | None = pieces
        """encoder in place of `backend`, also for tokenizers of `from_characters` and `from_words`"""
        if isinstance(backend.model, models.WordLevel) and pieces is None:
            words = self.token_format is TokenFormat.WORDPIECE
            if component_state(backend.pre_tokenizer) == component_state(split_units(words)):
                self.segmenter = Units(backend.get_vocab(with_added_tokens=False), words)

    @property
    def split_special_tokens(self) -> bool:
        """True if the text of a special token is plain text, for untrusted input."""
        return bool(self.backend.encode_special_tokens)

    @split_special_tokens.setter
    def split_special_tokens(self, split: bool) -> None:
        self.backend.encode_special_tokens = split
        vars(self).pop("_plain_backend", None)

    def __getstate__(self) -> dict[str, Any]:
        """State with the choice for special tokens, which the library does not pickle."""
        state = {name: value for name, value in vars(self).items() if name != "_plain_backend"}
        return state | {SPLIT_KEY: self.split_special_tokens}

    def __setstate__(self, state: dict[str, Any]) -> None:
        split = state.pop(SPLIT_KEY)
        vars(self).update(state)
        self.split_special_tokens = split

    @classmethod
    def train_sentence_bpe(cls, texts: Iterable[str], vocabulary: int) -> TextTokenizer:
        """Train byte-level BPE. A leading space is added, so that a word has the same tokens at any position."""
        backend = train_bpe(texts, vocabulary, pre_tokenizers.ByteLevel(), SPECIAL_TOKENS)
        backend.decoder = SENTENCE_DECODER
        return cls(backend)

    @classmethod
    def train_lm_bpe(cls, texts: Iterable[str], vocabulary: int) -> TextTokenizer:
        """Train byte-level BPE as in GPT-2, without a leading space, so that any text is decoded exactly."""
        if vocabulary <= 256:
            reason = f"the 256 bytes and {END_OF_TEXT} need 257"
            raise SettingError(f"A vocabulary of {vocabulary} tokens is too small: {reason}.")
        backend = train_bpe(texts, vocabulary - 1, pre_tokenizers.ByteLevel(add_prefix_space=False))
        backend.decoder = decoders.ByteLevel()
        # The last id, as in GPT-2: the ids before it are the bytes and the merges in order, as in vocab.json + merges.txt
        # and in tiktoken's ranks, so both formats can be exported.
        backend.add_special_tokens([END_OF_TEXT])
        return cls(backend)

    @classmethod
    def from_characters(cls, texts: Iterable[str]) -> TextTokenizer:
        """One token per character of the texts, sorted by code point, and the end-of-text token."""
        backend = build_word_level(set(chain.from_iterable(texts)), words=False)
        backend.add_special_tokens([END_OF_TEXT])
        return cls(backend)

    @classmethod
    def from_words(cls, texts: Iterable[str], words: bool = True) -> TextTokenizer:
        """SPECIAL_TOKENS and one token per whitespace-separated word, or one token per character if `words` is false or no
        text contains whitespace."""
        letters, distinct_words = set[str](), set[str]()
        for text in texts:
            letters.update(text)
            distinct_words.update(text.split())
        words = words and any(letter.isspace() for letter in letters)
        return cls(build_word_level(distinct_words if words else letters, words)).with_special_tokens(SPECIAL_TOKENS)

    @classmethod
    def train_wordpiece(cls, texts: Iterable[str], vocabulary: int, lowercase: bool = True) -> TextTokenizer:
        """Train WordPiece as in BERT; with `lowercase`, case and accents are removed."""
        return cls(train_wordpiece(texts, vocabulary, lowercase))

    @classmethod
    def load(cls, path: str | Path) -> TextTokenizer:
        """Load tokenizer.json, or a folder with tokenizer.json, vocab.txt (BERT), vocab.json and merges.txt (GPT, RoBERTa), or
        SentencePiece models (Marian, DeBERTa, XLM-RoBERTa).

        RoFormer's jieba segmentation of Chinese words is not supported: the tokenizer is loaded as BERT's, with a note."""
        return cls(*read_tokenizer(Path(path), end=END_OF_TEXT))

    @classmethod
    def find(cls, folder: Path) -> TextTokenizer | None:
        """Tokenizer of a folder, as `load`; None if the folder has none."""
        exists = (folder / "tokenizer.json").exists() or find_files(folder) is not None
        return cls(*read_tokenizer(folder, end=END_OF_TEXT)) if exists else None

    def with_special_tokens(self, tokens: Sequence[str]) -> TextTokenizer:
        """Copy with these special tokens; new tokens get the next ids."""
        for token in tokens:
            known = self.backend.token_to_id(token)
            if not token or (known is not None and known not in self.special_ids):
                raise DataError(f"'{token}' cannot become a special token: the token is empty or an ordinary token.")
        added = [AddedToken(token, normalized=False, special=True) for token in tokens]
        return self._changed(lambda backend: backend.add_special_tokens(added))

    def save(self, path: Path) -> None:
        """Save tokenizer.json, or in the same folder the files of Marian."""
        if self.pieces is not None:
            return self.pieces.save(path.parent)
        write_file(path, self.backend.to_str(pretty=True))

    def settings(self) -> dict[str, Any]:
        """Contents of tokenizer_config.json, in addition to the file of `save`."""
        # The class is required: otherwise `transformers` selects a tokenizer by the model type.
        found: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **self.special_tokens_map()}
        if self.pieces is not None:
            added = self.backend.get_added_tokens_decoder()
            special = {token.content for token in added.values() if token.special}
            found = {"tokenizer_class": "MarianTokenizer", **self.pieces.settings} | {
                key: token for key, token in found.items() if token in special
            }
            found[ADDED_TOKENS_KEY] = {
                str(number): {field: getattr(token, field) for field in ADDED_TOKEN_FIELDS}
                for number, token in sorted(added.items())
            }
        return found | ({SPLIT_KEY: True} if self.split_special_tokens else {})

    def with_template(self, template: TokenTemplate | None = None) -> TextTokenizer:
        """Tokenizer that adds the special tokens of a template in other programs; None: `self.template`."""
        template = template or self.template
        if self.pieces is not None or template_of(self.backend) == template:  # Marian's tokenizers add the end token
            return self
        processor = template.post_processor(self.id_to_token)
        return self._changed(lambda backend: setattr(backend, "post_processor", processor))

    def with_prefix_space(self) -> TextTokenizer:
        """Tokenizer that encodes a separate word like a word inside a text, in other programs."""

        def add_spaces(backend: Tokenizer) -> None:
            outer: Any = backend.pre_tokenizer
            is_sequence = isinstance(outer, pre_tokenizers.Sequence)
            for part in outer if is_sequence else (outer,):
                if isinstance(part, pre_tokenizers.ByteLevel):
                    part.add_prefix_space = True

        return self._changed(add_spaces) if self.token_format.is_byte_level else self

    def _changed(self, change: Callable[[Tokenizer], Any]) -> TextTokenizer:
        """Copy with a changed backend."""
        backend = Tokenizer.from_str(self.backend.to_str())
        change(backend)
        return TextTokenizer(backend, self.declared_tokens, (), self.split_special_tokens, self.pieces)

    def special_tokens_map(self) -> dict[str, str]:
        """Special tokens of this vocabulary by their `transformers` keys."""
        known = dict(DEFAULT_SPECIAL_TOKENS)
        if self.backend.token_to_id(ROBERTA_MASK) is not None:
            # RoBERTa uses the same token as bos and cls, and the same token as eos and sep
            known |= {"cls_token": (*known["cls_token"], START), "sep_token": (*known["sep_token"], END)}
        tokens: dict[str, str] = {}
        for name, defaults in known.items():
            declared = [self.declared_tokens[name]] if name in self.declared_tokens else []
            available = [token for token in (*declared, *defaults) if self.backend.token_to_id(token) is not None]
            if available:
                tokens[name] = available[0]
        return tokens

    def special_id(self, role: Role) -> int | None:
        """Id of the special token of a role: [CLS] or <s> for start, [SEP] or </s> for end; None if there is none."""
        names = self.special_tokens_map()
        return next((self.backend.token_to_id(names[name]) for name in ROLE_KEYS[role] if name in names), None)

    @cached_property
    def template(self) -> TokenTemplate:
        """Special tokens around a text or a pair: as in tokenizer.json, otherwise BERT's for WordPiece, else RoBERTa's."""
        if (template := template_of(self.backend)) is not None:
            return template
        start, end = (() if (number := self.special_id(role)) is None else (number,) for role in ("start", "end"))
        if self.token_format is TokenFormat.WORDPIECE:
            return TokenTemplate(start, end, end, 1)
        return TokenTemplate(start, end + end, end, 0)

    def fingerprint(self) -> str:
        """Hash of the tokenizer without post-processor: equal hashes mean equal token ids for any text."""
        pieces = "" if self.pieces is None else self.pieces.fingerprint()
        content = f"{SPLIT_KEY}={self.split_special_tokens} {pieces} {self._plain_backend.to_str()}"
        return blake2b(content.encode(), digest_size=16).hexdigest()

    @cached_property
    def _plain_backend(self) -> Tokenizer:
        """Copy without post-processor, because a post-processor can change the offsets of tokens."""
        return self._changed(lambda backend: setattr(backend, "post_processor", None)).backend

    def id_to_token(self, token: int) -> str:
        """Token as in the vocabulary; an empty string for unknown ids."""
        return self.backend.id_to_token(token) or ""

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of the special tokens, which `decode` skips."""
        return frozenset(i for i, token in self.backend.get_added_tokens_decoder().items() if token.special)

    def encode(self, texts: Sequence[str], target: bool = False) -> list[list[int]]:
        """Token ids of texts. `target`: the texts are translations, for which Marian has another model."""
        segmenter = self.segmenter
        if segmenter is None:
            return [item.ids for item in self._encode_batches(texts, self.backend.encode_batch_fast)]
        return self._encode_parts([self._split(text) for text in texts], lambda parts: segmenter.encode(parts, target))

    def encode_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[Span]]]:
        """Token ids and character spans. Spans exclude leading spaces; a part of a character has the span of the character."""
        rows = []
        if self.segmenter is not None:
            for text, ids in zip(texts, self.encode(texts), strict=True):
                spans, at = list[Span](), 0
                for place, part in enumerate(self._split(text)):
                    token = len(part) - len(part.lstrip()), len(part.rstrip())
                    own = [token] if place % 2 else self.segmenter.spans(part)
                    spans += [(at + start, at + end) for start, end in own]
                    at += len(part)
                rows.append((ids, spans))
            return rows
        for text, item in zip(texts, self._encode_batches(texts, self._plain_backend.encode_batch), strict=True):
            is_whitespace = None if self._whitespace_tokens is None else self._whitespace_tokens[item.ids]
            rows.append((item.ids, trim_spans(text, item.offsets, is_whitespace)))
        return rows

    def _split(self, text: str) -> list[str]:
        """Parts of a text: plain text at even places, special and other added tokens at odd places."""
        return [text] if self.split_special_tokens or not self._added_ids else self._added_pattern.split(text)

    @cached_property
    def _added_ids(self) -> dict[str, int]:
        """Ids of special and other added tokens."""
        return {token.content: number for number, token in self.backend.get_added_tokens_decoder().items()}

    @cached_property
    def _added_pattern(self) -> re.Pattern[str]:
        """Pattern with one group of special and other added tokens, with the spaces that a token includes. At the same
        place, the longest token matches."""
        tokens = sorted(self.backend.get_added_tokens_decoder().values(), key=lambda token: -len(token.content))
        spaces = [(r"\s*" * token.lstrip, r"\s*" * token.rstrip) for token in tokens]
        parts = (f"{a}{re.escape(one.content)}{b}" for one, (a, b) in zip(tokens, spaces, strict=True))
        return re.compile(f"({'|'.join(parts)})")

    def _encode_parts(
        self, rows: Sequence[Sequence[str]], encode: Callable[[list[str]], list[list[int]]]
    ) -> list[list[int]]:
        """Token ids of texts, each split into plain text at even places and added tokens at odd places."""
        found = iter(encode([part for row in rows for part in row[::2]]))
        return [
            [*next(found), *(i for part in row[1::2] for i in (self._added_id(part), *next(found)))] for row in rows
        ]

    def _added_id(self, part: str) -> int:
        """Id of an added token, possibly with the spaces around the token."""
        number = self.backend.token_to_id(part)
        return self.backend.token_to_id(part.strip()) or 0 if number is None else number

    def encode_words(self, sentences: Sequence[Sequence[str]]) -> list[tuple[list[int], list[int]]]:
        """Token ids of split words, and the word index of each token; a word without tokens becomes the unknown token.

        Byte-level tokenizers encode each word with a leading space."""
        words = list(dict.fromkeys(chain.from_iterable(sentences)))  # each distinct word is encoded once
        space = " " if self.token_format.is_byte_level else ""
        tokens = () if self.split_special_tokens else tuple(self._added_ids)  # no space before a special token
        texts = [word if tokens and word.startswith(tokens) else space + word.removeprefix(space) for word in words]
        ids_of = dict(zip(words, self.encode(texts), strict=True))
        unknown = self.special_id("unknown")
        for word in (word for word, ids in ids_of.items() if not ids):
            if unknown is None:
                raise DataError(f"The tokenizer produces no token for the word {word!r} and has no unknown token.")
            ids_of[word] = [unknown]
        return [
            (
                [token for word in sentence for token in ids_of[word]],
                [index for index, word in enumerate(sentence) for _ in ids_of[word]],
            )
            for sentence in sentences
        ]

    def encode_masked(self, texts: Sequence[str]) -> list[list[int]]:
        """Like `encode`, but the text of the mask token always is the mask token."""
        mask = self.special_id("mask")
        if mask is None or not self.split_special_tokens:
            return self.encode(texts)
        added = self.backend.get_added_tokens_decoder().get(mask)
        # the mask token may include the spaces before it
        spaces = r"\s*" if added is not None and added.lstrip else ""
        pattern = re.compile(f"{spaces}({re.escape(self.id_to_token(mask))})")
        return self._encode_parts([pattern.split(text) for text in texts], self.encode)

    def starts_word(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """(L,) mask of the tokens that start a word, for whole-word masking. Special tokens are separate words.

        Byte-level words start at a space, so punctuation such as a comma belongs to the preceding word."""
        row = np.asarray(ids, dtype=np.int64)
        starts = self._word_boundaries[row, 0]
        starts[1:] |= self._word_boundaries[row[:-1], 1]
        starts[:1] = True
        return starts

    @cached_property
    def _word_boundaries(self) -> np.ndarray:
        """(V, 2) mask of the tokens that start a word, and of the tokens after which a word starts."""
        return np.array([self._word_edges(token) for token in range(self._num_ids)], dtype=bool).reshape(-1, 2)

    def _word_edges(self, token: int) -> tuple[bool, bool]:
        """True if the token starts a word, and if a word starts after the token."""
        name, form = self.id_to_token(token), self.token_format
        if token in self.special_ids:
            return True, True
        if form is TokenFormat.WORDPIECE:
            return not name.startswith(self.word_mark), False
        if form is TokenFormat.WORD_SUFFIX:
            return False, name.endswith(self.word_mark)
        if form in (TokenFormat.OTHER, TokenFormat.PREFIXED_BYTES):
            return name.startswith(("Ġ", "▁")), False
        text = to_bytes(name).decode("ascii", "replace") if form is TokenFormat.BYTES else name
        return text[:1].isspace(), text[-1:].isspace()

    @cached_property
    def _whitespace_tokens(self) -> np.ndarray | None:
        """(V,) mask of the byte-level tokens that contain only whitespace; None for other formats."""
        if not self.token_format.is_byte_level:
            return None
        return np.array([not to_bytes(self.id_to_token(i)).strip() for i in range(self._num_ids)], dtype=bool)

    @property
    def _num_ids(self) -> int:
        """Maximum id plus 1; ids may be unused."""
        return max(self.backend.get_vocab().values(), default=-1) + 1

    def _encode_batches(self, texts: Sequence[str], encode: Callable[..., list[Encoding]]) -> Iterator[Encoding]:
        """Encodings in batches of at most ENCODE_BATCH texts and about MAX_BATCH_CHARS characters."""
        load: list[str] = []
        room = MAX_BATCH_CHARS
        for number, text in enumerate(texts, 1):
            load.append(text)
            room -= len(text)
            if room <= 0 or len(load) == ENCODE_BATCH or number == len(texts):
                try:
                    yield from encode(load, add_special_tokens=False)
                except TypeError as error:
                    raise DataError(LONE_SURROGATE) from error
                load, room = [], MAX_BATCH_CHARS

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        if self.pieces is not None:
            kept = ([self.id_to_token(token) for token in row if token not in self.special_ids] for row in ids)
            return [self.pieces.decode(row) for row in kept]
        return self.backend.decode_batch([list(row) for row in ids], skip_special_tokens=True)

    def display_tokens(self, ids: Sequence[int]) -> list[str]:
        """Tokens as readable text.

        Byte-level and character tokens show spaces as ␣; in other formats a token that continues a word starts with a dot."""
        for token in set(ids).difference(self._token_texts):
            self._token_texts[token] = self._token_text(token), *self._word_edges(token)
        tokens = [self._token_texts[token] for token in ids]
        if self.token_format in (TokenFormat.BYTES, TokenFormat.CHARACTERS):
            return [text for text, _, _ in tokens]
        shown, is_start = [], True
        for text, starts, ends in tokens:
            shown.append((text.strip() or "␣") if starts or is_start else "·" + text)
            is_start = ends
        return shown

    def _token_text(self, token: int) -> str:
        """Readable text of a token, without its mark."""
        name, form = self.id_to_token(token) or "?", self.token_format
        if token in self.special_ids:
            return name
        if form in (TokenFormat.BYTES, TokenFormat.CHARACTERS):
            return to_visible(to_bytes(name) if form is TokenFormat.BYTES else name.encode())
        if form is TokenFormat.WORD_SUFFIX:
            return name.removesuffix(self.word_mark)
        if form is TokenFormat.WORDPIECE:
            return name.removeprefix(self.word_mark)
        return self.backend.decode([token], skip_special_tokens=False)
