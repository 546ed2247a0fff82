"""States -> what is said about them: the heads of tasks that do not generate."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.nn.blocks.block import ACTIVATIONS, Tokens
from regard.nn.blocks.losses import read_cross_entropy
from regard.nn.blocks.norm import Norm
from regard.nn.kernels.linear import Linear, linear


class ReadOut(nn.Module):
    """Dropout, perhaps one more layer, and a matrix under the `name` of what it tells; drawn from N(0, std)."""

    def __init__(
        self, name: str, width: int, outputs: int, dropout: float, bias: bool = True, inner: str | None = None,
        std: float = 0.02,
    ) -> None:  # fmt: skip
        """`inner`: the non-linearity of the one more layer, where there is one."""
        super().__init__()
        self.dropout, self.name, self.inner = nn.Dropout(dropout), name, inner
        if inner is not None:
            self.dense = Linear(width, width)
        self.add_module(name, Linear(width, outputs, bias))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=std)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows C"]:
        x = self.dropout(x)
        if self.inner is not None:
            x = self.dropout(ACTIVATIONS[self.inner](self.dense(x)))
        return self.get_submodule(self.name)(x)


class Words(nn.Module):
    """Which token stood where one is hidden: a layer, a norm, and the matrix of the embeddings, with a bias of its own."""

    def __init__(self, width: int, table: int, vocabulary: int, activation: str = "gelu", eps: float = 1e-12) -> None:
        """`table` is the width of the embeddings."""
        super().__init__()
        self.dense, self.norm = Linear(width, table), Norm(table, eps)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.activation = ACTIVATIONS[activation]
        nn.init.normal_(self.dense.weight, std=0.02)
        nn.init.zeros_(self.dense.bias)

    def forward(self, x: Float[Tensor, "*rows D"], tokens: Tokens) -> Float[Tensor, "*rows V"]:
        return linear(self.norm(self.activation(self.dense(x))), tokens.table.weight, self.bias)

    def cross_entropy(
        self, x: Float[Tensor, "*rows D"], tokens: Tokens, labels: Int[Tensor, "*rows"], smoothing: float = 0.0
    ) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
        """(sum, count) of the loss of the same, which need not be kept to learn from it."""
        x = self.norm(self.activation(self.dense(x)))
        return read_cross_entropy(x, tokens.table.weight, self.bias, labels, smoothing)


class Hidden(nn.Module):
    """The head that BERT is pre-trained with: hidden words, and with `pairs` whether the second text follows the first."""

    def __init__(self, words: Words, width: int, pairs: bool) -> None:
        super().__init__()
        self.words, self.pairs = words, pairs
        if pairs:
            self.follows = Linear(width, 2)
            nn.init.normal_(self.follows.weight, std=0.02)
            nn.init.zeros_(self.follows.bias)
