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

from regard.data.check.findings import Place
from regard.data.check.pair_survey import Advance, Surveyed, flaw
from regard.data.text.files import Complain, chunked
from regard.data.text.tables import Empty
from regard.errors import DataError

THREADS = min(4, os.cpu_count() or 1)
CHUNK = 64
"""files that are decoded before any is counted"""


class Filed(Protocol):
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


F = TypeVar("F", bound=Filed)
K = TypeVar("K")
"""What is kept of one file."""


class FileSurvey(Surveyed[F], Generic[F, K]):
    """Of each usable file its place and hashes; and how often each class occurs.

    Hashes are of the content with the answer (0), and of the content alone (1)."""

    left_out = ("empty", "encoding", "format", "missing", "partner", "broken")
    skipped: tuple[str, ...] = ("hidden: ",)
    """how what is said begins of files that are no samples, and no loss"""

    def __init__(
        self, entries: Sequence[str], columns: Mapping[str, str] | None,
        read: Callable[[str, Mapping[str, str] | None, Complain], Iterator[F | Empty]],
    ) -> None:  # fmt: skip
        super().__init__(entries, columns, hashes=2)
        self.reader = read
        self.classes: dict[str, int] = {}
        self.several = self.none = 0
        """what is counted of texts that may have several labels: a file has one"""
        self._broken: set[tuple[str, int]] = set()
        self._done = False

    @abstractmethod
    def _decoded(self, sample: F) -> K:
        """What is kept of it. In a thread of its own: nothing is counted here."""

    @abstractmethod
    def _look(self, number: int, sample: F, seen: K) -> None:
        """Count what was seen of a file of the entry of this number."""

    def read(self, advance: Advance, name: str) -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            for number, entry in enumerate(self.entries):
                for chunk in chunked(self._usable(entry, note=True), CHUNK):
                    for sample, seen in zip(chunk, pool.map(self._seen, chunk), strict=True):
                        if isinstance(seen, DataError):
                            self.tally("broken").add(flaw(seen))
                            self._broken.add((sample.path, sample.line))
                        else:
                            self._look(number, sample, seen)
                    advance(f"decoding {name}", len(self))
        self._done = True

    def place(self, number: int, beside: int | None = None) -> str:
        entry, line = self.entries[self._where[0][number]], self._where[1][number]
        if is_table(entry):
            return super().place(number, beside)
        return next(sample.source for sample in self._usable(entry) if sample.line == line)

    def _at(self, path: str, line: int, text: str = "", side: int = 0) -> Place:
        return Place(path, line if is_table(path) else None, text)

    def _items(self, entry: str, complain: Complain) -> Iterator[F | Empty]:
        for item in self.reader(entry, self.columns, complain):
            if not isinstance(item, Empty) or not item.text.startswith(self.skipped):
                yield item
            elif not self._done:
                self.tally("skipped").add(Place(entry, None, item.text))

    def _numbered(self) -> Iterator[F]:
        """Those that could be decoded: no others are counted."""
        return (sample for sample in self._everything() if (sample.path, sample.line) not in self._broken)

    def _shown(self, sample: F) -> str:
        name = sample.source or f"row {sample.line}"
        inside = os.path.relpath(name, sample.path) if name.startswith(os.path.join(sample.path, "")) else name
        return f"{inside} → {sample.label}" if sample.label else inside

    def _seen(self, sample: F) -> K | DataError:
        try:
            return self._decoded(sample)
        except DataError as error:
            return error

    def _count(self, number: int, sample: F, content: bytes, answer: bytes) -> None:
        """One more sample of its class, and its hashes."""
        if sample.label:
            self.classes[sample.label] = self.classes.get(sample.label, 0) + 1
        self._keep(number, sample.line, (_number(content, answer), _number(content)))

    def _note(self, kind: str, sample: F, text: str) -> None:
        name = sample.source or sample.path
        self.tally(kind).add(Place(name, sample.line if sample.content else None, text))


def digest(values: NDArray[Any]) -> bytes:
    shape = f"{values.shape} {values.dtype}".encode()
    return blake2b(shape + np.ascontiguousarray(values).tobytes(), digest_size=16).digest()


def _number(*parts: bytes) -> int:
    return int.from_bytes(blake2b(b"\0".join(parts), digest_size=8).digest(), "little")


def is_table(entry: str) -> bool:
    return os.path.isfile(os.path.expanduser(entry))
