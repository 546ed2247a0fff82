"""Tensors and settings of a run folder or a Hugging Face checkpoint, by native names."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard import index
from regard.config import as_dict, from_dict
from regard.decode.generation_config import generation_keys, translate_generation_config
from regard.decode.settings import DecodeSettings
from regard.errors import RegardError, RunError, SettingError, WeightsError
from regard.folders import read_config_files
from regard.foreign_names import print_note
from regard.hub import local_folder
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.systems import find_by_model_type, find_system
from regard.systems.common.system import System
from regard.tasks import Task
from regard.tasks.text_heads import add_bias, missing_bias_names
from regard.weights.tables import NameTable, Tensors, matches, mismatch_error, read_checkpoint


class _SkipInit(TorchFunctionMode):
    """Skips random initialization: a tensor on the meta device has no values, and `normal_` of such a tensor imports
    Dynamo, which takes a second."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_, Tensor.normal_, Tensor.uniform_):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


@contextmanager
def meta_device() -> Iterator[None]:
    """Build modules in the block with shapes only, without memory and initial values."""
    with torch.device("meta"), _SkipInit():
        yield


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
    names, tensors = model.spec.system.names, dict(tensors)
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
    if model.head is None and model.task.has_labels:
        model.notes.append("The model has no classification head yet: no classes are defined.")
        model.has_new_head = True
    return read | _init_missing(model, new, read)


UNUSED_WEIGHTS = "Not used:"
"""Start of a note about weights in the file without a counterpart in the model."""

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
    if not new:
        return {}
    widest = functools.reduce(torch.promote_types, {tensor.dtype for tensor in read.values()})
    fresh = model.task.head(model.config, model.spec.labels)
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


def read_published_config(system: System, published: Mapping[str, Any], folder: Path) -> Any:
    """Model configuration of a Hugging Face checkpoint. An end token outside the vocabulary is replaced, with a note."""
    fields = system.published.read(published)
    end, size = fields.get("eos_id", 0), fields.get("vocab_size")
    if isinstance(size, int) and (end is None or (isinstance(end, int) and not 0 <= end < size)):
        found = TextTokenizer.load(folder).special_id("end") if TextTokenizer.exists(folder) else None
        fields["eos_id"] = found if found is not None and found < size else size - 1
        problem = "missing" if end is None else f"{end} and outside the vocabulary of {size:,} tokens"
        print_note(f"note: {folder}: eos_token_id is {problem}; token {fields['eos_id']} is used as the end token.")
    return from_dict(system.config, fields, "model.")


def published_decode(folder: Path, published: Mapping[str, Any], config: Any, task: Task) -> DecodeSettings | None:
    """Decode settings of a Hugging Face checkpoint; None if the task does not generate text or the folder has no
    settings.

    Unsupported values are printed in one note."""
    path = folder / "generation_config.json"
    if "decode.max_length" not in task.settings_used:  # the task generates no text
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
            {key: value for key, value in found.items() if f"decode.{key}" in task.settings_used},
            "decode.",
        )
    except SettingError as error:
        raise RunError(f"{path}: {error}") from error


# -- image encoders of captioning models


def read_body(folder: Path) -> tuple[System, Any, Tensors]:
    """System, config and native tensors of a model folder without its task; tensors of a head may be included."""
    published, own = read_config_files(folder)
    ours = published.get("model_type") == "regard"
    system = find_system(own["system"]) if own else find_by_model_type(str(published.get("model_type")))
    config = (
        from_dict(system.config, own["model"], "model.") if own else read_published_config(system, published, folder)
    )
    tensors = read_checkpoint(folder)
    if ours:
        return system, config, tensors
    config, tensors = system.from_published(config, tensors)
    with meta_device():
        wanted = list(system.build(config).state_dict())
    return system, config, system.names.read(tensors, wanted)[0]


def resolve_encoder(config: Any, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides of a captioning config, completed from the checkpoint folder `model.encoder`. The default image size is
    the size in the folder."""
    said, name = dict(overrides), str(overrides.get("encoder", ""))
    if not name:
        return said
    from regard.processors.image import ImageProcessor
    from regard.systems.captioners.common import ENCODER_SYSTEMS, CaptionConfig

    if not isinstance(config, CaptionConfig) or index.presets().get(name) in ENCODER_SYSTEMS:
        return said
    folder = Path(os.path.abspath(os.path.expanduser(local_folder(name))))
    if str(folder) == config.encoder:  # already resolved
        return {**said, "encoder": str(folder)}
    if not (folder.is_dir() or os.sep in name):
        return said  # not a folder: the config raises an error for an unknown preset
    if "encoder_config" in said:
        raise SettingError(
            f"model.encoder_config cannot be set: {folder} contains its own config. Remove model.encoder_config."
        )
    try:
        system, seen, _ = read_body(folder)
    except RegardError as error:
        raise SettingError(f"model.encoder={name} is not a valid image encoder. {error}") from error
    if "image_size" not in said and system.name in ENCODER_SYSTEMS:
        said["image_size"] = (
            min(ImageProcessor.load(folder).with_fixed_size(seen.image_size).size)
            if ImageProcessor.exists(folder)
            else seen.image_size
        )
    return {
        **said,
        "encoder": str(folder),
        "encoder_config": {"name": str(folder), "system": system.name, "config": as_dict(seen)},
    }


def load_encoder_weights(model: Any) -> list[str]:
    """Load the weights of the folder `model.encoder` into a new captioning model; returns messages for the log."""
    config = model.config
    if getattr(config, "encoder_folder", None) is None:
        return []
    _, _, tensors = read_body(config.encoder_folder)
    body = model.body.eyes.body
    wanted = body.state_dict()
    unfit = [name for name, old in wanted.items() if name not in tensors or tensors[name].shape != old.shape]
    if unfit:
        raise WeightsError(
            f"{config.encoder_folder}: the weights do not match config.json; {mismatch_error(unfit, [])}"
        )
    body.load_state_dict({name: tensors[name] for name in wanted})
    return [f"Image encoder: {config.encoder_folder}, {'frozen' if config.freeze_encoder else 'trained'}."]
