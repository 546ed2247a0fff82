"""What an LSTM does with its gates once their sums are known, in whatever order a file has them."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor

Order = Literal["ifgo", "ifog"]
"""Of the four parts of the rows: in, forget, new (g) and out; torch has the first, Xu et al. 2015 the second."""


def gated(
    sums: Float[Tensor, "*rows four_n"], memory: Float[Tensor, "*rows n"], order: Order = "ifgo"
) -> tuple[Float[Tensor, "*rows n"], Float[Tensor, "*rows n"]]:
    """The new state and the new memory: f · memory + i · g, and o · tanh of that."""
    part = dict(zip(order, sums.chunk(4, -1), strict=True))
    memory = part["f"].sigmoid() * memory + part["i"].sigmoid() * part["g"].tanh()
    return part["o"].sigmoid() * memory.tanh(), memory
