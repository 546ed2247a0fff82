"""Tensor names, config keys and recipes shared by encoders like BERT."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from torch import nn

from regard.nn.attention.positions import AbsolutePosition
from regard.nn.blocks.block import TokenEmbedding
from regard.nn.blocks.encoder import EncoderEmbedding
from regard.systems.common.system import sizes
from regard.weights.tables import NameEntry, NameTable, PublishedLayout, entry, layer

TOKENS: dict[str, Any] = {"vocab_size": 8000, "pad_id": 0, "bos_id": 2, "eos_id": 3, "mask_id": 4}
MINI = sizes(256, 4, 4) | TOKENS

HEADS = {
    "mlm": "MaskedLM",
    "classify": "SequenceClassification",
    "tag": "TokenClassification",
    "qa": "QuestionAnswering",
}


def build_embedding(
    config: Any,
    types: int,
    position: Callable[[], AbsolutePosition | None] = lambda: None,
    norm: Callable[[int, float], nn.LayerNorm] = nn.LayerNorm,
    width: int = 0,
    **settings: Any,
) -> EncoderEmbedding:
    """Embeddings of tokens, of `types` segments and of positions. `width`: if different from the hidden size; `settings`:
    further arguments of EncoderEmbedding."""
    width = width or config.width
    return EncoderEmbedding(
        tokens=TokenEmbedding(config.vocab_size, width, scaled=False),
        position=position(),
        types=nn.Embedding(types, width) if types else None,
        norm=norm(width, config.norm_eps),
        dropout=config.dropout,
        **settings,
    )


def published_layout(model_type: str, name: str, config: type[Any], names: NameTable, **more: Any) -> PublishedLayout:
    """Layout of an encoder with the classes of `name` in transformers; `more` is merged with the keys of BERT.
    `named_alike`: fields whose key has the same name."""
    used, alike = {item.name for item in fields(config)}, more.pop("named_alike", ())
    after_read = more.pop("after_read", lambda read: read)
    shared: dict[str, dict[str, Any]] = {
        "keys": {ours: keys for ours, keys in KEYS.items() if ours in used} | {ours: (ours,) for ours in alike},
        "defaults": {"classifier_dropout": None},
        "fixed": {"tie_word_embeddings": True},
        "value_maps": {"activation": ACTIVATIONS},
        "head_architectures": {task: f"{name}For{head}" for task, head in HEADS.items()} | {"embed": f"{name}Model"},
    }
    return PublishedLayout(
        model_type=model_type,
        architecture=f"{name}Model",
        config=config,
        ignored_keys=("initializer_range", "eos_token_id", *more.pop("ignored_keys", ())),
        after_read=lambda read: fill_fields(after_read(read)),
        names=names,
        **{**more, **{key: {**values, **more.get(key, {})} for key, values in shared.items()}},
    )


def encoder_entries(prefix: str, global_projections: bool = False, suffix: str = "") -> tuple[NameEntry, ...]:
    """Entries of embeddings and blocks; `global_projections`: global tokens have separate matrices (Longformer); `suffix`:
    end of the names of queries, keys and values."""
    ours, theirs = "encoder.blocks.{n}", f"{prefix}.encoder.layer.{{n}}"

    def look(matrix: str, kind: str, *parts: str) -> NameEntry:
        return layer(f"{ours}.attend.inner.{matrix}", *(f"{theirs}.attention.self.{name}{kind}" for name in parts))

    reaching = (look("far_q", "_global", "query"), look("far_kv", "_global", "key", "value"))
    return (
        entry("embedding.tokens.table.weight", f"{prefix}.embeddings.word_embeddings.weight"),
        entry("embedding.types.weight", f"{prefix}.embeddings.token_type_embeddings.weight"),
        layer("embedding.norm", f"{prefix}.embeddings.LayerNorm"),
        look("qkv", suffix, "query", "key", "value"),
        *(reaching if global_projections else ()),
        layer(f"{ours}.attend.inner.out", f"{theirs}.attention.output.dense"),
        layer(f"{ours}.attend.norm", f"{theirs}.attention.output.LayerNorm"),
        layer(f"{ours}.feed.inner.up", f"{theirs}.intermediate.dense"),
        layer(f"{ours}.feed.inner.down", f"{theirs}.output.dense"),
        layer(f"{ours}.feed.norm", f"{theirs}.output.LayerNorm"),
    )


KEYS: dict[str, tuple[str, ...]] = {
    "width": ("hidden_size",), "depth": ("num_hidden_layers",), "heads": ("num_attention_heads",),
    "ffn_dim": ("intermediate_size",), "vocab_size": ("vocab_size",), "max_length": ("max_position_embeddings",),
    "type_vocab_size": ("type_vocab_size",), "dropout": ("hidden_dropout_prob",),
    "attention_dropout": ("attention_probs_dropout_prob",), "head_dropout": ("classifier_dropout",),
    "activation": ("hidden_act",), "norm_eps": ("layer_norm_eps",), "pad_id": ("pad_token_id",),
    "bos_id": ("cls_token_id",), "eos_id": ("sep_token_id",), "mask_id": ("mask_token_id",),
}  # fmt: skip

ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}
"""Activation functions: name in Hugging Face, and name in regard."""


def fill_fields(read: dict[str, Any]) -> dict[str, Any]:
    """Complete missing fields. Hugging Face configs have no ids of special tokens: the ids of BERT are used, limited to
    the vocabulary size; the ids of a tokenizer in the folder have priority."""
    last = read["vocab_size"] - 1
    special = {name: min(read[name], last) for name in ("bos_id", "eos_id", "mask_id")}
    dropout = read["dropout"] if read["head_dropout"] is None else read["head_dropout"]
    return {**read, **special, "head_dropout": dropout}


HEAD_ENTRIES = (layer("head.tags", "classifier"), layer("head.ends", "qa_outputs"))

CLASSIFIER_ENTRIES = (layer("head.classes", "classifier"), layer("head.choice", "classifier"))

MLM_ENTRIES = (
    layer("head.words.dense", "cls.predictions.transform.dense"),
    layer("head.words.norm", "cls.predictions.transform.LayerNorm"),
    entry("head.words.bias", "cls.predictions.bias"),
)


def tied_output(prefix: str) -> dict[str, str]:
    """Copies of the output layer of the masked-token head in some files, and the tensors that they are tied to."""
    return {
        "cls.predictions.decoder.weight": f"{prefix}.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }
