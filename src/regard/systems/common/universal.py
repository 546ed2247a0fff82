"""Config fields and padding shared by the Universal Transformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from regard.nn.attention.masks import valid_mask
from regard.nn.attention.positions import SinusoidLayout
from regard.nn.blocks.block import NormPlacement
from regard.nn.blocks.universal import Mixing, max_steps
from regard.systems.common.system import ModelConfig
from regard.types import Batch, DecoderInputs


@dataclass(frozen=True)
class UniversalConfig(ModelConfig):
    """Sizes, block and adaptive computation time (ACT) of a Universal Transformer."""

    width: int = 512
    num_steps: int = 6
    heads: int = 8
    ffn_dim: int = 2048
    max_length: int = 512
    dropout: float = 0.1
    attention_dropout: float = 0.0
    ffn_dropout: float = 0.0
    norm_position: NormPlacement = "post"
    activation: Literal["relu", "gelu", "swish"] = "relu"
    position_embedding: SinusoidLayout = "interleaved"
    step_embedding: Literal["sinusoid", "learned"] = "sinusoid"
    act: bool = False
    act_max_steps: int = 0
    act_epsilon: float = 0.01
    act_mixing: Mixing = "convex"
    ponder_cost: float = 0.01
    scale_embedding: bool = True

    @property
    def max_steps(self) -> int:
        """Maximum number of steps."""
        return max_steps(self)


def real_tokens(side: Batch | DecoderInputs, pad: int) -> Tensor | None:
    """(B, L) True for tokens, False for padding; None without padding."""
    if side.packing is not None:
        return side.inputs != pad
    return None if side.mask is None else valid_mask(side.mask, side.inputs.shape[1])


PUBLISHED_CODE: dict[str, Any] = {
    "width": 1024, "heads": 16, "ffn_dim": 4096, "norm_position": "pre", "position_embedding": "halves",
    "step_embedding": "learned",
}  # fmt: skip
"""Settings of the published code."""
