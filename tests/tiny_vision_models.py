"""Tiny models of all vision systems and tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from regard.model import Model, ModelSpec, assemble
from regard.processors.image import ImageProcessor
from regard.processors.palette import Palette
from regard.systems import SYSTEMS
from regard.tasks import find_task
from regard.tasks.base import HeadOptions
from regard.types import Batch
from tiny import noisy

VIT = {"image_size": 16, "patch_size": 4, "width": 12, "depth": 2, "heads": 3, "ffn_dim": 20}
SIZES: dict[str, dict[str, Any]] = {
    "vit": VIT,
    "hybrid": {
        "image_size": 16, "backbone_depths": (1, 1), "stem_channels": 8, "norm_groups": 4, "width": 12, "depth": 2, "heads": 3,
        "ffn_dim": 20,
    },
    "resnet": {
        "image_size": 16, "stem_channels": 4, "widths": (4, 8, 8, 12), "depths": (1, 1, 1, 1), "block_type": "basic",
        "stem_kernel": 3, "stem_stride": 1,
    },
    "bit": {"image_size": 16, "stem_channels": 8, "widths": (32, 32, 32, 32), "depths": (1, 1, 1, 1), "norm_groups": 4},
    "dpt": {**VIT, "depth": 4, "out_layers": (0, 1, 2, 3), "neck_dims": (8,) * 4, "fusion_dim": 8},
    "swin": {
        "image_size": 16, "patch_size": 2, "width": 8, "depths": (2, 2, 1, 1), "heads": (2, 1, 4, 8), "window_size": 3,
    },
    "imagegpt": {"image_size": 5, "num_colors": 11, "width": 12, "depth": 3, "heads": 3, "ffn_dim": 20},
}  # fmt: skip
ASKED = [(name, task) for name in SIZES for task in SYSTEMS[name].tasks]


def fresh(system: str, task: str, labels: tuple[str, ...] = ("a", "b", "c"), **changes: Any) -> Model:
    """A model with initial weights."""
    chosen, offered = find_task(task, "image"), SYSTEMS[system]
    config = chosen.objective.adapt_config(offered.config(**{**SIZES[system], **changes}))
    colours = np.random.default_rng(1).uniform(-1, 1, (11, 3))
    side, options = config.image_size, HeadOptions(labels if chosen.objective.has_labels else ())
    reader = Palette(colours, side) if system == "imagegpt" else ImageProcessor((side, side))
    return assemble(ModelSpec(offered, config, chosen, options=options), reader)


def made(system: str, task: str, **changes: Any) -> Model:
    """A model in float64 and eval mode with random weights."""
    return noisy(fresh(system, task, **changes)).double().eval()


def batch_for(model: Model, many: int = 2) -> Batch:
    """Random inputs and labels for the loss of the model."""
    torch.manual_seed(4)
    side, name = model.config.image_size, model.task.name
    if name == "draw":
        x = torch.randint(0, model.config.num_colors, (many, side**2))
        return Batch(x, labels=x.roll(-1, 1))
    x = torch.randint(0, 256, (many, 3, side, side), dtype=torch.uint8)
    if name == "classify":
        return Batch(x, labels=torch.arange(many) % 3)
    maps = torch.randint(0, 3, (many, side, side)) if name == "segment" else 1 + torch.rand(many, side, side)
    return Batch(x, labels=maps)
