"""Language Models are Unsupervised Multitask Learners (Radford et al. 2019): GPT-2.

What is new against the Transformer: the decoder alone, without a source; learned positions; norms before the sub-layers
and one at the end; byte-level tokens. Trained to go on with text, it is asked by text: no head, no task of its own.

Optimiser, schedule and number of steps were never published; the recipes here are what its reproductions use.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from regard.nn.attention.positions import added
from regard.nn.attention.relative_positions import Relative, check_relative, inside
from regard.nn.blocks.block import Stack, Tokens
from regard.nn.blocks.decoder import DecoderOnly, gpt_blocks, gpt_weights
from regard.nn.blocks.norm import Norm
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
    vocabulary: int = 50_257
    """tokens"""
    length: int = 1024
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
    end: int = 50_256
    """id of the token that ends and begins documents"""

    def __post_init__(self) -> None:
        sizes = ("width", "depth", "heads", "hidden", "vocabulary", "length")
        check_sizes(self, sizes, ("dropout", "attention_dropout", "embedding_dropout"))
        check_relative(self)


def _recipe(vocabulary: int, kind: str = "bytes", **train: Any) -> dict[str, dict[str, Any]]:
    usual = {"schedule": "cosine", "smoothing": 0.0, "betas": "0.9,0.95", "eps": 1e-8, "decay": 0.1, "clip": 1.0}
    return {
        "train": {**usual, **train},
        "data": {"vocabulary": vocabulary, "kind": kind},
        "decode": {"sample": True, "top_k": 40},  # as the samples of the paper were drawn
    }


def _published(rate: float) -> dict[str, dict[str, Any]]:
    """Half a million tokens a step: 512 rows of 1024."""
    return _recipe(50_257, steps=100_000, tokens=16_384, accumulate=32, rate=rate, warmup=2000)


SMALL = Config()
CALM: dict[str, Any] = {"dropout": 0.0, "attention_dropout": 0.0, "embedding_dropout": 0.0}
KEEN: dict[str, Any] = {"dropout": 0.2, "attention_dropout": 0.2, "embedding_dropout": 0.2}
PRESETS = {
    "gpt2-tiny-char": Preset(
        replace(SMALL, width=128, depth=4, heads=4, hidden=512, vocabulary=66, length=64, end=65, **CALM),
        809_984,
        _recipe(66, "characters", steps=2000, tokens=768, rate=4e-3, warmup=100, betas="0.9,0.99", every=250),
    ),
    "gpt2-char": Preset(
        replace(SMALL, width=384, depth=6, heads=6, hidden=1536, vocabulary=66, length=256, end=65, **KEEN),
        10_771_200,
        _recipe(66, "characters", steps=5000, tokens=16_384, rate=1e-3, warmup=100, betas="0.9,0.99", every=250),
    ),
    "gpt2-mini": Preset(
        replace(SMALL, width=256, depth=6, heads=4, hidden=1024, vocabulary=8000, length=256, end=7999),
        6_852_608,
        _recipe(8000, steps=10_000, tokens=8192, rate=1e-3, warmup=500),
    ),
    "gpt2-small": Preset(SMALL, 124_439_808, _published(6e-4)),
    "gpt2-medium": Preset(
        replace(SMALL, width=1024, depth=24, heads=16, hidden=4096), 354_823_168, _published(3e-4)
    ),
    "gpt2-large": Preset(
        replace(SMALL, width=1280, depth=36, heads=20, hidden=5120), 774_030_080, _published(2.5e-4)
    ),
    "gpt2-xl": Preset(
        replace(SMALL, width=1600, depth=48, heads=25, hidden=6400), 1_557_611_200, _published(2e-4)
    ),
}  # fmt: skip


def build(config: Config) -> DecoderOnly:
    """The whole machine. Weights begin as in OpenAI's code, where positions are N(0, 0.01)."""
    body = DecoderOnly(
        tokens=Tokens(config.vocabulary, config.width, scaled=False),
        position=added(config),
        decoder=Stack(gpt_blocks(config, "pre"), Norm(config.width, config.eps), inside(config, config.depth)),
        dropout=config.embedding_dropout,
    )
    return gpt_weights(body, positions=0.01, narrow=True)


OURS, THEIRS = "decoder.blocks.{n}", "transformer.h.{n}"
NAMES = Names(
    entries=(
        entry("tokens.table.weight", "transformer.wte.weight"),
        entry("position.table.weight", "transformer.wpe.weight"),
        entry(f"{OURS}.attend.norm.{{part}}", f"{THEIRS}.ln_1.{{part}}"),
        *turned(f"{OURS}.attend.inner.qkv", f"{THEIRS}.attn.c_attn"),
        *turned(f"{OURS}.attend.inner.out", f"{THEIRS}.attn.c_proj"),
        entry(f"{OURS}.feed.norm.{{part}}", f"{THEIRS}.ln_2.{{part}}"),
        *turned(f"{OURS}.feed.inner.up", f"{THEIRS}.mlp.c_fc"),
        *turned(f"{OURS}.feed.inner.down", f"{THEIRS}.mlp.c_proj"),
        entry("decoder.norm.{part}", "transformer.ln_f.{part}"),
        *gpt.HEADS,
    ),
    copies=("lm_head.weight",),
    drop=(f"{THEIRS}.attn.bias", f"{THEIRS}.attn.masked_bias"),
    heads=("score.*", "multiple_choice_head.*"),
)

PUBLISHED = Published(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    keys={
        "width": ("n_embd",),
        "depth": ("n_layer",),
        "heads": ("n_head",),
        "hidden": ("n_inner",),
        "vocabulary": ("vocab_size",),
        "length": ("n_positions",),
        "dropout": ("resid_pdrop",),
        "attention_dropout": ("attn_pdrop",),
        "embedding_dropout": ("embd_pdrop",),
        "eps": ("layer_norm_epsilon",),
        "end": ("eos_token_id",),
    },
    defaults={
        "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50_257, "n_positions": 1024, "resid_pdrop": 0.1,
        "attn_pdrop": 0.1, "embd_pdrop": 0.1, "layer_norm_epsilon": 1e-5, "eos_token_id": 50_256,
    },
    fixed={
        "activation_function": "gelu_new", "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False, "add_cross_attention": False, "tie_word_embeddings": True,
        "is_encoder_decoder": False,
    },
    harmless=("n_ctx", "initializer_range", "summary_*", "pad_token_id", "predict_special_tokens", "is_decoder"),
    copied={"bos_token_id": "end"},
    filled=lambda fields: {**fields, "hidden": fields["hidden"] or 4 * fields["width"]},
    heads={"classify": "GPT2ForSequenceClassification", "choose": "GPT2DoubleHeadsModel"},
    only=gpt.ONLY,
)  # fmt: skip


def adapt(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Files of the bare body have no prefix, and old ones bring their masks along."""
    tensors = under(tensors, "transformer.", (*NAMES.copies, *NAMES.heads))
    return config, tied(tensors, "transformer.wte.weight", NAMES.copies)


def unsayable(config: Config) -> str:
    if config.positions == "learned" and config.relative == "none":
        return ""
    return (
        "the published layout knows learned positions only; this model has "
        f"positions={config.positions} and relative={config.relative}."
    )


SYSTEM = System(
    name="gpt2", about="decoder-only of 2019: goes on with text", config=Config, presets=PRESETS, build=build, names=NAMES,
    published=PUBLISHED, tasks=("language", *gpt.TASKS), adapt=adapt, dress=gpt.dress,
    unsayable=unsayable, recipes=gpt.RECIPES, further=gpt.FURTHER,
)  # fmt: skip
