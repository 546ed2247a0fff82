"""Reading pairs for a check: every row is looked at, and what is kept of it is a few numbers and hashes, no text."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from regard.data.entries import parallel
from regard.data.files import chunked
from regard.data.findings import SHOWN, Place, excerpt
from regard.data.oddities import bare, oddities
from regard.data.pairs import Pair, iterate_entry
from regard.data.profile import Profile
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


class Surveyed(Protocol):
    """What was seen of one set of files, as far as two sets are compared."""

    @property
    def rows(self) -> int: ...
    def __len__(self) -> int: ...
    def hashes(self, kind: int) -> NDArray[np.uint64]: ...
    def place(self, number: int, beside: int | None = None) -> str: ...
    def places(self, numbers: Iterable[int], said: Mapping[int, str] | None = None) -> tuple[Place, ...]: ...


class Tally:
    """How often something was seen, and the first places."""

    def __init__(self) -> None:
        self.count = 0
        self.places: list[Place] = []

    def add(self, place: Place) -> None:
        self.count += 1
        if len(self.places) < SHOWN:
            self.places.append(place)


class Survey:
    """What was seen of one set of files: tallies, and for each usable pair its place, lengths and hashes."""

    def __init__(self, entries: Sequence[str], columns: Mapping[str, str] | None) -> None:
        self.entries, self.columns = list(entries), columns
        self.tallies: dict[str, Tally] = {}
        self.turned: list[bool] = []
        """of each entry, whether its sides are exchanged against those before it"""
        self.profile = Profile.empty()
        self.copies = array("Q")
        """the numbers of pairs whose target is their source"""
        self._where = array("I"), array("Q")
        self._sizes = tuple(array("I") for _ in range(6))
        self._hashes = tuple(array("Q") for _ in range(3))

    def __len__(self) -> int:
        return len(self._where[0])

    @property
    def rows(self) -> int:
        left_out = ("empty", "encoding", "format")
        return len(self) + sum(self.tallies[kind].count for kind in left_out if kind in self.tallies)

    @property
    def entry(self) -> NDArray[np.int64]:
        """The number of the entry that each pair stands in."""
        return np.array(self._where[0], dtype=np.int64)

    def sizes(self, kind: int) -> NDArray[np.int64]:
        """(N, 2) words (0), characters (1) or estimated tokens (2) of source and target."""
        return np.stack([np.array(self._sizes[2 * kind + side], dtype=np.int64) for side in (0, 1)], axis=1)

    def hashes(self, kind: int) -> NDArray[np.uint64]:
        """Of the pairs (0), of the sources (1), of the sources without case and punctuation (2)."""
        return np.array(self._hashes[kind], dtype=np.uint64)

    def tally(self, kind: str) -> Tally:
        return self.tallies.setdefault(kind, Tally())

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

    def places(self, numbers: Iterable[int], said: Mapping[int, str] | None = None) -> tuple[Place, ...]:
        """Where the first few of these pairs stand, read once more for their text; `said` stands behind it."""
        first = sorted(int(number) for number in numbers)[:SHOWN]
        found: list[Place] = []
        for number, pair in enumerate(self._everything() if first else ()):
            if number == first[len(found)]:
                place = at(pair, both(pair) + (f"  ({said[number]})" if said else ""))
                found.append(place)
                if len(found) == len(first):
                    break
        return tuple(found)

    def place(self, number: int, beside: int | None = None) -> str:
        """The name of one pair's place, without its text; short where it stands in the same file as the other."""
        entry, line = self._where[0][number], self._where[1][number]
        if beside is not None and entry == self._where[0][beside]:
            return f"line {line}"
        return str(at(Pair("", "", self.entries[entry], line)))

    def _everything(self) -> Iterator[Pair]:
        for entry in self.entries:
            yield from self._usable(entry)

    def _usable(self, entry: str, note: bool = False) -> Iterator[Pair]:
        """The pairs of an entry that can be read, the same at every reading; what else there is, is noted at the first."""
        refuse_pipes(parallel(entry) or (entry,))

        def complain(kind: str, error: DataError) -> None:
            if note:
                self.tally(kind).add(flaw(error))

        items = iterate_entry(entry, self.columns, complain)
        try:
            for item in items:
                if isinstance(item, Pair):
                    yield item
                elif note:
                    self.tally("empty").add(at(Pair("", "", item.path, item.line), item.text))
        except DataError as error:  # what cannot be read past, such as a damaged archive
            complain("unreadable", error)

    def _look(self, number: int, pair: Pair) -> None:
        marks: dict[str, tuple[str, int, int]] = {}
        for side, text in enumerate((pair.source, pair.target)):
            for kind, place in oddities(text):
                marks.setdefault(kind, (text, place, side))
            words, size = len(text.split()), len(text.encode("utf-8", "surrogatepass"))
            for kind_of_size, value in enumerate((words, len(text), max(words, -(-size // BYTES_A_TOKEN)))):
                self._sizes[2 * kind_of_size + side].append(value)
        for kind, (text, place, side) in marks.items():
            self.tally(kind).add(at(pair, excerpt(text, place), side))
        if pair.source == pair.target:
            self.copies.append(len(self))
        self._where[0].append(number)
        self._where[1].append(pair.line)
        texts = f"{pair.source}\0{pair.target}", pair.source, bare(pair.source)
        for kept, text in zip(self._hashes, texts, strict=True):
            kept.append(hashed(text))


def refuse_pipes(paths: Iterable[str]) -> None:
    for path in map(os.path.expanduser, paths):
        if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
            raise DataError("is a pipe, and a check reads its files more than once.", path, advice="Save it first.")


def hashed(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def both(pair: Pair) -> str:
    return f"{excerpt(pair.source, width=36)} | {excerpt(pair.target, width=36)}"


def at(pair: Pair, text: str = "", side: int = 0) -> Place:
    """The place of a pair; of two parallel files, the one that holds this side."""
    sides = parallel(pair.path)
    return Place(sides[side] if sides else pair.path, pair.line, text)


def flaw(error: DataError) -> Place:
    """An error as a place and what is wrong there."""
    return Place("" if error.path is None else str(error.path), error.line, error.problem)
