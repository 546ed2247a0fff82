"""A tiny model of every system that reads pictures, for every task that it can be asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from regard.model import Identity, Model, assemble
from regard.processors.image import Pixels
from regard.processors.palette import Palette
from regard.systems import SYSTEMS
from regard.tasks import find_task
from regard.types import Batch
from tiny import noisy

SIZES: dict[str, dict[str, Any]] = {
    "vit": {"size": 16, "patch": 4, "width": 12, "depth": 2, "heads": 3, "hidden": 20},
    "hybrid": {"size": 16, "stages": (1, 1), "start": 8, "groups": 4, "width": 12, "depth": 2, "heads": 3, "hidden": 20},
    "resnet": {
        "size": 16, "start": 4, "widths": (4, 8, 8, 12), "depths": (1, 1, 1, 1), "block": "basic", "kernel": 3, "stride": 1,
    },
    "bit": {"size": 16, "start": 8, "widths": (32, 32, 32, 32), "depths": (1, 1, 1, 1), "groups": 4},
    "dpt": {
        "size": 16, "patch": 4, "width": 12, "depth": 4, "heads": 3, "hidden": 20, "taps": (0, 1, 2, 3), "laid": (8,) * 4,
        "fusion": 8,
    },
    "swin": {"size": 16, "patch": 2, "width": 8, "depths": (2, 2, 1, 1), "heads": (2, 1, 4, 8), "window": 3},
    "imagegpt": {"size": 5, "colours": 11, "width": 12, "depth": 3, "heads": 3, "hidden": 20},
}  # fmt: skip
ASKED = [(name, task) for name in SIZES for task in SYSTEMS[name].tasks]


def fresh(system: str, task: str, labels: tuple[str, ...] = ("a", "b", "c"), **changes: Any) -> Model:
    """As it begins."""
    chosen, offered = find_task(task, "pictures"), SYSTEMS[system]
    config = chosen.bodied(offered.config(**{**SIZES[system], **changes}))
    colours = np.random.default_rng(1).uniform(-1, 1, (11, 3))
    reader = Palette(colours, config.size) if system == "imagegpt" else Pixels((config.size, config.size))
    return assemble(Identity(offered, config, chosen, labels=labels if chosen.labelled else ()), reader)


def made(system: str, task: str, **changes: Any) -> Model:
    """In float64, all of it noise."""
    return noisy(fresh(system, task, **changes)).double().eval()


def batch_for(model: Model, many: int = 2) -> Batch:
    """What its loss is computed of."""
    torch.manual_seed(4)
    side, name = model.config.size, model.task.name
    if name == "draw":
        x = torch.randint(0, model.config.colours, (many, side**2))
        return Batch(x, labels=x.roll(-1, 1))
    x = torch.randint(0, 256, (many, 3, side, side), dtype=torch.uint8)
    if name == "classify":
        return Batch(x, labels=torch.arange(many) % 3)
    maps = torch.randint(0, 3, (many, side, side)) if name == "segment" else 1 + torch.rand(many, side, side)
    return Batch(x, labels=maps)
