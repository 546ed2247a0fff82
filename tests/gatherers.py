"""Tiny models that read points, and clouds to ask them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from regard.data.points.cloud import Cloud
from regard.model import Identity, Model, assemble
from regard.processors.points import Points
from regard.systems import find_system
from regard.tasks import find_task
from tiny import noisy

SIZES: dict[str, Any] = {
    "widths": (8, 16, 24), "blocks": (1, 2, 1), "rates": (1, 3, 2), "neighbours": (4, 5, 3), "shares": 4,
}  # fmt: skip
LABELS = {"classify": ("ball", "box", "cone"), "segment": ("floor", "wall", "table", "chair", "lamp")}
RANDOM = np.random.default_rng(5)


def made(task: str, points: Points | None = None, **changes: Any) -> Model:
    """A noisy model of a task, in float64."""
    chosen, system = find_task(task, "points"), find_system("point")
    points = Points(0, "unit") if points is None else points
    config = chosen.bodied(replace(system.config(), **{**SIZES, "inputs": points.width - 3, **changes}))
    model: Model = noisy(assemble(Identity(system, config, chosen, labels=LABELS[task], source="tiny"), points))
    return model


def cloud(many: int = 90, colours: bool = False) -> Cloud:
    places = RANDOM.normal(size=(many, 3)).astype(np.float32)
    return Cloud(places, RANDOM.integers(0, 256, (many, 3), dtype=np.uint8) if colours else None)
