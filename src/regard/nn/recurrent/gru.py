"""Gated cell of Cho et al. and Bahdanau et al. (2014). In contrast to `torch.nn.GRU`, r is inside the product and z
weights h̃.

    z, r = σ(W x + U h)      h̃ = tanh(W x + U (r ∘ h))      h' = (1 − z) ∘ h + z ∘ h̃

No fused kernel exists. Input products are computed for all steps at once; the loop has two matrix products per step.
Shape letters: B rows, L steps, E input width, W hidden size.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.nn.kernels.linear import Linear, linear

LinearMap = Callable[[Tensor], Tensor]


class GRUCell(nn.Module):
    """One step from `given(x)`, the input products of z, r and h̃."""

    def __init__(self, input_width: int, width: int, bias: bool = True) -> None:
        super().__init__()
        self.given = Linear(input_width, 3 * width, bias)
        self.gates, self.new = nn.Parameter(torch.empty(2 * width, width)), nn.Parameter(torch.empty(width, width))
        for square in (*self.gates.chunk(2), self.new):
            nn.init.orthogonal_(square)

    def forward(self, projected: Float[Tensor, "B three_W"], h: Float[Tensor, "B W"]) -> Float[Tensor, "B W"]:
        return _gru_step(projected, h, lambda x: linear(x, self.gates), lambda x: linear(x, self.new))


def _gru_step(given: Tensor, h: Tensor, gates: LinearMap, new: LinearMap, real: Tensor | None = None) -> Tensor:
    """New state; rows with `real` 0 keep their state."""
    W = h.shape[-1]
    of_gates, of_new = torch.split(given, [2 * W, W], -1)  # each slice would have a gradient of full size
    z, r = (of_gates + gates(h)).sigmoid().chunk(2, -1)
    made = (of_new + new(r * h)).tanh()
    return h + (z if real is None else z * real) * (made - h)


class BidirectionalGRU(nn.Module):
    """Two cells, one forward and one backward; the outputs are concatenated.

    Both cells run in one loop, with as many operators per step as one cell."""

    def __init__(self, input_width: int, width: int, bias: bool = True) -> None:
        super().__init__()
        self.onward, self.back = GRUCell(input_width, width, bias), GRUCell(input_width, width, bias)

    def forward(
        self, x: Float[Tensor, "B L E"], valid: Bool[Tensor, "B L"] | None = None
    ) -> tuple[Float[Tensor, "B L two_W"], Float[Tensor, "B W"]]:
        """[forward | backward] states at every position, and the backward state at the first position."""
        B = len(x)
        gates = torch.stack([self.onward.gates, self.back.gates]).mT
        new = torch.stack([self.onward.new, self.back.new]).mT
        given = torch.stack([self.onward.given(x), self.back.given(x).flip(1)])
        marks = None if valid is None else torch.stack([valid, valid.flip(1)])[..., None].to(given.dtype)
        h, states = x.new_zeros(2, B, gates.shape[1]), []
        for at, now in enumerate(given.unbind(2)):
            h = _gru_step(now, h, lambda x: x @ gates, lambda x: x @ new, None if marks is None else marks[:, :, at])
            states.append(h)
        onward, back = torch.stack(states, 2)
        return torch.cat([onward, back.flip(1)], -1), h[1]
