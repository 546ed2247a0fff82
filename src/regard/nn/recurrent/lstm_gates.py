"""LSTM cell from the sums of its gates, for several gate orders."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor

GateOrder = Literal["ifgo", "ifog"]
"""Order of the gates in the rows: input, forget, candidate (g), output. PyTorch uses the first, Xu et al. 2015 the second."""


def lstm_cell(
    gates: Float[Tensor, "*rows four_n"], cell: Float[Tensor, "*rows n"], order: GateOrder = "ifgo"
) -> tuple[Float[Tensor, "*rows n"], Float[Tensor, "*rows n"]]:
    """New hidden state o · tanh(c), and new cell c = f · cell + i · g."""
    part = dict(zip(order, gates.chunk(4, -1), strict=True))
    cell = part["f"].sigmoid() * cell + part["i"].sigmoid() * part["g"].tanh()
    return part["o"].sigmoid() * cell.tanh(), cell
