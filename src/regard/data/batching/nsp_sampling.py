"""Rows for the pretraining of encoders: one window of a document, or two texts for next-sentence prediction (NSP).

A segment is a contiguous part of a document: the whole document, or the text between held-out passages. Each epoch cuts
all segments into windows at random offsets. For NSP, each window is divided at a random position; in half of the windows
the second text is replaced by a text of the same length from another document, and the replaced text is not used in that
epoch. Segments and windows too short to be divided are skipped.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from regard.data.batching.samplers import BatchSampler, Indices, LengthBucketed, PackedSampler
from regard.data.batching.windows import cut_windows
from regard.errors import DataError
from regard.types import IGNORE

Segments = npt.NDArray[np.int64]
"""(N, 3) start, end (exclusive) and document number, in text order"""
SegmentPairs = npt.NDArray[np.int64]
"""(N, 5) start and end of the first text, start and end of the second text (equal: no second text), and the NSP label: 0
next text, 1 random text, `IGNORE` unlabeled. `PretrainingSampler.micro_batch` appends the seed and the index."""

MAX_DRAWS = 8
"""draws for a negative of the requested length; then a shorter negative is accepted"""


def count_documents(segments: Segments) -> int:
    return len(np.unique(segments[:, 2]))


def single_segments(segments: Segments, max_length: int, rng: np.random.Generator) -> SegmentPairs:
    """Windows of all segments, without second texts."""
    stretches, _ = cut_windows(segments[:, :2], max_length, rng)
    none = np.zeros((len(stretches), 3), dtype=np.int64)
    return np.concatenate([stretches, none], axis=1)


def segment_pairs(segments: Segments, max_length: int, rng: np.random.Generator) -> SegmentPairs:
    """Pairs of a text and the next text (label 0) or a random text (label 1), each with probability 0.5.

    With a single document, all pairs have the next text and the label `IGNORE`."""
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
    """Start and end of random windows outside the documents `own`, (N, 2), uniform over all tokens of the text.

    Only the content should distinguish a negative from the next text: a negative is shorter than `sizes` only if no
    draw was long enough, and if the next text ends its segment (`last`), the negative ends a segment too."""
    ends = np.cumsum(segments[:, 1] - segments[:, 0])
    starts = ends - (segments[:, 1] - segments[:, 0])
    # segments of a document are contiguous, so all other text is before or after them
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
    """Pretraining rows of similar length per micro-batch, or packed into rows of one shape.

    A row has at most `length` tokens, including `num_special` special tokens."""

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
        if packed:  # a later epoch may have a longer row
            self.packed_sampler = PackedSampler(
                np.append(self.row_lengths(self.epoch_rows(0)), longest), self.budget, seed
            )
            self.static_shape, self.shape = True, self.packed_sampler.shape

    def epoch_rows(self, number: int) -> SegmentPairs:
        # independent of the generator that orders the rows
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
        """Epoch and rows; seed and index are appended to each row, because the masked tokens are derived from them."""
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
