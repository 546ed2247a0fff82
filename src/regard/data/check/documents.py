"""Checks of documents for language modeling and for pretraining of encoders."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.check.engine import (
    COUNT_FINDINGS,
    FILE_FINDINGS,
    HIGH_FRACTION,
    QUALITY_FINDINGS,
    Columns,
    FindingTable,
    Paths,
    SortedHashes,
    Spec,
    Survey,
    estimate_tokens,
    hash_text,
)
from regard.data.check.report import MAX_LOCATIONS, Finding, Lengths, Location, Severity, excerpt
from regard.data.check.text_quality import find_quality_issues, normalize_text
from regard.data.text.documents import (
    Passage,
    check_columns,
    iterate_passages,
    passage_size,
    text_files,
)
from regard.data.text.files import ErrorHandler
from regard.data.text.formats import TABLE_SUFFIXES, file_format
from regard.data.text.tables import SkippedRow
from regard.errors import DataError

MIN_REPEATED_FRACTION = 0.01
"""fraction of the text above which repeated lines are reported"""
MIN_LINE_LENGTH = 40
"""minimum number of letters and spaces of a line to compare: short lines often repeat by chance"""
MAX_LINE_HASHES = 1 << 22
MAX_UNBROKEN_LENGTH = 100_000
"""characters without a space above which a section is hardly text"""
PROGRESS_INTERVAL = 64
"""passages between two progress updates"""

LEAK_ADVICE = "Remove the duplicates from one of the two sets; otherwise, the validation loss is too low."

TEXT_FINDINGS: FindingTable = {
    "unreadable": FILE_FINDINGS["unreadable"],
    "format": FILE_FINDINGS["format"],
    "empty": Spec("warning", "empty documents", "Training skips these documents.", "error", drops=True),
    "encoding": FILE_FINDINGS["encoding"]._replace(drops=False, per="lines"),
    **{
        key: spec._replace(message=spec.message.replace("rows with", "lines with"), per="lines")
        for key, spec in QUALITY_FINDINGS.items()
    },
    "markup": Spec(
        "note", "lines with HTML entities or tags, such as &amp;",
        "Unescape the entities, unless the model should generate HTML.", per="lines",
    ),
    "no_whitespace": Spec(
        "warning", f"sections of more than {MAX_UNBROKEN_LENGTH:,} characters without a space",
        "Check whether these sections are text: encoded images and programs look similar.", per="passages",
    ),
    "few:none": Spec("error", "no text found", "A document must contain more than whitespace."),
    "few:split": Spec(
        "error", "characters in a single passage, so no validation split is possible",
        "Add text, or pass separate validation data with --valid.",
    ),
    "few:small": Spec(
        "warning", "small dataset, number of characters",
        "The model will memorize the text. Aim for several million characters or more.",
    ),
    "duplicates": COUNT_FINDINGS["duplicates"],
    "duplicate_lines": Spec(
        "note", f"duplicate lines of at least {MIN_LINE_LENGTH} characters{{sampling}}, with percentage of all text",
        "Consider removing repeated headers and notices.", "warning",
    ),
    "leak": Spec("error", "documents also present in the training data", LEAK_ADVICE),
    "leak_near_duplicate": Spec(
        "warning", "documents also present in the training data, ignoring case, whitespace and punctuation",
        LEAK_ADVICE,
    ),
    "leak_lines": Spec(
        "note",
        f"lines of at least {MIN_LINE_LENGTH} characters also present in the training data{{sampling}}, "
        "with percentage of all text",
        "A few identical lines are coincidence. If there are many, validate on text outside the training data.",
    ),
}  # fmt: skip
DOCUMENT_FINDINGS: FindingTable = {
    **TEXT_FINDINGS,
    "single_document": Spec(
        "warning", "too few documents for next-sentence prediction (BERT), at least two required",
        "Save each document in a separate file, or in a separate row of JSONL or Parquet; "
        "or train with --set model.nsp=false.",
    ),
}  # fmt: skip


class LineHashes:
    """Hashes and sizes of long lines, without case and punctuation.

    Above `MAX_LINE_HASHES`, only hashes with one zero bit at the end are kept, then with two, and so on. The choice depends
    only on the line, so lines of two datasets can be compared, and the sample represents all lines.
    """

    def __init__(self) -> None:
        self.mask = 0
        self.hashes, self.sizes = array("Q"), array("I")

    def add(self, line: str) -> None:
        words = normalize_text(line) if len(line) >= MIN_LINE_LENGTH else ""
        # a line of dashes is normalized to itself
        if len(words) < MIN_LINE_LENGTH or not any(map(str.isalnum, words)):
            return
        if (line_hash := hash_text(words)) & self.mask:
            return
        self.hashes.append(line_hash)
        self.sizes.append(min(len(line), 0xFFFFFFFF))
        if len(self.hashes) > MAX_LINE_HASHES:
            self.subsample(2 * self.mask + 1)

    def subsample(self, mask: int) -> None:
        self.mask |= mask
        hashes, sizes = self.arrays()
        kept = (hashes & np.uint64(self.mask)) == 0
        self.hashes = array("Q", hashes[kept].tobytes())
        self.sizes = array("I", sizes[kept].astype(np.uint32).tobytes())

    def arrays(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        return np.array(self.hashes, dtype=np.uint64), np.array(self.sizes, dtype=np.int64)

    @property
    def sampling_step(self) -> int:
        """Number of lines per kept line."""
        return self.mask + 1


class DocumentStats:
    """Sums over the passages of one document."""

    def __init__(self, first: Passage) -> None:
        self.line = first.line
        self.sizes = [0, 0, 0]
        """words, characters and estimated tokens"""
        self.num_bytes = 0
        self.exact_hash, self.normalized_hash = blake2b(digest_size=8), blake2b(digest_size=8)
        self.unbroken_length = 0
        """characters since the last space"""

    def add(self, text: str) -> int:
        """Add a passage; returns the length of the section without a space at the start of the passage, including the
        characters of previous passages."""
        words = text.split()
        encoded = text.encode("utf-8", "surrogatepass")
        added = len(words), len(text), estimate_tokens(len(words), len(encoded))
        self.sizes = [total + size for total, size in zip(self.sizes, added, strict=True)]
        self.num_bytes += len(encoded)
        self.exact_hash.update(encoded)
        # passages end at spaces, so the sequence of words does not depend on the division into passages
        self.normalized_hash.update(f"{normalize_text(text)} ".encode("utf-8", "surrogatepass"))
        if words == [text]:
            self.unbroken_length += len(text)
            return self.unbroken_length
        length = self.unbroken_length + (len(words[0]) if words and not text[0].isspace() else 0)
        self.unbroken_length = len(words[-1]) if words and not text[-1].isspace() else 0
        return length


class TextSurvey(Survey[Passage]):
    """Survey of documents: also their lines and characters.

    Hashes are of the documents (0), and of the documents without case, whitespace and punctuation (1).
    """

    task, unit, sides = "lm", "documents", ("document",)
    findings = TEXT_FINDINGS
    leaks = ("leak", "leak_near_duplicate")
    num_hashes = 2
    min_samples = 200_000
    size_type = "Q"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._passage_size = passage_size(self.entries)
        self.num_passages = self.num_lines = self.num_bytes = 0
        self.characters: set[str] = set()
        self.lines = LineHashes()
        self._passage_hashes: set[int] = set()
        """hashes of at most two different passages"""

    @classmethod
    def find_entries(cls, data: Paths, valid: Paths, columns: Columns) -> tuple[list[str], list[str]]:
        train_entries, valid_entries = list(text_files(data)), list(text_files(valid))
        check_columns([*train_entries, *valid_entries], columns)
        return train_entries, valid_entries

    def _survey_entry(self, samples: Iterator[Passage]) -> None:
        document: DocumentStats | None = None
        for passage in samples:
            if passage.starts_document:
                self._close_document(document)
                document = DocumentStats(passage)
            self._add_sample(passage, document)
            if self.num_passages % PROGRESS_INTERVAL == 0:
                self._report_progress(self.num_passages)
        self._close_document(document)

    def _add_sample(self, sample: Passage, stats: Any = None) -> None:
        """Count a passage of the document with these statistics."""
        document: DocumentStats = stats
        text, length_before = sample.text, document.unbroken_length
        if length_before <= MAX_UNBROKEN_LENGTH < document.add(text):
            self.tally("no_whitespace").add(_line_location(sample, 0, excerpt(text)))
        has_issues = any(find_quality_issues(text))
        is_unbroken = document.unbroken_length > self._passage_size  # such text repeats itself
        for number, line in enumerate(text.split("\n")):
            self.num_lines += bool(line)
            if not is_unbroken:
                self.lines.add(line)
            for key, position in find_quality_issues(line) if has_issues else ():
                self.tally(key).add(_line_location(sample, number, excerpt(line, position)))
        if len(self._passage_hashes) < 2:
            self._passage_hashes.add(hash_text(text))
        self.characters.update(text)
        self.num_passages += 1

    def _close_document(self, document: DocumentStats | None) -> None:
        if document is None:
            return
        for column, size in zip(self._sizes, document.sizes, strict=True):
            column.append(size)
        self.num_bytes += document.num_bytes
        digests = document.exact_hash.digest(), document.normalized_hash.digest()
        self._append(document.line, (int.from_bytes(digest, "little") for digest in digests))

    def _read_entry(self, entry: str, on_error: ErrorHandler) -> Iterator[Passage | SkippedRow]:
        keys: set[str] = set()

        def record_error(key: str, error: DataError) -> None:
            keys.add(key)
            on_error(key, error)

        items = iterate_passages(entry, self.columns, record_error, self._passage_size)
        # only the encoding is reported for a file with invalid UTF-8
        return (item for item in items if not (isinstance(item, SkippedRow) and "encoding" in keys))

    def _indexed_samples(self) -> Iterator[Passage]:
        return (passage for passage in self._readable_samples() if passage.starts_document)

    def _preview(self, sample: Passage) -> str:
        return excerpt(sample.text.lstrip())

    def find_lines(self, hashes: Iterable[int], occurrence: int = 1) -> dict[int, Location]:
        """Locations of the first or the second line with each hash, read again."""
        remaining = dict.fromkeys(hashes, occurrence)
        locations: dict[int, Location] = {}
        for passage in self._readable_samples():
            for number, line in enumerate(passage.text.split("\n")):
                if len(line) >= MIN_LINE_LENGTH and (line_hash := hash_text(normalize_text(line))) in remaining:
                    remaining[line_hash] -= 1
                    if not remaining[line_hash]:
                        locations[line_hash] = _line_location(passage, number, excerpt(line))
                        del remaining[line_hash]
            if not remaining:
                break
        return locations

    def total(self, measure: str) -> int:
        return int(self.sizes(measure).sum())

    def _population(self, per: str) -> int:
        return {"rows": self.rows, "lines": self.num_lines, "passages": self.num_passages}[per]

    def counts(self) -> dict[str, int]:
        return {
            "documents": len(self),
            "files": len(self.entries),
            "lines": self.num_lines,
            "words": self.total("words"),
            "characters": self.total("characters"),
            "unique_characters": len(self.characters),
            "bytes": self.num_bytes,
        }

    def lengths(self) -> Lengths:
        return replace(super().lengths(), max_length=0)

    def split_findings(self) -> Iterable[Finding]:
        yield from self.count_findings(self.total("characters"), len(self._passage_hashes) > 1)
        yield from self.duplicate_findings()
        repeated = SortedHashes(self.lines.arrays()[0]).duplicates()
        if self._text_fraction(repeated) > MIN_REPEATED_FRACTION:
            yield self._line_finding("duplicate_lines", repeated, self, "same as")

    def comparison_findings(self, splits: Sequence[Any]) -> Iterable[Finding]:
        """Leaked documents, and leaked passages, which are found by their lines."""
        yield from self.leak_findings()
        for survey, other in ((self.train, self), (self, self.train)):
            survey.lines.subsample(other.lines.mask)
        leaked = np.flatnonzero(np.isin(self.lines.arrays()[0], self.train.lines.arrays()[0]))
        if len(leaked):
            fraction = self._text_fraction(leaked)
            is_high, is_low = fraction > HIGH_FRACTION, fraction <= MIN_REPEATED_FRACTION
            severity: Severity = "error" if is_high else "note" if is_low else "warning"
            yield self._line_finding("leak_lines", leaked, self.train, "in training data:", severity)

    def _text_fraction(self, lines: NDArray[np.int64]) -> float:
        """Characters of these lines as a fraction of all text, extrapolated from the sample of lines."""
        characters = int(self.lines.arrays()[1][lines].sum())
        return min(1.0, self.lines.sampling_step * characters / max(self.total("characters"), 1))

    def _line_finding(
        self, key: str, lines: NDArray[np.int64], other: TextSurvey, word: str, severity: Severity | None = None
    ) -> Finding:
        """Finding about lines also present in another survey, or earlier in the same survey."""
        step = self.lines.sampling_step
        first = list(dict.fromkeys(self.lines.arrays()[0][lines].tolist()))[:MAX_LOCATIONS]
        locations, origins = self.find_lines(first, occurrence=2 if other is self else 1), other.find_lines(first)
        return self.finding(
            key,
            len(lines) * step,
            self._text_fraction(lines),
            _join_locations(locations, origins, word),
            severity,
            sampling=f", estimated from 1 in {step} lines" if step > 1 else "",
        )


class DocumentSurvey(TextSurvey):
    """Survey of documents for pretraining of encoders, with next-sentence prediction across documents."""

    task = "mlm"
    findings = DOCUMENT_FINDINGS

    def comparison_findings(self, splits: Sequence[Any]) -> Iterable[Finding]:
        yield from super().comparison_findings(splits)
        if len(self.train) == 1:
            yield self.train.finding("single_document", 1)


def _line_location(passage: Passage, line: int, text: str) -> Location:
    """Location of a line of a passage, counted from 0. In a table, the location of the row."""
    offset = 0 if file_format(passage.path) in TABLE_SUFFIXES else line
    return Location(passage.path, passage.line + offset, text)


def _join_locations(
    locations: Mapping[int, Location], origins: Mapping[int, Location], word: str
) -> tuple[Location, ...]:
    """Locations, each with the location of the same line elsewhere in parentheses."""
    joined = []
    for key, location in locations.items():
        text = location.text
        if (origin := origins.get(key)) is not None:
            is_same_file = origin.path == location.path
            place = f"line {origin.line}" if is_same_file else f"{origin.path}:{origin.line}"
            text = f"{text}  ({word} {place})"
        joined.append(replace(location, text=text))
    return tuple(joined)
