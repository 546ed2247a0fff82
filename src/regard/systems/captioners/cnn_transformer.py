"""A captioner of convolutions and a Transformer: the machine of 2017 reads places of a picture instead of words.

What is new against Show, Attend and Tell: no recurrence. The places of the grid look at each other first (the encoder), and
then every word looks at all of them and at all words before it, in several ways at once and in one pass over a whole caption.
The places are told where they lie by positions that are learnt or sines of row and column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import SettingError
from regard.nn.attention.masks import Whole
from regard.nn.attention.positions import Sinusoid, added
from regard.nn.blocks.block import Placement, Stack, Tokens, vaswani_block
from regard.nn.blocks.norm import Norm
from regard.nn.kernels.linear import Linear
from regard.nn.vision.encoder import Eyes
from regard.nn.vision.patches import Grid
from regard.systems.captioners.common import FURTHER, Captioner, Telling, beside, recipe
from regard.systems.common.system import Preset, System, unpublished
from regard.types import Batch


@dataclass(frozen=True)
class Config(Captioner):
    tap: int | None = None
    """which map is looked at, of four from fine to coarse, 0 to 3: a coarser one knows more; none: the last states"""
    width: int = 512
    """width of the states"""
    depth: int = 6
    """blocks of the encoder"""
    decoder_depth: int = 6
    """blocks of the decoder"""
    heads: int = 8
    """attention heads"""
    hidden: int = 2048
    """inner width of the feed-forward layers"""
    dropout: float = 0.1
    """share dropped of each sub-layer's output and of the embeddings"""
    attention_dropout: float = 0.0
    """share dropped of the attention weights"""
    norm: Placement = "pre"
    """where the layer norm stands: post (2017) or pre (later practice, with a norm after the last block)"""
    activation: Literal["relu", "gelu"] = "relu"
    """non-linearity of the feed-forward layers"""
    places: Literal["learned", "sines", "none"] = "learned"
    """where places lie: a vector learnt for each (stretched for other sizes), sines of row and column, or nothing"""
    positions: Literal["halves", "interleaved", "learned", "none"] = "halves"
    """where words stand: sines and cosines, as halves or interleaved, learned, or nothing"""

    sizes = ("width", "depth", "decoder_depth", "heads", "hidden")
    shares = ("dropout", "attention_dropout")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.places == "sines" and self.width % 2:
            raise SettingError(
                f"model.places=sines needs an even model.width, not {self.width}: half of it is for rows."
            )


TINY = Config(
    encoder="resnet-tiny", seeing={"stride": 2}, size=96, vocabulary=2000, width=160, depth=2, decoder_depth=2, heads=4,
    hidden=640, dropout=0.2,
)  # fmt: skip
PRESETS = {
    "caption-transformer-tiny": Preset(TINY, 4_606_400, recipe(2000)),
    "caption-transformer-base": Preset(
        Config(encoder="resnet-50"), 73_842_752, recipe(10_000, steps=50_000, rate=2e-4, every=2000)
    ),
}


class Plane(nn.Module):
    """Sines of the row in one half of the channels, of the column in the other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wave = Sinusoid(width // 2)

    def forward(self, grid: tuple[int, int]) -> Float[Tensor, "1 L D"]:
        down, across = (self.wave(torch.arange(count)) for count in grid)
        rows, columns = down[:, None].expand(-1, grid[1], -1), across[None].expand(grid[0], -1, -1)
        return torch.cat([rows, columns], -1).flatten(0, 1)[None]


class CaptionTransformer(Telling):
    encoder: Stack

    def __init__(self, eyes: Eyes, config: Config, encoder: Stack, decoder: Stack) -> None:
        tokens = Tokens(config.vocabulary, config.width)
        super().__init__(tokens, added(config), decoder, config.dropout, encoder)
        self.eyes = eyes
        self.project = Linear(eyes.tap.channels, config.width)
        side = -(-config.size // eyes.tap.stride)
        self.places: Any = None
        if config.places != "none":
            self.places = Plane(config.width) if config.places == "sines" else Grid(side, config.width, before=0)

    def encode(self, batch: Batch) -> Float[Tensor, "B K D"]:
        """The places of the picture, each of which has looked at the others."""
        x = self.project(self.eyes.places(batch.x))
        if self.places is not None:
            x = x + self.places(self.grid(batch)).to(x.dtype).to(x.device)
        return beside(self.encoder(self.dropout(x), rule=Whole())[0], batch)


def build(config: Config) -> CaptionTransformer:
    """The whole machine."""

    def stack(depth: int, cross: bool) -> Stack:
        blocks = [
            vaswani_block(
                config.width, config.heads, config.hidden, cross=cross, norm=config.norm, activation=config.activation,
                dropout=config.dropout, attention_dropout=config.attention_dropout,
            )
            for _ in range(depth)
        ]  # fmt: skip
        return Stack(blocks, Norm(config.width) if config.norm == "pre" else None)

    return CaptionTransformer(
        config.eyes(), config, stack(config.depth, cross=False), stack(config.decoder_depth, cross=True)
    )


SYSTEM = System(
    name="caption-transformer", about="captioner of convolutions and the Transformer", config=Config, presets=PRESETS,
    build=build, tasks=("caption",), reads="pictures", unsayable=unpublished, further=FURTHER,
)  # fmt: skip
