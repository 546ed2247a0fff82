"""What is wrong with pairs of texts, before an hour is lost on them.

What must be put right is an error: training would refuse it, or learn from it what nobody wants. "Much" is more than a
tenth of the rows.

| finding                     | what it is                                                 | error   | warning | note   |
|-----------------------------|------------------------------------------------------------|---------|---------|--------|
| unreadable                  | a file that cannot be read to its end                      | always  |         |        |
| encoding                    | lines that are not UTF-8                                   | always  |         |        |
| format                      | rows with other columns than the first, broken JSON or CSV | always  |         |        |
| header                      | a first row that looks like the names of columns           | always  |         |        |
| line_count_mismatch         | parallel files of different length                         | always  |         |        |
| few                         | pairs                                                      | < 2     | < 1,000 |        |
| empty                       | rows with a blank side, which are skipped                  | if much | else    |        |
| mojibake                    | UTF-8 that was decoded as another encoding                 | if much | else    |        |
| replacement_character       | U+FFFD where a character was lost                          | if much | else    |        |
| control_character           | control characters inside a text                           |         | always  |        |
| markup                      | entities and tags of HTML                                  |         |         | always |
| duplicates                  | pairs that occur before                                    |         | always  |        |
| multiple_targets            | sources with several different targets                     |         |         | always |
| identical_sides             | targets that are their source                              |         | > 1 %   | else   |
| long                        | sides with more than data.max_length tokens, by estimate   |         | always  |        |
| length_ratio                | sides of very different length                             |         | always  |        |
| turned                      | a whole file with its sides exchanged                      | always  |         |        |
| swapped                     | single rows with their sides exchanged                     | if much | else    |        |
| same_language               | rows of which both sides are in the language of one        |         | always  |        |
| indistinguishable_languages | the sides cannot be told apart by their letters            |         |         | always |
| leak                        | pairs of the validation set that are also trained on       | always  |         |        |
| leak_source                 | sources of the validation set that are also trained on     |         | always  |        |
| leak_near_duplicate         | the same but for case and punctuation                      |         | always  |        |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.data.check.pair_languages import language_findings
from regard.data.check.pair_survey import DatasetSurvey, PairSurvey, ProgressCallback, Tally, no_progress
from regard.data.check.report import MAX_LOCATIONS, Finding, Lengths, Report, Severity
from regard.data.settings import DataSettings
from regard.data.sources import expand_patterns, split_parallel

HIGH_FRACTION = 0.1
MIN_PAIRS = 1000
FILE_FINDINGS = ("unreadable", "header", "line_count_mismatch")
"""what is counted by files, not by rows"""
MAX_LENGTH_RATIO = 3.0
"""times longer or shorter than usual, in words and in characters, before the length of a side is odd"""

TOKEN_ESTIMATE_NOTE = "(estimate: 4 bytes per token, at least one token per word)"
LEAK_ADVICE = "Remove the duplicates from one of the two sets; otherwise, validation scores are too high."
NEAR_LEAK_ADVICE = "Consider removing the duplicates from the training data."

Indices = NDArray[np.int64]
S = TypeVar("S", bound=DatasetSurvey[Any])

FindingSpecs = Mapping[str, tuple[str, str, Severity, bool]]
"""Of each finding id what is said of it, what to do, how bad it is, and whether much of it is an error."""

LeakSpecs = tuple[tuple[str, str, Severity, str], ...]
"""Of each kind of hash a word for programs, what is said of those that both sets have, how bad it is, and what to do."""

COMMON_FINDINGS: FindingSpecs = {
    "unreadable": ("files with a read error", "Training would stop at the same error.", "error", False),
    "encoding": (
        "lines with invalid UTF-8", "Convert the file from its encoding to UTF-8 with iconv, or remove the lines.",
        "error", False,
    ),
    "format": ("invalid rows", "Fix or remove the rows: training rejects the file.", "error", False),
    "header": ("files with a probable header", "Name the columns with --columns, or remove the header.", "error", False),
    "line_count_mismatch": (
        "pairs of parallel files with different numbers of lines",
        "Find the first misaligned line. Lines after the end of the shorter file were not checked.", "error", False,
    ),
    "empty": ("rows with an empty side", "Training skips these rows.", "warning", True),
    "mojibake": (
        "rows with UTF-8 decoded as another encoding, such as Ã¼ for ü",
        "Recreate the file, or repair the text, for example with the Python package ftfy.", "warning", True,
    ),
    "replacement_character": (
        "rows with U+FFFD, which replaces lost characters", "Recreate the file from its source.", "warning", True,
    ),
    "control_character": ("rows with control characters", "Remove the control characters, unless intended.", "warning", False),
    "markup": (
        "rows with HTML entities or tags, such as &amp;",
        "Unescape the entities, unless the text is tokenizer output to be detokenized later.", "note", False,
    ),
}  # fmt: skip


def check_pairs(
    data: Sequence[str], valid: Sequence[str], columns: Mapping[str, str] | None, settings: DataSettings,
    progress: ProgressCallback = no_progress,
) -> Report:  # fmt: skip
    """Look at training pairs, and at validation pairs against them."""
    train, held = PairSurvey(expand_patterns(data), columns), PairSurvey(expand_patterns(valid), columns)
    train.read(progress, "training data")
    held.read(progress, "validation data", reference=train.profile)
    findings: list[Finding] = []
    for name, survey in named_splits(train, held):
        findings += [*row_findings(name, survey), *pair_count_findings(name, survey, bool(held.entries))]
        findings += [*pair_duplicate_findings(name, survey), *length_findings(name, survey, settings.max_length)]
        findings += language_findings(name, survey, train, progress)
    findings += leak_findings(train, held, _LEAKS)
    counts = split_counts(train, held, lambda survey: {"pairs": len(survey), "files": count_files(survey)})
    lengths = Lengths(train.sizes(0), train.sizes(1), train.sizes(2), settings.max_length, length_ratio_outliers(train))
    return Report("translate", counts, tuple(findings), lengths)


def named_splits(train: S, valid: S) -> list[tuple[str, S]]:
    """The sets that there are, with what stands before all that is said of them."""
    return [("", train), *([("validation: ", valid)] if valid.entries else [])]


def split_counts(train: S, valid: S, count: Callable[[S], dict[str, int]]) -> dict[str, int]:
    counts = count(train)
    return counts | {f"validation_{name}": many for name, many in count(valid).items()} if valid.entries else counts


def sample_finding(
    survey: DatasetSurvey[Any],
    indices: Sequence[int] | Indices,
    notes: Mapping[int, str] | None,
    severity: Severity,
    finding_id: str,
    message: str,
    advice: str,
) -> Finding:
    """A finding about the samples of these numbers; `said` stands behind each that is shown."""
    many = len(indices)
    return Finding(severity, finding_id, message, many, many / survey.rows, survey.locations(indices, notes), advice)


def count_files(survey: PairSurvey) -> int:
    """Two for a pair of parallel files."""
    return sum(len(split_parallel(entry) or (entry,)) for entry in survey.entries)


def row_findings(prefix: str, survey: PairSurvey) -> Iterable[Finding]:
    """What was noted row by row."""
    yield from tally_findings(prefix, survey.tallies, survey.rows, COMMON_FINDINGS)
    if copies := len(survey.copies):
        yield sample_finding(
            survey, survey.copies, None, "warning" if copies / survey.rows > 0.01 else "note", "identical_sides",
            f"{prefix}targets identical to the source",
            "Identical names and numbers are normal; identical sentences train the model to copy instead of translate.",
        )  # fmt: skip


def tally_findings(prefix: str, tallies: Mapping[str, Tally], rows: int, specs: FindingSpecs) -> Iterable[Finding]:
    for kind, (what, advice, severity, much) in specs.items():
        if kind not in tallies:
            continue
        tally = tallies[kind]
        share = tally.count / max(rows, 1)
        if kind in FILE_FINDINGS:
            share = 0.0
        elif much and share > HIGH_FRACTION:
            severity = "error"
        yield Finding(severity, kind, f"{prefix}{what}", tally.count, share, tuple(tally.locations), advice)


def pair_count_findings(prefix: str, survey: PairSurvey, has_valid: bool) -> Iterable[Finding]:
    sources = len(np.unique(survey.hashes(1)))
    many = len(survey)
    if not many:
        yield Finding("error", "few", f"{prefix}no usable pairs", 0, 0.0, (), "Each row needs two texts.")
    elif not prefix and sources < 2 and not has_valid:
        what = "pairs with one common source, so no validation split is possible"
        advice = "Add data, or pass separate validation data with --valid."
        yield Finding("error", "few", what, many, 0.0, (), advice)
    elif not prefix and many < MIN_PAIRS:
        advice = "The model will memorize the pairs. Aim for several thousand pairs or more."
        yield Finding("warning", "few", "small dataset, number of pairs", many, 0.0, (), advice)


class SortedHashes:
    """Hashes in order, to find the first of equals."""

    def __init__(self, hashes: NDArray[np.uint64]) -> None:
        self.order = np.argsort(hashes, kind="stable")
        self.values = hashes[self.order]

    def duplicates(self) -> Indices:
        """The numbers of those that equal an earlier one."""
        return np.sort(self.order[1:][self.values[1:] == self.values[:-1]])

    def first_index(self, value: np.uint64) -> int:
        return int(self.order[np.searchsorted(self.values, value)])


def find_duplicates(prefix: str, unit: str, survey: DatasetSurvey[Any]) -> tuple[list[Finding], Indices]:
    """What is said of samples that are there twice, and the numbers of all that do not repeat an earlier one."""
    whole = survey.hashes(0)
    order = SortedHashes(whole)
    again = order.duplicates()
    once = np.setdiff1d(np.arange(len(whole)), again)
    if not len(again):
        return [], once
    said = {
        int(n): f"same as {survey.location_name(order.first_index(whole[n]), int(n))}" for n in again[:MAX_LOCATIONS]
    }
    what, advice = f"{prefix}duplicate {unit}", "Remove the duplicates, unless a higher weight is intended."
    return [sample_finding(survey, again, said, "warning", "duplicates", what, advice)], once


def find_conflicts(survey: DatasetSurvey[Any], unique: Indices) -> tuple[Indices, dict[int, str]]:
    """Those of `once` whose question an earlier one asks, with another answer; and where, of the first few."""
    asked = survey.hashes(1)
    order = SortedHashes(asked[unique])
    others = unique[order.duplicates()]
    return others, {
        int(n): f"also in {survey.location_name(int(unique[order.first_index(asked[n])]), int(n))}"
        for n in others[:MAX_LOCATIONS]
    }


def pair_duplicate_findings(prefix: str, survey: PairSurvey) -> Iterable[Finding]:
    findings, once = find_duplicates(prefix, "pairs", survey)
    yield from findings
    others, said = find_conflicts(survey, once)
    if len(others):
        many = len(np.unique(survey.hashes(1)[others]))
        yield Finding(
            "note", "multiple_targets", f"{prefix}sources with several different targets", many, many / survey.rows,
            survey.locations(others, said),
            "Several targets per source are normal in some data; the model is trained on all targets.",
        )  # fmt: skip


def length_findings(prefix: str, survey: PairSurvey, max_length: int) -> Iterable[Finding]:
    tokens = survey.sizes(2)
    over = np.flatnonzero(tokens.max(axis=1, initial=0) > max_length)
    if len(over):
        said = {int(n): f"about {tokens[n].max():,} tokens" for n in over[:MAX_LOCATIONS]}
        yield sample_finding(
            survey, over, said, "warning", "long",
            f"{prefix}pairs with a side longer than data.max_length={max_length:,} tokens {TOKEN_ESTIMATE_NOTE}",
            "Training skips these pairs. Split the texts, or raise data.max_length.",
        )  # fmt: skip
    odd = length_ratio_outliers(survey)
    if len(odd):
        words, letters = survey.sizes(0), survey.sizes(1)
        said = {
            int(n): f"{words[n][0]:,} vs. {words[n][1]:,} words, {letters[n][0]:,} vs. {letters[n][1]:,} characters"
            for n in odd[:MAX_LOCATIONS]
        }
        yield sample_finding(
            survey, odd, said, "warning", "length_ratio",
            f"{prefix}pairs with a length mismatch (source/target ratio more than {MAX_LENGTH_RATIO:g}× off the median)",
            "Check whether the pairs are aligned.",
        )  # fmt: skip


def length_ratio_outliers(survey: PairSurvey) -> Indices:
    """Pairs whose ratio of lengths is far from the median, in characters and in words; short ones may be anything."""
    letters, words = survey.sizes(1), survey.sizes(0)
    if not len(letters):
        return np.zeros(0, dtype=np.int64)
    odd = letters.max(axis=1) >= 40
    odd &= _is_ratio_outlier(letters)
    # where words are not divided by blanks, as in Chinese, their number says nothing
    if (np.median(letters / np.maximum(words, 1), axis=0) < 12).all():
        odd &= _is_ratio_outlier(words)
    return np.flatnonzero(odd)


def _is_ratio_outlier(sizes: Indices) -> NDArray[np.bool_]:
    ratio = np.log(np.maximum(sizes, 1)) @ np.array([1.0, -1.0])
    far: NDArray[np.bool_] = np.abs(ratio - np.median(ratio)) > np.log(MAX_LENGTH_RATIO)
    return far


def leak_findings(train: S, valid: S, specs: LeakSpecs) -> Iterable[Finding]:
    """What is validated on and trained on as well; each sample counts once, by the worst that is true of it."""
    left = np.arange(len(valid))
    for kind, (name, what, severity, advice) in enumerate(specs):
        theirs, ours = valid.hashes(kind), SortedHashes(train.hashes(kind))
        known = np.isin(theirs[left], ours.values)
        found, left = left[known], left[~known]
        if len(found):
            said = {
                int(n): f"in training data: {train.location_name(ours.first_index(theirs[n]))}"
                for n in found[:MAX_LOCATIONS]
            }
            yield sample_finding(valid, found, said, severity, name, f"validation: {what}", advice)


_LEAKS: LeakSpecs = (
    ("leak", "pairs also present in the training data", "error", LEAK_ADVICE),
    ("leak_source", "sources also present in the training data, with another target", "warning", NEAR_LEAK_ADVICE),
    (
        "leak_near_duplicate", "sources also present in the training data, ignoring case and punctuation", "warning",
        NEAR_LEAK_ADVICE,
    ),
)  # fmt: skip
