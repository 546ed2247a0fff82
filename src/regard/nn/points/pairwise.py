"""Squared distances and the nearest points, with the same rounding everywhere.

The formula |a|² + |b|² - 2 a·b is faster, but loses most digits far from the origin. Here differences are squared and
summed in the order x, y, z, so that all devices and search algorithms compute the same numbers.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

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
