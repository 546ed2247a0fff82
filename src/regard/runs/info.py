"""`info`: a model layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from regard.config import as_dict
from regard.folders import is_folder
from regard.model import Model, build, load
from regard.systems.common.system import Preset, System

LENGTH = 32
"""Tokens a side for which the operations of a forward pass are counted."""

POINTS = 1024
"""Points of a cloud, the same."""


@dataclass(frozen=True)
class Layer:
    name: str
    kind: str
    shape: str
    parameters: int


@dataclass(frozen=True)
class Info:
    title: str
    config: dict[str, Any]
    layers: list[Layer]
    parameters: int
    bytes: int
    flops: int
    sides: str
    """words about what the operations were counted for"""
    recipes: dict[str, dict[str, dict[str, Any]]]
    """the settings that a preset brings, by task; those of further tasks where they differ from the first one's"""


def info(name: str) -> Info:
    """Of a preset (built without memory) or a folder."""
    model = load(name, dtype="stored") if is_folder(name) else build(name, device="meta")
    parts = [*model.body.named_modules(), *(() if model.head is None else model.head.named_modules(prefix="head"))]
    layers = [_layer(path, module) for path, module in parts if _owns(module)]
    count = sum(p.numel() for p in model.parameters())
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    preset = model.identity.system.presets.get(name)
    recipes = {} if preset is None else _recipes(model.identity.system, preset)
    return Info(
        f"{name}: {model.identity.system.about}",
        as_dict(model.config),
        layers,
        count,
        size,
        _flops(model),
        _sides(model),
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


def _owns(module: nn.Module) -> bool:
    return any(True for _ in module.parameters(recurse=False))


def _layer(path: str, module: nn.Module) -> Layer:
    own = dict(module.named_parameters(recurse=False))
    shape = " + ".join("×".join(map(str, p.shape)) for p in own.values())
    return Layer(path, type(module).__name__, shape, sum(p.numel() for p in own.values()))


def _flops(model: Model) -> int:
    """Multiplications and additions of matrix products in one forward pass, counted on shapes alone; of clouds with numbers,
    for who is near to whom is no matter of shapes."""
    x = _given(model)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model = model.to("meta") if model.task.reads != "points" else model.to_empty(device="cpu").eval()
        if _speaks(model):
            model.logits(x, torch.zeros((1, model.config.length), dtype=torch.long, device="meta"))
        elif model.head is None and model.task.reads != "text" and model.task.name != "draw":
            model.states(x)  # without classes there is no head yet
        else:
            model.logits(x, x if "target" in model.task.sides else None)
    return int(counter.get_total_flops())


def _speaks(model: Model) -> bool:
    """Whether it says something of pictures."""
    return model.task.reads == "pictures" and model.task.worded


def _given(model: Model) -> Tensor:
    """Tokens, colours of a palette in their place, a picture of the size that it was made for, or a cloud."""
    config = model.config
    if model.task.reads == "text":
        return torch.zeros((1, LENGTH), dtype=torch.long, device="meta")
    if model.task.reads == "points":
        return torch.rand((1, POINTS, 3 + config.inputs))
    if hasattr(config, "colours"):
        return torch.zeros((1, config.length), dtype=torch.long, device="meta")
    return torch.zeros((1, config.channels, config.size, config.size), device="meta")


def _sides(model: Model) -> str:
    if model.task.reads == "text":
        return f"{LENGTH} tokens" + (" on each side" if "target" in model.task.sides else "")
    if model.task.reads == "points":
        return f"a cloud of {POINTS:,} points"
    more = f" and {model.config.length} tokens" if _speaks(model) else ""
    return f"a picture of {model.config.size} x {model.config.size}{more}"
