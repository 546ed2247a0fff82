"""Generating Wikipedia by Summarizing Long Sequences (Liu et al. 2018): T-D, the Transformer's decoder alone.

What is new against the Transformer: no encoder and no cross-attention. Source, a separator and target are one text, and the
model learns to go on with it; half of the parameters are gone, and longer texts fit.

Its variants with compressed memory (T-DMCA) and mixtures of experts are not here. Nobody has published a layout for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from regard.nn.attention.positions import added
from regard.nn.attention.relative_positions import Relative, check_relative, inside
from regard.nn.blocks.block import Stack, Tokens, vaswani_block
from regard.nn.blocks.decoder import DecoderOnly
from regard.systems.common import gpt
from regard.systems.common.system import Preset, System, check_sizes, unpublished


@dataclass(frozen=True)
class Config:
    width: int = 512
    """width of the states"""
    depth: int = 6
    """blocks"""
    heads: int = 8
    """attention heads"""
    hidden: int = 2048
    """inner width of the feed-forward layers"""
    vocabulary: int = 32_000
    """tokens"""
    length: int = 1024
    """longest context that is read at once; the sines and cosines themselves have no end"""
    dropout: float = 0.1
    """share dropped of each sub-layer's output and of the embeddings"""
    attention_dropout: float = 0.0
    """share dropped of the attention weights"""
    activation: Literal["relu", "gelu", "swish"] = "relu"
    """non-linearity of the feed-forward layers"""
    positions: Literal["halves", "interleaved", "none"] = "interleaved"
    """sines and cosines that are added: interleaved as in the paper, halves [sin | cos], or none"""
    relative: Relative = "none"
    """positions inside attention: rotary, rotary-halves (as LLaMA's), buckets (T5's), shaw, or none"""
    end: int = 31_999
    """id of the token that ends and begins documents"""

    def __post_init__(self) -> None:
        sizes = ("width", "depth", "heads", "hidden", "vocabulary", "length")
        check_sizes(self, sizes, ("dropout", "attention_dropout"))
        check_relative(self)


def _recipe(vocabulary: int, **train: Any) -> dict[str, dict[str, Any]]:
    usual = {"schedule": "inverse_sqrt", "smoothing": 0.0, "betas": "0.9,0.98", "eps": 1e-9, "decay": 0.0, "clip": 1.0}
    return {
        "train": {**usual, **train},
        "data": {"vocabulary": vocabulary},
        "decode": {"beam": 4, "penalty": 0.6},
    }


BASE = Config()
PRESETS = {
    "decoder-tiny": Preset(
        replace(BASE, width=128, depth=4, heads=4, hidden=512, vocabulary=8000, length=256, end=7999),
        1_817_088,
        _recipe(8000, steps=10_000, tokens=8192, rate=2e-3, warmup=1000),
    ),
    "decoder-base": Preset(
        BASE, 35_298_304, _recipe(32_000, steps=250_000, tokens=16_384, rate=7e-4, warmup=10_000)
    ),
}  # fmt: skip


def build(config: Config) -> DecoderOnly:
    """The whole machine."""
    blocks = [
        vaswani_block(
            config.width, config.heads, config.hidden, activation=config.activation, dropout=config.dropout,
            attention_dropout=config.attention_dropout,
        )
        for _ in range(config.depth)
    ]  # fmt: skip
    return DecoderOnly(
        tokens=Tokens(config.vocabulary, config.width),
        position=added(config),
        decoder=Stack(blocks, position=inside(config, config.depth)),
        dropout=config.dropout,
    )


SYSTEM = System(
    name="decoder", about="the Transformer's decoder alone (T-D): goes on with text", config=Config, presets=PRESETS,
    build=build, tasks=("language", *gpt.TASKS), unsayable=unpublished, recipes=gpt.RECIPES,
    further=gpt.FURTHER,
)  # fmt: skip
