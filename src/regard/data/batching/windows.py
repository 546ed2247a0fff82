"""Training windows of long texts, cut from a token stream at new positions in each epoch.

A window is (first, last): tokens first … last - 1 are the inputs, tokens first + 1 … last are the targets. No window
crosses a document boundary. A token is the target of at most one window per epoch.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from regard.data.batching.samplers import BatchSampler, Indices, LengthBucketed, PackedSampler
from regard.errors import DataError

TokenRanges = npt.NDArray[np.int64]
"""(N, 2) first, last; or (N, 4) with the start of the scored part and the minimum row length"""

MAX_PADDING, MAX_PADDING_PACKED = 1 / 8, 1 / 20
"""Maximum fraction of padding for rows of fixed length; lower if packing, which avoids padding, is available."""


def make_window_sampler(documents: TokenRanges, length: int, tokens: int, seed: int, packed: bool) -> BatchSampler:
    """`FixedWindows` if the expected padding is small, else `VariableWindows`.

    Data with fixed windows under `packed=True` also has fixed windows under `packed=False`: a run can resume with either."""
    documents = documents[documents[:, 1] > documents[:, 0]]
    if not len(documents):
        raise DataError("No text to train on: no document has two tokens.", advice="Add text.")
    if expected_padding(documents, length) <= (MAX_PADDING_PACKED if packed else MAX_PADDING):
        return FixedWindows(documents, length, tokens, seed)
    return VariableWindows(documents, length, tokens, seed, packed)


def expected_padding(documents: TokenRanges, length: int) -> float:
    """Expected fraction of padding if each window has a row of `length` tokens, averaged over all offsets."""
    sizes = documents[:, 1] - documents[:, 0]
    rows = np.where(sizes <= length, 1.0, (sizes + length - 1) / length)
    return 1 - float(sizes.sum()) / (float(rows.sum()) * length)


def cut_windows(documents: TokenRanges, length: int, rng: np.random.Generator) -> tuple[TokenRanges, Indices]:
    """Windows of at most `length` tokens that cover all documents, and the document start of each window.

    Longer documents are cut at a random offset, so that the first and the last window can be shorter."""
    first, last = documents[:, 0], documents[:, 1]
    start = first - np.where(last - first <= length, 0, rng.integers(0, length, len(documents)))
    counts = -(-(last - start) // length)
    which = np.repeat(np.arange(len(documents)), counts)
    place = start[which] + length * (np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts))
    begins = first[which]
    return np.stack([np.maximum(place, begins), np.minimum(place + length, last[which])], axis=1), begins


class WindowSampler(BatchSampler):
    """Base of samplers that cut documents at new positions in each epoch."""

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
        # independent of the generator that orders the windows
        return cut_windows(
            self.documents, self.length, np.random.default_rng(np.random.SeedSequence([self.seed, number, 1]))
        )


class FixedWindows(WindowSampler):
    """Rows of one fixed length. The last window of a document is extended backward by context tokens without loss; the
    first window and short documents are padded."""

    static_shape = True

    def __init__(self, documents: TokenRanges, length: int, tokens: int, seed: int) -> None:
        super().__init__(documents, length, tokens, seed)
        fewest = int((-(-(documents[:, 1] - documents[:, 0]) // length)).sum())
        self.batch_size = max(min(tokens // length, fewest), 1)
        self.description = f"windows of {length:,} tokens, cut at new positions in each epoch,"

    def epoch(self, number: int) -> list[Indices]:
        """Shuffled micro-batches; windows that do not fill a micro-batch are dropped, different windows in each epoch."""
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
    """Windows of similar length per micro-batch, or packed into rows of one shape."""

    def __init__(self, documents: TokenRanges, length: int, tokens: int, seed: int, packed: bool) -> None:
        super().__init__(documents, length, tokens, seed)
        self.description = (
            f"{'packed ' * packed}rows of documents and windows up to {length:,} tokens, "
            "cut at new positions in each epoch,"
        )
        self.packed_sampler: PackedSampler | None = None
        if packed:
            stretches, _ = self._cut_epoch(0)
            # a later epoch may have a longer window
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
    """Number of target tokens of the windows."""
    return int((micro_batch[:, 1] - micro_batch[:, 2 if micro_batch.shape[1] > 2 else 0]).sum())


def sliding_windows(documents: TokenRanges, length: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Yield (first, last, start of the scored part) for evaluation; each token is scored once.

    Windows start `stride` tokens apart; in an overlap only the earlier window scores the tokens."""
    for first, last in documents.tolist():
        said = first
        start = first
        while said < last:
            end = min(start + length, last)
            yield start, end, said
            said, start = end, start + stride
