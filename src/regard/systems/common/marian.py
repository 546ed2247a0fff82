"""Tensor names of the Transformer in Hugging Face format: Marian."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.errors import WeightsError
from regard.nn.attention.positions import SinusoidalPosition
from regard.weights.tables import NameTable, Tensors, entry, layer

SHARED_EMBEDDING = "model.shared.weight"
_BLOCK = {
    "attend.inner.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attend.inner.out": ("self_attn.out_proj",),
    "attend.norm": ("self_attn_layer_norm",),
    "cross.inner.q": ("encoder_attn.q_proj",),
    "cross.inner.kv": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross.inner.out": ("encoder_attn.out_proj",),
    "cross.norm": ("encoder_attn_layer_norm",),
    "feed.inner.up": ("fc1",),
    "feed.inner.down": ("fc2",),
    "feed.norm": ("final_layer_norm",),
}
"""Modules of a block, and their names in Marian."""

MARIAN_NAMES = NameTable(
    entries=(
        entry("tokens.table.weight", SHARED_EMBEDDING),
        entry("tokens.bias", "final_logits_bias"),
        *(
            layer(f"{{side}}.blocks.{{n}}.{ours}", *(f"model.{{side}}.layers.{{n}}.{name}" for name in theirs))
            for ours, theirs in _BLOCK.items()
        ),
    ),
    tied=dict.fromkeys(
        ("lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"), SHARED_EMBEDDING
    ),
    drop=("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"),
)


def from_marian(config: Any, tensors: Tensors) -> tuple[Any, Tensors]:
    """Check stored sinusoidal tables, and drop an output bias of zeros."""
    for name in MARIAN_NAMES.drop:
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


def to_marian(config: Any, tensors: Tensors) -> Tensors:
    bias = tensors.get("final_logits_bias", tensors[SHARED_EMBEDDING].new_zeros(config.vocab_size))
    return {**tensors, "final_logits_bias": bias[None]}
