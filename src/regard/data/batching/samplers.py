"""Batch samplers: the samples of each micro-batch and epoch, as a pure function of lengths, budget and seed.

All sorts are stable, because the order of ties in the default sort depends on the processor."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from regard.errors import DataError, SettingError

if TYPE_CHECKING:
    from regard.types import Batch

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BatchShape:
    """Shape that a micro-batch of packed rows is padded to."""

    row_lengths: tuple[int, ...]  # positions of the packed row, per side
    max_lengths: tuple[int, ...]  # maximum length of a document, per side, rounded up
    num_documents: int  # documents per row, including padding documents


@dataclass(frozen=True)
class PaddedShape(BatchShape):
    """Shape with one row per document instead of one packed row; all rows are padded to the length of the bucket."""


class BatchSampler:
    """Base of samplers that group samples into micro-batches within a token budget, for any number of epochs."""

    static_shape = False  # True if all micro-batches have one shape, as torch.compile and CUDA graphs require
    bucketed = False  # True if micro-batches have only a few shapes, each suitable for a CUDA graph
    shape: BatchShape | None = None  # shape of packed rows, or the largest bucket shape
    description = ""  # short description of a micro-batch for the log

    def __init__(self, lengths: npt.ArrayLike, budget: int, seed: int) -> None:
        sides = np.asarray(lengths, dtype=np.int64)
        sides = sides[:, None] if sides.ndim == 1 else sides
        if sides.ndim != 2 or (sides < 0).any():
            raise ValueError(f"lengths must be non-negative and have shape (N,) or (N, sides), got shape {sides.shape}")
        for name, least, value in (("size of a micro-batch", 1, budget), ("seed", 0, seed)):
            if value < least:
                raise SettingError(f"The {name} must be at least {least}, got {value}.")
        if not len(sides):
            raise DataError("No samples to batch.", advice="Check whether every row of the data is empty or skipped.")
        self.side_lengths, self.total_lengths, self.budget, self.seed = sides, sides.sum(1), budget, seed
        longest = int(self.total_lengths.argmax())
        if self.total_lengths[longest] > budget:
            problem = f"Sample {longest} has {self.total_lengths[longest]} tokens, but the limit of a micro-batch is {budget}."
            raise DataError(problem, advice="Raise the batch size, or truncate or remove samples of this length.")
        self._epoch_starts = [0]  # index of the first micro-batch, per epoch so far
        self._last_epoch: tuple[int, list[Indices]] | None = None

    def epoch(self, number: int) -> list[Indices]:
        """Micro-batches of one epoch in random order; each sample occurs once."""
        raise NotImplementedError

    def padded_size(self, micro_batch: Indices) -> int:
        """Number of positions of a micro-batch, including padding."""
        shape = self.shape_of(micro_batch)
        if shape is None:
            return len(micro_batch) * int(self.row_lengths(micro_batch).max())
        return sum(shape.row_lengths) * (shape.num_documents if isinstance(shape, PaddedShape) else 1)

    def shape_of(self, micro_batch: Indices) -> BatchShape | None:
        return self.shape

    def row_lengths(self, rows: Indices) -> Indices:
        """Number of tokens of each sample of a micro-batch without padding, summed over the sides."""
        return self.total_lengths[rows if rows.ndim == 1 else rows[:, 0]]

    def num_tokens(self, index: int) -> int:
        """Number of tokens of a micro-batch without padding."""
        return int(self.row_lengths(self.micro_batch(index)[1]).sum())

    def micro_batch(self, index: int) -> tuple[int, Indices]:
        """Epoch and sample indices of a micro-batch; `index` counts through all epochs.

        A jump ahead computes every epoch in between, because the number of micro-batches differs between epochs.
        """
        while self._epoch_starts[-1] <= index:
            self._epoch_starts.append(self._epoch_starts[-1] + len(self.cached_epoch(len(self._epoch_starts) - 1)))
        epoch = bisect_right(self._epoch_starts, index) - 1
        return epoch, self.cached_epoch(epoch)[index - self._epoch_starts[epoch]].copy()

    def build(self, collate: Callable[..., Batch], encoded: Any, config: Any, index: int) -> Batch:
        """Micro-batch of encoded samples, from the function `collate` of an objective."""
        _, rows = self.micro_batch(index)
        return collate(encoded, rows, config, self.shape_of(rows))

    def padding_fraction(self) -> float:
        """Fraction of padding among all positions of epoch 0."""
        epoch = self.cached_epoch(0)
        padded = sum(map(self.padded_size, epoch))
        return 1 - sum(int(self.row_lengths(rows).sum()) for rows in epoch) / padded if padded else 0.0

    def cached_epoch(self, epoch: int) -> list[Indices]:
        """Micro-batches of one epoch, computed once for the last epoch."""
        if self._last_epoch is None or self._last_epoch[0] != epoch:
            self._last_epoch = epoch, self.epoch(epoch)
        return self._last_epoch[1]


LENGTH_NOISE = 0.1


class LengthBucketed(BatchSampler):
    """Micro-batches of samples of similar length, padded to the longest; the padded size is within the budget.

    The padded size is the number of rows times the maximum length, summed over the sides (for example source and
    target); an empty row counts as 1.
    """

    def epoch(self, number: int) -> list[Indices]:
        """Micro-batches of one epoch in random order; samples of similar length are grouped differently in each epoch."""
        random = np.random.default_rng([self.seed, number])
        # The noise is proportional to the length; the 1 shuffles short samples of equal length.
        noise = (1 + LENGTH_NOISE * self.total_lengths) * random.random(len(self.total_lengths))
        order = np.argsort(self.total_lengths + noise, kind="stable")
        total = self.total_lengths[order]
        num_batches = int(total.sum()) / self.budget
        bands = int(3 * num_batches**0.5)
        if self.side_lengths.shape[1] > 1 and 2 * bands <= num_batches:
            # Neighbors with similar lengths on each side, not only in total: bands of similar total length are sorted by
            # the fraction of the first side, in alternating direction so that bands join smoothly. This removes over half
            # of the padding of sentence pairs, given hundreds of micro-batches.
            filled = np.cumsum(total)
            band = filled * bands // (filled[-1] + 1)
            share = self.side_lengths[order, 0] / np.maximum(total, 1)
            order = order[np.lexsort((np.where(band % 2, -share, share), band))]
        return _shuffle(self._split_by_budget(order), random)

    def padded_size(self, micro_batch: Indices) -> int:
        return len(micro_batch) * int(self.side_lengths[micro_batch].max(0).sum())

    def sequential(self) -> list[Indices]:
        """Micro-batches sorted by length, without randomness, for evaluation."""
        return self._split_by_budget(np.lexsort((self.side_lengths[:, 0], self.total_lengths)))

    def _split_by_budget(self, order: Indices) -> list[Indices]:
        """Split ordered samples into micro-batches, each with as many samples as the budget allows."""
        sides = self.side_lengths[order]
        # Upper bound of rows: the count that fits if all samples are as long as the first.
        most = (self.budget // np.maximum(self.total_lengths[order], 1)).tolist()
        count = np.arange(1, min(self.budget, len(order)) + 1)
        micro_batches, start = [], 0
        while start < len(order):
            peaks = np.maximum.accumulate(sides[start : start + most[start]], axis=0).sum(1)
            padded = np.maximum(peaks, 1) * count[: len(peaks)]
            end = start + int(np.searchsorted(padded, self.budget, side="right"))
            micro_batches.append(order[start:end])
            start = end
        return micro_batches


def length_batches(lengths: np.ndarray, budget: int) -> Iterator[Indices]:
    """Row indices of inference batches: rows of similar lengths, at most `budget` tokens or one row."""
    if len(lengths):
        longest = int(lengths.reshape(len(lengths), -1).sum(1).max())
        yield from LengthBucketed(lengths, max(budget, longest), seed=0).sequential()


class PackedSampler(BatchSampler):
    """Samples in random order, packed into one row of constant size per side.

    Only the end of a row is padding. All micro-batches have one `shape`, as torch.compile and CUDA graphs require.
    A row is at least as long as the longest sample, whatever the budget.
    """

    static_shape = True
    shape: BatchShape

    def __init__(self, lengths: npt.ArrayLike, budget: int, seed: int) -> None:
        super().__init__(lengths, budget, seed)
        step = 64 if budget >= 4096 else 8  # aligned sizes are faster on tensor cores
        sums, longest = self.side_lengths.sum(0), self.side_lengths.max(0)
        shares = budget * sums / max(int(sums.sum()), 1)
        sides = zip(shares, longest, strict=True)
        rooms = [max(int(share) // step, -(-int(most) // step), 1) * step for share, most in sides]
        mean = max(float(self.total_lengths.mean()), 1.0)
        # 25 % more documents than on average; the padding of a row counts as documents of at most the maximum length
        most = int(1.25 * sum(rooms) / mean) + 8
        self.max_documents = min(most, len(self.side_lengths))
        rounded = tuple(-(-max(int(side), 1) // step) * step for side in longest)
        filling = max(-(-room // side) for room, side in zip(rooms, rounded, strict=True))
        self.shape = BatchShape(tuple(rooms), rounded, -(-(self.max_documents + filling) // 8) * 8)

    def epoch(self, number: int) -> list[Indices]:
        random = np.random.default_rng([self.seed, number])
        order = np.argsort(random.random(len(self.total_lengths)), kind="stable")
        sums = np.cumsum(np.pad(self.side_lengths[order], ((1, 0), (0, 0))), axis=0).T
        micro_batches, start = [], 0
        while start < len(order):
            end = start + self.max_documents
            for filled, room in zip(sums, self.shape.row_lengths, strict=True):
                end = min(end, int(np.searchsorted(filled, filled[start] + room, side="right")) - 1)
            micro_batches.append(order[start:end])
            start = end
        return micro_batches


class FixedShape(BatchSampler):
    """Buckets of samples whose rounded lengths are equal, padded to the rounded length: micro-batches have few shapes.

    For recurrent models, whose many small kernel launches are captured in one CUDA graph per shape. Buckets with too few
    samples for a micro-batch are merged into the next larger bucket."""

    bucketed = True

    def __init__(self, lengths: npt.ArrayLike, budget: int, seed: int) -> None:
        super().__init__(lengths, budget, seed)
        # multiples of 8 up to 64, of 16 up to 128, …: adds at most a quarter to lengths above 32
        step = 2 ** np.maximum(np.ceil(np.log2(np.maximum(self.side_lengths, 1))).astype(np.int64) - 3, 3)
        # longer inputs may exceed the limit of the model
        rounded = np.minimum(self.side_lengths + -self.side_lengths % step, self.side_lengths.max(0))
        sizes, owners = np.unique(rounded, axis=0, return_inverse=True)
        joined: dict[tuple[int, ...], list[Indices]] = {}
        size, waiting, order = np.zeros_like(sizes[0]), list[Indices](), np.argsort(sizes.sum(1), kind="stable")
        for place in order:
            size = np.maximum(size, sizes[place])
            waiting.append(np.flatnonzero(owners.reshape(-1) == place))
            if sum(map(len, waiting)) * size.sum() >= budget or place == order[-1]:  # enough for a micro-batch
                joined.setdefault(tuple(size.tolist()), []).extend(waiting)
                size, waiting = np.zeros_like(size), []
        self.bucket_members = [np.sort(np.concatenate(members)) for members in joined.values()]
        self.bucket_shapes = [
            PaddedShape(longest, longest, min(max(budget // sum(longest), 1), len(members)))
            for longest, members in zip(joined, self.bucket_members, strict=True)
        ]
        self.bucket_index = np.zeros(len(self.side_lengths), dtype=np.int64)
        for number, members in enumerate(self.bucket_members):
            self.bucket_index[members] = number
        self.shape = max(self.bucket_shapes, key=lambda block: sum(block.max_lengths))
        sizes_text = f"{len(self.bucket_shapes)} sizes" if len(self.bucket_shapes) > 1 else "one size"
        self.description = f"rows padded to {sizes_text}"

    def epoch(self, number: int) -> list[Indices]:
        random = np.random.default_rng([self.seed, number])
        micro_batches: list[Indices] = []
        for block, members in zip(self.bucket_shapes, self.bucket_members, strict=True):
            mixed = members[np.argsort(random.random(len(members)), kind="stable")]
            micro_batches += np.split(mixed, range(block.num_documents, len(mixed), block.num_documents))
        return _shuffle(micro_batches, random)

    def shape_of(self, micro_batch: Indices) -> PaddedShape:
        return self.bucket_shapes[self.bucket_index[micro_batch[0]]]


class Uniform(BatchSampler):
    """Micro-batches of a constant number of samples, (rows, 2): sample index and a random seed per sample and epoch.

    The last micro-batch is completed with samples of the same epoch, so that all micro-batches have one shape."""

    static_shape = True

    def __init__(self, count: int, batch_size: int, seed: int, unit: str = "images") -> None:
        super().__init__(np.ones(count, dtype=np.int64), batch_size, seed)
        self.batch_size = min(batch_size, count)
        noun = unit.removesuffix("s") if self.batch_size == 1 else unit
        self.description = f"{self.batch_size} {noun} per micro-batch"

    def epoch(self, number: int) -> list[Indices]:
        random = np.random.default_rng([self.seed, number])
        order = np.argsort(random.random(len(self.total_lengths)), kind="stable")
        order = np.concatenate([order, order[: -len(order) % self.batch_size]])
        rows = np.stack([order, random.integers(0, 2**62, len(order))], axis=1)
        return np.split(rows, len(order) // self.batch_size)

    def num_tokens(self, index: int) -> int:
        return self.batch_size

    def sequential(self) -> list[Indices]:
        """All samples in input order, without random seeds, for evaluation."""
        return np.split(np.arange(len(self.total_lengths)), range(self.budget, len(self.total_lengths), self.budget))


class SortedUniform(Uniform):
    """`Uniform` for samples that are padded to the longest of the micro-batch: samples of similar length are grouped.

    Samples are shuffled, then sorted by length within windows of `SORT_WINDOW` micro-batches."""

    static_shape = False
    SORT_WINDOW = 16

    def __init__(self, lengths: npt.ArrayLike, batch_size: int, seed: int) -> None:
        super().__init__(len(np.asarray(lengths)), batch_size, seed)
        self.total_lengths = np.asarray(lengths, dtype=np.int64)

    def epoch(self, number: int) -> list[Indices]:
        whole = np.concatenate(super().epoch(number))
        size = self.batch_size * self.SORT_WINDOW
        parts = [whole[start : start + size] for start in range(0, len(whole), size)]
        ordered = np.concatenate([part[np.argsort(self.row_lengths(part), kind="stable")] for part in parts])
        random = np.random.default_rng([self.seed, number, 1])  # independent of the generator that shuffles samples
        return _shuffle(np.split(ordered, len(ordered) // self.batch_size), random)


def _shuffle(micro_batches: list[Indices], random: np.random.Generator) -> list[Indices]:
    return [micro_batches[place] for place in np.argsort(random.random(len(micro_batches)), kind="stable")]
