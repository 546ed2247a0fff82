"""What is wrong with sentences and the tags of their words, before an hour is lost on them.

What must be put right is an error: training would refuse it, or learn from it what nobody wants. "Much" is more than a
tenth of the sentences.

| finding                 | what it is                                                    | error   | warning | note   |
|-------------------------|---------------------------------------------------------------|---------|---------|--------|
| unreadable              | a file that cannot be read to its end                         | always  |         |        |
| encoding                | lines that are not UTF-8                                      | always  |         |        |
| format                  | missing columns, other numbers of words and tags, blank words | always  |         |        |
| header                  | a first row that looks like the names of columns              | always  |         |        |
| few                     | sentences                                                     | < 2     | < 100   |        |
| empty                   | rows without words or tags, which are skipped                 | if much | else    |        |
| mojibake                | UTF-8 that was decoded as another encoding                    | if much | else    |        |
| replacement_character   | U+FFFD where a character was lost                             | if much | else    |        |
| control_character       | control characters inside a word                              |         | always  |        |
| tag_scheme              | how the tags spell entities                                   |         | doubted | else   |
| invalid_tags            | sentences with tags that the scheme does not allow, repaired  | if much | else    |        |
| classes                 | kinds of entities, or tags of words                           |         |         | always |
| outside_words           | words that belong to no entity                                |         |         | always |
| single_class            | all words have the same tag                                   | always  |         |        |
| no_entities             | no word belongs to an entity                                  | always  |         |        |
| too_many_classes        | more than half as many tags as words: the tag is a text       | always  |         |        |
| rare                    | kinds of fewer than five entities, tags of fewer words        |         | always  |        |
| imbalance               | one kind or tag is nine tenths, or hardly a word in an entity |         | always  |        |
| duplicates              | sentences that occur before                                   |         | always  |        |
| conflicting_labels      | the same words with other tags                                | if much | else    |        |
| long                    | sentences of more than data.max_length tokens, by estimate    |         | always  |        |
| unseen_classes          | kinds or tags of the validation set that are not trained on   | always  |         |        |
| leak                    | sentences of the validation set that are also trained on      | if much | else    |        |
| leak_conflicting_labels | the same with other tags                                      |         | always  |        |
| leak_near_duplicate     | the same but for case and punctuation                         |         | always  |        |
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from regard.data.check.labeled import (
    MAX_CLASS_FRACTION,
    MIN_CLASS_SAMPLES,
    duplicate_findings,
    format_counts,
    sample_count_findings,
)
from regard.data.check.labeled_survey import SIZE_MEASURES, RowSurvey
from regard.data.check.pair_survey import ProgressCallback, hash_text, no_progress, text_sizes
from regard.data.check.pairs import (
    COMMON_FINDINGS,
    HIGH_FRACTION,
    NEAR_LEAK_ADVICE,
    TOKEN_ESTIMATE_NOTE,
    FindingSpecs,
    LeakSpecs,
    leak_findings,
    named_splits,
    sample_finding,
    split_counts,
    tally_findings,
)
from regard.data.check.report import MAX_LOCATIONS, ClassCounts, Finding, Lengths, Report, Severity, excerpt
from regard.data.check.text_quality import normalize_text
from regard.data.settings import DataSettings
from regard.data.sources import expand_patterns
from regard.data.text.files import ErrorHandler
from regard.data.text.tables import SkippedRow
from regard.data.text.tag_schemes import OUTSIDE, SCHEME_LETTERS, SchemeDetector, TagScheme, convert_tags
from regard.data.text.tagged import TaggedSentence, read_tagged

MAX_OUTSIDE_FRACTION = 0.99
"""share of words outside of entities from which on there is little to learn from"""
NUM_SPECIAL_TOKENS = 2
"""tokens that stand around a sentence"""

_FINDINGS: FindingSpecs = {
    **{kind: COMMON_FINDINGS[kind] for kind in ("unreadable", "encoding", "format", "header")},
    "empty": ("rows without words or without tags", "Training skips these rows.", "warning", True),
    **{kind: COMMON_FINDINGS[kind] for kind in ("mojibake", "replacement_character", "control_character")},
}

_LEAKS: LeakSpecs = (
    (
        "leak", "sentences also present in the training data", "warning",
        "Consider removing all but the short duplicates from the training data.",
    ),
    (
        "leak_conflicting_labels", "sentences also present in the training data, with different tags", "warning",
        "Check which tags are correct.",
    ),
    (
        "leak_near_duplicate", "sentences also present in the training data, ignoring case and punctuation", "warning",
        NEAR_LEAK_ADVICE,
    ),
)  # fmt: skip


class TagSurvey(RowSurvey[TaggedSentence]):
    """Of each usable sentence also its lengths and whether its tags are as each scheme writes them.

    Hashes are of words with their tags (0), of the words (1), and of these without case and punctuation (2).
    """

    def __init__(self, entries: Sequence[str], columns: Mapping[str, str] | None) -> None:
        super().__init__(entries, columns, hashes=3)
        self.scheme_detector = SchemeDetector()
        self._sizes = {name: array("I") for name in SIZE_MEASURES}
        self._invalid_samples = {scheme: array("Q") for scheme in SCHEME_LETTERS}
        self._invalid_notes: dict[TagScheme, dict[int, str]] = {scheme: {} for scheme in SCHEME_LETTERS}

    def sizes(self, name: str) -> NDArray[np.int64]:
        """(N, 1)."""
        return np.array(self._sizes[name], dtype=np.int64)[:, None]

    @property
    def has_entities(self) -> bool:
        """Whether tags spell entities."""
        return self.scheme_detector.scheme != "plain"

    @property
    def classes(self) -> Counter[str]:
        """Entities by kind, or words by tag."""
        return (
            Counter({kind or "_": many for kind, many in self.scheme_detector.type_counts.items()})
            if self.has_entities
            else self.scheme_detector.tag_counts
        )

    def invalid_samples(self) -> tuple[NDArray[np.int64], dict[int, str]]:
        """The numbers of sentences with tags that the scheme does not allow; and which, of the first few."""
        if not self.has_entities:
            return np.zeros(0, dtype=np.int64), {}
        return np.array(self._invalid_samples[self.scheme_detector.scheme], dtype=np.int64), self._invalid_notes[
            self.scheme_detector.scheme
        ]

    def _read_entry(self, entry: str, complain: ErrorHandler) -> Iterator[TaggedSentence | SkippedRow]:
        yield from read_tagged(entry, self.columns, complain)  # what it finds before the first row is noted too

    def _preview(self, sample: TaggedSentence) -> str:
        return " ".join(
            word if tag == OUTSIDE else f"{word}/{tag}"
            for word, tag in zip((excerpt(word, width=16) for word in sample.words[:8]), sample.tags, strict=False)
        ) + (" …" if len(sample.words) > 8 else "")  # fmt: skip

    def _add_sample(self, number: int, sample: TaggedSentence) -> None:
        text = " ".join(sample.words)
        self._tally_quality_issues(sample, (text,))
        for scheme in self.scheme_detector.update(sample.tags):
            self._invalid_samples[scheme].append(len(self))
            if len(self._invalid_samples[scheme]) <= MAX_LOCATIONS:
                self._invalid_notes[scheme][len(self)] = _first_invalid_tag(sample, scheme)
        for name, value in zip(SIZE_MEASURES, text_sizes(text), strict=True):
            self._sizes[name].append(value)
        joined = "\0".join(sample.words)
        self._append(
            number, sample.line, map(hash_text, (joined + "\0" + " ".join(sample.tags), joined, normalize_text(text)))
        )


def _first_invalid_tag(sample: TaggedSentence, scheme: TagScheme) -> str:
    right = convert_tags(sample.tags, scheme)
    place = next(at for at, tag in enumerate(sample.tags) if tag != right[at])
    return f"'{excerpt(sample.words[place], width=24)}' is tagged {sample.tags[place]}, expected {right[place]}"


def check_tags(
    data: Sequence[str], valid: Sequence[str], columns: Mapping[str, str] | None, settings: DataSettings,
    progress: ProgressCallback = no_progress,
) -> Report:  # fmt: skip
    """Look at training sentences and their tags, and at those of validation against them."""
    train, held = TagSurvey(expand_patterns(data), columns), TagSurvey(expand_patterns(valid), columns)
    train.read(progress, "training data")
    held.read(progress, "validation data")
    findings: list[Finding] = []
    for name, survey in named_splits(train, held):
        findings += tally_findings(name, survey.tallies, survey.rows, _FINDINGS)
        findings += [
            *sample_count_findings(name, "sentences", survey, bool(held.entries)),
            *scheme_findings(name, survey),
            *class_findings(name, survey),
        ]
        findings += [
            *duplicate_findings(name, "sentences", survey, "different tags"),
            *length_findings(name, survey, settings.max_length),
        ]
    findings += unknown_tag_findings(train, held)
    for finding in leak_findings(train, held, _LEAKS):
        much = finding.id == "leak" and finding.fraction > HIGH_FRACTION
        findings.append(replace(finding, severity="error") if much else finding)

    def counts(survey: TagSurvey) -> dict[str, int]:
        words = {"words": sum(survey.scheme_detector.tag_counts.values())}
        entities = {"entities": sum(survey.scheme_detector.type_counts.values())} if survey.has_entities else {}
        return {"sentences": len(survey), "files": len(survey.entries), **words, **entities}

    words, characters, tokens = (train.sizes(name) for name in SIZE_MEASURES)
    lengths = Lengths(
        words, characters, tokens, settings.max_length, np.zeros(0, dtype=np.int64), ("sentence",), "sentences"
    )
    return Report(
        "tag", split_counts(train, held, counts), tuple(findings), lengths, class_counts=tuple(tag_counts(train, held))
    )


def tag_counts(train: TagSurvey, valid: TagSurvey) -> Iterable[ClassCounts]:
    if train.has_entities and train.scheme_detector.type_counts:
        yield ClassCounts("entities_by_type", train.classes, valid.classes if valid.has_entities else {})
    yield ClassCounts("words_by_tag", train.scheme_detector.tag_counts, valid.scheme_detector.tag_counts)


def scheme_findings(prefix: str, survey: TagSurvey) -> Iterable[Finding]:
    """How entities are spelt, and where they are spelt otherwise."""
    if not len(survey):
        return
    signs = survey.scheme_detector
    what = (
        f"{prefix}tags use the {signs.scheme} scheme"
        if survey.has_entities
        else f"{prefix}tags are classes of single words"
    )
    advice = (
        "Entities are parsed the same way in every scheme."
        if survey.has_entities
        else "Check whether the tags should mark entities."
    )
    if signs.ambiguity:
        yield Finding("warning", "tag_scheme", f"{what}, but {signs.ambiguity}", 0, 0.0, (), advice)
    else:
        yield Finding("note", "tag_scheme", what, 0, 0.0)
    odd, said = survey.invalid_samples()
    if len(odd):
        severity: Severity = "error" if len(odd) / survey.rows > HIGH_FRACTION else "warning"
        what = f"{prefix}sentences with invalid {signs.scheme} tags ({signs.num_invalid:,} tags)"
        advice = "Invalid tags are repaired: a tag without an entity to continue starts a new entity."
        yield sample_finding(survey, odd, said, severity, "invalid_tags", what, advice)


def class_findings(prefix: str, survey: TagSurvey) -> Iterable[Finding]:
    """How kinds of entities or tags of words are spread."""
    counts = dict(survey.classes.most_common())
    many, words = sum(counts.values()), sum(survey.scheme_detector.tag_counts.values())
    if not words:
        return
    unit, what = ("entities", "entity types") if survey.has_entities else ("words", "tags")
    if survey.has_entities:
        outside = survey.scheme_detector.tag_counts[OUTSIDE]
        yield Finding(
            "note", "outside_words", f"{prefix}words tagged O (outside of entities)", outside, outside / words
        )
        if MAX_OUTSIDE_FRACTION < outside / words < 1:
            what = f"{prefix}class imbalance, words inside of entities"
            advice = "A model predicting only O is nearly always correct. Check for untagged entities."
            yield Finding("warning", "imbalance", what, words - outside, 0.0, (), advice)
    if not counts or (len(counts) == 1 and not survey.has_entities):
        finding_id, said = ("no_entities", "no entities") if survey.has_entities else ("single_class", "only one tag")
        advice = f"Training needs at least {'one entity' if survey.has_entities else 'two different tags'}."
        yield Finding("error", finding_id, f"{prefix}{said}", 0, 0.0, (), advice)
        return
    yield Finding("note", "classes", f"{prefix}{what} ({format_counts(counts)})", len(counts), 0.0)
    if len(counts) > max(many // 2, 20):
        said = f"{prefix}too many {what} (more than half the number of {unit})"
        advice = "Is the tag column correct? Select the tag column with --columns tags=NAME, or by index from 0."
        yield Finding("error", "too_many_classes", said, len(counts), 0.0, (), advice)
        return
    first, most = next(iter(counts.items()))
    if len(counts) > 1 and most / many > MAX_CLASS_FRACTION:
        said = f"{prefix}class imbalance, {unit} {'of type' if survey.has_entities else 'tagged'} '{first}'"
        advice = "Check the score of each class: the overall score hides rare classes."
        yield Finding("warning", "imbalance", said, most, most / many, (), advice)
    rare = {label: count for label, count in counts.items() if count < MIN_CLASS_SAMPLES}
    if rare and not prefix:
        said = f"{prefix}{what} with fewer than {MIN_CLASS_SAMPLES} {unit} ({format_counts(rare)})"
        advice = f"Add {unit}, or merge rare {what} with other {what}."
        yield Finding("warning", "rare", said, len(rare), 0.0, (), advice)


def length_findings(prefix: str, survey: TagSurvey, max_length: int) -> Iterable[Finding]:
    tokens = survey.sizes("tokens")[:, 0] + NUM_SPECIAL_TOKENS
    over = np.flatnonzero(tokens > max_length)
    if len(over):
        what = f"{prefix}sentences longer than data.max_length={max_length:,} tokens {TOKEN_ESTIMATE_NOTE}"
        advice = (
            "Is a blank line between two sentences missing? Long sentences are split into overlapping windows, "
            "unless data.max_length is raised."
        )
        said = {int(n): f"about {tokens[n]:,} tokens" for n in over[:MAX_LOCATIONS]}
        yield sample_finding(survey, over, said, "warning", "long", what, advice)


def unknown_tag_findings(train: TagSurvey, valid: TagSurvey) -> Iterable[Finding]:
    strange = {label: count for label, count in valid.classes.items() if label not in train.classes}
    if strange:
        unit = "entity types" if valid.has_entities else "tags"
        what = f"validation: {unit} absent from the training data ({format_counts(strange)})"
        advice = (
            f"Add sentences with these {unit} to the training data, or remove these {unit} from the validation data."
        )
        yield Finding("error", "unseen_classes", what, len(strange), 0.0, (), advice)
