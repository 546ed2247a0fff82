"""Checks of texts: documents, labeled texts, multiple-choice questions, tagged sentences, and questions with contexts."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, cached_property
from hashlib import blake2b
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from regard.data.check import engine
from regard.data.check import findings as tables
from regard.data.check.findings import MAX_ANSWER_WORDS, MAX_UNBROKEN_LENGTH, MIN_LINE_LENGTH, find_quality_issues
from regard.data.check.report import MAX_LOCATIONS, ClassCounts, Finding, Lengths, Location, excerpt
from regard.data.file_discovery import Paths
from regard.data.text.documents import Passage, check_columns, iterate_passages, passage_size, text_files
from regard.data.text.files import Columns, existing_file
from regard.data.text.formats import TABLE_SUFFIXES, file_format
from regard.data.text.qa import QASample, read_qa
from regard.data.text.samples import ChoiceSample, LabeledText, read_labeled, read_questions
from regard.data.text.tables import SkippedRow, read_json_document
from regard.data.text.tagged import OUTSIDE, SchemeDetector, TaggedSentence, convert_tags, read_tagged
from regard.errors import DataError

MIN_REPEATED_FRACTION = 0.01  # fraction of the text above which repeated lines are reported
MAX_LINE_HASHES = 1 << 22
MAX_OUTSIDE_FRACTION = 0.99  # fraction of words outside of entities above which little is left to train on


class LabeledSurvey(engine.Survey):
    """Survey of texts or pairs of texts with classes.

    Hashes are of the texts with the label (0), of the texts (1), of the texts without case and punctuation (2)."""

    task, unit, sides = "classify", "texts", ("text", "pair")
    reader: ClassVar[engine.EntryReader] = read_labeled
    findings = tables.LABELED
    leaks = ("leak", "leak_conflicting_labels", "leak_near_duplicate")
    special_tokens = 3

    def sizes(self, measure: str) -> engine.Indices:
        """(N, 1) or, with pairs, (N, 2)."""
        sizes = super().sizes(measure)
        return sizes if super().sizes("words")[:, 1].any() else sizes[:, :1]

    def _sides(self, sample: Any) -> tuple[str, str]:
        """The two texts with a length."""
        return sample.text, sample.text_pair

    def _preview(self, sample: Any) -> str:
        first, second = self._sides(sample)
        text = f"{excerpt(first, width=36)} | {excerpt(second, width=24)}" if second else excerpt(first)
        return f"{text} → {excerpt(str(sample.label), width=24)}"

    def _add_sample(self, sample: LabeledText | ChoiceSample) -> None:
        joined, normalized = "\0".join(sample.texts), "\0".join(map(engine.normalize_text, sample.texts))
        if isinstance(sample, LabeledText):
            self.classes.update(sample.labels)
            if sample.label_set is not None:
                self.keep("unlabeled", not sample.label_set, kind="B")
        else:
            self.classes[str(sample.label)] += 1
        contents = f"{joined}\0{sample.label}", joined, normalized
        self._append_texts(sample, self._sides(sample), contents, sample.texts)

    def counts(self) -> dict[str, int]:
        return {**super().counts(), **({"classes": len(self.classes)} if self.train is None else {})}


class ChoiceSurvey(LabeledSurvey):
    """Survey of multiple-choice questions; the class is the position of the correct choice."""

    task, unit, sides = "choose", "questions", ("context", "longest_choice")
    reader, findings = read_questions, tables.CHOICES
    counted = "correct_choice_positions"
    counts = engine.Survey.counts

    def _sides(self, sample: ChoiceSample) -> tuple[str, str]:
        return sample.prompt, max(sample.choices, key=len)

    def class_findings(self) -> Iterable[Finding]:
        if counts := dict(self.classes.most_common()):
            yield self.finding("correct_choice_positions", len(counts), classes=engine.format_counts(counts))
            yield from self.imbalance_findings(len(self))


class TagSurvey(engine.Survey):
    """Survey of tagged sentences: also the sentences with invalid tags in each tag scheme.

    Hashes are of the words with the tags (0), of the words (1), of the words without case and punctuation (2)."""

    task, unit, sides = "tag", "sentences", ("sentence",)
    reader, findings = read_tagged, tables.TAGS
    leaks = ("leak", "leak_conflicting_labels", "leak_near_duplicate")
    special_tokens, reports_rare_in_validation = 2, False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.scheme_detector = SchemeDetector()

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
    def class_words(self) -> dict[str, str]:  # type: ignore[override]
        words = ("entity types", "entities", "of type") if self.has_entities else ("tags", "words", "tagged")
        return dict(zip(("types", "counted", "relation"), words, strict=True))

    def _preview(self, sample: TaggedSentence) -> str:
        words = (excerpt(word, width=16) for word in sample.words[:8])
        tagged = zip(words, sample.tags, strict=False)
        text = " ".join(word if tag == OUTSIDE else f"{word}/{tag}" for word, tag in tagged)
        return text + (" …" if len(sample.words) > 8 else "")

    def _add_sample(self, sample: TaggedSentence) -> None:
        for scheme in self.scheme_detector.update(sample.tags):
            self.keep(f"invalid_{scheme}", len(self))
        text, joined = " ".join(sample.words), "\0".join(sample.words)
        self._append_texts(
            sample, (text,), (joined + "\0" + " ".join(sample.tags), joined, engine.normalize_text(text))
        )

    def counts(self) -> dict[str, int]:
        detector = self.scheme_detector
        entities = {"entities": detector.type_counts.total()} if self.has_entities else {}
        return {**super().counts(), "words": detector.tag_counts.total(), **entities}

    def class_findings(self) -> Iterable[Finding]:
        """Tag scheme, sentences with invalid tags, and the distribution of entity types or tags."""
        if not len(self):
            return
        detector, scheme = self.scheme_detector, self.scheme_detector.scheme

        def note(_: int, sample: TaggedSentence) -> str:
            valid_tags = convert_tags(sample.tags, scheme)
            at = next(at for at, tag in enumerate(sample.tags) if tag != valid_tags[at])
            return f"'{excerpt(sample.words[at], width=24)}' is tagged {sample.tags[at]}, expected {valid_tags[at]}"

        key = "tag_scheme:entities" if self.has_entities else "tag_scheme:words"
        key += "_ambiguous" if detector.ambiguity else ""
        yield self.finding(key, scheme=scheme, ambiguity=detector.ambiguity)
        if self.has_entities:
            invalid, num_invalid = self.values(f"invalid_{scheme}"), detector.num_invalid
            yield from self.sample_findings("invalid_tags", invalid, note, scheme=scheme, num_invalid=num_invalid)
            num_words, outside = detector.tag_counts.total(), detector.tag_counts[OUTSIDE]
            yield self.finding("outside_words", outside, outside / num_words)
            if MAX_OUTSIDE_FRACTION < outside / num_words < 1:
                yield self.finding("imbalance:outside", num_words - outside)
        if not self.classes or (len(self.classes) == 1 and not self.has_entities):
            yield self.finding("no_entities" if self.has_entities else "single_class")
        else:
            yield from super().class_findings()

    def class_counts(self, valid: TagSurvey) -> tuple[ClassCounts, ...]:
        train_tags, valid_tags = self.scheme_detector.tag_counts, valid.scheme_detector.tag_counts
        class_counts = [ClassCounts("words_by_tag", train_tags, valid_tags)]
        if self.has_entities and self.scheme_detector.type_counts:
            valid_types: Mapping[str, int] = valid.classes if valid.has_entities else {}
            class_counts.insert(0, ClassCounts("entities_by_type", self.classes, valid_types))
        return tuple(class_counts)


class QASurvey(engine.Survey):
    """Survey of questions with answers in a context: also the unanswerable questions and the relocated answers.

    Hashes are of context, question and answers (0), of context and question (1), of the context (2), of the article (3).
    """

    task, unit, sides = "qa", "questions", ("context", "answer", "question")
    counted = "questions"
    reader, findings = read_qa, tables.QA
    leaks = ("leak", "leak_question", "leak_context", "leak_article")
    special_tokens, input_sides = 3, slice(0, 3, 2)  # context and question

    @cached_property
    def _is_document(self) -> Callable[[str], bool]:
        """Whether a file is one JSON document."""
        return cache(lambda path: file_format(path) == ".json" and read_json_document(existing_file(path)) is not None)

    @property
    def classes(self) -> Counter[str]:
        unanswerable = int(self.values("unanswerable").sum())
        return Counter({"answerable": len(self) - unanswerable, "unanswerable": unanswerable})

    def _location(self, path: str, line: int, text: str = "", side: int = 0) -> Location:
        """In a file that is one JSON document, questions are counted instead of lines."""
        return Location(path, line, text, "question" if self._is_document(path) else "")

    def _preview(self, sample: QASample) -> str:
        answer = excerpt(sample.answers[0], width=24) if sample.is_answerable else "no answer"
        return f"{excerpt(sample.question, width=48)} → {answer}"

    def _add_sample(self, sample: QASample) -> None:
        self.keep("unanswerable", not sample.is_answerable, kind="B")
        self.keep("relocated", sample.num_relocated, kind="I")
        question = f"{sample.context}\0{sample.question}"
        self._append_texts(
            sample,
            (sample.context, max(sample.answers, key=len, default=""), sample.question),
            ("\0".join((question, *sorted(set(sample.answers)))), question, sample.context, sample.split_key),
            checked_texts=(sample.context, sample.question),
        )

    def counts(self) -> dict[str, int]:
        contexts, articles = (len(np.unique(self.hashes(kind))) for kind in (2, 3))
        num_articles = {"articles": articles} if articles < contexts else {}
        return {"questions": len(self), "contexts": contexts, **num_articles, "files": len(self.entries)}

    def own_findings(self) -> Iterable[Finding]:
        """Long and relocated answers, and the number of questions with and without an answer."""
        relocated, unanswerable, total = self.values("relocated"), self.classes["unanswerable"], len(self)
        indices = np.flatnonzero(relocated)
        yield from self.sample_findings("wrong_answer_offsets", indices, num_answers=int(relocated.sum()))
        words = self.sizes("words")[:, 1]
        long_answers = np.flatnonzero(words > MAX_ANSWER_WORDS)
        yield from self.sample_findings("long_answer", long_answers, lambda n, _: f"{words[n]:,} words")
        if not unanswerable:
            return
        fraction = unanswerable / total
        yield self.finding("unanswerable", unanswerable, fraction)
        if fraction == 1:
            yield self.finding("no_answers")
        elif max(fraction, 1 - fraction) > engine.MAX_CLASS_FRACTION:
            larger = max(unanswerable, total - unanswerable)
            relation = "without" if fraction > engine.MAX_CLASS_FRACTION else "with"
            yield self.finding("imbalance", larger, larger / total, relation=relation)

    def shows_classes(self, valid: QASurvey) -> bool:
        return bool(self.classes["unanswerable"] or valid.classes["unanswerable"])


# -- documents of language modeling


def hash_line(line: str) -> int | None:
    """Hash of a long line without case and punctuation; None for other lines."""
    words = engine.normalize_text(line) if len(line) >= MIN_LINE_LENGTH else ""
    # a line of dashes is normalized to itself
    return engine.hash_text(words) if len(words) >= MIN_LINE_LENGTH and any(map(str.isalnum, words)) else None


class TextSurvey(engine.Survey):
    """Survey of documents: also their characters, and hashes and sizes of their long lines.

    Hashes are of the documents (0), and of the documents without case, whitespace and punctuation (1).

    Above `MAX_LINE_HASHES`, only lines with one zero bit at the end of the hash are kept, then with two, and so on. The choice
    depends only on the line, so lines of two datasets can be compared, and the sample represents all lines."""

    task, unit, sides = "lm", "documents", ("document",)
    counted, chunk = "", 64
    findings = tables.TEXT
    leaks = ("leak", "leak_near_duplicate")
    min_samples = 200_000

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._passage_size = passage_size(self.entries)
        self.totals.update(samples=0, lines=0, bytes=0)
        self.characters: set[str] = set()
        self.line_mask = 0  # one of `line_mask + 1` lines is kept
        self._passage_hashes: set[int] = set()  # hashes of at most two different passages
        self._document_hashes: tuple[blake2b, ...] = ()  # states for text and normalized text of the current document
        self._unbroken_length = 0  # characters of the current document since the last space

    @classmethod
    def find_entries(cls, data: Paths, valid: Paths, columns: Columns) -> tuple[list[str], list[str]]:
        train_entries, valid_entries = list(text_files(data)), list(text_files(valid))
        check_columns([*train_entries, *valid_entries], columns)
        return train_entries, valid_entries

    def _add_sizes(self, passage: Passage) -> None:
        """Add a passage to the sizes and hashes of its document, and count the section without a space at its start."""
        if passage.starts_document:
            self._document_hashes = blake2b(digest_size=8), blake2b(digest_size=8)
            self._unbroken_length = 0
            self.keep("size", 0, 0, 0)
            self._append(passage.line, (0, 0))
        text, before = passage.text, self._unbroken_length
        words, encoded = text.split(), text.encode("utf-8", "surrogatepass")
        self.totals["bytes"] += len(encoded)
        sizes = len(words), len(text), engine.estimate_tokens(len(words), len(encoded))
        for place, size in enumerate(sizes, start=-3):  # the last three numbers belong to this document
            self.numbers["size"][place] += size
        # passages end at spaces, so the sequence of words does not depend on the division into passages
        normalized = f"{engine.normalize_text(text)} ".encode("utf-8", "surrogatepass")
        for place, content in enumerate((encoded, normalized), start=-2):
            self._document_hashes[place].update(content)
            self.numbers["hash"][place] = int.from_bytes(self._document_hashes[place].digest(), "little")
        if words == [text]:
            self._unbroken_length = length = before + len(text)
        else:
            length = before + (len(words[0]) if words and not text[0].isspace() else 0)
            self._unbroken_length = len(words[-1]) if words and not text[-1].isspace() else 0
        if before <= MAX_UNBROKEN_LENGTH < length:
            self.tally("no_whitespace", self._line_location(passage, 0, excerpt(text)))

    def _add_sample(self, sample: Passage) -> None:
        """Count the damaged, the long and all other lines of a passage."""
        self._add_sizes(sample)
        text = sample.text
        has_issues = any(find_quality_issues(text))
        is_unbroken = self._unbroken_length > self._passage_size  # such text repeats itself
        for number, line in enumerate(text.split("\n")):
            self.totals["lines"] += bool(line)
            line_hash = None if is_unbroken else hash_line(line)
            if line_hash is not None and not line_hash & self.line_mask:
                self.keep("lines", line_hash, len(line))
                if len(self.numbers["lines"]) > 2 * MAX_LINE_HASHES:
                    self.subsample_lines(2 * self.line_mask + 1)
            for key, position in find_quality_issues(line) if has_issues else ():
                self.tally(key, self._line_location(sample, number, excerpt(line, position)))
        if len(self._passage_hashes) < 2:
            self._passage_hashes.add(engine.hash_text(text))
        self.characters.update(text)

    def lines(self) -> NDArray[np.uint64]:
        """(lines, 2) hash and size of the kept lines."""
        return self.values("lines").view(np.uint64).reshape(-1, 2)

    def subsample_lines(self, mask: int) -> None:
        self.line_mask |= mask
        lines = self.lines()
        kept = lines[lines[:, 0] & np.uint64(self.line_mask) == 0]
        self.numbers["lines"] = array("Q", kept.tobytes())

    def _line_location(self, passage: Passage, line: int, text: str) -> Location:
        """Location of a line of a passage, counted from 0. In a table, the location of the row."""
        offset = 0 if file_format(passage.path) in TABLE_SUFFIXES else line
        return Location(passage.path, passage.line + offset, text)

    def _read_entry(self, entry: str) -> Iterator[Passage | SkippedRow | DataError]:
        return self._drop_empty(iterate_passages(entry, self.columns, self._passage_size))

    def _drop_empty(self, items: Iterator[Any]) -> Iterator[Any]:
        """Only the encoding is reported for a file with invalid UTF-8, no empty documents."""
        is_valid = True
        for item in items:
            is_valid = is_valid and not (isinstance(item, DataError) and item.kind == "encoding")
            if is_valid or not isinstance(item, SkippedRow):
                yield item

    def _indexed_samples(self) -> Iterator[Passage]:
        return (passage for passage in super()._indexed_samples() if passage.starts_document)

    def _preview(self, sample: Passage) -> str:
        return excerpt(sample.text.lstrip())

    def find_lines(self, hashes: Iterable[int], occurrence: int = 1) -> dict[int, Location]:
        """Locations of the first or the second line with each hash, read again."""
        remaining = dict.fromkeys(hashes, occurrence)
        locations: dict[int, Location] = {}
        for passage in super()._indexed_samples():
            for number, line in enumerate(passage.text.split("\n")):
                if (line_hash := hash_line(line)) is not None and line_hash in remaining:
                    remaining[line_hash] -= 1
                    if not remaining[line_hash]:
                        locations[line_hash] = self._line_location(passage, number, excerpt(line))
                        del remaining[line_hash]
            if not remaining:
                break
        return locations

    def num_units(self) -> int:
        return int(self.sizes("characters").sum())

    def can_split(self) -> bool:
        return len(self._passage_hashes) > 1

    def counts(self) -> dict[str, int]:
        return {
            "documents": len(self),
            "files": len(self.entries),
            "lines": self.totals["lines"],
            "words": int(self.sizes("words").sum()),
            "characters": self.num_units(),
            "unique_characters": len(self.characters),
            "bytes": self.totals["bytes"],
        }

    def lengths(self) -> Lengths:
        return replace(super().lengths(), max_length=0)

    def own_findings(self) -> Iterable[Finding]:
        repeated = engine.duplicates(self.lines()[:, 0])
        if self._text_fraction(repeated) > MIN_REPEATED_FRACTION:
            yield self._line_finding("duplicate_lines", repeated, self, "same as")

    def comparison_findings(self) -> Iterable[Finding]:
        """Leaked documents, and leaked passages, which are found by their lines."""
        yield from super().comparison_findings()
        for survey, other in ((self.train, self), (self, self.train)):
            survey.subsample_lines(other.line_mask)
        leaked = np.flatnonzero(np.isin(self.lines()[:, 0], self.train.lines()[:, 0]))
        if len(leaked):
            finding = self._line_finding("leak_lines", leaked, self.train, "in training data:")
            yield replace(finding, severity="note") if finding.fraction <= MIN_REPEATED_FRACTION else finding

    def _text_fraction(self, lines: NDArray[np.int64]) -> float:
        """Characters of these lines as a fraction of all text, extrapolated from the sample of lines."""
        characters = int(self.lines()[lines, 1].sum())
        return min(1.0, (self.line_mask + 1) * characters / max(self.num_units(), 1))

    def _line_finding(self, key: str, lines: NDArray[np.int64], other: TextSurvey, word: str) -> Finding:
        """Finding about lines also present in another survey, or earlier in the same survey."""
        step = self.line_mask + 1
        first = list(dict.fromkeys(self.lines()[lines, 0].tolist()))[:MAX_LOCATIONS]
        locations, origins = self.find_lines(first, occurrence=2 if other is self else 1), other.find_lines(first)
        joined = []
        for line, location in locations.items():
            text = location.text
            if (origin := origins.get(line)) is not None:
                place = f"line {origin.line}" if origin.path == location.path else f"{origin.path}:{origin.line}"
                text += f"  ({word} {place})"
            joined.append(replace(location, text=text))
        sampling = f", estimated from 1 in {step} lines" if step > 1 else ""
        return self.finding(key, len(lines) * step, self._text_fraction(lines), joined, sampling=sampling)


class DocumentSurvey(TextSurvey):
    """Survey of documents for pretraining of encoders, with next-sentence prediction across documents."""

    task = "mlm"
    findings = tables.DOCUMENTS

    def own_findings(self) -> Iterable[Finding]:
        yield from super().own_findings()
        if self.train is None and len(self) == 1:
            yield self.finding("single_document", 1)
