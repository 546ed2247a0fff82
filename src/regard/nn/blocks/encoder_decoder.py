"""Encoder–decoder Transformer for text. Inputs, positions and masks of encoder–decoder models."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.nn.attention.masks import AttentionMask, Causal, PackedDocuments, Padding, and_masks, valid_mask
from regard.nn.attention.positions import PositionIds
from regard.nn.blocks.decoder import CrossDecoder, DecoderState
from regard.types import Batch, BodyOutput, DecoderInputs, Packing


def require_prompt(batch: Batch) -> Tensor:
    """Prompt ids, (B, P), of equal length in all rows."""
    if batch.decoder is None:
        raise ValueError("Generation requires a prompt (batch.decoder.inputs).")
    if batch.decoder.mask is not None:
        raise ValueError("Generation requires prompts of equal length, without batch.decoder.mask.")
    return batch.decoder.inputs


def valid_targets(batch: Batch) -> Tensor | None:
    """(B, T) True for decoder inputs, False for padding; None without `batch.decoder.mask`."""
    target = batch.require_decoder()
    return None if target.mask is None else valid_mask(target.mask, target.inputs.shape[1])


@dataclass(frozen=True)
class Seq2SeqInputs:
    """Positions and attention masks of source and target, for padded or packed batches."""

    decoder: DecoderInputs
    positions: Tensor
    mask: AttentionMask | None
    decoder_positions: Tensor
    decoder_mask: AttentionMask | None
    cross_mask: AttentionMask | None

    @classmethod
    def from_batch(cls, batch: Batch, max_shift: int = 0) -> Seq2SeqInputs:
        """`max_shift`: maximum of one random offset per sample, added to the positions of source and target."""
        target = batch.decoder
        if target is None:
            raise ValueError("The decoder requires batch.decoder.")
        if (batch.packing is None) != (target.packing is None):
            raise ValueError("Packed batches require both batch.packing and batch.decoder.packing.")
        source_real, target_real = (None if side.mask is None else Padding(side.mask) for side in (batch, target))
        source_rule, target_rule, cross_rule = (
            None if keys is None or queries is None else PackedDocuments(queries, keys)
            for queries, keys in ((batch.packing,) * 2, (target.packing,) * 2, (target.packing, batch.packing))
        )
        sides = (batch.inputs, batch.packing), (target.inputs, target.packing)
        where, decoder_where = (position_ids(ids, packing) for ids, packing in sides)
        where = where if batch.positions is None else batch.positions
        if max_shift:
            rows = len(batch.inputs) if batch.packing is None else len(batch.packing.starts)
            begins = torch.randint(max_shift + 1, (rows,), device=batch.inputs.device)
            shifts = [
                begins[:, None]
                if packing is None
                else begins[packing.document_ids(torch.arange(ids.shape[1], device=ids.device)[None])]
                for ids, packing in sides
            ]
            where, decoder_where = where + shifts[0], decoder_where + shifts[1]
        return cls(
            target,
            where,
            and_masks(source_rule, source_real),
            decoder_where,
            and_masks(Causal(), target_rule, target_real),
            and_masks(cross_rule, source_real),
        )


def position_ids(ids: Tensor, offsets: Packing | None) -> Tensor:
    """Positions of tokens, counted from the start of each document."""
    length = ids.shape[1]
    return torch.arange(length, device=ids.device) if offsets is None else offsets.positions(length)


def require_padded(batch: Batch) -> None:
    """Raise an error for packed batches, which recurrent networks do not support."""
    if batch.packing is not None or (batch.decoder is not None and batch.decoder.packing is not None):
        raise ValueError(
            "Packed batches are not supported: the recurrent state would carry over between documents. Use padded rows."
        )


class EncoderDecoder(CrossDecoder):
    max_offset: int = 0
    """Largest random offset of the positions in training."""

    def encode(self, batch: Batch, inputs: Seq2SeqInputs, taps: Collection[int] = ()) -> tuple[Any, ...]:
        """Encoder outputs (B, S, D) for cross-attention, and hidden states of the blocks in `taps`."""
        where = inputs.positions
        x, ids = self.embed(batch.inputs, where), PositionIds(where, where)
        return self.encoder(x, mask=inputs.mask, taps=taps, position_ids=ids)

    def forward(self, batch: Batch, taps: Collection[int] = ()) -> BodyOutput:
        """Decoder states for `batch.decoder.inputs`; `taps` are encoder blocks."""
        sides = Seq2SeqInputs.from_batch(batch, self.max_offset if self.training else 0)
        context, tapped = self.encode(batch, sides, taps)
        sequence = self.decode(
            sides.decoder.inputs,
            context,
            mask=sides.decoder_mask,
            context_mask=sides.cross_mask,
            positions=sides.decoder_positions,
        )
        return BodyOutput(sequence, hidden_states=tapped, cross_states=context)

    def start(self, batch: Batch, max_positions: int | None = None) -> DecoderState:
        """Encode the source, and process all but the last token of the prompt `batch.decoder.inputs`.

        `max_positions`: length of a static KV cache."""
        if batch.packing is not None:
            raise ValueError("Generation does not support packed batches. Use padded rows.")
        prompt, (context, *_) = require_prompt(batch), self.encode(batch, Seq2SeqInputs.from_batch(batch))
        valid = None if batch.mask is None else valid_mask(batch.mask, batch.inputs.shape[1])[:, None]
        return self.prefill(context, valid, prompt, max_positions)
