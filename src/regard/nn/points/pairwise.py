"""How far points are from each other, and which are the nearest: exactly, with nobody's place squared by itself.

|a|² + |b|² - 2 a·b is faster, and wrong far from the origin, where most digits go to the squares. Here differences are taken
first and axes are added in one order, x, y, z, so that every device and every way of searching finds the same numbers.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

INDEX_BITS = 2**32 - 1


def to_search_dtype(points: Tensor) -> Tensor:
    """In the precision that distances are compared in: float64 where it is so already, else float32."""
    return points.detach().to(torch.float64 if points.dtype == torch.float64 else torch.float32)


def squared_distance(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> Tensor:
    """(x, y, z) of some and of others, which broadcast -> squared distances."""
    total = (a[0] - b[0]).square_()
    for one, other in zip(a[1:], b[1:], strict=True):
        total += (one - other).square_()
    return total


def smallest_k(
    distances: Float[Tensor, "*rows n"], k: int, indices: Int[Tensor, "*#rows n"]
) -> tuple[Float[Tensor, "*rows k"], Int[Tensor, "*rows k"]]:
    """The `count` smallest of each row in rising order, and their names; of equal ones the lowest names go first.

    Distances are never negative, so their bits rise with them: with the name behind them they are one whole number, and no
    two are equal."""
    if distances.dtype == torch.float64:  # has no bits to spare
        indices = indices.expand_as(distances)
        indices, order = indices.sort(-1)
        found, again = distances.gather(-1, order).sort(dim=-1, stable=True)
        return found[..., :k], indices.gather(-1, again[..., :k])
    keys = distances.contiguous().view(torch.int32).to(torch.int64).bitwise_left_shift_(32).bitwise_or_(indices)
    best = keys.topk(k, largest=False).values
    return (best >> 32).to(torch.int32).view(torch.float32), best & INDEX_BITS
