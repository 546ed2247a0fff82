"""A decoder that regards a context: the second half of the Transformer, and of the captioners that are one."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.nn.attention.masks import Causal, Rule
from regard.nn.attention.positions import Added, refuse_beyond
from regard.nn.attention.relative_positions import Standing
from regard.nn.blocks.block import Stack, Tokens
from regard.nn.blocks.decoding_state import DecoderState
from regard.nn.blocks.incremental import Stepping


class CrossDecoder(Stepping):
    """What it regards is made by who inherits from it; `encoder`: a stack that takes part in that, kept here by its place among
    the others."""

    def __init__(
        self, tokens: Tokens, position: Added, decoder: Stack, dropout: float, encoder: Stack | None = None
    ) -> None:
        super().__init__()
        self.tokens, self.position = tokens, position
        if encoder is not None:
            self.encoder = encoder
        self.decoder = decoder
        self.dropout = nn.Dropout(dropout)

    def tell(
        self, target: Int[Tensor, "B L"], context: Float[Tensor, "B K C"], *, rule: Rule | None = None,
        context_rule: Rule | None = None, where: Int[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "B L D"]:  # fmt: skip
        """The states over a whole target; `where` its tokens stand, from 0 on when None."""
        if where is None:
            refuse_beyond(self.position.length, target.shape[1])
            where = torch.arange(target.shape[1], device=target.device)
        x, standing = self.embed(target, where), Standing(where, where)
        sequence, _ = self.decoder(x, context, rule=rule or Causal(), context_rule=context_rule, standing=standing)
        return sequence

    def begin(
        self, context: Float[Tensor, "B K C"], real: Bool[Tensor, "B 1 K"] | None, prompt: Int[Tensor, "B P"],
        room: int | None = None,
    ) -> DecoderState:  # fmt: skip
        """Read all but the last token of the prompt; `room` is that of `fresh`."""
        refuse_beyond(self.position.length, prompt.shape[1])
        state = self.fresh(prompt, room, real)
        # keys and values of the source are made here, once, before beams multiply the rows
        for layer, regarded in zip(state.layers, self.decoder.regarded(context), strict=True):
            layer.cross = regarded
        state.silence()
        if prompt.shape[1] > 1:
            self.advance(prompt[:, :-1], state)
        return state
