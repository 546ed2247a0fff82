"""The sizes that the benchmarks of translation share, and the peer in them."""

from __future__ import annotations

from typing import Any

import torch

CUDA = torch.cuda.is_available()
SIZE = {"width": 512, "depth": 6, "heads": 8, "hidden": 2048, "vocabulary": 37_000} if CUDA else {
    "width": 256, "depth": 3, "heads": 4, "hidden": 1024, "vocabulary": 8000}  # fmt: skip
"""Transformer-base on a GPU, a small translator on a CPU."""


def peer_model() -> Any:
    """`transformers`' Marian of that size, with random weights and its fastest documented attention."""
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(0)
    return MarianMTModel(MarianConfig(
        vocab_size=SIZE["vocabulary"], d_model=SIZE["width"], encoder_layers=SIZE["depth"], decoder_layers=SIZE["depth"],
        encoder_attention_heads=SIZE["heads"], decoder_attention_heads=SIZE["heads"], encoder_ffn_dim=SIZE["hidden"],
        decoder_ffn_dim=SIZE["hidden"], dropout=0.0, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
        forced_eos_token_id=None, max_position_embeddings=512, attn_implementation="sdpa", activation_function="relu",
    ))  # fmt: skip
