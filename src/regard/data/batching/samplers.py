"""The plan of batches: which samples go together, in every epoch, as a pure function of lengths, budget and seed."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from regard.errors import DataError, SettingError

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BatchShape:
    """What a grain of packed rows is filled up to."""

    row_lengths: tuple[int, ...]
    """positions of the row, on each side"""
    max_lengths: tuple[int, ...]
    """of a document, on each side, rounded up"""
    num_documents: int
    """in a row, those that only fill it up included"""


@dataclass(frozen=True)
class PaddedShape(BatchShape):
    """Not one packed row, but a row for each document, all padded to the longest, so that many grains have one shape."""


class BatchSampler:
    """Samples in grains that fit a budget of tokens, epoch after epoch; how they are grouped is the subclass's affair."""

    static_shape = False
    """whether all grains have one shape, so that compiled or captured code sees one"""
    bucketed = False
    """whether grains have few shapes, each of which can be recorded"""
    shape: BatchShape | None = None
    """of packed rows, or the largest that grains are filled up to"""
    description = ""
    """what grains are, in a few words, where there is something to say about it"""

    def __init__(self, lengths: npt.ArrayLike, budget: int, seed: int) -> None:
        sides = np.asarray(lengths, dtype=np.int64)
        sides = sides[:, None] if sides.ndim == 1 else sides
        if sides.ndim != 2 or (sides < 0).any():
            raise ValueError(f"lengths must be non-negative and have shape (N,) or (N, sides), got shape {sides.shape}")
        if budget < 1:
            raise SettingError(f"The size of a micro-batch must be at least 1, got {budget}.")
        if seed < 0:
            raise SettingError(f"The seed must be at least 0, got {seed}.")
        if not len(sides):
            raise DataError("No samples to batch.", advice="Check whether every row of the data is empty or skipped.")
        self.side_lengths, self.total_lengths, self.budget, self.seed = sides, sides.sum(1), budget, seed
        longest = int(self.total_lengths.argmax())
        if self.total_lengths[longest] > budget:
            problem = f"Sample {longest} has {self.total_lengths[longest]} tokens, but the limit of a micro-batch is {budget}."
            raise DataError(problem, advice="Raise the batch size, or truncate or remove samples of this length.")
        self._epoch_starts = [0]  # the number of the first grain of each epoch counted so far
        self._last_epoch: tuple[int, list[Indices]] | None = None

    def epoch(self, number: int) -> list[Indices]:
        """Every sample once, in grains of random order."""
        raise NotImplementedError

    def padded_size(self, micro_batch: Indices) -> int:
        """The positions that are computed for a grain, padding included."""
        raise NotImplementedError

    def shape_of(self, micro_batch: Indices) -> BatchShape | None:
        return self.shape

    def num_tokens(self, index: int) -> int:
        """Real tokens of a grain, all sides together."""
        return int(self.total_lengths[self.micro_batch(index)[1]].sum())

    def micro_batch(self, index: int) -> tuple[int, Indices]:
        """The epoch and the samples of a grain, counted on through the epochs.

        A jump ahead works through the epochs between, because each has its own number of grains; they are then known.
        """
        if index < 0:
            raise IndexError(f"micro-batch index must be at least 0, got {index}")
        while self._epoch_starts[-1] <= index:
            self._epoch_starts.append(self._epoch_starts[-1] + len(self._cached_epoch(len(self._epoch_starts) - 1)))
        epoch = bisect_right(self._epoch_starts, index) - 1
        return epoch, self._cached_epoch(epoch)[index - self._epoch_starts[epoch]].copy()

    def padding_fraction(self) -> float:
        """The share of padded positions in epoch 0."""
        padded = sum(map(self.padded_size, self.epoch(0)))
        return 1 - int(self.total_lengths.sum()) / padded if padded else 0.0

    def _cached_epoch(self, epoch: int) -> list[Indices]:
        if self._last_epoch is None or self._last_epoch[0] != epoch:
            self._last_epoch = epoch, self.epoch(epoch)
        return self._last_epoch[1]

    def _rng(self, epoch: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence([self.seed, epoch]))


class LengthBucketed(BatchSampler):
    """Samples of similar length together, padded to the longest; the padded size of a grain stays within the budget.

    The padded size of a grain is its number of rows times its longest length, summed over the sides (source and
    target, say); a row without length counts as 1.
    """

    def __init__(self, lengths: npt.ArrayLike, budget: int, seed: int, noise: float = 0.1) -> None:
        super().__init__(lengths, budget, seed)
        if noise < 0:
            raise SettingError(f"Length noise must be at least 0, got {noise}.")
        self.noise = noise

    def epoch(self, number: int) -> list[Indices]:
        """Every sample once, in grains of random order. Neighbours in length mix anew in each epoch."""
        random = self._rng(number)
        # The noise mixes lengths in proportion; the 1 shuffles samples of the same length even without noise.
        jittered = self.total_lengths + (1 + self.noise * self.total_lengths) * random.random(len(self.total_lengths))
        grains = self._split_by_budget(self._balance_sides(_stable_argsort(jittered)))
        return [grains[place] for place in _stable_argsort(random.random(len(grains)))]

    def padded_size(self, micro_batch: Indices) -> int:
        return len(micro_batch) * int(self.side_lengths[micro_batch].max(0).sum())

    def sequential(self) -> list[Indices]:
        """Every sample once, by length and without chance, for evaluation."""
        return self._split_by_budget(np.lexsort((self.side_lengths[:, 0], self.total_lengths)))

    def _balance_sides(self, order: Indices) -> Indices:
        """Bring together samples that are alike on each side, not in total only.

        Bands of similar total are each sorted by the share of the first side, to and fro so that bands join smoothly.
        Hundreds of grains of sentence pairs keep less than half of their padding so; a few are too few to form bands.
        """
        total = self.total_lengths[order]
        grains = int(total.sum()) / self.budget
        bands = int(3 * grains**0.5)
        if self.side_lengths.shape[1] == 1 or 2 * bands > grains:
            return order
        filled = np.cumsum(total)
        band = filled * bands // (filled[-1] + 1)
        share = self.side_lengths[order, 0] / np.maximum(total, 1)
        return order[np.lexsort((np.where(band % 2, -share, share), band))]

    def _split_by_budget(self, order: Indices) -> list[Indices]:
        """Cut an order of the samples wherever one more would exceed the budget."""
        sides = self.side_lengths[order]
        # No grain has more rows than would fit if all were as long as its first.
        most = (self.budget // np.maximum(self.total_lengths[order], 1)).tolist()
        count = np.arange(1, min(self.budget, len(order)) + 1)
        grains = []
        start = 0
        while start < len(order):
            peaks = np.maximum.accumulate(sides[start : start + most[start]], axis=0).sum(1)
            padded = np.maximum(peaks, 1) * count[: len(peaks)]
            end = start + int(np.searchsorted(padded, self.budget, side="right"))
            grains.append(order[start:end])
            start = end
        return grains


class PackedSampler(BatchSampler):
    """Samples one after another in a row of constant size on each side, in an order of pure chance.

    Nothing is padded to its neighbours; what is left at the end of a row is filled up. All grains have one `shape`, so
    that compiled or captured code sees one. A row has room for the longest sample at least, whatever the budget.
    """

    static_shape = True
    shape: BatchShape

    def __init__(self, lengths: npt.ArrayLike, budget: int, seed: int) -> None:
        super().__init__(lengths, budget, seed)
        step = 64 if budget >= 4096 else 8  # matrix units like multiples
        sums, longest = self.side_lengths.sum(0), self.side_lengths.max(0)
        shares = budget * sums / max(int(sums.sum()), 1)
        rooms = [
            max(int(share) // step, -(-int(most) // step), 1) * step
            for share, most in zip(shares, longest, strict=True)
        ]
        mean = max(float(self.total_lengths.mean()), 1.0)
        # a quarter more than on average, and some for what fills the rest of a row, in pieces no longer than the longest
        most = int(1.25 * sum(rooms) / mean) + 8
        self.max_documents = min(most, len(self.side_lengths))
        rounded = tuple(-(-max(int(side), 1) // step) * step for side in longest)
        filling = max(-(-room // side) for room, side in zip(rooms, rounded, strict=True))
        self.shape = BatchShape(tuple(rooms), rounded, -(-(self.max_documents + filling) // 8) * 8)

    def epoch(self, number: int) -> list[Indices]:
        random = self._rng(number)
        order = _stable_argsort(random.random(len(self.total_lengths)))
        sums = np.concatenate(
            [np.zeros((1, self.side_lengths.shape[1]), dtype=np.int64), np.cumsum(self.side_lengths[order], axis=0)]
        )
        grains, start = [], 0
        while start < len(order):
            ends = [
                np.searchsorted(sums[:, i], sums[start, i] + room, side="right") - 1
                for i, room in enumerate(self.shape.row_lengths)
            ]
            end = min(*map(int, ends), start + self.max_documents)
            grains.append(order[start:end])
            start = end
        return grains

    def padded_size(self, micro_batch: Indices) -> int:
        return sum(self.shape.row_lengths)


class FixedShape(BatchSampler):
    """Samples whose lengths round up to the same numbers go together, padded to those: grains have few shapes.

    For bodies that go from token to token, whose many small launches are worth recording, once for each shape. Sizes of which
    there are too few samples for a grain join the next larger ones."""

    bucketed = True

    def __init__(self, lengths: npt.ArrayLike, budget: int, seed: int) -> None:
        super().__init__(lengths, budget, seed)
        rounded = np.minimum(
            self.side_lengths + -self.side_lengths % _rounding_step(self.side_lengths), self.side_lengths.max(0)
        )  # a body may read no more
        sizes, owners = np.unique(rounded, axis=0, return_inverse=True)
        joined: dict[tuple[int, ...], list[Indices]] = {}
        size, waiting = np.zeros_like(sizes[0]), list[Indices]()
        for place in np.argsort(sizes.sum(1), kind="stable"):
            size = np.maximum(size, sizes[place])
            waiting.append(np.flatnonzero(owners.reshape(-1) == place))
            if sum(map(len, waiting)) * size.sum() >= budget:  # they fill a grain
                joined.setdefault(tuple(size.tolist()), []).extend(waiting)
                size, waiting = np.zeros_like(size), []
        if waiting:
            joined.setdefault(tuple(size.tolist()), []).extend(waiting)
        self.bucket_members = [np.sort(np.concatenate(found)) for found in joined.values()]
        self.bucket_shapes = [
            PaddedShape(longest, longest, min(max(budget // sum(longest), 1), len(found)))
            for longest, found in zip(joined, self.bucket_members, strict=True)
        ]
        self.bucket_index = np.zeros(len(self.side_lengths), dtype=np.int64)
        for number, members in enumerate(self.bucket_members):
            self.bucket_index[members] = number
        self.shape = max(self.bucket_shapes, key=lambda block: sum(block.max_lengths))
        self.description = (
            f"rows padded to {len(self.bucket_shapes)} sizes"
            if len(self.bucket_shapes) > 1
            else "rows padded to one size"
        )

    def epoch(self, number: int) -> list[Indices]:
        random = self._rng(number)
        grains: list[Indices] = []
        for block, members in zip(self.bucket_shapes, self.bucket_members, strict=True):
            mixed = members[_stable_argsort(random.random(len(members)))]
            grains += np.split(mixed, range(block.num_documents, len(mixed), block.num_documents))
        return [grains[place] for place in _stable_argsort(random.random(len(grains)))]

    def shape_of(self, micro_batch: Indices) -> PaddedShape:
        return self.bucket_shapes[self.bucket_index[micro_batch[0]]]

    def padded_size(self, micro_batch: Indices) -> int:
        block = self.shape_of(micro_batch)
        return block.num_documents * sum(block.max_lengths)


def _rounding_step(lengths: Indices) -> Indices:
    """8 up to 64, 16 up to 128, 32 up to 256, …: at most a quarter is added to any length above 32."""
    return 2 ** np.maximum(np.ceil(np.log2(np.maximum(lengths, 1))).astype(np.int64) - 3, 3)


class Uniform(BatchSampler):
    """As many samples in every grain, each beside a number of chance that is its own in this epoch: (rows, 2).

    What is left over at the end of an epoch is filled up with samples of the same epoch, so that all grains have one shape."""

    static_shape = True

    def __init__(self, count: int, batch_size: int, seed: int, unit: str = "images") -> None:
        super().__init__(np.ones(count, dtype=np.int64), batch_size, seed)
        self.batch_size = min(batch_size, count)
        self.description = (
            f"{self.batch_size} {unit.removesuffix('s') if self.batch_size == 1 else unit} per micro-batch"
        )

    def epoch(self, number: int) -> list[Indices]:
        random = self._rng(number)
        order = _stable_argsort(random.random(len(self.total_lengths)))
        short = -len(order) % self.batch_size
        order = np.concatenate([order, order[:short]])
        chance = random.integers(0, 2**62, len(order))
        return np.split(np.stack([order, chance], axis=1), len(order) // self.batch_size)

    def padded_size(self, micro_batch: Indices) -> int:
        return len(micro_batch)

    def num_tokens(self, index: int) -> int:
        return self.batch_size

    def padding_fraction(self) -> float:
        return 0.0

    def sequential(self) -> list[Indices]:
        """Every sample once, in order and without chance, for evaluation."""
        return np.split(np.arange(len(self.total_lengths)), range(self.budget, len(self.total_lengths), self.budget))


class SortedUniform(Uniform):
    """The same of samples that are filled up to the longest of their grain: those of like lengths go together.

    Lengths are put in order among some grains at a time, whose samples are chosen by chance."""

    static_shape = False
    SORT_WINDOW = 16
    """grains"""

    def __init__(self, lengths: npt.ArrayLike, batch_size: int, seed: int) -> None:
        self.lengths = np.asarray(lengths, dtype=np.int64)
        super().__init__(len(self.lengths), batch_size, seed)

    def epoch(self, number: int) -> list[Indices]:
        whole = np.concatenate(super().epoch(number))
        size = self.batch_size * self.SORT_WINDOW
        parts = [whole[start : start + size] for start in range(0, len(whole), size)]
        ordered = np.concatenate([part[np.argsort(self.lengths[part[:, 0]], kind="stable")] for part in parts])
        grains = np.split(ordered, len(ordered) // self.batch_size)
        random = np.random.default_rng([self.seed, number, 1])  # other numbers than samples were chosen by
        return [grains[place] for place in _stable_argsort(random.random(len(grains)))]

    def padding_fraction(self) -> float:
        grains = [self.lengths[grain[:, 0]] for grain in self.epoch(0)]
        padded = sum(len(grain) * int(grain.max()) for grain in grains)
        return 1 - sum(int(grain.sum()) for grain in grains) / padded if padded else 0.0


def _stable_argsort(keys: npt.NDArray[np.float64]) -> Indices:
    # Stable, because the default sort breaks ties differently on different processors.
    return np.argsort(keys, kind="stable")
