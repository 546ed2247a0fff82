"""Body, tensor names and config keys shared by the GPT models."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from regard.nn.attention.positions import make_absolute_position, make_position
from regard.nn.blocks.block import NormPlacement, Stack, TokenEmbedding, transformer_blocks
from regard.nn.blocks.decoder import DecoderOnly
from regard.weights.tables import NameEntry, Tensors, entry, layer, transposed_linear


def build_decoder(config: Any, norm: NormPlacement, **settings: Any) -> DecoderOnly:
    """Body of a GPT; pre-norm blocks have a final norm. `settings`: further arguments of DecoderOnly."""
    blocks = transformer_blocks(config, config.depth, norm=norm, activation="gelu_tanh", eps=config.norm_eps)
    last = nn.LayerNorm(config.width, config.norm_eps) if norm == "pre" else None
    return DecoderOnly(
        tokens=TokenEmbedding(config.vocab_size, config.width, scaled=False),
        position=make_absolute_position(config),
        decoder=Stack(blocks, last, make_position(config, config.depth)),
        dropout=config.embedding_dropout,
        **settings,
    )


KEYS: dict[str, tuple[str, ...]] = {
    "width": ("n_embd",), "depth": ("n_layer",), "heads": ("n_head",), "ffn_dim": ("n_inner",),
    "vocab_size": ("vocab_size",), "max_length": ("n_positions",), "dropout": ("resid_pdrop",),
    "attention_dropout": ("attn_pdrop",), "embedding_dropout": ("embd_pdrop",), "norm_eps": ("layer_norm_epsilon",),
    "eos_id": ("eos_token_id",),
}  # fmt: skip

FIXED: dict[str, Any] = {
    "activation_function": "gelu_new", "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False, "add_cross_attention": False, "tie_word_embeddings": True,
    "is_encoder_decoder": False,
}  # fmt: skip


def decoder_entries(body: str = "transformer", tokens: str = "wte", positions: str = "wpe") -> tuple[NameEntry, ...]:
    """Entries of embeddings, blocks and final norm; published names start with `body`."""
    ours, theirs = "decoder.blocks.{n}", f"{body}.h.{{n}}"
    return (
        entry("tokens.table.weight", f"{body}.{tokens}.weight"),
        entry("position.table.weight", f"{body}.{positions}.weight"),
        layer(f"{ours}.attend.norm", f"{theirs}.ln_1"),
        *transposed_linear(f"{ours}.attend.inner.qkv", f"{theirs}.attn.c_attn"),
        *transposed_linear(f"{ours}.attend.inner.out", f"{theirs}.attn.c_proj"),
        layer(f"{ours}.feed.norm", f"{theirs}.ln_2"),
        *transposed_linear(f"{ours}.feed.inner.up", f"{theirs}.mlp.c_fc"),
        *transposed_linear(f"{ours}.feed.inner.down", f"{theirs}.mlp.c_proj"),
        layer("decoder.norm", f"{body}.ln_f"),
    )


MASK_BUFFERS = ("*.attn.bias", "*.attn.masked_bias")  # Names of the causal masks that published files contain.

HEAD_ENTRIES = (entry("head.classes.weight", "score.weight"), layer("head.choice", "multiple_choice_head.summary"))

FIXED_HEAD_KEYS: dict[str, dict[str, Any]] = {
    "choose": {
        "summary_type": "cls_index", "summary_use_proj": True, "summary_activation": None, "summary_proj_to_labels": True,
    }
}  # fmt: skip
"""Required keys of a multiple-choice head in Hugging Face format: one linear layer on the hidden state of a token."""


def to_published(config: Any, tensors: Tensors) -> Tensors:
    """Add the bias of the multiple-choice head in Hugging Face format: 0, because a bias shifts all choices equally."""
    weight, bias = (f"multiple_choice_head.summary.{part}" for part in ("weight", "bias"))
    if weight not in tensors or bias in tensors:
        return tensors
    return {**tensors, bias: torch.zeros_like(tensors[weight][:, 0])}
