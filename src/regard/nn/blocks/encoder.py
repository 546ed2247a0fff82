"""Encoder-only body of BERT, RoFormer and Longformer: embeddings and a bidirectional stack."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import InputError
from regard.nn.attention.masks import (
    AttentionMask,
    GlobalTokens,
    Memoized,
    PackedDocuments,
    Padding,
    SlidingWindow,
    and_masks,
    valid_mask,
)
from regard.nn.attention.positions import AbsolutePosition, PositionIds
from regard.nn.blocks.block import (
    ACTIVATIONS,
    Residual,
    Stack,
    TokenEmbedding,
    TransformerBlock,
    init_normal_,
    to_autocast_dtype,
)
from regard.nn.kernels.linear import Linear
from regard.types import Batch, Body, BodyOutput, Packing


class EncoderEmbedding(nn.Module):
    """Sum of token, position and token type embeddings, then LayerNorm and dropout.

    `position`: None if attention has relative positions. `position_offset`: row of the position table for the first
    token; if not 0, position ids skip padding, which uses the row before (RoBERTa). `project`: linear layer from the
    embedding width to the hidden size (RoFormer)."""

    def __init__(
        self,
        tokens: TokenEmbedding,
        position: AbsolutePosition | None,
        types: nn.Embedding | None,
        norm: nn.LayerNorm,
        dropout: float,
        position_offset: int = 0,
        project: Linear | None = None,
    ) -> None:
        super().__init__()
        self.tokens, self.position, self.types, self.norm = tokens, position, types, norm
        self.dropout = nn.Dropout(dropout)
        self.position_offset, self.project = position_offset, project

    @property
    def max_length(self) -> int | None:
        """Maximum number of tokens; None: unlimited."""
        if self.position is None or self.position.max_length is None:
            return None
        return self.position.max_length - self.position_offset

    def forward(self, batch: Batch) -> Float[Tensor, "B L D"]:
        x = self.tokens(batch.inputs)
        if self.types is not None:
            types = torch.zeros_like(batch.inputs) if batch.text.token_types is None else batch.text.token_types
            x = x + self.types(types)
        if self.position is not None:
            x = x + self.position(self.position_ids(batch)).to(x.dtype)
        x = self.dropout(to_autocast_dtype(self.norm(x)))
        return x if self.project is None else self.project(x)

    def position_ids(self, batch: Batch) -> Int[Tensor, "..."]:
        length, most = batch.inputs.shape[1], self.max_length
        if batch.positions is not None:
            return batch.positions + self.position_offset
        if batch.packing is not None:
            return batch.packing.positions(length, most) + self.position_offset
        if most is not None and length > most:
            raise InputError(
                f"The input has {length} tokens, but the model has {most} learned positions. Shorten the input."
            )
        if self.position_offset and batch.mask is not None:
            real = valid_mask(batch.mask, length)
            return real.cumsum(1) * real + self.position_offset - 1
        return torch.arange(self.position_offset, self.position_offset + length, device=batch.inputs.device)


class Pooler(nn.Module):
    """Linear layer and tanh on the state of the first token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = Linear(width, width)

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        return self.dense(x).tanh()


class ConvolutionBlock(TransformerBlock):
    """Block whose output is added to a convolution of its input, and normalized (DeBERTa-v2)."""

    def __init__(
        self, attend: Residual, feed: Residual, width: int, kernel: int, activation: str, dropout: float, eps: float
    ) -> None:
        super().__init__(attend, feed)
        self.conv = nn.Conv1d(width, width, kernel, padding=kernel // 2)
        self.norm, self.dropout = nn.LayerNorm(width, eps), nn.Dropout(dropout)
        self.activation = ACTIVATIONS[activation]

    def forward(  # type: ignore[override]
        self, x: Float[Tensor, "B L D"], context: None = None, *, mask: AttentionMask | None = None, **more: Any
    ) -> Float[Tensor, "B L D"]:
        if mask is not None and not isinstance(mask, Padding):
            raise ValueError("Packed batches are not supported: the convolution would mix documents. Use padded rows.")
        real = None if mask is None else valid_mask(mask.valid, x.shape[1])[..., None]
        added = self.activation(self.dropout(self.conv((x if real is None else x * real).mT).mT))
        return self.norm(super().forward(x, mask=mask, **more) + added)


class EncoderOnly(Body):
    """`pool`: pooled state of a row, the state of the first token or the mean of all tokens. `windows`: tokens on each side
    that each block attends to, in addition to `Batch.text.global_tokens`; None or empty: all
    tokens. `dilations`: dilation per block and head; empty: 1. Weights are initialized as in BERT: matrices N(0, 0.02)."""

    def __init__(
        self,
        embedding: EncoderEmbedding,
        encoder: Stack,
        pooler: Pooler | None = None,
        windows: Sequence[int | None] = (),
        dilations: Sequence[Sequence[int]] = (),
        pool: Literal["first", "mean"] = "first",
    ) -> None:
        super().__init__()
        self.pool = pool
        self.embedding, self.encoder = embedding, encoder
        self.pooler, self.has_pooler = pooler, pooler is not None
        steps = dilations or [()] * len(windows)
        self.windows: list[SlidingWindow | None] = [
            None if size is None else SlidingWindow(size, size, tuple(dilation) or 1)
            for size, dilation in zip(windows, steps, strict=True)
        ]
        init_normal_(self, 0.02)

    @property
    def tokens(self) -> TokenEmbedding:
        return self.embedding.tokens

    def forward(self, batch: Batch, taps: Collection[int] = ()) -> BodyOutput:
        """Hidden states of `batch.inputs`, and a pooled state per row, or per document of a packed row."""
        places = batch.positions
        if places is None and batch.packing is not None and self.encoder.position is not None:
            places = batch.packing.positions(batch.inputs.shape[1])
        ids = None if places is None else PositionIds(places, places)
        sequence, tapped = self.encoder(
            self.embedding(batch), mask=self.attention_masks(batch), taps=taps, position_ids=ids
        )
        pooled = (
            first_token_states(sequence, batch.packing) if self.pool == "first" else mean_token_states(sequence, batch)
        )
        return BodyOutput(sequence, pooled if self.pooler is None else self.pooler(pooled), tapped)

    def attention_masks(self, batch: Batch) -> AttentionMask | list[AttentionMask | None] | None:
        packed = None if batch.packing is None else PackedDocuments(batch.packing, batch.packing)
        rest, text = and_masks(packed, None if batch.mask is None else Padding(batch.mask)), batch.text
        if not self.windows:
            return rest
        marked = None if text.global_tokens is None else GlobalTokens(text.global_tokens, text.max_global_tokens)
        # one mask object per form of window, shared by all blocks with the window
        shared: dict[object, AttentionMask] = {}
        masks: list[AttentionMask | None] = []
        for window in self.windows:
            if window is None:
                masks.append(rest)
                continue
            near = window if marked is None else window | marked
            form = (window.left, window.dilation)
            masks.append(shared.setdefault(form, Memoized(near if rest is None else near & rest)))
        return masks


def first_token_states(sequence: Float[Tensor, "B L D"], offsets: Packing | None) -> Float[Tensor, "N D"]:
    """States of the first token of each row, or of each document of a packed row."""
    if offsets is None:
        return sequence[:, 0]
    # empty documents have no first token: their result, the state of another token, is not used
    return sequence[0].index_select(0, offsets.starts[:-1].clamp(max=sequence.shape[1] - 1))


def mean_token_states(sequence: Float[Tensor, "B L D"], batch: Batch) -> Float[Tensor, "N D"]:
    """Mean states of the tokens of each row, or of each document of a packed row."""
    if batch.packing is None and batch.mask is None:
        return sequence.mean(1)
    if batch.packing is None:
        assert batch.mask is not None
        real = valid_mask(batch.mask, sequence.shape[1])
        return (sequence * real[..., None]).sum(1) / real.sum(1, keepdim=True).clamp(min=1)
    starts = batch.packing.starts
    owner = batch.packing.document_ids(torch.arange(sequence.shape[1], device=sequence.device))
    sums = sequence.new_zeros(len(starts), sequence.shape[2]).index_add(0, owner, sequence[0])
    return sums[: len(starts) - 1] / starts.diff()[:, None].clamp(min=1)
