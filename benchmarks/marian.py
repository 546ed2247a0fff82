"""Model sizes shared by the translation benchmarks, and the Marian model of `transformers` in those sizes."""

from __future__ import annotations

from typing import Any

import torch

SIZES: dict[str, dict[str, int]] = {
    "cuda": {"width": 512, "depth": 6, "heads": 8, "ffn_dim": 2048, "vocab_size": 37_000},
    "cpu": {"width": 256, "depth": 3, "heads": 4, "ffn_dim": 1024, "vocab_size": 8000},
    "smoke": {"width": 16, "depth": 1, "heads": 2, "ffn_dim": 32, "vocab_size": 100},
}
"""Sizes by mode (`harness.mode`): Transformer-base on a GPU, a small translation model on a CPU."""


def peer_model(size: dict[str, int]) -> Any:
    """MarianMTModel of `transformers` in that size, with random weights and SDPA."""
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(0)
    return MarianMTModel(MarianConfig(
        vocab_size=size["vocab_size"], d_model=size["width"], encoder_layers=size["depth"], decoder_layers=size["depth"],
        encoder_attention_heads=size["heads"], decoder_attention_heads=size["heads"], encoder_ffn_dim=size["ffn_dim"],
        decoder_ffn_dim=size["ffn_dim"], dropout=0.0, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
        forced_eos_token_id=None, max_position_embeddings=512, attn_implementation="sdpa", activation_function="relu",
    ))  # fmt: skip
