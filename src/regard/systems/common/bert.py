"""Tensor names, config keys and recipes shared by encoders like BERT."""

from __future__ import annotations

from typing import Any

from regard.errors import SettingError
from regard.nn.blocks.block import TransformerBlock, transformer_block
from regard.weights.tables import NameEntry, entry

TASKS = ("mlm", "classify", "tag", "qa", "choose", "embed")


def encoder_blocks(config: Any) -> list[TransformerBlock]:
    """Post-norm blocks with the sizes of a config."""
    return [
        transformer_block(
            config.width, config.heads, config.ffn_dim, norm="post", activation=config.activation, dropout=config.dropout,
            attention_dropout=config.attention_dropout, eps=config.norm_eps,
        )
        for _ in range(config.depth)
    ]  # fmt: skip


def encoder_entries(prefix: str, global_projections: bool = False) -> tuple[NameEntry, ...]:
    """Entries of embeddings and blocks; `global_projections`: global tokens have separate matrices (Longformer)."""
    ours, theirs = "encoder.blocks.{n}", f"{prefix}.encoder.layer.{{n}}"

    def look(matrix: str, kind: str, *parts: str) -> NameEntry:
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
        *(reaching if global_projections else ()),
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
    "ffn_dim": ("intermediate_size",),
    "vocab_size": ("vocab_size",),
    "max_length": ("max_position_embeddings",),
    "type_vocab_size": ("type_vocab_size",),
    "dropout": ("hidden_dropout_prob",),
    "attention_dropout": ("attention_probs_dropout_prob",),
    "head_dropout": ("classifier_dropout",),
    "activation": ("hidden_act",),
    "norm_eps": ("layer_norm_eps",),
    "pad_id": ("pad_token_id",),
    "bos_id": ("cls_token_id",),
    "eos_id": ("sep_token_id",),
    "mask_id": ("mask_token_id",),
}
"""Hugging Face keys of the config fields."""

ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}
"""Activation functions: name in Hugging Face, and name in regard."""


def check_rotary_width(config: Any) -> None:
    """Raise an error for an odd head size: rotary positions rotate pairs of channels."""
    if config.width // config.heads % 2:
        raise SettingError(
            "Rotary positions require an even number of channels per head; "
            f"model.width={config.width} / model.heads={config.heads} is {config.width // config.heads}."
        )


def fill_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Complete missing fields. Hugging Face configs have no ids of special tokens: the ids of BERT are used, limited to
    the vocabulary size; the ids of a tokenizer in the folder have priority."""
    last = fields["vocab_size"] - 1
    special = {name: min(fields[name], last) for name in ("bos_id", "eos_id", "mask_id")}
    dropout = fields["dropout"] if fields["head_dropout"] is None else fields["head_dropout"]
    return {**fields, **special, "head_dropout": dropout}


HEAD_ENTRIES = (
    entry("head.tags.{part}", "classifier.{part}"),
    entry("head.ends.{part}", "qa_outputs.{part}"),
)
"""Entries of the heads for tag and qa."""

MLM_ENTRIES = (
    entry("head.words.dense.{part}", "cls.predictions.transform.dense.{part}"),
    entry("head.words.norm.{part}", "cls.predictions.transform.LayerNorm.{part}"),
    entry("head.words.bias", "cls.predictions.bias"),
)
"""Entries of the masked-token head of BERT and RoFormer."""

_ADAM: dict[str, Any] = {
    "betas": "0.9,0.999",
    "eps": 1e-8,
    "weight_decay": 0.01,
    "grad_clip": 1.0,
    "label_smoothing": 0.0,
}


def pretraining_recipe(vocab_size: int = 30_522, max_length: int = 512, **train: Any) -> dict[str, dict[str, Any]]:
    """Pretraining of BERT: 256 rows of 512 tokens per step, one million steps, linear decay after warmup."""
    usual = {
        "steps": 1_000_000, "batch_tokens": 8192, "grad_accum": 16, "lr": 1e-4, "warmup_steps": 10_000, "lr_schedule": "linear",
        **_ADAM, "eps": 1e-6,
    }  # fmt: skip
    return {
        "train": {**usual, **train},
        "data": {"tokenizer_type": "wordpiece", "vocab_size": vocab_size, "max_length": max_length},
    }


def small_recipe(**train: Any) -> dict[str, dict[str, Any]]:
    """Recipe for small models on a laptop."""
    return pretraining_recipe(8000, 128, **{"grad_accum": 1, **train})


def _finetune_recipe(passes: int, tokens: int, rate: float, longest: int, **more: Any) -> dict[str, dict[str, Any]]:
    train = {
        "epochs": passes,
        "batch_tokens": tokens,
        "lr": rate,
        "warmup_steps": 0.1,
        "lr_schedule": "linear",
        "grad_accum": 1,
    }
    return {"train": {**train, **_ADAM, "eval_every": 500, **more}, "data": {"max_length": longest}}


TASK_RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "classify": _finetune_recipe(3, 1024, 3e-5, 256),
    "choose": _finetune_recipe(3, 4096, 2e-5, 256),
    "tag": _finetune_recipe(3, 1024, 5e-5, 256),
    "qa": _finetune_recipe(2, 8192, 3e-5, 384),
    "embed": _finetune_recipe(1, 8192, 2e-5, 256),
}
"""Two to four epochs at 2e-5 to 5e-5 in the paper, with 16 or 32 texts per batch; batch_tokens fits texts of typical
length."""

FINETUNE_RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    **TASK_RECIPES,
    "mlm": {
        "train": {
            "steps": 2000,
            "batch_tokens": 8192,
            "grad_accum": 1,
            "lr": 5e-5,
            "warmup_steps": 100,
            "lr_schedule": "linear",
            **_ADAM,
            "eval_every": 250,
        },
        "data": {"max_length": 512},
    },
}
"""Recipes for pretrained weights."""
