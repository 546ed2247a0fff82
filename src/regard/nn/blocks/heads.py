"""Heads of tasks that do not generate text: classification, masked language modeling, pretraining."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.nn.blocks.block import ACTIVATIONS, TokenEmbedding
from regard.nn.blocks.losses import linear_cross_entropy
from regard.nn.blocks.norm import LayerNorm
from regard.nn.kernels.linear import Linear, linear


class ClassifierHead(nn.Module):
    """Dropout, an optional dense layer, and a linear layer registered as `name`; weights are drawn from N(0, std)."""

    def __init__(
        self, name: str, width: int, outputs: int, dropout: float, bias: bool = True, activation: str | None = None,
        std: float = 0.02,
    ) -> None:  # fmt: skip
        """`activation`: activation of an additional dense layer; None: no such layer."""
        super().__init__()
        self.dropout, self.name, self.activation = nn.Dropout(dropout), name, activation
        if activation is not None:
            self.dense = Linear(width, width)
        self.add_module(name, Linear(width, outputs, bias))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=std)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows C"]:
        x = self.dropout(x)
        if self.activation is not None:
            x = self.dropout(ACTIVATIONS[self.activation](self.dense(x)))
        return self.get_submodule(self.name)(x)


class MLMHead(nn.Module):
    """Masked-language-modeling head: dense layer, activation, LayerNorm, and the token embeddings as output matrix with a
    separate bias."""

    def __init__(
        self, width: int, embedding_width: int, vocab_size: int, activation: str = "gelu", eps: float = 1e-12
    ) -> None:
        """`embedding_width`: width of the token embeddings, which are also the output matrix."""
        super().__init__()
        self.dense, self.norm = Linear(width, embedding_width), LayerNorm(embedding_width, eps)
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        self.activation = ACTIVATIONS[activation]
        nn.init.normal_(self.dense.weight, std=0.02)
        nn.init.zeros_(self.dense.bias)

    def forward(self, x: Float[Tensor, "*rows D"], tokens: TokenEmbedding) -> Float[Tensor, "*rows V"]:
        return linear(self.norm(self.activation(self.dense(x))), tokens.table.weight, self.bias)

    def cross_entropy(
        self, x: Float[Tensor, "*rows D"], tokens: TokenEmbedding, labels: Int[Tensor, "*rows"], smoothing: float = 0.0
    ) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
        """Sum of the loss and number of labels, without storing the logits."""
        x = self.norm(self.activation(self.dense(x)))
        return linear_cross_entropy(x, tokens.table.weight, self.bias, labels, smoothing)


class PretrainingHead(nn.Module):
    """Pretraining head of BERT: masked language modeling and, with `nsp`, next-sentence prediction."""

    def __init__(self, mlm: MLMHead, width: int, nsp: bool) -> None:
        super().__init__()
        self.words, self.has_nsp = mlm, nsp
        if nsp:
            self.follows = Linear(width, 2)
            nn.init.normal_(self.follows.weight, std=0.02)
            nn.init.zeros_(self.follows.bias)
