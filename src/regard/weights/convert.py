"""Tensors of a checkpoint in the modules of a model, with notes about heads of other tasks."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from regard.weights.tables import matches

if TYPE_CHECKING:
    from regard.model import Model

UNUSED_WEIGHTS = "Not used:"  # Start of a note about weights in the file without a counterpart in the model.

HEAD_DESCRIPTIONS = {
    "seq_relationship": "next-sentence prediction", "follows": "next-sentence prediction", "predictions": "masked tokens",
    "words": "masked tokens", "lm_head": "language modeling", "classifier": "classes", "score": "classes", "classes": "classes",
    "tags": "tags", "choice": "choices", "qa_outputs": "answers", "ends": "answers", "pooler": "pooling",
}  # fmt: skip
"""Purpose of head tensors, by a component of the tensor name."""


def convert_tensors(
    model: Model, wanted: list[str], tensors: dict[str, Tensor], native: bool, same_task: bool
) -> dict[str, Tensor]:
    """Tensors by the native names `wanted`; all tensors of the body are required. The head of a checkpoint for another
    task is ignored, and a new head is initialized, both with a note."""
    names, tensors = model.spec.system.published.names, dict(tensors)
    own_name = (lambda name: [name]) if native else names.published_names
    for name, part in () if model.head is None else model.head.named_modules():
        if isinstance(part, nn.Linear) and part.bias is None:  # decoder heads have no bias by default
            found = [file_name for file_name in own_name(f"head.{name}.bias") if file_name in tensors]
            if any(bool(tensors[file_name].any()) for file_name in found):
                part.bias = nn.Parameter(torch.zeros_like(part.weight[:, 0]))
                wanted.append(f"head.{name}.bias")
            else:  # a bias of zeros has no effect
                tensors = {file_name: tensor for file_name, tensor in tensors.items() if file_name not in found}
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


def _describe_heads(names: Sequence[str]) -> str:
    """Names of up to two tensors, or the purpose of more tensors."""
    if len(names) < 3:
        return ", ".join(names)
    kinds = {
        next((kind for word, kind in HEAD_DESCRIPTIONS.items() if word in name.split(".")), name) for name in names
    }
    return f"the head for {' and '.join(sorted(kinds))} ({len(names)} tensors)"


def _init_missing(model: Model, new: Sequence[str], read: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Initial values of missing tensors: the initialization of the task for heads, otherwise N(0, 0.02), or 0 for
    vectors."""
    widest = functools.reduce(torch.promote_types, {tensor.dtype for tensor in read.values()})
    fresh = None if model.head is None else model.objective.head(model.config, model.spec.options)
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


def add_bias(head: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Create the absent biases that occur in the tensors of a checkpoint."""
    for name, part in head.named_modules():
        if isinstance(part, nn.Linear) and part.bias is None and f"{name}.bias" in tensors:
            part.bias = nn.Parameter(torch.zeros_like(part.weight[:, 0]))
