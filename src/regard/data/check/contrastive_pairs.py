"""What is wrong with pairs of texts that shall belong together, before an hour is lost on them.

Files, rows and characters are looked at as in any pairs (`pair_checks`); what only a translation could get wrong is not.

| finding             | what it is                                               | error   | warning | note |
|---------------------|----------------------------------------------------------|---------|---------|------|
| identical_sides     | pairs of a text with itself, which teach nothing         | if much | else    |      |
| duplicates          | pairs that occur before                                  |         | always  |      |
| long                | sides with more than data.max_length tokens, by estimate |         | always  |      |
| leak                | pairs of the validation set that are also trained on     | always  |         |      |
| leak_anchor         | first texts of it that are also trained on               |         | always  |      |
| leak_near_duplicate | the same but for case and punctuation                    |         | always  |      |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from regard.data.check.pair_survey import PairSurvey, ProgressCallback, no_progress
from regard.data.check.pairs import (
    COMMON_FINDINGS,
    HIGH_FRACTION,
    LEAK_ADVICE,
    NEAR_LEAK_ADVICE,
    TOKEN_ESTIMATE_NOTE,
    LeakSpecs,
    count_files,
    find_duplicates,
    leak_findings,
    named_splits,
    pair_count_findings,
    sample_finding,
    split_counts,
    tally_findings,
)
from regard.data.check.report import MAX_LOCATIONS, Finding, Lengths, Report
from regard.data.settings import DataSettings
from regard.data.sources import expand_patterns
from regard.data.text.files import ErrorHandler
from regard.data.text.pairs import Pair, read_positive_pairs
from regard.data.text.tables import SkippedRow

LEAKS: LeakSpecs = (
    ("leak", "pairs also present in the training data", "error", LEAK_ADVICE),
    ("leak_anchor", "first texts also present in the training data", "warning", NEAR_LEAK_ADVICE),
    (
        "leak_near_duplicate", "first texts also present in the training data, ignoring case and punctuation", "warning",
        NEAR_LEAK_ADVICE,
    ),
)  # fmt: skip


class ContrastivePairSurvey(PairSurvey):
    """Reads files as training does, whatever their columns are called."""

    def _read_entry(self, entry: str, complain: ErrorHandler) -> Iterator[Pair | SkippedRow]:
        return read_positive_pairs(entry, self.columns, complain)


def check_contrastive_pairs(
    data: Sequence[str], valid: Sequence[str], columns: Mapping[str, str] | None, settings: DataSettings,
    progress: ProgressCallback = no_progress,
) -> Report:  # fmt: skip
    """Look at training pairs, and at validation pairs against them."""
    train, held = (
        ContrastivePairSurvey(expand_patterns(data), columns),
        ContrastivePairSurvey(expand_patterns(valid), columns),
    )
    train.read(progress, "training data")
    held.read(progress, "validation data", reference=train.profile)
    findings: list[Finding] = []
    for name, survey in named_splits(train, held):
        findings += [*tally_findings(name, survey.tallies, survey.rows, COMMON_FINDINGS), *_copy_findings(name, survey)]
        findings += [*pair_count_findings(name, survey, bool(held.entries)), *find_duplicates(name, "pairs", survey)[0]]
        findings += _length_findings(name, survey, settings.max_length)
    findings += leak_findings(train, held, LEAKS)
    counts = split_counts(train, held, lambda survey: {"pairs": len(survey), "files": count_files(survey)})
    none = np.zeros(0, dtype=np.int64)
    lengths = Lengths(train.sizes(0), train.sizes(1), train.sizes(2), settings.max_length, none)
    return Report("embed", counts, tuple(findings), lengths)


def _copy_findings(prefix: str, survey: PairSurvey) -> Iterable[Finding]:
    if copies := len(survey.copies):
        yield sample_finding(
            survey, survey.copies, None, "error" if copies / survey.rows > HIGH_FRACTION else "warning", "identical_sides",
            f"{prefix}pairs of two identical texts", "Remove the pairs: identical texts give no training signal.",
        )  # fmt: skip


def _length_findings(prefix: str, survey: PairSurvey, longest: int) -> Iterable[Finding]:
    tokens = survey.sizes(2)
    over = np.flatnonzero(tokens.max(axis=1, initial=0) > longest)
    if len(over):
        said = {int(n): f"about {tokens[n].max():,} tokens" for n in over[:MAX_LOCATIONS]}
        yield sample_finding(
            survey, over, said, "warning", "long",
            f"{prefix}pairs with a text longer than data.max_length={longest:,} tokens {TOKEN_ESTIMATE_NOTE}",
            "Texts are truncated at the end, to data.max_length and to the model's maximum length. "
            "Split the texts, or raise data.max_length.",
        )  # fmt: skip
