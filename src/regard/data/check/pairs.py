"""Checks of text pairs: translations, pairs of texts with the same meaning, and questions with computed answers.

The language of a side is identified by trigram counts of the data itself. Measured on 29,000 English–German pairs with
1 % of the rows swapped: all swapped rows are found and no others; see the tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from regard.data.check import findings as tables
from regard.data.check.engine import Indices, ProgressCallback, Survey, no_progress, normalize_text
from regard.data.check.findings import MAX_LENGTH_RATIO
from regard.data.check.report import MAX_LOCATIONS, Finding, Lengths, Location, Report, excerpt
from regard.data.text.files import chunked, split_parallel
from regard.data.text.samples import Pair, read_pairs, read_positive_pairs

if TYPE_CHECKING:
    from regard.data.synthetic.algorithmic import AlgorithmicQuestion

FloatArray = NDArray[np.float64]

CHUNK = 4096  # pairs per update of the trigram counts
HASH_BITS = 14  # 2¹⁴ buckets of trigrams: alphabets use far fewer, and collisions only weaken the evidence
NUM_BUCKETS = 1 << HASH_BITS
SMOOTHING = 0.5  # added to every trigram count, so that unseen trigrams are neutral
MIN_FILE_PAIRS = 20  # minimum number of pairs in a file to detect swapped sides
SWAPPED_SIMILARITY = -0.5
"""similarity to the previous files below which the sides of a file count as swapped: English–German pairs give −0.9
from 30 pairs on, two samples of one language ±0.2"""
MIN_PROFILE_PAIRS = 50  # minimum number of training pairs for language scores
MIN_DISTANCE, MIN_ORDERED_FRACTION = 0.3, 0.6
"""Languages are distinguishable if the median distance of the scores is at least 0.3 nats per character, and the source
has the higher score in 60 % of the rows: one language gives about 0 and 50 %, English and German 4.5 and all."""
MARGIN = 0.15  # minimum score of a text in the language of the other side, as a fraction of the median distance
MIN_EVIDENCE = 3.0  # minimum evidence in nats for each side of a swapped row: e³ = 20 to 1
STRONG_EVIDENCE = 10.0  # minimum for rows in one language, because names and foreign words have a similar effect


def trigrams(texts: Sequence[str]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Bucket of each trigram, and the index of its text."""
    # the first and last letters of a word are informative, so a space is added at both ends; \0 separates the texts
    joined = "\0".join(f" {text.lower()} " for text in texts)
    codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.uint32)
    a, b, c = codes[:-2], codes[1:-1], codes[2:]
    mixed = (a * np.uint32(0x9E3779B1)) ^ (b * np.uint32(0x85EBCA6B)) ^ (c * np.uint32(0xC2B2AE35))
    mixed = (mixed ^ (mixed >> np.uint32(15))) * np.uint32(0x2C1B3C6D)
    inside = (a != 0) & (b != 0) & (c != 0)
    owner = np.cumsum(codes == 0)[:-2]
    return (mixed >> np.uint32(32 - HASH_BITS))[inside].astype(np.intp), owner[inside]


# A profile is a (2, NUM_BUCKETS) array of the trigram counts of source and target. The score of a text is the mean over its
# trigrams of log P(trigram | source) − log P(trigram | target), positive for a text in the source language. Source and
# target of a row with a negative and a positive score are swapped.


def count_trigrams(sources: Sequence[str], targets: Sequence[str]) -> Indices:
    """Profile of these texts."""
    return np.stack([np.bincount(trigrams(texts)[0], minlength=NUM_BUCKETS) for texts in (sources, targets)])


def similarity(profile: Indices, other: Indices) -> float:
    """Cosine similarity of the log ratios: 1 for equal sides, 0 for unrelated data, −1 for swapped sides.

    Each trigram is weighted by the smaller of the two counts."""
    weights = np.minimum(profile.sum(0), other.sum(0))
    a, b = (logs[0] - logs[1] for logs in map(_log_probabilities, (profile, other)))
    norm = np.sqrt((weights * a * a).sum() * (weights * b * b).sum())
    return float((weights * a * b).sum() / norm) if norm else 0.0


def source_scores(profile: Indices, sources: Sequence[str], targets: Sequence[str], leave_one_out: bool) -> FloatArray:
    """(N, 2) score of each source and each target. With `leave_one_out`, the rows are part of the profile, and the counts of
    each row are subtracted."""
    logs = _log_probabilities(profile)
    without = _log_probabilities(profile, removed=1) if leave_one_out else logs
    scores = []
    for texts, table in zip((sources, targets), (without[0] - logs[1], logs[0] - without[1]), strict=True):
        buckets, owner = trigrams(texts)
        sums = np.bincount(owner, weights=table[buckets], minlength=len(texts))
        scores.append(sums / np.maximum(np.bincount(owner, minlength=len(texts)), 1))
    return np.stack(scores, axis=1)


def _log_probabilities(profile: Indices, removed: int = 0) -> FloatArray:
    """(2, NUM_BUCKETS) log P(trigram | side), with this number of occurrences removed from each bucket."""
    totals = np.log(profile.sum(1, keepdims=True) + SMOOTHING * NUM_BUCKETS)
    logs: FloatArray = np.log(np.maximum(profile - removed, 0) + SMOOTHING) - totals
    return logs


class PairSurvey(Survey):
    """Survey of text pairs: also the pairs with identical sides, and the files with swapped sides.

    Hashes are of the pairs (0), of the sources (1), of the sources without case and punctuation (2)."""

    task, unit, sides = "translate", "pairs", ("source", "target")
    reader, findings = read_pairs, tables.PAIRS
    leaks = ("leak", "leak_source", "leak_near_duplicate")
    conflict = "multiple_targets"
    counted, min_samples, special_tokens = "", 1000, 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.swapped_entries: list[bool] = []  # for each entry: sides swapped relative to the previous entries
        self.profile = np.zeros((2, NUM_BUCKETS), dtype=np.int64)

    def read(self, progress: ProgressCallback = no_progress) -> None:
        """Read every row. The sides of the training data define the correct order of source and target."""
        super().read(progress)
        if self.train is None and self.swapped_entries and 2 * int(self.swapped_pairs().sum()) > len(self):
            # the majority of pairs defines the correct order
            self.swapped_entries = [not is_swapped for is_swapped in self.swapped_entries]
            self.profile = self.profile[::-1]

    def _survey_entry(self, entry: str) -> None:
        self._entry_profile, first = np.zeros_like(self.profile), len(self)
        super()._survey_entry(entry)
        is_large = len(self) - first >= MIN_FILE_PAIRS
        is_swapped = is_large and similarity(self.base.profile, self._entry_profile) < SWAPPED_SIMILARITY
        self.swapped_entries.append(is_swapped)
        self.profile += self._entry_profile[::-1] if is_swapped else self._entry_profile

    def _add_chunk(self, samples: Sequence[Pair]) -> None:
        super()._add_chunk(samples)
        self._entry_profile += count_trigrams([pair.source for pair in samples], [pair.target for pair in samples])

    def swapped_pairs(self) -> NDArray[np.bool_]:
        """(N,) whether a pair is in a file with swapped sides."""
        return np.array(self.swapped_entries, dtype=bool)[self.values("entry")]

    def _read_entry(self, entry: str) -> Iterator[Any]:
        return type(self).reader(entry, self.columns)  # a missing file ends the check

    def _entry_files(self, entry: str) -> Sequence[str]:
        return split_parallel(entry) or (entry,)

    def _location(self, path: str, line: int, text: str = "", side: int = 0) -> Location:
        files = split_parallel(path)
        return Location(files[side] if files else path, line, text)

    def _preview(self, sample: Pair) -> str:
        return f"{excerpt(sample.source, width=36)} | {excerpt(sample.target, width=36)}"

    def _add_sample(self, sample: Pair) -> None:
        texts = sample.source, sample.target
        self.keep("identical", sample.source == sample.target, kind="B")
        self._append_texts(sample, texts, ("\0".join(texts), sample.source, normalize_text(sample.source)))

    def lengths(self) -> Lengths:
        return replace(super().lengths(), outliers=self.length_ratio_outliers())

    def sample_tokens(self) -> Indices:
        tokens: Indices = self.sizes("tokens").max(axis=1, initial=0)
        return tokens

    def own_findings(self) -> Iterable[Finding]:
        yield from self.sample_findings("identical_sides", np.flatnonzero(self.values("identical")))
        words, characters = self.sizes("words"), self.sizes("characters")
        yield from self.sample_findings(
            "length_ratio",
            self.length_ratio_outliers(),
            lambda n, _: (
                f"{words[n][0]:,} vs. {words[n][1]:,} words, {characters[n][0]:,} vs. {characters[n][1]:,} characters"
            ),
        )
        if "swapped" in self.findings:
            yield from self.language_findings()

    def length_ratio_outliers(self) -> Indices:
        """Pairs with a length ratio far from the median, in characters and in words; short pairs are ignored."""
        words, characters = self.sizes("words"), self.sizes("characters")
        if not len(words) or "length_ratio" not in self.findings:
            return np.zeros(0, dtype=np.int64)
        outliers = (characters.max(axis=1) >= 40) & _is_ratio_outlier(characters)
        # without spaces between words, as in Chinese, the number of words is meaningless
        if (np.median(characters / np.maximum(words, 1), axis=0) < 12).all():
            outliers &= _is_ratio_outlier(words)
        return np.flatnonzero(outliers)

    def language_findings(self) -> Iterable[Finding]:
        """Files and rows with swapped sides, and rows with one language on both sides."""
        for number in np.flatnonzero(self.swapped_entries):
            count = int((self.values("entry") == number).sum())
            reference = "the other files" if self.train is None else "the training data"
            file = (Location(self.entries[number]),)
            yield self.finding("swapped_file", count, count / self.rows, file, reference=reference)
        if len(self.base) < MIN_PROFILE_PAIRS or not len(self):
            return
        scores = self.language_scores()
        distances = scores[:, 0] - scores[:, 1]
        median = float(np.median(distances))
        if median < MIN_DISTANCE or (distances > 0).mean() < MIN_ORDERED_FRACTION:
            if self.train is None:
                yield self.finding("indistinguishable_languages")
            return
        margin = MARGIN * median
        lengths, swapped = self.sizes("characters"), self.swapped_pairs()
        lengths[swapped] = lengths[swapped][:, ::-1]
        evidence = scores * lengths
        is_reversed = (scores[:, 0] < -margin) & (scores[:, 1] > margin)
        is_reversed &= (evidence[:, 0] < -MIN_EVIDENCE) & (evidence[:, 1] > MIN_EVIDENCE)
        yield from self.sample_findings("swapped", np.flatnonzero(is_reversed))
        is_same = np.abs(scores).min(axis=1) > 2 * margin
        is_same &= np.abs(evidence).min(axis=1) > STRONG_EVIDENCE
        is_same &= np.sign(scores[:, 0]) == np.sign(scores[:, 1])
        is_same &= self.values("identical") == 0  # reported as identical_sides
        yield from self.sample_findings("same_language", np.flatnonzero(is_same))

    def language_scores(self) -> FloatArray:
        """(N, 2) language scores of source and target, higher for the source language; swapped files are swapped back."""
        scores, done = list[FloatArray](), 0
        for is_swapped, entry in zip(self.swapped_entries, self.entries, strict=True):
            for chunk in chunked(self._entry_samples(entry), CHUNK):
                texts = [pair.source for pair in chunk], [pair.target for pair in chunk]
                sources, targets = texts[::-1] if is_swapped else texts
                scores.append(source_scores(self.base.profile, sources, targets, leave_one_out=self.train is None))
                done += len(chunk)
                self.progress(f"comparing languages in {self.split} data", done)
        return np.concatenate(scores)


def _is_ratio_outlier(sizes: Indices) -> Any:
    ratio = np.log(np.maximum(sizes, 1)) @ np.array([1.0, -1.0])
    return np.abs(ratio - np.median(ratio)) > np.log(MAX_LENGTH_RATIO)


class ContrastivePairSurvey(PairSurvey):
    """Survey of pairs of texts with the same meaning, with any column names."""

    task = "embed"
    reader, findings = read_positive_pairs, tables.CONTRASTIVE_PAIRS
    leaks = ("leak", "leak_anchor", "leak_near_duplicate")


class AlgorithmicSurvey(PairSurvey):
    """Survey of questions and answers in files. Generated questions are checked for length and leaks."""

    task = "algorithmic"
    findings = tables.QUESTIONS

    def report(self, progress: ProgressCallback) -> Report:
        from regard.data.synthetic.algorithmic import QUESTIONS, AlgorithmicQuestion, generate_questions, parse_recipe

        if not all(map(parse_recipe, self.entries)):
            return super().report(progress)
        questions, valid_questions = list[AlgorithmicQuestion](), list[AlgorithmicQuestion]()
        valid_entries = self.valid.entries or QUESTIONS.validation_entries(self.entries)
        for entries, split in ((self.entries, questions), (valid_entries, valid_questions)):
            for entry in entries:
                progress(f"generating {entry}", 0)
                split += generate_questions(entry)
        max_length = self.settings.max_length
        for question in questions:
            self._keep_sizes((question.source, question.target))
        words, characters = self.sizes("words"), self.sizes("characters")
        # tokens are words or characters, as in the tokenizer of the task
        tokens = words if any(" " in question.source for question in questions) else characters
        long = [question for question, sizes in zip(questions, tokens, strict=True) if sizes.max() > max_length]
        known = {question.source for question in questions}
        leaked = [question for question in valid_questions if question.source in known]
        findings = [
            *self._question_findings("long:generated", long, len(questions)),
            *self.valid._question_findings("leak:generated", leaked, len(valid_questions)),
        ]
        counts = {"questions": len(questions), "validation_questions": len(valid_questions)}
        counts["validation_longer_questions"] = sum(bool(question.is_longer) for question in valid_questions)
        lengths = Lengths(words, characters, tokens, max_length, names=("question", "answer"), unit="questions")
        return Report(self.task, counts, tuple(findings), lengths)

    def _question_findings(self, key: str, questions: Sequence[AlgorithmicQuestion], total: int) -> Iterable[Finding]:
        if count := len(questions):
            locations = [Location(q.path, q.line, q.source[:60], "question") for q in questions[:MAX_LOCATIONS]]
            yield self.finding(key, count, count / total, locations, max_length=self.settings.max_length)
