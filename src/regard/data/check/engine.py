"""Engine of `regard check`: reads a dataset, keeps numbers and hashes of each sample but no text, and reports findings.

A kind of data is a subclass of `Survey`: a reader, a table of findings, and the numbers to keep of a sample. One survey
holds one split. `Survey.check` reads the training and the validation split and compares the two.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.data.check.report import MAX_LOCATIONS, ClassCounts, Finding, Lengths, Location, Report, Severity, excerpt
from regard.data.check.text_quality import find_quality_issues
from regard.data.settings import DataSettings
from regard.data.sources import expand_patterns
from regard.data.text.files import ErrorHandler
from regard.data.text.tables import SkippedRow
from regard.errors import DataError

Columns = Mapping[str, str] | None
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Indices = NDArray[np.int64]
ProgressCallback = Callable[[str, int], None]
"""Called with the name of the current stage and the number of processed samples."""

HIGH_FRACTION = 0.1
"""fraction of the rows above which `Spec.frequent` is the severity"""
MIN_CLASS_SAMPLES = 5
MAX_CLASS_FRACTION = 0.9
"""fraction of one class above which a constant prediction scores well"""
MAX_CLASSES = 1000
"""maximum number of classes for a table and a chart: labels with more values are probably texts"""
PROGRESS_INTERVAL = 4096
"""rows between two progress updates"""
BYTES_PER_TOKEN = 4
"""UTF-8 bytes per byte-pair token: 3.4 to 4.8 were measured on English and German"""
MEASURES = ("words", "characters", "tokens")

TOKEN_ESTIMATE_NOTE = "(estimate: 4 bytes per token, at least one token per word)"
LEAK_ADVICE = "Remove the duplicates from one of the two sets; otherwise, validation scores are too high."
NEAR_LEAK_ADVICE = "Consider removing the duplicates from the training data."


class Spec(NamedTuple):
    """Row of a table of findings. The key is the finding id; a colon in the key separates variants of one id."""

    severity: Severity
    message: str
    """template; `{unit}` is the plural noun for the samples"""
    advice: str = ""
    frequent: Severity | None = None
    """severity above `HIGH_FRACTION`"""
    drops: bool = False
    """whether training rejects or skips the whole row"""
    per: str = "rows"
    """population for the fraction; the fraction of findings per "files" is 0"""


FindingTable = Mapping[str, Spec]


def select(table: FindingTable, *keys: str) -> dict[str, Spec]:
    return {key: table[key] for key in keys}


FILE_FINDINGS: FindingTable = {
    "unreadable": Spec("error", "files with a read error", "Training would stop at the same error.", per="files"),
    "encoding": Spec(
        "error", "lines with invalid UTF-8",
        "Convert the file from its encoding to UTF-8 with iconv, or remove the lines.", drops=True,
    ),
    "format": Spec("error", "invalid rows", "Fix or remove the rows: training rejects the file.", drops=True),
    "header": Spec(
        "error", "files with a probable header", "Name the columns with --columns, or remove the header.", per="files",
    ),
}  # fmt: skip
QUALITY_FINDINGS: FindingTable = {
    "mojibake": Spec(
        "warning", "rows with UTF-8 decoded as another encoding, such as Ã¼ for ü",
        "Recreate the file, or repair the text, for example with the Python package ftfy.", "error",
    ),
    "replacement_character": Spec(
        "warning", "rows with U+FFFD, which replaces lost characters", "Recreate the file from its source.", "error",
    ),
    "control_character": Spec(
        "warning", "rows with control characters", "Remove the control characters, unless intended.",
    ),
    "markup": Spec(
        "note", "rows with HTML entities or tags, such as &amp;",
        "Unescape the entities, unless the text is tokenizer output to be detokenized later.",
    ),
}  # fmt: skip
COUNT_FINDINGS: FindingTable = {
    "few:none": Spec("error", "no usable {unit}", "Pass files with {unit}. Skipped files and rows are listed above."),
    "few:split": Spec(
        "error", "{unit} with identical content, so no validation split is possible",
        "Add data, or pass separate validation data with --valid.",
    ),
    "few:small": Spec(
        "warning", "small dataset, number of {unit}", "Aim for several hundred {unit}, better several thousand.",
    ),
    "duplicates": Spec("warning", "duplicate {unit}", "Remove the duplicates, unless a higher weight is intended."),
}  # fmt: skip
CLASS_FINDINGS: FindingTable = {
    "classes": Spec("note", "classes ({classes})"),
    "multiple_labels": Spec("note", "labels, {mean:.2f} per row on average ({unlabeled:,} rows without a label)"),
    "single_class": Spec("error", "too few classes", "Classification needs at least two classes."),
    "too_many_classes": Spec(
        "error", "too many classes (more than half the number of samples)",
        "Is the label column correct? Select the label column with --columns label=NAME.",
    ),
    "imbalance": Spec(
        "warning", "class imbalance, samples of class '{name}'",
        "Predicting only '{name}' scores {percent:.0f} % accuracy. Check macro-F1.",
    ),
    "rare": Spec(
        "warning", f"classes with fewer than {MIN_CLASS_SAMPLES} samples ({{classes}})",
        "Add samples, or merge rare classes with other classes.",
    ),
    "unseen_classes": Spec(
        "error", "classes absent from the training data ({classes})",
        "Add samples of these classes to the training data, or remove these classes from the validation data.",
    ),
    "conflicting_labels": Spec(
        "warning", "identical {unit} with different labels", "Correct the wrong labels, or merge overlapping classes.",
        "error",
    ),
}  # fmt: skip


def no_progress(stage: str, samples: int) -> None:
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


class SortedHashes:
    """Hashes in sorted order, to find equal samples."""

    def __init__(self, hashes: NDArray[np.uint64]) -> None:
        self.order = np.argsort(hashes, kind="stable")
        self.values = hashes[self.order]

    def duplicates(self) -> Indices:
        """Indices of the hashes that equal an earlier hash."""
        return np.sort(self.order[1:][self.values[1:] == self.values[:-1]])

    def first_index(self, value: np.uint64) -> int:
        return int(self.order[np.searchsorted(self.values, value)])


class LocatedSample(Protocol):
    """A sample with a file and a line."""

    @property
    def path(self) -> str: ...
    @property
    def line(self) -> int: ...


T = TypeVar("T", bound=LocatedSample)


class Survey(ABC, Generic[T]):
    """Survey of one split: tallies of findings, and position, hashes and lengths of each usable sample.

    Hash 0 is of the whole sample, hash 1 of the input without the target; subclasses define further hashes.
    """

    task: ClassVar[str]
    unit: ClassVar[str]
    """plural noun for the samples"""
    sides: ClassVar[tuple[str, ...]]
    """names of the texts with a length"""
    findings: ClassVar[FindingTable]
    leaks: ClassVar[tuple[str, ...]]
    """for each hash, the finding for validation samples with the same hash as a training sample"""
    num_hashes: ClassVar[int] = 3
    conflict: ClassVar[str] = "conflicting_labels"
    """finding for samples with equal inputs and different targets"""
    min_samples: ClassVar[int] = 100
    stage: ClassVar[tuple[str, str]] = ("reading", "data")
    """verb and noun of the progress line"""
    size_type: ClassVar[str] = "I"

    def __init__(
        self,
        entries: Sequence[str],
        columns: Columns = None,
        settings: DataSettings | None = None,
        train: Any = None,
    ) -> None:
        """`train` is the survey of the training data if this is the survey of the validation data."""
        self.entries, self.columns, self.settings = list(entries), columns, settings or DataSettings()
        self.train = train
        self.valid: Any = None
        self.prefix, self.split = ("", "training") if train is None else ("validation: ", "validation")
        self.progress: ProgressCallback = no_progress
        self.tallies: dict[str, Tally] = {}
        if train is not None:
            train.valid = self
        self._entry = 0
        self._positions = array("I"), array("Q")
        self._hashes = tuple(array("Q") for _ in range(self.num_hashes))
        self._sizes = tuple(array(self.size_type) for _ in MEASURES for _ in self.sides)

    @classmethod
    def check(
        cls,
        data: Paths,
        valid: Paths = (),
        columns: Columns = None,
        settings: DataSettings | None = None,
        progress: ProgressCallback = no_progress,
    ) -> Report:
        """Check training data, and validation data against the training data."""
        train_entries, valid_entries = cls.find_entries(data, valid, columns)
        train = cls(train_entries, columns, settings)
        held_out = cls(valid_entries, columns, settings, train)
        splits = [train, held_out] if train.has_valid else [train]
        for survey in splits:
            survey.read(progress)
        findings = [finding for survey in splits for finding in (*survey.tally_findings(), *survey.split_findings())]
        findings += held_out.comparison_findings(splits)
        counts = train.counts()
        if train.has_valid:
            counts |= {f"validation_{name}": count for name, count in held_out.counts().items()}
        return Report(cls.task, counts, tuple(findings), train.lengths(), **train.report_fields(held_out))

    @classmethod
    def find_entries(cls, data: Paths, valid: Paths, columns: Columns) -> tuple[list[str], list[str]]:
        """Entries of the training and of the validation data."""
        return expand_patterns(data), expand_patterns(valid)

    @abstractmethod
    def _read_entry(self, entry: str, on_error: ErrorHandler) -> Iterator[T | SkippedRow]:
        """Samples and skipped rows of an entry. Errors of this call end the check; errors of the iterator become findings."""

    @abstractmethod
    def _preview(self, sample: T) -> str:
        """A sample in one short line."""

    @abstractmethod
    def _add_sample(self, sample: T, stats: Any = None) -> None:
        """Count a sample, and keep its hashes and lengths."""

    @abstractmethod
    def split_findings(self) -> Iterable[Finding]:
        """Findings about this split other than tallies."""

    def comparison_findings(self, splits: Sequence[Any]) -> Iterable[Finding]:
        """Findings of the validation split against the training split, after the findings of both splits."""
        return self.leak_findings()

    def counts(self) -> dict[str, int]:
        """Printed counts of samples and files."""
        return {self.unit: len(self), "files": len(self.entries)}

    def lengths(self) -> Lengths:
        words, characters, tokens = map(self.sizes, MEASURES)
        no_outliers = np.zeros(0, dtype=np.int64)
        names = self.sides[: words.shape[1]]
        return Lengths(words, characters, tokens, self.settings.max_length, no_outliers, names, self.unit)

    def report_fields(self, valid: Any) -> dict[str, Any]:
        """Further fields of the report, such as class counts; called on the training split."""
        return {}

    @property
    def has_valid(self) -> bool:
        return self.valid is not None and bool(self.valid.entries)

    def __len__(self) -> int:
        return len(self._positions[0])

    @property
    def rows(self) -> int:
        """Number of samples and excluded rows."""
        dropped = (
            tally.count for key, tally in self.tallies.items() if key in self.findings and self.findings[key].drops
        )
        return len(self) + sum(dropped)

    def hashes(self, kind: int) -> NDArray[np.uint64]:
        return np.array(self._hashes[kind], dtype=np.uint64)

    def sizes(self, measure: str) -> Indices:
        """(N, sides) words, characters or estimated tokens."""
        first = MEASURES.index(measure) * len(self.sides)
        columns = self._sizes[first : first + len(self.sides)]
        return np.stack([np.array(column, dtype=np.int64) for column in columns], axis=1)

    def tally(self, key: str) -> Tally:
        return self.tallies.setdefault(key, Tally())

    # -- reading

    def read(self, progress: ProgressCallback = no_progress) -> None:
        self.progress = progress
        for number, entry in enumerate(self.entries):
            self._entry = number
            self._survey_entry(self._entry_samples(entry, note=True))

    def _survey_entry(self, samples: Iterator[T]) -> None:
        for sample in samples:
            self._add_sample(sample)
            if len(self) % PROGRESS_INTERVAL == 0:
                self._report_progress(len(self))

    def _report_progress(self, samples: int) -> None:
        verb, noun = self.stage
        self.progress(f"{verb} {self.split} {noun}", samples)

    def _readable_samples(self) -> Iterator[T]:
        for entry in self.entries:
            yield from self._entry_samples(entry)

    def _indexed_samples(self) -> Iterator[T]:
        """All samples in the order of their indices."""
        return self._readable_samples()

    def _entry_samples(self, entry: str, note: bool = False) -> Iterator[T]:
        """Readable samples of an entry, the same in every pass; with `note`, all other rows become findings."""
        for path in map(os.path.expanduser, self._entry_files(entry)):
            if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
                problem = "is a pipe, but a check reads files more than once."
                raise DataError(problem, path, advice="Save the data to a file.")

        def on_error(key: str, error: DataError) -> None:
            if note:
                self.tally(key).add(error_location(error))

        items = self._read_entry(entry, on_error)
        try:
            for item in items:
                if not isinstance(item, SkippedRow):
                    yield item
                elif note:
                    self.tally("empty").add(self._location(item.path, item.line, item.reason))
        except DataError as error:  # reading cannot continue, for example in a damaged archive
            # the only error of the file, so the advice fits into the location
            problem = f"{error.problem} {error.advice}".rstrip()
            on_error("unreadable", DataError(problem, error.path, error.line))

    def _entry_files(self, entry: str) -> Sequence[str]:
        return (entry,)

    def _append(self, line: int, hashes: Iterable[int]) -> None:
        self._positions[0].append(self._entry)
        self._positions[1].append(line)
        for column, value in zip(self._hashes, hashes, strict=True):
            column.append(value)

    def _append_sizes(self, *texts: str) -> None:
        """Keep the lengths of the text of each side."""
        for side, text in enumerate(texts):
            words = len(text.split())
            tokens = estimate_tokens(words, len(text.encode("utf-8", "surrogatepass")))
            for column, value in zip(self._sizes[side :: len(self.sides)], (words, len(text), tokens), strict=True):
                column.append(value)

    def _tally_quality_issues(self, sample: T, texts: Iterable[str]) -> None:
        """Count each kind of issue once per sample, at the first occurrence."""
        first: dict[str, Location] = {}
        for side, text in enumerate(texts):
            for key, position in find_quality_issues(text):
                if key not in first:
                    first[key] = self._location(sample.path, sample.line, excerpt(text, position), side)
        for key, location in first.items():
            self.tally(key).add(location)

    # -- locations

    def _location(self, path: str, line: int, text: str = "", side: int = 0) -> Location:
        """Location of a sample; with parallel files, the file of this side."""
        return Location(path, line, text)

    def locations(self, indices: Iterable[int], note: Callable[[int], str] | None = None) -> tuple[Location, ...]:
        """Locations of the first few of these samples, read again for a preview, which is followed by the note."""
        first = sorted(int(index) for index in indices)[:MAX_LOCATIONS]
        locations: list[Location] = []
        for index, sample in enumerate(self._indexed_samples() if first else ()):
            if index == first[len(locations)]:
                text = self._preview(sample) + (f"  ({note(index)})" if note else "")
                locations.append(self._location(sample.path, sample.line, text))
                if len(locations) == len(first):
                    break
        return tuple(locations)

    def location_name(self, index: int, reference: int | None = None) -> str:
        """Location of a sample without a preview; only the line if the reference sample is in the same file."""
        entry, line = self._positions[0][index], self._positions[1][index]
        if reference is not None and entry == self._positions[0][reference]:
            return f"line {line}"
        return str(self._location(self.entries[entry], line))

    # -- findings

    def finding(
        self,
        key: str,
        count: int = 0,
        fraction: float = 0.0,
        locations: Sequence[Location] = (),
        severity: Severity | None = None,
        **values: Any,
    ) -> Finding:
        """Finding from the table; the values are inserted into message and advice."""
        spec = self.findings[key]
        frequent = spec.frequent is not None and fraction > HIGH_FRACTION
        values["unit"] = self.unit
        return Finding(
            severity or (spec.frequent if frequent and spec.frequent else spec.severity),
            key.partition(":")[0],
            self.prefix + spec.message.format(**values),
            count,
            fraction,
            tuple(locations),
            spec.advice.format(**values),
        )

    def sample_findings(
        self,
        key: str,
        indices: Sequence[int] | Indices,
        note: Callable[[int], str] | None = None,
        **values: Any,
    ) -> Iterable[Finding]:
        """Finding about the samples of these indices, or none if the table lacks the key or there are no samples."""
        if key in self.findings and (count := len(indices)):
            yield self.finding(key, count, count / self.rows, self.locations(indices, note), **values)

    def tally_findings(self) -> Iterable[Finding]:
        """Findings counted during reading, in the order of the table."""
        for key, spec in self.findings.items():
            if (tally := self.tallies.get(key)) is not None:
                fraction = 0.0 if spec.per == "files" else tally.count / max(self._population(spec.per), 1)
                yield self.finding(key, tally.count, fraction, tally.locations)

    def _population(self, per: str) -> int:
        return self.rows

    def count_findings(self, count: int | None = None, can_split: bool | None = None) -> Iterable[Finding]:
        """Too few samples, or no two different samples to split."""
        count = len(self) if count is None else count
        if not count:
            yield self.finding("few:none")
        elif self.train is None:
            can_split = len(np.unique(self.hashes(1))) > 1 if can_split is None else can_split
            if not can_split and not self.has_valid:
                yield self.finding("few:split", count)
            elif count < self.min_samples:
                yield self.finding("few:small", count)

    def duplicate_findings(self) -> Iterable[Finding]:
        """Repeated samples, and repeated inputs with different targets."""
        samples, inputs = self.hashes(0), self.hashes(1)
        whole = SortedHashes(samples)
        repeated = whole.duplicates()
        yield from self.sample_findings(
            "duplicates", repeated, lambda n: f"same as {self.location_name(whole.first_index(samples[n]), n)}"
        )
        if self.conflict not in self.findings:
            return
        unique = np.setdiff1d(np.arange(len(samples)), repeated)
        by_input = SortedHashes(inputs[unique])
        yield from self.conflict_findings(
            unique[by_input.duplicates()],
            lambda n: f"also in {self.location_name(int(unique[by_input.first_index(inputs[n])]), n)}",
        )

    def conflict_findings(self, indices: Indices, note: Callable[[int], str]) -> Iterable[Finding]:
        return self.sample_findings(self.conflict, indices, note)

    def long_findings(self, tokens: Indices, **values: Any) -> Iterable[Finding]:
        """Samples with more than data.max_length tokens."""
        over = np.flatnonzero(tokens > self.settings.max_length)
        limit = f"data.max_length={self.settings.max_length:,} tokens {TOKEN_ESTIMATE_NOTE}"
        return self.sample_findings("long", over, lambda n: f"about {tokens[n]:,} tokens", limit=limit, **values)

    def leak_findings(self) -> Iterable[Finding]:
        """Validation samples also present in the training data, each counted once, by the first hash in common."""
        remaining = np.arange(len(self))
        for kind, key in enumerate(self.leaks if len(self) else ()):
            known = SortedHashes(self.train.hashes(kind))
            hashes = self.hashes(kind)
            is_known = np.isin(hashes[remaining], known.values)
            leaked, remaining = remaining[is_known], remaining[~is_known]

            def note(n: int, hashes: NDArray[np.uint64] = hashes, known: SortedHashes = known) -> str:
                return f"in training data: {self.train.location_name(known.first_index(hashes[n]))}"

            yield from self.sample_findings(key, leaked, note)


class ClassSurvey(Survey[T]):
    """Survey of samples with one or several classes each."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.classes: dict[str, int] = {}
        """number of samples of each class"""
        self.num_multilabel = self.num_unlabeled = 0
        """rows with a set of labels, and rows with an empty set"""

    def class_findings(self) -> Iterable[Finding]:
        """Distribution of the classes."""
        counts, total = dict(sorted(self.classes.items(), key=lambda item: -item[1])), len(self)
        if not total:
            return
        yield self.finding("classes", len(counts), classes=format_counts(counts))
        if self.num_multilabel:
            labels = sum(counts.values())
            yield self.finding("multiple_labels", labels, mean=labels / total, unlabeled=self.num_unlabeled)
        if len(counts) < 2:
            yield self.finding("single_class", len(counts))
        elif len(counts) > max(total // 2, 20):
            yield self.finding("too_many_classes", len(counts))
        else:
            yield from self.imbalance_findings(counts)
            rare = {label: count for label, count in counts.items() if count < MIN_CLASS_SAMPLES}
            if rare:
                yield self.finding("rare", len(rare), classes=format_counts(rare))

    def imbalance_findings(self, counts: Mapping[str, int]) -> Iterable[Finding]:
        name, count = next(iter(counts.items()))
        fraction = count / len(self)
        if fraction > MAX_CLASS_FRACTION:
            yield self.finding("imbalance", count, fraction, name=name, percent=100 * fraction)

    def unseen_class_findings(self) -> Iterable[Finding]:
        """Classes of the validation data without training samples."""
        unseen = {label: count for label, count in self.classes.items() if label not in self.train.classes}
        if unseen:
            yield self.finding("unseen_classes", len(unseen), classes=format_counts(unseen))

    def class_counts(self, valid: ClassSurvey[T], name: str = "classes") -> tuple[ClassCounts, ...]:
        return (ClassCounts(name, self.classes, valid.classes),) if 1 < len(self.classes) <= MAX_CLASSES else ()


def format_counts(counts: Mapping[str, int], limit: int = 12) -> str:
    shown = ", ".join(f"{label[:24]}: {count:,}" for label, count in list(counts.items())[:limit])
    return shown + (", …" if len(counts) > limit else "")


def hash_text(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def estimate_tokens(words: int, num_bytes: int) -> int:
    """Estimated number of tokens: at least one per word."""
    return max(words, -(-num_bytes // BYTES_PER_TOKEN))


def error_location(error: DataError) -> Location:
    """Location of an error, with the problem as text."""
    return Location("" if error.path is None else str(error.path), error.line, error.problem)
