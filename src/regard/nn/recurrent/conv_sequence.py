"""Convolutional sequence-to-sequence blocks (Gehring et al. 2017).

Shape letters: B rows, L positions, Q positions of the decoder, K positions of the source, D and C widths before and
after, E embedding width. Sums of two tensors are multiplied by √½ to keep the variance.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from regard.nn.recording import keep_state, recorded
from regard.nn.recurrent.score_attention import MultiplicativeScore, ScoreAttention, ScoreContext

SQRT_HALF = math.sqrt(0.5)


class WeightNormLinear(nn.Module):
    """Linear layer with weight normalization: gain · v / |v| per row (Salimans and Kingma 2016).

    The direction v is `weight`, the length `gain`, both plain parameters; the product is computed in the forward pass only.
    Initialized with N(0, variance · (1 - dropout) / width); `dropout`: dropout of the input."""

    def __init__(self, width: int, out: int, dropout: float = 0.0, variance: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out, width).mul_(math.sqrt(variance * (1 - dropout) / width)))
        self.gain = nn.Parameter(self.weight.detach().norm(dim=1))
        self.bias = nn.Parameter(torch.zeros(out))

    def normalized_weight(self) -> Float[Tensor, "C D"]:
        return self.weight * (self.gain / torch.linalg.vector_norm(self.weight, dim=1))[:, None]

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows C"]:
        return F.linear(x, self.normalized_weight(), self.bias)


class ScaleGradient(torch.autograd.Function):
    """Identity whose gradient is multiplied by `scale`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.by = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.by, None


class ConvBlock(nn.Module):
    """(x + A ⊗ σ(B)) √½, with A and B from one convolution; causal and followed by cross-attention in a decoder.

    `x` is projected if the width changes. The convolution is a linear layer over the unfolded positions of its kernel."""

    def __init__(self, width: int, out: int, kernel: int, dropout: float, embedding: int | None = None) -> None:
        """`embedding`: embedding width of a decoder block; None: encoder block with a centered kernel."""
        super().__init__()
        self.width, self.kernel = width, kernel
        self.left_padding = (kernel - 1) // 2 if embedding is None else kernel - 1
        # a gate halves its input on average: four times the variance before the gate
        self.conv = WeightNormLinear(kernel * width, 2 * out, dropout, variance=4.0)
        self.map = nn.Identity() if width == out else WeightNormLinear(width, out)
        self.dropout = nn.Dropout(dropout)
        if embedding is not None:
            self.q, self.out = WeightNormLinear(out, embedding), WeightNormLinear(embedding, out)
            self.align = ScoreAttention(MultiplicativeScore(embedding, embedding, general=False))

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        embedded: Float[Tensor, "B L E"],
        valid: Bool[Tensor, "B L"] | None = None,
        context: ScoreContext | None = None,
        state: Float[Tensor, "B before D"] | None = None,
    ) -> Float[Tensor, "B L C"]:
        """`embedded`: embeddings of the positions. `context`: encoded source. `state`: previous inputs (decoding);
        overwritten with the inputs for the next step."""
        seen = x if valid is None else x.masked_fill(~valid[..., None], 0.0)
        seen = self.unfold(self.dropout(seen), state)
        gated = F.glu(self.conv(seen), dim=-1)
        if context is not None:
            query = (self.q(gated) + embedded) * SQRT_HALF
            looked, _ = self.align(query, context)
            gated = (self.out(looked) + gated) * SQRT_HALF
        return (gated + self.map(x)) * SQRT_HALF

    def unfold(
        self, x: Float[Tensor, "B L D"], past: Float[Tensor, "B before D"] | None
    ) -> Float[Tensor, "B L {self.kernel}*{self.width}"]:
        """Concatenate the positions of the kernel for each position, with zero padding at the ends."""
        if self.kernel == 1:
            return x
        length = x.shape[1]
        if past is None:
            x = F.pad(x, (0, 0, self.left_padding, self.kernel - 1 - self.left_padding))
        else:
            x = torch.cat([past, x], 1)
            past.copy_(x[:, length:])
        return torch.cat([x[:, place : place + length] for place in range(self.kernel)], -1)


class ConvStack(nn.Module):
    """Projection from the embedding width, convolution blocks, and output projection."""

    def __init__(
        self, embedding: int, stages: Sequence[tuple[int, int]], out: int, dropout: float, cross: bool = False
    ) -> None:
        """`stages`: width and kernel size of each block. `cross`: decoder with cross-attention."""
        super().__init__()
        widths = [stages[0][0], *(width for width, _ in stages)]
        self.into = WeightNormLinear(embedding, widths[0], dropout)
        self.blocks = nn.ModuleList(
            ConvBlock(before, width, kernel, dropout, embedding if cross else None)
            for before, (width, kernel) in zip(widths, stages, strict=False)
        )
        self.out = WeightNormLinear(widths[-1], out)

    @recorded
    def forward(
        self,
        x: Float[Tensor, "B L E"],
        valid: Bool[Tensor, "B L"] | None = None,
        context: ScoreContext | None = None,
        states: Sequence[Tensor | None] | None = None,
        taps: Collection[int] = (),
    ) -> tuple[Float[Tensor, "B L O"], tuple[Tensor, ...]]:
        """Final states, and the states after the blocks with the indices `taps`."""
        embedded, x, tapped = x, keep_state(self, self.into(x)), []
        for number, block in enumerate(self.blocks):
            x = keep_state(self, block(x, embedded, valid, context, None if states is None else states[number]))
            if number in taps:
                tapped.append(x)
        return self.out(x), tuple(tapped)

    @property
    def state_size(self) -> int:
        """Values per row of `initial_states`."""
        blocks: Any = self.blocks
        return sum((block.kernel - 1) * block.width for block in blocks)

    def initial_states(self, rows: int, like: Tensor) -> dict[str, Tensor]:
        """Zero states by block index, for blocks with a kernel size above 1."""
        blocks: Any = self.blocks
        return {
            str(number): like.new_zeros(rows, block.kernel - 1, block.width)
            for number, block in enumerate(blocks)
            if block.kernel > 1
        }
