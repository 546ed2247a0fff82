"""Surveys of datasets for `regard check`: every row is read, and a few numbers and hashes per row are kept, no text.

`DatasetSurvey` is the base class for all kinds of data, `PairSurvey` the survey of text pairs.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.data.check.language_id import TrigramProfile
from regard.data.check.report import MAX_LOCATIONS, Location, excerpt
from regard.data.check.text_quality import find_quality_issues, normalize_text
from regard.data.sources import split_parallel
from regard.data.text.files import ErrorHandler, chunked
from regard.data.text.pairs import Pair, iterate_entry_pairs
from regard.data.text.tables import SkippedRow
from regard.errors import DataError

ProgressCallback = Callable[[str, int], None]
"""Called with the name of the current stage and the number of processed samples."""

CHUNK = 4096
"""pairs per update of the trigram counts"""
MIN_FILE_PAIRS = 20
"""minimum number of pairs in a file to detect swapped sides"""
SWAPPED_SIMILARITY = -0.5
"""similarity to the previous files below which the sides of a file count as swapped: English–German pairs give −0.9
from 30 pairs on, two samples of one language ±0.2"""
BYTES_PER_TOKEN = 4
"""UTF-8 bytes per byte-pair token: 3.4 to 4.8 were measured on English and German"""


def no_progress(what: str, rows: int) -> None:
    """Ignore progress."""


class Tally:
    """Number of occurrences, and the first locations."""

    def __init__(self) -> None:
        self.count = 0
        self.locations: list[Location] = []

    def add(self, location: Location) -> None:
        self.count += 1
        if len(self.locations) < MAX_LOCATIONS:
            self.locations.append(location)


class LocatedSample(Protocol):
    """A sample with a file and a line."""

    @property
    def path(self) -> str: ...
    @property
    def line(self) -> int: ...


T = TypeVar("T", bound=LocatedSample)


class DatasetSurvey(ABC, Generic[T]):
    """Survey of one set of files: tallies, and location and hashes of each usable sample."""

    skip_kinds: tuple[str, ...] = ("empty", "encoding", "format")
    """kinds of findings that exclude the whole row"""

    def __init__(self, entries: Sequence[str], columns: Mapping[str, str] | None, hashes: int) -> None:
        self.entries, self.columns = list(entries), columns
        self.tallies: dict[str, Tally] = {}
        self._sample_lines = array("I"), array("Q")
        self._hashes = tuple(array("Q") for _ in range(hashes))

    @abstractmethod
    def _read_entry(self, entry: str, complain: ErrorHandler) -> Iterator[T | SkippedRow]:
        """Samples and skipped rows of an entry. Errors of this call end the check; errors of the iterator become findings."""

    @abstractmethod
    def _preview(self, sample: T) -> str:
        """A sample in one short line."""

    def __len__(self) -> int:
        return len(self._sample_lines[0])

    @property
    def rows(self) -> int:
        """Number of samples and excluded rows."""
        return len(self) + sum(self.tallies[kind].count for kind in self.skip_kinds if kind in self.tallies)

    def hashes(self, kind: int) -> NDArray[np.uint64]:
        """Hashes of whole samples (0); subclasses define the other kinds."""
        return np.array(self._hashes[kind], dtype=np.uint64)

    def tally(self, kind: str) -> Tally:
        return self.tallies.setdefault(kind, Tally())

    def locations(self, indices: Iterable[int], notes: Mapping[int, str] | None = None) -> tuple[Location, ...]:
        """Locations of the first few of these samples, read again for a preview, which is followed by the note."""
        first = sorted(int(number) for number in indices)[:MAX_LOCATIONS]
        found: list[Location] = []
        for number, sample in enumerate(self._indexed_samples() if first else ()):
            if number == first[len(found)]:
                behind = f"  ({notes[number]})" if notes else ""
                found.append(self._location(sample.path, sample.line, self._preview(sample) + behind))
                if len(found) == len(first):
                    break
        return tuple(found)

    def location_name(self, index: int, reference: int | None = None) -> str:
        """Location of a sample without a preview; only the line if the reference sample is in the same file."""
        entry, line = self._sample_lines[0][index], self._sample_lines[1][index]
        if reference is not None and entry == self._sample_lines[0][reference]:
            return f"line {line}"
        return str(self._location(self.entries[entry], line))

    def _location(self, path: str, line: int, text: str = "", side: int = 0) -> Location:
        """Location of a sample; with parallel files, the file of this side."""
        return Location(path, line, text)

    def _entry_files(self, entry: str) -> Sequence[str]:
        return (entry,)

    def _indexed_samples(self) -> Iterator[T]:
        """All samples in the order of their indices."""
        return self._readable_samples()

    def _readable_samples(self) -> Iterator[T]:
        for entry in self.entries:
            yield from self._entry_samples(entry)

    def _entry_samples(self, entry: str, note: bool = False) -> Iterator[T]:
        """Readable samples of an entry, the same in every pass; with `note`, all other rows become findings."""
        reject_pipes(self._entry_files(entry))

        def complain(kind: str, error: DataError) -> None:
            if note:
                self.tally(kind).add(error_location(error))

        items = self._read_entry(entry, complain)
        try:
            for item in items:
                if not isinstance(item, SkippedRow):
                    yield item
                elif note:
                    self.tally("empty").add(self._location(item.path, item.line, item.reason))
        except DataError as error:  # reading cannot continue, for example in a damaged archive
            told = (
                f"{error.problem} {error.advice}".rstrip()
            )  # the only error of this kind, so the advice fits into the location
            complain("unreadable", DataError(told, error.path, error.line))

    def _tally_quality_issues(self, sample: T, texts: Iterable[str]) -> None:
        """Count each kind of issue once per sample, at the first occurrence."""
        marks: dict[str, Location] = {}
        for side, text in enumerate(texts):
            for kind, place in find_quality_issues(text):
                if kind not in marks:
                    marks[kind] = self._location(sample.path, sample.line, excerpt(text, place), side)
        for kind, found in marks.items():
            self.tally(kind).add(found)

    def _append(self, entry: int, line: int, hashes: Iterable[int]) -> None:
        self._sample_lines[0].append(entry)
        self._sample_lines[1].append(line)
        for kept, value in zip(self._hashes, hashes, strict=True):
            kept.append(value)


class PairSurvey(DatasetSurvey[Pair]):
    """Survey of text pairs: also the lengths of each pair, and the files with swapped sides.

    Hashes are of the pairs (0), of the sources (1), of the sources without case and punctuation (2).
    """

    def __init__(self, entries: Sequence[str], columns: Mapping[str, str] | None) -> None:
        super().__init__(entries, columns, hashes=3)
        self.swapped_entries: list[bool] = []
        """for each entry: sides swapped relative to the previous entries"""
        self.profile = TrigramProfile.empty()
        self.copies = array("Q")
        """indices of pairs with identical source and target"""
        self._sizes = tuple(array("I") for _ in range(6))

    @property
    def entry_index(self) -> NDArray[np.int64]:
        """Index of the entry of each pair."""
        return np.array(self._sample_lines[0], dtype=np.int64)

    def sizes(self, kind: int) -> NDArray[np.int64]:
        """(N, 2) words (0), characters (1) or estimated tokens (2) of source and target."""
        return np.stack([np.array(self._sizes[2 * kind + side], dtype=np.int64) for side in (0, 1)], axis=1)

    def read(self, progress: ProgressCallback, name: str, reference: TrigramProfile | None = None) -> None:
        """Read every row. The sides of the reference profile, if given, define the correct order of source and target."""
        for number, entry in enumerate(self.entries):
            own = TrigramProfile.empty()
            for chunk in chunked(self._entry_samples(entry, note=True), CHUNK):
                for pair in chunk:
                    self._add_sample(number, pair)
                own.update([pair.source for pair in chunk], [pair.target for pair in chunk])
                progress(f"reading {name}", len(self))
            enough = sum(1 for at in self._sample_lines[0][-MIN_FILE_PAIRS:] if at == number) == MIN_FILE_PAIRS
            self.swapped_entries.append(enough and (reference or self.profile).similarity(own) < SWAPPED_SIMILARITY)
            self.profile += own.swap_sides() if self.swapped_entries[-1] else own
        if reference is None and self.swapped_entries and 2 * int(self.swapped_pairs().sum()) > len(self):
            self.swapped_entries = [
                not turned for turned in self.swapped_entries
            ]  # the majority of pairs defines the correct order
            self.profile = self.profile.swap_sides()

    def swapped_pairs(self) -> NDArray[np.bool_]:
        return np.array(self.swapped_entries, dtype=bool)[self.entry_index]

    def source_scores(
        self, profile: TrigramProfile, leave_one_out: bool, progress: ProgressCallback, name: str
    ) -> NDArray[np.float64]:
        """(N, 2) language scores of source and target, higher for the source language; swapped files are swapped back."""
        found = np.zeros((len(self), 2))
        done = 0
        for number, entry in enumerate(self.entries):
            for chunk in chunked(self._entry_samples(entry), CHUNK):
                sides = [pair.source for pair in chunk], [pair.target for pair in chunk]
                if self.swapped_entries[number]:
                    sides = sides[1], sides[0]
                found[done : done + len(chunk)] = np.stack(
                    profile.source_scores(*sides, leave_one_out=leave_one_out), axis=1
                )
                done += len(chunk)
                progress(f"comparing languages in {name}", done)
        return found

    def _read_entry(self, entry: str, complain: ErrorHandler) -> Iterator[Pair | SkippedRow]:
        return iterate_entry_pairs(entry, self.columns, complain)

    def _entry_files(self, entry: str) -> Sequence[str]:
        return split_parallel(entry) or (entry,)

    def _location(self, path: str, line: int, text: str = "", side: int = 0) -> Location:
        sides = split_parallel(path)
        return Location(sides[side] if sides else path, line, text)

    def _preview(self, sample: Pair) -> str:
        return f"{excerpt(sample.source, width=36)} | {excerpt(sample.target, width=36)}"

    def _add_sample(self, number: int, pair: Pair) -> None:
        sides = pair.source, pair.target
        self._tally_quality_issues(pair, sides)
        for side, text in enumerate(sides):
            for kind, value in enumerate(text_sizes(text)):
                self._sizes[2 * kind + side].append(value)
        if pair.source == pair.target:
            self.copies.append(len(self))
        self._append(number, pair.line, map(hash_text, ("\0".join(sides), pair.source, normalize_text(pair.source))))


def reject_pipes(paths: Iterable[str]) -> None:
    for path in map(os.path.expanduser, paths):
        if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
            raise DataError(
                "is a pipe, but a check reads files more than once.", path, advice="Save the data to a file."
            )


def hash_text(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def text_sizes(text: str) -> tuple[int, int, int]:
    """Words, characters and estimated tokens."""
    words = len(text.split())
    return words, len(text), estimate_tokens(words, len(text.encode("utf-8", "surrogatepass")))


def estimate_tokens(words: int, num_bytes: int) -> int:
    """Estimated number of tokens: at least one per word."""
    return max(words, -(-num_bytes // BYTES_PER_TOKEN))


def error_location(error: DataError) -> Location:
    """Location of an error, with the problem as text."""
    return Location("" if error.path is None else str(error.path), error.line, error.problem)
