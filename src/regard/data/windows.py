"""Windows of long texts: which stretches of a stream of tokens are learnt from, in every epoch.

A stretch is (first, last): the tokens first … last - 1 are read, and first + 1 … last are to be said. None crosses from one
document into another.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from regard.data.plan import Epochs, Indices, Packs, Plan
from regard.errors import DataError

Stretches = npt.NDArray[np.int64]
"""(N, 2)"""

WHOLE = 4
"""Documents of at least this many windows are cut anew in each epoch; what is left at their ends comes another time."""


def plan_windows(documents: Stretches, length: int, tokens: int, seed: int, packed: bool) -> Epochs:
    """Long documents: full windows at places that change with each epoch, so that every token is said with every past.
    Else each document is cut evenly into pieces that fit, and pieces of like length stand together, or are packed."""
    sizes = documents[:, 1] - documents[:, 0]
    documents = documents[sizes > 0]
    if not len(documents):
        raise DataError("there is no text to learn from: no document has two tokens.", advice="Add text.")
    if int((documents[:, 1] - documents[:, 0]).min()) >= WHOLE * length:
        return Windows(documents, length, tokens, seed)
    pieces = cut(documents, length)
    sizes = pieces[:, 1] - pieces[:, 0]
    budget = max(tokens, int(sizes.max()))
    return Pieces((Packs if packed else Plan)(sizes, budget, seed), pieces)


def cut(documents: Stretches, length: int) -> Stretches:
    """Every document in as few pieces of at most `length` as can be, all about equally long."""
    sizes = documents[:, 1] - documents[:, 0]
    counts = -(-sizes // length)
    which = np.repeat(np.arange(len(documents)), counts)
    place = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = documents[which, 0] + place * sizes[which] // counts[which]
    last = documents[which, 0] + (place + 1) * sizes[which] // counts[which]
    return np.stack([first, last], axis=1)


class Windows(Epochs):
    """Rows of one constant length. Each epoch shifts the windows of each document by an offset of its own."""

    steady = True

    def __init__(self, documents: Stretches, length: int, tokens: int, seed: int) -> None:
        sizes = documents[:, 1] - documents[:, 0]
        super().__init__(np.array([length]), max(tokens, length), seed)
        self.documents, self.length = documents, length
        fewest = int(((sizes - length + 1) // length).sum())  # when every offset is the largest
        self.rows = max(min(tokens // length, fewest), 1)

    def epoch(self, number: int) -> list[Indices]:
        random = self._random(number)
        offsets = random.integers(0, self.length, len(self.documents))
        firsts = [
            np.arange(first + offset, last - self.length + 1, self.length)
            for (first, last), offset in zip(self.documents.tolist(), offsets.tolist(), strict=True)
        ]
        starts = random.permutation(np.concatenate(firsts))
        grains = len(starts) // self.rows
        stretches = np.stack([starts, starts + self.length], axis=1)[: grains * self.rows]
        return list(stretches.reshape(grains, self.rows, 2))

    def size(self, grain: Indices) -> int:
        return len(grain) * self.length

    def tokens(self, number: int) -> int:
        return self.rows * self.length

    def padding(self) -> float:
        return 0.0


class Pieces(Epochs):
    """The grains of another plan, which knows lengths only, as stretches."""

    def __init__(self, inner: Plan | Packs, pieces: Stretches) -> None:
        self.inner, self.pieces = inner, pieces
        self.steady, self.shape = inner.steady, inner.shape

    def epoch(self, number: int) -> list[Indices]:
        return [self.pieces[rows] for rows in self.inner.epoch(number)]

    def grain(self, number: int) -> tuple[int, Indices]:
        epoch, rows = self.inner.grain(number)
        return epoch, self.pieces[rows]

    def size(self, grain: Indices) -> int:
        raise NotImplementedError

    def tokens(self, number: int) -> int:
        return self.inner.tokens(number)

    def padding(self) -> float:
        return self.inner.padding()


def in_turn(documents: Stretches, length: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Each document from its beginning, for evaluation: (first, last, scored from). Every token is said once.

    Windows begin `stride` apart; those that overlap the one before say only what it did not."""
    for first, last in documents.tolist():
        said = first
        start = first
        while said < last:
            end = min(start + length, last)
            yield start, end, said
            said, start = end, start + stride
