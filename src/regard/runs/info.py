"""`info`: layers, parameters, memory and FLOPs of a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from regard.config import as_dict
from regard.index import PRESET_ALIASES, is_folder_path
from regard.model import Model, build, load

FLOP_TOKENS = 32  # Tokens per sequence of the forward pass for which FLOPs are counted.

FLOP_POINTS = 1024  # Points per point cloud of the same forward pass.


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
    flops_input: str  # input of the counted forward pass
    recipes: dict[str, dict[str, dict[str, Any]]]
    """default settings of a preset by task; for all tasks but the first, only the differences"""
    weights: str  # origin of the weights: random, or a folder


def info(name: str) -> ModelInfo:
    """Layers and sizes of a preset (built without memory) or a model folder."""
    model = load(name, dtype="stored") if is_folder_path(name) else build(name, device="meta")
    parts = [*model.body.named_modules(), *(() if model.head is None else model.head.named_modules(prefix="head"))]
    layers = []
    for path, module in parts:
        if own := [*module.parameters(recurse=False)]:
            shape = " + ".join("×".join(map(str, p.shape)) for p in own)
            layers.append(LayerInfo(path, type(module).__name__, shape, sum(p.numel() for p in own)))
    count = sum(p.numel() for p in model.parameters())
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    system = model.spec.system
    preset = system.presets.get(PRESET_ALIASES.get(name, name))
    recipes = {} if preset is None else {task: system.recipe(preset, task) for task in system.tasks}
    first = recipes.get(system.tasks[0], {})
    for task in system.tasks[1:] if recipes else ():  # the differences to the first task
        recipes[task] = {
            group: {k: v for k, v in values.items() if first.get(group, {}).get(k) != v}
            for group, values in recipes[task].items()
        }
    flops, flops_input = _count_flops(model)
    weights = f"pretrained: {name}" if is_folder_path(name) else "random weights"
    title = f"{name}: {system.description}"
    return ModelInfo(title, as_dict(model.config), layers, count, size, flops, flops_input, recipes, weights)


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


def _count_flops(model: Model) -> tuple[int, str]:
    """FLOPs of the matrix products of one forward pass, counted on the meta device, and the input of the pass.

    Point clouds need real coordinates: neighborhoods do not follow from shapes."""
    config, task, has_target = model.config, model.task, "target" in model.objective.fields
    target = None
    if task.input == "text":
        shape: tuple[int, ...] = (1, FLOP_TOKENS)
        described = f"{FLOP_TOKENS} tokens" + (" on each side" if has_target else "")
    elif task.input == "points":
        shape, described = (1, FLOP_POINTS, 3 + config.feature_dim), f"point cloud of {FLOP_POINTS:,} points"
    else:
        shape = (1, config.max_length) if config.traits.palette else (1, config.in_channels, *[config.image_size] * 2)
        described = f"image of {config.image_size} × {config.image_size} pixels"
        if model.objective.modality.has_text:  # a captioner
            described += f" and {config.max_length} tokens"
            target = torch.zeros((1, config.max_length), dtype=torch.long, device="meta")
    x = torch.zeros(shape, dtype=torch.long if len(shape) == 2 else torch.float32, device="meta")
    if task.input == "points":
        x = torch.rand(shape)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model = model.to("meta") if task.input != "points" else model.to_empty(device="cpu").eval()
        if model.head is None and target is None and task.input != "text" and task.name != "draw":
            model.states(x)  # a model without classes has no head
        else:
            model.logits(x, x if has_target and target is None else target)
    return int(counter.get_total_flops()), described
