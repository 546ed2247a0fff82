"""Reading documents for a check: all text is looked at, and what is kept of it is numbers and hashes."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from regard.data.check.pair_survey import DatasetSurvey, ProgressCallback, estimate_tokens, hash_text
from regard.data.check.report import Location, excerpt
from regard.data.check.text_quality import find_quality_issues, normalize_text
from regard.data.text.documents import Passage, iterate_passages, passage_size
from regard.data.text.files import ErrorHandler
from regard.data.text.formats import TABLE_SUFFIXES, file_format
from regard.data.text.tables import SkippedRow
from regard.errors import DataError

MIN_LINE_LENGTH = 40
"""letters and blanks that a line needs, without punctuation, before it is looked for elsewhere: shorter ones are often alike"""
MAX_LINE_HASHES = 1 << 22
"""lines of which a hash is kept"""
MAX_UNBROKEN_LENGTH = 100_000
"""characters without a blank that are hardly text"""
PROGRESS_INTERVAL = 64
"""passages between two words about how far reading is"""

SIZE_MEASURES = ("characters", "words", "tokens", "bytes")


class LineHashes:
    """Hashes and sizes of long lines, without case and punctuation.

    Beyond `MOST` of them only those are kept whose hash ends in a zero bit, then in two, and so on: which, depends on the
    line alone, so that lines of two sets can be compared, and what is left speaks for all.
    """

    def __init__(self) -> None:
        self.mask = 0
        self.hashes, self.sizes = array("Q"), array("I")

    def add(self, line: str) -> None:
        words = normalize_text(line) if len(line) >= MIN_LINE_LENGTH else ""
        if len(words) < MIN_LINE_LENGTH or not any(
            map(str.isalnum, words)
        ):  # a rule of dashes has nothing in it but itself
            return
        if (known := hash_text(words)) & self.mask:
            return
        self.hashes.append(known)
        self.sizes.append(min(len(line), 0xFFFFFFFF))
        if len(self.hashes) > MAX_LINE_HASHES:
            self.subsample(2 * self.mask + 1)

    def subsample(self, mask: int) -> None:
        self.mask |= mask
        hashes, sizes = self.arrays()
        kept = (hashes & np.uint64(self.mask)) == 0
        self.hashes, self.sizes = (
            array("Q", hashes[kept].tobytes()),
            array("I", sizes[kept].astype(np.uint32).tobytes()),
        )

    def arrays(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        return np.array(self.hashes, dtype=np.uint64), np.array(self.sizes, dtype=np.int64)

    @property
    def sampling_step(self) -> int:
        """One in so many was kept."""
        return self.mask + 1


class DocumentStats:
    """What adds up over the passages of one."""

    def __init__(self, first: Passage, entry: int) -> None:
        self.entry, self.line = entry, first.line
        self.sizes = dict.fromkeys(SIZE_MEASURES, 0)
        self.exact_hash, self.normalized_hash = blake2b(digest_size=8), blake2b(digest_size=8)
        self.unbroken_length = 0
        """characters since the last blank"""

    def add(self, text: str) -> int:
        """Returns how long the stretch without a blank is by now, or was at its end, that reached into this text."""
        words = text.split()
        coded = text.encode("utf-8", "surrogatepass")
        added = len(text), len(words), estimate_tokens(len(words), len(coded)), len(coded)
        for name, size in zip(SIZE_MEASURES, added, strict=True):
            self.sizes[name] += size
        self.exact_hash.update(coded)
        # parts are cut at blanks, so that the words in a row are the same wherever that was
        self.normalized_hash.update(f"{normalize_text(text)} ".encode("utf-8", "surrogatepass"))
        if words == [text]:
            self.unbroken_length += len(text)
            return self.unbroken_length
        joins = self.unbroken_length + (len(words[0]) if words and not text[0].isspace() else 0)
        self.unbroken_length = len(words[-1]) if words and not text[-1].isspace() else 0
        return joins

    def hashes(self) -> tuple[int, int]:
        exact, near = (int.from_bytes(one.digest(), "little") for one in (self.exact_hash, self.normalized_hash))
        return exact, near


class TextSurvey(DatasetSurvey[Passage]):
    """Of each document also its sizes; its lines, and every character.

    Hashes are of the documents (0), and of their words without case and punctuation (1).
    """

    skip_kinds = ("empty", "format")

    def __init__(self, entries: Sequence[str], columns: Mapping[str, str] | None) -> None:
        super().__init__(entries, columns, hashes=2)
        self._passage_size = passage_size(entries)
        self.num_passages = self.num_lines = 0
        """passages, and lines that are not empty"""
        self.characters: set[str] = set()
        """every character that occurs"""
        self.lines = LineHashes()
        self._distinct_hashes: set[int] = set()
        self._sizes = {name: array("Q") for name in SIZE_MEASURES}

    @property
    def can_hold_out(self) -> bool:
        """Whether there are two different passages, of which one could be held out."""
        return len(self._distinct_hashes) > 1

    def sizes(self, kind: str) -> NDArray[np.int64]:
        """(N, 1), as pairs have (N, 2)."""
        return np.array(self._sizes[kind], dtype=np.int64)[:, None]

    def total(self, kind: str) -> int:
        return sum(self._sizes[kind])

    def read(self, progress: ProgressCallback, name: str) -> None:
        for number, entry in enumerate(self.entries):
            document: DocumentStats | None = None
            for passage in self._entry_samples(entry, note=True):
                if passage.starts_document:
                    self._close_document(document)
                    document = DocumentStats(passage, number)
                assert document is not None
                self._add_passage(document, passage)
                if self.num_passages % PROGRESS_INTERVAL == 0:
                    progress(f"reading {name}", self.num_passages)
            self._close_document(document)

    def find_lines(self, hashes: Iterable[int], occurrence: int = 1) -> dict[int, Location]:
        """Where lines stand, given by their hashes, read once more: the first of those alike, or the second."""
        left = dict.fromkeys(hashes, occurrence)
        found: dict[int, Location] = {}
        for passage in self._readable_samples():
            for at, line in enumerate(passage.text.split("\n")):
                if len(line) >= MIN_LINE_LENGTH and (known := hash_text(normalize_text(line))) in left:
                    left[known] -= 1
                    if not left[known]:
                        found[known] = _line_location(passage, at, excerpt(line))
                        del left[known]
            if not left:
                break
        return found

    def _read_entry(self, entry: str, complain: ErrorHandler) -> Iterator[Passage | SkippedRow]:
        heard: set[str] = set()

        def hear(kind: str, error: DataError) -> None:
            heard.add(kind)
            complain(kind, error)

        items = iterate_passages(entry, self.columns, hear, self._passage_size)
        # of a file that is not UTF-8 there is said enough
        return (item for item in items if not (isinstance(item, SkippedRow) and "encoding" in heard))

    def _indexed_samples(self) -> Iterator[Passage]:
        return (passage for passage in self._readable_samples() if passage.starts_document)

    def _preview(self, sample: Passage) -> str:
        return excerpt(sample.text.lstrip())

    def _add_passage(self, document: DocumentStats, passage: Passage) -> None:
        text, before = passage.text, document.unbroken_length
        if before <= MAX_UNBROKEN_LENGTH < document.add(text):
            self.tally("no_whitespace").add(_line_location(passage, 0, excerpt(text)))
        odd, solid = (
            any(find_quality_issues(text)),
            document.unbroken_length > self._passage_size,
        )  # which says itself again and again
        for at, line in enumerate(text.split("\n")):
            self.num_lines += bool(line)
            if not solid:
                self.lines.add(line)
            for kind, place in find_quality_issues(line) if odd else ():
                self.tally(kind).add(_line_location(passage, at, excerpt(line, place)))
        if len(self._distinct_hashes) < 2:
            self._distinct_hashes.add(hash_text(text))
        self.characters.update(text)
        self.num_passages += 1

    def _close_document(self, document: DocumentStats | None) -> None:
        if document is None:
            return
        for name, size in document.sizes.items():
            self._sizes[name].append(size)
        self._append(document.entry, document.line, document.hashes())


def _line_location(passage: Passage, line: int, text: str) -> Location:
    """A line of a passage, counted from 0. A row of a table is one place, however many lines its text has."""
    inside = 0 if file_format(passage.path) in TABLE_SUFFIXES else line
    return Location(passage.path, passage.line + inside, text)
