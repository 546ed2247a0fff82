"""The rows that an encoder is pre-trained on, in every epoch: a stretch of a document, or two that may follow each other.

A part is what stands together of a document: all of it, or what is left between passages that were taken out. Each is cut
into stretches of the room anew in each epoch, at a place of chance. For pairs a stretch is divided at a place of chance too;
in half of them what stands behind it is exchanged for as much of another document, and what stood there is not read in that
epoch. A part or a stretch that is too short to be divided is left out.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from regard.data.batching.samplers import Epochs, Indices, Packs, Plan
from regard.data.batching.windows import cut
from regard.errors import DataError
from regard.types import IGNORE

Parts = npt.NDArray[np.int64]
"""(N, 3) the first token, the one behind the last, and the number of the document; in the order of the text"""
Rows = npt.NDArray[np.int64]
"""(N, 5) the first text from … to …, the second from … to … (nothing where they are equal), and whether it follows: 0 it
does, 1 it does not, `IGNORE` nobody knows; grains have the seed and the number of the grain behind that"""

TRIES = 8
"""draws for a text of the right length; after them a shorter one will do"""


def documents_of(parts: Parts) -> int:
    return len(np.unique(parts[:, 2]))


def singles(parts: Parts, room: int, random: np.random.Generator) -> Rows:
    """All of the text, in stretches."""
    stretches, _ = cut(parts[:, :2], room, random)
    none = np.zeros((len(stretches), 3), dtype=np.int64)
    return np.concatenate([stretches, none], axis=1)


def pairs(parts: Parts, room: int, random: np.random.Generator) -> Rows:
    """Each text with its successor, or with another; where there is one document only, with its successor, and nothing is
    said about it."""
    stretches, begins = cut(parts[:, :2], room, random)
    long = stretches[:, 1] - stretches[:, 0] > 1
    stretches, own = stretches[long], parts[np.searchsorted(parts[:, 0], begins[long])]
    middle = stretches[:, 0] + random.integers(1, np.maximum(stretches[:, 1] - stretches[:, 0], 2))
    rows = np.stack([stretches[:, 0], middle, middle, stretches[:, 1], np.zeros_like(middle)], axis=1)
    if documents_of(parts) < 2:
        rows[:, 4] = IGNORE
        return rows
    other = random.random(len(rows)) < 0.5
    rows[other, 4] = 1
    last = stretches[:, 1] == own[:, 1]
    rows[other, 2:4] = elsewhere(parts, own[other, 2], (stretches[:, 1] - middle)[other], last[other], random)
    return rows


def elsewhere(
    parts: Parts, own: Indices, sizes: Indices, last: npt.NDArray[np.bool_], random: np.random.Generator
) -> npt.NDArray[np.int64]:
    """(N, 2) for each a stretch of that size in another document than its own, every place of the text as likely.

    Nothing but what is said there shall tell it from the successor: it is shorter only where nothing as long was found, and
    where the successor is the `last` of its part, it is that of another."""
    ends = np.cumsum(parts[:, 1] - parts[:, 0])
    starts = ends - (parts[:, 1] - parts[:, 0])
    # parts of a document stand side by side: the text without them is what is before and what is behind
    first, behind = (np.searchsorted(parts[:, 2], own, side=side) for side in ("left", "right"))
    before, inside = starts[first], ends[behind - 1] - starts[first]
    found, left = np.zeros((len(own), 2), dtype=np.int64), np.arange(len(own))
    for _ in range(TRIES):
        place = random.integers(0, ends[-1] - inside[left])
        place += np.where(place >= before[left], inside[left], 0)
        part = np.searchsorted(ends, place, side="right")
        begin, end = parts[part, 0], parts[part, 1]
        latest = end - sizes[left]
        within = (place - starts[part]) * (latest - begin + 1) // (end - begin)
        start = np.maximum(np.where(last[left], latest, begin + within), begin)
        found[left] = np.stack([start, np.minimum(start + sizes[left], end)], axis=1)
        left = left[latest < begin]
    return found


class Readings(Epochs):
    """Rows of like length in a grain, or one after another in packed rows of one shape. `around` are the special tokens of a
    row, which reads `length` tokens at most."""

    def __init__(
        self, parts: Parts, length: int, around: int, tokens: int, seed: int, packed: bool, paired: bool
    ) -> None:
        parts = parts[parts[:, 1] - parts[:, 0] > paired]
        if not len(parts):
            raise DataError("there is no text to learn from: no document has two tokens.", advice="Add text.")
        if paired and documents_of(parts) < 2:
            raise DataError(
                "whether one text follows another cannot be learnt from a single document: the text that does not follow is "
                "one of another document.",
                advice="Give each document a file, or a row of JSONL or Parquet, of its own; or do without: "
                "--set model.pairs=false",
            )
        self.parts, self.room, self.around, self.paired = parts, length - around, around, paired
        longest = min(length, int((parts[:, 1] - parts[:, 0]).max()) + around)
        super().__init__(np.array([longest]), tokens, seed)
        self.about = f"{'packed ' * packed}rows of {'two texts' if paired else 'texts'} up to {length:,} tokens,"
        self.packs: Packs | None = None
        if packed:  # some epoch may have a longer one
            self.packs = Packs(np.append(self.lengths(self.rows(0)), longest), self.budget, seed)
            self.steady, self.shape = True, self.packs.shape

    def rows(self, number: int) -> Rows:
        # draws of its own, which have nothing to do with those that order the rows
        random = np.random.default_rng(np.random.SeedSequence([self.seed, number, 1]))
        return (pairs if self.paired else singles)(self.parts, self.room, random)

    def lengths(self, rows: Rows) -> Indices:
        return rows[:, 1] - rows[:, 0] + rows[:, 3] - rows[:, 2] + self.around

    def epoch(self, number: int) -> list[Indices]:
        rows = self.rows(number)
        plan: Plan | Packs
        if self.packs is None:
            plan = Plan(self.lengths(rows), self.budget, self.seed)
        else:
            plan = Packs(self.lengths(rows), self.budget, self.seed)
            plan.shape, plan.most = self.packs.shape, self.packs.most
        return [rows[chosen] for chosen in plan.epoch(number)]

    def grain(self, number: int) -> tuple[int, Indices]:
        """With the seed and the number behind each row: what is hidden in it follows from them."""
        epoch, rows = super().grain(number)
        return epoch, np.concatenate([rows, np.broadcast_to([self.seed, number], (len(rows), 2))], axis=1)

    def size(self, grain: Indices) -> int:
        return self.shape.rooms[0] if self.shape is not None else len(grain) * int(self.lengths(grain).max())

    def tokens(self, number: int) -> int:
        return int(self.lengths(self.grain(number)[1]).sum())

    def padding(self) -> float:
        grains = self.epoch(0)
        return 1 - sum(int(self.lengths(grain).sum()) for grain in grains) / sum(map(self.size, grains))
