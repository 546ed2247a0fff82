"""What is wrong with pictures and their captions, before an hour is lost on them. Every picture is decoded.

What must be put right is an error: training would stop at it, or learn from it what nobody wants. "Much" is more than a
tenth of the pictures, or of the captions.

| finding                         | what it is                                                  | error   | warning | note   |
|---------------------------------|-------------------------------------------------------------|---------|---------|--------|
| unreadable, encoding, format    | see `images.py`                                             | always  |         |        |
| missing, decode_error           | see `images.py`                                             | always  |         |        |
| empty                           | rows without an image, or with an empty caption             | if much | else    |        |
| small_image, large_image        | see `images.py`                                             |         |         |        |
| single_color                    | see `images.py`                                             |         |         |        |
| aspect_ratio, color_modes, few  | see `images.py`                                             |         |         |        |
| animated, exif_rotation         | see `images.py`                                             |         |         |        |
| transparent                     | see `images.py`                                             |         |         |        |
| duplicates                      | identical pixels and captions                               |         | always  |        |
| repeated_image                  | identical pixels under another name, with other captions    |         | always  |        |
| leak                            | validation images also present in the training data         | always  |         |        |
| mojibake, replacement_character | see `pairs.py`                                              |         |         |        |
| control_character, markup       | see `pairs.py`                                              |         |         |        |
| captions_per_image              | number of captions, and of captions per image               |         |         | always |
| vocabulary                      | number of different words                                   |         |         | always |
| repeated_caption                | images with the same caption twice                          |         | always  |        |
| shared_caption                  | captions of several images                                  |         | if much | else   |
| leak_caption                    | validation captions also present in the training data       |         | if much | else   |
| single_word                     | captions of one word                                        | if much | else    |        |
| length_outliers                 | captions longer than four times the median                  |         | always  |        |
| long                            | captions with more than data.max_length tokens, by estimate |         | always  |        |
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

from regard.data.check.image_survey import ImageStats, ImageSurvey
from regard.data.check.images import IMAGE_FINDINGS, image_sizes, mode_findings
from regard.data.check.labeled import format_counts, sample_count_findings
from regard.data.check.pair_survey import ProgressCallback, hash_text, no_progress, text_sizes
from regard.data.check.pairs import (
    COMMON_FINDINGS,
    HIGH_FRACTION,
    LEAK_ADVICE,
    TOKEN_ESTIMATE_NOTE,
    FindingSpecs,
    LeakSpecs,
    find_conflicts,
    find_duplicates,
    leak_findings,
    named_splits,
    sample_finding,
    split_counts,
    tally_findings,
)
from regard.data.check.report import MAX_LOCATIONS, Finding, Lengths, Location, Report, Severity, excerpt
from regard.data.check.text_quality import normalize_text
from regard.data.images.captions import CaptionedImage, find_caption_file, parse_splits, read_captions
from regard.data.settings import DataSettings
from regard.data.sources import expand_patterns
from regard.data.text.files import ErrorHandler
from regard.data.text.formats import file_format

Columns = Mapping[str, str] | None

_FINDINGS: FindingSpecs = {
    **{
        kind: IMAGE_FINDINGS[kind] for kind in ("unreadable", "encoding", "format", "header", "missing", "decode_error")
    },
    "empty": ("rows without an image, or with an empty caption", "Training skips these rows.", "warning", True),
    **{
        kind: IMAGE_FINDINGS[kind]
        for kind in (
            "small_image",
            "aspect_ratio",
            "large_image",
            "single_color",
            "animated",
            "exif_rotation",
            "transparent",
        )
    },
    **{kind: COMMON_FINDINGS[kind] for kind in ("mojibake", "replacement_character", "control_character", "markup")},
    "repeated_caption": (
        "images with the same caption twice",
        "Remove the duplicate, unless a higher weight is intended.",
        "warning",
        False,
    ),
}

_LEAKS: LeakSpecs = (
    ("leak", "images also present in the training data", "error", LEAK_ADVICE),
    ("leak", "images also present in the training data, with other captions", "error", LEAK_ADVICE),
)  # fmt: skip

MAX_LENGTH_RATIO = 4
"""times the usual length, in words"""


class CaptionSurvey(ImageSurvey):
    """Also of each caption its picture, its lengths and a hash, and how often each word occurs.

    Hashes of pictures are of the pixels with the captions (0), and of the pixels alone (1)."""

    def __init__(self, entries: Sequence[str], columns: Columns) -> None:
        super().__init__(entries, columns, read_captions)
        self.word_counts: Counter[str] = Counter()
        self._image_index, self._caption_hashes = array("Q"), array("Q")
        self._sizes = array("I"), array("I"), array("I")

    @property
    def image_index(self) -> NDArray[np.int64]:
        """The number of the picture of each caption."""
        return np.array(self._image_index, dtype=np.int64)

    @property
    def caption_hashes(self) -> NDArray[np.uint64]:
        """A hash of each caption, without case and punctuation."""
        return np.array(self._caption_hashes, dtype=np.uint64)

    def sizes(self, kind: int) -> NDArray[np.int64]:
        """(N, 1) words (0), characters (1) or estimated tokens (2) of each caption."""
        return np.array(self._sizes[kind], dtype=np.int64)[:, None]

    def location_name(self, number: int, beside: int | None = None) -> str:
        entry, line = self._sample_lines[0][number], self._sample_lines[1][number]
        if beside is not None and entry == self._sample_lines[0][beside]:
            return f"line {line}"
        return str(self._location(str(find_caption_file(self.entries[entry])[0]), line))

    def _read_entry(self, entry: str, complain: ErrorHandler) -> Iterator[Any]:
        find_caption_file(entry)  # what is not there ends the check
        return super()._read_entry(entry, complain)

    def _entry_files(self, entry: str) -> Sequence[str]:
        return (parse_splits(entry)[0],)

    def _location(self, path: str, line: int, text: str = "", side: int = 0) -> Location:
        return Location(path, line, text, "caption" if file_format(path) == ".json" else "")

    def _preview(self, sample: Any) -> str:
        return self._caption_preview(sample, sample.captions[0])

    def _caption_preview(self, sample: Any, caption: str) -> str:
        name = os.path.relpath(sample.source, os.path.dirname(sample.path)) if not sample.content else sample.source
        return f"{name} → {excerpt(caption)}"

    def _inspect_target(self, sample: Any) -> tuple[Any, bytes]:
        whole = "\0".join(sorted(sample.captions)).encode("utf-8", "surrogatepass")
        return None, blake2b(whole, digest_size=16).digest()

    def _add_sample(self, number: int, sample: Any, seen: ImageStats) -> None:
        assert isinstance(sample, CaptionedImage)
        self._tally_quality_issues(sample, sample.captions)
        if len(set(sample.captions)) < len(sample.captions):
            twice = Counter(sample.captions).most_common(1)[0][0]
            self.tally("repeated_caption").add(self._location(sample.path, sample.line, excerpt(twice)))
        for caption in sample.captions:
            plain = normalize_text(caption)
            self.word_counts.update(plain.split())
            self._image_index.append(len(self))
            self._caption_hashes.append(hash_text(plain))
            for kept, value in zip(self._sizes, text_sizes(caption), strict=True):
                kept.append(value)
        super()._add_sample(number, sample, seen)

    def caption_locations(self, captions: NDArray[np.int64]) -> tuple[Location, ...]:
        """The first few of these captions, where they stand; one of each picture."""
        owner = self.image_index
        pictures, first = np.unique(owner[captions], return_index=True)
        at = captions[first[:MAX_LOCATIONS]] - np.searchsorted(owner, pictures[:MAX_LOCATIONS])
        wanted = dict(zip(pictures[:MAX_LOCATIONS].tolist(), at.tolist(), strict=True))
        found: list[Location] = []
        for number, sample in enumerate(self._indexed_samples()):
            if number in wanted:
                text = self._caption_preview(sample, sample.captions[wanted[number]])  # type: ignore[attr-defined]
                found.append(self._location(sample.path, sample.line, text))
                if len(found) == len(wanted):
                    break
        return tuple(found)


def check_captions(
    data: Sequence[str],
    valid: Sequence[str],
    columns: Columns,
    settings: DataSettings,
    progress: ProgressCallback = no_progress,
) -> Report:
    """Look at pictures and their captions, and at those of validation against them."""
    train, held = CaptionSurvey(expand_patterns(data), columns), CaptionSurvey(expand_patterns(valid), columns)
    train.read(progress, "training images")
    held.read(progress, "validation images")
    findings: list[Finding] = []
    for name, survey in named_splits(train, held):
        findings += tally_findings(name, survey.tallies, survey.rows, _FINDINGS)
        findings += [*mode_findings(name, survey), *sample_count_findings(name, "images", survey, bool(held.entries))]
        findings += [
            *_duplicate_findings(name, survey),
            *_caption_findings(name, survey),
            *_length_findings(name, survey, settings.max_length),
        ]
    findings += [*leak_findings(train, held, _LEAKS), *_caption_leak_findings(train, held)]

    def count(survey: CaptionSurvey) -> dict[str, int]:
        return {"images": len(survey), "captions": len(survey.image_index), "files": len(survey.entries)}

    sizes = train.sizes(0), train.sizes(1), train.sizes(2)
    lengths = Lengths(*sizes, settings.max_length, np.zeros(0, dtype=np.int64), ("caption",), "captions")
    counts = split_counts(train, held, count)
    return Report(
        "caption",
        counts,
        tuple(findings),
        lengths,
        class_counts=(),
        measurements=image_sizes(train),
        size_title="pixels",
    )


def _duplicate_findings(prefix: str, survey: CaptionSurvey) -> Iterable[Finding]:
    findings, once = find_duplicates(prefix, "images", survey)
    yield from findings
    others, said = find_conflicts(survey, once)
    if len(others):
        what = f"{prefix}images repeated under another name, with other captions"
        advice = "Collect all captions under one name: the validation split is made by image."
        yield sample_finding(survey, others, said, "warning", "repeated_image", what, advice)


@dataclass(frozen=True)
class _CaptionSubset:
    """Some of the captions of a survey, of which something is said."""

    survey: CaptionSurvey
    captions: NDArray[np.int64]

    def finding(self, usual: Severity, much: Severity, finding_id: str, what: str, advice: str) -> Finding:
        share = len(self.captions) / len(self.survey.image_index)
        places = self.survey.caption_locations(self.captions)
        return Finding(
            much if share > HIGH_FRACTION else usual, finding_id, what, len(self.captions), share, places, advice
        )


def _caption_findings(prefix: str, survey: CaptionSurvey) -> Iterable[Finding]:
    if not len(survey):
        return
    owner, said = survey.image_index, survey.caption_hashes
    each = np.bincount(owner, minlength=len(survey))
    spread = {
        f"{many} caption{'' if many == 1 else 's'}": int(count) for many, count in enumerate(np.bincount(each)) if count
    }
    what = f"{prefix}captions (number of images with {format_counts(spread)})"
    yield Finding("note", "captions_per_image", what, len(owner), 0.0)
    rare = sum(many == 1 for many in survey.word_counts.values())
    what = f"{prefix}different words ({rare:,} of the words occur once)"
    yield Finding("note", "vocabulary", what, len(survey.word_counts), 0.0)
    kinds, place = np.unique(said, return_inverse=True)
    pairs = np.unique(np.stack([place, owner], axis=1), axis=0)  # a picture that says it twice counts once
    shared = np.flatnonzero(np.bincount(pairs[:, 0], minlength=len(kinds))[place] > 1)
    if len(shared):
        advice = "Shared captions are not specific to an image. Short captions are often shared, long captions rarely."
        what = f"{prefix}captions shared by several images, ignoring case and punctuation"
        yield _CaptionSubset(survey, shared).finding("note", "warning", "shared_caption", what, advice)


def _length_findings(prefix: str, survey: CaptionSurvey, longest: int) -> Iterable[Finding]:
    if not len(survey):
        return
    words, tokens = survey.sizes(0)[:, 0], survey.sizes(2)[:, 0]
    usual = float(np.median(words))
    short, odd, long = (
        np.flatnonzero(mark) for mark in (words < 2, words > MAX_LENGTH_RATIO * max(usual, 5), tokens > longest)
    )
    if len(short) and usual >= 2:
        advice = "Captions should be sentences. If the words are class names, use 'regard train classify'."
        yield _CaptionSubset(survey, short).finding(
            "warning", "error", "single_word", f"{prefix}captions of one word", advice
        )
    if len(odd):
        what = f"{prefix}captions longer than {MAX_LENGTH_RATIO} times the median ({usual:.0f} words)"
        advice = "Check whether the captions are correct."
        yield _CaptionSubset(survey, odd).finding("warning", "warning", "length_outliers", what, advice)
    if len(long):
        what = f"{prefix}captions longer than data.max_length={longest:,} tokens {TOKEN_ESTIMATE_NOTE}"
        advice = "Training skips these captions, and captions longer than model.max_length."
        yield _CaptionSubset(survey, long).finding("warning", "warning", "long", what, advice)


def _caption_leak_findings(train: CaptionSurvey, held: CaptionSurvey) -> Iterable[Finding]:
    known = np.flatnonzero(np.isin(held.caption_hashes, train.caption_hashes))
    if len(known):
        what = "validation: captions also present in the training data, ignoring case and punctuation"
        advice = "Short captions may repeat by chance. Are validation images modified copies of training images?"
        yield _CaptionSubset(held, known).finding("note", "warning", "leak_caption", what, advice)
