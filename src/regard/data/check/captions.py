"""What is wrong with pictures and their captions, before an hour is lost on them. Every picture is decoded.

What must be put right is an error: training would stop at it, or learn from it what nobody wants. "Much" is more than a
tenth of the pictures, or of the captions.

| finding        | what it is                                                    | error   | warning | note   |
|----------------|---------------------------------------------------------------|---------|---------|--------|
| unreadable, encoding, format, missing, broken | as of other tables of pictures | always  |         |        |
| empty          | rows without a picture or with a blank caption                | if much | else    |        |
| tiny, stripe, huge, blank, animated, turned, clear, modes, few | as of other pictures | so | so    | so     |
| duplicates     | the same pixels with the same captions                        |         | always  |        |
| scattered      | the same pixels with other captions, under another name       |         | always  |        |
| leak           | pictures of the validation set that are also trained on       | always  |         |        |
| mojibake, lost, control, markup | as of other texts                            | so      | so      | so     |
| captions       | how many a picture has                                        |         |         | always |
| words          | how many different ones there are                             |         |         | always |
| again          | pictures that have one caption twice                          |         | always  |        |
| shared         | captions that several pictures have                           |         | if much | else   |
| leak_caption   | captions of the validation set that are also trained on       |         | if much | else   |
| short          | captions of one word                                          | if much | else    |        |
| odd            | captions four times as long as is usual                       |         | always  |        |
| long           | captions with more than data.longest tokens, by estimate      |         | always  |        |
"""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.check.files import SizedReport
from regard.data.check.findings import SHOWN, Finding, Lengths, Place, Severity, excerpt
from regard.data.check.image_survey import PictureSurvey, Seen
from regard.data.check.images import KINDS, modes, sides
from regard.data.check.labeled import told, too_few
from regard.data.check.pair_survey import Advance, hashed, measured, unheard
from regard.data.check.pairs import (
    ESTIMATE,
    MUCH,
    SEEN,
    Kinds,
    Leaks,
    among,
    answered_otherwise,
    counted,
    duplicated,
    leaks,
    named,
    tallied,
)
from regard.data.check.text_quality import bare
from regard.data.images.captions import Captioned, captioned_of, file_of, part_of
from regard.data.settings import Data
from regard.data.sources import expand
from regard.data.text.files import Complain
from regard.data.text.tables import format_of

Columns = Mapping[str, str] | None

_KINDS: Kinds = {
    **{kind: KINDS[kind] for kind in ("unreadable", "encoding", "format", "header", "missing", "broken")},
    "empty": ("rows without a picture, or with a blank caption", "They are skipped.", "warning", True),
    **{kind: KINDS[kind] for kind in ("tiny", "stripe", "huge", "blank", "animated", "turned", "clear")},
    **{kind: SEEN[kind] for kind in ("mojibake", "lost", "control", "markup")},
    "again": ("pictures that have one caption twice", "Remove one, unless it is to count more.", "warning", False),
}

_LEAKS: Leaks = (
    ("leak", "pictures that are also trained on", "error", "Remove them from one of the two: the score would be too good."),
    (
        "leak", "pictures that are also trained on, with other captions", "error",
        "Remove them from one of the two: the score would be too good.",
    ),
)  # fmt: skip

ODD = 4
"""times the usual length, in words"""


class CaptionSurvey(PictureSurvey):
    """Also of each caption its picture, its lengths and a hash, and how often each word occurs.

    Hashes of pictures are of the pixels with the captions (0), and of the pixels alone (1)."""

    def __init__(self, entries: Sequence[str], columns: Columns) -> None:
        super().__init__(entries, columns, captioned_of)
        self.words: Counter[str] = Counter()
        self._owner, self._said = array("Q"), array("Q")
        self._sizes = array("I"), array("I"), array("I")

    @property
    def owner(self) -> NDArray[np.int64]:
        """The number of the picture of each caption."""
        return np.array(self._owner, dtype=np.int64)

    @property
    def said(self) -> NDArray[np.uint64]:
        """A hash of each caption, without case and punctuation."""
        return np.array(self._said, dtype=np.uint64)

    def sizes(self, kind: int) -> NDArray[np.int64]:
        """(N, 1) words (0), characters (1) or estimated tokens (2) of each caption."""
        return np.array(self._sizes[kind], dtype=np.int64)[:, None]

    def place(self, number: int, beside: int | None = None) -> str:
        entry, line = self._where[0][number], self._where[1][number]
        if beside is not None and entry == self._where[0][beside]:
            return f"line {line}"
        return str(self._at(str(file_of(self.entries[entry])[0]), line))

    def _items(self, entry: str, complain: Complain) -> Iterator[Any]:
        file_of(entry)  # what is not there ends the check
        return super()._items(entry, complain)

    def _files(self, entry: str) -> Sequence[str]:
        return (part_of(entry)[0],)

    def _at(self, path: str, line: int, text: str = "", side: int = 0) -> Place:
        return Place(path, line, text, "caption" if format_of(path) == ".json" else "")

    def _shown(self, sample: Any) -> str:
        return self._quoted(sample, sample.captions[0])

    def _quoted(self, sample: Any, caption: str) -> str:
        name = os.path.relpath(sample.source, os.path.dirname(sample.path)) if not sample.content else sample.source
        return f"{name} → {excerpt(caption)}"

    def _beside(self, sample: Any) -> tuple[Any, bytes]:
        whole = "\0".join(sorted(sample.captions)).encode("utf-8", "surrogatepass")
        return None, blake2b(whole, digest_size=16).digest()

    def _look(self, number: int, sample: Any, seen: Seen) -> None:
        assert isinstance(sample, Captioned)
        self._note_oddities(sample, sample.captions)
        if len(set(sample.captions)) < len(sample.captions):
            twice = Counter(sample.captions).most_common(1)[0][0]
            self.tally("again").add(self._at(sample.path, sample.line, excerpt(twice)))
        for caption in sample.captions:
            plain = bare(caption)
            self.words.update(plain.split())
            self._owner.append(len(self))
            self._said.append(hashed(plain))
            for kept, value in zip(self._sizes, measured(caption), strict=True):
                kept.append(value)
        super()._look(number, sample, seen)

    def quoted(self, captions: NDArray[np.int64]) -> tuple[Place, ...]:
        """The first few of these captions, where they stand; one of each picture."""
        owner = self.owner
        pictures, first = np.unique(owner[captions], return_index=True)
        at = captions[first[:SHOWN]] - np.searchsorted(owner, pictures[:SHOWN])
        wanted = dict(zip(pictures[:SHOWN].tolist(), at.tolist(), strict=True))
        found: list[Place] = []
        for number, sample in enumerate(self._numbered()):
            if number in wanted:
                text = self._quoted(sample, sample.captions[wanted[number]])  # type: ignore[attr-defined]
                found.append(self._at(sample.path, sample.line, text))
                if len(found) == len(wanted):
                    break
        return tuple(found)


def check_captions(
    data: Sequence[str], valid: Sequence[str], columns: Columns, settings: Data, advance: Advance = unheard
) -> SizedReport:
    """Look at pictures and their captions, and at those of validation against them."""
    train, held = CaptionSurvey(expand(data), columns), CaptionSurvey(expand(valid), columns)
    train.read(advance, "training pictures")
    held.read(advance, "validation pictures")
    findings: list[Finding] = []
    for name, survey in named(train, held):
        findings += tallied(name, survey.tallies, survey.rows, _KINDS)
        findings += [*modes(name, survey), *too_few(name, "pictures", survey, bool(held.entries))]
        findings += [*_repeated(name, survey), *_captions(name, survey), *_sizes(name, survey, settings.longest)]
    findings += [*leaks(train, held, _LEAKS), *_known(train, held)]

    def count(survey: CaptionSurvey) -> dict[str, int]:
        return {"pictures": len(survey), "captions": len(survey.owner), "files": len(survey.entries)}

    sizes = train.sizes(0), train.sizes(1), train.sizes(2)
    lengths = Lengths(*sizes, settings.longest, np.zeros(0, dtype=np.int64), ("caption",), "captions")
    counts = counted(train, held, count)
    return SizedReport("caption", counts, tuple(findings), lengths, measured=sides(train), measure="pixels")


def _repeated(name: str, survey: CaptionSurvey) -> Iterable[Finding]:
    findings, once = duplicated(name, "pictures", survey)
    yield from findings
    others, said = answered_otherwise(survey, once)
    if len(others):
        what = f"{name}pictures that are there again under another name, with other captions"
        advice = "Gather their captions under one: training and validation are divided by pictures."
        yield among(survey, others, said, "warning", "scattered", what, advice)


@dataclass(frozen=True)
class _Some:
    """Some of the captions of a survey, of which something is said."""

    survey: CaptionSurvey
    captions: NDArray[np.int64]

    def finding(self, usual: Severity, much: Severity, kind: str, what: str, advice: str) -> Finding:
        share = len(self.captions) / len(self.survey.owner)
        places = self.survey.quoted(self.captions)
        return Finding(much if share > MUCH else usual, kind, what, len(self.captions), share, places, advice)


def _captions(name: str, survey: CaptionSurvey) -> Iterable[Finding]:
    if not len(survey):
        return
    owner, said = survey.owner, survey.said
    each = np.bincount(owner, minlength=len(survey))
    spread = {f"{many} of a picture": int(count) for many, count in enumerate(np.bincount(each)) if count}
    yield Finding("note", "captions", f"{name}captions ({told(spread)} times)", len(owner), 0.0)
    rare = sum(many == 1 for many in survey.words.values())
    what = f"{name}different words, of which {rare:,} occur once"
    yield Finding("note", "words", what, len(survey.words), 0.0)
    kinds, place = np.unique(said, return_inverse=True)
    pairs = np.unique(np.stack([place, owner], axis=1), axis=0)  # a picture that says it twice counts once
    shared = np.flatnonzero(np.bincount(pairs[:, 0], minlength=len(kinds))[place] > 1)
    if len(shared):
        advice = "They say little about their pictures: short ones may, long ones seldom."
        what = f"{name}captions that several pictures have, but for case and punctuation"
        yield _Some(survey, shared).finding("note", "warning", "shared", what, advice)


def _sizes(name: str, survey: CaptionSurvey, longest: int) -> Iterable[Finding]:
    if not len(survey):
        return
    words, tokens = survey.sizes(0)[:, 0], survey.sizes(2)[:, 0]
    usual = float(np.median(words))
    short, odd, long = (np.flatnonzero(mark) for mark in (words < 2, words > ODD * max(usual, 5), tokens > longest))
    if len(short) and usual >= 2:
        advice = "A caption is a sentence. Are these classes? 'regard train classify' learns those."
        yield _Some(survey, short).finding("warning", "error", "short", f"{name}captions of one word", advice)
    if len(odd):
        what = f"{name}captions of more than {ODD} times the usual length ({usual:.0f} words)"
        advice = "See whether they belong there."
        yield _Some(survey, odd).finding("warning", "warning", "odd", what, advice)
    if len(long):
        what = f"{name}captions with more than data.longest={longest:,} tokens, {ESTIMATE}"
        advice = "Training skips them, as it does those that are longer than model.length."
        yield _Some(survey, long).finding("warning", "warning", "long", what, advice)


def _known(train: CaptionSurvey, held: CaptionSurvey) -> Iterable[Finding]:
    known = np.flatnonzero(np.isin(held.said, train.said))
    if len(known):
        what = "validation: captions that are also trained on, but for case and punctuation"
        advice = "Short ones may occur twice. Are the pictures those of training, in another form?"
        yield _Some(held, known).finding("note", "warning", "leak_caption", what, advice)
