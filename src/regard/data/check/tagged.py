"""What is wrong with sentences and the tags of their words, before an hour is lost on them.

What must be put right is an error: training would refuse it, or learn from it what nobody wants. "Much" is more than a
tenth of the sentences.

| finding       | what it is                                                     | error    | warning | note   |
|---------------|----------------------------------------------------------------|----------|---------|--------|
| unreadable    | a file that cannot be read to its end                          | always   |         |        |
| encoding      | lines that are not UTF-8                                       | always   |         |        |
| format        | missing columns, other numbers of words and tags, blank words  | always   |         |        |
| header        | a first row that looks like the names of columns               | always   |         |        |
| few           | sentences                                                      | < 2      | < 100   |        |
| empty         | rows without words or tags, which are skipped                  | if much  | else    |        |
| mojibake      | UTF-8 that was decoded as another encoding                     | if much  | else    |        |
| lost          | U+FFFD where a character was lost                              | if much  | else    |        |
| control       | control characters inside a word                               |          | always  |        |
| scheme        | how the tags spell entities                                    |          | doubted | else   |
| repaired      | sentences with tags that the scheme does not allow             | if much  | else    |        |
| classes       | kinds of entities, or tags of words                            |          |         | always |
| outside       | words that belong to no entity                                 |          |         | always |
| one_class     | there is nothing to tell apart                                 | always   |         |        |
| many_classes  | more than half as many tags as words: the tag is a text        | always   |         |        |
| rare          | kinds of fewer than five entities, tags of fewer words         |          | always  |        |
| imbalance     | one kind or tag is nine tenths, or hardly a word in an entity  |          | always  |        |
| duplicates    | sentences that occur before                                    |          | always  |        |
| contradiction | the same words with other tags                                 | if much  | else    |        |
| long          | sentences of more than data.longest tokens, by estimate        |          | always  |        |
| unknown       | kinds or tags of the validation set that are not trained on    | always   |         |        |
| leak          | sentences of the validation set that are also trained on       | if much  | else    |        |
| leak_text     | the same with other tags                                       |          | always  |        |
| leak_near     | the same but for case and punctuation                          |          | always  |        |
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from regard.data.check.class_counts import ClassReport, Spread
from regard.data.check.findings import SHOWN, Finding, Lengths, Severity, excerpt
from regard.data.check.labeled import MOST, RARE, repeated, told, too_few
from regard.data.check.labeled_survey import SIZES, Rowwise
from regard.data.check.pair_survey import Advance, hashed, measured, unheard
from regard.data.check.pairs import ESTIMATE, MUCH, SEEN, Kinds, Leaks, among, counted, leaks, named, tallied
from regard.data.check.text_quality import bare
from regard.data.settings import Data
from regard.data.sources import expand
from regard.data.text.files import Complain
from regard.data.text.tables import Empty
from regard.data.text.tag_schemes import OUTSIDE, SPELT, Scheme, Signs, convert
from regard.data.text.tagged import Tagged, tagged_of

HARDLY = 0.99
"""share of words outside of entities from which on there is little to learn from"""
MARKS = 2
"""tokens that stand around a sentence"""

_KINDS: Kinds = {
    **{kind: SEEN[kind] for kind in ("unreadable", "encoding", "format", "header")},
    "empty": ("rows without words or without tags", "They are skipped.", "warning", True),
    **{kind: SEEN[kind] for kind in ("mojibake", "lost", "control")},
}

_LEAKS: Leaks = (
    ("leak", "sentences that are also trained on", "warning", "Better remove them from training, unless they are short."),
    ("leak_text", "sentences that are also trained on, with other tags", "warning", "See which tags are right."),
    (
        "leak_near", "sentences that are also trained on but for case and punctuation", "warning",
        "Better remove them from training.",
    ),
)  # fmt: skip


class TaggedSurvey(Rowwise[Tagged]):
    """Of each usable sentence also its lengths and whether its tags are as each scheme writes them.

    Hashes are of words with their tags (0), of the words (1), and of these without case and punctuation (2).
    """

    def __init__(self, entries: Sequence[str], columns: Mapping[str, str] | None) -> None:
        super().__init__(entries, columns, hashes=3)
        self.signs = Signs()
        self._sizes = {name: array("I") for name in SIZES}
        self._odd = {scheme: array("Q") for scheme in SPELT}
        self._said: dict[Scheme, dict[int, str]] = {scheme: {} for scheme in SPELT}

    def sizes(self, name: str) -> NDArray[np.int64]:
        """(N, 1)."""
        return np.array(self._sizes[name], dtype=np.int64)[:, None]

    @property
    def spells(self) -> bool:
        """Whether tags spell entities."""
        return self.signs.scheme != "plain"

    @property
    def classes(self) -> Counter[str]:
        """Entities by kind, or words by tag."""
        return (
            Counter({kind or "_": many for kind, many in self.signs.kinds.items()}) if self.spells else self.signs.tags
        )

    def odd(self) -> tuple[NDArray[np.int64], dict[int, str]]:
        """The numbers of sentences with tags that the scheme does not allow; and which, of the first few."""
        if not self.spells:
            return np.zeros(0, dtype=np.int64), {}
        return np.array(self._odd[self.signs.scheme], dtype=np.int64), self._said[self.signs.scheme]

    def _items(self, entry: str, complain: Complain) -> Iterator[Tagged | Empty]:
        yield from tagged_of(entry, self.columns, complain)  # what it finds before the first row is noted too

    def _shown(self, sample: Tagged) -> str:
        return " ".join(
            word if tag == OUTSIDE else f"{word}/{tag}"
            for word, tag in zip((excerpt(word, width=16) for word in sample.words[:8]), sample.tags, strict=False)
        ) + (" …" if len(sample.words) > 8 else "")  # fmt: skip

    def _look(self, number: int, sample: Tagged) -> None:
        text = " ".join(sample.words)
        self._note_oddities(sample, (text,))
        for scheme in self.signs.add(sample.tags):
            self._odd[scheme].append(len(self))
            if len(self._odd[scheme]) <= SHOWN:
                self._said[scheme][len(self)] = _first_odd(sample, scheme)
        for name, value in zip(SIZES, measured(text), strict=True):
            self._sizes[name].append(value)
        joined = "\0".join(sample.words)
        self._keep(number, sample.line, map(hashed, (joined + "\0" + " ".join(sample.tags), joined, bare(text))))


def _first_odd(sample: Tagged, scheme: Scheme) -> str:
    right = convert(sample.tags, scheme)
    place = next(at for at, tag in enumerate(sample.tags) if tag != right[at])
    return f"'{excerpt(sample.words[place], width=24)}' is {sample.tags[place]}, and should be {right[place]}"


def check_tagged(
    data: Sequence[str], valid: Sequence[str], columns: Mapping[str, str] | None, settings: Data,
    advance: Advance = unheard,
) -> ClassReport:  # fmt: skip
    """Look at training sentences and their tags, and at those of validation against them."""
    train, held = TaggedSurvey(expand(data), columns), TaggedSurvey(expand(valid), columns)
    train.read(advance, "training data")
    held.read(advance, "validation data")
    findings: list[Finding] = []
    for name, survey in named(train, held):
        findings += tallied(name, survey.tallies, survey.rows, _KINDS)
        findings += [
            *too_few(name, "sentences", survey, bool(held.entries)),
            *scheme(name, survey),
            *classes(name, survey),
        ]
        findings += [*repeated(name, "sentences", survey, "other tags"), *long(name, survey, settings.longest)]
    findings += unknown(train, held)
    for finding in leaks(train, held, _LEAKS):
        much = finding.kind == "leak" and finding.share > MUCH
        findings.append(replace(finding, severity="error") if much else finding)

    def counts(survey: TaggedSurvey) -> dict[str, int]:
        words = {"words": sum(survey.signs.tags.values())}
        entities = {"entities": sum(survey.signs.kinds.values())} if survey.spells else {}
        return {"sentences": len(survey), "files": len(survey.entries), **words, **entities}

    words, characters, tokens = (train.sizes(name) for name in SIZES)
    lengths = Lengths(
        words, characters, tokens, settings.longest, np.zeros(0, dtype=np.int64), ("sentence",), "sentences"
    )
    return ClassReport(
        "tag", counted(train, held, counts), tuple(findings), lengths, spreads=tuple(spreads(train, held))
    )


def spreads(train: TaggedSurvey, held: TaggedSurvey) -> Iterable[Spread]:
    if train.spells and train.signs.kinds:
        yield Spread("entities by kind", train.classes, held.classes if held.spells else {})
    yield Spread("words by tag", train.signs.tags, held.signs.tags)


def scheme(name: str, survey: TaggedSurvey) -> Iterable[Finding]:
    """How entities are spelt, and where they are spelt otherwise."""
    if not len(survey):
        return
    signs = survey.signs
    what = f"{name}tags are spelt in {signs.scheme}" if survey.spells else f"{name}tags are classes of single words"
    advice = "Entities are read alike in all schemes." if survey.spells else "See whether entities are meant."
    if signs.doubt:
        yield Finding("warning", "scheme", f"{what}, but {signs.doubt}", 0, 0.0, (), advice)
    else:
        yield Finding("note", "scheme", what, 0, 0.0)
    odd, said = survey.odd()
    if len(odd):
        severity: Severity = "error" if len(odd) / survey.rows > MUCH else "warning"
        what = f"{name}sentences with tags that {signs.scheme} does not allow ({signs.repaired:,} tags)"
        advice = "They are repaired: an entity begins wherever none can go on."
        yield among(survey, odd, said, severity, "repaired", what, advice)


def classes(name: str, survey: TaggedSurvey) -> Iterable[Finding]:
    """How kinds of entities or tags of words are spread."""
    counts = dict(survey.classes.most_common())
    many, words = sum(counts.values()), sum(survey.signs.tags.values())
    if not words:
        return
    unit, what = ("entities", "kinds of entities") if survey.spells else ("words", "tags")
    if survey.spells:
        outside = survey.signs.tags[OUTSIDE]
        yield Finding("note", "outside", f"{name}words that belong to no entity", outside, outside / words)
        if HARDLY < outside / words < 1:
            advice = (
                "A model may say nothing at all and be nearly always right. See that entities are not left untagged."
            )
            yield Finding(
                "warning", "imbalance", f"{name}hardly a word belongs to an entity", words - outside, 0.0, (), advice
            )
    if not counts or (len(counts) == 1 and not survey.spells):
        said = "no word belongs to an entity" if survey.spells else "there is one tag only"
        yield Finding("error", "one_class", f"{name}{said}", 0, 0.0, (), "Nothing can be told apart.")
        return
    yield Finding("note", "classes", f"{name}{what} ({told(counts)})", len(counts), 0.0)
    if len(counts) > max(many // 2, 20):
        advice = "Is the right column taken for the tags? Say --columns tags=NAME, or its place from 0."
        yield Finding("error", "many_classes", f"{name}{what}, nearly as many as {unit}", len(counts), 0.0, (), advice)
        return
    first, most = next(iter(counts.items()))
    if len(counts) > 1 and most / many > MOST:
        advice = "Look at the score of each kind: that of all says little of the others."
        yield Finding("warning", "imbalance", f"{name}{unit} are '{first}'", most, most / many, (), advice)
    rare = {label: count for label, count in counts.items() if count < RARE}
    if rare and not name:
        said = f"{name}{what} with fewer than {RARE} {unit} ({told(rare)})"
        advice = "A kind is learnt from examples. Add some, or join it with another."
        yield Finding("warning", "rare", said, len(rare), 0.0, (), advice)


def long(name: str, survey: TaggedSurvey, longest: int) -> Iterable[Finding]:
    tokens = survey.sizes("tokens")[:, 0] + MARKS
    over = np.flatnonzero(tokens > longest)
    if len(over):
        what = f"{name}sentences with more than data.longest={longest:,} tokens, {ESTIMATE}"
        advice = "Is a blank line missing? They are read in windows that overlap, unless data.longest is raised."
        said = {int(n): f"about {tokens[n]:,} tokens" for n in over[:SHOWN]}
        yield among(survey, over, said, "warning", "long", what, advice)


def unknown(train: TaggedSurvey, held: TaggedSurvey) -> Iterable[Finding]:
    strange = {label: count for label, count in held.classes.items() if label not in train.classes}
    if strange:
        what = "kinds of entities" if held.spells else "tags"
        yield Finding(
            "error", "unknown", f"validation: {what} that are not trained on ({told(strange)})", len(strange), 0.0, (),
            "Add sentences with them to the training data, or leave them out.",
        )  # fmt: skip
