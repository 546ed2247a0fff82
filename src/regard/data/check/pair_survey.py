"""Reading data for a check: every row is looked at, and what is kept of it is a few numbers and hashes, no text.

`Surveyed` is what all kinds of data have in common, `Survey` is that of pairs.
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

from regard.data.check.findings import SHOWN, Place, excerpt
from regard.data.check.language_id import Profile
from regard.data.check.text_quality import bare, oddities
from regard.data.sources import parallel
from regard.data.text.files import Complain, chunked
from regard.data.text.pairs import Pair, iterate_entry
from regard.data.text.tables import Empty
from regard.errors import DataError

Advance = Callable[[str, int], None]
"""Told what is being done, and how many rows of it are done."""

CHUNK = 4096
"""pairs whose letters are counted together"""
ENOUGH = 20
"""pairs that a file needs before it is said to have its sides exchanged"""
TURNED = -0.5
"""likeness to the files before it below which a file has its sides exchanged: en–de gives −0.9 from 30 pairs on, two
samples of one language ±0.2"""
BYTES_A_TOKEN = 4
"""of UTF-8, in byte-pair tokens: 3.4 to 4.8 were measured on English and German"""


def unheard(what: str, rows: int) -> None:
    """An `Advance` for when nobody listens."""


class Tally:
    """How often something was seen, and the first places."""

    def __init__(self) -> None:
        self.count = 0
        self.places: list[Place] = []

    def add(self, place: Place) -> None:
        self.count += 1
        if len(self.places) < SHOWN:
            self.places.append(place)


class Placed(Protocol):
    """What is read one by one; where it stands is all that is asked of it here."""

    @property
    def path(self) -> str: ...
    @property
    def line(self) -> int: ...


T = TypeVar("T", bound=Placed)


class Surveyed(ABC, Generic[T]):
    """What was seen of one set of files: tallies, and of each usable sample its place and hashes."""

    left_out: tuple[str, ...] = ("empty", "encoding", "format")
    """kinds of flaws for which a whole row is no sample"""

    def __init__(self, entries: Sequence[str], columns: Mapping[str, str] | None, hashes: int) -> None:
        self.entries, self.columns = list(entries), columns
        self.tallies: dict[str, Tally] = {}
        self._where = array("I"), array("Q")
        self._hashes = tuple(array("Q") for _ in range(hashes))

    @abstractmethod
    def _items(self, entry: str, complain: Complain) -> Iterator[T | Empty]:
        """What an entry holds. What is raised by this call ends the check; what is raised by the iterator is noted."""

    @abstractmethod
    def _shown(self, sample: T) -> str:
        """A sample in one short line."""

    def __len__(self) -> int:
        return len(self._where[0])

    @property
    def rows(self) -> int:
        """Samples, and rows that could be none."""
        return len(self) + sum(self.tallies[kind].count for kind in self.left_out if kind in self.tallies)

    def hashes(self, kind: int) -> NDArray[np.uint64]:
        """Of whole samples (0); what the others are of, each kind of data says."""
        return np.array(self._hashes[kind], dtype=np.uint64)

    def tally(self, kind: str) -> Tally:
        return self.tallies.setdefault(kind, Tally())

    def places(self, numbers: Iterable[int], said: Mapping[int, str] | None = None) -> tuple[Place, ...]:
        """Where the first few of these samples stand, read once more for their text; `said` stands behind it."""
        first = sorted(int(number) for number in numbers)[:SHOWN]
        found: list[Place] = []
        for number, sample in enumerate(self._numbered() if first else ()):
            if number == first[len(found)]:
                behind = f"  ({said[number]})" if said else ""
                found.append(self._at(sample.path, sample.line, self._shown(sample) + behind))
                if len(found) == len(first):
                    break
        return tuple(found)

    def place(self, number: int, beside: int | None = None) -> str:
        """The name of one sample's place, without its text; short where it stands in the same file as the other."""
        entry, line = self._where[0][number], self._where[1][number]
        if beside is not None and entry == self._where[0][beside]:
            return f"line {line}"
        return str(self._at(self.entries[entry], line))

    def _at(self, path: str, line: int, text: str = "", side: int = 0) -> Place:
        """A place; where the sides of a sample stand in files of their own, the one that holds this side."""
        return Place(path, line, text)

    def _files(self, entry: str) -> Sequence[str]:
        return (entry,)

    def _numbered(self) -> Iterator[T]:
        """All samples in the order in which they are counted."""
        return self._everything()

    def _everything(self) -> Iterator[T]:
        for entry in self.entries:
            yield from self._usable(entry)

    def _usable(self, entry: str, note: bool = False) -> Iterator[T]:
        """What of an entry can be read, the same at every reading; what else there is, is noted at the first."""
        refuse_pipes(self._files(entry))

        def complain(kind: str, error: DataError) -> None:
            if note:
                self.tally(kind).add(flaw(error))

        items = self._items(entry, complain)
        try:
            for item in items:
                if not isinstance(item, Empty):
                    yield item
                elif note:
                    self.tally("empty").add(self._at(item.path, item.line, item.text))
        except DataError as error:  # what cannot be read past, such as a damaged archive
            told = f"{error.problem} {error.advice}".rstrip()  # there is one of them, and it says what to do
            complain("unreadable", DataError(told, error.path, error.line))

    def _note_oddities(self, sample: T, texts: Iterable[str]) -> None:
        """Each kind once for a sample, where it is first seen."""
        marks: dict[str, Place] = {}
        for side, text in enumerate(texts):
            for kind, place in oddities(text):
                if kind not in marks:
                    marks[kind] = self._at(sample.path, sample.line, excerpt(text, place), side)
        for kind, found in marks.items():
            self.tally(kind).add(found)

    def _keep(self, entry: int, line: int, hashes: Iterable[int]) -> None:
        self._where[0].append(entry)
        self._where[1].append(line)
        for kept, value in zip(self._hashes, hashes, strict=True):
            kept.append(value)


class Survey(Surveyed[Pair]):
    """Of each usable pair also its lengths; and which way round the files are.

    Hashes are of the pairs (0), of the sources (1), of the sources without case and punctuation (2).
    """

    def __init__(self, entries: Sequence[str], columns: Mapping[str, str] | None) -> None:
        super().__init__(entries, columns, hashes=3)
        self.turned: list[bool] = []
        """of each entry, whether its sides are exchanged against those before it"""
        self.profile = Profile.empty()
        self.copies = array("Q")
        """the numbers of pairs whose target is their source"""
        self._sizes = tuple(array("I") for _ in range(6))

    @property
    def entry(self) -> NDArray[np.int64]:
        """The number of the entry that each pair stands in."""
        return np.array(self._where[0], dtype=np.int64)

    def sizes(self, kind: int) -> NDArray[np.int64]:
        """(N, 2) words (0), characters (1) or estimated tokens (2) of source and target."""
        return np.stack([np.array(self._sizes[2 * kind + side], dtype=np.int64) for side in (0, 1)], axis=1)

    def read(self, advance: Advance, name: str, known: Profile | None = None) -> None:
        """Look at every row. `known` is the profile of other data, whose sides decide which way round is right."""
        for number, entry in enumerate(self.entries):
            own = Profile.empty()
            for chunk in chunked(self._usable(entry, note=True), CHUNK):
                for pair in chunk:
                    self._look(number, pair)
                own.learn([pair.source for pair in chunk], [pair.target for pair in chunk])
                advance(f"reading {name}", len(self))
            enough = sum(1 for at in self._where[0][-ENOUGH:] if at == number) == ENOUGH
            self.turned.append(enough and (known or self.profile).likeness(own) < TURNED)
            self.profile += own.turned() if self.turned[-1] else own
        if known is None and self.turned and 2 * int(self.is_turned().sum()) > len(self):
            self.turned = [not turned for turned in self.turned]  # most pairs decide which way round is right
            self.profile = self.profile.turned()

    def is_turned(self) -> NDArray[np.bool_]:
        return np.array(self.turned, dtype=bool)[self.entry]

    def leanings(self, profile: Profile, own: bool, advance: Advance, name: str) -> NDArray[np.float64]:
        """(N, 2): how much each source and target reads like a source, with files that are turned turned back."""
        found = np.zeros((len(self), 2))
        done = 0
        for number, entry in enumerate(self.entries):
            for chunk in chunked(self._usable(entry), CHUNK):
                sides = [pair.source for pair in chunk], [pair.target for pair in chunk]
                if self.turned[number]:
                    sides = sides[1], sides[0]
                found[done : done + len(chunk)] = np.stack(profile.leanings(*sides, own=own), axis=1)
                done += len(chunk)
                advance(f"weighing the letters of {name}", done)
        return found

    def _items(self, entry: str, complain: Complain) -> Iterator[Pair | Empty]:
        return iterate_entry(entry, self.columns, complain)

    def _files(self, entry: str) -> Sequence[str]:
        return parallel(entry) or (entry,)

    def _at(self, path: str, line: int, text: str = "", side: int = 0) -> Place:
        sides = parallel(path)
        return Place(sides[side] if sides else path, line, text)

    def _shown(self, sample: Pair) -> str:
        return f"{excerpt(sample.source, width=36)} | {excerpt(sample.target, width=36)}"

    def _look(self, number: int, pair: Pair) -> None:
        sides = pair.source, pair.target
        self._note_oddities(pair, sides)
        for side, text in enumerate(sides):
            for kind, value in enumerate(measured(text)):
                self._sizes[2 * kind + side].append(value)
        if pair.source == pair.target:
            self.copies.append(len(self))
        self._keep(number, pair.line, map(hashed, ("\0".join(sides), pair.source, bare(pair.source))))


def refuse_pipes(paths: Iterable[str]) -> None:
    for path in map(os.path.expanduser, paths):
        if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
            raise DataError("is a pipe, and a check reads its files more than once.", path, advice="Save it first.")


def hashed(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def measured(text: str) -> tuple[int, int, int]:
    """Words, characters and estimated tokens."""
    words = len(text.split())
    return words, len(text), estimated(words, len(text.encode("utf-8", "surrogatepass")))


def estimated(words: int, size: int) -> int:
    """The tokens of so many words in so many bytes: at least one for each word."""
    return max(words, -(-size // BYTES_A_TOKEN))


def flaw(error: DataError) -> Place:
    """An error as a place and what is wrong there."""
    return Place("" if error.path is None else str(error.path), error.line, error.problem)
