"""What tasks share whose samples are files that are opened only when a batch is made of them: pictures and clouds."""

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
"""Stands before the bytes of a file that lies in a table; a path begins with a letter of its own."""
LARGE_VALIDATION = 2000
"""Validation samples from which it is said that they are looked through."""
EVAL_BATCH_SIZE = 64
"""Samples that are looked at together when they are answered."""


class FileSampleTask(Task):
    generates = False
    has_length_limit = False
    has_text = False
    suffixes: ClassVar[tuple[str, ...]]
    """of its files"""

    def split_key(self, sample: Any) -> str:
        """Its name and size, wherever it lies; what lies in a table and has no name is known by its row."""
        name = os.path.basename(sample.source) or str(sample.line)
        return f"{sample.label}\0{name}\0{num_bytes(sample)}"

    def fingerprint_texts(self, samples: Iterable[Any]) -> Iterator[str]:
        """Names, sizes and classes: thousands of files are not read to know them again."""
        for sample in samples:
            yield f"{os.path.basename(sample.source)}\0{num_bytes(sample)}\0{sample.label}"

    def source_row(self, sample: Any) -> np.ndarray:
        """Where its file is to be found, as numbers that a store can hold."""
        return encode_source(sample)

    def row_encoding(self, processor: Any) -> tuple[int, str]:
        return 2**16, ""

    def lengths(self, encoded: Encoded) -> np.ndarray:
        return np.ones((len(encoded), 1), dtype=np.int64)

    def collate(self, encoded: Encoded, rows: Any, config: Any, shape: BatchShape | None = None) -> Batch:
        """A file that cannot be read does not end a training: another one of the batch stands for it, and it is said."""
        rows = np.asarray(rows)
        try:
            return self.build_batch(encoded, rows, config)
        except DataError:
            if rows.ndim == 1:
                raise
            return self.build_batch(encoded, self._replace_unreadable(encoded, rows, config), config)

    def eval_batch_size(self, context: Any) -> int:
        """How many are looked at together when they are answered."""
        raise NotImplementedError

    def build_batch(self, encoded: Encoded, rows: np.ndarray, config: Any) -> Batch:
        """The batch of these rows: (B,) numbers of samples, or (B, 2) with a number of chance beside each to learn from."""
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
        """Validation samples are all read once before the first step, so that none stops it later; most are kept."""
        if len(valid) >= LARGE_VALIDATION:
            log(f"  Reading {len(valid):,} validation {self.unit} …")
        for _ in self.eval_batches(valid, config, EVAL_BATCH_SIZE):
            pass


def sample_ids(rows: np.ndarray) -> np.ndarray:
    """The numbers of the samples, be there chance beside them or not."""
    return rows[:, 0] if rows.ndim == 2 else rows


_warned: set[str] = set()


def warn_once(line: str) -> None:
    """Said once by each process that meets it."""
    if line not in _warned:
        _warned.add(line)
        print(line, file=sys.stderr, flush=True)


def sample_location(sample: Any) -> str:
    """What a person finds it by."""
    return sample.source or f"{sample.path}, row {sample.line}"


def reservoir_sample(samples: Iterable[Any], max_samples: int, seed: int = 0) -> list[Any]:
    """At most so many of the samples, each with the same chance, however many there are."""
    random, source = np.random.default_rng(seed), iter(samples)
    kept = list(islice(source, max_samples))
    for seen, sample in enumerate(source, max_samples + 1):
        place = int(random.integers(seen))
        if place < max_samples:
            kept[place] = sample
    return kept


def encode_source(sample: Any) -> np.ndarray:
    """Where a file is to be found, as numbers that a store can hold: the bytes of its path, or its own."""
    if sample.content:
        # as a store has them: eight bytes for one would fill the memory
        row = np.empty(1 + len(sample.content), np.uint16)
        row[0], row[1:] = INLINE_MARKER, np.frombuffer(sample.content, dtype=np.uint8)
        return row
    return np.frombuffer(os.fsencode(sample.source), dtype=np.uint8).astype(np.uint16)


def decode_source(row: np.ndarray) -> str | bytes:
    """The reverse."""
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
