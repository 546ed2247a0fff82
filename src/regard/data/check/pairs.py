"""What is wrong with pairs of texts, before an hour is lost on them.

What must be put right is an error: training would refuse it, or learn from it what nobody wants. "Much" is more than a
tenth of the rows.

| finding      | what it is                                                    | error   | warning | note    |
|--------------|---------------------------------------------------------------|---------|---------|---------|
| unreadable   | a file that cannot be read to its end                         | always  |         |         |
| encoding     | lines that are not UTF-8                                      | always  |         |         |
| format       | rows with other columns than the first, broken JSON or CSV    | always  |         |         |
| header       | a first row that looks like the names of columns              | always  |         |         |
| counts       | parallel files of different length                            | always  |         |         |
| few          | pairs                                                         | < 2     | < 1,000 |         |
| empty        | rows with a blank side, which are skipped                     | if much | else    |         |
| mojibake     | UTF-8 that was decoded as another encoding                    | if much | else    |         |
| lost         | U+FFFD where a character was lost                             | if much | else    |         |
| control      | control characters inside a text                              |         | always  |         |
| markup       | entities and tags of HTML                                     |         |         | always  |
| duplicates   | pairs that occur before                                       |         | always  |         |
| ambiguous    | sources with several different targets                        |         |         | always  |
| copies       | targets that are their source                                 |         | > 1 %   | else    |
| long         | sides with more than data.longest tokens, by estimate         |         | always  |         |
| ratio        | sides of very different length                                |         | always  |         |
| turned       | a whole file with its sides exchanged                         | always  |         |         |
| swapped      | single rows with their sides exchanged                        | if much | else    |         |
| one_language | rows of which both sides are in the language of one           |         | always  |         |
| alike        | the sides cannot be told apart by their letters               |         |         | always  |
| leak         | pairs of the validation set that are also trained on          | always  |         |         |
| leak_source  | sources of the validation set that are also trained on        |         | always  |         |
| leak_near    | the same but for case and punctuation                         |         | always  |         |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.data.check.findings import SHOWN, Finding, Lengths, Report, Severity
from regard.data.check.pair_languages import languages
from regard.data.check.pair_survey import Advance, Survey, Surveyed, Tally, unheard
from regard.data.settings import Data
from regard.data.sources import expand, parallel

MUCH = 0.1
FEW = 1000
OF_FILES = ("unreadable", "header", "counts")
"""what is counted by files, not by rows"""
APART = 3.0
"""times longer or shorter than usual, in words and in characters, before the length of a side is odd"""

ESTIMATE = "by an estimate (a token for four bytes, at least one for a word)"

Numbers = NDArray[np.int64]
S = TypeVar("S", bound=Surveyed[Any])

Kinds = Mapping[str, tuple[str, str, Severity, bool]]
"""Of each kind of flaw what is said of it, what to do, how bad it is, and whether much of it is an error."""

Leaks = tuple[tuple[str, str, Severity, str], ...]
"""Of each kind of hash a word for programs, what is said of those that both sets have, how bad it is, and what to do."""

SEEN: Kinds = {
    "unreadable": ("files that cannot be read to their end", "Training would stop there as well.", "error", False),
    "encoding": (
        "lines that are not UTF-8", "Convert the file with iconv from the encoding that it has, or remove them.", "error",
        False,
    ),
    "format": ("rows that cannot be read", "Put them right or remove them: training refuses the file.", "error", False),
    "header": ("files that seem to begin with a header", "Name the columns with --columns, or remove the row.", "error", False),
    "counts": (
        "pairs of parallel files with different numbers of lines",
        "Find the line from which on they do not belong together; what follows it was not checked.", "error", False,
    ),
    "empty": ("rows with a blank side", "They are skipped.", "warning", True),
    "mojibake": (
        "rows with UTF-8 that was read as another encoding, such as Ã¼ for ü",
        "Make the file again, or repair it (the Python package ftfy does that).", "warning", True,
    ),
    "lost": ("rows with U+FFFD, where a character was lost", "Make the file again from its source.", "warning", True),
    "control": ("rows with control characters", "Remove them, unless they are meant.", "warning", False),
    "markup": (
        "rows with entities or tags of HTML, such as &amp;",
        "Unescape them, unless a tokenizer wrote them and is to be undone later.", "note", False,
    ),
}  # fmt: skip


def check_pairs(
    data: Sequence[str], valid: Sequence[str], columns: Mapping[str, str] | None, settings: Data,
    advance: Advance = unheard,
) -> Report:  # fmt: skip
    """Look at training pairs, and at validation pairs against them."""
    train, held = Survey(expand(data), columns), Survey(expand(valid), columns)
    train.read(advance, "training data")
    held.read(advance, "validation data", known=train.profile)
    findings: list[Finding] = []
    for name, survey in named(train, held):
        findings += [*seen(name, survey), *too_few(name, survey, bool(held.entries))]
        findings += [*repeated(name, survey), *long(name, survey, settings.longest)]
        findings += languages(name, survey, train, advance)
    findings += leaks(train, held, _LEAKS)
    counts = counted(train, held, lambda survey: {"pairs": len(survey), "files": files(survey)})
    lengths = Lengths(train.sizes(0), train.sizes(1), train.sizes(2), settings.longest, odd_ratios(train))
    return Report("translate", counts, tuple(findings), lengths)


def named(train: S, held: S) -> list[tuple[str, S]]:
    """The sets that there are, with what stands before all that is said of them."""
    return [("", train), *([("validation: ", held)] if held.entries else [])]


def counted(train: S, held: S, count: Callable[[S], dict[str, int]]) -> dict[str, int]:
    counts = count(train)
    return counts | {f"validation_{name}": many for name, many in count(held).items()} if held.entries else counts


def among(
    survey: Surveyed[Any], numbers: Sequence[int] | Numbers, said: Mapping[int, str] | None, severity: Severity, kind: str,
    what: str, advice: str,
) -> Finding:  # fmt: skip
    """A finding about the samples of these numbers; `said` stands behind each that is shown."""
    many = len(numbers)
    return Finding(severity, kind, what, many, many / survey.rows, survey.places(numbers, said), advice)


def files(survey: Survey) -> int:
    """Two for a pair of parallel files."""
    return sum(len(parallel(entry) or (entry,)) for entry in survey.entries)


def seen(name: str, survey: Survey) -> Iterable[Finding]:
    """What was noted row by row."""
    yield from tallied(name, survey.tallies, survey.rows, SEEN)
    if copies := len(survey.copies):
        yield among(
            survey, survey.copies, None, "warning" if copies / survey.rows > 0.01 else "note", "copies",
            f"{name}targets that are their own source",
            "Names and numbers may be; sentences teach the model to copy instead of translating.",
        )  # fmt: skip


def tallied(name: str, tallies: Mapping[str, Tally], rows: int, kinds: Kinds) -> Iterable[Finding]:
    for kind, (what, advice, severity, much) in kinds.items():
        if kind not in tallies:
            continue
        tally = tallies[kind]
        share = tally.count / max(rows, 1)
        if kind in OF_FILES:
            share = 0.0
        elif much and share > MUCH:
            severity = "error"
        yield Finding(severity, kind, f"{name}{what}", tally.count, share, tuple(tally.places), advice)


def too_few(name: str, survey: Survey, has_valid: bool) -> Iterable[Finding]:
    sources = len(np.unique(survey.hashes(1)))
    many = len(survey)
    if not many:
        yield Finding("error", "few", f"{name}there is no usable pair", 0, 0.0, (), "Each row needs two texts.")
    elif not name and sources < 2 and not has_valid:
        advice = "Add data, or give validation data of its own with --valid."
        yield Finding("error", "few", "pairs of one source, of which none can be held out", many, 0.0, (), advice)
    elif not name and many < FEW:
        advice = "A model learns so few by heart. Thousands are a start, better more."
        yield Finding("warning", "few", "pairs are few", many, 0.0, (), advice)


class Sorted:
    """Hashes in order, to find the first of equals."""

    def __init__(self, hashes: NDArray[np.uint64]) -> None:
        self.order = np.argsort(hashes, kind="stable")
        self.values = hashes[self.order]

    def repeats(self) -> Numbers:
        """The numbers of those that equal an earlier one."""
        return np.sort(self.order[1:][self.values[1:] == self.values[:-1]])

    def first(self, value: np.uint64) -> int:
        return int(self.order[np.searchsorted(self.values, value)])


def duplicated(name: str, unit: str, survey: Surveyed[Any]) -> tuple[list[Finding], Numbers]:
    """What is said of samples that are there twice, and the numbers of all that do not repeat an earlier one."""
    whole = survey.hashes(0)
    order = Sorted(whole)
    again = order.repeats()
    once = np.setdiff1d(np.arange(len(whole)), again)
    if not len(again):
        return [], once
    said = {int(n): f"as in {survey.place(order.first(whole[n]), int(n))}" for n in again[:SHOWN]}
    what, advice = f"{name}{unit} that repeat an earlier one", "Remove them unless they are to count more."
    return [among(survey, again, said, "warning", "duplicates", what, advice)], once


def answered_otherwise(survey: Surveyed[Any], once: Numbers) -> tuple[Numbers, dict[int, str]]:
    """Those of `once` whose question an earlier one asks, with another answer; and where, of the first few."""
    asked = survey.hashes(1)
    order = Sorted(asked[once])
    others = once[order.repeats()]
    return others, {
        int(n): f"otherwise in {survey.place(int(once[order.first(asked[n])]), int(n))}" for n in others[:SHOWN]
    }


def repeated(name: str, survey: Survey) -> Iterable[Finding]:
    findings, once = duplicated(name, "pairs", survey)
    yield from findings
    others, said = answered_otherwise(survey, once)
    if len(others):
        many = len(np.unique(survey.hashes(1)[others]))
        yield Finding(
            "note", "ambiguous", f"{name}sources with several different targets", many, many / survey.rows,
            survey.places(others, said), "That is natural in some data; the model learns a mixture.",
        )  # fmt: skip


def long(name: str, survey: Survey, longest: int) -> Iterable[Finding]:
    tokens = survey.sizes(2)
    over = np.flatnonzero(tokens.max(axis=1, initial=0) > longest)
    if len(over):
        said = {int(n): f"about {tokens[n].max():,} tokens" for n in over[:SHOWN]}
        yield among(
            survey, over, said, "warning", "long",
            f"{name}pairs with more than data.longest={longest:,} tokens on a side, {ESTIMATE}",
            "Training skips them. Split them, or raise data.longest.",
        )  # fmt: skip
    odd = odd_ratios(survey)
    if len(odd):
        words, letters = survey.sizes(0), survey.sizes(1)
        said = {
            int(n): f"{words[n][0]:,} to {words[n][1]:,} words, {letters[n][0]:,} to {letters[n][1]:,} characters"
            for n in odd[:SHOWN]
        }
        yield among(
            survey, odd, said, "warning", "ratio",
            f"{name}pairs with sides of very different length, {APART:g} times other than usual",
            "See whether they belong together.",
        )  # fmt: skip


def odd_ratios(survey: Survey) -> Numbers:
    """Pairs whose ratio of lengths is far from the median, in characters and in words; short ones may be anything."""
    letters, words = survey.sizes(1), survey.sizes(0)
    if not len(letters):
        return np.zeros(0, dtype=np.int64)
    odd = letters.max(axis=1) >= 40
    odd &= _apart(letters)
    # where words are not divided by blanks, as in Chinese, their number says nothing
    if (np.median(letters / np.maximum(words, 1), axis=0) < 12).all():
        odd &= _apart(words)
    return np.flatnonzero(odd)


def _apart(sizes: Numbers) -> NDArray[np.bool_]:
    ratio = np.log(np.maximum(sizes, 1)) @ np.array([1.0, -1.0])
    far: NDArray[np.bool_] = np.abs(ratio - np.median(ratio)) > np.log(APART)
    return far


def leaks(train: S, held: S, kinds: Leaks) -> Iterable[Finding]:
    """What is validated on and trained on as well; each sample counts once, by the worst that is true of it."""
    left = np.arange(len(held))
    for kind, (name, what, severity, advice) in enumerate(kinds):
        theirs, ours = held.hashes(kind), Sorted(train.hashes(kind))
        known = np.isin(theirs[left], ours.values)
        found, left = left[known], left[~known]
        if len(found):
            said = {int(n): f"trained on in {train.place(ours.first(theirs[n]))}" for n in found[:SHOWN]}
            yield among(held, found, said, severity, name, f"validation: {what}", advice)


_LEAKS: Leaks = (
    ("leak", "pairs that are also trained on", "error", "Remove them from one of the two: the score would be too good."),
    ("leak_source", "sources that are also trained on, with another target", "warning", "Better remove them from training."),
    (
        "leak_near", "sources that are also trained on but for case and punctuation", "warning",
        "Better remove them from training.",
    ),
)  # fmt: skip
