"""Nearest-neighbor search of texts by cosine similarity of embeddings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from regard.errors import RegardError

MAX_COSINES = 1 << 24
"""Maximum number of cosines in memory."""


@dataclass(frozen=True, slots=True)
class SearchHit:
    value: str
    cosine: float
    index: int
    """index of the text"""


class TextIndex:
    """Texts with their embeddings. Among duplicates the first text is found."""

    def __init__(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        """`vectors` (N, D): embedding of each text."""
        self.texts = texts
        self.vectors = normalize(vectors)
        first: dict[str, int] = {}
        for place, text in enumerate(texts):
            first.setdefault(text, place)
        self.is_duplicate = np.array([first[text] != place for place, text in enumerate(texts)], dtype=bool)

    def search(self, queries: np.ndarray, top_k: int) -> list[list[SearchHit]]:
        """The `top_k` nearest texts of each query embedding (Q, D), nearest first."""
        if top_k < 1:
            raise RegardError(f"The number of texts to return (top_k) must be at least 1, got {top_k}.")
        most = min(top_k, int((~self.is_duplicate).sum()))
        found: list[list[SearchHit]] = []
        for cosines in self.iter_cosines(queries):
            cosines[:, self.is_duplicate] = -np.inf
            some = np.argpartition(-cosines, most - 1, axis=1)[:, :most]
            for row, places in zip(cosines, some, strict=True):
                order = places[np.lexsort((places, -row[places]))]
                found.append([SearchHit(self.texts[place], float(row[place]), int(place)) for place in order])
        return found

    def iter_cosines(self, queries: np.ndarray) -> Iterator[np.ndarray]:
        """(Q, N) cosines, in chunks of rows."""
        step = max(MAX_COSINES // max(len(self.texts), 1), 1)
        for start in range(0, len(queries), step):
            yield normalize(queries[start : start + step]) @ self.vectors.T


def normalize(vectors: np.ndarray) -> np.ndarray:
    """L2-normalized vectors; zero vectors are unchanged."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.maximum(lengths, np.finfo(vectors.dtype).tiny)
