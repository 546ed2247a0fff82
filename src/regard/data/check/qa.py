"""What is wrong with questions whose answers stand in a context, before an hour is lost on them.

What must be put right is an error: training would refuse it, or learn from it what nobody wants. "Much" is more than a
tenth of the questions.

| finding               | what it is                                                        | error   | warning | note   |
|-----------------------|-------------------------------------------------------------------|---------|---------|--------|
| unreadable            | a file that cannot be read to its end                             | always  |         |        |
| encoding              | lines that are not UTF-8                                          | always  |         |        |
| format                | missing columns or keys, broken JSON, places that are none        | always  |         |        |
| answer_not_in_context | answers that do not stand in their context                        | always  |         |        |
| few                   | questions                                                         | < 2     | < 100   |        |
| empty                 | rows without a question or a context, which are skipped           | if much | else    |        |
| mojibake              | UTF-8 that was decoded as another encoding                        | if much | else    |        |
| replacement_character | U+FFFD where a character was lost                                 | if much | else    |        |
| control_character     | control characters inside a text                                  |         | always  |        |
| markup                | entities and tags of HTML                                         |         |         | always |
| wrong_answer_offsets  | answers that stand elsewhere than they were said to               | if much | else    |        |
| unanswerable          | questions without an answer                                       |         |         | always |
| no_answers            | no question has an answer                                         | always  |         |        |
| imbalance             | nine tenths of the questions, but not all, have none, or one      |         | always  |        |
| duplicates            | questions that occur before                                       |         | always  |        |
| conflicting_labels    | the same question about the same context with other answers       | if much | else    |        |
| long                  | contexts that do not fit into data.max_length tokens, by estimate |         |         | always |
| long_answer           | answers of more than 30 words                                     |         | always  |        |
| leak                  | questions of the validation set that are also trained on          | always  |         |        |
| leak_question         | the same with other answers                                       | always  |         |        |
| leak_context          | questions about contexts that are also trained on                 |         | always  |        |
| leak_article          | questions about articles that are also trained on                 |         |         | always |
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from regard.data.check.labeled import MAX_CLASS_FRACTION, duplicate_findings, sample_count_findings
from regard.data.check.labeled_survey import SIZE_MEASURES, RowSurvey
from regard.data.check.pair_survey import ProgressCallback, hash_text, no_progress, text_sizes
from regard.data.check.pairs import (
    COMMON_FINDINGS,
    HIGH_FRACTION,
    LEAK_ADVICE,
    TOKEN_ESTIMATE_NOTE,
    FindingSpecs,
    LeakSpecs,
    leak_findings,
    named_splits,
    sample_finding,
    split_counts,
    tally_findings,
)
from regard.data.check.report import MAX_LOCATIONS, ClassCounts, Finding, Lengths, Location, Report, Severity, excerpt
from regard.data.settings import DataSettings
from regard.data.sources import expand_patterns
from regard.data.text.files import ErrorHandler, existing_file
from regard.data.text.formats import file_format
from regard.data.text.qa import QASample, read_qa
from regard.data.text.tables import SkippedRow, read_json_document

SIDES = ("context", "answer", "question")
MAX_ANSWER_WORDS = 30
"""words of an answer beyond which it is hardly one"""
NUM_SPECIAL_TOKENS = 3
"""tokens that stand around a question and its context"""

_FINDINGS: FindingSpecs = {
    **{kind: COMMON_FINDINGS[kind] for kind in ("unreadable", "encoding", "format", "header")},
    "answer_not_in_context": (
        "questions with an answer missing from the context",
        "Answers must be spans of the context. Fix or remove the questions: training rejects the file.", "error", False,
    ),
    "empty": ("rows without a question or a context", "Training skips these rows.", "warning", True),
    **{kind: COMMON_FINDINGS[kind] for kind in ("mojibake", "replacement_character", "control_character", "markup")},
}  # fmt: skip

_CONFLICT_ADVICE = "Remove the wrong answers, or list all answers under one question."
_SPLIT_ADVICE = "Keep all questions about an article in one set, so that scores measure performance on new texts."
_LEAKS: LeakSpecs = (
    ("leak", "questions also present in the training data", "error", LEAK_ADVICE),
    ("leak_question", "questions also present in the training data, with different answers", "error", LEAK_ADVICE),
    ("leak_context", "questions about contexts also present in the training data", "warning", _SPLIT_ADVICE),
    ("leak_article", "questions about articles also present in the training data", "note", _SPLIT_ADVICE),
)  # fmt: skip


class QASurvey(RowSurvey[QASample]):
    """Of each usable question also its lengths, and whether it has an answer.

    Hashes are of context, question and answers (0), of context and question (1), of the context (2), of the article (3).
    """

    skip_kinds = ("empty", "encoding", "format", "answer_not_in_context")

    def __init__(self, entries: Sequence[str], columns: Mapping[str, str] | None) -> None:
        super().__init__(entries, columns, hashes=4)
        self.num_answers = self.num_relocated = 0
        """all of them, and those that were found elsewhere"""
        self._sizes = {name: tuple(array("I") for _ in SIDES) for name in SIZE_MEASURES}
        self._unanswerable, self._relocated = array("Q"), array("Q")
        self._json_documents: dict[str, bool] = {}
        """whether a file is one JSON document"""

    def sizes(self, name: str) -> NDArray[np.int64]:
        """(N, 3) of contexts, longest answers and questions."""
        return np.stack([np.array(side, dtype=np.int64) for side in self._sizes[name]], axis=1)

    def unanswerable(self) -> NDArray[np.int64]:
        """The numbers of questions without an answer."""
        return np.array(self._unanswerable, dtype=np.int64)

    def relocated(self) -> NDArray[np.int64]:
        """The numbers of questions with answers that were found elsewhere than they were said to stand."""
        return np.array(self._relocated, dtype=np.int64)

    @property
    def classes(self) -> dict[str, int]:
        unsaid = len(self._unanswerable)
        return {"answerable": len(self) - unsaid, "unanswerable": unsaid}

    def _location(self, path: str, line: int, text: str = "", side: int = 0) -> Location:
        """In a file that is one JSON document questions are counted, not lines."""
        return Location(path, line, text, "question" if self._is_json_document(path) else "")

    def location_name(self, number: int, beside: int | None = None) -> str:
        found = super().location_name(number, beside)
        counts = found.startswith("line ") and self._is_json_document(self.entries[self._sample_lines[0][number]])
        return f"question {found.removeprefix('line ')}" if counts else found

    def _is_json_document(self, path: str) -> bool:
        if path not in self._json_documents:
            self._json_documents[path] = (
                file_format(path) == ".json" and read_json_document(existing_file(path)) is not None
            )
        return self._json_documents[path]

    def _read_entry(self, entry: str, complain: ErrorHandler) -> Iterator[QASample | SkippedRow]:
        yield from read_qa(entry, self.columns, complain)  # what it finds before the first row is noted too

    def _preview(self, sample: QASample) -> str:
        answer = excerpt(sample.answers[0], width=24) if sample.is_answerable else "no answer"
        return f"{excerpt(sample.question, width=48)} → {answer}"

    def _add_sample(self, number: int, sample: QASample) -> None:
        self._tally_quality_issues(sample, (sample.context, sample.question))
        if not sample.is_answerable:
            self._unanswerable.append(len(self))
        if sample.num_relocated:
            self._relocated.append(len(self))
        self.num_answers += len(sample.answers)
        self.num_relocated += sample.num_relocated
        texts = sample.context, max(sample.answers, key=len, default=""), sample.question
        for side, text in enumerate(texts):
            for name, value in zip(SIZE_MEASURES, text_sizes(text), strict=True):
                self._sizes[name][side].append(value)
        asked = f"{sample.context}\0{sample.question}"
        whole = "\0".join((asked, *sorted(set(sample.answers))))
        self._append(number, sample.line, map(hash_text, (whole, asked, sample.context, sample.split_key)))


def check_qa(
    data: Sequence[str], valid: Sequence[str], columns: Mapping[str, str] | None, settings: DataSettings,
    progress: ProgressCallback = no_progress,
) -> Report:  # fmt: skip
    """Look at training questions, and at those of validation against them."""
    train, held = QASurvey(expand_patterns(data), columns), QASurvey(expand_patterns(valid), columns)
    train.read(progress, "training data")
    held.read(progress, "validation data")
    findings: list[Finding] = []
    for name, survey in named_splits(train, held):
        findings += tally_findings(name, survey.tallies, survey.rows, _FINDINGS)
        findings += [
            *sample_count_findings(name, "questions", survey, bool(held.entries)),
            *relocation_findings(name, survey),
        ]
        findings += [
            *answerability_findings(name, survey),
            *duplicate_findings(name, "questions", survey, "different answers", _CONFLICT_ADVICE),
        ]
        findings += length_findings(name, survey, settings.max_length)
    findings += leak_findings(train, held, _LEAKS)

    def counts(survey: QASurvey) -> dict[str, int]:
        contexts, articles = (len(np.unique(survey.hashes(kind))) for kind in (2, 3))
        told = {"articles": articles} if articles < contexts else {}
        return {"questions": len(survey), "contexts": contexts, **told, "files": len(survey.entries)}

    words, characters, tokens = (train.sizes(name) for name in SIZE_MEASURES)
    lengths = Lengths(words, characters, tokens, settings.max_length, np.zeros(0, dtype=np.int64), SIDES, "questions")
    some = len(train.unanswerable()) or len(held.unanswerable())
    spreads = (ClassCounts("questions", train.classes, held.classes if held.entries else {}),) if some else ()
    return Report("qa", split_counts(train, held, counts), tuple(findings), lengths, class_counts=spreads)


def relocation_findings(prefix: str, survey: QASurvey) -> Iterable[Finding]:
    moved = survey.relocated()
    if len(moved):
        severity: Severity = "error" if len(moved) / survey.rows > HIGH_FRACTION else "warning"
        what = f"{prefix}questions with wrong answer offsets ({survey.num_relocated:,} answers)"
        advice = (
            "The nearest occurrence of the answer is used. Offsets must count characters (not bytes) from 0 "
            "in the unmodified context."
        )
        yield sample_finding(survey, moved, None, severity, "wrong_answer_offsets", what, advice)


def answerability_findings(prefix: str, survey: QASurvey) -> Iterable[Finding]:
    """How many questions have an answer."""
    unsaid, many = survey.unanswerable(), len(survey)
    if not len(unsaid):
        return
    share = len(unsaid) / many
    yield Finding("note", "unanswerable", f"{prefix}questions without an answer", len(unsaid), share)
    if share == 1:
        advice = "Is the answer column correct? Select the answer column with --columns answer=NAME."
        yield Finding("error", "no_answers", f"{prefix}no question has an answer", 0, 0.0, (), advice)
    elif max(share, 1 - share) > MAX_CLASS_FRACTION:
        said = f"{prefix}imbalance, questions {'without' if share > MAX_CLASS_FRACTION else 'with'} an answer"
        advice = (
            "Check the scores of answerable and unanswerable questions separately: "
            "the overall score hides the smaller group."
        )
        most = max(len(unsaid), many - len(unsaid))
        yield Finding("warning", "imbalance", said, most, most / many, (), advice)


def length_findings(prefix: str, survey: QASurvey, max_length: int) -> Iterable[Finding]:
    tokens, words = survey.sizes("tokens"), survey.sizes("words")[:, 1]
    sums = tokens[:, 0] + tokens[:, 2] + NUM_SPECIAL_TOKENS
    over = np.flatnonzero(sums > max_length)
    if len(over):
        what = f"{prefix}contexts longer than data.max_length={max_length:,} tokens {TOKEN_ESTIMATE_NOTE}"
        advice = (
            "Long contexts are split into overlapping windows. If the model's context is longer, raise data.max_length."
        )
        said = {int(n): f"about {sums[n]:,} tokens" for n in over[:MAX_LOCATIONS]}
        yield sample_finding(survey, over, said, "note", "long", what, advice)
    wordy = np.flatnonzero(words > MAX_ANSWER_WORDS)
    if len(wordy):
        said = {int(n): f"{words[n]:,} words" for n in wordy[:MAX_LOCATIONS]}
        what, advice = (
            f"{prefix}questions with an answer of more than {MAX_ANSWER_WORDS} words",
            "Check that the answers are not whole sentences.",
        )
        yield sample_finding(survey, wordy, said, "warning", "long_answer", what, advice)
