"""Decoder with cross-attention: the decoder of the Transformer and of Transformer captioning models."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.nn.attention.masks import AttentionMask, Causal
from regard.nn.attention.positions import AbsolutePosition, check_length
from regard.nn.attention.relative_positions import PositionIds
from regard.nn.blocks.block import Stack, TokenEmbedding
from regard.nn.blocks.decoding_state import DecoderState
from regard.nn.blocks.incremental import IncrementalDecoder


class CrossDecoder(IncrementalDecoder):
    """Subclasses compute the context. `encoder`: encoder of a subclass, registered here to keep the order of parameters."""

    def __init__(
        self,
        tokens: TokenEmbedding,
        position: AbsolutePosition,
        decoder: Stack,
        dropout: float,
        encoder: Stack | None = None,
    ) -> None:
        super().__init__()
        self.tokens, self.position = tokens, position
        if encoder is not None:
            self.encoder = encoder
        self.decoder = decoder
        self.dropout = nn.Dropout(dropout)

    def decode(
        self, target: Int[Tensor, "B L"], context: Float[Tensor, "B K C"], *, mask: AttentionMask | None = None,
        context_mask: AttentionMask | None = None, positions: Int[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "B L D"]:  # fmt: skip
        """Hidden states of a whole target. `positions`: positions of the tokens; None: 0, 1, …"""
        if positions is None:
            check_length(self.position.max_length, target.shape[1])
            positions = torch.arange(target.shape[1], device=target.device)
        x, standing = self.embed(target, positions), PositionIds(positions, positions)
        sequence, _ = self.decoder(x, context, mask=mask or Causal(), context_mask=context_mask, position_ids=standing)
        return sequence

    def prefill(
        self, context: Float[Tensor, "B K C"], context_mask: Bool[Tensor, "B 1 K"] | None, prompt: Int[Tensor, "B P"],
        max_positions: int | None = None,
    ) -> DecoderState:  # fmt: skip
        """Process all but the last token of the prompt. `max_positions`: `max_cache_len` of `empty_state`."""
        check_length(self.position.max_length, prompt.shape[1])
        state = self.empty_state(prompt, max_positions, context_mask)
        # keys and values of the source are computed here, once, before beams multiply the rows
        for layer, regarded in zip(state.layers, self.decoder.cross_kv(context), strict=True):
            layer.cross_cache = regarded
        state.zero_empty_contexts()
        if prompt.shape[1] > 1:
            self.advance(prompt[:, :-1], state)
        return state
