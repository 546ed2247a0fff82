"""Base class of decoders that process tokens incrementally, with or without cross-attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.nn.attention.positions import AbsolutePosition, check_length
from regard.nn.blocks.block import Stack, TokenEmbedding
from regard.nn.blocks.decoding_state import DecoderState
from regard.types import Batch, Body, StateSizes


class IncrementalDecoder(Body):
    """Subclasses register the submodules, which determines the order of the parameters."""

    tokens: TokenEmbedding
    position: AbsolutePosition
    decoder: Stack
    dropout: nn.Dropout

    def embed_with_positions(
        self,
        ids: Int[Tensor, "B L"],
        positions: Int[Tensor, "..."],
        position_embeddings: Float[Tensor, "room D"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Token plus position embeddings. `position_embeddings`: embeddings of the positions 0, 1, … if precomputed."""
        x = self.tokens(ids)
        return x + (
            self.position(positions).to(x.dtype) if position_embeddings is None else position_embeddings[positions]
        )

    def embed(
        self,
        ids: Int[Tensor, "B L"],
        positions: Int[Tensor, "..."],
        position_embeddings: Float[Tensor, "room D"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        return self.dropout(self.embed_with_positions(ids, positions, position_embeddings))

    def to_logits(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows V"]:
        return self.tokens.to_logits(x)

    def context_length(self, batch: Batch) -> int:
        """Number of cross-attention keys; 0 without cross-attention."""
        return 0 if batch.decoder_inputs is None else batch.inputs.shape[1]

    def state_sizes(self, batch: Batch) -> StateSizes:
        """Keys and values of the prompt and the encoder output, and of each generated token."""
        vocab_size, width = self.tokens.table.weight.shape
        per_token = 2 * self.decoder.depth * width
        length = batch.prompt.shape[1] + self.context_length(batch)
        return StateSizes(vocab_size, per_row=per_token * length, per_token=per_token)

    def empty_state(
        self, prompt: Int[Tensor, "B P"], max_cache_len: int | None, context_mask: Bool[Tensor, "B 1 K"] | None = None,
        window_sizes: Sequence[int] = (),
    ) -> DecoderState:  # fmt: skip
        """State before the first token of the prompt. With `max_cache_len`, a KV cache of fixed shape is allocated for that
        many positions, but no more than the model has."""
        length, device = self.position.max_length, prompt.device
        most = max_cache_len if max_cache_len is None or length is None else min(max_cache_len, length)
        empty = self.embed(prompt[:, :0], torch.arange(0, device=device))
        layers, measured = self.decoder.make_caches(empty, most), self.decoder.has_bias
        state = DecoderState.empty(layers, len(prompt), device, max_cache_len, context_mask, window_sizes, measured)
        if state.key_positions is not None and length is None:
            # contiguous, because reusing a captured CUDA graph overwrites the tensor
            state.position_embeddings = self.position(state.key_positions).to(empty.dtype).contiguous()
        return state

    def step(self, tokens: Int[Tensor, "R"], state: DecoderState) -> Float[Tensor, "R V"]:
        """Logits after one more token of each row, or of each beam."""
        x = self.advance(tokens.view(-1, state.beams), state)
        return self.to_logits(x.flatten(0, 1))

    def advance(self, ids: Int[Tensor, "B Q"], state: DecoderState) -> Float[Tensor, "B Q D"]:
        """Hidden states of new tokens: several per row, or one per beam (beams are queries of one row at one position)."""
        turn = state.next_step(ids.shape[1])
        steps = turn.positions.shape[-1]
        if state.static_kv is None:  # with static caches, finished rows are stepped too
            check_length(self.position.max_length, state.current_length + steps)
        x, _ = self.decoder(
            self.embed(ids, turn.positions, state.position_embeddings),
            mask=turn.masks,
            context_mask=state.cross_mask,
            cache=state.layers,
            at=turn.cache_columns,
            position_ids=None if self.decoder.position is None else state.position_ids(turn.positions),
        )
        state.advance(steps)
        return x
