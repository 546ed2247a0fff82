"""The gated cell of Cho and Bahdanau (2014), which is not torch's GRU: r is inside the product, and z takes what is new.

    z, r = σ(W x + U h)      h̃ = tanh(W x + U (r ∘ h))      h' = (1 − z) ∘ h + z ∘ h̃

No fused kernel computes it. What is read does not depend on the states, so its products are made for all steps at once; in the
loop there are two matrix products a step. Shape letters: B rows, L steps, E width of what is read, W width of the states.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.nn.kernels.linear import Linear, linear

LinearMap = Callable[[Tensor], Tensor]


class GRUCell(nn.Module):
    """`given(x)` are the products of what is read, of z, r and h̃; called with them, it is one step."""

    def __init__(self, input_width: int, width: int, bias: bool = True) -> None:
        super().__init__()
        self.given = Linear(input_width, 3 * width, bias)
        self.gates, self.new = nn.Parameter(torch.empty(2 * width, width)), nn.Parameter(torch.empty(width, width))
        for square in (*self.gates.chunk(2), self.new):
            nn.init.orthogonal_(square)

    def forward(self, projected: Float[Tensor, "B three_W"], h: Float[Tensor, "B W"]) -> Float[Tensor, "B W"]:
        return _gru_step(projected, h, lambda x: linear(x, self.gates), lambda x: linear(x, self.new))


def _gru_step(given: Tensor, h: Tensor, gates: LinearMap, new: LinearMap, real: Tensor | None = None) -> Tensor:
    """Where a row is not `real` its state stays."""
    W = h.shape[-1]
    of_gates, of_new = torch.split(given, [2 * W, W], -1)  # slices would each have a gradient of the whole
    z, r = (of_gates + gates(h)).sigmoid().chunk(2, -1)
    made = (of_new + new(r * h)).tanh()
    return h + (z if real is None else z * real) * (made - h)


class BidirectionalGRU(nn.Module):
    """Two cells read a row, one from its beginning and one from its end; every place has the states of both.

    Both go through one loop, so that a step is as many operations as that of one."""

    def __init__(self, input_width: int, width: int, bias: bool = True) -> None:
        super().__init__()
        self.onward, self.back = GRUCell(input_width, width, bias), GRUCell(input_width, width, bias)

    def forward(
        self, x: Float[Tensor, "B L E"], valid: Bool[Tensor, "B L"] | None = None
    ) -> tuple[Float[Tensor, "B L two_W"], Float[Tensor, "B W"]]:
        """[onward | back] at every place, and the state at the beginning of those that came back."""
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
