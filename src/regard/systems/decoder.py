"""Generating Wikipedia by Summarizing Long Sequences (Liu et al. 2018): T-D, a decoder-only Transformer.

Differences from the Transformer: no encoder and no cross-attention. Source, separator and target are one sequence for
language modeling; the model has half of the parameters, and longer texts fit into memory.

Memory-compressed attention (T-DMCA) and mixture of experts are not implemented. There is no Hugging Face equivalent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regard.nn.attention.positions import make_absolute_position, make_position
from regard.nn.blocks.block import Stack, TokenEmbedding, transformer_blocks
from regard.nn.blocks.decoder import DecoderOnly
from regard.systems.common import recipes
from regard.systems.common.system import RelativePosition, Sizes, System, presets, sizes


@dataclass(frozen=True)
class Config(RelativePosition, Sizes):
    width: int = 512
    depth: int = 6
    heads: int = 8
    ffn_dim: int = 2048
    vocab_size: int = 32_000
    max_length: int = 1024
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation: Literal["relu", "gelu", "swish"] = "relu"
    position_embedding: Literal["halves", "interleaved", "none"] = "interleaved"
    eos_id: int = 31_999


TINY = sizes(128, 4, 4) | {"vocab_size": 8000, "max_length": 256, "eos_id": 7999}
TINY_RECIPE = recipes.get("decoder", vocab_size=8000, steps=10_000, batch_tokens=8192, lr=2e-3, warmup_steps=1000)
BASE_RECIPE = recipes.get(
    "decoder", vocab_size=32_000, steps=250_000, batch_tokens=16_384, lr=7e-4, warmup_steps=10_000
)
PRESETS = presets(
    Config(), ("decoder-tiny", 1_817_088, TINY_RECIPE, TINY), ("decoder-base", 35_298_304, BASE_RECIPE, {})
)


def build(config: Config) -> DecoderOnly:
    blocks = transformer_blocks(config, config.depth, activation=config.activation)
    return DecoderOnly(
        tokens=TokenEmbedding(config.vocab_size, config.width),
        position=make_absolute_position(config),
        decoder=Stack(blocks, position=make_position(config, config.depth)),
        dropout=config.dropout,
    )


DESCRIPTION = "Transformer decoder (T-D, Liu et al. 2018), language model"
SYSTEM = System("decoder", DESCRIPTION, Config, PRESETS, build, recipes.GPT)
