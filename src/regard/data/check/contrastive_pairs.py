"""What is wrong with pairs of texts that shall belong together, before an hour is lost on them.

Files, rows and characters are looked at as in any pairs (`pair_checks`); what only a translation could get wrong is not.

| finding    | what it is                                             | error   | warning | note    |
|------------|--------------------------------------------------------|---------|---------|---------|
| copies     | pairs of a text with itself, which teach nothing       | if much | else    |         |
| duplicates | pairs that occur before                                |         | always  |         |
| long       | sides with more than data.longest tokens, by estimate  |         | always  |         |
| leak       | pairs of the validation set that are also trained on   | always  |         |         |
| leak_text  | first texts of it that are also trained on             |         | always  |         |
| leak_near  | the same but for case and punctuation                  |         | always  |         |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from regard.data.check.findings import SHOWN, Finding, Lengths, Report
from regard.data.check.pair_survey import Advance, Survey, unheard
from regard.data.check.pairs import (
    ESTIMATE,
    MUCH,
    SEEN,
    Leaks,
    among,
    counted,
    duplicated,
    files,
    leaks,
    named,
    tallied,
    too_few,
)
from regard.data.settings import Data
from regard.data.sources import expand
from regard.data.text.contrastive_pairs import iterate_file
from regard.data.text.files import Complain
from regard.data.text.pairs import Empty, Pair

LEAKS: Leaks = (
    ("leak", "pairs that are also trained on", "error", "Remove them from one of the two: the score would be too good."),
    ("leak_text", "first texts that are also trained on", "warning", "Better remove them from training."),
    (
        "leak_near", "first texts that are also trained on but for case and punctuation", "warning",
        "Better remove them from training.",
    ),
)  # fmt: skip


class Together(Survey):
    """Reads files as training does, whatever their columns are called."""

    def _items(self, entry: str, complain: Complain) -> Iterator[Pair | Empty]:
        return iterate_file(entry, self.columns, complain)


def check_together(
    data: Sequence[str], valid: Sequence[str], columns: Mapping[str, str] | None, settings: Data,
    advance: Advance = unheard,
) -> Report:  # fmt: skip
    """Look at training pairs, and at validation pairs against them."""
    train, held = Together(expand(data), columns), Together(expand(valid), columns)
    train.read(advance, "training data")
    held.read(advance, "validation data", known=train.profile)
    findings: list[Finding] = []
    for name, survey in named(train, held):
        findings += [*tallied(name, survey.tallies, survey.rows, SEEN), *_copies(name, survey)]
        findings += [*too_few(name, survey, bool(held.entries)), *duplicated(name, "pairs", survey)[0]]
        findings += _long(name, survey, settings.longest)
    findings += leaks(train, held, LEAKS)
    counts = counted(train, held, lambda survey: {"pairs": len(survey), "files": files(survey)})
    none = np.zeros(0, dtype=np.int64)
    lengths = Lengths(train.sizes(0), train.sizes(1), train.sizes(2), settings.longest, none)
    return Report("embed", counts, tuple(findings), lengths)


def _copies(name: str, survey: Survey) -> Iterable[Finding]:
    if copies := len(survey.copies):
        yield among(
            survey, survey.copies, None, "error" if copies / survey.rows > MUCH else "warning", "copies",
            f"{name}pairs of a text with itself", "They teach nothing: remove them.",
        )  # fmt: skip


def _long(name: str, survey: Survey, longest: int) -> Iterable[Finding]:
    tokens = survey.sizes(2)
    over = np.flatnonzero(tokens.max(axis=1, initial=0) > longest)
    if len(over):
        said = {int(n): f"about {tokens[n].max():,} tokens" for n in over[:SHOWN]}
        yield among(
            survey, over, said, "warning", "long",
            f"{name}pairs with more than data.longest={longest:,} tokens on a side, {ESTIMATE}",
            "Their beginnings are read, up to what the model reads. Split them, or raise data.longest.",
        )  # fmt: skip
