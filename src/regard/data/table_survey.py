"""Reading texts with classes, or questions with choices, for a check: of each row a few numbers and hashes are kept."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.files import Complain
from regard.data.findings import SHOWN, Place, excerpt
from regard.data.oddities import bare, oddities
from regard.data.rows import Empty
from regard.data.survey import BYTES_A_TOKEN, Advance, Tally, flaw, hashed, refuse_pipes
from regard.data.tables import Labelled, Question
from regard.errors import DataError

Sample = Labelled | Question
Read = Callable[[str, Mapping[str, str] | None, Complain], Iterator[Any]]

OFTEN = 4096
"""rows between two words about how far reading is"""


def asked(sample: Sample) -> tuple[str, ...]:
    """What a model is shown, before it answers."""
    if isinstance(sample, Question):
        return (sample.told, *sample.choices)
    return (sample.text, sample.other) if sample.other else (sample.text,)


def sides(sample: Sample) -> tuple[str, str]:
    """The two that stand in one row: texts of a pair, or what is told and the longest choice."""
    if isinstance(sample, Question):
        return sample.told, max(sample.choices, key=len)
    return sample.text, sample.other


def answer(sample: Sample) -> str:
    """What is to be said: a class, or the place of the right choice."""
    return str(sample.label)


class TableSurvey:
    def __init__(self, entries: Sequence[str], columns: Mapping[str, str] | None, read: Read) -> None:
        self.entries, self.columns, self.reader = list(entries), columns, read
        self.tallies: dict[str, Tally] = {}
        self.classes: dict[str, int] = {}
        """how often each answer is right"""
        self.paired = False
        self._where = array("I"), array("Q")
        self._sizes = {name: (array("I"), array("I")) for name in ("words", "characters", "tokens")}
        self._hashes = tuple(array("Q") for _ in range(3))

    def __len__(self) -> int:
        return len(self._where[0])

    @property
    def rows(self) -> int:
        left_out = ("empty", "encoding", "format")
        return len(self) + sum(self.tallies[kind].count for kind in left_out if kind in self.tallies)

    def sizes(self, name: str) -> NDArray[np.int64]:
        """(N, 1) or, of pairs, (N, 2)."""
        both = np.stack([np.array(side, dtype=np.int64) for side in self._sizes[name]], axis=1)
        return both if self.paired else both[:, :1]

    def hashes(self, kind: int) -> NDArray[np.uint64]:
        """Of what is asked with its answer (0), without (1), and without case and punctuation (2)."""
        return np.array(self._hashes[kind], dtype=np.uint64)

    def tally(self, kind: str) -> Tally:
        return self.tallies.setdefault(kind, Tally())

    def read(self, advance: Advance, name: str) -> None:
        for number, entry in enumerate(self.entries):
            for sample in self._usable(entry, note=True):
                self._look(number, sample)
                if len(self) % OFTEN == 0:
                    advance(f"reading {name}", len(self))

    def places(self, numbers: Iterable[int], said: Mapping[int, str] | None = None) -> tuple[Place, ...]:
        """Where the first few of these stand, read once more for their text; `said` stands behind it."""
        first = sorted(int(number) for number in numbers)[:SHOWN]
        found: list[Place] = []
        samples = (sample for entry in self.entries for sample in self._usable(entry)) if first else iter(())
        for number, sample in enumerate(samples):
            if number == first[len(found)]:
                behind = f"  ({said[number]})" if said else ""
                found.append(Place(sample.path, sample.line, shown(sample) + behind))
                if len(found) == len(first):
                    break
        return tuple(found)

    def place(self, number: int, beside: int | None = None) -> str:
        entry, line = self._where[0][number], self._where[1][number]
        if beside is not None and entry == self._where[0][beside]:
            return f"line {line}"
        return str(Place(self.entries[entry], line))

    def _usable(self, entry: str, note: bool = False) -> Iterator[Sample]:
        refuse_pipes((entry,))

        def complain(kind: str, error: DataError) -> None:
            if note:
                self.tally(kind).add(flaw(error))

        try:
            for item in self.reader(entry, self.columns, complain):
                if not isinstance(item, Empty):
                    yield item
                elif note:
                    self.tally("empty").add(Place(item.path, item.line, item.text))
        except DataError as error:  # what cannot be read past, such as a damaged archive
            complain("unreadable", error)

    def _look(self, number: int, sample: Sample) -> None:
        texts, right = asked(sample), answer(sample)
        marks: dict[str, tuple[str, int]] = {}
        for text in texts:
            for kind, place in oddities(text):
                marks.setdefault(kind, (text, place))
        for kind, (text, place) in marks.items():
            self.tally(kind).add(Place(sample.path, sample.line, excerpt(text, place)))
        for side, text in enumerate(sides(sample)):
            words, size = len(text.split()), len(text.encode("utf-8", "surrogatepass"))
            tokens = max(words, -(-size // BYTES_A_TOKEN))
            for name, value in (("words", words), ("characters", len(text)), ("tokens", tokens)):
                self._sizes[name][side].append(value)
        self.paired = self.paired or len(texts) > 1
        self.classes[right] = self.classes.get(right, 0) + 1
        self._where[0].append(number)
        self._where[1].append(sample.line)
        joined = "\0".join(texts)
        for kept, text in zip(self._hashes, (f"{joined}\0{right}", joined, "\0".join(map(bare, texts))), strict=True):
            kept.append(hashed(text))


def shown(sample: Sample) -> str:
    first, second = sides(sample)
    what = f"{excerpt(first, width=36)} | {excerpt(second, width=24)}" if second else excerpt(first)
    return f"{what} → {excerpt(answer(sample), width=24)}"
