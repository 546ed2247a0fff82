"""Precision, recall and F1 of token classification: of entities, in total and by type, or of each plain tag.

An entity is correct if its type and its first and last word are correct. The values equal the default mode of `seqeval` and
CoNLL's conlleval: invalid tag sequences are repaired before the comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from regard.data.text.tagged import TagScheme, extract_entities
from regard.draw.charts import LabelScore, draw_per_label
from regard.draw.text import markdown_table
from regard.errors import RegardError

Tags = Sequence[Sequence[str]]
"""Tags of the words of each sentence."""


@dataclass(frozen=True)
class MatchCounts:
    """Counts of labels, predictions and correct predictions. Metrics are fractions of 1."""

    actual: int
    """number of labels"""
    predicted: int
    correct: int

    @property
    def precision(self) -> float:
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        return self.correct / self.actual if self.actual else 0.0

    @property
    def f1(self) -> float:
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


@dataclass(frozen=True)
class TaggingMetrics:
    """Metrics of some sentences."""

    by_label: dict[str, MatchCounts]
    """by entity type or by tag, in alphabetical order"""
    accuracy: float
    """fraction of words with the correct tag"""
    plain: bool
    """True if tags are classes of single words"""

    @property
    def micro(self) -> MatchCounts:
        """Micro average: every entity has equal weight."""
        sums = (
            sum(getattr(hits, name) for hits in self.by_label.values()) for name in ("actual", "predicted", "correct")
        )
        return MatchCounts(*sums)

    @property
    def macro_f1(self) -> float:
        """Macro average: every type has equal weight."""
        return sum(hits.f1 for hits in self.by_label.values()) / len(self.by_label) if self.by_label else 0.0

    def scores(self) -> dict[str, float]:
        """Scores in percent. For plain tags micro F1 equals the accuracy."""
        told = {"accuracy": self.accuracy, "macro_f1": self.macro_f1}
        if not self.plain:
            whole = self.micro
            told = {"f1": whole.f1, "precision": whole.precision, "recall": whole.recall, **told}
        return {name: round(100 * value, 2) for name, value in told.items()}

    def table(self) -> str:
        """A row for each kind or tag, the most frequent first, and one for all."""
        name = "tag" if self.plain else "type"
        rows = [{name: label or "_", **_metrics_row(hits)} for label, hits in self.by_frequency()]
        return markdown_table([*rows, {name: "all", **_metrics_row(self.micro)}])

    def save_figure(self, path: Path) -> Path:
        """Save the table as a figure."""
        bars = [_bar(label or "_", hits) for label, hits in self.by_label.items()]
        return draw_per_label(bars, _bar("all", self.micro), "words" if self.plain else "entities", path)

    def by_frequency(self) -> list[tuple[str, MatchCounts]]:
        """Types or tags with counts, most frequent first."""
        return sorted(self.by_label.items(), key=lambda item: (-item[1].actual, item[0]))


def tagging_metrics(targets: Tags, predictions: Tags, scheme: TagScheme) -> TaggingMetrics:
    """Metrics of the predicted tags. Targets and predictions may have different schemes unless `scheme` is plain."""
    for number, (ours, theirs) in enumerate(zip(targets, predictions, strict=True)):
        if len(ours) != len(theirs):
            raise RegardError(
                f"Sentence {number}: {len(theirs)} predicted tags do not match {len(ours)} reference tags."
            )
    if scheme == "plain":
        return _compare_spans(
            _iter_spans(targets, single=True), _iter_spans(predictions, single=True), targets, predictions, plain=True
        )
    return _compare_spans(
        _iter_spans(targets, single=False), _iter_spans(predictions, single=False), targets, predictions, plain=False
    )


def _iter_spans(tags: Tags, single: bool) -> Iterable[tuple[str, int, int, int]]:
    """Spans to compare: type or tag, sentence, first word, last word."""
    for number, sentence in enumerate(tags):
        if single:
            yield from ((tag, number, place, place) for place, tag in enumerate(sentence))
        else:
            yield from ((entity.type, number, entity.first, entity.last) for entity in extract_entities(sentence))


def _compare_spans(
    right: Iterable[tuple[str, int, int, int]],
    said: Iterable[tuple[str, int, int, int]],
    ours: Tags,
    theirs: Tags,
    plain: bool,
) -> TaggingMetrics:
    there, told = set(right), set(said)
    counts = [Counter(label for label, *_ in found) for found in (there, told, there & told)]
    labels = sorted(counts[0].keys() | counts[1].keys())
    words = list(zip(chain.from_iterable(ours), chain.from_iterable(theirs), strict=True))
    alike = sum(one == other for one, other in words)
    each = {label: MatchCounts(*(count[label] for count in counts)) for label in labels}
    return TaggingMetrics(each, alike / len(words) if words else 0.0, plain)


def _bar(name: str, hits: MatchCounts) -> LabelScore:
    return LabelScore(name, hits.f1, hits.precision, hits.recall, hits.actual)


def _metrics_row(hits: MatchCounts) -> dict[str, object]:
    shares = {"F1": hits.f1, "precision": hits.precision, "recall": hits.recall}
    rounded = {name: round(100 * value, 2) for name, value in shares.items()}
    return {**rounded, "support": hits.actual, "predicted": hits.predicted}
