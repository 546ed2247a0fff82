"""Reading documents for a check: all text is looked at, and what is kept of it is numbers and hashes."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from regard.data.check.findings import Place, excerpt
from regard.data.check.pair_survey import Advance, Surveyed, estimated, hashed
from regard.data.check.text_quality import bare, oddities
from regard.data.text.documents import TABLES, Passage, iterate_file, passage_size
from regard.data.text.files import Complain
from regard.data.text.tables import Empty, format_of
from regard.errors import DataError

LINE = 40
"""letters and blanks that a line needs, without punctuation, before it is looked for elsewhere: shorter ones are often alike"""
MOST = 1 << 22
"""lines of which a hash is kept"""
SOLID = 100_000
"""characters without a blank that are hardly text"""
OFTEN = 64
"""passages between two words about how far reading is"""

SIZES = ("characters", "words", "tokens", "bytes")


class Lines:
    """Hashes and sizes of long lines, without case and punctuation.

    Beyond `MOST` of them only those are kept whose hash ends in a zero bit, then in two, and so on: which, depends on the
    line alone, so that lines of two sets can be compared, and what is left speaks for all.
    """

    def __init__(self) -> None:
        self.mask = 0
        self.hashes, self.sizes = array("Q"), array("I")

    def add(self, line: str) -> None:
        words = bare(line) if len(line) >= LINE else ""
        if len(words) < LINE or not any(map(str.isalnum, words)):  # a rule of dashes has nothing in it but itself
            return
        if (known := hashed(words)) & self.mask:
            return
        self.hashes.append(known)
        self.sizes.append(min(len(line), 0xFFFFFFFF))
        if len(self.hashes) > MOST:
            self.thin(2 * self.mask + 1)

    def thin(self, mask: int) -> None:
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
    def step(self) -> int:
        """One in so many was kept."""
        return self.mask + 1


class Document:
    """What adds up over the passages of one."""

    def __init__(self, first: Passage, entry: int) -> None:
        self.entry, self.line = entry, first.line
        self.sizes = dict.fromkeys(SIZES, 0)
        self.exact, self.near = blake2b(digest_size=8), blake2b(digest_size=8)
        self.run = 0
        """characters since the last blank"""

    def add(self, text: str) -> int:
        """Returns how long the stretch without a blank is by now, or was at its end, that reached into this text."""
        words = text.split()
        coded = text.encode("utf-8", "surrogatepass")
        added = len(text), len(words), estimated(len(words), len(coded)), len(coded)
        for name, size in zip(SIZES, added, strict=True):
            self.sizes[name] += size
        self.exact.update(coded)
        # parts are cut at blanks, so that the words in a row are the same wherever that was
        self.near.update(f"{bare(text)} ".encode("utf-8", "surrogatepass"))
        if words == [text]:
            self.run += len(text)
            return self.run
        joins = self.run + (len(words[0]) if words and not text[0].isspace() else 0)
        self.run = len(words[-1]) if words and not text[-1].isspace() else 0
        return joins

    def hashes(self) -> tuple[int, int]:
        exact, near = (int.from_bytes(one.digest(), "little") for one in (self.exact, self.near))
        return exact, near


class TextSurvey(Surveyed[Passage]):
    """Of each document also its sizes; its lines, and every character.

    Hashes are of the documents (0), and of their words without case and punctuation (1).
    """

    left_out = ("empty", "format")

    def __init__(self, entries: Sequence[str], columns: Mapping[str, str] | None) -> None:
        super().__init__(entries, columns, hashes=2)
        self._size = passage_size(entries)
        self.passages = self.many = 0
        """passages, and lines that are not empty"""
        self.letters: set[str] = set()
        """every character that occurs"""
        self.lines = Lines()
        self._different: set[int] = set()
        self._sizes = {name: array("Q") for name in SIZES}

    @property
    def can_hold_out(self) -> bool:
        """Whether there are two different passages, of which one could be held out."""
        return len(self._different) > 1

    def sizes(self, kind: str) -> NDArray[np.int64]:
        """(N, 1), as pairs have (N, 2)."""
        return np.array(self._sizes[kind], dtype=np.int64)[:, None]

    def total(self, kind: str) -> int:
        return sum(self._sizes[kind])

    def read(self, advance: Advance, name: str) -> None:
        for number, entry in enumerate(self.entries):
            document: Document | None = None
            for passage in self._usable(entry, note=True):
                if passage.opens:
                    self._close(document)
                    document = Document(passage, number)
                assert document is not None
                self._look(document, passage)
                if self.passages % OFTEN == 0:
                    advance(f"reading {name}", self.passages)
            self._close(document)

    def find(self, hashes: Iterable[int], which: int = 1) -> dict[int, Place]:
        """Where lines stand, given by their hashes, read once more: the first of those alike, or the second."""
        left = dict.fromkeys(hashes, which)
        found: dict[int, Place] = {}
        for passage in self._everything():
            for at, line in enumerate(passage.text.split("\n")):
                if len(line) >= LINE and (known := hashed(bare(line))) in left:
                    left[known] -= 1
                    if not left[known]:
                        found[known] = _place(passage, at, excerpt(line))
                        del left[known]
            if not left:
                break
        return found

    def _items(self, entry: str, complain: Complain) -> Iterator[Passage | Empty]:
        heard: set[str] = set()

        def hear(kind: str, error: DataError) -> None:
            heard.add(kind)
            complain(kind, error)

        items = iterate_file(entry, self.columns, hear, self._size)
        # of a file that is not UTF-8 there is said enough
        return (item for item in items if not (isinstance(item, Empty) and "encoding" in heard))

    def _numbered(self) -> Iterator[Passage]:
        return (passage for passage in self._everything() if passage.opens)

    def _shown(self, sample: Passage) -> str:
        return excerpt(sample.text.lstrip())

    def _look(self, document: Document, passage: Passage) -> None:
        text, before = passage.text, document.run
        if before <= SOLID < document.add(text):
            self.tally("solid").add(_place(passage, 0, excerpt(text)))
        odd, solid = any(oddities(text)), document.run > self._size  # which says itself again and again
        for at, line in enumerate(text.split("\n")):
            self.many += bool(line)
            if not solid:
                self.lines.add(line)
            for kind, place in oddities(line) if odd else ():
                self.tally(kind).add(_place(passage, at, excerpt(line, place)))
        if len(self._different) < 2:
            self._different.add(hashed(text))
        self.letters.update(text)
        self.passages += 1

    def _close(self, document: Document | None) -> None:
        if document is None:
            return
        for name, size in document.sizes.items():
            self._sizes[name].append(size)
        self._keep(document.entry, document.line, document.hashes())


def _place(passage: Passage, line: int, text: str) -> Place:
    """A line of a passage, counted from 0. A row of a table is one place, however many lines its text has."""
    inside = 0 if format_of(passage.path) in TABLES else line
    return Place(passage.path, passage.line + inside, text)
