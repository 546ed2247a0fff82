"""Which of many texts are nearest to a question: by the cosine of their vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from regard.errors import RegardError

ROOM = 1 << 24
"""Cosines that are held at once."""


@dataclass(frozen=True, slots=True)
class Hit:
    value: str
    cosine: float
    index: int
    """its place among the texts that were given"""


class Among:
    """Texts that are searched, and their vectors, which are made once. Of equal texts the first is found."""

    def __init__(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        """(N, D): a vector for each text."""
        self.texts = texts
        self.vectors = unit(vectors)
        first: dict[str, int] = {}
        for place, text in enumerate(texts):
            first.setdefault(text, place)
        self.repeated = np.array([first[text] != place for place, text in enumerate(texts)], dtype=bool)

    def nearest(self, questions: np.ndarray, best: int) -> list[list[Hit]]:
        """Of each vector (Q, D) the nearest texts, the nearest first."""
        if best < 1:
            raise RegardError(f"the nearest {best} texts cannot be found: ask for 1 or more.")
        most = min(best, int((~self.repeated).sum()))
        found: list[list[Hit]] = []
        for cosines in self.cosines(questions):
            cosines[:, self.repeated] = -np.inf
            some = np.argpartition(-cosines, most - 1, axis=1)[:, :most]
            for row, places in zip(cosines, some, strict=True):
                order = places[np.lexsort((places, -row[places]))]
                found.append([Hit(self.texts[place], float(row[place]), int(place)) for place in order])
        return found

    def cosines(self, questions: np.ndarray) -> Iterator[np.ndarray]:
        """(Q, N), some rows at a time."""
        step = max(ROOM // max(len(self.texts), 1), 1)
        for start in range(0, len(questions), step):
            yield unit(questions[start : start + step]) @ self.vectors.T


def unit(vectors: np.ndarray) -> np.ndarray:
    """The same at length 1; nothing stays nothing."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.maximum(lengths, np.finfo(vectors.dtype).tiny)
