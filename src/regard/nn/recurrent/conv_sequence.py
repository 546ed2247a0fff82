"""Convolutions over a text (Gehring et al. 2017): a place sees a few neighbours, a stack of blocks sees far.

Shape letters: B rows, L places, Q places of the decoder, K places of the source, D and C widths before and after, E width of
the embeddings. Every sum of two things of one size is multiplied by √½, so that the states keep their variance.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from regard.nn.recurrent.score_attention import MultiplicativeScore, ScoreAttention, ScoreContext

SQRT_HALF = math.sqrt(0.5)


class WeightNormLinear(nn.Module):
    """A linear layer whose rows have a direction and a length of their own: gain · v / |v| (Salimans and Kingma 2016).

    The direction is `weight`, the length `gain`, both plain parameters: nothing is computed but in the forward pass."""

    def __init__(self, width: int, out: int, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out, width).mul_(std))
        self.gain = nn.Parameter(self.weight.detach().norm(dim=1))
        self.bias = nn.Parameter(torch.zeros(out))

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows C"]:
        lengths = torch.linalg.vector_norm(self.weight, dim=1)
        return F.linear(x, self.weight * (self.gain / lengths)[:, None], self.bias)


def weight_norm_linear(width: int, out: int, dropout: float = 0.0) -> WeightNormLinear:
    """As layers begin that no gate follows: N(0, kept / width), where this share of what they read is dropped."""
    return WeightNormLinear(width, out, math.sqrt((1 - dropout) / width))


class ScaleGradient(torch.autograd.Function):
    """x itself; its gradient is multiplied by a number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.by = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.by, None


@dataclass(frozen=True)
class DecoderContext:
    """What every block of a decoder looks at, and the embeddings of what it has read, which the queries are near to."""

    context: ScoreContext
    target_embeddings: Float[Tensor, "B Q E"]


class ConvBlock(nn.Module):
    """(x + A ⊗ σ(B)) √½ with A and B of one convolution. A decoder's sees back only, and looks at the source in between.

    `x` is mapped where the width changes. The matrix of the convolution reads the places of its kernel side by side."""

    def __init__(self, width: int, out: int, kernel: int, dropout: float, embedding: int | None = None) -> None:
        """`embedding`: the width of what a decoder looks at; None: an encoder's block, which sees to both sides."""
        super().__init__()
        self.width, self.kernel, self.has_cross_attention = width, kernel, embedding is not None
        self.left_padding = kernel - 1 if self.has_cross_attention else (kernel - 1) // 2
        # a gate halves what it lets through: four times the variance before it
        self.conv = WeightNormLinear(kernel * width, 2 * out, math.sqrt(4 * (1 - dropout) / (kernel * width)))
        self.map = nn.Identity() if width == out else weight_norm_linear(width, out)
        self.dropout = nn.Dropout(dropout)
        if embedding is not None:
            self.q, self.out = weight_norm_linear(out, embedding), weight_norm_linear(embedding, out)
            self.align = ScoreAttention(MultiplicativeScore(embedding, embedding, general=False))

    def forward(
        self, x: Float[Tensor, "B L D"], valid: Bool[Tensor, "B L"] | None = None, source: DecoderContext | None = None,
        state: Float[Tensor, "B before D"] | None = None,
    ) -> Float[Tensor, "B L C"]:  # fmt: skip
        """`past`: what was read before x, where that is known; what comes after this is written over it."""
        seen = x if valid is None else x.masked_fill(~valid[..., None], 0.0)
        seen = self.unfold(self.dropout(seen), state)
        gated = F.glu(self.conv(seen), dim=-1)
        if source is not None:
            query = (self.q(gated) + source.target_embeddings) * SQRT_HALF
            looked, _ = self.align(query, source.context)
            gated = (self.out(looked) + gated) * SQRT_HALF
        return (gated + self.map(x)) * SQRT_HALF

    def unfold(
        self, x: Float[Tensor, "B L D"], past: Float[Tensor, "B before D"] | None
    ) -> Float[Tensor, "B L {self.kernel}*{self.width}"]:
        """Each place with its neighbours; beyond the ends there are zeros."""
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
    """From the width of the embeddings to that of the convolutions, through the blocks, and out again."""

    def __init__(
        self, embedding: int, stages: Sequence[tuple[int, int]], out: int, dropout: float, cross: bool = False
    ) -> None:
        """`stages`: width and kernel of each block. `cross` makes it a decoder's."""
        super().__init__()
        widths = [stages[0][0], *(width for width, _ in stages)]
        self.into = weight_norm_linear(embedding, widths[0], dropout)
        self.blocks = nn.ModuleList(
            ConvBlock(before, width, kernel, dropout, embedding if cross else None)
            for before, (width, kernel) in zip(widths, stages, strict=False)
        )
        self.out = weight_norm_linear(widths[-1], out)

    def forward(
        self, x: Float[Tensor, "B L E"], valid: Bool[Tensor, "B L"] | None = None, source: DecoderContext | None = None,
        states: Sequence[Tensor | None] | None = None, taps: Collection[int] = (),
    ) -> tuple[Float[Tensor, "B L O"], tuple[Tensor, ...]]:  # fmt: skip
        """The last states, and those after the blocks numbered in `taps`."""
        x, tapped = self.into(x), []
        for number, block in enumerate(self.blocks):
            x = block(x, valid, source, None if states is None else states[number])
            if number in taps:
                tapped.append(x)
        return self.out(x), tuple(tapped)

    @property
    def state_size(self) -> int:
        """That `pasts` are of a row."""
        blocks: Any = self.blocks
        return sum((block.kernel - 1) * block.width for block in blocks)

    def initial_states(self, rows: int, like: Tensor) -> dict[str, Tensor]:
        """By the number of their block, what rows keep that have read nothing yet; none of blocks that see one place."""
        blocks: Any = self.blocks
        return {
            str(number): like.new_zeros(rows, block.kernel - 1, block.width)
            for number, block in enumerate(blocks)
            if block.kernel > 1
        }
