"""The decoder-only body: tokens, positions and one stack that never looks ahead. T-D and the GPTs are this."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import RegardError
from regard.nn.attention.masks import Causal, Packed, Real, Same, join, marks
from regard.nn.attention.positions import Added, Learned, refuse_beyond
from regard.nn.attention.relative_positions import Standing
from regard.nn.blocks.block import Block, Placement, Stack, Tokens, vaswani_block
from regard.nn.blocks.decoding_state import DecoderState, banded
from regard.nn.blocks.incremental import Stepping
from regard.types import Batch, States


class DecoderOnly(Stepping):
    """`bands`: how far back each block looks; a band of w is a token and the w - 1 before it, 0 is all (none given: all)."""

    def __init__(
        self, tokens: Tokens, position: Added, decoder: Stack, dropout: float, bands: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.tokens, self.position, self.decoder = tokens, position, decoder
        self.dropout = nn.Dropout(dropout)
        self.bands = tuple(bands) or (0,) * len(decoder.blocks)

    def embed(
        self, ids: Int[Tensor, "B L"], where: Int[Tensor, "..."], known: Float[Tensor, "room D"] | None = None
    ) -> Float[Tensor, "B L D"]:
        x = self.placed(ids, where, known)
        if x.is_cuda and torch.is_autocast_enabled("cuda"):
            # what runs from block to block is of sixteen bits too: norms and sums are half the bytes
            x = x.to(torch.get_autocast_dtype("cuda"))
        return self.dropout(x)

    def forward(self, batch: Batch, taps: Collection[int] = ()) -> States:
        """The states over `batch.x`. Padding at the end of a row needs no mask: nobody who is asked looks ahead to it."""
        rule = join(
            Causal(),
            None if batch.documents is None else Same(batch.documents),
            None if batch.offsets is None else Packed(batch.offsets, batch.offsets),
            None if batch.mask is None or batch.mask.ndim == 1 else Real(batch.mask),
        )
        assert rule is not None
        where = self._places(batch)
        x, standing = self.embed(batch.x, where), Standing(where, where)
        sequence, tapped = self.decoder(x, rule=banded(rule, self.bands), taps=taps, standing=standing)
        return States(sequence, taps=tapped)

    def cross_entropy(
        self, x: Float[Tensor, "*rows D"], labels: Int[Tensor, "*rows"], smoothing: float = 0.0
    ) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
        """(sum, count) of the loss of `read(x)`, which need not be kept to learn from it."""
        return self.tokens.cross_entropy(x, labels, smoothing)

    def start(self, batch: Batch, room: int | None = None) -> DecoderState:
        """Read all but the last token of each prompt; rows may have different lengths. `room` is that of `fresh`."""
        prompt = self._prompt(batch)
        state = self.fresh(prompt, room, bands=self.bands)
        if prompt.shape[1] > 1:
            self.advance(prompt[:, :-1], state)
        if batch.prompt_lengths is not None:
            state.settle(batch.prompt_lengths - 1)
        return state

    def _places(self, batch: Batch) -> Tensor:
        length, most = batch.x.shape[1], self.position.length
        if batch.where is not None:
            return batch.where
        if batch.offsets is None:
            refuse_beyond(self.position.length, length)
            return torch.arange(length, device=batch.x.device)
        # what only fills up a row may be longer than any document
        return batch.offsets.positions(length).clamp(max=None if most is None else most - 1, min=0)

    def _prompt(self, batch: Batch) -> Tensor:
        """(B, P) the prompts, not wider than the positions that there are."""
        prompt, lengths = batch.prompt, batch.prompt_lengths
        if batch.offsets is not None or batch.documents is not None or batch.where is not None:
            raise ValueError("generation starts from padded rows of one document each, at position 0")
        if batch.mask is not None and batch.mask.ndim == 2 and lengths is not None:
            if not torch.equal(batch.mask, marks(lengths, prompt.shape[1])):
                raise ValueError("the padding of a prompt stands at its end")
        shortest, longest = prompt.shape[1], prompt.shape[1]
        if lengths is not None and len(lengths):
            shortest, longest = map(int, lengths.aminmax())
        if shortest < 1 or longest > prompt.shape[1]:
            raise RegardError(f"a prompt has 1 to {prompt.shape[1]} tokens here, not {shortest} to {longest}.")
        refuse_beyond(self.position.length, longest)
        return prompt[:, : self.position.length]


def gpt_blocks(config: Any, norm: Placement) -> list[Block]:
    """Blocks as all GPTs have them, from the sizes of a config."""
    return [
        vaswani_block(
            config.width, config.heads, config.hidden, norm=norm, activation="gelu_tanh", dropout=config.dropout,
            attention_dropout=config.attention_dropout, eps=config.eps,
        )
        for _ in range(config.depth)
    ]  # fmt: skip


def gpt_weights(body: DecoderOnly, std: float = 0.02, positions: float = 0.02, narrow: bool = False) -> DecoderOnly:
    """As GPTs begin: all matrices N(0, std), biases 0. `narrow`: what is added to the states is divided by the square root
    of how often that happens, so that deep stacks begin with states of the same size as flat ones."""
    for module in body.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
    if isinstance(body.position, Learned):
        nn.init.normal_(body.position.table.weight, std=positions)
    if narrow:
        for name, parameter in body.decoder.named_parameters():
            if name.endswith(("attend.inner.out.weight", "feed.inner.down.weight")):
                nn.init.normal_(parameter, std=std / (2 * len(body.decoder.blocks)) ** 0.5)
    return body
