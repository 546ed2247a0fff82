"""Tensors and settings of a run folder or a Hugging Face checkpoint, by native names."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.config import from_dict
from regard.decode.settings import DecodeSettings, generation_keys, translate_generation_config
from regard.errors import RunError, SettingError, WeightsError
from regard.index import print_note
from regard.tasks import Task
from regard.weights.tables import NameTable, matches, mismatch_error


def published_labels(names: NameTable, published: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Class names from `id2label`, or LABEL_0, LABEL_1, … if missing; empty without a classification head."""
    heads = [name for ours in ("head.classes.weight", "head.tags.weight") for name in names.published_names(ours)]
    found = next((tensors[name] for name in heads if name in tensors), None)
    if found is None:
        return ()
    named = {int(number): str(name) for number, name in (published.get("id2label") or {}).items()}
    return tuple(named.get(number, f"LABEL_{number}") for number in range(len(found)))


def convert_tensors(model: Any, tensors: dict[str, Tensor], native: bool, same_task: bool) -> dict[str, Tensor]:
    """Tensors by native names. All tensors of the body are required. If the checkpoint is for another task, its head is
    ignored and a new head is initialized, both with a note."""
    names, tensors = model.spec.system.published.names, dict(tensors)
    own_name = (lambda name: [name]) if native else names.published_names
    if model.head is not None:
        tensors = _resolve_head_bias(model.head, own_name, tensors)
    wanted = list(model.weights())
    new = [
        name
        for name in wanted
        # heads of two tasks may have the same name: never load the head of another task
        if (name.startswith("head.") and not same_task)
        or (matches(names.optional, name) and not set(own_name(name)) <= tensors.keys())
    ]
    wanted = [name for name in wanted if name not in new]
    if native:
        foreign = [
            name
            for name in tensors
            if name not in wanted and ((name.startswith("head.") and not same_task) or matches(names.optional, name))
        ]
        read = {name: tensor for name, tensor in tensors.items() if name not in foreign}
    else:
        read, foreign = names.read(tensors, wanted)
    if foreign:
        model.notes.append(f"{UNUSED_WEIGHTS} {_describe_heads(foreign)} (of another task).")
    if model.head is None and model.objective.has_labels:
        model.notes.append("The model has no classification head yet: no classes are defined.")
        model.has_new_head = True
    return read | _init_missing(model, new, read) if new else read


UNUSED_WEIGHTS = "Not used:"
"""Start of a note about weights in the file without a counterpart in the model."""


def missing_bias_names(head: nn.Module) -> list[str]:
    """Names of the absent biases of a head: some checkpoints contain such biases."""
    return [f"{name}.bias" for name, part in head.named_modules() if isinstance(part, nn.Linear) and part.bias is None]


def add_bias(head: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Create the absent biases that occur in the tensors of a checkpoint."""
    for name, part in head.named_modules():
        if isinstance(part, nn.Linear) and part.bias is None and f"{name}.bias" in tensors:
            part.bias = nn.Parameter(torch.zeros_like(part.weight[:, 0]))


HEAD_DESCRIPTIONS = {
    "seq_relationship": "next-sentence prediction", "follows": "next-sentence prediction", "predictions": "masked tokens",
    "words": "masked tokens", "lm_head": "language modeling", "classifier": "classes", "score": "classes", "classes": "classes",
    "tags": "tags", "choice": "choices", "qa_outputs": "answers", "ends": "answers", "pooler": "pooling",
}  # fmt: skip
"""Purpose of head tensors, by a component of the tensor name."""


def _describe_heads(names: Sequence[str]) -> str:
    """Names of up to two tensors, or the purpose of more tensors."""
    if len(names) < 3:
        return ", ".join(names)
    kinds = {
        next((kind for word, kind in HEAD_DESCRIPTIONS.items() if word in name.split(".")), name) for name in names
    }
    return f"the head for {' and '.join(sorted(kinds))} ({len(names)} tensors)"


def _resolve_head_bias(head: nn.Module, own_name: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors without a zero bias of the head. A nonzero bias is added to the head, because decoder heads have none by
    default."""
    for bias in missing_bias_names(head):
        found = [name for name in own_name(f"head.{bias}") if name in tensors]
        if found and not any(bool(tensors[name].any()) for name in found):
            tensors = {name: tensor for name, tensor in tensors.items() if name not in found}
        elif found:
            add_bias(head, {bias: tensors[found[0]]})
    return tensors


def _init_missing(model: Any, new: Sequence[str], read: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Initial values of missing tensors: the initialization of the task for heads, otherwise N(0, 0.02), or 0 for
    vectors."""
    widest = functools.reduce(torch.promote_types, {tensor.dtype for tensor in read.values()})
    fresh = model.objective.head(model.config, model.spec.options)
    heads = {} if fresh is None else {f"head.{name}": tensor for name, tensor in fresh.state_dict().items()}
    made = {}
    for name in new:
        shape = model.weights()[name].shape
        tensor = heads.get(name)
        if tensor is None:
            tensor = torch.zeros(shape) if len(shape) == 1 else torch.normal(0.0, 0.02, tuple(shape))
        made[name] = tensor.to(widest)
        if len(shape) > 1:
            sizes = " x ".join(map(str, shape))
            model.notes.append(f"Random weights: {name} ({sizes}), missing in the file.")
    model.has_new_head = model.has_new_head or any(name in heads for name in new)
    return made


def assign_weights(
    model: Any, tensors: dict[str, Tensor], expected_shapes: dict[str, torch.Size], folder: Path
) -> None:
    missing, strange = (
        [n for n in expected_shapes if n not in tensors],
        [n for n in tensors if n not in expected_shapes],
    )
    if missing or strange:
        raise mismatch_error(missing, strange)
    for name, shape in expected_shapes.items():
        if tensors[name].shape != shape:
            raise WeightsError(
                f"{folder}: {name} is {tuple(tensors[name].shape)} in the file, expected {tuple(shape)} from config.json."
            )
        if not tensors[name].is_floating_point():
            raise WeightsError(f"{folder}: {name} expected floating-point numbers, got {tensors[name].dtype}.")
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    widest = functools.reduce(torch.promote_types, {tensor.dtype for tensor in tensors.values()})
    model.load_weights({name: tensor.to(widest) for name, tensor in tensors.items()}, assign=True)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)


def published_decode(folder: Path, published: Mapping[str, Any], config: Any, task: Task) -> DecodeSettings | None:
    """Decode settings of a Hugging Face checkpoint; None if the task does not generate text or the folder has no
    settings.

    Unsupported values are printed in one note."""
    path = folder / "generation_config.json"
    used = task.objective.settings_used
    if "decode.max_length" not in used:  # the task generates no text
        return None
    try:
        given = json.loads(path.read_text(encoding="utf-8")) if path.exists() else generation_keys(published)
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot read the file ({error}).") from error
    if not isinstance(given, dict):
        raise RunError(f"{path}: expected a JSON object.")
    if not given:
        return None
    padding = {config.traits.pad_id} - {config.eos_id, None}
    found, unsupported = translate_generation_config(given, config, padding)
    if unsupported:
        name = path.name if path.exists() else "config.json"
        print_note(f"note: {folder}: {name} has unsupported settings, which are ignored: {', '.join(unsupported)}.")
    try:
        return from_dict(
            DecodeSettings,
            {key: value for key, value in found.items() if f"decode.{key}" in used},
            "decode.",
        )
    except SettingError as error:
        raise RunError(f"{path}: {error}") from error
