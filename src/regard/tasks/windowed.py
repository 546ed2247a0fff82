"""Token-level heads on encoders, shared by `tag` and `qa`. Long texts are split into overlapping windows.

A row is one window. The overlap provides context on both sides of every token in at least one window."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.batching.samplers import BatchShape, LengthBucketed
from regard.data.settings import DataSettings
from regard.errors import RegardError
from regard.processors.padding import pack, pad
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.tasks.base import Encoded, FieldRows, Task, row_lengths
from regard.tasks.protocol import ModelProtocol
from regard.tasks.special_tokens import as_batch_fields, pad_id, token_features, with_template
from regard.tasks.text_heads import BATCH_TOKENS, LABEL_PREFIX, build_tokenizer, special_token_ids
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


class TokenHeadTask(Task):
    """Fields of a row: token ids of a window, position of the second text, sample index and window start, labels."""

    fields = ("text", "second", "owner", "label")
    count_fields = ("second", "owner", "label")
    default_model = "bert-mini"
    generates, truncates = False, True

    def sample_texts(self, sample: Any) -> Iterable[str]:
        raise NotImplementedError

    def target_text(self, sample: Any) -> str:
        """Label as text, for the fingerprint of the data."""
        raise NotImplementedError

    def fingerprint_texts(self, samples: Iterable[Any]) -> Iterator[str]:
        for sample in samples:
            yield from self.sample_texts(sample)
            yield f"{LABEL_PREFIX}{self.target_text(sample)}"

    def train_tokenizer(self, texts: Iterable[str], data: DataSettings) -> TextTokenizer:
        return build_tokenizer((text for text in texts if not text.startswith(LABEL_PREFIX)), data)

    def fit_config(self, config: Any, processor: TextTokenizer) -> Any:
        return replace(config, vocab_size=processor.size, **special_token_ids(processor))

    def adapt_config(self, config: Any) -> Any:
        return replace(config, pooler=False) if config.traits.optional_pooler else config

    def export_tokenizer(self, text: TextTokenizer, config: Any) -> TextTokenizer:
        return with_template(text, config)

    def num_samples(self, encoded: Encoded) -> int:
        """Number of samples, not windows. Sample indices restart in each encoded chunk."""
        owners = np.array([int(owner[0]) for owner in encoded.fields["owner"]], dtype=np.int64)
        return 1 + int((np.diff(owners) != 0).sum()) if len(owners) else 0

    def lengths(self, encoded: Encoded) -> np.ndarray:
        return row_lengths(encoded.fields["text"])[:, None]

    def build_encoded(self, samples: Sequence[Any], rows: Sequence[TokenWindow]) -> Encoded:
        sides: dict[str, FieldRows] = {
            "text": [np.array(row.ids, dtype=np.int32) for row in rows],
            "second": [np.array([row.second_start], dtype=np.int32) for row in rows],
            "owner": [np.array([row.sample_index, row.start], dtype=np.int32) for row in rows],
            "label": [np.array(row.label, dtype=np.int32) for row in rows],
        }
        return Encoded(list(samples), sides, [])

    def collate_labels(self, labels: Sequence[np.ndarray], lengths: Sequence[int], shape: BatchShape | None) -> Tensor:
        """Labels of rows with these lengths as one tensor."""
        raise NotImplementedError

    def collate(self, encoded: Encoded, rows: Iterable[int], config: Any, shape: BatchShape | None = None) -> Batch:
        rows = list(rows)
        ids = [encoded.fields["text"][i] for i in rows]
        labels = self.collate_labels([encoded.fields["label"][i] for i in rows], list(map(len, ids)), shape)
        seconds = [int(encoded.fields["second"][i][0]) for i in rows]
        # global attention for the question without the separators after it, or for the first token if there is no question
        marked = [second - config.traits.separators if second else 1 for second in seconds]
        told, asks = token_features(ids, seconds, marked, config), any(seconds)
        if shape is None:
            x, mask = pad(ids, pad_id(config))
            tables = {name: pad(table, 0)[0] for name, table in told.items()}
            return Batch(x, mask, labels=labels, max_global_tokens=max(marked), **as_batch_fields(tables))
        sizes = shape.row_lengths[0], shape.max_lengths[0], shape.num_documents
        x, offsets = pack(ids, *sizes, pad_id(config))
        tables = {name: pack(table, *sizes)[0] for name, table in told.items()}
        most = None if asks else shape.num_documents  # question lengths vary
        return Batch(x, labels=labels, offsets=offsets, max_global_tokens=most, **as_batch_fields(tables))

    def token_logits(self, model: ModelProtocol, encoded: Encoded) -> list[np.ndarray]:
        """Logits of all tokens of each row, (length, outputs) in float64."""
        found: list[np.ndarray] = [np.zeros(0)] * len(encoded)
        if not len(encoded):
            return found
        lengths = self.lengths(encoded)
        plan = LengthBucketed(lengths, max(BATCH_TOKENS, int(lengths.max())), seed=0)
        with torch.inference_mode():
            for rows in plan.sequential():
                batch = self.collate(encoded, rows, model.config).to(model.device)
                logits = self.logits(model, batch).double().cpu().numpy()
                for row, values in zip(rows.tolist(), logits, strict=True):
                    found[row] = values[: lengths[row, 0]]
        return found

    def logits(self, model: ModelProtocol, batch: Batch) -> Tensor:
        return self.require_head(model)(model.body(batch).sequence)

    def require_head(self, model: ModelProtocol) -> Any:
        if model.head is None:
            raise RegardError(
                f"{model.spec.source or 'This model'} has no head for task '{self.name}'. Fine-tune the model first: "
                f"regard train {self.name} --data FILE --model {model.spec.source or 'FOLDER'} --out RUN"
            )
        return model.head


def window_start(encoded: Encoded, row: int) -> int:
    """First word or token of the sample in this row."""
    return int(encoded.fields["owner"][row][1])


def rows_by_sample(encoded: Encoded, max_samples: int | None) -> list[list[int]]:
    """Row indices of each sample, or of the first `max_samples` samples."""
    count = len(encoded.samples) if max_samples is None else min(max_samples, len(encoded.samples))
    found: list[list[int]] = [[] for _ in range(count)]
    for row, owner in enumerate(encoded.fields["owner"]):
        if int(owner[0]) < count:
            found[int(owner[0])].append(row)
    return found


def first_sample_rows(encoded: Encoded, max_samples: int | None) -> Encoded:
    """The first `max_samples` samples with all their rows."""
    if max_samples is None or max_samples >= len(encoded.samples):
        return encoded
    kept = [row for rows in rows_by_sample(encoded, max_samples) for row in rows]
    sides: dict[str, FieldRows] = {name: [side[row] for row in kept] for name, side in encoded.fields.items()}
    return Encoded(encoded.samples[:max_samples], sides, [])
