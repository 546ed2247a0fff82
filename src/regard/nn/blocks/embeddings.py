"""Tokens -> embeddings and states -> tokens, where source, target and output need not share one matrix."""

from __future__ import annotations

from typing import Any, Literal

from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import SettingError
from regard.nn.kernels.linear import Linear, linear

Sharing = Literal["three", "two", "one"]


class Tables(nn.Module):
    """`three`: embeddings of the source, of the target, and the output matrix, each its own. `two`: source and target share
    their embeddings. `one`: the output matrix is the same again. The one accessor of tied weights is `read`."""

    def __init__(
        self, vocabulary: int, embedding: int, output: int, sharing: Sharing = "three", source: int = 0,
        bias: bool = False,
    ) -> None:  # fmt: skip
        """`output`: width of the states that are read. `source`: tokens of the source where it has more than the target.
        `bias`: on the logits of an output matrix of its own."""
        super().__init__()
        if sharing == "one" and embedding != output:
            raise ValueError(f"one table is as wide as what it reads, not {embedding} and {output}")
        self.target = nn.Embedding(vocabulary, embedding)
        self.source = nn.Embedding(source or vocabulary, embedding) if sharing == "three" else None
        self.output = None if sharing == "one" else Linear(output, vocabulary, bias)

    def of_source(self, ids: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows E"]:
        return (self.source or self.target)(ids)

    def of_target(self, ids: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows E"]:
        return self.target(ids)

    @property
    def vocabulary(self) -> int:
        """Tokens that can be said."""
        return self.target.num_embeddings

    def read(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows V"]:
        """States -> logits."""
        return linear(x, self.target.weight) if self.output is None else self.output(x)


def check_tables(config: Any, output: str) -> None:
    """In the words of settings; `output` names the field that is the width of what is read."""
    if config.tables == "one" and config.embedding != getattr(config, output):
        raise SettingError(
            f"model.tables=one reads states by the embeddings: model.{output} {getattr(config, output)} must be "
            f"model.embedding {config.embedding} then. Set one of them, or model.tables=two."
        )
    if config.source_vocabulary and config.tables != "three":
        raise SettingError("model.source_vocabulary is of a table of the source's own: it needs model.tables=three.")
    if config.source_vocabulary and config.source_vocabulary < config.vocabulary:
        raise SettingError(
            f"model.source_vocabulary {config.source_vocabulary} is less than model.vocabulary {config.vocabulary}: one "
            "tokenizer writes both sides, so that any of its tokens may stand in a source."
        )
