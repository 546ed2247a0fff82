"""Captioning with a CNN and an encoder–decoder Transformer.

Differences from Show, Attend and Tell: no recurrence. The encoder applies self-attention to the grid of image features;
the decoder applies causal self-attention and cross-attention with several heads, in parallel for all tokens of a
caption. Image positions are learned, or sines of row and column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.nn.attention.masks import Full
from regard.nn.attention.positions import SinusoidalPosition, make_absolute_position
from regard.nn.blocks.block import NormPlacement, Stack, TokenEmbedding, transformer_blocks
from regard.nn.kernels.linear import Linear
from regard.nn.vision.patches import GridPosition
from regard.systems.common import recipes
from regard.systems.common.captions import ENCODER, TINY_ENCODER, CaptionConfig, CaptionDecoder, expand_to_captions
from regard.systems.common.system import System, presets, reject, sizes
from regard.types import Batch


@dataclass(frozen=True)
class Config(CaptionConfig):
    feature_level: int | None = None  # type: ignore[misc]
    width: int = 512
    depth: int = 6
    decoder_depth: int = 6
    heads: int = 8
    ffn_dim: int = 2048
    dropout: float = 0.1
    attention_dropout: float = 0.0
    norm_position: NormPlacement = "pre"
    activation: Literal["relu", "gelu"] = "relu"
    image_positions: Literal["learned", "sines", "none"] = "learned"
    position_embedding: Literal["halves", "interleaved", "learned", "none"] = "halves"

    def check(self) -> None:
        reject(
            self.image_positions == "sines" and self.width % 2,
            f"model.image_positions=sines requires an even model.width, got {self.width}: half of the channels encode "
            "rows, half encode columns.",
        )


TINY = TINY_ENCODER | sizes(160, 2, 4) | {"decoder_depth": 2, "dropout": 0.2}
BASE_RECIPE = recipes.get("captions_long", vocab_size=10_000, lr=2e-4)
PRESETS = presets(
    Config(),
    ("caption-transformer-tiny", 4_606_400, recipes.get("captions"), TINY),
    ("caption-transformer-base", 73_842_752, BASE_RECIPE, {"encoder": "resnet-50"}),
)


class Sinusoid2d(nn.Module):
    """Sinusoidal positions: rows in one half of the channels, columns in the other half."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wave = SinusoidalPosition(width // 2)

    def forward(self, grid: tuple[int, int]) -> Float[Tensor, "1 L D"]:
        down, across = (self.wave(torch.arange(count)) for count in grid)
        rows, columns = down[:, None].expand(-1, grid[1], -1), across[None].expand(grid[0], -1, -1)
        return torch.cat([rows, columns], -1).flatten(0, 1)[None]


class CaptionTransformer(CaptionDecoder):
    encoder: Stack

    def __init__(self, config: Config) -> None:
        def stack(depth: int, cross: bool) -> Stack:
            settings = {"cross": cross, "norm": config.norm_position, "activation": config.activation}
            norm = nn.LayerNorm(config.width) if config.norm_position == "pre" else None
            return Stack(transformer_blocks(config, depth, **settings), norm)

        eyes, encoder, decoder = config.build_encoder(), stack(config.depth, False), stack(config.decoder_depth, True)
        tokens = TokenEmbedding(config.vocab_size, config.width)
        super().__init__(tokens, make_absolute_position(config), decoder, config.dropout, encoder)
        self.eyes = eyes
        self.project = Linear(eyes.tap.channels, config.width)
        side = -(-config.image_size // eyes.tap.stride)
        self.places: Any = None
        if config.image_positions == "sines":
            self.places = Sinusoid2d(config.width)
        elif config.image_positions == "learned":
            self.places = GridPosition(side, config.width, num_prefix_tokens=0)

    def encode(self, batch: Batch) -> Float[Tensor, "B K D"]:
        """Image features after self-attention, repeated for each caption."""
        x = self.project(self.eyes.patch_features(batch.inputs))
        if self.places is not None:
            x = x + self.places(self.grid(batch)).to(x.dtype).to(x.device)
        return expand_to_captions(self.encoder(self.dropout(x), mask=Full())[0], batch)


DESCRIPTION = "CNN + Transformer captioning"
SYSTEM = System("caption-transformer", DESCRIPTION, Config, PRESETS, CaptionTransformer, recipes.CAPTIONS, part=ENCODER)
