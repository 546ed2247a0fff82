"""Reading texts with classes, or questions with choices, for a check: of each row a few numbers and hashes are kept."""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.data.check.pair_survey import DatasetSurvey, LocatedSample, ProgressCallback, hash_text, text_sizes
from regard.data.check.report import excerpt
from regard.data.check.text_quality import normalize_text
from regard.data.text.files import ErrorHandler
from regard.data.text.labeled import ChoiceSample, LabeledText
from regard.data.text.tables import SkippedRow

Sample = LabeledText | ChoiceSample
T = TypeVar("T", bound=LocatedSample)
EntryReader = Callable[[str, Mapping[str, str] | None, ErrorHandler], Iterator[Any]]

SIZE_MEASURES = ("words", "characters", "tokens")
PROGRESS_INTERVAL = 4096
"""rows between two words about how far reading is"""


def input_texts(sample: Sample) -> tuple[str, ...]:
    """What a model is shown, before it answers."""
    if isinstance(sample, ChoiceSample):
        return (sample.prompt, *sample.choices)
    return (sample.text, sample.text_pair) if sample.text_pair else (sample.text,)


def text_pair(sample: Sample) -> tuple[str, str]:
    """The two that stand in one row: texts of a pair, or what is told and the longest choice."""
    if isinstance(sample, ChoiceSample):
        return sample.prompt, max(sample.choices, key=len)
    return sample.text, sample.text_pair


def label_text(sample: Sample) -> str:
    """What is to be said: a class, or the place of the right choice."""
    return str(sample.label)


class RowSurvey(DatasetSurvey[T]):
    """Samples that are looked at one by one, each by itself."""

    @abstractmethod
    def _add_sample(self, number: int, sample: T) -> None:
        """Count a sample of the entry of this number, and keep what of it is kept."""

    def read(self, progress: ProgressCallback, name: str) -> None:
        for number, entry in enumerate(self.entries):
            for sample in self._entry_samples(entry, note=True):
                self._add_sample(number, sample)
                if len(self) % PROGRESS_INTERVAL == 0:
                    progress(f"reading {name}", len(self))


class TableSurvey(RowSurvey[Sample]):
    """Of each usable row also its lengths; and how often each answer is right.

    Hashes are of what is asked with its answer (0), without (1), and without case and punctuation (2).
    """

    def __init__(self, entries: Sequence[str], columns: Mapping[str, str] | None, reader: EntryReader) -> None:
        super().__init__(entries, columns, hashes=3)
        self.reader = reader
        self.classes: dict[str, int] = {}
        """how often each answer is right"""
        self.num_multilabel = self.num_unlabeled = 0
        """rows that may have several labels, and those of them that have none"""
        self.has_pairs = False
        self._sizes = {name: (array("I"), array("I")) for name in SIZE_MEASURES}

    def sizes(self, name: str) -> NDArray[np.int64]:
        """(N, 1) or, of pairs, (N, 2)."""
        both = np.stack([np.array(side, dtype=np.int64) for side in self._sizes[name]], axis=1)
        return both if self.has_pairs else both[:, :1]

    def _read_entry(self, entry: str, complain: ErrorHandler) -> Iterator[Sample | SkippedRow]:
        yield from self.reader(entry, self.columns, complain)  # what it finds before the first row is noted too

    def _preview(self, sample: Sample) -> str:
        first, second = text_pair(sample)
        what = f"{excerpt(first, width=36)} | {excerpt(second, width=24)}" if second else excerpt(first)
        return f"{what} → {excerpt(label_text(sample), width=24)}"

    def _add_sample(self, number: int, sample: Sample) -> None:
        texts, right = input_texts(sample), label_text(sample)
        self._tally_quality_issues(sample, texts)
        for side, text in enumerate(text_pair(sample)):
            for name, value in zip(SIZE_MEASURES, text_sizes(text), strict=True):
                self._sizes[name][side].append(value)
        self.has_pairs = self.has_pairs or len(texts) > 1
        for label in sample.labels if isinstance(sample, LabeledText) else (right,):
            self.classes[label] = self.classes.get(label, 0) + 1
        if isinstance(sample, LabeledText) and sample.label_set is not None:
            self.num_multilabel, self.num_unlabeled = (
                self.num_multilabel + 1,
                self.num_unlabeled + (not sample.label_set),
            )
        joined = "\0".join(texts)
        self._append(
            number, sample.line, map(hash_text, (f"{joined}\0{right}", joined, "\0".join(map(normalize_text, texts))))
        )
