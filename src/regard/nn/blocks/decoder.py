"""Decoders that process tokens incrementally: decoder-only (GPT models), and with cross-attention (the decoder of the
Transformer and of Transformer captioning models). Their state between steps: KV caches, positions of the rows, and masks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.errors import InputError
from regard.nn.attention.kv_cache import CrossCache, DynamicCache, LayerCache, StaticCache
from regard.nn.attention.masks import (
    AttentionMask,
    Causal,
    Dense,
    Memoized,
    PackedDocuments,
    Padding,
    SlidingWindow,
    and_masks,
    valid_mask,
)
from regard.nn.attention.positions import AbsolutePosition, LearnedPosition, PositionIds, check_length
from regard.nn.blocks.block import Stack, TokenEmbedding, TokenPredictor, init_normal_, to_autocast_dtype
from regard.nn.kernels import dispatch
from regard.types import Batch, BodyOutput, StateSizes


class StepInputs(NamedTuple):
    """Positions of the next tokens of each row, mask per layer, and cache columns of the new keys."""

    positions: Tensor
    masks: list[AttentionMask | None]
    cache_columns: Tensor | None


def layer_masks(mask: AttentionMask, window_sizes: Sequence[int]) -> list[AttentionMask | None]:
    """Mask of each layer. A window size of w allows a token and the w - 1 tokens before it; 0 allows all earlier tokens.

    Layers with the same window size share one mask, so that the mask is materialized at most once."""
    rules = {band: mask & SlidingWindow(band - 1, 0) if band else mask for band in sorted(set(window_sizes))}
    shared = {band: one if isinstance(one, Causal) else Memoized(one) for band, one in rules.items()}
    return [shared[band] for band in window_sizes]


@dataclass
class Beams:
    """Beams of one source are several queries of one row: beams share the keys of the source and of the prompt, and all
    beams write their keys into the same row. Swapping beams swaps rows of `ancestors`; keys are not moved."""

    count: int
    ancestors: Tensor  # (B, W, columns) True for keys in the history of a beam, to which the beam may attend.
    identity: Tensor  # Identity matrix (W, W): each beam attends to its own new key.
    key_positions: Tensor | None
    """(B, columns) position of the key in each column, if windows or relative positions need them."""


@dataclass
class DecoderState:
    """State of a decoder between steps. Search only selects and reorders its rows.

    Steps never synchronize with the device: all sizes that Python needs are known before the step."""

    layers: list[LayerCache]
    positions: Tensor  # (B,) the position of the next token of each row.
    window_sizes: Sequence[int]  # Attention window of each layer, as in `layer_masks`; 0: all.
    cross_mask: Dense | None = None  # (B, 1, S) False at padding of the source.
    has_bias: bool = False  # Attention adds a bias per distance, so beams need the positions of their keys.
    max_cache_len: int = 0  # Requested columns per row of static caches.
    key_positions: Tensor | None = None
    """(columns,) 0, 1, … with static caches; finished rows are still stepped, and stay at the last position."""
    position_embeddings: Tensor | None = None  # (columns, D) precomputed position embeddings.
    beams: Beams | None = None
    current_length: int = 0  # Upper bound of the positions of all rows.
    aligned: bool = True  # All rows are at the same position.

    @property
    def cross_caches(self) -> list[CrossCache]:
        """Distinct cross-attention caches; layers with shared weights share a cache."""
        return list({id(layer.cross_cache): layer.cross_cache for layer in self.layers}.values())

    def next_step(self, queries: int) -> StepInputs:
        """Inputs of the first step, with `queries` tokens per row, or of a step with one token per row or beam."""
        device, cache, windows = self.positions.device, self.layers[0].self_cache, self.window_sizes
        where, columns = self.positions[:, None], self.key_positions
        if columns is not None:
            where = where.clamp(max=len(columns) - 1)
        if (beams := self.beams) is not None:  # add the keys of the step, one per beam
            own, here = beams.identity.expand(len(where), -1, -1), self.positions[:, None].expand(-1, beams.count)
            if isinstance(cache, StaticCache) and cache.write_columns is not None:
                beams.ancestors.index_copy_(2, cache.write_columns, own)
                if beams.key_positions is not None:
                    beams.key_positions.index_copy_(1, cache.write_columns, here)
            else:
                beams.ancestors = torch.cat([beams.ancestors, own], 2)
                beams.key_positions = None if beams.key_positions is None else torch.cat([beams.key_positions, here], 1)
            return StepInputs(where, self._step_masks(beams.ancestors, beams.key_positions, where), None)
        if queries > 1:  # the prompt: no cached keys yet
            return StepInputs(torch.arange(queries, device=device), layer_masks(Causal(), windows), None)
        if columns is not None and not self.has_bias and dispatch.has_decode_kernel(cache.k):
            return StepInputs(where, layer_masks(Causal(), windows), where)
        together = self.aligned and columns is None
        if together and all(not window or self.current_length < window for window in windows):
            # every key is allowed: no mask, faster kernel
            return StepInputs(where, [None] * len(windows), where)
        if columns is None:
            columns = torch.arange(self.current_length + 1, device=device)
        visible = None if together else (columns <= where)[:, None]
        return StepInputs(where, self._step_masks(visible, columns, where), where)

    def _step_masks(
        self, visible: Tensor | None, key_positions: Tensor | None, where: Tensor
    ) -> list[AttentionMask | None]:
        """Mask of a one-token step for each layer, materialized once per window size."""
        masks: dict[int, AttentionMask | None] = {}
        for window in set(self.window_sizes):
            table = visible
            if window:
                assert key_positions is not None
                near = (key_positions > where - window)[:, None]
                table = near if visible is None else visible & near
            masks[window] = None if table is None else Dense(table)
        return [masks[window] for window in self.window_sizes]

    def advance(self, steps: int) -> None:
        self.positions += steps
        self.current_length += steps
        cache = self.layers[0].self_cache
        if self.beams is not None and isinstance(cache, StaticCache) and cache.write_columns is not None:
            cache.write_columns += self.beams.count  # a single tensor, shared by all layers

    def set_positions(self, positions: Tensor | None = None) -> None:
        """Set the positions; without `positions` (after rows were removed), only update `aligned` and the derived lengths."""
        if positions is not None:
            self.positions.copy_(positions)
        low, high = map(int, self.positions.aminmax())
        self.aligned = low == high
        if self.key_positions is not None:
            return
        self.current_length = high
        for layer in self.layers:
            if self.beams is None and isinstance(layer.self_cache, DynamicCache):
                layer.self_cache.trim(high, self.aligned)

    def expand_beams(self, beams: int) -> None:
        """Turn each row into `beams` beams."""
        used = room = self.current_length
        device = self.positions.device
        if self.key_positions is not None:
            room = used + (self.max_cache_len - used) * beams
            columns = used + torch.arange(beams, device=device)
            for layer in self.layers:
                assert isinstance(layer.self_cache, StaticCache)
                layer.self_cache.grow(columns, room)
        column = torch.arange(room, device=device)
        measured = any(self.window_sizes) or self.has_bias
        self.beams = Beams(
            beams,
            (column < self.positions[:, None])[:, None].repeat(1, beams, 1),
            torch.eye(beams, dtype=torch.bool, device=device),
            column.repeat(len(self.positions), 1) if measured else None,
        )

    def reorder(self, rows: Tensor) -> None:
        """Reorder the beams of each source. No key is moved."""
        assert self.beams is not None
        ancestors, parents = self.beams.ancestors, rows.view(-1, self.beams.count) % self.beams.count
        moved = ancestors.gather(1, parents[..., None].expand(-1, -1, ancestors.shape[2]))
        # a captured CUDA graph requires fixed addresses
        self.beams.ancestors = moved if self.key_positions is None else ancestors.copy_(moved)

    def select_rows(self, rows: Tensor) -> None:
        """Select rows, in this order; rows may be repeated or dropped. Beams of a row stay together."""
        if self.beams is not None:
            rows = rows.view(-1, self.beams.count)[:, 0] // self.beams.count
            self.beams.ancestors = self.beams.ancestors.index_select(0, rows)
            if self.beams.key_positions is not None:
                self.beams.key_positions = self.beams.key_positions.index_select(0, rows)
        for layer in self.layers:
            layer.self_cache.select_rows(rows)
        for context in self.cross_caches:
            context.select_rows(rows)
        self.positions = self.positions.index_select(0, rows)
        if self.cross_mask is not None:
            self.cross_mask = Dense(self.cross_mask.table.index_select(0, rows))
        if not self.aligned and len(self.positions):
            self.set_positions()

    def tensors(self) -> list[Tensor]:
        """All tensors read or written by a step, for a captured CUDA graph that uses fixed addresses."""
        caches = [layer.self_cache for layer in self.layers]
        tensors = [self.positions, self.position_embeddings, self.key_positions if self.beams is None else None]
        for cache in caches:
            assert isinstance(cache, StaticCache)
            tensors += [cache.k, cache.v, cache.write_columns if cache is caches[0] else None]
        if self.cross_mask is not None:
            tensors.append(self.cross_mask.table)
        if self.beams is not None:
            tensors += [self.beams.ancestors, self.beams.identity, self.beams.key_positions]
        tensors += [tensor for context in self.cross_caches for tensor in (context.k, context.v)]
        return [tensor for tensor in tensors if tensor is not None]


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
        return 0 if batch.decoder is None else batch.inputs.shape[1]

    def state_sizes(self, batch: Batch) -> StateSizes:
        """Keys and values of the prompt and the encoder output, and of each generated token."""
        vocab_size, width = self.tokens.table.weight.shape
        per_token = 2 * len(self.decoder.blocks) * width
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
        blocks: Any = self.decoder.blocks
        device, length = prompt.device, self.position.max_length
        state = DecoderState(
            [LayerCache() for _ in blocks],
            torch.zeros(len(prompt), dtype=torch.long, device=device),
            window_sizes or [0] * len(blocks),
            None if context_mask is None else Dense(context_mask),
            self.decoder.has_bias,
        )
        if max_cache_len is not None:
            most = max_cache_len if length is None else min(max_cache_len, length)
            empty = self.embed(prompt[:, :0], torch.arange(0, device=device))
            for layer, block in zip(state.layers, blocks, strict=True):
                layer.self_cache = StaticCache(most).allocate(*block.attend.inner.project(empty)[1:])
            state.max_cache_len, state.key_positions = max_cache_len, torch.arange(most, device=device)
            if length is None:
                # contiguous, because reusing a captured CUDA graph overwrites the tensor
                state.position_embeddings = self.position(state.key_positions).to(empty.dtype).contiguous()
        return state

    def step(self, tokens: Int[Tensor, "R"], state: DecoderState) -> Float[Tensor, "R V"]:
        """Logits after one more token of each row, or of each beam."""
        x = self.advance(tokens.view(-1, 1 if state.beams is None else state.beams.count), state)
        return self.to_logits(x.flatten(0, 1))

    def advance(self, ids: Int[Tensor, "B Q"], state: DecoderState) -> Float[Tensor, "B Q D"]:
        """Hidden states of new tokens: those of the prompt, one per row, or one per beam (beams are queries of one row at
        one position)."""
        turn = state.next_step(ids.shape[1])
        steps = turn.positions.shape[-1]
        if state.key_positions is None:  # with static caches, finished rows are stepped too
            check_length(self.position.max_length, state.current_length + steps)
        keys = None if state.beams is None else state.beams.key_positions
        x, _ = self.decoder(
            self.embed(ids, turn.positions, state.position_embeddings),
            mask=turn.masks,
            context_mask=state.cross_mask,
            cache=state.layers,
            at=turn.cache_columns,
            position_ids=None if self.decoder.position is None else PositionIds(turn.positions, keys),
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
            None if batch.packing is None else PackedDocuments(batch.packing, batch.packing),
            None if batch.mask is None or batch.mask.ndim == 1 else Padding(batch.mask),
        )
        assert mask is not None
        length, most, positions = batch.inputs.shape[1], self.position.max_length, batch.positions
        if positions is None and batch.packing is not None:
            positions = batch.packing.positions(length, most)
        elif positions is None:
            check_length(most, length)
            positions = torch.arange(length, device=batch.inputs.device)
        x, ids = self.embed(batch.inputs, positions), PositionIds(positions, positions)
        sequence, tapped = self.decoder(x, mask=layer_masks(mask, self.window_sizes), taps=taps, position_ids=ids)
        return BodyOutput(sequence, hidden_states=tapped)

    def start(self, batch: Batch, max_positions: int | None = None) -> DecoderState:
        """Process all but the last token of each prompt; rows may have different lengths. `max_positions`:
        `max_cache_len` of `empty_state`."""
        prompt, lengths = batch.prompt, batch.prompt_lengths
        if batch.packing is not None or batch.positions is not None:
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
            raise InputError(
                f"Prompt lengths must be between 1 and {prompt.shape[1]} tokens, got {shortest} to {longest}."
            )
        check_length(self.position.max_length, longest)
        prompt = prompt[:, : self.position.max_length]
        state = self.empty_state(prompt, max_positions, window_sizes=self.window_sizes)
        if prompt.shape[1] > 1:
            self.advance(prompt[:, :-1], state)
        if lengths is not None:
            state.set_positions(lengths - 1)
        return state


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
        blocks: Any = self.decoder.blocks
        caches: dict[nn.Module, CrossCache] = {}
        for layer, block in zip(state.layers, blocks, strict=True):
            if block not in caches:
                k, v = block.cross.inner.split_heads(block.cross.inner.kv(context), 2)
                if context_mask is not None:  # cross-attention to a source without any valid position returns 0
                    v = v.masked_fill(~context_mask.any(-1)[:, :, None, None], 0.0)
                # read at every step, so stored without gaps
                caches[block] = CrossCache(k.contiguous(), v.contiguous())
            layer.cross_cache = caches[block]
        if prompt.shape[1] > 1:
            self.advance(prompt[:, :-1], state)
        return state


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
