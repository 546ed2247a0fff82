"""Single-head attention of recurrent models, with additive and multiplicative scores; values are the encoded context.

The context is prepared once, then queried step by step or for all steps at once.
Shape letters: B rows, Q queries, K keys, D query width, C context width, n key width, e value width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.nn.kernels.linear import Linear
from regard.nn.recording import Record, RecordedModule, recorded

ScoreName = Literal["additive", "dot", "general"]


class AdditiveScore(nn.Module):
    """v · tanh(W q + U k) (Bahdanau et al. 2014). Only the sum, tanh and v are computed per pair of query and key."""

    def __init__(self, query_width: int, key_width: int, inner: int, bias: bool = False) -> None:
        """`bias`: add a bias to U and v."""
        super().__init__()
        self.inner = inner
        self.q, self.k, self.v = (
            Linear(query_width, inner, False),
            Linear(key_width, inner, bias),
            Linear(inner, 1, bias),
        )

    def forward(self, query: Float[Tensor, "B Q D"], keys: Float[Tensor, "B K n"]) -> Float[Tensor, "B Q K"]:
        return self.v(torch.tanh(self.q(query)[:, :, None] + keys[:, None]))[..., 0]


class MultiplicativeScore(nn.Module):
    """q · k, or q · (W k) for different widths (Luong et al. 2015), unscaled."""

    def __init__(self, query_width: int, key_width: int, general: bool) -> None:
        super().__init__()
        if not general and query_width != key_width:
            raise ValueError(
                f"Dot-product attention requires query_width ({query_width}) to equal key_width ({key_width})."
            )
        self.inner = query_width
        self.k = Linear(key_width, query_width, False) if general else nn.Identity()

    def forward(self, query: Float[Tensor, "B Q D"], keys: Float[Tensor, "B K n"]) -> Float[Tensor, "B Q K"]:
        return query @ keys.mT


def make_score(name: ScoreName, query_width: int, key_width: int, inner: int) -> AdditiveScore | MultiplicativeScore:
    """Score function for the value of a setting."""
    return (
        AdditiveScore(query_width, key_width, inner)
        if name == "additive"
        else MultiplicativeScore(query_width, key_width, name == "general")
    )


@dataclass(frozen=True)
class ScoreContext:
    """Keys, values, and padding mask of a context."""

    keys: Float[Tensor, "B K n"]
    values: Float[Tensor, "B K C"]
    valid: Bool[Tensor, "B K"] | None = None

    def to_dict(self) -> dict[str, Tensor]:
        """Tensors by name, for a decoding state; inverse: `ScoreContext(**…)`."""
        return {name: tensor for name, tensor in vars(self).items() if tensor is not None}


class ScoreAttention(RecordedModule):
    """Softmax attention over the keys. Rows with padding only return 0."""

    heads: int = 1

    def __init__(self, score: AdditiveScore | MultiplicativeScore) -> None:
        super().__init__()
        self.score = score

    def prepare(self, context: Float[Tensor, "B K C"], valid: Bool[Tensor, "B K"] | None = None) -> ScoreContext:
        return ScoreContext(self.score.k(context), context, valid)

    def weights(self, query: Float[Tensor, "B Q D"], context: ScoreContext) -> Float[Tensor, "B Q K"]:
        scores = self.score(query, context.keys)
        wide = scores if scores.dtype == torch.float64 else scores.float()
        if context.valid is None:
            return wide.softmax(-1).to(scores.dtype)
        hidden = ~context.valid[:, None]
        found = wide.masked_fill(hidden, -torch.inf).softmax(-1)
        return found.masked_fill(hidden, 0.0).to(scores.dtype)  # rows with padding only are NaN after softmax

    @recorded
    def forward(
        self, query: Float[Tensor, "B Q D"], context: ScoreContext, *, record: Record | None = None
    ) -> tuple[Float[Tensor, "B Q e"], Float[Tensor, "B Q K"]]:
        """Attention output and weights."""
        weights = self.weights(query, context)
        if record is not None:
            weights = record(weights[:, None])[:, 0]
        return weights @ context.values, weights
