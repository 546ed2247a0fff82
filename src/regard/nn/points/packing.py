"""Clouds of different sizes in one table: the points of all, one after another, and how many each has.

The numbers are Python's, so that sizes of later tables follow from them and no device is waited for. Shape letters: B clouds,
N points of all of them together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from regard.errors import RegardError
from regard.types import Offsets

MAX_PADDING_FACTOR = 2
"""How many times as large a table may be in which clouds stand side by side, filled up to the largest."""


@dataclass(frozen=True)
class CloudSizes:
    counts: tuple[int, ...]
    """points of each cloud, at least one"""

    @classmethod
    def from_offsets(cls, num_points: int, offsets: Offsets) -> CloudSizes:
        """Clouds of one size are known by their number; else the device is asked once where they begin."""
        clouds = len(offsets.starts) - 1
        if clouds > 0 and offsets.max_length * clouds == num_points and num_points > 0:
            return cls((offsets.max_length,) * clouds)
        starts = offsets.starts.tolist()
        counts = tuple(after - before for before, after in itertools.pairwise(starts))
        if not counts or starts[0] != 0 or starts[-1] != num_points:
            raise ValueError(
                f"Offsets {starts[:3]} … {starts[-1:]} of the point clouds do not match {num_points} points."
            )
        for number, count in enumerate(counts):
            if count < 1:
                raise RegardError(f"Point cloud {number} of the batch has no points. Remove empty point clouds.")
        return cls(counts)

    @property
    def uniform_size(self) -> int:
        """How many points each cloud has; 0 where they differ."""
        return self.counts[0] if all(count == self.counts[0] for count in self.counts) else 0

    @property
    def max_size(self) -> int:
        return max(self.counts)

    @property
    def min_size(self) -> int:
        return min(self.counts)

    @property
    def total(self) -> int:
        return sum(self.counts)

    def downsampled(self, stride: int) -> CloudSizes:
        """One point in `rate` of each cloud, rounded down, and at least one."""
        return CloudSizes(tuple(max(count // stride, 1) for count in self.counts))

    def starts(self, device: torch.device) -> Int[Tensor, "starts"]:
        if self.uniform_size:
            return torch.arange(len(self.counts) + 1, device=device) * self.uniform_size
        starts = [0]
        for count in self.counts:
            starts.append(starts[-1] + count)
        return torch.tensor(starts, device=device)

    def sizes(self, device: torch.device) -> Int[Tensor, "B"]:
        if self.uniform_size:
            return torch.full((len(self.counts),), self.uniform_size, device=device)
        return torch.tensor(self.counts, device=device)

    def cloud_index(self, device: torch.device) -> Int[Tensor, "N"]:
        """The number of the cloud that each point belongs to."""
        numbers = torch.arange(len(self.counts), device=device)
        if self.uniform_size:
            return numbers[:, None].expand(-1, self.uniform_size).reshape(-1)
        return numbers.repeat_interleave(self.sizes(device), output_size=self.total)

    def batch_groups(self) -> Iterator[tuple[int, int]]:
        """Clouds (from, to) that may stand side by side in one table: all, or each alone where much of it would be empty."""
        if len(self.counts) * self.max_size <= MAX_PADDING_FACTOR * self.total:
            yield 0, len(self.counts)
        else:
            yield from ((number, number + 1) for number in range(len(self.counts)))

    def subset(self, first: int, last: int) -> tuple[CloudSizes, slice]:
        """Some of the clouds, and the rows that they are."""
        before = sum(self.counts[:first])
        part = CloudSizes(self.counts[first:last])
        return part, slice(before, before + part.total)

    def pad(self, x: Tensor) -> Tensor:
        """(N, …) -> (B, longest, …): clouds side by side; those that are smaller are filled up with points of others."""
        if self.uniform_size:
            return x.view(len(self.counts), self.uniform_size, *x.shape[1:])
        return x[self.padded_index(x.device).clamp_(max=len(x) - 1)]

    def padded_index(self, device: torch.device) -> Int[Tensor, "B longest"]:
        """Where the points of clouds that stand side by side lie one after another; of smaller clouds these run on."""
        return self.starts(device)[:-1, None] + torch.arange(self.max_size, device=device)

    def valid_mask(self, device: torch.device) -> Tensor | None:
        """(B, longest) True where a point is; None: everywhere."""
        return None if self.uniform_size else torch.arange(self.max_size, device=device) < self.sizes(device)[:, None]
