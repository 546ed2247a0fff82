"""Inputs, positions and masks of encoder–decoder models, and tensor names of Marian in Hugging Face format."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.errors import WeightsError
from regard.nn.attention.masks import AttentionMask, Causal, PackedDocuments, Padding, and_masks, valid_mask
from regard.nn.attention.positions import SinusoidalPosition
from regard.nn.blocks.decoder import CrossDecoder, DecoderState
from regard.types import Batch, DecoderInputs, Packing
from regard.weights.tables import NameTable, Tensors, entry, layer


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
    """Encoder–decoder for text; subclasses compute the encoder states."""

    max_offset: int = 0
    """Largest random offset of the positions in training."""

    def encode(self, batch: Batch, inputs: Seq2SeqInputs, taps: Collection[int] = ()) -> tuple[Any, ...]:
        """Encoder outputs (B, S, D) for cross-attention, and hidden states of the blocks in `taps`."""
        raise NotImplementedError

    def start(self, batch: Batch, max_positions: int | None = None) -> DecoderState:
        """Encode the source, and process all but the last token of the prompt `batch.decoder.inputs`.

        `max_positions`: length of a static KV cache."""
        if batch.packing is not None:
            raise ValueError("Generation does not support packed batches. Use padded rows.")
        prompt, (context, *_) = require_prompt(batch), self.encode(batch, Seq2SeqInputs.from_batch(batch))
        valid = None if batch.mask is None else valid_mask(batch.mask, batch.inputs.shape[1])[:, None]
        return self.prefill(context, valid, prompt, max_positions)


# -- the Transformer in Hugging Face format: Marian


_OURS, _THEIRS = "{side}.blocks.{n}", "model.{side}.layers.{n}"
SHARED_EMBEDDING = "model.shared.weight"
MARIAN_NAMES = NameTable(
    entries=(
        entry("tokens.table.weight", SHARED_EMBEDDING),
        entry("tokens.bias", "final_logits_bias"),
        layer(f"{_OURS}.attend.inner.qkv", *(f"{_THEIRS}.self_attn.{name}_proj" for name in "qkv")),
        layer(f"{_OURS}.attend.inner.out", f"{_THEIRS}.self_attn.out_proj"),
        layer(f"{_OURS}.attend.norm", f"{_THEIRS}.self_attn_layer_norm"),
        layer(f"{_OURS}.cross.inner.q", f"{_THEIRS}.encoder_attn.q_proj"),
        layer(f"{_OURS}.cross.inner.kv", *(f"{_THEIRS}.encoder_attn.{name}_proj" for name in "kv")),
        layer(f"{_OURS}.cross.inner.out", f"{_THEIRS}.encoder_attn.out_proj"),
        layer(f"{_OURS}.cross.norm", f"{_THEIRS}.encoder_attn_layer_norm"),
        layer(f"{_OURS}.feed.inner.up", f"{_THEIRS}.fc1"),
        layer(f"{_OURS}.feed.inner.down", f"{_THEIRS}.fc2"),
        layer(f"{_OURS}.feed.norm", f"{_THEIRS}.final_layer_norm"),
    ),
    tied=dict.fromkeys(
        ("lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"), SHARED_EMBEDDING
    ),
    drop=("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"),
)


def from_marian(config: Any, tensors: Tensors) -> tuple[Any, Tensors]:
    """Check tied copies and stored sinusoidal tables, and drop an output bias of zeros."""
    tensors = MARIAN_NAMES.complete(tensors)
    for name in MARIAN_NAMES.drop:
        if name in tensors and not _is_sinusoid_table(tensors[name], config):
            raise WeightsError(f"{name} does not contain the sinusoidal positions of the paper.")
    bias = tensors.pop("final_logits_bias", None)
    if bias is not None and bias.numel() != config.vocab_size:
        raise WeightsError(
            f"final_logits_bias (tokens.bias) has {bias.numel()} values, but the vocabulary has {config.vocab_size} tokens."
        )
    if bias is None or not (config.output_bias or bias.any()):
        return config, tensors
    return replace(config, output_bias=True), {**tensors, "final_logits_bias": bias.flatten()}


def _is_sinusoid_table(table: Tensor, config: Any) -> bool:
    if table.ndim != 2 or table.shape[1] != config.width:
        return False
    wanted = SinusoidalPosition(config.width, "halves")(torch.arange(len(table)))
    return torch.allclose(table.double(), wanted, atol=1e-2 if table.element_size() < 4 else 1e-5)


def to_marian(config: Any, tensors: Tensors) -> Tensors:
    bias = tensors.get("final_logits_bias", tensors[SHARED_EMBEDDING].new_zeros(config.vocab_size))
    return {**tensors, "final_logits_bias": bias[None]}
