"""Precision, recall and F1 per class of labels, tags, entities or words of questions, and confusion matrices.

An entity is correct if its type and its first and last word are correct. The values equal the default mode of `seqeval` and
CoNLL's conlleval: invalid tag sequences are repaired before the comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.text.tagged import TagScheme, extract_entities
from regard.draw.charts import MAX_CLASSES, LabelScore, draw_confusion, draw_per_label
from regard.draw.text import markdown_table
from regard.errors import RegardError

MAX_CONFUSIONS = 12  # maximum number of listed confusions

Tags = Sequence[Sequence[str]]  # tags of the words of each sentence


@dataclass(frozen=True)
class MatchCounts:
    """Counts of labels, predictions and correct predictions. Metrics are fractions of 1."""

    actual: int  # number of labels
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
class ClassMetrics:
    by_class: dict[str, MatchCounts]  # counts by class, entity type or tag among labels or predictions, sorted by name
    unit: str  # plural noun for the counted items in figures
    column: str = "class"  # noun for a class in tables
    accuracy: float = 0.0  # fraction of words with the correct tag
    labels: Sequence[str] = ()  # all classes, if every sample has one label
    confusion: np.ndarray | None = None  # (C, C) confusion matrix of `labels`

    @classmethod
    def from_labels(
        cls, targets: Sequence[Collection[Any]], predictions: Sequence[Collection[Any]], unit: str, **more: Any
    ) -> ClassMetrics:
        """Count labels, predictions and correct predictions of each class. A label is a class, or a tuple of a class and a
        place in the sample. With `labels`, each sample has one label, and confusions are counted."""
        if labels := more.get("labels"):
            more["confusion"] = confusion_matrix(labels, targets, predictions)
        counts = Counter[str](), Counter[str](), Counter[str]()
        for ours, theirs in zip(targets, predictions, strict=True):
            for count, found in zip(counts, (set(ours), set(theirs), set(ours) & set(theirs)), strict=True):
                count.update(label if isinstance(label, str) else label[0] for label in found)
        names = sorted(counts[0].keys() | counts[1].keys())
        return cls({name: MatchCounts(*(count[name] for count in counts)) for name in names}, unit, **more)

    @property
    def micro(self) -> MatchCounts:
        """Micro average: every label has equal weight."""
        hits = self.by_class.values()
        return MatchCounts(*(sum(getattr(one, name) for one in hits) for name in ("actual", "predicted", "correct")))

    @property
    def macro_f1(self) -> float:
        """Macro average: every class has equal weight."""
        return sum(hits.f1 for hits in self.by_class.values()) / len(self.by_class) if self.by_class else 0.0

    def table(self) -> str:
        """Table with a row per class, most frequent first, and a row for all."""
        ordered = sorted(self.by_class.items(), key=lambda item: (-item[1].actual, item[0]))
        rows = [
            score_row(_label_score(name, hits), self.column) | {"predicted": hits.predicted}
            for name, hits in (*ordered, ("all", self.micro))
        ]
        return markdown_table(rows)

    def report(self) -> dict[str, float | str]:
        """Confusion matrix, or for more than `MAX_CLASSES` classes the metrics per class and the most frequent confusions.
        Samples with several labels have no confusion matrix."""
        if self.confusion is None:
            return {"per_class": self.table()}
        if len(self.labels) > MAX_CLASSES:
            tables = {"per_class": self.table(), "most_confused": confusion_summary(self.labels, self.confusion)}
            return {name: value for name, value in tables.items() if value}
        rows = [
            {"true \\ predicted": label, **{name: int(count) for name, count in zip(self.labels, row, strict=True)}}
            for label, row in zip(self.labels, self.confusion, strict=True)
        ]
        return {"confusion_matrix": markdown_table(rows)}

    def save_figure(self, path: Path) -> Path:
        """Draw the metrics per class to `path`, or the confusion matrix of `report` to `confusion.png` in the same folder."""
        if self.confusion is not None and len(self.labels) <= MAX_CLASSES:
            return draw_confusion(self.labels, self.confusion, path.with_name("confusion.png"))
        bars = [_label_score(name, hits) for name, hits in self.by_class.items()]
        return draw_per_label(bars, _label_score("all", self.micro), self.unit, path)

    def scores(self) -> dict[str, float]:
        """Scores of tags in percent. For plain tags micro F1 equals the accuracy."""
        micro, found = self.micro, {"f1": self.accuracy}
        if self.column == "type":
            found = {"f1": micro.f1, "precision": micro.precision, "recall": micro.recall}
        found |= {"accuracy": self.accuracy, "macro_f1": self.macro_f1}
        return {name: round(100 * value, 2) for name, value in found.items()}


def _label_score(name: str, hits: MatchCounts) -> LabelScore:
    return LabelScore(name or "_", hits.f1, hits.precision, hits.recall, hits.actual)


def score_row(bar: LabelScore, column: str, support: str = "support") -> dict[str, Any]:
    """Table row with the name in `column` and the scores in percent."""
    values = {"F1": bar.f1, "precision": bar.precision, "recall": bar.recall}
    return {column: bar.name, **{name: round(100 * value, 2) for name, value in values.items()}, support: bar.support}


def tagging_metrics(targets: Tags, predictions: Tags, scheme: TagScheme) -> ClassMetrics:
    """Metrics of entities by type, or of words by tag if `scheme` is plain. Otherwise targets and predictions may have
    different schemes."""
    for number, (ours, theirs) in enumerate(zip(targets, predictions, strict=True)):
        if len(ours) != len(theirs):
            raise RegardError(
                f"Sentence {number}: {len(theirs)} predicted tags do not match {len(ours)} reference tags."
            )
    words = list(zip(chain.from_iterable(targets), chain.from_iterable(predictions), strict=True))
    accuracy = sum(one == other for one, other in words) / len(words) if words else 0.0
    plain = scheme == "plain"

    def items(tags: Sequence[str]) -> Sequence[tuple[Any, ...]]:
        """Compared items: tag and place of each word, or entities."""
        return list(zip(tags, range(len(tags)), strict=True)) if plain else extract_entities(tags)

    unit, column = ("words", "tag") if plain else ("entities", "type")
    return ClassMetrics.from_labels(
        list(map(items, targets)), list(map(items, predictions)), unit, column=column, accuracy=accuracy
    )


def confusion_matrix(
    labels: Sequence[str], targets: Sequence[Collection[str]], predictions: Sequence[Collection[str]]
) -> np.ndarray:
    """(C, C) counts by label (rows) and prediction (columns); a sample has one label."""
    number = {label: place for place, label in enumerate(labels)}
    counts = np.zeros((len(labels), len(labels)), dtype=np.int64)
    np.add.at(counts, ([number[label] for (label,) in targets], [number[label] for (label,) in predictions]), 1)
    return counts


def confusion_scores(counts: np.ndarray) -> dict[str, float]:
    """Accuracy, macro F1 over the classes among labels and predictions, and the multiclass Matthews correlation (Gorodkin
    2004), which is 0 if all labels or all predictions are equal."""
    total, hits = float(counts.sum()), np.diag(counts).astype(float)
    actual, predicted = counts.sum(1).astype(float), counts.sum(0).astype(float)
    present = (actual + predicted) > 0
    f1 = 2 * hits[present] / (actual + predicted)[present]
    spread = (total**2 - (actual**2).sum()) * (total**2 - (predicted**2).sum())
    together = hits.sum() * total - (actual * predicted).sum()
    return {
        "accuracy": float(hits.sum()) / max(total, 1.0),
        "macro_f1": float(f1.mean()) if len(f1) else 0.0,
        "mcc": float(together / np.sqrt(spread)) if spread > 0 else 0.0,
    }


def confusion_summary(names: Sequence[str], counts: np.ndarray) -> str:
    """Table of the most frequent confusions in `counts[label, prediction]`; empty without confusions."""
    wrong = counts * (1 - np.eye(len(names), dtype=counts.dtype))
    order = np.argsort(-wrong, axis=None, kind="stable")[:MAX_CONFUSIONS]
    found = [(int(row), int(column)) for row, column in zip(*np.unravel_index(order, wrong.shape), strict=True)]
    return markdown_table(
        [
            {
                "true": names[row],
                "predicted": names[column],
                "count": int(wrong[row, column]),
                "support": int(counts[row].sum()),
            }
            for row, column in found
            if wrong[row, column]
        ]
    )
