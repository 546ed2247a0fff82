"""Attention Is All You Need (Vaswani et al. 2017): the encoder–decoder Transformer.

Differences from earlier models: no recurrence and no convolution; each position attends to all positions in one step,
with several heads; sinusoidal positions are added to the embeddings."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from regard.errors import WeightsError
from regard.nn.attention.positions import (
    AbsolutePosition,
    PositionIds,
    SinusoidalPosition,
    make_absolute_position,
    make_position,
)
from regard.nn.blocks.block import LayerNorm, NormPlacement, Stack, TokenEmbedding
from regard.systems.common import recipes
from regard.systems.common.configs import RelativePosition, Sizes, TargetTokens, reject, sizes, transformer_blocks
from regard.systems.common.seq2seq import EncoderDecoder, Seq2SeqInputs, require_decoder_inputs
from regard.systems.common.system import System, layout_requires, presets
from regard.types import Batch, BodyOutput
from regard.weights.tables import NameEntry, NameTable, PublishedLayout, Tensors, entry, layer


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

    def __post_init__(self) -> None:
        super().__post_init__()
        reject(
            self.max_position_offset and self.position_embedding == "none",
            "model.max_position_offset requires absolute positions; model.position_embedding is none.",
        )


TINY = sizes(128, 4, 4, 256) | {"decoder_depth": 4, "vocab_size": 10_000, "dropout": 0.3}
TINY_RECIPE = recipes.transformer(10_000, **recipes.TINY_TRANSLATION)
SMALL = sizes(256, 3, 4) | {"decoder_depth": 3, "vocab_size": 8000}
SMALL_RECIPE = recipes.transformer(8000, steps=20_000, batch_tokens=16_384, lr=1e-3, warmup_steps=2000, grad_clip=1.0)
BIG_RECIPE = recipes.transformer(steps=300_000, lr=1024**-0.5 * 4000**-0.5)
PRESETS = presets(
    Config(),
    ("transformer-tiny", 2_605_056, TINY_RECIPE, TINY),
    ("transformer-small", 7_577_600, SMALL_RECIPE, SMALL),
    ("transformer-base", 63_082_496, recipes.transformer(), {}),
    ("transformer-big", 214_245_376, BIG_RECIPE, sizes(1024, 6, 16) | {"dropout": 0.3}),
)


class Transformer(EncoderDecoder):
    encoder: Stack

    def __init__(
        self,
        tokens: TokenEmbedding,
        position: AbsolutePosition,
        encoder: Stack,
        decoder: Stack,
        dropout: float,
        max_offset: int = 0,
    ) -> None:
        super().__init__(tokens, position, decoder, dropout, encoder)
        self.max_offset = max_offset

    def encode(
        self, batch: Batch, inputs: Seq2SeqInputs, taps: Collection[int] = ()
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Encoder outputs (B, S, D) for cross-attention, and hidden states of the blocks in `taps`."""
        x, standing = self.embed(batch.inputs, inputs.positions), PositionIds(inputs.positions, inputs.positions)
        return self.encoder(x, mask=inputs.mask, taps=taps, position_ids=standing)

    def forward(self, batch: Batch, taps: Collection[int] = ()) -> BodyOutput:
        """Decoder states for `batch.decoder_inputs`; `taps` are encoder blocks."""
        sides = self.prepare_inputs(batch)
        context, tapped = self.encode(batch, sides, taps)
        sequence = self.decode(
            require_decoder_inputs(batch),
            context,
            mask=sides.decoder_mask,
            context_mask=sides.cross_mask,
            positions=sides.decoder_positions,
        )
        return BodyOutput(sequence, hidden_states=tapped, cross_states=context)

    def source_states(self, batch: Batch) -> Tensor:
        return self.encode(batch, Seq2SeqInputs.from_batch(batch))[0]


def build(config: Config) -> Transformer:
    def stack(depth: int, cross: bool) -> Stack:
        """Relative positions are bidirectional in the encoder and causal in the decoder."""
        blocks = transformer_blocks(
            config,
            depth,
            cross=cross,
            norm=config.norm_position,
            activation=config.activation,
            feed_dropout=config.ffn_dropout,
        )
        last = LayerNorm(config.width) if config.norm_position == "pre" else None
        return Stack(blocks, last, make_position(config, depth, bidirectional=not cross))

    return Transformer(
        tokens=TokenEmbedding(config.vocab_size, config.width, config.scale_embedding, config.output_bias),
        position=make_absolute_position(config),
        encoder=stack(config.depth, cross=False),
        decoder=stack(config.decoder_depth, cross=True),
        dropout=config.dropout,
        max_offset=config.max_position_offset,
    )


# -- tensor names of Marian in Hugging Face format


def _attention_entries(ours: str, theirs: str, *matrices: str) -> tuple[NameEntry, ...]:
    """Entries of an attention layer. `matrices` are native names; each letter is one published matrix."""
    names = [
        entry(f"{ours}.inner.{name}.{{part}}", *(f"{theirs}.{letter}_proj.{{part}}" for letter in name))
        for name in matrices
    ]
    return (*names, layer(f"{ours}.inner.out", f"{theirs}.out_proj"))


def _block_entries(side: str, decoder: bool) -> tuple[NameEntry, ...]:
    ours, theirs = f"{side}.blocks.{{n}}", f"model.{side}.layers.{{n}}"
    cross = (
        *_attention_entries(f"{ours}.cross", f"{theirs}.encoder_attn", "q", "kv"),
        layer(f"{ours}.cross.norm", f"{theirs}.encoder_attn_layer_norm"),
    )
    return (
        *_attention_entries(f"{ours}.attend", f"{theirs}.self_attn", "qkv"),
        layer(f"{ours}.attend.norm", f"{theirs}.self_attn_layer_norm"),
        *(cross if decoder else ()),
        layer(f"{ours}.feed.inner.up", f"{theirs}.fc1"),
        layer(f"{ours}.feed.inner.down", f"{theirs}.fc2"),
        layer(f"{ours}.feed.norm", f"{theirs}.final_layer_norm"),
    )


SHARED_EMBEDDING = "model.shared.weight"
NAMES = NameTable(
    entries=(
        entry("tokens.table.weight", SHARED_EMBEDDING),
        entry("tokens.bias", "final_logits_bias"),
        *_block_entries("encoder", decoder=False),
        *_block_entries("decoder", decoder=True),
    ),
    tied=dict.fromkeys(
        ("lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"), SHARED_EMBEDDING
    ),
    drop=("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"),
)


def _from_published(config: Any, tensors: Tensors) -> tuple[Any, Tensors]:
    """Check tied copies and stored sinusoidal tables, and drop an output bias of zeros."""
    tensors = NAMES.complete(tensors)
    for name in NAMES.drop:
        if name in tensors and not _is_sinusoid_table(tensors[name], config):
            raise WeightsError(f"{name} does not contain the sinusoidal positions of the paper.")
    bias = tensors.pop("final_logits_bias", None)
    if bias is not None and bias.numel() != config.vocab_size:
        raise WeightsError(
            f"final_logits_bias (tokens.bias) has {bias.numel()} values, but the vocabulary has {config.vocab_size} tokens."
        )
    if bias is None or not (config.output_bias or bias.any()):
        return config, tensors
    return replace(config, output_bias=True), {**tensors, "final_logits_bias": bias.flatten()}


def _is_sinusoid_table(table: Tensor, config: Any) -> bool:
    if table.ndim != 2 or table.shape[1] != config.width:
        return False
    wanted = SinusoidalPosition(config.width, "halves")(torch.arange(len(table)))
    return torch.allclose(table.double(), wanted, atol=1e-2 if table.element_size() < 4 else 1e-5)


def _to_published(config: Any, tensors: Tensors) -> Tensors:
    bias = tensors.get("final_logits_bias", tensors[SHARED_EMBEDDING].new_zeros(config.vocab_size))
    return {**tensors, "final_logits_bias": bias[None]}


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
    names=NAMES,
    adapt_checkpoint=_from_published,
    to_published=_to_published,
    check_layout=layout_requires(
        "the Transformer (Marian) supports post-norm with sinusoidal positions [sin | cos] only",
        norm_position="post", position_embedding="halves", relative_position="none",
    ),
)  # fmt: skip


DESCRIPTION = "Transformer (Vaswani et al. 2017), encoder–decoder"
SYSTEM = System("transformer", DESCRIPTION, Config, PRESETS, build, recipes.TRANSLATION, PUBLISHED)
