"""A stack of blocks that goes on token by token: what decoder-only bodies share with decoders that regard a context."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.nn.attention.positions import Added, refuse_beyond
from regard.nn.blocks.block import Stack, Tokens
from regard.nn.blocks.decoding_state import DecoderState


class Stepping(nn.Module):
    """Who inherits from it has made the parts, in the order in which they are to be kept."""

    fixed = True
    """search may ask for a state of fixed size"""

    tokens: Tokens
    position: Added
    decoder: Stack
    dropout: nn.Dropout

    def placed(
        self, ids: Int[Tensor, "B L"], where: Int[Tensor, "..."], known: Float[Tensor, "room D"] | None = None
    ) -> Float[Tensor, "B L D"]:
        """Tokens and positions; `known`: the positions 0, 1, … computed before."""
        x = self.tokens(ids)
        return x + (self.position(where).to(x.dtype) if known is None else known[where])

    def embed(
        self, ids: Int[Tensor, "B L"], where: Int[Tensor, "..."], known: Float[Tensor, "room D"] | None = None
    ) -> Float[Tensor, "B L D"]:
        return self.dropout(self.placed(ids, where, known))

    def read(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows V"]:
        return self.tokens.read(x)

    def fresh(
        self, prompt: Int[Tensor, "B P"], room: int | None, real: Bool[Tensor, "B 1 K"] | None = None,
        bands: Sequence[int] = (),
    ) -> DecoderState:  # fmt: skip
        """The state of rows that have read nothing of their prompt yet. With `room`, memory is made for that many positions at
        once and keeps its shape; no more than there are positions."""
        length, device = self.position.length, prompt.device
        most = room if room is None or length is None else min(room, length)
        empty = self.embed(prompt[:, :0], torch.arange(0, device=device))
        layers, measured = self.decoder.memories(empty, most), self.decoder.measures
        state = DecoderState.fresh(layers, len(prompt), device, room, real, bands, measured)
        if state.homes is not None and length is None:
            state.places = self.position(state.homes).to(empty.dtype).contiguous()  # a recording writes it
        return state

    def step(self, tokens: Int[Tensor, "R"], state: DecoderState) -> Float[Tensor, "R V"]:
        """The logits that follow one more token of each row, or of each beam of a row."""
        x = self.advance(tokens.view(-1, state.beams), state)
        return self.read(x.flatten(0, 1))

    def advance(self, ids: Int[Tensor, "B Q"], state: DecoderState) -> Float[Tensor, "B Q D"]:
        """Several tokens of each row, or one of each of its beams, which are queries of one row at one position."""
        turn = state.turn(ids.shape[1])
        steps = turn.where.shape[-1]
        if state.fixed is None:  # in fixed memories rows that have finished are stepped on with the others
            refuse_beyond(self.position.length, state.reached + steps)
        x, _ = self.decoder(
            self.embed(ids, turn.where, state.places),
            rule=turn.rules,
            context_rule=state.regard,
            memory=state.layers,
            where=turn.columns,
            standing=None if self.decoder.position is None else state.standing(turn.where),
        )
        state.passed(steps)
        return x
