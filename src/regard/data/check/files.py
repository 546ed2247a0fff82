"""Survey of samples that are files, such as images and point clouds: every file is decoded, in several threads."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.data.check.engine import (
    CLASS_FINDINGS,
    COUNT_FINDINGS,
    FILE_FINDINGS,
    LEAK_ADVICE,
    ClassSurvey,
    Columns,
    FindingTable,
    Spec,
    error_location,
    format_counts,
)
from regard.data.check.report import ClassCounts, Finding, Location
from regard.data.images.masks import VOID, ClassMap, infer_classes
from regard.data.text.files import ErrorHandler, chunked
from regard.data.text.tables import SkippedRow
from regard.errors import DataError

THREADS = min(4, os.cpu_count() or 1)
CHUNK = 64
"""files decoded before the first of them is counted"""
MAX_LISTED_CLASSES = 12

SAMPLE_FINDINGS: FindingTable = {
    **FILE_FINDINGS,
    "missing": Spec("error", "rows with a missing file", "Fix the paths: training rejects the table.", drops=True),
    **COUNT_FINDINGS,
    **CLASS_FINDINGS,
    "leak": Spec("error", "{unit} also present in the training data", LEAK_ADVICE),
    "leak_conflicting_labels": Spec(
        "warning", "{unit} also present in the training data, with different labels", "Check which labels are correct.",
    ),
}  # fmt: skip
PART_FINDINGS: FindingTable = {
    "single_class": Spec("error", "too few classes in the {parts}", "Segmentation needs at least two classes."),
    "classes_without_samples": Spec(
        "warning", "classes without samples: no {part} contains {classes}", "These classes cannot be {used}.",
    ),
    "void": Spec("note", "{void}: {percent:.1f} %"),
    "void:large": Spec("warning", "{void}: {percent:.1f} %", "Training ignores this part of the data."),
}  # fmt: skip


class FileSample(Protocol):
    """A sample with a file, such as an image or a point cloud."""

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
EntryReader = Callable[[str, Columns, ErrorHandler], Iterator[Any]]


class FileSurvey(ClassSurvey[F]):
    """Survey of files. Hashes are of the content with the target (0), and of the content (1)."""

    reader: ClassVar[EntryReader]
    skip_prefixes: ClassVar[tuple[str, ...]]
    """first words of the reasons to skip a file without loss of data"""
    leaks = ("leak", "leak_conflicting_labels")
    num_hashes = 2

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._broken_samples: set[tuple[str, int]] = set()
        self._is_read = False

    @abstractmethod
    def _inspect(self, sample: F) -> Any:
        """Numbers and hashes of one file. Runs in a thread and must not change the survey."""

    def read(self, *arguments: Any) -> None:
        super().read(*arguments)
        self._is_read = True

    def _survey_entry(self, samples: Iterator[F]) -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            for chunk in chunked(samples, CHUNK):
                for sample, stats in zip(chunk, pool.map(self._try_inspect, chunk), strict=True):
                    if isinstance(stats, DataError):
                        self.tally("decode_error").add(error_location(stats))
                        self._broken_samples.add((sample.path, sample.line))
                    else:
                        self._add_sample(sample, stats)
                self._report_progress(len(self))

    def _try_inspect(self, sample: F) -> Any:
        try:
            return self._inspect(sample)
        except DataError as error:
            return error

    def location_name(self, index: int, reference: int | None = None) -> str:
        entry, line = self.entries[self._positions[0][index]], self._positions[1][index]
        if is_table(entry):
            return super().location_name(index, reference)
        return next(sample.source for sample in self._entry_samples(entry) if sample.line == line)

    def _location(self, path: str, line: int, text: str = "", side: int = 0) -> Location:
        return Location(path, line if is_table(path) else None, text)

    def _read_entry(self, entry: str, on_error: ErrorHandler) -> Iterator[F | SkippedRow]:
        for item in type(self).reader(entry, self.columns, on_error):
            if not isinstance(item, SkippedRow) or not item.reason.startswith(self.skip_prefixes):
                yield item
            elif not self._is_read:
                self.tally("skipped").add(Location(entry, None, item.reason))

    def _indexed_samples(self) -> Iterator[F]:
        """Samples without a decoding error: only these have an index."""
        return (sample for sample in self._readable_samples() if (sample.path, sample.line) not in self._broken_samples)

    def _preview(self, sample: F) -> str:
        name = sample.source or f"row {sample.line}"
        inside = os.path.relpath(name, sample.path) if name.startswith(os.path.join(sample.path, "")) else name
        return f"{inside} → {sample.label}" if sample.label else inside

    def _append_file(self, sample: F, content: bytes, target: bytes) -> None:
        """Keep the class of a file and the hashes of content and target."""
        if sample.label:
            self.classes[sample.label] = self.classes.get(sample.label, 0) + 1
        digests = (blake2b(data, digest_size=8).digest() for data in (b"\0".join((content, target)), content))
        self._append(sample.line, (int.from_bytes(digest, "little") for digest in digests))

    def _tally_sample(self, key: str, sample: F, text: str) -> None:
        self.tally(key).add(Location(sample.source or sample.path, sample.line if sample.content else None, text))

    def _tally_unknown_values(self, sample: F, classes: ClassMap | None, values: Iterable[int]) -> None:
        if classes is not None and (unknown := classes.unknown_values(values)):
            listed = ", ".join(map(str, unknown[:8]))
            self._tally_sample("unknown_values", sample, f"{listed}{', …' if len(unknown) > 8 else ''}")

    def num_classes(self) -> int:
        return len(self.classes)

    def counts(self) -> dict[str, int]:
        classes = {"classes": self.num_classes()} if self.train is None and self.num_classes() else {}
        return {self.unit.replace(" ", "_"): len(self), "entries": len(self.entries), **classes}

    def comparison_findings(self, splits: Sequence[Any]) -> Iterable[Finding]:
        yield from self.leak_findings()
        for survey in splits:
            yield from survey.class_findings()
        yield from self.unseen_class_findings()

    def report_fields(self, valid: Any) -> dict[str, Any]:
        return {"class_counts": self.class_counts(valid), **self.size_fields()}

    @abstractmethod
    def size_fields(self) -> dict[str, Any]:
        """Fields `measurements` and `size_title` of the report."""


class PartSurvey(FileSurvey[F]):
    """Survey of files with a class for each part: pixels of masks, points of point clouds."""

    parts: ClassVar[tuple[str, str]]
    """plural noun of the annotated things, and noun of one of them"""
    counted: ClassVar[str]
    """name of the class counts"""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.file_classes: ClassMap | None = None
        """classes from the first file with class names"""
        self.part_counts: Counter[int] = Counter()
        """number of parts with each value"""
        self.known_classes = self.find_class_file() if self.train is None else self.train.known_classes
        if self.train is not None and self.known_classes is None:
            self.train.known_classes = self.known_classes = self.find_class_file()

    @abstractmethod
    def find_class_file(self) -> ClassMap | None:
        """Classes from a class file near the entries."""

    @abstractmethod
    def void_findings(self, classes: ClassMap, total: int) -> Iterable[Finding]:
        """Fraction of the parts without a class."""

    def given_classes(self) -> ClassMap | None:
        """Classes from a class file or from the data files; None if only the values are known."""
        train = self if self.train is None else self.train
        return train.known_classes or train.file_classes or train.valid.file_classes

    def part_classes(self) -> ClassMap:
        """Classes of the training data; no classes if there are too many values."""
        if (given := self.given_classes()) is not None:
            return given
        values = [value for value in (self if self.train is None else self.train).part_counts if value >= 0]
        return infer_classes(values) if len(values) <= VOID else ClassMap((), ())

    def num_classes(self) -> int:
        return len(self.part_classes().names)

    def comparison_findings(self, splits: Sequence[Any]) -> Iterable[Finding]:
        yield from self.leak_findings()
        classes, is_given = self.part_classes(), self.given_classes() is not None
        num_values = sum(value >= 0 for value in self.train.part_counts)
        if not is_given and num_values > VOID:
            yield self.train.finding("too_many_classes", num_values)
        for survey in splits:
            yield from survey.class_findings()
        unseen = classes.unknown_values(value for value in self.part_counts if value >= 0)
        if not is_given and classes.names and unseen:
            listed = format_counts({str(value): self.part_counts[value] for value in unseen})
            yield self.finding("unseen_classes", len(unseen), classes=listed)

    def class_findings(self) -> Iterable[Finding]:
        """Distribution of the classes over the parts."""
        classes, total = self.part_classes(), sum(self.part_counts.values())
        if not total or not classes.names:
            return
        counts = self._counts_by_class()
        largest = sorted(counts.items(), key=lambda item: -item[1])[:MAX_LISTED_CLASSES]
        listed = [f"{label[:24]}: {100 * count / total:.1f} %" for label, count in largest]
        more = ["…"] * (len(counts) > MAX_LISTED_CLASSES)
        yield self.finding("classes", len(counts), classes=", ".join([*listed, *more]))
        if sum(count > 0 for count in counts.values()) < 2:
            yield self.finding("single_class", 1, parts=self.parts[0])
        if absent := [label for label, count in counts.items() if not count]:
            listed = [*absent[:MAX_LISTED_CLASSES], *["…"] * (len(absent) > MAX_LISTED_CLASSES)]
            used = "trained" if self.train is None else "evaluated"
            names = ", ".join(listed)
            yield self.finding("classes_without_samples", len(absent), part=self.parts[1], classes=names, used=used)
        yield from self.void_findings(classes, total)

    def _void_finding(self, void: str, fraction: float) -> Finding:
        key = "void:large" if fraction > 0.5 else "void"
        return self.finding(key, 0, fraction, void=void, percent=100 * fraction)

    def _counts_by_class(self) -> dict[str, int]:
        classes = self.part_classes()
        return {name: self.part_counts[value] for name, value in zip(classes.names, classes.values, strict=True)}

    def class_counts(self, valid: Any, name: str = "") -> tuple[ClassCounts, ...]:
        if not self.num_classes():
            return ()
        return (ClassCounts(self.counted, self._counts_by_class(), valid._counts_by_class() if valid.entries else {}),)


def array_digest(values: NDArray[Any]) -> bytes:
    shape = f"{values.shape} {values.dtype}".encode()
    return blake2b(shape + np.ascontiguousarray(values).tobytes(), digest_size=16).digest()


def is_table(entry: str) -> bool:
    return os.path.isfile(os.path.expanduser(entry))
