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

WASTE = 2
"""How many times as large a table may be in which clouds stand side by side, filled up to the largest."""


@dataclass(frozen=True)
class Packing:
    counts: tuple[int, ...]
    """points of each cloud, at least one"""

    @classmethod
    def of(cls, points: int, offsets: Offsets) -> Packing:
        """Clouds of one size are known by their number; else the device is asked once where they begin."""
        clouds = len(offsets.starts) - 1
        if clouds > 0 and offsets.longest * clouds == points and points > 0:
            return cls((offsets.longest,) * clouds)
        starts = offsets.starts.tolist()
        counts = tuple(after - before for before, after in itertools.pairwise(starts))
        if not counts or starts[0] != 0 or starts[-1] != points:
            raise ValueError(f"clouds begin at {starts[:3]}… and end at {starts[-1:]}, and {points} points were given")
        for number, count in enumerate(counts):
            if count < 1:
                raise RegardError(f"cloud {number} of the batch has no points. Leave empty clouds out.")
        return cls(counts)

    @property
    def even(self) -> int:
        """How many points each cloud has; 0 where they differ."""
        return self.counts[0] if all(count == self.counts[0] for count in self.counts) else 0

    @property
    def longest(self) -> int:
        return max(self.counts)

    @property
    def least(self) -> int:
        return min(self.counts)

    @property
    def total(self) -> int:
        return sum(self.counts)

    def thinned(self, rate: int) -> Packing:
        """One point in `rate` of each cloud, rounded down, and at least one."""
        return Packing(tuple(max(count // rate, 1) for count in self.counts))

    def starts(self, device: torch.device) -> Int[Tensor, "starts"]:
        if self.even:
            return torch.arange(len(self.counts) + 1, device=device) * self.even
        starts = [0]
        for count in self.counts:
            starts.append(starts[-1] + count)
        return torch.tensor(starts, device=device)

    def sizes(self, device: torch.device) -> Int[Tensor, "B"]:
        if self.even:
            return torch.full((len(self.counts),), self.even, device=device)
        return torch.tensor(self.counts, device=device)

    def clouds(self, device: torch.device) -> Int[Tensor, "N"]:
        """The number of the cloud that each point belongs to."""
        numbers = torch.arange(len(self.counts), device=device)
        if self.even:
            return numbers[:, None].expand(-1, self.even).reshape(-1)
        return numbers.repeat_interleave(self.sizes(device), output_size=self.total)

    def groups(self) -> Iterator[tuple[int, int]]:
        """Clouds (from, to) that may stand side by side in one table: all, or each alone where much of it would be empty."""
        if len(self.counts) * self.longest <= WASTE * self.total:
            yield 0, len(self.counts)
        else:
            yield from ((number, number + 1) for number in range(len(self.counts)))

    def part(self, first: int, last: int) -> tuple[Packing, slice]:
        """Some of the clouds, and the rows that they are."""
        before = sum(self.counts[:first])
        part = Packing(self.counts[first:last])
        return part, slice(before, before + part.total)

    def laid(self, x: Tensor) -> Tensor:
        """(N, …) -> (B, longest, …): clouds side by side; those that are smaller are filled up with points of others."""
        if self.even:
            return x.view(len(self.counts), self.even, *x.shape[1:])
        return x[self.places(x.device).clamp_(max=len(x) - 1)]

    def places(self, device: torch.device) -> Int[Tensor, "B longest"]:
        """Where the points of clouds that stand side by side lie one after another; of smaller clouds these run on."""
        return self.starts(device)[:-1, None] + torch.arange(self.longest, device=device)

    def real(self, device: torch.device) -> Tensor | None:
        """(B, longest) True where a point is; None: everywhere."""
        return None if self.even else torch.arange(self.longest, device=device) < self.sizes(device)[:, None]
