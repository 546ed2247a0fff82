"""Tensor names of Marian in Hugging Face format, the format of encoder–decoder Transformers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.errors import WeightsError
from regard.nn.attention.positions import SinusoidalPosition
from regard.weights.tables import NameEntry, NameTable, Tensors, entry, layer


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


def from_published(config: Any, tensors: Tensors) -> tuple[Any, Tensors]:
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


def to_published(config: Any, tensors: Tensors) -> Tensors:
    bias = tensors.get("final_logits_bias", tensors[SHARED_EMBEDDING].new_zeros(config.vocab_size))
    return {**tensors, "final_logits_bias": bias[None]}
