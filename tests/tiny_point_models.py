"""Tiny point cloud models, and random point clouds."""

from __future__ import annotations

from typing import Any

import numpy as np

from regard.data.points.cloud import PointCloud
from regard.model import Model, ModelSpec, assemble
from regard.processors.points import PointProcessor
from regard.systems import find_system
from regard.tasks import find_task
from regard.tasks.base import HeadOptions
from tiny import noisy

SIZES: dict[str, Any] = {
    "widths": (8, 16, 24), "depths": (1, 2, 1), "downsample": (1, 3, 2), "num_neighbors": (4, 5, 3), "share_planes": 4,
}  # fmt: skip
LABELS = {"classify": ("ball", "box", "cone"), "segment": ("floor", "wall", "table", "chair", "lamp")}
RANDOM = np.random.default_rng(5)


def made(task: str, points: PointProcessor | None = None, **changes: Any) -> Model:
    """A model of a task with random weights in float64."""
    chosen, system = find_task(task, "points"), find_system("point")
    points = PointProcessor(0, "unit_sphere") if points is None else points
    sizes = {**SIZES, "feature_dim": points.width - 3, **changes}
    config, options = chosen.objective.adapt_config(system.config(**sizes)), HeadOptions(LABELS[task])
    return noisy(assemble(ModelSpec(system, config, chosen, options=options, source="tiny"), points))


def cloud(many: int = 90, colours: bool = False) -> PointCloud:
    places = RANDOM.normal(size=(many, 3)).astype(np.float32)
    return PointCloud(places, RANDOM.integers(0, 256, (many, 3), dtype=np.uint8) if colours else None)
