"""Inputs, positions and masks of encoder–decoder models."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.nn.attention.masks import AttentionMask, Causal, PackedDocuments, Padding, and_masks, valid_mask
from regard.nn.blocks.decoder import CrossDecoder, DecoderState
from regard.types import Batch, Offsets


def require_decoder_inputs(batch: Batch) -> Tensor:
    """Decoder input ids, (B, T)."""
    if batch.decoder_inputs is None:
        raise ValueError("The decoder requires batch.decoder_inputs.")
    return batch.decoder_inputs


def require_prompt(batch: Batch) -> Tensor:
    """Prompt ids, (B, P), of equal length in all rows."""
    if batch.decoder_inputs is None:
        raise ValueError("Generation requires a prompt (batch.decoder_inputs).")
    if batch.decoder_mask is not None:
        raise ValueError("Generation requires prompts of equal length, without batch.decoder_mask.")
    return batch.decoder_inputs


def valid_targets(batch: Batch) -> Tensor | None:
    """(B, T) True for decoder inputs, False for padding; None without `batch.decoder_mask`."""
    if batch.decoder_mask is None:
        return None
    return valid_mask(batch.decoder_mask, require_decoder_inputs(batch).shape[1])


@dataclass(frozen=True)
class Seq2SeqInputs:
    """Positions and attention masks of source and target, for padded or packed batches."""

    positions: Tensor
    mask: AttentionMask | None
    """Self-attention mask of the encoder."""
    decoder_positions: Tensor
    decoder_mask: AttentionMask | None
    cross_mask: AttentionMask | None
    """Cross-attention mask from target to source."""

    @classmethod
    def from_batch(cls, batch: Batch) -> Seq2SeqInputs:
        target = require_decoder_inputs(batch)
        if (batch.offsets is None) != (batch.decoder_offsets is None):
            raise ValueError("Packed batches require both batch.offsets and batch.decoder_offsets.")
        real = None if batch.mask is None else Padding(batch.mask)
        rule: AttentionMask | None = None
        own: AttentionMask | None = None
        across: AttentionMask | None = None
        if batch.offsets is not None and batch.decoder_offsets is not None:
            rule, own = (PackedDocuments(side, side) for side in (batch.offsets, batch.decoder_offsets))
            across = PackedDocuments(batch.decoder_offsets, batch.offsets)
        own = and_masks(Causal(), own, None if batch.decoder_mask is None else Padding(batch.decoder_mask))
        where = position_ids(batch.inputs, batch.offsets) if batch.positions is None else batch.positions
        return cls(
            where, and_masks(rule, real), position_ids(target, batch.decoder_offsets), own, and_masks(across, real)
        )

    def shift_positions(self, batch: Batch, max_shift: int) -> Seq2SeqInputs:
        """Add one random offset per sample, from 0 to `max_shift`, to the positions of source and target."""
        rows = len(batch.inputs) if batch.offsets is None else len(batch.offsets.starts)
        begins = torch.randint(max_shift + 1, (rows,), device=batch.inputs.device)

        def of(where: Tensor, offsets: Offsets | None, length: int) -> Tensor:
            if offsets is None:
                return where + begins[:, None]
            return where + begins[offsets.document_ids(torch.arange(length, device=where.device)[None])]

        return replace(
            self,
            positions=of(self.positions, batch.offsets, batch.inputs.shape[1]),
            decoder_positions=of(self.decoder_positions, batch.decoder_offsets, require_decoder_inputs(batch).shape[1]),
        )


def position_ids(ids: Tensor, offsets: Offsets | None) -> Tensor:
    """Positions of tokens, counted from the start of each document."""
    length = ids.shape[1]
    return torch.arange(length, device=ids.device) if offsets is None else offsets.positions(length)


def require_padded(batch: Batch) -> None:
    """Raise an error for packed batches, which recurrent networks do not support."""
    if batch.offsets is not None or batch.decoder_offsets is not None:
        raise ValueError(
            "Packed batches are not supported: the recurrent state would carry over between documents. Use padded rows."
        )


class EncoderDecoder(CrossDecoder):
    """Encoder–decoder for text; subclasses compute the encoder states."""

    max_offset: int
    """Largest random offset of the positions in training."""

    def source_states(self, batch: Batch) -> Tensor:
        """Encoder outputs (B, S, D) for cross-attention."""
        raise NotImplementedError

    def prepare_inputs(self, batch: Batch) -> Seq2SeqInputs:
        inputs = Seq2SeqInputs.from_batch(batch)
        return inputs.shift_positions(batch, self.max_offset) if self.training and self.max_offset else inputs

    def start(self, batch: Batch, max_positions: int | None = None) -> DecoderState:
        """Encode the source, and process all but the last token of the prompt `batch.decoder_inputs`.

        `max_positions`: length of a static KV cache."""
        if batch.offsets is not None:
            raise ValueError("Generation does not support packed batches. Use padded rows.")
        prompt, context = require_prompt(batch), self.source_states(batch)
        valid = None if batch.mask is None else valid_mask(batch.mask, batch.inputs.shape[1])[:, None]
        return self.prefill(context, valid, prompt, max_positions)
