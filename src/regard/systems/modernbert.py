"""Smarter, Better, Faster, Longer (Warner et al. 2024): ModernBERT, an encoder for 8192 tokens.

Differences from BERT: rotary positions; every third layer attends to all tokens, the others to 64 tokens on each side,
with another rotary base; gated feed-forward layers (GeGLU); pre-norm, without a norm before the first attention and with
a final norm; no biases; no segments and no next-sentence prediction."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from torch import nn

from regard.errors import WeightsError
from regard.nn.attention.attention import Attention
from regard.nn.attention.positions import Rotary
from regard.nn.blocks.block import FeedForward, Residual, Stack, TransformerBlock
from regard.nn.blocks.encoder import EncoderOnly
from regard.systems.common import bert, recipes
from regard.systems.common.system import EncoderConfig, Sizes, System, check_rotary_width, presets, reject, sizes
from regard.types import Traits
from regard.weights.tables import NameTable, entry, layer


@dataclass(frozen=True)
class Config(EncoderConfig, Sizes):
    depth: int = 22
    ffn_dim: int = 1152
    vocab_size: int = 50_368
    max_length: int = 8192
    local_attention: int = 128
    global_every: int = 3
    global_rope_base: float = 160_000.0
    local_rope_base: float = 10_000.0
    classifier_pooling: Literal["first", "mean"] = "first"
    classifier_activation: Literal["gelu", "gelu_tanh", "relu"] = "gelu"
    activation: Literal["gelu", "gelu_tanh", "relu"] = "gelu"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    head_dropout: float = 0.0
    norm_eps: float = 1e-5
    pad_id: int = 50_283
    bos_id: int = 50_281
    eos_id: int = 50_282
    mask_id: int = 50_284

    def check(self) -> None:
        check_rotary_width(self)
        reject(
            self.local_attention < 2 or self.local_attention % 2,
            f"model.local_attention must be an even number of tokens, got {self.local_attention}.",
        )

    @cached_property
    def traits(self) -> Traits:
        return replace(super().traits, head_activation=self.classifier_activation, head_norm_eps=self.norm_eps)


MINI = sizes(256, 6, 4, 384) | bert.TOKENS | {"max_length": 512}
PAPER_RECIPE = recipes.get("modernbert")
PRESETS = presets(
    Config(),
    ("modernbert-mini", 5_467_456, recipes.get("bert_small", lr=1e-3), MINI),
    ("modernbert-base", 149_655_232, PAPER_RECIPE, {}),
    ("modernbert-large", 395_881_664, PAPER_RECIPE, sizes(1024, 28, 16, 2624)),
)


def build(config: Config) -> EncoderOnly:
    width, head_width = config.width, config.width // config.heads
    norm = functools.partial(nn.LayerNorm, bias=False)

    def block(number: int) -> TransformerBlock:
        attention = Attention(width, config.heads, bias=False, dropout=config.attention_dropout)
        feed = FeedForward(width, config.ffn_dim, config.activation, config.dropout, bias=False, gated=True)
        return TransformerBlock(
            attend=Residual(
                attention, width, "pre" if number else None, config.attention_dropout, config.norm_eps, norm
            ),
            feed=Residual(feed, width, "pre", 0.0, config.norm_eps, norm),
        )

    layers = [number % config.global_every == 0 for number in range(config.depth)]
    rotary = Rotary(head_width, "halves", config.global_rope_base), Rotary(head_width, "halves", config.local_rope_base)
    return EncoderOnly(
        bert.build_embedding(config, 0, norm=norm),
        encoder=Stack(
            [block(number) for number in range(config.depth)],
            norm=norm(width, config.norm_eps),
            position=[rotary[0] if full else rotary[1] for full in layers],
        ),
        windows=[None if full else config.local_attention // 2 for full in layers],
        pool=config.classifier_pooling,
    )


OURS, THEIRS = "encoder.blocks.{n}", "model.layers.{n}"


def _layer_types(depth: int, every: int) -> list[str]:
    return ["sliding_attention" if number % every else "full_attention" for number in range(depth)]


def _before_read(config: dict[str, Any]) -> dict[str, Any]:
    """Config of transformers 4, with a period of global layers and two rotary bases, from the lists of transformers 5."""
    types, rope = config.pop("layer_types", None), config.pop("rope_parameters", None) or {}
    if types is not None:
        every = next((number for number in range(1, len(types)) if types[number] == "full_attention"), len(types))
        if types != _layer_types(len(types), every):
            raise WeightsError(f"config.json: layer_types={types} is not supported: global layers must be periodic.")
        config["global_attn_every_n_layers"] = every
    for kind, key in (("full_attention", "global_rope_theta"), ("sliding_attention", "local_rope_theta")):
        found = {"rope_type": "default", **(rope.get(kind) or {})}
        if "rope_theta" in found:
            config[key] = found.pop("rope_theta")
        if found != {"rope_type": "default"}:
            raise WeightsError(f"config.json: rope_parameters.{kind}={found} is not supported.")
    return config


def _before_write(fields: dict[str, Any]) -> dict[str, Any]:
    bases = {"full_attention": fields["global_rope_base"], "sliding_attention": fields["local_rope_base"]}
    rope = {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()}
    return {**fields, "layer_types": _layer_types(fields["depth"], fields["global_every"]), "rope_parameters": rope}


BIASES = ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias")
PUBLISHED = bert.published_layout(
    "modernbert",
    "ModernBert",
    Config,
    names=NameTable(
        entries=(
            entry("embedding.tokens.table.weight", "model.embeddings.tok_embeddings.weight"),
            entry("embedding.norm.weight", "model.embeddings.norm.weight"),
            entry(f"{OURS}.attend.norm.weight", f"{THEIRS}.attn_norm.weight"),
            entry(f"{OURS}.attend.inner.qkv.weight", f"{THEIRS}.attn.Wqkv.weight"),
            entry(f"{OURS}.attend.inner.out.weight", f"{THEIRS}.attn.Wo.weight"),
            entry(f"{OURS}.feed.norm.weight", f"{THEIRS}.mlp_norm.weight"),
            entry(f"{OURS}.feed.inner.up.weight", f"{THEIRS}.mlp.Wi.weight"),
            entry(f"{OURS}.feed.inner.down.weight", f"{THEIRS}.mlp.Wo.weight"),
            entry("encoder.norm.weight", "model.final_norm.weight"),
            *(entry(f"head.{part}.weight", f"head.{part}.weight") for part in ("dense", "norm")),
            *(entry(f"head.words.{part}.weight", f"head.{part}.weight") for part in ("dense", "norm")),
            *(layer(f"head.{ours}", "classifier") for ours in ("classes", "choice", "tags", "ends")),
            entry("head.words.bias", "decoder.bias"),
        ),
        tied={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
        heads=("head.*", "classifier.*", "decoder.*"),
        prefix="model.",
    ),
    named_alike=("norm_eps", "attention_dropout", "local_attention", "classifier_pooling", "classifier_activation"),
    keys={
        "activation": ("hidden_activation",),
        "dropout": ("embedding_dropout", "mlp_dropout"),
        "global_every": ("global_attn_every_n_layers",),
        "global_rope_base": ("global_rope_theta",),
        "local_rope_base": ("local_rope_theta",),
    },
    defaults={"classifier_dropout": 0.0},
    fixed={**dict.fromkeys(BIASES, False), "decoder_bias": True},
    ignored_keys=("initializer_*", "deterministic_flash_attn", "sparse_pred*", "re*", "position_*"),
    value_maps={"classifier_activation": bert.ACTIVATIONS, "classifier_pooling": {"cls": "first", "mean": "mean"}},
    copied_fields={
        "layer_types": "layer_types",
        "rope_parameters": "rope_parameters",
        "bos_token_id": "bos_id",
        "eos_token_id": "eos_id",
    },
    before_read=_before_read,
    before_write=_before_write,
    head_architectures={"choose": "ModernBertForMultipleChoice"},
)

DESCRIPTION = "ModernBERT (2024), encoder with local and global attention"
SYSTEM = System("modernbert", DESCRIPTION, Config, PRESETS, build, recipes.MODERNBERT, PUBLISHED)
