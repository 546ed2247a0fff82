"""Engine of `regard check`: reads a dataset, keeps numbers and hashes of each sample but no text, and reports findings.

A kind of data is a subclass of `Survey`: a reader, a table of findings, and the measures of a sample. One survey holds one
split. `Survey.check` reads the training and the validation split and compares the two.
"""

from __future__ import annotations

import os
import unicodedata
from abc import ABC, abstractmethod
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from regard.data.check.findings import MIN_CLASS_SAMPLES, FindingTable, find_quality_issues
from regard.data.check.report import MAX_LOCATIONS, ClassCounts, Finding, Lengths, Location, Report, excerpt
from regard.data.file_discovery import Paths
from regard.data.settings import DataSettings
from regard.data.text.files import Columns, chunked, expand_patterns
from regard.data.text.tables import SkippedRow, format_list
from regard.errors import DataError

Indices = NDArray[np.int64]
ProgressCallback = Callable[[str, int], None]  # called with the current stage and the number of processed samples
SampleNote = Callable[[int, Any], str]  # note on a sample and its index
EntryReader = Callable[[str, Columns], Iterator[Any]]

MAX_CLASS_FRACTION = 0.9  # fraction of one class above which a constant prediction scores well
MAX_CLASSES = 1000  # maximum number of classes for a table and a chart: labels with more values are probably texts
BYTES_PER_TOKEN = 4  # UTF-8 bytes per byte-pair token: 3.4 to 4.8 were measured on English and German
MEASURES = ("words", "characters", "tokens")


def no_progress(stage: str, samples: int) -> None:
    """Ignore progress."""


def duplicates(hashes: NDArray[np.integer[Any]]) -> Indices:
    """Indices of the hashes that equal an earlier hash."""
    return np.setdiff1d(np.arange(len(hashes)), np.unique(hashes, return_index=True)[1])


class Survey(ABC):
    """Survey of one split: tallies of findings, and position, hashes and lengths of each usable sample.

    Samples have the attributes `path` and `line`."""

    task: ClassVar[str]
    unit: ClassVar[str]  # plural noun for the samples
    sides: ClassVar[tuple[str, ...]]  # names of the texts with a length
    reader: ClassVar[EntryReader]
    findings: ClassVar[FindingTable]
    leaks: ClassVar[tuple[str, ...]]  # for each hash, the finding for samples also in the training data
    conflict: ClassVar[str] = "conflicting_labels"  # finding for samples with equal inputs and different targets
    counted: ClassVar[str] = "classes"  # name of the class counts; empty for data without classes
    measured: ClassVar[tuple[str, ...]] = ()  # names of the sizes in the report
    size_title: ClassVar[str] = ""
    class_words: Mapping[str, str] = {}  # nouns for classes and counted things in messages
    min_samples: ClassVar[int] = 100
    reports_rare_in_validation: ClassVar[bool] = True
    special_tokens: ClassVar[int | None] = None  # per sample; None: data.max_length does not limit samples
    input_sides: ClassVar[slice] = slice(None)  # sides limited by data.max_length together
    stage: ClassVar[str] = "reading {split} data"  # template of the progress line
    chunk: ClassVar[int] = 4096  # samples between two progress updates

    def __init__(
        self, entries: Sequence[str], columns: Columns = None, settings: DataSettings | None = None, train: Any = None
    ) -> None:
        """`train` is the survey of the training data if this is the survey of the validation data."""
        self.entries, self.columns, self.settings = list(entries), columns, settings or DataSettings()
        self.train = train
        self.base: Any = self if train is None else train  # survey of the training data
        self.valid: Any = None  # survey of the validation data, if this is the survey of the training data
        self.prefix, self.split = ("", "training") if train is None else ("validation: ", "validation")
        self.progress: ProgressCallback = no_progress
        self.tallies: Counter[str] = Counter()  # occurrences of findings counted during reading
        self.tally_locations: defaultdict[str, list[Location]] = defaultdict(list)  # first locations of each
        self.totals: Counter[str] = Counter()  # sums over all samples, such as lines
        self.numbers: dict[str, array[Any]] = {}  # columns of numbers by name, with equally many numbers per sample
        self.counters: defaultdict[str, Counter[Any]] = defaultdict(Counter)  # frequencies of classes and other values
        self._entry = 0

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
        train.valid = cls(valid_entries, columns, settings, train)
        return train.report(progress)

    def report(self, progress: ProgressCallback) -> Report:
        """Report about the training data and, if there are any, the validation data."""
        splits = [self, self.valid] if self.valid.entries else [self]
        for survey in splits:
            survey.read(progress)
        findings = tuple(finding for survey in splits for finding in survey.split_findings())
        counts = self.counts()
        if self.valid.entries:
            counts |= {f"validation_{name}": count for name, count in self.valid.counts().items()}
        classes, sizes = self.class_counts(self.valid), {name: self.values(name) for name in self.measured}
        return Report(self.task, counts, findings, self.lengths(), (), classes, sizes or None, self.size_title)

    @classmethod
    def find_entries(cls, data: Paths, valid: Paths, columns: Columns) -> tuple[list[str], list[str]]:
        """Entries of the training and of the validation data."""
        return expand_patterns(data), expand_patterns(valid)

    # -- hooks of the kinds of data

    def _read_entry(self, entry: str) -> Iterator[Any]:
        """Samples, skipped rows and errors of rows of an entry. Raised errors of this call end the check; raised errors of
        the iterator become findings.

        By default, the reader is called lazily, so that its errors before the first row become findings."""
        yield from type(self).reader(entry, self.columns)

    @abstractmethod
    def _preview(self, sample: Any) -> str:
        """A sample in one short line."""

    def _add_sample(self, sample: Any) -> None:
        """Count a sample, and keep its measures."""
        raise NotImplementedError  # surveys of files add samples in another way

    def own_findings(self) -> Iterable[Finding]:
        """Findings of this kind of data about all samples of this split."""
        return ()

    def counts(self) -> dict[str, int]:
        """Printed counts of samples and files."""
        return {self.unit: len(self), "files": sum(len(self._entry_files(entry)) for entry in self.entries)}

    def sample_tokens(self) -> Indices:
        """Estimated tokens of each sample, at most data.max_length."""
        tokens: Indices = self.sizes("tokens")[:, self.input_sides].sum(axis=1) + (self.special_tokens or 0)
        return tokens

    def lengths(self) -> Lengths:
        words, characters, tokens = map(self.sizes, MEASURES)
        names = self.sides[: words.shape[1]]
        return Lengths(words, characters, tokens, self.settings.max_length, names=names, unit=self.unit)

    def _entry_files(self, entry: str) -> Sequence[str]:
        """Files that are read, without the files of samples; an error ends the check."""
        return (entry,)

    def _location(self, path: str, line: int, text: str = "", side: int = 0) -> Location:
        """Location of a sample; with parallel files, the file of this side."""
        return Location(path, line, text)

    # -- numbers

    def __len__(self) -> int:
        return len(self.numbers.get("line", ()))

    @property
    def rows(self) -> int:
        """Number of samples and excluded rows."""
        dropped = (key for key, spec in self.findings.items() if spec.drops)
        return len(self) + sum(self.tallies[key] for key in dropped)

    def keep(self, name: str, *values: float, kind: str = "Q") -> None:
        """Add numbers to a column; `kind` is the type of the `array`."""
        self.numbers.setdefault(name, array(kind)).extend(values)

    def values(self, name: str) -> NDArray[Any]:
        """Column of numbers as float64 or int64, in which large hashes become negative."""
        column = self.numbers.get(name, array("Q"))
        return np.array(column, dtype=np.float64 if column.typecode in "fd" else np.int64)

    def hashes(self, kind: int) -> Indices:
        """(N,) hashes of this kind, counted in the order of `leaks`."""
        return self.values("hash").reshape(-1, len(self.leaks))[:, kind]

    def sizes(self, measure: str) -> Indices:
        """(N, sides) words, characters or estimated tokens."""
        sizes = self.values("size").reshape(-1, len(self.sides), len(MEASURES))
        return sizes[:, :, MEASURES.index(measure)]

    # -- reading

    def read(self, progress: ProgressCallback = no_progress) -> None:
        self.progress = progress
        for number, entry in enumerate(self.entries):
            self._entry = number
            self._survey_entry(entry)

    def _survey_entry(self, entry: str) -> None:
        for chunk in chunked(self._entry_samples(entry, note=True), self.chunk):
            self._add_chunk(chunk)
            self.totals["samples"] += len(chunk)
            self.progress(self.stage.format(split=self.split, unit=self.unit), self.totals["samples"])

    def _add_chunk(self, samples: Sequence[Any]) -> None:
        for sample in samples:
            self._add_sample(sample)

    def tally(self, key: str, location: Location | DataError) -> None:
        """Count an occurrence of a finding, and keep the first locations."""
        self.tallies[key] += 1
        if isinstance(location, DataError):
            location = Location(str(location.path or ""), location.line, location.problem)
        if self.tallies[key] <= MAX_LOCATIONS:
            self.tally_locations[key].append(location)

    def _indexed_samples(self) -> Iterator[Any]:
        """All samples in the order of their indices."""
        for entry in self.entries:
            yield from self._entry_samples(entry)

    def _entry_samples(self, entry: str, note: bool = False) -> Iterator[Any]:
        """Readable samples of an entry, the same in every pass; with `note`, all other rows become findings."""
        for path in map(os.path.expanduser, self._entry_files(entry)):
            if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
                problem = "is a pipe, but a check reads files more than once."
                raise DataError(problem, path, advice="Write a file, or pipe the data into --data - instead.")

        items = self._read_entry(entry)
        try:
            for item in items:
                if isinstance(item, DataError):
                    if note:
                        self.tally(item.kind, item)
                elif not isinstance(item, SkippedRow):
                    yield item
                elif note:
                    self.tally("empty", self._location(item.path, item.line, item.reason))
        except DataError as error:  # reading cannot continue, for example in a damaged archive
            # the only error of the file, so the advice fits into the location
            problem = f"{error.problem} {error.advice}".rstrip()
            if note:
                self.tally("unreadable", DataError(problem, error.path, error.line))

    def _append(self, line: int, hashes: Iterable[int]) -> None:
        self.keep("entry", self._entry, kind="I")
        self.keep("line", line)
        self.keep("hash", *hashes)

    def _append_texts(
        self, sample: Any, texts: Sequence[str], contents: Sequence[str], checked_texts: Sequence[str] | None = None
    ) -> None:
        """Keep the lengths of the text of each side, and hashes of the contents: the whole sample, the input without the
        target, and further ones. Damage is counted in the texts of the sides, or in `checked_texts`."""
        self._tally_quality_issues(sample, texts if checked_texts is None else checked_texts)
        self._keep_sizes(texts)
        self._append(sample.line, map(hash_text, contents))

    def _keep_sizes(self, texts: Sequence[str]) -> None:
        """Keep the lengths of the text of each side."""
        for text in texts:
            words = len(text.split())
            tokens = estimate_tokens(words, len(text.encode("utf-8", "surrogatepass")))
            self.keep("size", words, len(text), tokens, kind="I")

    def _tally_quality_issues(self, sample: Any, texts: Iterable[str]) -> None:
        """Count each kind of issue once per sample, at the first occurrence."""
        first: dict[str, Location] = {}
        for side, text in enumerate(texts):
            for key, position in find_quality_issues(text):
                first.setdefault(key, self._location(sample.path, sample.line, excerpt(text, position), side))
        for key, location in first.items():
            self.tally(key, location)

    # -- locations

    def locations(
        self, indices: Iterable[int], note: SampleNote | None = None, preview: SampleNote | None = None
    ) -> tuple[Location, ...]:
        """Locations of the first few of these samples, read again for a preview, which is followed by the note."""
        shown = sorted(map(int, indices))[:MAX_LOCATIONS]
        locations: list[Location] = []
        for index, sample in enumerate(islice(self._indexed_samples(), shown[-1] + 1)):
            if index in shown:
                text = preview(index, sample) if preview else self._preview(sample)
                text += f"  ({note(index, sample)})" if note else ""
                locations.append(self._location(sample.path, sample.line, text))
        return tuple(locations)

    def location_name(self, index: int, reference: int | None = None) -> str:
        """Location of a sample without a preview; only the line if the reference sample is in the same file."""
        entries, line = self.numbers["entry"], self.numbers["line"][index]
        location = self._location(self._entry_files(self.entries[entries[index]])[0], line)
        if reference is not None and entries[index] == entries[reference]:
            return f"{location.unit or 'line'} {line}"
        return str(location)

    # -- findings

    def finding(
        self, key: str, count: int = 0, fraction: float = 0.0, locations: Sequence[Location] = (), **values: Any
    ) -> Finding:
        """Finding from the table; the values are inserted into message and advice."""
        spec = self.findings[key]
        frequent = spec.frequent if fraction > spec.high else None
        values |= {"unit": self.unit, **self.class_words}
        return Finding(
            frequent or spec.severity,
            key.partition(":")[0],
            self.prefix + spec.message.format(**values),
            count,
            fraction,
            tuple(locations),
            spec.advice.format(**values),
        )

    def sample_findings(
        self, key: str, indices: Indices, note: SampleNote | None = None, count: int = 0, **values: Any
    ) -> Iterable[Finding]:
        """Finding about the samples of these indices, or none if the table lacks the key or there are no samples."""
        if key in self.findings and len(indices):
            count = count or len(indices)
            yield self.finding(key, count, count / self.rows, self.locations(indices, note), **values)

    def split_findings(self) -> Iterable[Finding]:
        """Findings about this split: tallies in the order of the table, then findings about all samples."""
        for key, spec in self.findings.items():
            if count := self.tallies[key]:
                population = self.totals.get(spec.per, self.rows)
                fraction = 0.0 if spec.per == "files" else count / max(population, 1)
                yield self.finding(key, count, fraction, self.tally_locations[key])
        units = self.num_units()
        if not units:
            yield self.finding("few:none")
        elif self.train is None:
            if not self.valid.entries and not self.can_split():
                yield self.finding("few:split", units)
            elif units < self.min_samples:
                yield self.finding("few:small", units)
        if "classes" in self.findings:
            yield from self.class_findings()
        yield from self.own_findings()
        yield from self.duplicate_findings()
        if self.special_tokens is not None:
            tokens = self.sample_tokens()
            long = np.flatnonzero(tokens > self.settings.max_length)
            limit = self.token_limit
            yield from self.sample_findings("long", long, lambda n, _: f"about {tokens[n]:,} tokens", limit=limit)
        if self.train is not None:
            yield from self.comparison_findings()

    def num_units(self) -> int:
        """Number of samples, or of other units of the size of a dataset."""
        return len(self)

    def can_split(self) -> bool:
        """True if the data has two different inputs."""
        return len(np.unique(self.hashes(1))) > 1

    def duplicate_findings(self) -> Iterable[Finding]:
        """Repeated samples, and repeated inputs with different targets."""
        samples, inputs = self.hashes(0), self.hashes(1)
        repeated = duplicates(samples)
        yield from self.sample_findings("duplicates", repeated, self._first_equal(0, self, "same as"))
        unique = np.setdiff1d(np.arange(len(samples)), repeated)
        conflicts = unique[duplicates(inputs[unique])]
        # a source with several targets is counted once
        count = len(np.unique(inputs[conflicts])) if self.conflict == "multiple_targets" else 0
        yield from self.sample_findings(self.conflict, conflicts, self._first_equal(1, self, "also in"), count)

    def _first_equal(self, kind: int, survey: Survey, relation: str) -> SampleNote:
        """Note on a sample: the first sample of the survey with an equal hash."""
        hashes, others = self.hashes(kind), survey.hashes(kind)

        def note(n: int, _: Any) -> str:
            first = int(np.argmax(others == hashes[n]))
            return f"{relation} {survey.location_name(first, n if survey is self else None)}"

        return note

    @property
    def token_limit(self) -> str:
        """Limit of the length, for messages."""
        estimate = f"(estimate: {BYTES_PER_TOKEN} bytes per token, at least one token per word)"
        return f"data.max_length={self.settings.max_length:,} tokens {estimate}"

    def comparison_findings(self) -> Iterable[Finding]:
        """Classes of the validation data without training samples, and validation samples also present in the training data,
        each counted once, by the first hash in common."""
        if "unseen_classes" in self.findings and (unseen := self.unseen_classes()):
            yield self.finding("unseen_classes", len(unseen), classes=format_counts(unseen))
        remaining = np.arange(len(self))
        for kind, key in enumerate(self.leaks if len(self) else ()):
            is_known = np.isin(self.hashes(kind)[remaining], self.train.hashes(kind))
            leaked, remaining = remaining[is_known], remaining[~is_known]
            yield from self.sample_findings(key, leaked, self._first_equal(kind, self.train, "in training data:"))

    # -- findings about classes

    @property
    def classes(self) -> Counter[str]:
        """Number of samples of each class."""
        return self.counters["classes"]

    def class_findings(self) -> Iterable[Finding]:
        """Distribution of the classes."""
        if not len(self):
            return
        counts, total = dict(self.classes.most_common()), self.classes.total()
        yield self.finding("classes", len(counts), classes=format_counts(counts))
        if "unlabeled" in self.numbers:
            labels, total, unlabeled = total, len(self), int(self.values("unlabeled").sum())
            yield self.finding("multiple_labels", labels, mean=labels / total, unlabeled=unlabeled)
        if len(counts) < 2:
            yield self.finding("single_class", len(counts))
        elif len(counts) > max(total // 2, 20):
            yield self.finding("too_many_classes", len(counts))
        else:
            yield from self.imbalance_findings(total)
            rare = {label: count for label, count in counts.items() if count < MIN_CLASS_SAMPLES}
            if rare and (self.train is None or self.reports_rare_in_validation):
                yield self.finding("rare", len(rare), classes=format_counts(rare))

    def imbalance_findings(self, total: int) -> Iterable[Finding]:
        name, count = self.classes.most_common(1)[0]
        fraction = count / total
        if fraction > MAX_CLASS_FRACTION:
            yield self.finding("imbalance", count, fraction, name=name, percent=100 * fraction)

    def unseen_classes(self) -> dict[str, int]:
        """Number of validation samples of each class without training samples."""
        return {label: count for label, count in self.classes.items() if label not in self.train.classes}

    def shows_classes(self, valid: Any) -> bool:
        """Whether the report contains the class counts."""
        return 1 < len(self.classes) <= MAX_CLASSES

    def class_counts(self, valid: Any) -> tuple[ClassCounts, ...] | None:
        """Class counts of the training split and of the validation split; None for data without classes."""
        if not self.counted:
            return None
        valid_classes = valid.classes if valid.entries else {}
        return (ClassCounts(self.counted, self.classes, valid_classes),) if self.shows_classes(valid) else ()


def format_counts(counts: Mapping[str, int]) -> str:
    return format_list(f"{label[:24]}: {count:,}" for label, count in counts.items()) if counts else ""


class _NormalizationTable(dict[int, str | None]):
    """Table for `str.translate` without punctuation, symbols and control characters, filled on first use."""

    def __missing__(self, code: int) -> str | None:
        kind = unicodedata.category(chr(code))[0]
        self[code] = result = " " if kind == "Z" else None if kind in "PSC" else chr(code)
        return result


_NORMALIZATION = _NormalizationTable({ord("\t"): " ", ord("\n"): " "})


def normalize_text(text: str) -> str:
    """Text without case, punctuation and repeated spaces; a text of punctuation only is unchanged."""
    return " ".join(text.casefold().translate(_NORMALIZATION).split()) or text


def hash_text(text: str | bytes) -> int:
    content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little")


def estimate_tokens(words: int, num_bytes: int) -> int:
    """Estimated number of tokens: at least one per word."""
    return max(words, -(-num_bytes // BYTES_PER_TOKEN))
