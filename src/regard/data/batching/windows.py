"""Windows of long texts: which stretches of a stream of tokens are learnt from, in every epoch.

A stretch is (first, last): the tokens first … last - 1 are read, and first + 1 … last are to be said. None crosses from one
document into another. An epoch cuts every document anew and says each of its tokens once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from regard.data.batching.samplers import Epochs, Indices, Packs, Plan
from regard.errors import DataError

Stretches = npt.NDArray[np.int64]
"""(N, 2) first, last; or (N, 4) with the place from which on it says something, and the positions that its row has at least"""

SPARE, PACKED_SPARE = 1 / 8, 1 / 20
"""Share of positions that rows of one length may leave unsaid; and where rows can be packed, which leaves none."""


def plan_windows(documents: Stretches, length: int, tokens: int, seed: int, packed: bool) -> Epochs:
    """Rows of one length each, where documents are long or few of them are short; else pieces of like length together, or
    packed. What is planned for packed rows in the first way is planned so for others too: a run may go on with either."""
    documents = documents[documents[:, 1] > documents[:, 0]]
    if not len(documents):
        raise DataError("there is no text to learn from: no document has two tokens.", advice="Add text.")
    if unsaid(documents, length) <= (PACKED_SPARE if packed else SPARE):
        return Windows(documents, length, tokens, seed)
    return Pieces(documents, length, tokens, seed, packed)


def unsaid(documents: Stretches, length: int) -> float:
    """The share of positions that say nothing when every stretch has a row of `length`: its mean over all ways to cut."""
    sizes = documents[:, 1] - documents[:, 0]
    rows = np.where(sizes <= length, 1.0, (sizes + length - 1) / length)
    return 1 - float(sizes.sum()) / (float(rows.sum()) * length)


def cut(documents: Stretches, length: int, random: np.random.Generator) -> tuple[Stretches, Indices]:
    """All documents as stretches of `length`, which begin at a place of chance in each document that is longer: its first
    stretch and its last are shorter then. Also where the document of each stretch begins."""
    first, last = documents[:, 0], documents[:, 1]
    start = first - np.where(last - first <= length, 0, random.integers(0, length, len(documents)))
    counts = -(-(last - start) // length)
    which = np.repeat(np.arange(len(documents)), counts)
    place = start[which] + length * (np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts))
    begins = first[which]
    return np.stack([np.maximum(place, begins), np.minimum(place + length, last[which])], axis=1), begins


class Cuts(Epochs):
    """Documents that are cut anew in each epoch."""

    def __init__(self, documents: Stretches, length: int, tokens: int, seed: int) -> None:
        self.longest = min(length, int((documents[:, 1] - documents[:, 0]).max()))
        super().__init__(np.array([self.longest]), max(tokens, length), seed)
        self.documents, self.length = documents, length

    def tokens(self, number: int) -> int:
        return said(self.grain(number)[1])

    def padding(self) -> float:
        grains = self.epoch(0)
        return 1 - sum(map(said, grains)) / sum(map(self.size, grains))

    def _cut(self, number: int) -> tuple[Stretches, Indices]:
        # draws of its own, which have nothing to do with those that order the stretches
        return cut(self.documents, self.length, np.random.default_rng(np.random.SeedSequence([self.seed, number, 1])))


class Windows(Cuts):
    """Rows of one constant length. A stretch at the end of a document is read with what stands before it, as far as there is
    room; one at its beginning, or a short document, is filled up."""

    steady = True

    def __init__(self, documents: Stretches, length: int, tokens: int, seed: int) -> None:
        super().__init__(documents, length, tokens, seed)
        fewest = int((-(-(documents[:, 1] - documents[:, 0]) // length)).sum())
        self.rows = max(min(tokens // length, fewest), 1)
        self.about = f"windows of {length:,} tokens, cut anew in each pass,"

    def epoch(self, number: int) -> list[Indices]:
        """What does not fill a grain is left out: other windows in each epoch."""
        stretches, begins = self._cut(number)
        grains = len(stretches) // self.rows
        chosen = self._random(number).permutation(len(stretches))[: grains * self.rows]
        stretches = stretches[chosen]
        first = np.maximum(stretches[:, 1] - self.length, begins[chosen])
        room = np.full(len(chosen), self.length)
        windows = np.stack([first, stretches[:, 1], stretches[:, 0], room], axis=1)
        return list(windows.reshape(grains, self.rows, 4))

    def size(self, grain: Indices) -> int:
        return len(grain) * self.length


class Pieces(Cuts):
    """Stretches of like length in a grain, or one after another in packed rows of one shape."""

    def __init__(self, documents: Stretches, length: int, tokens: int, seed: int, packed: bool) -> None:
        super().__init__(documents, length, tokens, seed)
        self.about = (
            f"{'packed ' * packed}rows of documents and of windows up to {length:,} tokens, cut anew in each pass,"
        )
        self.packs: Packs | None = None
        if packed:
            stretches, _ = self._cut(0)
            # some epoch may have a longer one
            self.packs = Packs(np.append(stretches[:, 1] - stretches[:, 0], self.longest), self.budget, seed)
            self.steady, self.shape = True, self.packs.shape

    def epoch(self, number: int) -> list[Indices]:
        stretches, _ = self._cut(number)
        lengths = stretches[:, 1] - stretches[:, 0]
        plan: Plan | Packs
        if self.packs is None:
            plan = Plan(lengths, self.budget, self.seed)
        else:
            plan = Packs(lengths, self.budget, self.seed)
            plan.shape, plan.most = self.packs.shape, self.packs.most
        return [stretches[rows] for rows in plan.epoch(number)]

    def size(self, grain: Indices) -> int:
        if self.shape is not None:
            return self.shape.rooms[0]
        return len(grain) * int((grain[:, 1] - grain[:, 0]).max())


def said(grain: Stretches) -> int:
    """How many tokens these stretches say."""
    return int((grain[:, 1] - grain[:, 2 if grain.shape[1] > 2 else 0]).sum())


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
