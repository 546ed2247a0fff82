"""What is wrong with text, before an hour is lost on it.

What must be put right is an error: training would refuse it, or learn from it what nobody wants. "Much" is more than a
tenth. Long lines are those with at least 40 letters; they are compared without case and punctuation.

| finding               | what it is                                                | error   | warning        | note   |
|-----------------------|-----------------------------------------------------------|---------|----------------|--------|
| unreadable            | a file that cannot be read to its end                     | always  |                |        |
| encoding              | lines that are not UTF-8                                  | always  |                |        |
| format                | rows without text, broken JSON or CSV                     | always  |                |        |
| few                   | text                                                      | none *  | < 200,000 char |        |
| empty                 | blank documents, which are skipped                        | if much | else           |        |
| mojibake              | UTF-8 that was decoded as another encoding                | if much | else           |        |
| replacement_character | U+FFFD where a character was lost                         | if much | else           |        |
| control_character     | control characters inside a text                          |         | always         |        |
| markup                | entities and tags of HTML                                 |         |                | always |
| no_whitespace         | more than 100,000 characters without a blank              |         | always         |        |
| duplicates            | documents that occur before                               |         | always         |        |
| duplicate_lines       | long lines that occur before, above 1 % of the text       |         | if much        | else   |
| leak                  | documents of the validation set that are also trained on  | always  |                |        |
| leak_near_duplicate   | the same but for case, blanks and punctuation             |         | always         |        |
| leak_lines            | long lines of the validation set that are also trained on | if much | > 1 %          | else   |

* or a single passage, of which none can be held out
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from regard.data.check.pair_survey import ProgressCallback, no_progress
from regard.data.check.pairs import (
    COMMON_FINDINGS,
    HIGH_FRACTION,
    FindingSpecs,
    LeakSpecs,
    SortedHashes,
    find_duplicates,
    leak_findings,
    named_splits,
    split_counts,
    tally_findings,
)
from regard.data.check.report import MAX_LOCATIONS, Finding, Lengths, Location, Report
from regard.data.check.text_survey import MAX_UNBROKEN_LENGTH, MIN_LINE_LENGTH, TextSurvey
from regard.data.settings import DataSettings
from regard.data.text.documents import check_columns, text_files

MIN_CHARACTERS = 200_000
MIN_REPEATED_FRACTION = 0.01
"""share of the text from which on repeated lines are worth a word"""

_FILE_FINDINGS: FindingSpecs = {"unreadable": COMMON_FINDINGS["unreadable"]}
_DOCUMENT_FINDINGS: FindingSpecs = {
    "format": COMMON_FINDINGS["format"],
    "empty": ("empty documents", "Training skips these documents.", "warning", True),
}
_LINE_FINDINGS: FindingSpecs = {
    "encoding": COMMON_FINDINGS["encoding"],
    "mojibake": (
        "lines with UTF-8 decoded as another encoding, such as Ã¼ for ü",
        "Recreate the file, or repair the text, for example with the Python package ftfy.", "warning", True,
    ),
    "replacement_character": (
        "lines with U+FFFD, which replaces lost characters", "Recreate the file from its source.", "warning", True,
    ),
    "control_character": ("lines with control characters", "Remove the control characters, unless intended.", "warning", False),
    "markup": (
        "lines with HTML entities or tags, such as &amp;",
        "Unescape the entities, unless the model should generate HTML.", "note", False,
    ),
}  # fmt: skip
_PASSAGE_FINDINGS: FindingSpecs = {
    "no_whitespace": (
        f"sections of more than {MAX_UNBROKEN_LENGTH:,} characters without a space",
        "Check whether these sections are text: encoded images and programs look similar.", "warning", False,
    ),
}  # fmt: skip


def check_texts(
    data: Sequence[str], valid: Sequence[str], columns: Mapping[str, str] | None, settings: DataSettings,
    progress: ProgressCallback = no_progress,
) -> Report:  # fmt: skip
    """Look at training text, and at validation text against it."""
    train, held = TextSurvey(text_files(data), columns), TextSurvey(text_files(valid), columns)
    check_columns([*train.entries, *held.entries], columns)
    train.read(progress, "training data")
    held.read(progress, "validation data")
    findings: list[Finding] = []
    for name, survey in named_splits(train, held):
        kinds = (
            (1, _FILE_FINDINGS),
            (survey.rows, _DOCUMENT_FINDINGS),
            (survey.num_lines, _LINE_FINDINGS),
            (survey.num_passages, _PASSAGE_FINDINGS),
        )
        for rows, table in kinds:
            findings += tally_findings(name, survey.tallies, rows, table)
        findings += [*text_size_findings(name, survey, bool(held.entries)), *text_duplicate_findings(name, survey)]
    findings += [*leak_findings(train, held, _LEAKS), *line_leak_findings(train, held)]
    lengths = Lengths(
        train.sizes("words"), train.sizes("characters"), train.sizes("tokens"), 0, np.zeros(0, dtype=np.int64),
        ("document",), "documents",
    )  # fmt: skip
    return Report("lm", split_counts(train, held, _counts), tuple(findings), lengths)


def _counts(survey: TextSurvey) -> dict[str, int]:
    return {
        "documents": len(survey),
        "files": len(survey.entries),
        "lines": survey.num_lines,
        "words": survey.total("words"),
        "characters": survey.total("characters"),
        "unique_characters": len(survey.characters),
        "bytes": survey.total("bytes"),
    }


def text_size_findings(prefix: str, survey: TextSurvey, has_valid: bool) -> Iterable[Finding]:
    many = survey.total("characters")
    if not many:
        yield Finding(
            "error", "few", f"{prefix}no text found", 0, 0.0, (), "A document must contain more than whitespace."
        )
    elif not prefix and not survey.can_hold_out and not has_valid:
        what = "characters in a single passage, so no validation split is possible"
        advice = "Add text, or pass separate validation data with --valid."
        yield Finding("error", "few", what, many, 0.0, (), advice)
    elif not prefix and many < MIN_CHARACTERS:
        advice = "The model will memorize the text. Aim for several million characters or more."
        yield Finding("warning", "few", "small dataset, number of characters", many, 0.0, (), advice)


def text_duplicate_findings(prefix: str, survey: TextSurvey) -> Iterable[Finding]:
    yield from find_duplicates(prefix, "documents", survey)[0]
    hashes, sizes = survey.lines.arrays()
    twice = SortedHashes(hashes).duplicates()
    share = _text_fraction(survey, int(sizes[twice].sum()))
    if share > MIN_REPEATED_FRACTION:
        first = list(dict.fromkeys(hashes[twice].tolist()))[:MAX_LOCATIONS]
        here, there = survey.find_lines(first, occurrence=2), survey.find_lines(first)
        yield Finding(
            "warning" if share > HIGH_FRACTION else "note",
            "duplicate_lines",
            f"{prefix}duplicate lines of at least {MIN_LINE_LENGTH} characters{_sampling_note(survey)}, "
            "with percentage of all text",
            len(twice) * survey.lines.sampling_step,
            share,
            _join_locations(here, there, "same as"),
            "Consider removing repeated headers and notices.",
        )


_LEAK_ADVICE = "Remove the duplicates from one of the two sets; otherwise, the validation loss is too low."
_LEAKS: LeakSpecs = (
    ("leak", "documents also present in the training data", "error", _LEAK_ADVICE),
    (
        "leak_near_duplicate",
        "documents also present in the training data, ignoring case, whitespace and punctuation",
        "warning",
        _LEAK_ADVICE,
    ),
)


def line_leak_findings(train: TextSurvey, valid: TextSurvey) -> Iterable[Finding]:
    """Passages of one text in another are found by their lines, wherever in either they stand."""
    for survey, other in ((train, valid), (valid, train)):
        survey.lines.subsample(other.lines.mask)
    hashes, sizes = valid.lines.arrays()
    known = np.isin(hashes, train.lines.arrays()[0])
    if not known.any():
        return
    share = _text_fraction(valid, int(sizes[known].sum()))
    first = list(dict.fromkeys(hashes[known].tolist()))[:MAX_LOCATIONS]
    here, there = valid.find_lines(first), train.find_lines(first)
    yield Finding(
        "error" if share > HIGH_FRACTION else "warning" if share > MIN_REPEATED_FRACTION else "note",
        "leak_lines",
        f"validation: lines of at least {MIN_LINE_LENGTH} characters also present in the training data"
        f"{_sampling_note(valid)}, with percentage of all text",
        int(known.sum()) * valid.lines.sampling_step,
        share,
        _join_locations(here, there, "in training data:"),
        "A few identical lines are coincidence. If there are many, validate on text outside the training data.",
    )


def _text_fraction(survey: TextSurvey, characters: int) -> float:
    return min(1.0, survey.lines.sampling_step * characters / max(survey.total("characters"), 1))


def _sampling_note(survey: TextSurvey) -> str:
    return f", estimated from 1 in {survey.lines.sampling_step} lines" if survey.lines.sampling_step > 1 else ""


def _join_locations(here: Mapping[int, Location], there: Mapping[int, Location], word: str) -> tuple[Location, ...]:
    """The one places with the names of the others behind them."""
    found = []
    for key, place in here.items():
        other = there.get(key)
        where = (
            "" if other is None else f"line {other.line}" if other.path == place.path else f"{other.path}:{other.line}"
        )
        found.append(Location(place.path, place.line, f"{place.text}  ({word} {where})" if where else place.text))
    return tuple(found)
