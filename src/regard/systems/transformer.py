"""Attention Is All You Need (Vaswani et al. 2017): the encoder–decoder Transformer.

Differences from earlier models: no recurrence and no convolution; each position attends to all positions in one step,
with several heads; sinusoidal positions are added to the embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from regard.nn.attention.positions import make_absolute_position, make_position
from regard.nn.blocks.block import NormPlacement, Stack, TokenEmbedding, transformer_blocks
from regard.nn.blocks.encoder_decoder import EncoderDecoder
from regard.systems.common import marian, recipes
from regard.systems.common.system import RelativePosition, Sizes, System, TargetTokens, presets, sizes
from regard.weights.tables import PublishedLayout


@dataclass(frozen=True)
class Config(TargetTokens, RelativePosition, Sizes):
    width: int = 512
    depth: int = 6
    decoder_depth: int = 6
    heads: int = 8
    ffn_dim: int = 2048
    dropout: float = 0.1
    attention_dropout: float = 0.0
    ffn_dropout: float = 0.0
    norm_position: NormPlacement = "post"
    activation: Literal["relu", "gelu", "swish"] = "relu"
    position_embedding: Literal["halves", "interleaved", "none"] = "halves"
    max_position_offset: int = 0
    scale_embedding: bool = True
    output_bias: bool = False
    max_length: int = 512


TINY = sizes(128, 4, 4, 256) | {"decoder_depth": 4, "vocab_size": 10_000, "dropout": 0.3}
TINY_RECIPE = recipes.get("transformer", vocab_size=10_000, **recipes.TINY_TRANSLATION)
SMALL = sizes(256, 3, 4) | {"decoder_depth": 3, "vocab_size": 8000}
SMALL_RECIPE = recipes.get(
    "transformer", vocab_size=8000, steps=20_000, batch_tokens=16_384, lr=1e-3, warmup_steps=2000, grad_clip=1.0
)
BIG_RECIPE = recipes.get("transformer", steps=300_000, lr=1024**-0.5 * 4000**-0.5)
PRESETS = presets(
    Config(),
    ("transformer-tiny", 2_605_056, TINY_RECIPE, TINY),
    ("transformer-small", 7_577_600, SMALL_RECIPE, SMALL),
    ("transformer-base", 63_082_496, recipes.get("transformer"), {}),
    ("transformer-big", 214_245_376, BIG_RECIPE, sizes(1024, 6, 16) | {"dropout": 0.3}),
)


def build(config: Config) -> EncoderDecoder:
    tokens = TokenEmbedding(config.vocab_size, config.width, config.scale_embedding, config.output_bias)
    position = make_absolute_position(config)
    kind: dict[str, Any] = {"norm": config.norm_position, "activation": config.activation}
    stacks = []
    for depth, cross in ((config.depth, False), (config.decoder_depth, True)):
        blocks = transformer_blocks(config, depth, cross=cross, feed_dropout=config.ffn_dropout, **kind)
        last = nn.LayerNorm(config.width) if config.norm_position == "pre" else None
        # relative positions are bidirectional in the encoder and causal in the decoder
        stacks.append(Stack(blocks, last, make_position(config, depth, bidirectional=not cross)))
    body = EncoderDecoder(tokens, position, stacks[1], config.dropout, encoder=stacks[0])
    body.max_offset = config.max_position_offset
    return body


PUBLISHED = PublishedLayout(
    model_type="marian",
    architecture="MarianMTModel",
    keys={
        "width": ("d_model",), "depth": ("encoder_layers",), "decoder_depth": ("decoder_layers",),
        "heads": ("encoder_attention_heads", "decoder_attention_heads"), "ffn_dim": ("encoder_ffn_dim", "decoder_ffn_dim"),
        "vocab_size": ("vocab_size", "decoder_vocab_size"), "dropout": ("dropout",),
        "attention_dropout": ("attention_dropout",), "ffn_dropout": ("activation_dropout",),
        "activation": ("activation_function",), "scale_embedding": ("scale_embedding",),
        "max_length": ("max_position_embeddings",), "pad_id": ("pad_token_id",), "bos_id": ("decoder_start_token_id",),
        "eos_id": ("eos_token_id",),
    },
    defaults={
        "d_model": 1024, "encoder_layers": 12, "decoder_layers": 12, "encoder_attention_heads": 16,
        "decoder_attention_heads": 16, "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096, "vocab_size": 58101,
        "dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0, "activation_function": "gelu",
        "scale_embedding": False, "max_position_embeddings": 1024, "pad_token_id": 58100,
        "decoder_start_token_id": 58100, "eos_token_id": 0,
    },
    fixed={
        "is_encoder_decoder": True, "share_encoder_decoder_embeddings": True, "tie_word_embeddings": True,
        "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "normalize_before": False, "normalize_embedding": False,
        "add_final_layer_norm": False, "static_position_embeddings": True,
        "add_bias_logits": False, "is_decoder": False,
    },
    ignored_keys=("extra_pos_embeddings", "classif_dropout", "classifier_dropout", "num_hidden_layers", "decoder_*_token_id"),
    extra_keys={"forced_eos_token_id": None, "bos_token_id": None},
    value_maps={"activation": {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}},
    names=marian.MARIAN_NAMES,
    adapt_checkpoint=marian.from_marian,
    to_published=marian.to_marian,
    required={"norm_position": "post", "position_embedding": "halves", "relative_position": "none"},
    requirement="the Transformer (Marian) supports post-norm with sinusoidal positions [sin | cos] only",
)  # fmt: skip


DESCRIPTION = "Transformer (Vaswani et al. 2017), encoder–decoder"
SYSTEM = System("transformer", DESCRIPTION, Config, PRESETS, build, recipes.TRANSLATION, PUBLISHED)
