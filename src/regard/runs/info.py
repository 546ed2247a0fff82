"""`info`: layers, parameters, memory and FLOPs of a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from regard.config import as_dict
from regard.index import is_folder_path, resolve_preset_name
from regard.model import Model, build, load
from regard.systems.common.system import Preset, System

FLOP_TOKENS = 32
"""Tokens per sequence of the forward pass for which FLOPs are counted."""

FLOP_POINTS = 1024
"""Points per point cloud of the same forward pass."""


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
    """input of the counted forward pass"""
    recipes: dict[str, dict[str, dict[str, Any]]]
    """default settings of a preset by task; for all tasks but the first, only the differences"""
    weights: str
    """origin of the weights: random, or a folder"""


def info(name: str) -> ModelInfo:
    """Layers and sizes of a preset (built without memory) or a model folder."""
    model = load(name, dtype="stored") if is_folder_path(name) else build(name, device="meta")
    parts = [*model.body.named_modules(), *(() if model.head is None else model.head.named_modules(prefix="head"))]
    layers = [_layer_info(path, module) for path, module in parts if _has_parameters(module)]
    count = sum(p.numel() for p in model.parameters())
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    preset = model.spec.system.presets.get(resolve_preset_name(name))
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
        f"pretrained: {name}" if is_folder_path(name) else "random weights",
    )


def merge_blocks(layers: list[LayerInfo]) -> list[LayerInfo]:
    """Layers with consecutive equal blocks merged into `blocks.0.attention (×12)`, with the parameters of all blocks."""
    blocks: dict[tuple[str, int], list[tuple[str, str, str]]] = {}
    for layer in layers:
        for prefix, number, rest in _block_splits(layer.name):
            blocks.setdefault((prefix, number), []).append((rest, layer.kind, layer.shape))
    groups: dict[str, list[LayerInfo]] = {}
    for layer in layers:
        name = layer.name
        for prefix, number, rest in _block_splits(name):  # the outermost repeated block
            first = number
            while blocks.get((prefix, first - 1)) == blocks[prefix, number]:
                first -= 1
            if first < number or blocks.get((prefix, number + 1)) == blocks[prefix, number]:
                name = f"{prefix}.{first}.{rest}".rstrip(".")
                break
        groups.setdefault(name, []).append(layer)
    return [
        replace(
            equal[0],
            name=name + (f" (×{len(equal)})" if len(equal) > 1 else ""),
            parameters=sum(layer.parameters for layer in equal),
        )
        for name, equal in groups.items()
    ]


def _block_splits(name: str) -> list[tuple[str, int, str]]:
    """Prefix, number and rest of a layer name at each numeric component, outermost first."""
    parts = name.split(".")
    return [
        (".".join(parts[:at]), int(part), ".".join(parts[at + 1 :])) for at, part in enumerate(parts) if part.isdigit()
    ]


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
    """FLOPs of the matrix products of one forward pass, counted on the meta device.

    Point clouds need real coordinates: neighborhoods do not follow from shapes."""
    x = _dummy_input(model)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model = model.to("meta") if model.task.input != "points" else model.to_empty(device="cpu").eval()
        if _captions_images(model):
            model.logits(x, torch.zeros((1, model.config.max_length), dtype=torch.long, device="meta"))
        elif model.head is None and model.task.input != "text" and model.task.name != "draw":
            model.states(x)  # a model without classes has no head
        else:
            model.logits(x, x if "target" in model.objective.fields else None)
    return int(counter.get_total_flops())


def _captions_images(model: Model) -> bool:
    """True for a captioner."""
    return model.task.input == "image" and model.task.has_text


def _dummy_input(model: Model) -> Tensor:
    """Input of the counted forward pass: tokens, palette colors, an image of the config's size, or a point cloud."""
    config = model.config
    if model.task.input == "text":
        return torch.zeros((1, FLOP_TOKENS), dtype=torch.long, device="meta")
    if model.task.input == "points":
        return torch.rand((1, FLOP_POINTS, 3 + config.feature_dim))
    if config.traits.palette:
        return torch.zeros((1, config.max_length), dtype=torch.long, device="meta")
    return torch.zeros((1, config.in_channels, config.image_size, config.image_size), device="meta")


def _describe_input(model: Model) -> str:
    if model.task.input == "text":
        return f"{FLOP_TOKENS} tokens" + (" on each side" if "target" in model.objective.fields else "")
    if model.task.input == "points":
        return f"point cloud of {FLOP_POINTS:,} points"
    more = f" and {model.config.max_length} tokens" if _captions_images(model) else ""
    return f"image of {model.config.image_size} × {model.config.image_size} pixels{more}"
