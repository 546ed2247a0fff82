"""What tasks share whose samples are files that are opened only when a batch is made of them: pictures and clouds."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from regard.data.batching.samplers import Shape
from regard.errors import DataError, RegardError
from regard.tasks.base import Encoded, Task
from regard.tasks.protocol import Asked
from regard.types import Batch

INSIDE = 2**16 - 1
"""Stands before the bytes of a file that lies in a table; a path begins with a letter of its own."""
MANY = 2000
"""Validation samples from which it is said that they are looked through."""
LOOKED_AT = 64
"""Samples that are looked at together when they are answered."""


class Opened(Task):
    generates = False
    limited = False
    worded = False
    suffixes: ClassVar[tuple[str, ...]]
    """of its files"""

    def key(self, sample: Any) -> str:
        """Its name and size, wherever it lies; what lies in a table and has no name is known by its row."""
        name = os.path.basename(sample.source) or str(sample.line)
        return f"{sample.label}\0{name}\0{bytes_of(sample)}"

    def texts(self, samples: Iterable[Any]) -> Iterator[str]:
        """Names, sizes and classes: thousands of files are not read to know them again."""
        for sample in samples:
            yield f"{os.path.basename(sample.source)}\0{bytes_of(sample)}\0{sample.label}"

    def row(self, sample: Any) -> np.ndarray:
        """Where its file is to be found, as numbers that a store can hold."""
        return row_of(sample)

    def rows_by(self, reader: Any) -> tuple[int, str]:
        return 2**16, ""

    def lengths(self, encoded: Encoded) -> np.ndarray:
        return np.ones((len(encoded), 1), dtype=np.int64)

    def collate(self, encoded: Encoded, rows: Any, config: Any, shape: Shape | None = None) -> Batch:
        """A file that cannot be read does not end a training: another one of the batch stands for it, and it is said."""
        rows = np.asarray(rows)
        try:
            return self.made_of(encoded, rows, config)
        except DataError:
            if rows.ndim == 1:
                raise
            return self.made_of(encoded, self._readable(encoded, rows, config), config)

    def at_a_time(self, how: Any) -> int:
        """How many are looked at together when they are answered."""
        raise NotImplementedError

    def made_of(self, encoded: Encoded, rows: np.ndarray, config: Any) -> Batch:
        """The batch of these rows: (B,) numbers of samples, or (B, 2) with a number of chance beside each to learn from."""
        raise NotImplementedError

    def _readable(self, encoded: Encoded, rows: np.ndarray, config: Any) -> np.ndarray:
        fine = []
        for place in range(len(rows)):
            try:
                self.made_of(encoded, rows[place : place + 1], config)
                fine.append(place)
            except DataError as error:
                tell(f"  left out: {error}")
                wrong = error
        if 2 * len(fine) < len(rows):
            advice = f"'regard check {self.name}' lists them all."
            raise DataError(
                f"{len(rows) - len(fine)} of {len(rows)} {self.unit} cannot be read: {wrong}", advice=advice
            )
        chosen = [fine[place % len(fine)] if place not in fine else place for place in range(len(rows))]
        return np.stack([rows[chosen, 0], rows[:, 1]], axis=1)

    def headed(self, model: Asked) -> Any:
        if model.head is None:
            raise RegardError(f"this model has no head to {self.name} yet: train it for classes of your own.")
        return model.head

    def look_through(self, train: Encoded, valid: Encoded, config: Any, say: Callable[[str], None]) -> None:
        """Validation samples are all read once before the first step, so that none stops it later; most are kept."""
        if len(valid) >= MANY:
            say(f"  looking through {len(valid):,} validation {self.unit}")
        for _ in self.batches(valid, config, LOOKED_AT):
            pass


def numbers_of(rows: np.ndarray) -> np.ndarray:
    """The numbers of the samples, be there chance beside them or not."""
    return rows[:, 0] if rows.ndim == 2 else rows


_told: set[str] = set()


def tell(line: str) -> None:
    """Said once by each process that meets it."""
    if line not in _told:
        _told.add(line)
        print(line, file=sys.stderr, flush=True)


def place_of(sample: Any) -> str:
    """What a person finds it by."""
    return sample.source or f"{sample.path}, row {sample.line}"


def some(samples: Iterable[Any], most: int, seed: int = 0) -> list[Any]:
    """At most so many of the samples, each with the same chance, however many there are."""
    random, source = np.random.default_rng(seed), iter(samples)
    kept = list(islice(source, most))
    for seen, sample in enumerate(source, most + 1):
        place = int(random.integers(seen))
        if place < most:
            kept[place] = sample
    return kept


def row_of(sample: Any) -> np.ndarray:
    """Where a file is to be found, as numbers that a store can hold: the bytes of its path, or its own."""
    if sample.content:
        # as a store has them: eight bytes for one would fill the memory
        row = np.empty(1 + len(sample.content), np.uint16)
        row[0], row[1:] = INSIDE, np.frombuffer(sample.content, dtype=np.uint8)
        return row
    return np.frombuffer(os.fsencode(sample.source), dtype=np.uint8).astype(np.uint16)


def source_of(row: np.ndarray) -> str | bytes:
    """The reverse."""
    if len(row) and row[0] == INSIDE:
        return row[1:].astype(np.uint8).tobytes()
    return os.fsdecode(row.astype(np.uint8).tobytes())


def bytes_of(sample: Any) -> int:
    if sample.content:
        return len(sample.content)
    try:
        return os.path.getsize(sample.source)
    except OSError:
        return -1
