"""What tag and span share: an encoder is asked about single tokens, and long texts are read in several windows.

A row is one window; the windows of a sample overlap, so that every token has something on both sides in one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.batching.samplers import Plan, Shape
from regard.data.settings import Data
from regard.errors import RegardError
from regard.processors.padding import pack, pad
from regard.processors.tokenizer.tokenizer import Text
from regard.tasks.base import Encoded, Side, Task, lengths_of
from regard.tasks.protocol import Asked
from regard.tasks.special_tokens import beside, between, filler, framed, typed
from regard.tasks.text_heads import BUDGET, NO_TEXT, fitting, made_text
from regard.types import Batch

OVERLAP = 128
"""Tokens that a window shares with the next, where a window has so many to spare."""


def windows(length: int, room: int, stride: int = 0) -> list[tuple[int, int]]:
    """Stretches of at most `room` that cover so many tokens, each `stride` after the one before (0: they overlap by a
    quarter, but no more than OVERLAP); a last one that would be short is moved back."""
    step = min(stride, room) or max(room - min(OVERLAP, room // 4), 1)
    if length <= room:
        return [(0, length)]
    firsts = [*range(0, length - room, step), length - room]
    return [(first, first + room) for first in firsts]


class Window(NamedTuple):
    """One row."""

    owner: int
    """the sample that it is of, counted in the part that was encoded with it"""
    first: int
    """the word or token of the sample that it begins with"""
    ids: Sequence[int]
    second: int
    """where its second text begins; 0 where it has one text"""
    label: Sequence[int]


class Windowed(Task):
    """Rows of ids: a window, where its second text begins, which sample it is of and what it begins with, what is asked."""

    sides = ("text", "second", "owner", "label")
    counts = ("second", "owner", "label")
    model = "bert-mini"
    generates, cuts = False, True

    def words(self, sample: Any) -> Iterable[str]:
        """The texts of a sample."""
        raise NotImplementedError

    def right(self, sample: Any) -> str:
        """The right answer, as a text by which data is known again."""
        raise NotImplementedError

    def texts(self, samples: Iterable[Any]) -> Iterator[str]:
        for sample in samples:
            yield from self.words(sample)
            yield f"{NO_TEXT}{self.right(sample)}"

    def tokenizer(self, texts: Iterable[str], data: Data) -> Text:
        return made_text((text for text in texts if not text.startswith(NO_TEXT)), data)

    def fit(self, config: Any, reader: Text) -> Any:
        return replace(config, vocabulary=reader.size, **fitting(reader))

    def bodied(self, config: Any) -> Any:
        return replace(config, pooler=False) if hasattr(config, "pooler") else config

    def dressed(self, text: Text, config: Any) -> Text:
        return framed(text, config)

    def count(self, encoded: Encoded) -> int:
        """Samples, not windows; they are numbered anew in each part that was encoded."""
        owners = np.array([int(owner[0]) for owner in encoded.sides["owner"]], dtype=np.int64)
        return 1 + int((np.diff(owners) != 0).sum()) if len(owners) else 0

    def lengths(self, encoded: Encoded) -> np.ndarray:
        return lengths_of(encoded.sides["text"])[:, None]

    def encoded(self, samples: Sequence[Any], rows: Sequence[Window]) -> Encoded:
        sides: dict[str, Side] = {
            "text": [np.array(row.ids, dtype=np.int32) for row in rows],
            "second": [np.array([row.second], dtype=np.int32) for row in rows],
            "owner": [np.array([row.owner, row.first], dtype=np.int32) for row in rows],
            "label": [np.array(row.label, dtype=np.int32) for row in rows],
        }
        return Encoded(list(samples), sides, [])

    def labels_of(self, labels: Sequence[np.ndarray], lengths: Sequence[int], shape: Shape | None) -> Tensor:
        """What is asked of rows of these lengths, as one tensor."""
        raise NotImplementedError

    def collate(self, encoded: Encoded, rows: Iterable[int], config: Any, shape: Shape | None = None) -> Batch:
        rows = list(rows)
        ids = [encoded.sides["text"][i] for i in rows]
        labels = self.labels_of([encoded.sides["label"][i] for i in rows], list(map(len, ids)), shape)
        seconds = [int(encoded.sides["second"][i][0]) for i in rows]
        # a question sees all and is seen by all, without the ends behind it; where there is none, the first token does
        marked = [second - between(config) if second else 1 for second in seconds]
        told, asks = beside(ids, seconds, marked, config), any(seconds)
        if shape is None:
            x, mask = pad(ids, filler(config))
            tables = {name: pad(table, 0)[0] for name, table in told.items()}
            return Batch(x, mask, labels=labels, most_marked=max(marked), **typed(tables))
        sizes = shape.rooms[0], shape.longest[0], shape.documents
        x, offsets = pack(ids, *sizes, filler(config))
        tables = {name: pack(table, *sizes)[0] for name, table in told.items()}
        most = None if asks else shape.documents  # questions are of many lengths
        return Batch(x, labels=labels, offsets=offsets, most_marked=most, **typed(tables))

    def judged(self, model: Asked, encoded: Encoded) -> list[np.ndarray]:
        """The logits of every token of each row, (length, outputs) in float64."""
        found: list[np.ndarray] = [np.zeros(0)] * len(encoded)
        if not len(encoded):
            return found
        lengths = self.lengths(encoded)
        plan = Plan(lengths, max(BUDGET, int(lengths.max())), seed=0)
        with torch.inference_mode():
            for rows in plan.sequential():
                batch = self.collate(encoded, rows, model.config).to(model.device)
                logits = self.logits(model, batch).double().cpu().numpy()
                for row, values in zip(rows.tolist(), logits, strict=True):
                    found[row] = values[: lengths[row, 0]]
        return found

    def logits(self, model: Asked, batch: Batch) -> Tensor:
        return self.headed(model)(model.body(batch).sequence)

    def headed(self, model: Asked) -> Any:
        if model.head is None:
            raise RegardError(
                f"{model.identity.source or 'this model'} has not learnt to {self.name}. Train it: regard train {self.name} "
                f"--data FILE --model {model.identity.source or 'FOLDER'} --out RUN"
            )
        return model.head


def begins(encoded: Encoded, row: int) -> int:
    """The word or token of its sample that a row begins with."""
    return int(encoded.sides["owner"][row][1])


def rows_of(encoded: Encoded, most: int | None) -> list[list[int]]:
    """The numbers of the rows of each sample, or of the first `most`."""
    count = len(encoded.samples) if most is None else min(most, len(encoded.samples))
    found: list[list[int]] = [[] for _ in range(count)]
    for row, owner in enumerate(encoded.sides["owner"]):
        if int(owner[0]) < count:
            found[int(owner[0])].append(row)
    return found


def first_rows(encoded: Encoded, most: int | None) -> Encoded:
    """The first so many samples with all their rows."""
    if most is None or most >= len(encoded.samples):
        return encoded
    kept = [row for rows in rows_of(encoded, most) for row in rows]
    sides: dict[str, Side] = {name: [side[row] for row in kept] for name, side in encoded.sides.items()}
    return Encoded(encoded.samples[:most], sides, [])
