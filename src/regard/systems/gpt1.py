"""Improving Language Understanding by Generative Pre-Training (Radford et al. 2018): GPT-1.

What is new against the Transformer: the decoder alone is trained to go on with books, and then, with one new matrix, to do
any task whose input can be written as one text. Positions are learned; the feed-forward layers have GELUs (in its tanh
form); norms stand after the sub-layers as in 2017, and there is none at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from regard.nn.attention.positions import added
from regard.nn.attention.relative_positions import Relative, check_relative, inside
from regard.nn.blocks.block import Stack, Tokens
from regard.nn.blocks.decoder import DecoderOnly, gpt_blocks, gpt_weights
from regard.systems.common import gpt
from regard.systems.common.system import Preset, System, check_sizes
from regard.weights.tables import Names, Published, Tensors, entry, tied, turned, under


@dataclass(frozen=True)
class Config:
    width: int = 768
    """width of the states"""
    depth: int = 12
    """blocks"""
    heads: int = 12
    """attention heads"""
    hidden: int = 3072
    """inner width of the feed-forward layers"""
    vocabulary: int = 40_478
    """tokens"""
    length: int = 512
    """longest context: there are no more learned positions"""
    positions: Literal["learned", "none"] = "learned"
    """positions that are added: learned, or none"""
    relative: Relative = "none"
    """positions inside attention: rotary, rotary-halves (as LLaMA's), buckets (T5's), shaw, or none"""
    dropout: float = 0.1
    """share dropped of each sub-layer's output"""
    attention_dropout: float = 0.1
    """share dropped of the attention weights"""
    embedding_dropout: float = 0.1
    """share dropped of the embeddings"""
    eps: float = 1e-5
    """small number in the layer norms"""
    end: int = 0
    """id of the token that ends and begins documents; the published vocabulary has none, and <unk> stands for it"""

    def __post_init__(self) -> None:
        sizes = ("width", "depth", "heads", "hidden", "vocabulary", "length")
        check_sizes(self, sizes, ("dropout", "attention_dropout", "embedding_dropout"))
        check_relative(self)


PAPER: dict[str, dict[str, Any]] = {
    "train": {
        "passes": 100, "tokens": 8192, "accumulate": 4, "rate": 2.5e-4, "warmup": 2000, "schedule": "cosine",
        "smoothing": 0.0, "betas": "0.9,0.999", "eps": 1e-8, "decay": 0.01, "clip": 1.0,
    },
    "data": {"vocabulary": 40_478},
    "decode": {"sample": True, "top_k": 40},
}  # fmt: skip
"""64 rows of 512 tokens a step."""

PRESETS = {"gpt1": Preset(Config(), 116_534_784, PAPER)}


def build(config: Config) -> DecoderOnly:
    """The whole machine."""
    body = DecoderOnly(
        tokens=Tokens(config.vocabulary, config.width, scaled=False),
        position=added(config),
        decoder=Stack(gpt_blocks(config, "post"), position=inside(config, config.depth)),
        dropout=config.embedding_dropout,
    )
    return gpt_weights(body)


OURS, THEIRS = "decoder.blocks.{n}", "transformer.h.{n}"
NAMES = Names(
    entries=(
        entry("tokens.table.weight", "transformer.tokens_embed.weight"),
        entry("position.table.weight", "transformer.positions_embed.weight"),
        *turned(f"{OURS}.attend.inner.qkv", f"{THEIRS}.attn.c_attn"),
        *turned(f"{OURS}.attend.inner.out", f"{THEIRS}.attn.c_proj"),
        entry(f"{OURS}.attend.norm.{{part}}", f"{THEIRS}.ln_1.{{part}}"),
        *turned(f"{OURS}.feed.inner.up", f"{THEIRS}.mlp.c_fc"),
        *turned(f"{OURS}.feed.inner.down", f"{THEIRS}.mlp.c_proj"),
        entry(f"{OURS}.feed.norm.{{part}}", f"{THEIRS}.ln_2.{{part}}"),
        *gpt.HEADS,
    ),
    copies=("lm_head.weight",),
    drop=(f"{THEIRS}.attn.bias", "transformer.position_ids"),
    heads=("score.*", "multiple_choice_head.*"),
)

PUBLISHED = Published(
    model_type="openai-gpt",
    architecture="OpenAIGPTLMHeadModel",
    keys={
        "width": ("n_embd",),
        "depth": ("n_layer",),
        "heads": ("n_head",),
        "vocabulary": ("vocab_size",),
        "length": ("n_positions",),
        "dropout": ("resid_pdrop",),
        "attention_dropout": ("attn_pdrop",),
        "embedding_dropout": ("embd_pdrop",),
        "eps": ("layer_norm_epsilon",),
        "end": ("eos_token_id",),
    },
    defaults={
        "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 40_478, "n_positions": 512, "resid_pdrop": 0.1,
        "attn_pdrop": 0.1, "embd_pdrop": 0.1, "layer_norm_epsilon": 1e-5,
    },
    fixed={"afn": "gelu", "tie_word_embeddings": True, "is_encoder_decoder": False},
    harmless=("n_ctx", "n_special", "initializer_range", "summary_*", "pad_token_id", "predict_special_tokens"),
    copied={"bos_token_id": "end"},
    filled=lambda fields: {**fields, "hidden": 4 * fields["width"], "end": fields["end"] or 0},
    heads={"classify": "OpenAIGPTForSequenceClassification", "choose": "OpenAIGPTDoubleHeadsModel"},
    only=gpt.ONLY,
)  # fmt: skip


def adapt(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Files of the bare body have no prefix, and old ones bring their masks along."""
    tensors = under(tensors, "transformer.", (*NAMES.copies, *NAMES.heads))
    return config, tied(tensors, "transformer.tokens_embed.weight", NAMES.copies)


def unsayable(config: Config) -> str:
    if config.positions != "learned" or config.relative != "none":
        return (
            "the published layout knows learned positions only; this model has "
            f"positions={config.positions} and relative={config.relative}."
        )
    if config.hidden == 4 * config.width:
        return ""
    return (
        f"the published layout has feed-forward layers of four times the width; this model has hidden={config.hidden}."
    )


SYSTEM = System(
    name="gpt1", about="decoder-only of 2018: trained on books, tuned for tasks", config=Config, presets=PRESETS,
    build=build, names=NAMES, published=PUBLISHED, tasks=("language", *gpt.TASKS), adapt=adapt,
    dress=gpt.dress, unsayable=unsayable, recipes=gpt.RECIPES, further=gpt.FURTHER,
)  # fmt: skip
