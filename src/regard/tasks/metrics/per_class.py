"""Metrics per class, for multi-label data or if a confusion matrix would be too large."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from regard.draw.charts import MAX_CLASSES, LabelScore, draw_per_label
from regard.draw.text import markdown_table
from regard.tasks.metrics.ner import MatchCounts

MAX_CONFUSIONS = 12
"""Maximum number of listed confusions."""


@dataclass(frozen=True)
class ClassMetrics:
    by_class: dict[str, MatchCounts]
    """counts by class, for classes among labels or predictions"""
    micro: MatchCounts
    """sums over classes, for micro averages"""
    unit: str
    """plural noun for samples in figures"""

    @classmethod
    def from_labels(
        cls, targets: Sequence[Collection[str]], predictions: Sequence[Collection[str]], unit: str
    ) -> ClassMetrics:
        """Count labels, predictions and correct predictions of each class."""
        counts = Counter[str](), Counter[str](), Counter[str]()
        for ours, theirs in zip(targets, predictions, strict=True):
            for count, found in zip(counts, (set(ours), set(theirs), set(ours) & set(theirs)), strict=True):
                count.update(found)
        hits = {
            name: MatchCounts(*(count[name] for count in counts))
            for name in sorted(counts[0].keys() | counts[1].keys())
        }
        return cls(hits, MatchCounts(*(count.total() for count in counts)), unit)

    @property
    def macro_f1(self) -> float:
        """Macro average: every class has equal weight."""
        return sum(hits.f1 for hits in self.by_class.values()) / len(self.by_class) if self.by_class else 0.0

    def table(self) -> str:
        """Table with a row per class, most frequent first, and a row for all."""
        ordered = sorted(self.by_class.items(), key=lambda item: (-item[1].actual, item[0]))
        return markdown_table([_row(name, hits) for name, hits in (*ordered, ("all", self.micro))])

    def save_figure(self, path: Path) -> Path:
        bars = [_bar(name, hits) for name, hits in self.by_class.items()]
        return draw_per_label(bars, _bar("all", self.micro), self.unit, path)


def class_report(labels: Sequence[str], counts: np.ndarray, metrics: ClassMetrics) -> dict[str, float | str]:
    """Confusion matrix, or for more than `MAX_CLASSES` classes the metrics per class and the most frequent confusions."""
    if len(labels) <= MAX_CLASSES:
        rows = [
            {"true \\ predicted": label, **{name: int(count) for name, count in zip(labels, row, strict=True)}}
            for label, row in zip(labels, counts, strict=True)
        ]
        return {"confusion_matrix": markdown_table(rows)}
    tables = {"per_class": metrics.table(), "most_confused": confusion_summary(labels, counts)}
    return {name: value for name, value in tables.items() if value}


def confusion_matrix(labels: Sequence[str], targets: Sequence[str], predictions: Sequence[str]) -> np.ndarray:
    """(C, C) counts by label (rows) and prediction (columns)."""
    number = {label: place for place, label in enumerate(labels)}
    counts = np.zeros((len(labels), len(labels)), dtype=np.int64)
    np.add.at(counts, ([number[label] for label in targets], [number[label] for label in predictions]), 1)
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


def _row(name: str, hits: MatchCounts) -> dict[str, object]:
    shares = {"F1": hits.f1, "precision": hits.precision, "recall": hits.recall}
    rounded = {measure: round(100 * share, 2) for measure, share in shares.items()}
    return {"class": name, **rounded, "support": hits.actual, "predicted": hits.predicted}


def _bar(name: str, hits: MatchCounts) -> LabelScore:
    return LabelScore(name, hits.f1, hits.precision, hits.recall, hits.actual)
