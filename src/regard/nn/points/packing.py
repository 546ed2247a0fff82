"""Packed point clouds of different sizes, and squared distances of points.

The points of all point clouds are concatenated. Sizes are Python integers, so that shapes follow without synchronizing
with the device. Shape letters: B point clouds, N points of all point clouds.

The formula |a|² + |b|² - 2 a·b is faster, but loses most digits far from the origin. Here differences are squared and
summed in the order x, y, z, so that all devices and search algorithms compute the same numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import RegardError
from regard.types import Offsets

MAX_PADDING_FACTOR = 2
"""Maximum ratio of padded size to packed size for processing point clouds in one padded batch."""


@dataclass(frozen=True)
class CloudSizes:
    counts: tuple[int, ...]
    """Points of each point cloud, at least one."""

    @classmethod
    def from_offsets(cls, num_points: int, offsets: Offsets) -> CloudSizes:
        """Sizes from offsets. Reads the offsets from the device only if the point clouds have different sizes."""
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
        """Points per point cloud if all are equal, else 0."""
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
        """Sizes after keeping one of `stride` points of each point cloud, rounded down, at least one."""
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
        """Point cloud of each point."""
        numbers = torch.arange(len(self.counts), device=device)
        if self.uniform_size:
            return numbers[:, None].expand(-1, self.uniform_size).reshape(-1)
        return numbers.repeat_interleave(self.sizes(device), output_size=self.total)

    def batch_groups(self) -> Iterator[tuple[int, int]]:
        """Ranges of point clouds to pad together: all, or each separately if padding would exceed MAX_PADDING_FACTOR."""
        if len(self.counts) * self.max_size <= MAX_PADDING_FACTOR * self.total:
            yield 0, len(self.counts)
        else:
            yield from ((number, number + 1) for number in range(len(self.counts)))

    def subset(self, first: int, last: int) -> tuple[CloudSizes, slice]:
        """Sizes of the point clouds first … last - 1, and the rows of their points."""
        before = sum(self.counts[:first])
        part = CloudSizes(self.counts[first:last])
        return part, slice(before, before + part.total)

    def pad(self, x: Tensor) -> Tensor:
        """(N, …) -> (B, longest, …); padding consists of points of other point clouds."""
        if self.uniform_size:
            return x.view(len(self.counts), self.uniform_size, *x.shape[1:])
        return x[self.padded_index(x.device).clamp_(max=len(x) - 1)]

    def padded_index(self, device: torch.device) -> Int[Tensor, "B longest"]:
        """Row of each point of a padded batch; padding has the rows that follow."""
        return self.starts(device)[:-1, None] + torch.arange(self.max_size, device=device)

    def valid_mask(self, device: torch.device) -> Tensor | None:
        """(B, longest) False at padding; None: no padding."""
        return None if self.uniform_size else torch.arange(self.max_size, device=device) < self.sizes(device)[:, None]


INDEX_BITS = 2**32 - 1


def to_search_dtype(points: Tensor) -> Tensor:
    """Points as float64 if they are float64, else as float32."""
    return points.detach().to(torch.float64 if points.dtype == torch.float64 else torch.float32)


def squared_distance(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> Tensor:
    """Squared distances of points given as (x, y, z), with broadcasting."""
    total = (a[0] - b[0]).square_()
    for one, other in zip(a[1:], b[1:], strict=True):
        total += (one - other).square_()
    return total


def smallest_k(
    distances: Float[Tensor, "*rows n"], k: int, indices: Int[Tensor, "*#rows n"]
) -> tuple[Float[Tensor, "*rows k"], Int[Tensor, "*rows k"]]:
    """The k smallest distances of each row, ascending, and their indices; ties are ordered by index.

    Distances are not negative, so their bits have the same order: bits and index form one integer key, and all keys differ."""
    if distances.dtype == torch.float64:  # no spare bits for the index
        indices = indices.expand_as(distances)
        indices, order = indices.sort(-1)
        found, again = distances.gather(-1, order).sort(dim=-1, stable=True)
        return found[..., :k], indices.gather(-1, again[..., :k])
    keys = distances.contiguous().view(torch.int32).to(torch.int64).bitwise_left_shift_(32).bitwise_or_(indices)
    best = keys.topk(k, largest=False).values
    return (best >> 32).to(torch.int32).view(torch.float32), best & INDEX_BITS
