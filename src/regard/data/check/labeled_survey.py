"""Reading texts with classes, or questions with choices, for a check: of each row a few numbers and hashes are kept."""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.data.check.findings import excerpt
from regard.data.check.pair_survey import Advance, Placed, Surveyed, hashed, measured
from regard.data.check.text_quality import bare
from regard.data.text.files import Complain
from regard.data.text.labeled import Labelled, Question
from regard.data.text.tables import Empty

Sample = Labelled | Question
T = TypeVar("T", bound=Placed)
Read = Callable[[str, Mapping[str, str] | None, Complain], Iterator[Any]]

SIZES = ("words", "characters", "tokens")
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


class Rowwise(Surveyed[T]):
    """Samples that are looked at one by one, each by itself."""

    @abstractmethod
    def _look(self, number: int, sample: T) -> None:
        """Count a sample of the entry of this number, and keep what of it is kept."""

    def read(self, advance: Advance, name: str) -> None:
        for number, entry in enumerate(self.entries):
            for sample in self._usable(entry, note=True):
                self._look(number, sample)
                if len(self) % OFTEN == 0:
                    advance(f"reading {name}", len(self))


class TableSurvey(Rowwise[Sample]):
    """Of each usable row also its lengths; and how often each answer is right.

    Hashes are of what is asked with its answer (0), without (1), and without case and punctuation (2).
    """

    def __init__(self, entries: Sequence[str], columns: Mapping[str, str] | None, read: Read) -> None:
        super().__init__(entries, columns, hashes=3)
        self.reader = read
        self.classes: dict[str, int] = {}
        """how often each answer is right"""
        self.several = self.none = 0
        """rows that may have several labels, and those of them that have none"""
        self.paired = False
        self._sizes = {name: (array("I"), array("I")) for name in SIZES}

    def sizes(self, name: str) -> NDArray[np.int64]:
        """(N, 1) or, of pairs, (N, 2)."""
        both = np.stack([np.array(side, dtype=np.int64) for side in self._sizes[name]], axis=1)
        return both if self.paired else both[:, :1]

    def _items(self, entry: str, complain: Complain) -> Iterator[Sample | Empty]:
        yield from self.reader(entry, self.columns, complain)  # what it finds before the first row is noted too

    def _shown(self, sample: Sample) -> str:
        first, second = sides(sample)
        what = f"{excerpt(first, width=36)} | {excerpt(second, width=24)}" if second else excerpt(first)
        return f"{what} → {excerpt(answer(sample), width=24)}"

    def _look(self, number: int, sample: Sample) -> None:
        texts, right = asked(sample), answer(sample)
        self._note_oddities(sample, texts)
        for side, text in enumerate(sides(sample)):
            for name, value in zip(SIZES, measured(text), strict=True):
                self._sizes[name][side].append(value)
        self.paired = self.paired or len(texts) > 1
        for label in sample.labels if isinstance(sample, Labelled) else (right,):
            self.classes[label] = self.classes.get(label, 0) + 1
        if isinstance(sample, Labelled) and sample.several is not None:
            self.several, self.none = self.several + 1, self.none + (not sample.several)
        joined = "\0".join(texts)
        self._keep(number, sample.line, map(hashed, (f"{joined}\0{right}", joined, "\0".join(map(bare, texts)))))
