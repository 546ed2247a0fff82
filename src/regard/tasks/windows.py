"""Token-level heads on encoders, shared by `tag` and `qa`. Long texts are split into overlapping windows.

A row is one window. The overlap provides context on both sides of every token in at least one window."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from regard.data.batching.samplers import BatchShape
from regard.tasks.base import (
    Encoded,
    EncodingContext,
    ModelProtocol,
    Objective,
    int_rows,
    map_rows,
    require_head,
)
from regard.tasks.modality.text import collate_rows
from regard.types import Batch

OVERLAP = 128
"""Maximum overlap of consecutive windows in tokens."""


def windows(length: int, max_length: int, stride: int = 0) -> list[tuple[int, int]]:
    """Windows (start, end) of at most `max_length` tokens that cover `length` tokens, each `stride` after the previous one
    (0: overlap of a quarter, at most OVERLAP); the last window is moved back rather than shortened."""
    step = min(stride, max_length) or max(max_length - min(OVERLAP, max_length // 4), 1)
    if length <= max_length:
        return [(0, length)]
    firsts = [*range(0, length - max_length, step), length - max_length]
    return [(first, first + max_length) for first in firsts]


class TokenWindow(NamedTuple):
    """One row."""

    sample_index: int
    """index of the sample in its chunk of encoded samples"""
    start: int
    """first word or token of the sample in this window"""
    ids: Sequence[int]
    second_start: int
    """position of the second text; 0 if there is only one text"""
    label: Sequence[int]


class WindowObjective(Objective):
    """Fields of a row: token ids of a window, position of the second text, sample index and window start, labels."""

    fields = ("text", "second", "owner", "label")
    count_fields = ("second", "owner", "label")
    truncation = "in the middle"

    def adapt_config(self, config: Any) -> Any:
        return replace(config, pooler=False) if config.traits.optional_pooler else config

    def collate(self, encoded: Encoded, rows: Iterable[int], config: Any, shape: BatchShape | None = None) -> Batch:
        rows = list(rows)
        ids = [encoded.fields["text"][i] for i in rows]
        seconds = [int(encoded.fields["second"][i][0]) for i in rows]
        # global attention for the question without the separators after it, or for the first token if there is no question
        num_global = [second - config.traits.separators if second else 1 for second in seconds]
        batch = collate_rows(ids, seconds, num_global, config, shape)
        labels = self._collate_labels([encoded.fields["label"][i] for i in rows], shape)
        # question lengths vary in packed rows
        most = max(num_global) if shape is None else None if any(seconds) else shape.num_documents
        return replace(batch, labels=labels, text=replace(batch.text, max_global_tokens=most))

    def _collate_labels(self, labels: Sequence[np.ndarray], shape: BatchShape | None) -> Tensor:
        """Labels of rows as one tensor."""
        raise NotImplementedError

    def logits(self, model: ModelProtocol, batch: Batch) -> Tensor:
        return require_head(model)(model.body(batch).sequence)

    def token_logits(self, model: ModelProtocol, encoded: Encoded) -> list[np.ndarray]:
        """Logits of all tokens of each row, (length, outputs) in float64."""
        found = map_rows(model, encoded, lambda batch: self.logits(model, batch).double().cpu().numpy())
        lengths = encoded.lengths()
        return [values[: lengths[row, 0]] for row, values in enumerate(found)]


def encode_windows(samples: Sequence[Any], rows: Sequence[TokenWindow], context: EncodingContext) -> Encoded:
    fields = {
        "text": int_rows([row.ids for row in rows]),
        "second": int_rows([row.second_start for row in rows]),
        "owner": int_rows([(row.sample_index, row.start) for row in rows]),
        "label": int_rows([row.label for row in rows]),
    }
    return Encoded(list(samples), fields, [], context)


def window_start(encoded: Encoded, row: int) -> int:
    """First word or token of the sample in this row."""
    return int(encoded.fields["owner"][row][1])


def rows_by_sample(encoded: Encoded) -> list[list[int]]:
    """Row indices of each sample."""
    rows: list[list[int]] = [[] for _ in encoded.samples]
    for row, owner in enumerate(encoded.fields["owner"]):
        rows[int(owner[0])].append(row)
    return rows


def first_samples(encoded: Encoded, max_samples: int | None) -> Encoded:
    """The first `max_samples` samples with all their rows."""
    if max_samples is None or max_samples >= len(encoded.samples):
        return encoded
    return encoded.select([row for rows in rows_by_sample(encoded)[:max_samples] for row in rows], max_samples)
