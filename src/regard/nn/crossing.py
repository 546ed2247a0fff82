"""A decoder that regards a context: the second half of the Transformer, and of the captioners that are one."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.nn.block import Stack, Tokens
from regard.nn.position import Added, refuse_beyond
from regard.nn.relative import Standing
from regard.nn.rules import Causal, Rule
from regard.nn.state import DecoderState


class CrossDecoder(nn.Module):
    """What it regards is made by who inherits from it; `encoder`: a stack that takes part in that, kept here by its place among
    the others."""

    fixed = True
    """search may ask for a state of fixed size"""

    def __init__(
        self, tokens: Tokens, position: Added, decoder: Stack, dropout: float, encoder: Stack | None = None
    ) -> None:
        super().__init__()
        self.tokens, self.position = tokens, position
        if encoder is not None:
            self.encoder = encoder
        self.decoder = decoder
        self.dropout = nn.Dropout(dropout)

    def embed(
        self, ids: Int[Tensor, "B L"], where: Int[Tensor, "..."], known: Float[Tensor, "room D"] | None = None
    ) -> Float[Tensor, "B L D"]:
        """`known`: the positions 0, 1, … computed before."""
        x = self.tokens(ids)
        places = self.position(where).to(x.dtype) if known is None else known[where]
        return self.dropout(x + places)

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

    def read(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows V"]:
        return self.tokens.read(x)

    def begin(
        self, context: Float[Tensor, "B K C"], real: Bool[Tensor, "B 1 K"] | None, prompt: Int[Tensor, "B P"],
        room: int | None = None,
    ) -> DecoderState:  # fmt: skip
        """Read all but the last token of the prompt. With `room`, memory is made for that many positions at once and keeps its
        shape; no more than there are positions."""
        length = self.position.length
        refuse_beyond(length, prompt.shape[1])
        most = room if room is None or length is None else min(room, length)
        empty = self.embed(prompt[:, :0], torch.arange(0, device=prompt.device))
        layers, measured = self.decoder.memories(empty, most), self.decoder.measures
        state = DecoderState.fresh(layers, len(context), context.device, room, real, measured=measured)
        # keys and values of the source are made here, once, before beams multiply the rows
        for layer, regarded in zip(state.layers, self.decoder.regarded(context), strict=True):
            layer.cross = regarded
        state.silence()
        if state.homes is not None and length is None:
            state.places = self.position(state.homes).to(context.dtype).contiguous()  # a recording writes it
        if prompt.shape[1] > 1:
            self.advance(prompt[:, :-1], state)
        return state

    def step(self, tokens: Int[Tensor, "R"], state: DecoderState) -> Float[Tensor, "R V"]:
        """The logits that follow one more token of each row, or of each beam of a row."""
        x = self.advance(tokens.view(-1, state.beams), state)
        return self.read(x.flatten(0, 1))

    def advance(self, ids: Int[Tensor, "B Q"], state: DecoderState) -> Float[Tensor, "B Q D"]:
        """A beam is a query of its source's row: all stand at one position."""
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
