"""What is wrong with text, before an hour is lost on it.

What must be put right is an error: training would refuse it, or learn from it what nobody wants. "Much" is more than a
tenth. Long lines are those with at least 40 letters; they are compared without case and punctuation.

| finding    | what it is                                                  | error   | warning        | note    |
|------------|-------------------------------------------------------------|---------|----------------|---------|
| unreadable | a file that cannot be read to its end                       | always  |                |         |
| encoding   | lines that are not UTF-8                                    | always  |                |         |
| format     | rows without text, broken JSON or CSV                       | always  |                |         |
| few        | text                                                        | none *  | < 200,000 char |         |
| empty      | blank documents, which are skipped                          | if much | else           |         |
| mojibake   | UTF-8 that was decoded as another encoding                  | if much | else           |         |
| lost       | U+FFFD where a character was lost                           | if much | else           |         |
| control    | control characters inside a text                            |         | always         |         |
| markup     | entities and tags of HTML                                   |         |                | always  |
| solid      | more than 100,000 characters without a blank                |         | always         |         |
| duplicates | documents that occur before                                 |         | always         |         |
| repeated   | long lines that occur before, above 1 % of the text         |         | if much        | else    |
| leak       | documents of the validation set that are also trained on    | always  |                |         |
| leak_near  | the same but for case, blanks and punctuation               |         | always         |         |
| leak_lines | long lines of the validation set that are also trained on   | if much | > 1 %          | else    |

* or a single passage, of which none can be held out
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from regard.data.check.findings import SHOWN, Finding, Lengths, Place, Report
from regard.data.check.pair_survey import Advance, unheard
from regard.data.check.pairs import MUCH, SEEN, Kinds, Leaks, Sorted, counted, duplicated, leaks, named, tallied
from regard.data.check.text_survey import LINE, SOLID, TextSurvey
from regard.data.settings import Data
from regard.data.text.documents import check_choice, text_files

FEW = 200_000
SOME = 0.01
"""share of the text from which on repeated lines are worth a word"""

_FILES: Kinds = {"unreadable": SEEN["unreadable"]}
_ROWS: Kinds = {"format": SEEN["format"], "empty": ("blank documents", "They are skipped.", "warning", True)}
_LINES: Kinds = {
    "encoding": SEEN["encoding"],
    "mojibake": (
        "lines with UTF-8 that was read as another encoding, such as Ã¼ for ü",
        "Make the file again, or repair it (the Python package ftfy does that).", "warning", True,
    ),
    "lost": ("lines with U+FFFD, where a character was lost", "Make the file again from its source.", "warning", True),
    "control": ("lines with control characters", "Remove them, unless they are meant.", "warning", False),
    "markup": (
        "lines with entities or tags of HTML, such as &amp;", "Unescape them, unless the model is to write them.", "note",
        False,
    ),
}  # fmt: skip
_STRETCHES: Kinds = {
    "solid": (
        f"stretches of more than {SOLID:,} characters without a blank",
        "See whether that is text: pictures and programs are sometimes written so.", "warning", False,
    ),
}  # fmt: skip


def check_texts(
    data: Sequence[str], valid: Sequence[str], columns: Mapping[str, str] | None, settings: Data,
    advance: Advance = unheard,
) -> Report:  # fmt: skip
    """Look at training text, and at validation text against it."""
    train, held = TextSurvey(text_files(data), columns), TextSurvey(text_files(valid), columns)
    check_choice([*train.entries, *held.entries], columns)
    train.read(advance, "training data")
    held.read(advance, "validation data")
    findings: list[Finding] = []
    for name, survey in named(train, held):
        kinds = ((1, _FILES), (survey.rows, _ROWS), (survey.many, _LINES), (survey.passages, _STRETCHES))
        for rows, table in kinds:
            findings += tallied(name, survey.tallies, rows, table)
        findings += [*too_few(name, survey, bool(held.entries)), *repeated(name, survey)]
    findings += [*leaks(train, held, _LEAKS), *leaked_lines(train, held)]
    lengths = Lengths(
        train.sizes("words"), train.sizes("characters"), train.sizes("tokens"), 0, np.zeros(0, dtype=np.int64),
        ("document",), "documents",
    )  # fmt: skip
    return Report("language", counted(train, held, _counts), tuple(findings), lengths)


def _counts(survey: TextSurvey) -> dict[str, int]:
    return {
        "documents": len(survey),
        "files": len(survey.entries),
        "lines": survey.many,
        "words": survey.total("words"),
        "characters": survey.total("characters"),
        "different_characters": len(survey.letters),
        "bytes": survey.total("bytes"),
    }


def too_few(name: str, survey: TextSurvey, has_valid: bool) -> Iterable[Finding]:
    many = survey.total("characters")
    if not many:
        yield Finding("error", "few", f"{name}there is no text", 0, 0.0, (), "A document needs more than blanks.")
    elif not name and not survey.can_hold_out and not has_valid:
        advice = "Add text, or give validation data of its own with --valid."
        yield Finding("error", "few", "characters in one passage, of which none can be held out", many, 0.0, (), advice)
    elif not name and many < FEW:
        advice = "A model learns so little by heart. Millions are a start, better more."
        yield Finding("warning", "few", "characters are few", many, 0.0, (), advice)


def repeated(name: str, survey: TextSurvey) -> Iterable[Finding]:
    yield from duplicated(name, "documents", survey)[0]
    hashes, sizes = survey.lines.arrays()
    twice = Sorted(hashes).repeats()
    share = _share(survey, int(sizes[twice].sum()))
    if share > SOME:
        first = list(dict.fromkeys(hashes[twice].tolist()))[:SHOWN]
        here, there = survey.find(first, which=2), survey.find(first)
        yield Finding(
            "warning" if share > MUCH else "note", "repeated",
            f"{name}lines of {LINE} letters and more that repeat an earlier one{_sampled(survey)}; share of the text",
            len(twice) * survey.lines.step, share, _beside(here, there, "as in"),
            "Headers and notices that stand everywhere are better removed.",
        )  # fmt: skip


_REMOVE = "Remove them from one of the two: the loss would be too low."
_LEAKS: Leaks = (
    ("leak", "documents that are also trained on", "error", _REMOVE),
    ("leak_near", "documents that are also trained on but for case, blanks and punctuation", "warning", _REMOVE),
)


def leaked_lines(train: TextSurvey, held: TextSurvey) -> Iterable[Finding]:
    """Passages of one text in another are found by their lines, wherever in either they stand."""
    for survey, other in ((train, held), (held, train)):
        survey.lines.thin(other.lines.mask)
    hashes, sizes = held.lines.arrays()
    known = np.isin(hashes, train.lines.arrays()[0])
    if not known.any():
        return
    share = _share(held, int(sizes[known].sum()))
    first = list(dict.fromkeys(hashes[known].tolist()))[:SHOWN]
    here, there = held.find(first), train.find(first)
    yield Finding(
        "error" if share > MUCH else "warning" if share > SOME else "note", "leak_lines",
        f"validation: lines of {LINE} letters and more that are also trained on{_sampled(held)}; share of the text",
        int(known.sum()) * held.lines.step, share, _beside(here, there, "trained on in"),
        "Some are alike by chance. If they are more, validate on text that is not trained on.",
    )  # fmt: skip


def _share(survey: TextSurvey, characters: int) -> float:
    return min(1.0, survey.lines.step * characters / max(survey.total("characters"), 1))


def _sampled(survey: TextSurvey) -> str:
    return f", by a sample of one in {survey.lines.step}" if survey.lines.step > 1 else ""


def _beside(here: Mapping[int, Place], there: Mapping[int, Place], word: str) -> tuple[Place, ...]:
    """The one places with the names of the others behind them."""
    found = []
    for key, place in here.items():
        other = there.get(key)
        where = (
            "" if other is None else f"line {other.line}" if other.path == place.path else f"{other.path}:{other.line}"
        )
        found.append(Place(place.path, place.line, f"{place.text}  ({word} {where})" if where else place.text))
    return tuple(found)
