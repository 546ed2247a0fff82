"""Heads of tasks that do not generate text: classification, masked language modeling, pretraining."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.nn.blocks.block import ACTIVATIONS, TokenEmbedding, init_normal_
from regard.nn.kernels.linear import Linear, linear
from regard.nn.kernels.losses import linear_cross_entropy


class ClassifierHead(nn.Module):
    """Dropout, an optional dense layer, and a linear layer registered as `name`; weights are drawn from N(0, std)."""

    def __init__(
        self,
        name: str,
        width: int,
        outputs: int,
        dropout: float,
        bias: bool = True,
        activation: str | None = None,
        std: float = 0.02,
        norm_eps: float | None = None,
    ) -> None:
        """`activation`: activation of an additional dense layer; None: no such layer. `norm_eps`: the dense layer has no
        bias, and a norm follows (ModernBERT)."""
        super().__init__()
        self.dropout, self.name, self.activation = nn.Dropout(dropout), name, activation
        if activation is not None:
            self.dense = Linear(width, width, bias=norm_eps is None)
        self.norm = None if norm_eps is None else nn.LayerNorm(width, norm_eps, bias=False)
        self.add_module(name, Linear(width, outputs, bias))
        init_normal_(self, std)

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows C"]:
        x = self.dropout(x) if self.norm is None else x
        if self.activation is not None:
            x = ACTIVATIONS[self.activation](self.dense(x))
            x = self.dropout(x if self.norm is None else self.norm(x))
        return self.get_submodule(self.name)(x)


class MLMHead(nn.Module):
    """Masked-language-modeling head: dense layer, activation, LayerNorm, and the token embeddings as output matrix with a
    separate bias."""

    def __init__(
        self,
        width: int,
        embedding_width: int,
        vocab_size: int,
        activation: str = "gelu",
        eps: float = 1e-12,
        bias: bool = True,
    ) -> None:
        """`embedding_width`: width of the token embeddings, which are also the output matrix. `bias`: whether the dense
        layer and the norm have a bias."""
        super().__init__()
        self.dense, self.norm = Linear(width, embedding_width, bias), nn.LayerNorm(embedding_width, eps, bias=bias)
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        self.activation = ACTIVATIONS[activation]
        init_normal_(self, 0.02)

    def forward(self, x: Float[Tensor, "*rows D"], tokens: TokenEmbedding) -> Float[Tensor, "*rows V"]:
        return linear(self.norm(self.activation(self.dense(x))), tokens.table.weight, self.bias)

    def cross_entropy(
        self, x: Float[Tensor, "*rows D"], tokens: TokenEmbedding, labels: Int[Tensor, "*rows"], smoothing: float = 0.0
    ) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
        """Sum of the loss and number of labels, without storing the logits."""
        x = self.norm(self.activation(self.dense(x)))
        return linear_cross_entropy(x, tokens.table.weight, self.bias, labels, smoothing)


def text_head(
    name: str, config: Any, outputs: int, pooled: bool = True, dropout: float | None = None
) -> ClassifierHead:
    """Head of a text model on pooled states, or on the states of all tokens. Decoders: without bias, as in GPT-1.
    `dropout`: None: `config.head_dropout`."""
    traits = config.traits
    if not traits.is_encoder:
        return ClassifierHead(name, config.width, outputs, config.dropout, bias=False)
    activation = traits.head_activation if pooled or traits.head_norm_eps is not None else None
    dropout = config.head_dropout if dropout is None else dropout
    return ClassifierHead(name, config.width, outputs, dropout, activation=activation, norm_eps=traits.head_norm_eps)


def mlm_head(config: Any) -> MLMHead:
    """Masked-language-modeling head of an encoder."""
    traits, width = config.traits, config.traits.embedding_dim or config.width
    if traits.head_norm_eps is None:
        return MLMHead(config.width, width, config.vocab_size, config.activation, config.norm_eps)
    return MLMHead(config.width, width, config.vocab_size, traits.head_activation, traits.head_norm_eps, bias=False)


class PretrainingHead(nn.Module):
    """Pretraining head of BERT: masked language modeling and, with `nsp`, next-sentence prediction."""

    def __init__(self, mlm: MLMHead, width: int, nsp: bool) -> None:
        super().__init__()
        self.words, self.has_nsp = mlm, nsp
        if nsp:
            self.follows = Linear(width, 2)
            init_normal_(self.follows, 0.02)
