"""Decoder-only body of the Transformer decoder and the GPT models: token and position embeddings and a causal stack."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import RegardError
from regard.nn.attention.masks import Causal, PackedDocuments, Padding, and_masks, valid_mask
from regard.nn.attention.positions import AbsolutePosition, LearnedPosition, check_length
from regard.nn.attention.relative_positions import PositionIds
from regard.nn.blocks.block import NormPlacement, Stack, TokenEmbedding, TransformerBlock, transformer_block
from regard.nn.blocks.decoding_state import DecoderState, layer_masks
from regard.nn.blocks.incremental import IncrementalDecoder
from regard.types import Batch, BodyOutput


class DecoderOnly(IncrementalDecoder):
    """Decoder-only Transformer. `windows`: attention window per block; w: the token and the w - 1 before; 0 or empty: all."""

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

    def embed(
        self,
        ids: Int[Tensor, "B L"],
        positions: Int[Tensor, "..."],
        position_embeddings: Float[Tensor, "room D"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        x = self.embed_with_positions(ids, positions, position_embeddings)
        if x.is_cuda and torch.is_autocast_enabled("cuda"):
            # 16-bit states between the blocks, too: half of the bytes for norms and sums
            x = x.to(torch.get_autocast_dtype("cuda"))
        return self.dropout(x)

    def forward(self, batch: Batch, taps: Collection[int] = ()) -> BodyOutput:
        """Hidden states of `batch.inputs`. Right padding needs no mask: no token attends to later positions."""
        rule = and_masks(
            Causal(),
            None if batch.offsets is None else PackedDocuments(batch.offsets, batch.offsets),
            None if batch.mask is None or batch.mask.ndim == 1 else Padding(batch.mask),
        )
        assert rule is not None
        where = self._position_ids(batch)
        x, standing = self.embed(batch.inputs, where), PositionIds(where, where)
        sequence, tapped = self.decoder(x, mask=layer_masks(rule, self.window_sizes), taps=taps, position_ids=standing)
        return BodyOutput(sequence, hidden_states=tapped)

    def cross_entropy(
        self, x: Float[Tensor, "*rows D"], labels: Int[Tensor, "*rows"], smoothing: float = 0.0
    ) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
        """Sum of the loss and number of labels, without storing the logits."""
        return self.tokens.cross_entropy(x, labels, smoothing)

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


def gpt_blocks(config: Any, norm: NormPlacement) -> list[TransformerBlock]:
    """Blocks of the GPT models from a config."""
    return [
        transformer_block(
            config.width, config.heads, config.ffn_dim, norm=norm, activation="gelu_tanh", dropout=config.dropout,
            attention_dropout=config.attention_dropout, eps=config.norm_eps,
        )
        for _ in range(config.depth)
    ]  # fmt: skip


def init_gpt_weights(
    body: DecoderOnly, std: float = 0.02, position_std: float = 0.02, scale_residual: bool = False
) -> DecoderOnly:
    """Initialize as GPT models: matrices N(0, std), biases 0. `scale_residual`: divide the std of residual projections by
    the square root of their number, so that the scale of the states does not grow with depth."""
    for module in body.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
    if isinstance(body.position, LearnedPosition):
        nn.init.normal_(body.position.table.weight, std=position_std)
    if scale_residual:
        for name, parameter in body.decoder.named_parameters():
            if name.endswith(("attend.inner.out.weight", "feed.inner.down.weight")):
                nn.init.normal_(parameter, std=std / (2 * len(body.decoder.blocks)) ** 0.5)
    return body
