"""Attention Is All You Need (Vaswani et al. 2017): the encoder–decoder.

What is new against everything before: no recurrence and no convolution; each position looks at all others in one
step; several heads look in several ways; positions are sines and cosines added to the embeddings.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from regard.errors import SettingError, WeightsError
from regard.nn.attention.masks import marks
from regard.nn.attention.positions import Added, Sinusoid, added
from regard.nn.attention.relative_positions import Relative, Standing, check_relative, inside
from regard.nn.blocks.block import Placement, Stack, Tokens, vaswani_block
from regard.nn.blocks.cross_decoder import CrossDecoder
from regard.nn.blocks.decoding_state import DecoderState
from regard.nn.blocks.norm import Norm
from regard.systems.common.seq2seq_inputs import Sides, prompt_of, target_of
from regard.systems.common.system import RECALLS, Preset, System, check_sizes
from regard.types import Batch, States
from regard.weights.tables import Names, Published, Tensors, entry, tied


@dataclass(frozen=True)
class Config:
    width: int = 512
    """width of the states (d_model)"""
    depth: int = 6
    """blocks of the encoder"""
    decoder_depth: int = 6
    """blocks of the decoder"""
    heads: int = 8
    """attention heads"""
    hidden: int = 2048
    """inner width of the feed-forward layers"""
    vocabulary: int = 37000
    """tokens, shared by source and target"""
    dropout: float = 0.1
    """share dropped of each sub-layer's output and of the embeddings"""
    attention_dropout: float = 0.0
    """share dropped of the attention weights"""
    feed_dropout: float = 0.0
    """share dropped inside the feed-forward layers"""
    norm: Placement = "post"
    """where the layer norm stands: post (2017) or pre (later practice, with a norm after the last block)"""
    activation: Literal["relu", "gelu", "swish"] = "relu"
    """non-linearity of the feed-forward layers"""
    positions: Literal["halves", "interleaved", "none"] = "halves"
    """sines and cosines that are added: halves [sin | cos] as in checkpoints, interleaved as in the paper, or none"""
    relative: Relative = "none"
    """positions inside self-attention: rotary, rotary-halves (as LLaMA's), buckets (T5's), shaw, or none"""
    shift: int = 0
    """while learning, positions of a row begin anywhere up to here, so that later ones are known too"""
    scaled: bool = True
    """multiply embeddings by the square root of the width"""
    output_bias: bool = False
    """a bias on the output logits (some published checkpoints have one)"""
    length: int = 512
    """longest sequence that published tools should expect; the model itself has no limit"""
    pad: int = 0
    """id of the padding token"""
    start: int = 1
    """id of the token that a translation starts from"""
    end: int = 2
    """id of the token that ends a sentence"""

    def __post_init__(self) -> None:
        sizes = ("width", "depth", "decoder_depth", "heads", "hidden", "vocabulary", "length")
        check_sizes(self, sizes, ("dropout", "attention_dropout", "feed_dropout"))
        check_relative(self)
        if self.shift < 0:
            raise SettingError(f"model.shift must be at least 0, not {self.shift}.")
        if self.shift and self.positions == "none":
            raise SettingError(
                "model.shift moves positions that are added, and model.positions=none adds none: leave it out."
            )


PAPER = {
    "train": {
        "steps": 100_000, "tokens": 50_000, "rate": 512**-0.5 * 4000**-0.5, "warmup": 4000, "schedule": "inverse_sqrt",
        "smoothing": 0.1, "betas": "0.9,0.98", "eps": 1e-9, "clip": 0.0, "decay": 0.0,
    },
    "data": {"vocabulary": 37_000},
    "decode": {"beam": 4, "penalty": 0.6, "form": "paper"},
}  # fmt: skip


def recipe(**train: Any) -> dict[str, dict[str, Any]]:
    """The paper's, with these changes."""
    return {**PAPER, "train": {**PAPER["train"], **train}}


BASE = Config()
PRESETS = {
    "transformer-tiny": Preset(
        replace(BASE, width=128, depth=4, decoder_depth=4, heads=4, hidden=256, vocabulary=10_000, dropout=0.3),
        2_605_056,
        {
            **recipe(steps=6000, tokens=16_384, rate=4e-3, warmup=1500, schedule="linear", clip=1.0, average=0.999),
            "data": {"vocabulary": 10_000},
        },
    ),
    "transformer-small": Preset(
        replace(BASE, width=256, depth=3, decoder_depth=3, heads=4, hidden=1024, vocabulary=8000),
        7_577_600,
        {**recipe(steps=20_000, tokens=16_384, rate=1e-3, warmup=2000, clip=1.0), "data": {"vocabulary": 8000}},
    ),
    "transformer-base": Preset(BASE, 63_082_496, PAPER),
    "transformer-big": Preset(
        replace(BASE, width=1024, heads=16, hidden=4096, dropout=0.3),
        214_245_376,
        recipe(steps=300_000, rate=1024**-0.5 * 4000**-0.5),
    ),
}


class Transformer(CrossDecoder):
    encoder: Stack

    def __init__(
        self, tokens: Tokens, position: Added, encoder: Stack, decoder: Stack, dropout: float, shift: int = 0
    ) -> None:
        super().__init__(tokens, position, decoder, dropout, encoder)
        self.shift = shift

    def encode(self, batch: Batch, sides: Sides, taps: Collection[int] = ()) -> tuple[Tensor, tuple[Tensor, ...]]:
        """(B, S, D) what the decoder regards, and the states after the blocks that are asked for."""
        x, standing = self.embed(batch.x, sides.where), Standing(sides.where, sides.where)
        return self.encoder(x, rule=sides.rule, taps=taps, standing=standing)

    def forward(self, batch: Batch, taps: Collection[int] = ()) -> States:
        """The decoder's states over `batch.target`; `taps` are blocks of the encoder."""
        sides = Sides.of(batch)
        if self.training and self.shift:
            sides = sides.shifted(batch, self.shift)
        context, tapped = self.encode(batch, sides, taps)
        sequence = self.tell(
            target_of(batch), context, rule=sides.target_rule, context_rule=sides.context_rule, where=sides.target_where
        )
        return States(sequence, taps=tapped, context=context)

    def start(self, batch: Batch, room: int | None = None) -> DecoderState:
        """Read the source, and all but the last token of the prompt `batch.target`.

        With `room`, memory is made for that many positions at once and keeps its shape."""
        if batch.offsets is not None:
            raise ValueError("generation starts from padded sources")
        prompt, (context, _) = prompt_of(batch), self.encode(batch, Sides.of(batch))
        real = None if batch.mask is None else marks(batch.mask, batch.x.shape[1])[:, None]
        return self.begin(context, real, prompt, room)


def build(config: Config) -> Transformer:
    """The whole machine."""

    def stack(depth: int, cross: bool) -> Stack:
        """The encoder looks both ways, the decoder back."""
        blocks = [
            vaswani_block(
                config.width, config.heads, config.hidden, cross=cross, norm=config.norm, activation=config.activation,
                dropout=config.dropout, attention_dropout=config.attention_dropout, feed_dropout=config.feed_dropout,
            )
            for _ in range(depth)
        ]  # fmt: skip
        last = Norm(config.width) if config.norm == "pre" else None
        return Stack(blocks, last, inside(config, depth, both_ways=not cross))

    return Transformer(
        tokens=Tokens(config.vocabulary, config.width, config.scaled, config.output_bias),
        position=added(config),
        encoder=stack(config.depth, cross=False),
        decoder=stack(config.decoder_depth, cross=True),
        dropout=config.dropout,
        shift=config.shift,
    )


def _attention(ours: str, theirs: str, *matrices: str) -> tuple[Any, ...]:
    """`matrices` are ours; each letter of their names is a matrix over there."""
    names = [
        entry(f"{ours}.inner.{name}.{{part}}", *(f"{theirs}.{letter}_proj.{{part}}" for letter in name))
        for name in matrices
    ]
    return (*names, entry(f"{ours}.inner.out.{{part}}", f"{theirs}.out_proj.{{part}}"))


def _block(side: str, decoder: bool) -> tuple[Any, ...]:
    ours, theirs = f"{side}.blocks.{{n}}", f"model.{side}.layers.{{n}}"
    cross = (
        *_attention(f"{ours}.cross", f"{theirs}.encoder_attn", "q", "kv"),
        entry(f"{ours}.cross.norm.{{part}}", f"{theirs}.encoder_attn_layer_norm.{{part}}"),
    )
    return (
        *_attention(f"{ours}.attend", f"{theirs}.self_attn", "qkv"),
        entry(f"{ours}.attend.norm.{{part}}", f"{theirs}.self_attn_layer_norm.{{part}}"),
        *(cross if decoder else ()),
        entry(f"{ours}.feed.inner.up.{{part}}", f"{theirs}.fc1.{{part}}"),
        entry(f"{ours}.feed.inner.down.{{part}}", f"{theirs}.fc2.{{part}}"),
        entry(f"{ours}.feed.norm.{{part}}", f"{theirs}.final_layer_norm.{{part}}"),
    )


NAMES = Names(
    entries=(
        entry("tokens.table.weight", "model.shared.weight"),
        entry("tokens.bias", "final_logits_bias"),
        *_block("encoder", decoder=False),
        *_block("decoder", decoder=True),
    ),
    copies=("lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"),
    drop=("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"),
)

PUBLISHED = Published(
    model_type="marian",
    architecture="MarianMTModel",
    keys={
        "width": ("d_model",),
        "depth": ("encoder_layers",),
        "decoder_depth": ("decoder_layers",),
        "heads": ("encoder_attention_heads", "decoder_attention_heads"),
        "hidden": ("encoder_ffn_dim", "decoder_ffn_dim"),
        "vocabulary": ("vocab_size", "decoder_vocab_size"),
        "dropout": ("dropout",),
        "attention_dropout": ("attention_dropout",),
        "feed_dropout": ("activation_dropout",),
        "activation": ("activation_function",),
        "scaled": ("scale_embedding",),
        "length": ("max_position_embeddings",),
        "pad": ("pad_token_id",),
        "start": ("decoder_start_token_id",),
        "end": ("eos_token_id",),
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
    harmless=("extra_pos_embeddings", "classif_dropout", "classifier_dropout", "num_hidden_layers", "decoder_*_token_id"),
    written={"forced_eos_token_id": None, "bos_token_id": None},
    values={"activation": {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}},
)  # fmt: skip


def adapt(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Tied copies and stored sines must be what we compute; a logits bias that is all zero is none."""
    tensors = tied(tensors, TABLE, NAMES.copies)
    for name in NAMES.drop:
        if name in tensors and not _sines(tensors[name], config):
            raise WeightsError(f"{name} holds positions that are not the sines and cosines of the paper.")
    bias = tensors.pop("final_logits_bias", None)
    if bias is not None and bias.numel() != config.vocabulary:
        raise WeightsError(
            f"final_logits_bias (tokens.bias) has {bias.numel()} numbers for {config.vocabulary} tokens."
        )
    if bias is None or not (config.output_bias or bias.any()):
        return config, tensors
    return replace(config, output_bias=True), {**tensors, "final_logits_bias": bias.flatten()}


TABLE = "model.shared.weight"


def _sines(table: Tensor, config: Config) -> bool:
    if table.ndim != 2 or table.shape[1] != config.width:
        return False
    wanted = Sinusoid(config.width, "halves")(torch.arange(len(table)))
    return torch.allclose(table.double(), wanted, atol=1e-2 if table.element_size() < 4 else 1e-5)


def dress(config: Config, tensors: Tensors) -> Tensors:
    bias = tensors.get("final_logits_bias", tensors[TABLE].new_zeros(config.vocabulary))
    return {**tensors, "final_logits_bias": bias[None]}


def unsayable(config: Config) -> str:
    if config.norm == "post" and config.positions == "halves" and config.relative == "none":
        return ""
    return (
        "the published layout knows post-norm and [sin | cos] positions only; this model has "
        f"norm={config.norm}, positions={config.positions} and relative={config.relative}."
    )


SYSTEM = System(
    name="transformer", about="encoder–decoder of 2017: sequence to sequence", config=Config, presets=PRESETS, build=build,
    names=NAMES, published=PUBLISHED, tasks=("translate", "recall"), recipes=RECALLS, adapt=adapt, dress=dress,
    unsayable=unsayable,
)  # fmt: skip
