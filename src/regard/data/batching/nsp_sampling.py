"""The rows that an encoder is pre-trained on, in every epoch: a stretch of a document, or two that may follow each other.

A part is what stands together of a document: all of it, or what is left between passages that were taken out. Each is cut
into stretches of the room anew in each epoch, at a place of chance. For pairs a stretch is divided at a place of chance too;
in half of them what stands behind it is exchanged for as much of another document, and what stood there is not read in that
epoch. A part or a stretch that is too short to be divided is left out.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from regard.data.batching.samplers import BatchSampler, Indices, LengthBucketed, PackedSampler
from regard.data.batching.windows import cut_windows
from regard.errors import DataError
from regard.types import IGNORE

Segments = npt.NDArray[np.int64]
"""(N, 3) the first token, the one behind the last, and the number of the document; in the order of the text"""
SegmentPairs = npt.NDArray[np.int64]
"""(N, 5) the first text from … to …, the second from … to … (nothing where they are equal), and whether it follows: 0 it
does, 1 it does not, `IGNORE` nobody knows; grains have the seed and the number of the grain behind that"""

MAX_DRAWS = 8
"""draws for a text of the right length; after them a shorter one will do"""


def count_documents(segments: Segments) -> int:
    return len(np.unique(segments[:, 2]))


def single_segments(segments: Segments, max_length: int, rng: np.random.Generator) -> SegmentPairs:
    """All of the text, in stretches."""
    stretches, _ = cut_windows(segments[:, :2], max_length, rng)
    none = np.zeros((len(stretches), 3), dtype=np.int64)
    return np.concatenate([stretches, none], axis=1)


def segment_pairs(segments: Segments, max_length: int, rng: np.random.Generator) -> SegmentPairs:
    """Each text with its successor, or with another; where there is one document only, with its successor, and nothing is
    said about it."""
    stretches, begins = cut_windows(segments[:, :2], max_length, rng)
    long = stretches[:, 1] - stretches[:, 0] > 1
    stretches, own = stretches[long], segments[np.searchsorted(segments[:, 0], begins[long])]
    middle = stretches[:, 0] + rng.integers(1, np.maximum(stretches[:, 1] - stretches[:, 0], 2))
    rows = np.stack([stretches[:, 0], middle, middle, stretches[:, 1], np.zeros_like(middle)], axis=1)
    if count_documents(segments) < 2:
        rows[:, 4] = IGNORE
        return rows
    other = rng.random(len(rows)) < 0.5
    rows[other, 4] = 1
    last = stretches[:, 1] == own[:, 1]
    rows[other, 2:4] = sample_negatives(segments, own[other, 2], (stretches[:, 1] - middle)[other], last[other], rng)
    return rows


def sample_negatives(
    segments: Segments, own: Indices, sizes: Indices, last: npt.NDArray[np.bool_], rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """(N, 2) for each a stretch of that size in another document than its own, every place of the text as likely.

    Nothing but what is said there shall tell it from the successor: it is shorter only where nothing as long was found, and
    where the successor is the `last` of its part, it is that of another."""
    ends = np.cumsum(segments[:, 1] - segments[:, 0])
    starts = ends - (segments[:, 1] - segments[:, 0])
    # parts of a document stand side by side: the text without them is what is before and what is behind
    first, behind = (np.searchsorted(segments[:, 2], own, side=side) for side in ("left", "right"))
    before, inside = starts[first], ends[behind - 1] - starts[first]
    found, left = np.zeros((len(own), 2), dtype=np.int64), np.arange(len(own))
    for _ in range(MAX_DRAWS):
        place = rng.integers(0, ends[-1] - inside[left])
        place += np.where(place >= before[left], inside[left], 0)
        part = np.searchsorted(ends, place, side="right")
        begin, end = segments[part, 0], segments[part, 1]
        latest = end - sizes[left]
        within = (place - starts[part]) * (latest - begin + 1) // (end - begin)
        start = np.maximum(np.where(last[left], latest, begin + within), begin)
        found[left] = np.stack([start, np.minimum(start + sizes[left], end)], axis=1)
        left = left[latest < begin]
    return found


class PretrainingSampler(BatchSampler):
    """Rows of like length in a grain, or one after another in packed rows of one shape. `around` are the special tokens of a
    row, which reads `length` tokens at most."""

    def __init__(
        self, segments: Segments, length: int, num_special: int, tokens: int, seed: int, packed: bool, paired: bool
    ) -> None:
        segments = segments[segments[:, 1] - segments[:, 0] > paired]
        if not len(segments):
            raise DataError("No text to train on: no document has two tokens.", advice="Add text.")
        if paired and count_documents(segments) < 2:
            raise DataError(
                "Next-sentence prediction needs at least two documents, because negatives come from other documents.",
                advice="Put each document in a separate file, or in a separate row of JSONL or Parquet; "
                "or disable next-sentence prediction: --set model.nsp=false",
            )
        self.segments, self.max_text_tokens, self.num_special, self.paired = (
            segments,
            length - num_special,
            num_special,
            paired,
        )
        longest = min(length, int((segments[:, 1] - segments[:, 0]).max()) + num_special)
        super().__init__(np.array([longest]), tokens, seed)
        self.description = f"{'packed ' * packed}rows of {'text pairs' if paired else 'texts'} up to {length:,} tokens,"
        self.packed_sampler: PackedSampler | None = None
        if packed:  # some epoch may have a longer one
            self.packed_sampler = PackedSampler(
                np.append(self.row_lengths(self.epoch_rows(0)), longest), self.budget, seed
            )
            self.static_shape, self.shape = True, self.packed_sampler.shape

    def epoch_rows(self, number: int) -> SegmentPairs:
        # draws of its own, which have nothing to do with those that order the rows
        random = np.random.default_rng(np.random.SeedSequence([self.seed, number, 1]))
        return (segment_pairs if self.paired else single_segments)(self.segments, self.max_text_tokens, random)

    def row_lengths(self, rows: SegmentPairs) -> Indices:
        return rows[:, 1] - rows[:, 0] + rows[:, 3] - rows[:, 2] + self.num_special

    def epoch(self, number: int) -> list[Indices]:
        rows = self.epoch_rows(number)
        plan: LengthBucketed | PackedSampler
        if self.packed_sampler is None:
            plan = LengthBucketed(self.row_lengths(rows), self.budget, self.seed)
        else:
            plan = PackedSampler(self.row_lengths(rows), self.budget, self.seed)
            plan.shape, plan.max_documents = self.packed_sampler.shape, self.packed_sampler.max_documents
        return [rows[chosen] for chosen in plan.epoch(number)]

    def micro_batch(self, number: int) -> tuple[int, Indices]:
        """With the seed and the number behind each row: what is hidden in it follows from them."""
        epoch, rows = super().micro_batch(number)
        return epoch, np.concatenate([rows, np.broadcast_to([self.seed, number], (len(rows), 2))], axis=1)

    def padded_size(self, micro_batch: Indices) -> int:
        return (
            self.shape.row_lengths[0]
            if self.shape is not None
            else len(micro_batch) * int(self.row_lengths(micro_batch).max())
        )

    def num_tokens(self, number: int) -> int:
        return int(self.row_lengths(self.micro_batch(number)[1]).sum())

    def padding_fraction(self) -> float:
        grains = self.epoch(0)
        return 1 - sum(int(self.row_lengths(grain).sum()) for grain in grains) / sum(map(self.padded_size, grains))
