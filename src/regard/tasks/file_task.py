"""Base class of tasks on images and point clouds, whose files are read when a batch is built."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from regard.data.batching.samplers import BatchShape
from regard.errors import DataError, RegardError
from regard.tasks.base import Encoded, Task
from regard.tasks.protocol import ModelProtocol
from regard.types import Batch

INLINE_MARKER = 2**16 - 1
"""First value of a row with the contents of a file; rows with a path begin with a byte."""
LARGE_VALIDATION = 2000
"""Minimum number of validation samples for a log message before reading."""
EVAL_BATCH_SIZE = 64
"""Samples per batch at inference."""


class FileSampleTask(Task):
    generates = False
    has_length_limit = False
    has_text = False
    suffixes: ClassVar[tuple[str, ...]]
    """file extensions"""

    def split_key(self, sample: Any) -> str:
        """Label, file name (or row number of a table) and size, independent of the folder."""
        name = os.path.basename(sample.source) or str(sample.line)
        return f"{sample.label}\0{name}\0{num_bytes(sample)}"

    def fingerprint_texts(self, samples: Iterable[Any]) -> Iterator[str]:
        """Names, sizes and labels instead of the contents of thousands of files."""
        for sample in samples:
            yield f"{os.path.basename(sample.source)}\0{num_bytes(sample)}\0{sample.label}"

    def source_row(self, sample: Any) -> np.ndarray:
        """Path or contents of the file as integers for the token store."""
        return encode_source(sample)

    def row_encoding(self, processor: Any) -> tuple[int, str]:
        return 2**16, ""

    def lengths(self, encoded: Encoded) -> np.ndarray:
        return np.ones((len(encoded), 1), dtype=np.int64)

    def collate(self, encoded: Encoded, rows: Any, config: Any, shape: BatchShape | None = None) -> Batch:
        """In training, unreadable files are replaced by other files of the batch, with a warning."""
        rows = np.asarray(rows)
        try:
            return self.build_batch(encoded, rows, config)
        except DataError:
            if rows.ndim == 1:
                raise
            return self.build_batch(encoded, self._replace_unreadable(encoded, rows, config), config)

    def eval_batch_size(self, context: Any) -> int:
        """Samples per batch at inference."""
        raise NotImplementedError

    def build_batch(self, encoded: Encoded, rows: np.ndarray, config: Any) -> Batch:
        """Batch of sample indices (B,), or in training of (B, 2) with a random seed for each sample."""
        raise NotImplementedError

    def _replace_unreadable(self, encoded: Encoded, rows: np.ndarray, config: Any) -> np.ndarray:
        fine = []
        for place in range(len(rows)):
            try:
                self.build_batch(encoded, rows[place : place + 1], config)
                fine.append(place)
            except DataError as error:
                warn_once(f"  warning: skipped: {error}")
                wrong = error
        if 2 * len(fine) < len(rows):
            advice = f"List all unreadable {self.unit} with 'regard check {self.name}'."
            raise DataError(
                f"{len(rows) - len(fine)} of {len(rows)} {self.unit} cannot be read: {wrong}", advice=advice
            )
        chosen = [fine[place % len(fine)] if place not in fine else place for place in range(len(rows))]
        return np.stack([rows[chosen, 0], rows[:, 1]], axis=1)

    def require_head(self, model: ModelProtocol) -> Any:
        if model.head is None:
            raise RegardError(
                f"{model.spec.source or 'This model'} has no head for task '{self.name}'. Fine-tune the model first: "
                f"regard train {self.name} --data FILES --model {model.spec.source or 'FOLDER'} --out RUN"
            )
        return model.head

    def validate_data(self, train: Encoded, valid: Encoded, config: Any, log: Callable[[str], None]) -> None:
        """Read all validation samples before the first step, so that unreadable files do not stop a later validation."""
        if len(valid) >= LARGE_VALIDATION:
            log(f"  Reading {len(valid):,} validation {self.unit} …")
        for _ in self.eval_batches(valid, config, EVAL_BATCH_SIZE):
            pass


def sample_ids(rows: np.ndarray) -> np.ndarray:
    """Sample indices of rows (B,) or (B, 2)."""
    return rows[:, 0] if rows.ndim == 2 else rows


_warned: set[str] = set()


def warn_once(line: str) -> None:
    """Print a warning once per process."""
    if line not in _warned:
        _warned.add(line)
        print(line, file=sys.stderr, flush=True)


def sample_location(sample: Any) -> str:
    """File or table row of a sample, for messages."""
    return sample.source or f"{sample.path}, row {sample.line}"


def reservoir_sample(samples: Iterable[Any], max_samples: int, seed: int = 0) -> list[Any]:
    """Uniform random choice of at most `max_samples` samples from a stream."""
    random, source = np.random.default_rng(seed), iter(samples)
    kept = list(islice(source, max_samples))
    for seen, sample in enumerate(source, max_samples + 1):
        place = int(random.integers(seen))
        if place < max_samples:
            kept[place] = sample
    return kept


def encode_source(sample: Any) -> np.ndarray:
    """Path or contents of a file as integers for the token store."""
    if sample.content:
        # uint16 as in the store: int64 would need four times the memory
        row = np.empty(1 + len(sample.content), np.uint16)
        row[0], row[1:] = INLINE_MARKER, np.frombuffer(sample.content, dtype=np.uint8)
        return row
    return np.frombuffer(os.fsencode(sample.source), dtype=np.uint8).astype(np.uint16)


def decode_source(row: np.ndarray) -> str | bytes:
    """Path or contents of a file from a row of the token store."""
    if len(row) and row[0] == INLINE_MARKER:
        return row[1:].astype(np.uint8).tobytes()
    return os.fsdecode(row.astype(np.uint8).tobytes())


def num_bytes(sample: Any) -> int:
    if sample.content:
        return len(sample.content)
    try:
        return os.path.getsize(sample.source)
    except OSError:
        return -1
