"""Windows of long texts: which stretches of a stream of tokens are learnt from, in every epoch.

A stretch is (first, last): the tokens first … last - 1 are read, and first + 1 … last are to be said. None crosses from one
document into another. An epoch cuts every document anew and says each of its tokens once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from regard.data.batching.samplers import BatchSampler, Indices, LengthBucketed, PackedSampler
from regard.errors import DataError

TokenRanges = npt.NDArray[np.int64]
"""(N, 2) first, last; or (N, 4) with the place from which on it says something, and the positions that its row has at least"""

MAX_PADDING, MAX_PADDING_PACKED = 1 / 8, 1 / 20
"""Share of positions that rows of one length may leave unsaid; and where rows can be packed, which leaves none."""


def make_window_sampler(documents: TokenRanges, length: int, tokens: int, seed: int, packed: bool) -> BatchSampler:
    """Rows of one length each, where documents are long or few of them are short; else pieces of like length together, or
    packed. What is planned for packed rows in the first way is planned so for others too: a run may go on with either."""
    documents = documents[documents[:, 1] > documents[:, 0]]
    if not len(documents):
        raise DataError("No text to train on: no document has two tokens.", advice="Add text.")
    if expected_padding(documents, length) <= (MAX_PADDING_PACKED if packed else MAX_PADDING):
        return FixedWindows(documents, length, tokens, seed)
    return VariableWindows(documents, length, tokens, seed, packed)


def expected_padding(documents: TokenRanges, length: int) -> float:
    """The share of positions that say nothing when every stretch has a row of `length`: its mean over all ways to cut."""
    sizes = documents[:, 1] - documents[:, 0]
    rows = np.where(sizes <= length, 1.0, (sizes + length - 1) / length)
    return 1 - float(sizes.sum()) / (float(rows.sum()) * length)


def cut_windows(documents: TokenRanges, length: int, rng: np.random.Generator) -> tuple[TokenRanges, Indices]:
    """All documents as stretches of `length`, which begin at a place of chance in each document that is longer: its first
    stretch and its last are shorter then. Also where the document of each stretch begins."""
    first, last = documents[:, 0], documents[:, 1]
    start = first - np.where(last - first <= length, 0, rng.integers(0, length, len(documents)))
    counts = -(-(last - start) // length)
    which = np.repeat(np.arange(len(documents)), counts)
    place = start[which] + length * (np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts))
    begins = first[which]
    return np.stack([np.maximum(place, begins), np.minimum(place + length, last[which])], axis=1), begins


class WindowSampler(BatchSampler):
    """Documents that are cut anew in each epoch."""

    def __init__(self, documents: TokenRanges, length: int, tokens: int, seed: int) -> None:
        self.max_length = min(length, int((documents[:, 1] - documents[:, 0]).max()))
        super().__init__(np.array([self.max_length]), max(tokens, length), seed)
        self.documents, self.length = documents, length

    def num_tokens(self, number: int) -> int:
        return count_targets(self.micro_batch(number)[1])

    def padding_fraction(self) -> float:
        grains = self.epoch(0)
        return 1 - sum(map(count_targets, grains)) / sum(map(self.padded_size, grains))

    def _cut_epoch(self, number: int) -> tuple[TokenRanges, Indices]:
        # draws of its own, which have nothing to do with those that order the stretches
        return cut_windows(
            self.documents, self.length, np.random.default_rng(np.random.SeedSequence([self.seed, number, 1]))
        )


class FixedWindows(WindowSampler):
    """Rows of one constant length. A stretch at the end of a document is read with what stands before it, as far as there is
    room; one at its beginning, or a short document, is filled up."""

    static_shape = True

    def __init__(self, documents: TokenRanges, length: int, tokens: int, seed: int) -> None:
        super().__init__(documents, length, tokens, seed)
        fewest = int((-(-(documents[:, 1] - documents[:, 0]) // length)).sum())
        self.batch_size = max(min(tokens // length, fewest), 1)
        self.description = f"windows of {length:,} tokens, cut at new positions in each epoch,"

    def epoch(self, number: int) -> list[Indices]:
        """What does not fill a grain is left out: other windows in each epoch."""
        stretches, begins = self._cut_epoch(number)
        grains = len(stretches) // self.batch_size
        chosen = self._rng(number).permutation(len(stretches))[: grains * self.batch_size]
        stretches = stretches[chosen]
        first = np.maximum(stretches[:, 1] - self.length, begins[chosen])
        room = np.full(len(chosen), self.length)
        windows = np.stack([first, stretches[:, 1], stretches[:, 0], room], axis=1)
        return list(windows.reshape(grains, self.batch_size, 4))

    def padded_size(self, micro_batch: Indices) -> int:
        return len(micro_batch) * self.length


class VariableWindows(WindowSampler):
    """Stretches of like length in a grain, or one after another in packed rows of one shape."""

    def __init__(self, documents: TokenRanges, length: int, tokens: int, seed: int, packed: bool) -> None:
        super().__init__(documents, length, tokens, seed)
        self.description = (
            f"{'packed ' * packed}rows of documents and windows up to {length:,} tokens, "
            "cut at new positions in each epoch,"
        )
        self.packed_sampler: PackedSampler | None = None
        if packed:
            stretches, _ = self._cut_epoch(0)
            # some epoch may have a longer one
            self.packed_sampler = PackedSampler(
                np.append(stretches[:, 1] - stretches[:, 0], self.max_length), self.budget, seed
            )
            self.static_shape, self.shape = True, self.packed_sampler.shape

    def epoch(self, number: int) -> list[Indices]:
        stretches, _ = self._cut_epoch(number)
        lengths = stretches[:, 1] - stretches[:, 0]
        plan: LengthBucketed | PackedSampler
        if self.packed_sampler is None:
            plan = LengthBucketed(lengths, self.budget, self.seed)
        else:
            plan = PackedSampler(lengths, self.budget, self.seed)
            plan.shape, plan.max_documents = self.packed_sampler.shape, self.packed_sampler.max_documents
        return [stretches[rows] for rows in plan.epoch(number)]

    def padded_size(self, micro_batch: Indices) -> int:
        if self.shape is not None:
            return self.shape.row_lengths[0]
        return len(micro_batch) * int((micro_batch[:, 1] - micro_batch[:, 0]).max())


def count_targets(micro_batch: TokenRanges) -> int:
    """How many tokens these stretches say."""
    return int((micro_batch[:, 1] - micro_batch[:, 2 if micro_batch.shape[1] > 2 else 0]).sum())


def sliding_windows(documents: TokenRanges, length: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Each document from its beginning, for evaluation: (first, last, scored from). Every token is said once.

    Windows begin `stride` apart; those that overlap the one before say only what it did not."""
    for first, last in documents.tolist():
        said = first
        start = first
        while said < last:
            end = min(start + length, last)
            yield start, end, said
            said, start = end, start + stride
