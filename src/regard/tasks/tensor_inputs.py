"""Tensors passed by the user to `Model.logits` and `Model.states`: the batch, with errors that name the argument."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.config import as_dict
from regard.errors import InputError, InputTypeError, RegardError
from regard.nn.recording import record_attention, record_states
from regard.tasks.base import Model, describe
from regard.types import Batch, BodyOutput, DecoderInputs, TextFields

NAMES = ("inputs", "decoder_inputs", "mask", "decoder_mask", "token_types", "positions", "global_tokens")


def make_batch(model: Model, *tensors: Tensor | None) -> Batch:
    """Batch of the arguments `NAMES`. Types, shapes and devices are checked, and no values on a GPU, which would wait for
    the GPU."""
    for name, value in zip(NAMES, tensors, strict=True):
        if not isinstance(value, Tensor) and (value is not None or name == "inputs"):
            raise InputTypeError(f"{name}: expected a tensor, got {describe(value)}.")
        if value is not None and value.device != model.device:
            raise InputError(f"{name} is on {value.device}, but the model is on {model.device}. Pass {name}.to(…).")
    inputs, decoder_inputs, mask, decoder_mask, token_types, positions, global_tokens = tensors
    assert inputs is not None
    expects = model.objective.has_decoder_inputs
    if expects != (decoder_inputs is not None):
        raise InputError(
            f"decoder_inputs: task '{model.task.name}' {'requires' if expects else 'does not use'} the tokens of a decoder."
        )
    _check_inputs(model, inputs)
    decoder = None
    if decoder_inputs is not None:
        decoder_inputs = _ids(decoder_inputs, "decoder_inputs", 2)
        decoder = DecoderInputs(decoder_inputs, _marks(decoder_mask, "decoder_mask", decoder_inputs))
    if model.task.input == "text":
        inputs = _ids(inputs, "inputs", 2 if inputs.ndim < 3 or "ways" not in model.objective.fields else 3)
        for name, value in (("token_types", token_types), ("global_tokens", global_tokens)):
            if value is not None and value.shape != inputs.shape:
                raise InputError(f"{name}: expected shape {tuple(inputs.shape)}, got {tuple(value.shape)}.")
    text = TextFields(token_types, global_tokens)
    batch = Batch(inputs, _marks(mask, "mask", inputs), positions, decoder=decoder, text=text)
    if inputs.dtype != torch.uint8 or model.task.input != "image":
        return batch
    from regard.tasks.draw import prepare_colors
    from regard.tasks.modality.image import prepare_images

    return (prepare_colors if model.task.name == "draw" else prepare_images)(model, batch)


def _check_inputs(model: Model, inputs: Tensor) -> None:
    kind, whole = model.task.input, not inputs.is_floating_point()
    if kind == "points" and (inputs.ndim != 3 or whole):
        raise InputTypeError(f"inputs: expected points (batch, points, values) as floats, got {describe(inputs)}.")
    is_colors = model.config.traits.palette and inputs.ndim == 2
    if kind == "image" and not is_colors:
        if inputs.ndim != 4 or (whole and inputs.dtype != torch.uint8):
            expected = "pixels (batch, channels, height, width) as uint8 or normalized floats"
            raise InputTypeError(f"inputs: expected {expected}, got {describe(inputs)}.")


def _ids(value: Tensor, name: str, rank: int) -> Tensor:
    """Token ids of a type that embeddings support."""
    if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool or value.ndim != rank:
        raise InputTypeError(f"{name}: expected token ids of shape (batch, length), got {describe(value)}.")
    if not value.shape[-1]:
        raise InputError(f"{name}: expected at least one token per row, got {describe(value)}.")
    return value if value.dtype in (torch.int64, torch.int32) else value.long()


def _marks(mask: Tensor | None, name: str, inputs: Tensor) -> Tensor | None:
    """Mask as lengths (B,), or as bool with the shape of the inputs, also from numbers 0 and 1."""
    if mask is None:
        return None
    if mask.shape == inputs.shape and inputs.ndim > 1:
        return mask if mask.dtype == torch.bool else mask != 0
    is_lengths = mask.shape == inputs.shape[: inputs.ndim - 1] and not mask.is_floating_point()
    if not is_lengths or mask.dtype == torch.bool:
        shape = tuple(inputs.shape)
        raise InputError(f"{name}: expected lengths {shape[:-1]} or marks {shape}, got {describe(mask)}.")
    on_cpu = mask.device.type == "cpu" and not torch.compiler.is_compiling()
    if on_cpu and bool(((mask < 0) | (mask > inputs.shape[-1])).any()):
        raise InputError(f"{name}: expected lengths from 0 to {inputs.shape[-1]:,}, got {mask.tolist()}.")
    return mask


def run(model: Model, function: Callable[[Batch], Any], *tensors: Tensor | None) -> Any:
    """Result of a function of the batch of the arguments `NAMES`; errors name the argument."""
    batch = make_batch(model, *tensors)
    if torch.compiler.is_compiling():
        return function(batch)
    try:
        return function(batch)
    except RegardError:
        raise
    except (IndexError, RuntimeError, ValueError) as error:
        # values are examined after a failure only: before each call, this would wait for the GPU
        problem = find_invalid_value(model, batch) or ("" if isinstance(error, RuntimeError) else str(error))
        if not problem:
            raise
        raise InputError(problem) from error


def run_recorded(model: Model, layers: str | None, attentions: bool, batch: Batch) -> BodyOutput:
    """Output of the body with the hidden states or the attention weights of all layers."""
    if layers not in (None, "all") or isinstance(layers, bool):
        raise InputError(f"layers must be 'all' or None, got {describe(layers)}.")
    with ExitStack() as stack:
        states = stack.enter_context(record_states())
        records = stack.enter_context(record_attention(model.body)) if attentions else None
        output: BodyOutput = model.body(batch)
    output = replace(output, attentions=records)
    if layers is None:
        return output
    inner = {part for module in states for part in module.modules() if part is not module}
    *before, last = found = [tuple(kept) for module, kept in states.items() if module not in inner] or [()]
    has_decoder = model.objective.has_decoder_inputs
    if len(found) < 1 + has_decoder or not last:
        raise InputError(f"layers='all' is not supported by {model.spec.system.name}, which has no states per layer.")
    if has_decoder or batch.inputs.ndim == 2:  # after the final norm, in contrast to images
        last = (*last[:-1], output.sequence)
    encoder: tuple[Tensor, ...] = before[-1] if has_decoder else ()
    if has_decoder and batch.inputs.ndim == 2 and output.cross_states is not None:
        encoder = (*encoder[:-1], output.cross_states)
    return replace(output, hidden_states=last, encoder_hidden_states=encoder)


def find_invalid_value(model: Model, batch: Batch) -> str:
    """Message about a value that is out of range, after a failed call; empty if there is none."""
    fields, traits = as_dict(model.config), model.config.traits
    size = fields.get("vocab_size") or traits.vocab_size
    ids = batch.inputs if model.task.input == "text" else None
    limits: tuple[tuple[str, Tensor | None, Any], ...] = (
        ("inputs", ids, fields.get("source_vocab_size") or size),
        ("inputs", batch.inputs if traits.palette and batch.inputs.ndim == 2 else None, fields.get("num_colors")),
        ("decoder_inputs", None if batch.decoder is None else batch.decoder.inputs, size),
        ("token_types", batch.text.token_types, traits.token_types),
        ("positions", batch.positions, fields.get("max_length")),
    )
    for name, value, most in limits:
        if value is None or not most:
            continue
        if not value.numel():
            return f"{name} is empty: {describe(value)}."
        low, high = int(value.min()), int(value.max())
        if low < 0 or high >= most:
            return f"{name}: expected values from 0 to {most - 1:,}, got {low:,} to {high:,}."
    return ""
