"""From fine to coarse: which points of clouds each level keeps, who is near to whom there, and what leads back.

All this follows from the places alone. It is found once, before anything is computed, and shared by all that is computed at a
level. Shape letters: N points of all clouds, M of a coarser level, K neighbours, B clouds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.capabilities import uncompiled
from regard.nn.points.farthest_point import spread
from regard.nn.points.knn import nearest, weighed
from regard.nn.points.packing import Packing
from regard.nn.points.vector_attention import Near, gathered
from regard.types import Offsets


@dataclass(frozen=True)
class Level:
    """One fineness of all clouds."""

    names: Int[Tensor, "M"]
    """which points of the input these are"""
    near: Near
    """their neighbours among themselves"""
    clouds: Int[Tensor, "M"]
    """the cloud that each belongs to"""
    even: int
    """how many each cloud has, where that is known of all levels to be one number; else 0"""
    below: Near | None = None
    """their neighbours in the level before; None: this is the finest"""
    coarse: Int[Tensor, "N K"] | None = None
    """of each point of the level before, the nearest ones here"""
    shares: Float[Tensor, "N K"] | None = None
    """how much of each it receives"""

    def mean(self, x: Float[Tensor, "M D"], clouds: int) -> Float[Tensor, "B D"]:
        """Of the points of each cloud."""
        if self.even:
            return x.view(clouds, self.even, -1).mean(1)
        wide = x if x.dtype == torch.float64 else x.float()
        total = wide.new_zeros(clouds, x.shape[1]).index_add(0, self.clouds, wide)
        counts = torch.zeros_like(total[:, :1]).index_add(0, self.clouds, torch.ones_like(wide[:, :1]))
        return (total / counts).to(x.dtype)

    def raised(self, x: Float[Tensor, "M D"]) -> Float[Tensor, "N D"]:
        """What the points of the level before receive of these."""
        assert self.coarse is not None and self.shares is not None
        return (gathered(x, self.coarse) * self.shares.to(x.dtype)[..., None]).sum(1)


@dataclass(frozen=True)
class Survey:
    """All levels, from the finest to the coarsest, and how the points of the finest were given."""

    levels: list[Level]
    back: Int[Tensor, "N"] | None
    """where each point that was given stands in the finest level; None: in the same row"""


def survey(
    x: Float[Tensor, "N C"], offsets: Offsets, rates: Sequence[int], counts: Sequence[int], rises: bool, ordered: bool
) -> Survey:
    """Of rows that begin with places. `rates`: one point in so many is kept for each level after the first; `counts`: the
    neighbours of a point, at each. `rises`: with the way back. `ordered`: points stand by their places, not as given.

    Clouds of one size are surveyed without waiting for a device, and compiled code goes on through it; of others the sizes
    must be known first."""
    if offsets.longest * (len(offsets.starts) - 1) == len(x):
        return _surveyed(x, Packing.of(len(x), offsets), rates, counts, rises, ordered)
    return _interrupted(x, offsets, rates, counts, rises, ordered)


def _surveyed(
    x: Tensor, packing: Packing, rates: Sequence[int], counts: Sequence[int], rises: bool, ordered: bool
) -> Survey:
    names, back = torch.arange(len(x), device=x.device), None
    if ordered:
        back, names = names, in_order(x, packing)
        back = torch.empty_like(names).scatter_(0, names, back)
    places = gathered(_exact(x[:, :3]), names)
    near = near_of(places, packing, counts[0], places, packing)
    levels = [Level(names, near, packing.clouds(x.device), packing.even)]
    for rate, count in zip(rates, counts[1:], strict=True):
        few = packing.thinned(rate)
        chosen = spread(places, packing, few)
        those, names = gathered(places, chosen), names[chosen]
        near, below = near_of(those, few, count, those, few), near_of(places, packing, count, those, few)
        level = Level(names, near, few.clouds(x.device), few.even, below)
        if rises:
            coarse, shares = weighed(those, few, places, packing)
            level = replace(level, coarse=coarse, shares=shares)
        levels.append(level)
        places, packing = those, few
    return Survey(levels, back)


@uncompiled
def _interrupted(
    x: Tensor, offsets: Offsets, rates: Sequence[int], counts: Sequence[int], rises: bool, ordered: bool
) -> Survey:
    found = _surveyed(x, Packing.of(len(x), offsets), rates, counts, rises, ordered)
    # clouds of 64 and 65 points have equally many at the next level: compiled code shall not be made anew for such
    return replace(found, levels=[replace(level, even=0) for level in found.levels])


def _exact(places: Tensor) -> Tensor:
    """At least as float32: in sixteen bits neighbours would lie in one place."""
    return places.float() if places.element_size() < 4 else places


def near_of(
    places: Float[Tensor, "N 3"], packing: Packing, count: int, queries: Float[Tensor, "M 3"], asking: Packing
) -> Near:
    """The neighbours of some points, and where they stand from there."""
    index = nearest(places, packing, count, queries, asking)
    if packing.least >= index.shape[1]:
        return Near(index, gathered(places, index) - queries[:, None])
    real, index = index >= 0, index.clamp(min=0)
    return Near.of(index, gathered(places, index) - queries[:, None], real)


def in_order(x: Float[Tensor, "N C"], packing: Packing) -> Int[Tensor, "N"]:
    """Rows of each cloud by their first column, those that are equal there by the second, and so on: an order that does not
    depend on that in which they were given, but for rows that are equal in all."""
    order = torch.arange(len(x), device=x.device)
    for column in reversed(x.detach().unbind(-1)):
        order = order[column[order].argsort(stable=True)]
    if len(packing.counts) == 1:
        return order
    return order[packing.clouds(x.device)[order].argsort(stable=True)]
