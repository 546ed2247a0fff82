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

from regard.processors.tokenizer.templates import Frame
from regard.processors.tokenizer.tokenizer import Role, Text

MARKS = START, DELIMITER, EXTRACT = ("_start_", "_delimiter_", "_classify_")
"""The special tokens of GPT-1's fine-tuning, as its authors call them."""


def encodes(config: Any) -> bool:
    """Whether the body looks both ways, and has a token that hides others."""
    return hasattr(config, "mask")


class Way(NamedTuple):
    """One row of tokens."""

    ids: list[int]
    cut: bool
    """whether something of the texts had to be left out"""
    second: int
    """where the second text begins; 0 where there is one"""


@dataclass(frozen=True)
class Marks:
    """The ids of the special tokens; nothing for one that a published tokenizer does not have."""

    start: tuple[int, ...]
    delimiter: tuple[int, ...]
    extract: tuple[int, ...]

    @classmethod
    def of(cls, text: Text, config: Any) -> Marks:
        if encodes(config):
            end = (config.end,)
            return cls((config.start,), end * between(config), end)
        ids = (text.id_of(mark) for mark in MARKS)
        return cls(*(() if number is None else (number,) for number in ids))

    def second(self, text: str) -> str:
        """The second of two texts; where no delimiter stands between them, a blank does."""
        return text if self.delimiter else f" {text}"

    def room(self, longest: int, texts: int) -> int:
        """How many tokens of so many texts a row of `longest` has place for."""
        around = len(self.start) + len(self.extract) + (len(self.delimiter) if texts > 1 else 0)
        return max(longest - around, 1)

    def way(self, parts: Sequence[Sequence[int]], longest: int) -> Way:
        """The marks are never left out."""
        room = self.room(longest, len(parts))
        kept = shortened(parts, room)
        cut = sum(map(len, parts)) > room
        if len(kept) == 1:
            return Way([*self.start, *kept[0], *self.extract], cut, 0)
        first = [*self.start, *kept[0], *self.delimiter]
        return Way([*first, *kept[1], *self.extract], cut, len(first))


def between(config: Any) -> int:
    """How many ends stand between two texts: Longformer, as RoBERTa, has two."""
    return int(getattr(config, "between", 1))


def shortened(parts: Sequence[Sequence[int]], room: int) -> list[list[int]]:
    """The same within a room: of two texts the longer loses first, and each in its middle, for beginnings and ends say
    most."""
    if sum(map(len, parts)) <= room:
        return [list(part) for part in parts]
    sizes = [room]
    if len(parts) > 1:
        small = min(min(map(len, parts)), room // 2)
        sizes = [small, room - small] if len(parts[0]) <= len(parts[1]) else [room - small, small]
    return [
        [*part[: size - size // 2], *part[len(part) - size // 2 :]] for part, size in zip(parts, sizes, strict=True)
    ]


ROLES: tuple[Role, ...] = ("pad", "start", "end", "mask")
"""Fields of an encoder's config that name special tokens, as a tokenizer calls their roles."""


def placed(config: Any, text: Text) -> Any:
    """An encoder's config with the special tokens of the tokenizer beside it."""
    if not encodes(config):
        return config
    found = {name: text.role(name) for name in ROLES}
    return replace(config, **{name: number for name, number in found.items() if number is not None})


def framed(text: Text, config: Any) -> Text:
    """The tokenizer of an encoder as others shall find it: with what this model has around a text and between two."""
    if not encodes(config):
        return text
    end = (config.end,)
    return text.framed(Frame((config.start,), end * between(config), end, min(config.types - 1, 1)))


def beside(
    rows: Sequence[np.ndarray], seconds: Sequence[int], marked: Sequence[int], config: Any
) -> dict[str, list[np.ndarray]]:
    """What an encoder wants to know of each token of these rows: which text it belongs to (`seconds`: where the second one
    begins, 0 where there is one) and whether all see it (`marked`: so many at the beginning)."""
    tables: dict[str, list[np.ndarray]] = {}
    if getattr(config, "types", 1) > 1:
        begins = [second or len(row) for row, second in zip(rows, seconds, strict=True)]
        tables["types"] = [np.arange(len(row)) >= begin for row, begin in zip(rows, begins, strict=True)]
    if hasattr(config, "windows"):
        tables["marked"] = [np.arange(len(row)) < count for row, count in zip(rows, marked, strict=True)]
    return tables


def typed(tables: Mapping[str, Tensor]) -> dict[str, Any]:
    """The same, padded or packed, as a batch holds it."""
    return {name: table.bool() if name == "marked" else table.long() for name, table in tables.items()}


def filler(config: Any) -> int:
    """The token that rows are filled up with."""
    return int(config.pad if encodes(config) else config.end)
