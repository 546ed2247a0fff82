"""Special tokens around one text or two, and truncation.

Decoders read `[start] A [delimiter] B [extract]` and classify the last token, as in the fine-tuning of GPT-1; encoders read
`[CLS] A [SEP] B [SEP]` and classify the first token. Long texts are truncated in the middle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from regard.processors.tokenizer.tokenizer import Role, TextTokenizer, TokenTemplate

SPECIAL_TOKENS = START, DELIMITER, EXTRACT = ("_start_", "_delimiter_", "_classify_")
"""Special tokens of GPT-1 fine-tuning, with the names of the paper's code."""


class TokenSequence(NamedTuple):
    """Token ids of one text or two with special tokens."""

    ids: list[int]
    truncated: bool
    """True if tokens of the texts were removed"""
    second_start: int
    """position of the first token of the second text; 0 if there is only one text"""


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of the special tokens; empty for special tokens missing in the tokenizer of a checkpoint."""

    start: tuple[int, ...]
    delimiter: tuple[int, ...]
    extract: tuple[int, ...]

    @classmethod
    def from_tokenizer(cls, text: TextTokenizer, config: Any) -> SpecialTokens:
        if config.traits.is_encoder:
            end = (config.eos_id,)
            return cls((config.bos_id,), end * config.traits.separators, end)
        ids = (text.token_to_id(mark) for mark in SPECIAL_TOKENS)
        return cls(*(() if number is None else (number,) for number in ids))

    def second_text(self, text: str) -> str:
        """The second of two texts, with a leading space if the tokenizer has no delimiter."""
        return text if self.delimiter else f" {text}"

    def max_text_tokens(self, max_length: int, texts: int) -> int:
        """Maximum tokens of the texts in a row of `max_length` tokens with special tokens."""
        around = len(self.start) + len(self.extract) + (len(self.delimiter) if texts > 1 else 0)
        return max(max_length - around, 1)

    def build_sequence(self, parts: Sequence[Sequence[int]], max_length: int) -> TokenSequence:
        """Concatenate texts and special tokens. Only the texts are truncated."""
        room = self.max_text_tokens(max_length, len(parts))
        kept = truncate_middle(parts, room)
        cut = sum(map(len, parts)) > room
        if len(kept) == 1:
            return TokenSequence([*self.start, *kept[0], *self.extract], cut, 0)
        first = [*self.start, *kept[0], *self.delimiter]
        return TokenSequence([*first, *kept[1], *self.extract], cut, len(first))


def truncate_middle(parts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
    """Texts truncated to `max_tokens` in total. The longer of two texts is truncated first, each in the middle, because the
    beginning and end of a text are the most informative."""
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
    """The config of an encoder with the special token ids of the tokenizer."""
    if not config.traits.is_encoder:
        return config
    found = {name: text.special_id(role) for name, role in SPECIAL_ID_FIELDS.items()}
    return replace(config, **{name: number for name, number in found.items() if number is not None})


def with_template(text: TextTokenizer, config: Any) -> TextTokenizer:
    """Tokenizer of an encoder with the special tokens of the model as post-processor, for export."""
    if not config.traits.is_encoder:
        return text
    end = (config.eos_id,)
    return text.with_template(
        TokenTemplate((config.bos_id,), end * config.traits.separators, end, min(config.traits.token_types - 1, 1))
    )


def token_features(
    rows: Sequence[np.ndarray], second_starts: Sequence[int], num_global: Sequence[int], config: Any
) -> dict[str, list[np.ndarray]]:
    """Additional encoder inputs per token, by name: token types from the start of the second text (`second_starts`, 0: one
    text), and global attention for the first `num_global` tokens."""
    tables: dict[str, list[np.ndarray]] = {}
    if config.traits.token_types > 1:
        begins = [second or len(row) for row, second in zip(rows, second_starts, strict=True)]
        tables["token_types"] = [np.arange(len(row)) >= begin for row, begin in zip(rows, begins, strict=True)]
    if config.traits.global_tokens:
        tables["global_tokens"] = [np.arange(len(row)) < count for row, count in zip(rows, num_global, strict=True)]
    return tables


def as_batch_fields(tables: Mapping[str, Tensor]) -> dict[str, Any]:
    """The padded or packed features with the dtypes of `Batch`."""
    return {name: table.bool() if name == "global_tokens" else table.long() for name, table in tables.items()}


def pad_id(config: Any) -> int:
    """Id of the padding token."""
    return int(config.pad_id if config.traits.is_encoder else config.eos_id)
