"""What is wrong with questions whose answers stand in a context, before an hour is lost on them.

What must be put right is an error: training would refuse it, or learn from it what nobody wants. "Much" is more than a
tenth of the questions.

| finding       | what it is                                                     | error    | warning | note   |
|---------------|----------------------------------------------------------------|----------|---------|--------|
| unreadable    | a file that cannot be read to its end                          | always   |         |        |
| encoding      | lines that are not UTF-8                                       | always   |         |        |
| format        | missing columns or keys, broken JSON, places that are none     | always   |         |        |
| answer        | answers that do not stand in their context                     | always   |         |        |
| few           | questions                                                      | < 2      | < 100   |        |
| empty         | rows without a question or a context, which are skipped        | if much  | else    |        |
| mojibake      | UTF-8 that was decoded as another encoding                     | if much  | else    |        |
| lost          | U+FFFD where a character was lost                              | if much  | else    |        |
| control       | control characters inside a text                               |          | always  |        |
| markup        | entities and tags of HTML                                      |          |         | always |
| mended        | answers that stand elsewhere than they were said to            | if much  | else    |        |
| unanswerable  | questions without an answer                                    |          |         | always |
| one_class     | no question has an answer                                      | always   |         |        |
| imbalance     | nine tenths of the questions, but not all, have none, or one   |          | always  |        |
| duplicates    | questions that occur before                                    |          | always  |        |
| contradiction | the same question about the same context with other answers    | if much  | else    |        |
| long          | contexts that do not fit into data.longest tokens, by estimate |          |         | always |
| long_answer   | answers of more than 30 words                                  |          | always  |        |
| leak          | questions of the validation set that are also trained on       | always   |         |        |
| leak_question | the same with other answers                                    | always   |         |        |
| leak_context  | questions about contexts that are also trained on              |          | always  |        |
| leak_article  | questions about articles that are also trained on              |          |         | always |
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from regard.data.check.class_counts import ClassReport, Spread
from regard.data.check.findings import SHOWN, Finding, Lengths, Place, Severity, excerpt
from regard.data.check.labeled import MOST, repeated, too_few
from regard.data.check.labeled_survey import SIZES, Rowwise
from regard.data.check.pair_survey import Advance, hashed, measured, unheard
from regard.data.check.pairs import ESTIMATE, MUCH, SEEN, Kinds, Leaks, among, counted, leaks, named, tallied
from regard.data.settings import Data
from regard.data.sources import expand
from regard.data.text.files import Complain, existing
from regard.data.text.qa import Span, spans_of
from regard.data.text.records import document
from regard.data.text.tables import Empty, format_of

SIDES = ("context", "answer", "question")
WORDY = 30
"""words of an answer beyond which it is hardly one"""
MARKS = 3
"""tokens that stand around a question and its context"""

_KINDS: Kinds = {
    **{kind: SEEN[kind] for kind in ("unreadable", "encoding", "format", "header")},
    "answer": (
        "questions with an answer that does not stand in the context",
        "An answer is learnt by its place. Put them right or remove them: training refuses the file.", "error", False,
    ),
    "empty": ("rows without a question or a context", "They are skipped.", "warning", True),
    **{kind: SEEN[kind] for kind in ("mojibake", "lost", "control", "markup")},
}  # fmt: skip

_BOTH = "One of the two is wrong; or give one question both answers."
_APART = "Better keep an article whole on one side: the score is to tell how well new texts are read."
_LEAKS: Leaks = (
    ("leak", "questions that are also trained on", "error", "Remove them from one of the two: the score would be too good."),
    ("leak_question", "questions that are also trained on, with other answers", "error", "Remove them from one of the two."),
    ("leak_context", "questions about contexts that are also trained on", "warning", _APART),
    ("leak_article", "questions about articles that are also trained on", "note", _APART),
)  # fmt: skip


class SpanSurvey(Rowwise[Span]):
    """Of each usable question also its lengths, and whether it has an answer.

    Hashes are of context, question and answers (0), of context and question (1), of the context (2), of the article (3).
    """

    left_out = ("empty", "encoding", "format", "answer")

    def __init__(self, entries: Sequence[str], columns: Mapping[str, str] | None) -> None:
        super().__init__(entries, columns, hashes=4)
        self.answers = self.mended = 0
        """all of them, and those that were found elsewhere"""
        self._sizes = {name: tuple(array("I") for _ in SIDES) for name in SIZES}
        self._unsaid, self._moved = array("Q"), array("Q")
        self._whole: dict[str, bool] = {}
        """whether a file is one JSON document"""

    def sizes(self, name: str) -> NDArray[np.int64]:
        """(N, 3) of contexts, longest answers and questions."""
        return np.stack([np.array(side, dtype=np.int64) for side in self._sizes[name]], axis=1)

    def unanswerable(self) -> NDArray[np.int64]:
        """The numbers of questions without an answer."""
        return np.array(self._unsaid, dtype=np.int64)

    def moved(self) -> NDArray[np.int64]:
        """The numbers of questions with answers that were found elsewhere than they were said to stand."""
        return np.array(self._moved, dtype=np.int64)

    @property
    def classes(self) -> dict[str, int]:
        unsaid = len(self._unsaid)
        return {"answerable": len(self) - unsaid, "unanswerable": unsaid}

    def _at(self, path: str, line: int, text: str = "", side: int = 0) -> Place:
        """In a file that is one JSON document questions are counted, not lines."""
        return Place(path, line, text, "question" if self._counts(path) else "")

    def place(self, number: int, beside: int | None = None) -> str:
        found = super().place(number, beside)
        counts = found.startswith("line ") and self._counts(self.entries[self._where[0][number]])
        return f"question {found.removeprefix('line ')}" if counts else found

    def _counts(self, path: str) -> bool:
        if path not in self._whole:
            self._whole[path] = format_of(path) == ".json" and document(existing(path)) is not None
        return self._whole[path]

    def _items(self, entry: str, complain: Complain) -> Iterator[Span | Empty]:
        yield from spans_of(entry, self.columns, complain)  # what it finds before the first row is noted too

    def _shown(self, sample: Span) -> str:
        answer = excerpt(sample.answers[0], width=24) if sample.possible else "no answer"
        return f"{excerpt(sample.question, width=48)} → {answer}"

    def _look(self, number: int, sample: Span) -> None:
        self._note_oddities(sample, (sample.context, sample.question))
        if not sample.possible:
            self._unsaid.append(len(self))
        if sample.mended:
            self._moved.append(len(self))
        self.answers += len(sample.answers)
        self.mended += sample.mended
        texts = sample.context, max(sample.answers, key=len, default=""), sample.question
        for side, text in enumerate(texts):
            for name, value in zip(SIZES, measured(text), strict=True):
                self._sizes[name][side].append(value)
        asked = f"{sample.context}\0{sample.question}"
        whole = "\0".join((asked, *sorted(set(sample.answers))))
        self._keep(number, sample.line, map(hashed, (whole, asked, sample.context, sample.key)))


def check_spans(
    data: Sequence[str], valid: Sequence[str], columns: Mapping[str, str] | None, settings: Data,
    advance: Advance = unheard,
) -> ClassReport:  # fmt: skip
    """Look at training questions, and at those of validation against them."""
    train, held = SpanSurvey(expand(data), columns), SpanSurvey(expand(valid), columns)
    train.read(advance, "training data")
    held.read(advance, "validation data")
    findings: list[Finding] = []
    for name, survey in named(train, held):
        findings += tallied(name, survey.tallies, survey.rows, _KINDS)
        findings += [*too_few(name, "questions", survey, bool(held.entries)), *mended(name, survey)]
        findings += [*answerable(name, survey), *repeated(name, "questions", survey, "other answers", _BOTH)]
        findings += long(name, survey, settings.longest)
    findings += leaks(train, held, _LEAKS)

    def counts(survey: SpanSurvey) -> dict[str, int]:
        contexts, articles = (len(np.unique(survey.hashes(kind))) for kind in (2, 3))
        told = {"articles": articles} if articles < contexts else {}
        return {"questions": len(survey), "contexts": contexts, **told, "files": len(survey.entries)}

    words, characters, tokens = (train.sizes(name) for name in SIZES)
    lengths = Lengths(words, characters, tokens, settings.longest, np.zeros(0, dtype=np.int64), SIDES, "questions")
    some = len(train.unanswerable()) or len(held.unanswerable())
    spreads = (Spread("questions", train.classes, held.classes if held.entries else {}),) if some else ()
    return ClassReport("span", counted(train, held, counts), tuple(findings), lengths, spreads=spreads)


def mended(name: str, survey: SpanSurvey) -> Iterable[Finding]:
    moved = survey.moved()
    if len(moved):
        severity: Severity = "error" if len(moved) / survey.rows > MUCH else "warning"
        what = f"{name}questions with answers elsewhere than they were said to stand ({survey.mended:,} answers)"
        advice = "The nearest place is taken. Places count characters from 0, not bytes, in the context as it is."
        yield among(survey, moved, None, severity, "mended", what, advice)


def answerable(name: str, survey: SpanSurvey) -> Iterable[Finding]:
    """How many questions have an answer."""
    unsaid, many = survey.unanswerable(), len(survey)
    if not len(unsaid):
        return
    share = len(unsaid) / many
    yield Finding("note", "unanswerable", f"{name}questions without an answer", len(unsaid), share)
    if share == 1:
        advice = "Is the right column taken for the answer? Say --columns answer=NAME."
        yield Finding("error", "one_class", f"{name}no question has an answer", 0, 0.0, (), advice)
    elif max(share, 1 - share) > MOST:
        said = f"{name}questions have {'no' if share > MOST else 'an'} answer"
        advice = "Look at the scores of both: that of all says little of the fewer."
        most = max(len(unsaid), many - len(unsaid))
        yield Finding("warning", "imbalance", said, most, most / many, (), advice)


def long(name: str, survey: SpanSurvey, longest: int) -> Iterable[Finding]:
    tokens, words = survey.sizes("tokens"), survey.sizes("words")[:, 1]
    sums = tokens[:, 0] + tokens[:, 2] + MARKS
    over = np.flatnonzero(sums > longest)
    if len(over):
        what = f"{name}questions with contexts that do not fit into data.longest={longest:,} tokens, {ESTIMATE}"
        advice = "They are read in windows that overlap. Raise data.longest if the model's context is longer."
        said = {int(n): f"about {sums[n]:,} tokens" for n in over[:SHOWN]}
        yield among(survey, over, said, "note", "long", what, advice)
    wordy = np.flatnonzero(words > WORDY)
    if len(wordy):
        said = {int(n): f"{words[n]:,} words" for n in wordy[:SHOWN]}
        what, advice = (
            f"{name}questions with an answer of more than {WORDY} words",
            "See that they are not whole sentences.",
        )
        yield among(survey, wordy, said, "warning", "long_answer", what, advice)
