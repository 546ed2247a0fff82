"""How texts are written as one row of tokens: what stands before them, between two of them, and after them.

Decoders read `[start] A [delimiter] B [extract]` and are asked at the last token, as GPT-1 was fine-tuned; encoders read
`[CLS] A [SEP] B [SEP]` and are asked at the first. Where a text is too long, its middle is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from regard.processors.tokenizer.templates import TokenTemplate
from regard.processors.tokenizer.tokenizer import Role, TextTokenizer

SPECIAL_TOKENS = START, DELIMITER, EXTRACT = ("_start_", "_delimiter_", "_classify_")
"""The special tokens of GPT-1's fine-tuning, as its authors call them."""


def is_encoder(config: Any) -> bool:
    """Whether the body looks both ways, and has a token that hides others."""
    return hasattr(config, "mask_id")


class TokenSequence(NamedTuple):
    """One row of tokens."""

    ids: list[int]
    truncated: bool
    """whether something of the texts had to be left out"""
    second_start: int
    """where the second text begins; 0 where there is one"""


@dataclass(frozen=True)
class SpecialTokens:
    """The ids of the special tokens; nothing for one that a published tokenizer does not have."""

    start: tuple[int, ...]
    delimiter: tuple[int, ...]
    extract: tuple[int, ...]

    @classmethod
    def from_tokenizer(cls, text: TextTokenizer, config: Any) -> SpecialTokens:
        if is_encoder(config):
            end = (config.eos_id,)
            return cls((config.bos_id,), end * num_separators(config), end)
        ids = (text.token_to_id(mark) for mark in SPECIAL_TOKENS)
        return cls(*(() if number is None else (number,) for number in ids))

    def second_text(self, text: str) -> str:
        """The second of two texts; where no delimiter stands between them, a blank does."""
        return text if self.delimiter else f" {text}"

    def max_text_tokens(self, max_length: int, texts: int) -> int:
        """How many tokens of so many texts a row of `longest` has place for."""
        around = len(self.start) + len(self.extract) + (len(self.delimiter) if texts > 1 else 0)
        return max(max_length - around, 1)

    def build_sequence(self, parts: Sequence[Sequence[int]], max_length: int) -> TokenSequence:
        """The marks are never left out."""
        room = self.max_text_tokens(max_length, len(parts))
        kept = truncate_middle(parts, room)
        cut = sum(map(len, parts)) > room
        if len(kept) == 1:
            return TokenSequence([*self.start, *kept[0], *self.extract], cut, 0)
        first = [*self.start, *kept[0], *self.delimiter]
        return TokenSequence([*first, *kept[1], *self.extract], cut, len(first))


def num_separators(config: Any) -> int:
    """How many ends stand between two texts: Longformer, as RoBERTa, has two."""
    return int(getattr(config, "between", 1))


def truncate_middle(parts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
    """The same within a room: of two texts the longer loses first, and each in its middle, for beginnings and ends say
    most."""
    if sum(map(len, parts)) <= max_tokens:
        return [list(part) for part in parts]
    sizes = [max_tokens]
    if len(parts) > 1:
        small = min(min(map(len, parts)), max_tokens // 2)
        sizes = [small, max_tokens - small] if len(parts[0]) <= len(parts[1]) else [max_tokens - small, small]
    return [
        [*part[: size - size // 2], *part[len(part) - size // 2 :]] for part, size in zip(parts, sizes, strict=True)
    ]


SPECIAL_ID_FIELDS: dict[str, Role] = {"pad_id": "pad", "bos_id": "start", "eos_id": "end", "mask_id": "mask"}
"""Config fields of special token ids, and the role of each token in the tokenizer."""


def with_special_ids(config: Any, text: TextTokenizer) -> Any:
    """An encoder's config with the special tokens of the tokenizer beside it."""
    if not is_encoder(config):
        return config
    found = {name: text.special_id(role) for name, role in SPECIAL_ID_FIELDS.items()}
    return replace(config, **{name: number for name, number in found.items() if number is not None})


def with_template(text: TextTokenizer, config: Any) -> TextTokenizer:
    """The tokenizer of an encoder as others shall find it: with what this model has around a text and between two."""
    if not is_encoder(config):
        return text
    end = (config.eos_id,)
    return text.with_template(
        TokenTemplate((config.bos_id,), end * num_separators(config), end, min(config.type_vocab_size - 1, 1))
    )


def token_features(
    rows: Sequence[np.ndarray], second_starts: Sequence[int], num_global: Sequence[int], config: Any
) -> dict[str, list[np.ndarray]]:
    """What an encoder wants to know of each token of these rows: which text it belongs to (`seconds`: where the second one
    begins, 0 where there is one) and whether all see it (`marked`: so many at the beginning)."""
    tables: dict[str, list[np.ndarray]] = {}
    if getattr(config, "type_vocab_size", 1) > 1:
        begins = [second or len(row) for row, second in zip(rows, second_starts, strict=True)]
        tables["token_types"] = [np.arange(len(row)) >= begin for row, begin in zip(rows, begins, strict=True)]
    if hasattr(config, "attention_window"):
        tables["global_tokens"] = [np.arange(len(row)) < count for row, count in zip(rows, num_global, strict=True)]
    return tables


def as_batch_fields(tables: Mapping[str, Tensor]) -> dict[str, Any]:
    """The same, padded or packed, as a batch holds it."""
    return {name: table.bool() if name == "global_tokens" else table.long() for name, table in tables.items()}


def pad_id(config: Any) -> int:
    """The token that rows are filled up with."""
    return int(config.pad_id if is_encoder(config) else config.eos_id)
