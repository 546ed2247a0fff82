"""Source, target and output embeddings with optional weight sharing; dtype and initialization of a body."""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import SettingError
from regard.nn.kernels.linear import Linear, linear
from regard.nn.kernels.losses import linear_cross_entropy
from regard.types import Body

EmbeddingSharing = Literal["none", "source_target", "all"]


class SharedEmbeddings(nn.Module):
    """Embeddings of source and target, and the output matrix. `sharing`: `none`, `source_target` (one table for source and
    target), `all` (that table is also the output matrix). `output_weights` selects the output matrix."""

    def __init__(
        self,
        vocab_size: int,
        embedding_width: int,
        output_width: int,
        sharing: EmbeddingSharing = "none",
        source_vocab_size: int = 0,
        bias: bool = False,
    ) -> None:
        """`output_width`: hidden size before the output matrix. `source_vocab_size`: if the source has more tokens than
        the target. `bias`: add a bias to the logits of a separate output matrix."""
        super().__init__()
        if sharing == "all" and embedding_width != output_width:
            raise ValueError(
                f"sharing='all' requires embedding_width ({embedding_width}) to equal output_width ({output_width})."
            )
        self.target = nn.Embedding(vocab_size, embedding_width)
        self.source = nn.Embedding(source_vocab_size or vocab_size, embedding_width) if sharing == "none" else None
        self.output = None if sharing == "all" else Linear(output_width, vocab_size, bias)

    def embed_source(self, ids: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows E"]:
        return (self.source or self.target)(ids)

    def embed_target(self, ids: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows E"]:
        return self.target(ids)

    @property
    def vocab_size(self) -> int:
        """Size of the target vocabulary."""
        return self.target.num_embeddings

    @property
    def output_weights(self) -> tuple[Tensor, Tensor | None]:
        """Output matrix (V, D), and bias (V,)."""
        return (self.target.weight, None) if self.output is None else (self.output.weight, self.output.bias)


class TokenPredictor(Body):
    """Body with an output matrix over the target vocabulary. The loss does not store the logits of a batch."""

    @property
    def output_weights(self) -> tuple[Tensor, Tensor | None]:
        """Output matrix (V, D), and bias (V,)."""
        raise NotImplementedError

    def to_logits(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows V"]:
        return linear(x, *self.output_weights)

    def cross_entropy(
        self, x: Float[Tensor, "*rows D"], labels: Int[Tensor, "*rows"], smoothing: float = 0.0
    ) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
        """Sum of the loss of `to_logits(x)`, and number of labels."""
        return linear_cross_entropy(x, *self.output_weights, labels, smoothing)


def to_autocast_dtype(x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
    """x in the 16-bit dtype of autocast on CUDA, so that states between the blocks have 16 bits, too."""
    return x.to(torch.get_autocast_dtype("cuda")) if x.is_cuda and torch.is_autocast_enabled("cuda") else x


def init_normal_(body: nn.Module, std: float) -> None:
    """Initialize matrices and embeddings by N(0, std), and biases by 0."""
    for module in body.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def check_embeddings(config: Any, output: str) -> None:
    """Raise a SettingError for invalid combinations; `output` names the setting of the width before the output matrix."""
    if config.tie_embeddings == "all" and config.embedding_dim != getattr(config, output):
        raise SettingError(
            f"model.tie_embeddings=all requires model.{output} ({getattr(config, output)}) to equal model.embedding_dim "
            f"({config.embedding_dim}). Change one of these sizes, or set model.tie_embeddings=source_target."
        )
    if config.source_vocab_size and config.tie_embeddings != "none":
        raise SettingError(
            "model.source_vocab_size requires a separate source embedding. Set model.tie_embeddings=none."
        )
    if config.source_vocab_size and config.source_vocab_size < config.vocab_size:
        raise SettingError(
            f"model.source_vocab_size ({config.source_vocab_size}) must be at least model.vocab_size ({config.vocab_size}), "
            "because source and target share one tokenizer."
        )
