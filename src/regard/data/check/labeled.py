"""Checks of annotated texts: texts with classes, multiple-choice questions, tagged sentences, and questions with contexts."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from regard.data.check.engine import (
    CLASS_FINDINGS,
    COUNT_FINDINGS,
    FILE_FINDINGS,
    LEAK_ADVICE,
    MAX_CLASS_FRACTION,
    MIN_CLASS_SAMPLES,
    NEAR_LEAK_ADVICE,
    QUALITY_FINDINGS,
    ClassSurvey,
    Columns,
    FindingTable,
    Indices,
    Spec,
    Survey,
    format_counts,
    hash_text,
    select,
)
from regard.data.check.report import MAX_LOCATIONS, ClassCounts, Finding, Location, excerpt
from regard.data.check.text_quality import normalize_text
from regard.data.text.files import ErrorHandler, existing_file
from regard.data.text.formats import file_format
from regard.data.text.qa import QASample, read_qa
from regard.data.text.samples import ChoiceSample, LabeledText, read_labeled, read_questions
from regard.data.text.tables import SkippedRow, read_json_document
from regard.data.text.tagged import (
    OUTSIDE,
    SCHEME_LETTERS,
    SchemeDetector,
    TaggedSentence,
    TagScheme,
    convert_tags,
    read_tagged,
)

MAX_OUTSIDE_FRACTION = 0.99
"""fraction of words outside of entities above which little is left to train on"""
MAX_ANSWER_WORDS = 30
NUM_SPECIAL_TOKENS = 3
"""special tokens around a text or a pair of texts"""
NUM_SENTENCE_TOKENS = 2
"""special tokens around a tagged sentence"""

TEXT_FINDINGS: FindingTable = {
    **FILE_FINDINGS,
    "empty": Spec("warning", "rows with an empty field", "Training skips these rows.", "error", drops=True),
    **QUALITY_FINDINGS,
    **COUNT_FINDINGS,
    **CLASS_FINDINGS,
    "long": Spec(
        "warning", "{unit} longer than {limit}",
        "Training truncates long {unit} in the middle. If the model's context is longer, raise data.max_length.",
    ),
    "leak": Spec("error", "rows also present in the training data", LEAK_ADVICE),
    "leak_conflicting_labels": Spec(
        "warning", "rows also present in the training data, with another label", "Check which label is correct.",
    ),
    "leak_near_duplicate": Spec(
        "warning", "rows also present in the training data, ignoring case and punctuation", NEAR_LEAK_ADVICE,
    ),
}  # fmt: skip
CHOICE_FINDINGS: FindingTable = {
    **TEXT_FINDINGS,
    "correct_choice_positions": Spec("note", "positions of the correct choice, counted from 0 ({classes})"),
    "imbalance": Spec(
        "warning", "the correct choice is unevenly distributed: questions with the correct choice at position '{name}'",
        "Predicting only '{name}' scores {percent:.0f} % accuracy.",
    ),
}  # fmt: skip
TAG_FINDINGS: FindingTable = {
    **FILE_FINDINGS,
    "empty": Spec("warning", "rows without words or without tags", "Training skips these rows.", "error", drops=True),
    **select(QUALITY_FINDINGS, "mojibake", "replacement_character", "control_character"),
    **COUNT_FINDINGS,
    "tag_scheme": Spec("note", "tags use the {scheme} scheme"),
    "tag_scheme:words": Spec("note", "tags are classes of single words"),
    "tag_scheme:ambiguous": Spec(
        "warning", "tags use the {scheme} scheme, but {ambiguity}", "Entities are parsed the same way in every scheme.",
    ),
    "tag_scheme:words_ambiguous": Spec(
        "warning", "tags are classes of single words, but {ambiguity}", "Check whether the tags should mark entities.",
    ),
    "invalid_tags": Spec(
        "warning", "sentences with invalid {scheme} tags ({num_invalid:,} tags)",
        "Invalid tags are repaired: a tag without an entity to continue starts a new entity.", "error",
    ),
    "outside_words": Spec("note", "words tagged O (outside of entities)"),
    "imbalance:outside": Spec(
        "warning", "class imbalance, words inside of entities",
        "A model predicting only O is nearly always correct. Check for untagged entities.",
    ),
    "no_entities": Spec("error", "no entities", "Training needs at least one entity."),
    "single_class": Spec("error", "only one tag", "Training needs at least two different tags."),
    "classes": Spec("note", "{types} ({classes})"),
    "too_many_classes": Spec(
        "error", "too many {types} (more than half the number of {counted})",
        "Is the tag column correct? Select the tag column with --columns tags=NAME, or by index from 0.",
    ),
    "imbalance": Spec(
        "warning", "class imbalance, {counted} {relation} '{name}'",
        "Check the score of each class: the overall score hides rare classes.",
    ),
    "rare": Spec(
        "warning", f"{{types}} with fewer than {MIN_CLASS_SAMPLES} {{counted}} ({{classes}})",
        "Add {counted}, or merge rare {types} with other {types}.",
    ),
    "conflicting_labels": Spec(
        "warning", "identical {unit} with different tags", "Correct the wrong labels, or merge overlapping classes.",
        "error",
    ),
    "long": Spec(
        "warning", "sentences longer than {limit}",
        "Is a blank line between two sentences missing? Long sentences are split into overlapping windows, "
        "unless data.max_length is raised.",
    ),
    "unseen_classes": Spec(
        "error", "{types} absent from the training data ({classes})",
        "Add sentences with these {types} to the training data, or remove these {types} from the validation data.",
    ),
    "leak": Spec(
        "warning", "sentences also present in the training data",
        "Consider removing all but the short duplicates from the training data.", "error",
    ),
    "leak_conflicting_labels": Spec(
        "warning", "sentences also present in the training data, with different tags", "Check which tags are correct.",
    ),
    "leak_near_duplicate": Spec(
        "warning", "sentences also present in the training data, ignoring case and punctuation", NEAR_LEAK_ADVICE,
    ),
}  # fmt: skip
SPLIT_ADVICE = "Keep all questions about an article in one set, so that scores measure performance on new texts."
QA_FINDINGS: FindingTable = {
    **FILE_FINDINGS,
    "answer_not_in_context": Spec(
        "error", "questions with an answer missing from the context",
        "Answers must be spans of the context. Fix or remove the questions: training rejects the file.", drops=True,
    ),
    "empty": Spec("warning", "rows without a question or a context", "Training skips these rows.", "error", drops=True),
    **QUALITY_FINDINGS,
    **COUNT_FINDINGS,
    "wrong_answer_offsets": Spec(
        "warning", "questions with wrong answer offsets ({num_answers:,} answers)",
        "The nearest occurrence of the answer is used. Offsets must count characters (not bytes) from 0 "
        "in the unmodified context.", "error",
    ),
    "unanswerable": Spec("note", "questions without an answer"),
    "no_answers": Spec(
        "error", "no question has an answer",
        "Is the answer column correct? Select the answer column with --columns answer=NAME.",
    ),
    "imbalance": Spec(
        "warning", "imbalance, questions {relation} an answer",
        "Check the scores of answerable and unanswerable questions separately: the overall score hides the smaller group.",
    ),
    "conflicting_labels": Spec(
        "warning", "identical {unit} with different answers",
        "Remove the wrong answers, or list all answers under one question.", "error",
    ),
    "long": Spec(
        "note", "contexts longer than {limit}",
        "Long contexts are split into overlapping windows. If the model's context is longer, raise data.max_length.",
    ),
    "long_answer": Spec(
        "warning", f"questions with an answer of more than {MAX_ANSWER_WORDS} words",
        "Check that the answers are not whole sentences.",
    ),
    "leak": Spec("error", "questions also present in the training data", LEAK_ADVICE),
    "leak_question": Spec("error", "questions also present in the training data, with different answers", LEAK_ADVICE),
    "leak_context": Spec("warning", "questions about contexts also present in the training data", SPLIT_ADVICE),
    "leak_article": Spec("note", "questions about articles also present in the training data", SPLIT_ADVICE),
}  # fmt: skip


class LabeledSurvey(ClassSurvey[Any]):
    """Survey of texts or pairs of texts with classes.

    Hashes are of the texts with the label (0), of the texts (1), of the texts without case and punctuation (2).
    """

    task, unit, sides = "classify", "texts", ("text", "pair")
    findings = TEXT_FINDINGS
    leaks = ("leak", "leak_conflicting_labels", "leak_near_duplicate")
    reader: ClassVar[Callable[[str, Columns, ErrorHandler], Iterator[Any]]] = read_labeled
    counted: ClassVar[str] = "classes"
    """name of the class counts"""
    has_pairs = False

    def sizes(self, measure: str) -> Indices:
        """(N, 1) or, with pairs, (N, 2)."""
        return super().sizes(measure)[:, : 1 + self.has_pairs]

    def _read_entry(self, entry: str, on_error: ErrorHandler) -> Iterator[Any]:
        yield from type(self).reader(entry, self.columns, on_error)  # lazily, so that errors before the first row count

    def _texts(self, sample: Any) -> tuple[Sequence[str], tuple[str, str]]:
        """All input texts, and the two texts with a length."""
        texts = (sample.text, sample.text_pair) if sample.text_pair else (sample.text,)
        return texts, (sample.text, sample.text_pair)

    def _preview(self, sample: Any) -> str:
        first, second = self._texts(sample)[1]
        text = f"{excerpt(first, width=36)} | {excerpt(second, width=24)}" if second else excerpt(first)
        return f"{text} → {excerpt(str(sample.label), width=24)}"

    def _add_sample(self, sample: Any, stats: Any = None) -> None:
        texts, measured = self._texts(sample)
        self._tally_quality_issues(sample, texts)
        self._append_sizes(*measured)
        self.has_pairs = self.has_pairs or len(texts) > 1
        for label in sample.labels if isinstance(sample, LabeledText) else (str(sample.label),):
            self.classes[label] = self.classes.get(label, 0) + 1
        if isinstance(sample, LabeledText) and sample.label_set is not None:
            self.num_multilabel += 1
            self.num_unlabeled += not sample.label_set
        joined, normalized = "\0".join(texts), "\0".join(map(normalize_text, texts))
        self._append(sample.line, map(hash_text, (f"{joined}\0{sample.label}", joined, normalized)))

    def counts(self) -> dict[str, int]:
        return {**super().counts(), **({"classes": len(self.classes)} if self.train is None else {})}

    def split_findings(self) -> Iterable[Finding]:
        yield from self.count_findings()
        yield from self.class_findings()
        yield from self.duplicate_findings()
        yield from self.long_findings(self.sizes("tokens").sum(axis=1) + NUM_SPECIAL_TOKENS)

    def comparison_findings(self, splits: Sequence[Any]) -> Iterable[Finding]:
        yield from self.unseen_class_findings()
        yield from self.leak_findings()

    def report_fields(self, valid: Any) -> dict[str, Any]:
        return {"class_counts": self.class_counts(valid, self.counted)}


class ChoiceSurvey(LabeledSurvey):
    """Survey of multiple-choice questions; the class is the position of the correct choice."""

    task, unit, sides = "choose", "questions", ("context", "longest_choice")
    findings = CHOICE_FINDINGS
    reader = read_questions
    counted = "correct_choice_positions"

    def _texts(self, sample: ChoiceSample) -> tuple[Sequence[str], tuple[str, str]]:
        return (sample.prompt, *sample.choices), (sample.prompt, max(sample.choices, key=len))

    def counts(self) -> dict[str, int]:
        return Survey.counts(self)

    def class_findings(self) -> Iterable[Finding]:
        counts = dict(sorted(self.classes.items(), key=lambda item: -item[1]))
        if counts:
            yield self.finding("correct_choice_positions", len(counts), classes=format_counts(counts))
            yield from self.imbalance_findings(counts)

    def comparison_findings(self, splits: Sequence[Any]) -> Iterable[Finding]:
        return self.leak_findings()


class TagSurvey(Survey[TaggedSentence]):
    """Survey of tagged sentences: also the sentences with invalid tags in each tag scheme.

    Hashes are of the words with the tags (0), of the words (1), of the words without case and punctuation (2).
    """

    task, unit, sides = "tag", "sentences", ("sentence",)
    findings = TAG_FINDINGS
    leaks = ("leak", "leak_conflicting_labels", "leak_near_duplicate")

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.scheme_detector = SchemeDetector()
        self._invalid_samples = {scheme: array("Q") for scheme in SCHEME_LETTERS}
        self._invalid_notes: dict[TagScheme, dict[int, str]] = {scheme: {} for scheme in SCHEME_LETTERS}

    @property
    def has_entities(self) -> bool:
        """Whether the tags mark entities."""
        return self.scheme_detector.scheme != "plain"

    @property
    def classes(self) -> Counter[str]:
        """Number of entities of each type, or of words with each tag."""
        if not self.has_entities:
            return self.scheme_detector.tag_counts
        return Counter({name or "_": count for name, count in self.scheme_detector.type_counts.items()})

    @property
    def class_words(self) -> dict[str, str]:
        """Plural nouns for the classes and for the counted things."""
        words = ("entity types", "entities", "of type") if self.has_entities else ("tags", "words", "tagged")
        return dict(zip(("types", "counted", "relation"), words, strict=True))

    def _read_entry(self, entry: str, on_error: ErrorHandler) -> Iterator[TaggedSentence | SkippedRow]:
        yield from read_tagged(entry, self.columns, on_error)  # lazily, so that errors before the first row count

    def _preview(self, sample: TaggedSentence) -> str:
        words = (excerpt(word, width=16) for word in sample.words[:8])
        tagged = zip(words, sample.tags, strict=False)
        text = " ".join(word if tag == OUTSIDE else f"{word}/{tag}" for word, tag in tagged)
        return text + (" …" if len(sample.words) > 8 else "")

    def _add_sample(self, sample: TaggedSentence, stats: Any = None) -> None:
        text = " ".join(sample.words)
        self._tally_quality_issues(sample, (text,))
        for scheme in self.scheme_detector.update(sample.tags):
            self._invalid_samples[scheme].append(len(self))
            if len(self._invalid_samples[scheme]) <= MAX_LOCATIONS:
                valid_tags = convert_tags(sample.tags, scheme)
                at = next(at for at, tag in enumerate(sample.tags) if tag != valid_tags[at])
                word = excerpt(sample.words[at], width=24)
                note = f"'{word}' is tagged {sample.tags[at]}, expected {valid_tags[at]}"
                self._invalid_notes[scheme][len(self)] = note
        self._append_sizes(text)
        joined = "\0".join(sample.words)
        tagged = joined + "\0" + " ".join(sample.tags)
        self._append(sample.line, map(hash_text, (tagged, joined, normalize_text(text))))

    def counts(self) -> dict[str, int]:
        detector = self.scheme_detector
        entities = {"entities": sum(detector.type_counts.values())} if self.has_entities else {}
        return {**super().counts(), "words": sum(detector.tag_counts.values()), **entities}

    def split_findings(self) -> Iterable[Finding]:
        yield from self.count_findings()
        if len(self):
            yield from self.scheme_findings()
            yield from self.class_findings()
        yield from self.duplicate_findings()
        yield from self.long_findings(self.sizes("tokens")[:, 0] + NUM_SENTENCE_TOKENS)

    def scheme_findings(self) -> Iterable[Finding]:
        """Tag scheme, and sentences with invalid tags."""
        detector = self.scheme_detector
        variant = "" if self.has_entities else ":words"
        if detector.ambiguity:
            variant = f"{variant}_ambiguous" if variant else ":ambiguous"
        yield self.finding(f"tag_scheme{variant}", scheme=detector.scheme, ambiguity=detector.ambiguity)
        if self.has_entities:
            invalid = np.array(self._invalid_samples[detector.scheme], dtype=np.int64)
            note = self._invalid_notes[detector.scheme].__getitem__
            values = {"scheme": detector.scheme, "num_invalid": detector.num_invalid}
            yield from self.sample_findings("invalid_tags", invalid, note, **values)

    def class_findings(self) -> Iterable[Finding]:
        """Distribution of the entity types or tags."""
        counts = dict(self.classes.most_common())
        total, num_words = sum(counts.values()), sum(self.scheme_detector.tag_counts.values())
        if self.has_entities:
            outside = self.scheme_detector.tag_counts[OUTSIDE]
            yield self.finding("outside_words", outside, outside / num_words)
            if MAX_OUTSIDE_FRACTION < outside / num_words < 1:
                yield self.finding("imbalance:outside", num_words - outside)
        if not counts or (len(counts) == 1 and not self.has_entities):
            yield self.finding("no_entities" if self.has_entities else "single_class")
            return
        words: dict[str, Any] = self.class_words
        yield self.finding("classes", len(counts), classes=format_counts(counts), **words)
        if len(counts) > max(total // 2, 20):
            yield self.finding("too_many_classes", len(counts), **words)
            return
        name, count = next(iter(counts.items()))
        if len(counts) > 1 and count / total > MAX_CLASS_FRACTION:
            yield self.finding("imbalance", count, count / total, name=name, **words)
        rare = {label: count for label, count in counts.items() if count < MIN_CLASS_SAMPLES}
        if rare and self.train is None:
            yield self.finding("rare", len(rare), classes=format_counts(rare), **words)

    def comparison_findings(self, splits: Sequence[Any]) -> Iterable[Finding]:
        words: dict[str, Any] = self.class_words
        unseen = {label: count for label, count in self.classes.items() if label not in self.train.classes}
        if unseen:
            yield self.finding("unseen_classes", len(unseen), classes=format_counts(unseen), **words)
        yield from self.leak_findings()

    def report_fields(self, valid: TagSurvey) -> dict[str, Any]:
        train_tags, valid_tags = self.scheme_detector.tag_counts, valid.scheme_detector.tag_counts
        class_counts = [ClassCounts("words_by_tag", train_tags, valid_tags)]
        if self.has_entities and self.scheme_detector.type_counts:
            valid_types: Mapping[str, int] = valid.classes if valid.has_entities else {}
            class_counts.insert(0, ClassCounts("entities_by_type", self.classes, valid_types))
        return {"class_counts": tuple(class_counts)}


class QASurvey(Survey[QASample]):
    """Survey of questions with answers in a context: also the unanswerable questions and the relocated answers.

    Hashes are of context, question and answers (0), of context and question (1), of the context (2), of the article (3).
    """

    task, unit, sides = "qa", "questions", ("context", "answer", "question")
    findings = QA_FINDINGS
    leaks = ("leak", "leak_question", "leak_context", "leak_article")
    num_hashes = 4

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.num_relocated = 0
        """number of answers found at another position than stated"""
        self._unanswerable, self._relocated = array("Q"), array("Q")
        self._json_documents: dict[str, bool] = {}
        """whether a file is one JSON document"""

    @property
    def classes(self) -> dict[str, int]:
        return {"answerable": len(self) - len(self._unanswerable), "unanswerable": len(self._unanswerable)}

    def _location(self, path: str, line: int, text: str = "", side: int = 0) -> Location:
        """In a file that is one JSON document, questions are counted instead of lines."""
        return Location(path, line, text, "question" if self._is_json_document(path) else "")

    def location_name(self, index: int, reference: int | None = None) -> str:
        name = super().location_name(index, reference)
        is_number = name.startswith("line ") and self._is_json_document(self.entries[self._positions[0][index]])
        return f"question {name.removeprefix('line ')}" if is_number else name

    def _is_json_document(self, path: str) -> bool:
        if path not in self._json_documents:
            is_json = file_format(path) == ".json"
            self._json_documents[path] = is_json and read_json_document(existing_file(path)) is not None
        return self._json_documents[path]

    def _read_entry(self, entry: str, on_error: ErrorHandler) -> Iterator[QASample | SkippedRow]:
        yield from read_qa(entry, self.columns, on_error)  # lazily, so that errors before the first row count

    def _preview(self, sample: QASample) -> str:
        answer = excerpt(sample.answers[0], width=24) if sample.is_answerable else "no answer"
        return f"{excerpt(sample.question, width=48)} → {answer}"

    def _add_sample(self, sample: QASample, stats: Any = None) -> None:
        self._tally_quality_issues(sample, (sample.context, sample.question))
        if not sample.is_answerable:
            self._unanswerable.append(len(self))
        if sample.num_relocated:
            self._relocated.append(len(self))
        self.num_relocated += sample.num_relocated
        self._append_sizes(sample.context, max(sample.answers, key=len, default=""), sample.question)
        question = f"{sample.context}\0{sample.question}"
        answered = "\0".join((question, *sorted(set(sample.answers))))
        self._append(sample.line, map(hash_text, (answered, question, sample.context, sample.split_key)))

    def counts(self) -> dict[str, int]:
        contexts, articles = (len(np.unique(self.hashes(kind))) for kind in (2, 3))
        num_articles = {"articles": articles} if articles < contexts else {}
        return {"questions": len(self), "contexts": contexts, **num_articles, "files": len(self.entries)}

    def split_findings(self) -> Iterable[Finding]:
        yield from self.count_findings()
        relocated = np.array(self._relocated, dtype=np.int64)
        yield from self.sample_findings("wrong_answer_offsets", relocated, num_answers=self.num_relocated)
        yield from self.answerability_findings()
        yield from self.duplicate_findings()
        tokens, answer_words = self.sizes("tokens"), self.sizes("words")[:, 1]
        yield from self.long_findings(tokens[:, 0] + tokens[:, 2] + NUM_SPECIAL_TOKENS)
        long_answers = np.flatnonzero(answer_words > MAX_ANSWER_WORDS)
        yield from self.sample_findings("long_answer", long_answers, lambda n: f"{answer_words[n]:,} words")

    def answerability_findings(self) -> Iterable[Finding]:
        """Number of questions with and without an answer."""
        unanswerable, total = len(self._unanswerable), len(self)
        if not unanswerable:
            return
        fraction = unanswerable / total
        yield self.finding("unanswerable", unanswerable, fraction)
        if fraction == 1:
            yield self.finding("no_answers")
        elif max(fraction, 1 - fraction) > MAX_CLASS_FRACTION:
            larger = max(unanswerable, total - unanswerable)
            relation = "without" if fraction > MAX_CLASS_FRACTION else "with"
            yield self.finding("imbalance", larger, larger / total, relation=relation)

    def report_fields(self, valid: QASurvey) -> dict[str, Any]:
        if not self._unanswerable and not valid._unanswerable:
            return {"class_counts": ()}
        return {"class_counts": (ClassCounts("questions", self.classes, valid.classes if valid.entries else {}),)}
