"""`info`: a model layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from regard.config import as_dict
from regard.folders import is_folder_path
from regard.model import Model, build, load
from regard.systems.common.system import Preset, System

FLOP_TOKENS = 32
"""Tokens a side for which the operations of a forward pass are counted."""

FLOP_POINTS = 1024
"""Points of a cloud, the same."""


@dataclass(frozen=True)
class LayerInfo:
    name: str
    kind: str
    shape: str
    parameters: int


@dataclass(frozen=True)
class ModelInfo:
    title: str
    config: dict[str, Any]
    layers: list[LayerInfo]
    parameters: int
    bytes: int
    flops: int
    flops_input: str
    """words about what the operations were counted for"""
    recipes: dict[str, dict[str, dict[str, Any]]]
    """the settings that a preset brings, by task; those of further tasks where they differ from the first one's"""


def info(name: str) -> ModelInfo:
    """Of a preset (built without memory) or a folder."""
    model = load(name, dtype="stored") if is_folder_path(name) else build(name, device="meta")
    parts = [*model.body.named_modules(), *(() if model.head is None else model.head.named_modules(prefix="head"))]
    layers = [_layer_info(path, module) for path, module in parts if _has_parameters(module)]
    count = sum(p.numel() for p in model.parameters())
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    preset = model.spec.system.presets.get(name)
    recipes = {} if preset is None else _recipes(model.spec.system, preset)
    return ModelInfo(
        f"{name}: {model.spec.system.description}",
        as_dict(model.config),
        layers,
        count,
        size,
        _count_flops(model),
        _describe_input(model),
        recipes,
    )


def _recipes(system: System, preset: Preset) -> dict[str, dict[str, dict[str, Any]]]:
    found = {task: system.recipe(preset, task) for task in system.tasks}
    first = found[system.tasks[0]]
    return {
        task: {
            group: {k: v for k, v in values.items() if recipe is first or first.get(group, {}).get(k) != v}
            for group, values in recipe.items()
        }
        for task, recipe in found.items()
    }


def _has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters(recurse=False))


def _layer_info(path: str, module: nn.Module) -> LayerInfo:
    own = dict(module.named_parameters(recurse=False))
    shape = " + ".join("×".join(map(str, p.shape)) for p in own.values())
    return LayerInfo(path, type(module).__name__, shape, sum(p.numel() for p in own.values()))


def _count_flops(model: Model) -> int:
    """Multiplications and additions of matrix products in one forward pass, counted on shapes alone; of clouds with numbers,
    for who is near to whom is no matter of shapes."""
    x = _dummy_input(model)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model = model.to("meta") if model.task.modality != "points" else model.to_empty(device="cpu").eval()
        if _captions_images(model):
            model.logits(x, torch.zeros((1, model.config.max_length), dtype=torch.long, device="meta"))
        elif model.head is None and model.task.modality != "text" and model.task.name != "draw":
            model.states(x)  # without classes there is no head yet
        else:
            model.logits(x, x if "target" in model.task.fields else None)
    return int(counter.get_total_flops())


def _captions_images(model: Model) -> bool:
    """Whether it says something of pictures."""
    return model.task.modality == "image" and model.task.has_text


def _dummy_input(model: Model) -> Tensor:
    """Tokens, colours of a palette in their place, a picture of the size that it was made for, or a cloud."""
    config = model.config
    if model.task.modality == "text":
        return torch.zeros((1, FLOP_TOKENS), dtype=torch.long, device="meta")
    if model.task.modality == "points":
        return torch.rand((1, FLOP_POINTS, 3 + config.feature_dim))
    if hasattr(config, "num_colors"):
        return torch.zeros((1, config.max_length), dtype=torch.long, device="meta")
    return torch.zeros((1, config.in_channels, config.image_size, config.image_size), device="meta")


def _describe_input(model: Model) -> str:
    if model.task.modality == "text":
        return f"{FLOP_TOKENS} tokens" + (" on each side" if "target" in model.task.fields else "")
    if model.task.modality == "points":
        return f"a cloud of {FLOP_POINTS:,} points"
    more = f" and {model.config.max_length} tokens" if _captions_images(model) else ""
    return f"a picture of {model.config.image_size} x {model.config.image_size}{more}"
