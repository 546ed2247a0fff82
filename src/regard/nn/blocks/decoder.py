"""Decoders that process tokens incrementally: decoder-only (GPT models), and with cross-attention (the decoder of the
Transformer and of Transformer captioning models)."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.errors import RegardError
from regard.nn.attention.masks import AttentionMask, Causal, PackedDocuments, Padding, and_masks, valid_mask
from regard.nn.attention.positions import AbsolutePosition, LearnedPosition, PositionIds, check_length
from regard.nn.blocks.block import NormPlacement, Stack, TokenEmbedding, TransformerBlock, transformer_block
from regard.nn.blocks.decoding_state import DecoderState, StaticShape, layer_masks
from regard.nn.blocks.embeddings import TokenPredictor, init_normal_, to_autocast_dtype
from regard.types import Batch, BodyOutput, StateSizes


class IncrementalDecoder(TokenPredictor):
    """Subclasses register the submodules, which determines the order of the parameters."""

    tokens: TokenEmbedding
    position: AbsolutePosition
    decoder: Stack
    dropout: nn.Dropout
    half_states: ClassVar[bool] = False
    """True: under autocast, states between the blocks have 16 bits, too: half of the bytes for norms and sums"""

    def embed(
        self, ids: Int[Tensor, "B L"], positions: Int[Tensor, "..."], position_embeddings: Tensor | None = None
    ) -> Float[Tensor, "B L D"]:
        """Token plus position embeddings. `position_embeddings`: embeddings of the positions 0, 1, … if precomputed."""
        x = self.tokens(ids)
        places = self.position(positions).to(x.dtype) if position_embeddings is None else position_embeddings[positions]
        x = x + places
        return self.dropout(to_autocast_dtype(x) if self.half_states else x)

    @property
    def output_weights(self) -> tuple[Tensor, Tensor | None]:
        return self.tokens.table.weight, self.tokens.bias if self.tokens.has_bias else None

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
        self,
        prompt: Int[Tensor, "B P"],
        max_cache_len: int | None,
        context_mask: Bool[Tensor, "B 1 K"] | None = None,
        window_sizes: Sequence[int] = (),
    ) -> DecoderState:
        """State before the first token of the prompt. With `max_cache_len`, a KV cache of fixed shape is allocated for that
        many positions, but no more than the model has."""
        length, device = self.position.max_length, prompt.device
        most = max_cache_len if max_cache_len is None or length is None else min(max_cache_len, length)
        empty = self.embed(prompt[:, :0], torch.arange(0, device=device))
        layers, start = self.decoder.make_caches(empty, most), torch.zeros(len(prompt), dtype=torch.long, device=device)
        state = DecoderState(layers, start, context_mask, window_sizes, self.decoder.has_bias)
        if max_cache_len is not None and most is not None:
            state.static = StaticShape(max_cache_len, torch.arange(most, device=device))
            if length is None:
                # contiguous, because reusing a captured CUDA graph overwrites the tensor
                embeddings = self.position(state.static.key_positions).to(empty.dtype).contiguous()
                state.static.position_embeddings = embeddings
        return state

    def step(self, tokens: Int[Tensor, "R"], state: DecoderState) -> Float[Tensor, "R V"]:
        """Logits after one more token of each row, or of each beam."""
        x = self.advance(tokens.view(-1, 1 if state.beams is None else state.beams.count), state)
        return self.to_logits(x.flatten(0, 1))

    def advance(self, ids: Int[Tensor, "B Q"], state: DecoderState) -> Float[Tensor, "B Q D"]:
        """Hidden states of new tokens: several per row, or one per beam (beams are queries of one row at one position)."""
        turn = state.next_step(ids.shape[1])
        steps = turn.positions.shape[-1]
        if state.static is None:  # with static caches, finished rows are stepped too
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


class DecoderOnly(IncrementalDecoder):
    """Decoder-only Transformer. `windows`: attention window per block; w: the token and the w - 1 before; 0 or empty: all."""

    half_states = True

    def __init__(
        self,
        tokens: TokenEmbedding,
        position: AbsolutePosition,
        decoder: Stack,
        dropout: float,
        windows: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.tokens, self.position, self.decoder = tokens, position, decoder
        self.dropout = nn.Dropout(dropout)
        self.window_sizes = tuple(windows) or (0,) * len(decoder.blocks)

    def forward(self, batch: Batch, taps: Collection[int] = ()) -> BodyOutput:
        """Hidden states of `batch.inputs`. Right padding needs no mask: no token attends to later positions."""
        mask = and_masks(
            Causal(),
            None if batch.offsets is None else PackedDocuments(batch.offsets, batch.offsets),
            None if batch.mask is None or batch.mask.ndim == 1 else Padding(batch.mask),
        )
        assert mask is not None
        positions = self._position_ids(batch)
        x, ids = self.embed(batch.inputs, positions), PositionIds(positions, positions)
        sequence, tapped = self.decoder(x, mask=layer_masks(mask, self.window_sizes), taps=taps, position_ids=ids)
        return BodyOutput(sequence, hidden_states=tapped)

    def start(self, batch: Batch, max_positions: int | None = None) -> DecoderState:
        """Process all but the last token of each prompt; rows may have different lengths. `max_positions`:
        `max_cache_len` of `empty_state`."""
        prompt = self._validated_prompt(batch)
        state = self.empty_state(prompt, max_positions, window_sizes=self.window_sizes)
        if prompt.shape[1] > 1:
            self.advance(prompt[:, :-1], state)
        if batch.prompt_lengths is not None:
            state.set_positions(batch.prompt_lengths - 1)
        return state

    def _position_ids(self, batch: Batch) -> Tensor:
        length, most = batch.inputs.shape[1], self.position.max_length
        if batch.positions is not None:
            return batch.positions
        if batch.offsets is None:
            check_length(self.position.max_length, length)
            return torch.arange(length, device=batch.inputs.device)
        # padding after the last document may be longer than any document
        return batch.offsets.positions(length).clamp(max=None if most is None else most - 1, min=0)

    def _validated_prompt(self, batch: Batch) -> Tensor:
        """(B, P) the prompts, truncated to the number of positions."""
        prompt, lengths = batch.prompt, batch.prompt_lengths
        if batch.offsets is not None or batch.positions is not None:
            raise ValueError(
                "Generation requires padded rows with one document each; offsets and positions are not supported."
            )
        if batch.mask is not None and batch.mask.ndim == 2 and lengths is not None:
            if not torch.equal(batch.mask, valid_mask(lengths, prompt.shape[1])):
                raise ValueError("Prompts must be padded on the right.")
        shortest, longest = prompt.shape[1], prompt.shape[1]
        if lengths is not None and len(lengths):
            shortest, longest = map(int, lengths.aminmax())
        if shortest < 1 or longest > prompt.shape[1]:
            raise RegardError(
                f"Prompt lengths must be between 1 and {prompt.shape[1]} tokens, got {shortest} to {longest}."
            )
        check_length(self.position.max_length, longest)
        return prompt[:, : self.position.max_length]


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
        self,
        target: Int[Tensor, "B L"],
        context: Float[Tensor, "B K C"],
        *,
        mask: AttentionMask | None = None,
        context_mask: AttentionMask | None = None,
        positions: Int[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Hidden states of a whole target. `positions`: positions of the tokens; None: 0, 1, …"""
        if positions is None:
            check_length(self.position.max_length, target.shape[1])
            positions = torch.arange(target.shape[1], device=target.device)
        x, ids = self.embed(target, positions), PositionIds(positions, positions)
        sequence, _ = self.decoder(x, context, mask=mask or Causal(), context_mask=context_mask, position_ids=ids)
        return sequence

    def prefill(
        self,
        context: Float[Tensor, "B K C"],
        context_mask: Bool[Tensor, "B 1 K"] | None,
        prompt: Int[Tensor, "B P"],
        max_positions: int | None = None,
    ) -> DecoderState:
        """Process all but the last token of the prompt. `max_positions`: `max_cache_len` of `empty_state`."""
        check_length(self.position.max_length, prompt.shape[1])
        state = self.empty_state(prompt, max_positions, context_mask)
        # keys and values of the source are computed here, once, before beams multiply the rows
        for layer, cross_cache in zip(state.layers, self.decoder.cross_kv(context), strict=True):
            layer.cross_cache = cross_cache
        if context_mask is not None:
            state.zero_empty_contexts(context_mask)
        if prompt.shape[1] > 1:
            self.advance(prompt[:, :-1], state)
        return state


def gpt_blocks(config: Any, norm: NormPlacement) -> list[TransformerBlock]:
    """Blocks of the GPT models from a config."""
    block = functools.partial(transformer_block, config.width, config.heads, config.ffn_dim, norm=norm)
    dropouts = {"dropout": config.dropout, "attention_dropout": config.attention_dropout}
    return [block(activation="gelu_tanh", eps=config.norm_eps, **dropouts) for _ in range(config.depth)]


def init_gpt_weights(
    body: DecoderOnly, std: float = 0.02, position_std: float = 0.02, scale_residual: bool = False
) -> DecoderOnly:
    """Initialize as GPT models: matrices N(0, std), biases 0. `scale_residual`: divide the std of residual projections by
    the square root of their number, so that the scale of the states does not grow with depth."""
    init_normal_(body, std)
    if isinstance(body.position, LearnedPosition):
        nn.init.normal_(body.position.table.weight, std=position_std)
    if scale_residual:
        for name, parameter in body.decoder.named_parameters():
            if name.endswith(("attend.inner.out.weight", "feed.inner.down.weight")):
                nn.init.normal_(parameter, std=std / (2 * len(body.decoder.blocks)) ** 0.5)
    return body
