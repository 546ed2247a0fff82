"""Looking at files for a check, each a sample: every one is decoded, and what is kept of it is a few numbers and hashes.

Files are decoded by some threads at once, and counted in their order.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.data.check.pair_survey import DatasetSurvey, ProgressCallback, error_location
from regard.data.check.report import Location
from regard.data.text.files import ErrorHandler, chunked
from regard.data.text.tables import SkippedRow
from regard.errors import DataError

THREADS = min(4, os.cpu_count() or 1)
CHUNK = 64
"""files that are decoded before any is counted"""


class FileSample(Protocol):
    """A file that is a sample: a picture, a cloud."""

    @property
    def source(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def line(self) -> int: ...
    @property
    def content(self) -> bytes: ...


F = TypeVar("F", bound=FileSample)
K = TypeVar("K")
"""What is kept of one file."""


class FileSurvey(DatasetSurvey[F], Generic[F, K]):
    """Of each usable file its place and hashes; and how often each class occurs.

    Hashes are of the content with the answer (0), and of the content alone (1)."""

    skip_kinds = ("empty", "encoding", "format", "missing", "unmatched_files", "decode_error")
    skip_prefixes: tuple[str, ...] = ("hidden: ",)
    """how what is said begins of files that are no samples, and no loss"""

    def __init__(
        self, entries: Sequence[str], columns: Mapping[str, str] | None,
        reader: Callable[[str, Mapping[str, str] | None, ErrorHandler], Iterator[F | SkippedRow]],
    ) -> None:  # fmt: skip
        super().__init__(entries, columns, hashes=2)
        self.reader = reader
        self.classes: dict[str, int] = {}
        self.num_multilabel = self.num_unlabeled = 0
        """what is counted of texts that may have several labels: a file has one"""
        self._broken_samples: set[tuple[str, int]] = set()
        self._is_read = False

    @abstractmethod
    def _inspect(self, sample: F) -> K:
        """What is kept of it. In a thread of its own: nothing is counted here."""

    @abstractmethod
    def _add_sample(self, number: int, sample: F, seen: K) -> None:
        """Count what was seen of a file of the entry of this number."""

    def read(self, progress: ProgressCallback, name: str) -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            for number, entry in enumerate(self.entries):
                for chunk in chunked(self._entry_samples(entry, note=True), CHUNK):
                    for sample, seen in zip(chunk, pool.map(self._try_inspect, chunk), strict=True):
                        if isinstance(seen, DataError):
                            self.tally("decode_error").add(error_location(seen))
                            self._broken_samples.add((sample.path, sample.line))
                        else:
                            self._add_sample(number, sample, seen)
                    progress(f"decoding {name}", len(self))
        self._is_read = True

    def location_name(self, number: int, beside: int | None = None) -> str:
        entry, line = self.entries[self._sample_lines[0][number]], self._sample_lines[1][number]
        if is_table(entry):
            return super().location_name(number, beside)
        return next(sample.source for sample in self._entry_samples(entry) if sample.line == line)

    def _location(self, path: str, line: int, text: str = "", side: int = 0) -> Location:
        return Location(path, line if is_table(path) else None, text)

    def _read_entry(self, entry: str, complain: ErrorHandler) -> Iterator[F | SkippedRow]:
        for item in self.reader(entry, self.columns, complain):
            if not isinstance(item, SkippedRow) or not item.reason.startswith(self.skip_prefixes):
                yield item
            elif not self._is_read:
                self.tally("skipped").add(Location(entry, None, item.reason))

    def _indexed_samples(self) -> Iterator[F]:
        """Those that could be decoded: no others are counted."""
        return (sample for sample in self._readable_samples() if (sample.path, sample.line) not in self._broken_samples)

    def _preview(self, sample: F) -> str:
        name = sample.source or f"row {sample.line}"
        inside = os.path.relpath(name, sample.path) if name.startswith(os.path.join(sample.path, "")) else name
        return f"{inside} → {sample.label}" if sample.label else inside

    def _try_inspect(self, sample: F) -> K | DataError:
        try:
            return self._inspect(sample)
        except DataError as error:
            return error

    def _add_class_and_hashes(self, number: int, sample: F, content: bytes, answer: bytes) -> None:
        """One more sample of its class, and its hashes."""
        if sample.label:
            self.classes[sample.label] = self.classes.get(sample.label, 0) + 1
        self._append(number, sample.line, (_hash_bytes(content, answer), _hash_bytes(content)))

    def _tally_sample(self, kind: str, sample: F, text: str) -> None:
        name = sample.source or sample.path
        self.tally(kind).add(Location(name, sample.line if sample.content else None, text))


def array_digest(values: NDArray[Any]) -> bytes:
    shape = f"{values.shape} {values.dtype}".encode()
    return blake2b(shape + np.ascontiguousarray(values).tobytes(), digest_size=16).digest()


def _hash_bytes(*parts: bytes) -> int:
    return int.from_bytes(blake2b(b"\0".join(parts), digest_size=8).digest(), "little")


def is_table(entry: str) -> bool:
    return os.path.isfile(os.path.expanduser(entry))
