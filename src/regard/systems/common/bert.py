"""What all published encoders of BERT's kind share: how their parts are called, and how they are fine-tuned."""

from __future__ import annotations

from typing import Any

from regard.errors import SettingError
from regard.nn.blocks.block import Block, vaswani_block
from regard.weights.tables import Entry, Tensors, entry, tied

TASKS = ("mask", "classify", "tag", "span", "choose", "embed")


def encoder_blocks(config: Any) -> list[Block]:
    """Post-norm blocks, from the sizes of a config."""
    return [
        vaswani_block(
            config.width, config.heads, config.hidden, norm="post", activation=config.activation, dropout=config.dropout,
            attention_dropout=config.attention_dropout, eps=config.eps,
        )
        for _ in range(config.depth)
    ]  # fmt: skip


def names(prefix: str, far: bool = False) -> tuple[Entry, ...]:
    """Of tokens, types and blocks under a prefix; `far`: marked tokens have matrices of their own."""
    ours, theirs = "encoder.blocks.{n}", f"{prefix}.encoder.layer.{{n}}"

    def look(matrix: str, kind: str, *parts: str) -> Entry:
        return entry(
            f"{ours}.attend.inner.{matrix}.{{part}}",
            *(f"{theirs}.attention.self.{name}{kind}.{{part}}" for name in parts),
        )

    reaching = (look("far_q", "_global", "query"), look("far_kv", "_global", "key", "value"))
    return (
        entry("embedding.tokens.table.weight", f"{prefix}.embeddings.word_embeddings.weight"),
        entry("embedding.types.weight", f"{prefix}.embeddings.token_type_embeddings.weight"),
        entry("embedding.norm.{part}", f"{prefix}.embeddings.LayerNorm.{{part}}"),
        look("qkv", "", "query", "key", "value"),
        *(reaching if far else ()),
        entry(f"{ours}.attend.inner.out.{{part}}", f"{theirs}.attention.output.dense.{{part}}"),
        entry(f"{ours}.attend.norm.{{part}}", f"{theirs}.attention.output.LayerNorm.{{part}}"),
        entry(f"{ours}.feed.inner.up.{{part}}", f"{theirs}.intermediate.dense.{{part}}"),
        entry(f"{ours}.feed.inner.down.{{part}}", f"{theirs}.output.dense.{{part}}"),
        entry(f"{ours}.feed.norm.{{part}}", f"{theirs}.output.LayerNorm.{{part}}"),
    )


KEYS: dict[str, tuple[str, ...]] = {
    "width": ("hidden_size",),
    "depth": ("num_hidden_layers",),
    "heads": ("num_attention_heads",),
    "hidden": ("intermediate_size",),
    "vocabulary": ("vocab_size",),
    "length": ("max_position_embeddings",),
    "types": ("type_vocab_size",),
    "dropout": ("hidden_dropout_prob",),
    "attention_dropout": ("attention_probs_dropout_prob",),
    "head_dropout": ("classifier_dropout",),
    "activation": ("hidden_act",),
    "eps": ("layer_norm_eps",),
    "pad": ("pad_token_id",),
    "start": ("cls_token_id",),
    "end": ("sep_token_id",),
    "mask": ("mask_token_id",),
}
"""Fields of a config, as published ones call them."""

DEFAULTS: dict[str, Any] = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
    "vocab_size": 30_522, "max_position_embeddings": 512, "type_vocab_size": 2, "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "layer_norm_eps": 1e-12, "pad_token_id": 0,
    "cls_token_id": 101, "sep_token_id": 102, "mask_token_id": 103,
}  # fmt: skip
"""What they mean where they say nothing."""

ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}
"""Published names of non-linearities -> ours."""


def check_pairs(config: Any) -> None:
    """Channels are turned in pairs."""
    if config.width // config.heads % 2:
        raise SettingError(
            f"model.width {config.width} among model.heads {config.heads} are {config.width // config.heads} channels a head: "
            "rotary positions turn them in pairs, and need an even number."
        )


def one_bias(tensors: Tensors) -> Tensors:
    """The bias of hidden words, which some files hold twice."""
    own, copy = "cls.predictions.bias", "cls.predictions.decoder.bias"
    return tied(tensors, own, (copy,)) if own in tensors or copy in tensors else tensors


def filled(fields: dict[str, Any]) -> dict[str, Any]:
    """What a config leaves out. Published ones do not say which tokens are special: those of BERT's own vocabulary are meant
    where it has so many, and a tokenizer beside it knows better."""
    last = fields["vocabulary"] - 1
    special = {name: min(fields[name], last) for name in ("start", "end", "mask")}
    dropout = fields["dropout"] if fields["head_dropout"] is None else fields["head_dropout"]
    return {**fields, **special, "head_dropout": dropout}


HEADS = (
    entry("head.tags.{part}", "classifier.{part}"),
    entry("head.ends.{part}", "qa_outputs.{part}"),
)
"""Of tag and span: the same everywhere."""

PREDICTIONS = (
    entry("head.words.dense.{part}", "cls.predictions.transform.dense.{part}"),
    entry("head.words.norm.{part}", "cls.predictions.transform.LayerNorm.{part}"),
    entry("head.words.bias", "cls.predictions.bias"),
)
"""Of mask, as BERT and RoFormer call them."""

_ADAM: dict[str, Any] = {"betas": "0.9,0.999", "eps": 1e-8, "decay": 0.01, "clip": 1.0, "smoothing": 0.0}


def pretraining(vocabulary: int = 30_522, longest: int = 512, **train: Any) -> dict[str, dict[str, Any]]:
    """BERT's: 256 rows of 512 tokens a step, a million steps; the rate falls linearly after a warm-up."""
    usual = {
        "steps": 1_000_000, "tokens": 8192, "accumulate": 16, "rate": 1e-4, "warmup": 10_000, "schedule": "linear",
        **_ADAM, "eps": 1e-6,
    }  # fmt: skip
    return {
        "train": {**usual, **train},
        "data": {"kind": "wordpiece", "vocabulary": vocabulary, "longest": longest},
    }


def small(**train: Any) -> dict[str, dict[str, Any]]:
    """For laptops."""
    return pretraining(8000, 128, **{"accumulate": 1, **train})


def _tuning(passes: int, tokens: int, rate: float, longest: int, **more: Any) -> dict[str, dict[str, Any]]:
    train = {"passes": passes, "tokens": tokens, "rate": rate, "warmup": 0.1, "schedule": "linear", "accumulate": 1}
    return {"train": {**train, **_ADAM, "every": 500, **more}, "data": {"longest": longest}}


TUNING: dict[str, dict[str, dict[str, Any]]] = {
    "classify": _tuning(3, 1024, 3e-5, 256),
    "choose": _tuning(3, 4096, 2e-5, 256),
    "tag": _tuning(3, 1024, 5e-5, 256),
    "span": _tuning(2, 8192, 3e-5, 384),
    "embed": _tuning(1, 8192, 2e-5, 256),
}
"""Two to four epochs at 2e-5 to 5e-5, batches of 16 or 32 texts: the tokens stand for so many of the usual length."""

FURTHER: dict[str, dict[str, dict[str, Any]]] = {
    **TUNING,
    "mask": {
        "train": {
            "steps": 2000, "tokens": 8192, "accumulate": 1, "rate": 5e-5, "warmup": 100, "schedule": "linear", **_ADAM,
            "every": 250,
        },
        "data": {"longest": 512},
    },
}  # fmt: skip
"""For weights that have learnt already."""
