"""What an LSTM does with its gates once their sums are known, in whatever order a file has them."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor

GateOrder = Literal["ifgo", "ifog"]
"""Of the four parts of the rows: in, forget, new (g) and out; torch has the first, Xu et al. 2015 the second."""


def lstm_cell(
    gates: Float[Tensor, "*rows four_n"], cell: Float[Tensor, "*rows n"], order: GateOrder = "ifgo"
) -> tuple[Float[Tensor, "*rows n"], Float[Tensor, "*rows n"]]:
    """The new state and the new memory: f · memory + i · g, and o · tanh of that."""
    part = dict(zip(order, gates.chunk(4, -1), strict=True))
    cell = part["f"].sigmoid() * cell + part["i"].sigmoid() * part["g"].tanh()
    return part["o"].sigmoid() * cell.tanh(), cell
