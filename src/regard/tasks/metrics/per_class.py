"""How well each class is told, one by one, where a table of all by all would be too large or means nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from regard.draw.markdown_table import table
from regard.draw.per_class import Bar, draw_per_label
from regard.tasks.metrics.ner import Hits

MOST = 12
"""Confusions that are told."""


@dataclass(frozen=True)
class Each:
    hits: dict[str, Hits]
    """by class: those that occur or were said"""
    whole: Hits
    """all classes together, each sample's weighing alike (micro)"""
    unit: str
    """what is counted"""

    @classmethod
    def of(cls, right: Sequence[Collection[str]], said: Sequence[Collection[str]], unit: str) -> Each:
        """Compare the classes of each sample with those that were said of it."""
        counts = Counter[str](), Counter[str](), Counter[str]()
        for ours, theirs in zip(right, said, strict=True):
            for count, found in zip(counts, (set(ours), set(theirs), set(ours) & set(theirs)), strict=True):
                count.update(found)
        hits = {name: Hits(*(count[name] for count in counts)) for name in sorted(counts[0].keys() | counts[1].keys())}
        return cls(hits, Hits(*(count.total() for count in counts)), unit)

    @property
    def macro_f1(self) -> float:
        """Every class weighing alike."""
        return sum(hits.f1 for hits in self.hits.values()) / len(self.hits) if self.hits else 0.0

    def table(self) -> str:
        """A row for each class, the most frequent first, and one for all."""
        ordered = sorted(self.hits.items(), key=lambda item: (-item[1].right, item[0]))
        return table([_row(name, hits) for name, hits in (*ordered, ("all", self.whole))])

    def draw(self, path: Path) -> Path:
        bars = [_bar(name, hits) for name, hits in self.hits.items()]
        return draw_per_label(bars, _bar("all", self.whole), self.unit, path)


def confused(names: Sequence[str], counts: np.ndarray) -> str:
    """The most frequent confusions of `counts[is, said]`; nothing where there is none."""
    wrong = counts * (1 - np.eye(len(names), dtype=counts.dtype))
    order = np.argsort(-wrong, axis=None, kind="stable")[:MOST]
    found = [(int(row), int(column)) for row, column in zip(*np.unravel_index(order, wrong.shape), strict=True)]
    return table(
        [
            {
                "is": names[row],
                "said": names[column],
                "times": int(wrong[row, column]),
                "of": int(counts[row].sum()),
            }
            for row, column in found
            if wrong[row, column]
        ]
    )


def _row(name: str, hits: Hits) -> dict[str, object]:
    shares = {"F1": hits.f1, "precision": hits.precision, "recall": hits.recall}
    rounded = {measure: round(100 * share, 2) for measure, share in shares.items()}
    return {"class": name, **rounded, "there are": hits.right, "said": hits.said}


def _bar(name: str, hits: Hits) -> Bar:
    return Bar(name, hits.f1, hits.precision, hits.recall, hits.right)
