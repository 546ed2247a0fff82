"""Explanation of an image generator: attention of a pixel to earlier pixels, and attribution of the predicted color."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.explain.grid_attention import GridArray, GridAttention, ImageAttention, token_grids
from regard.explain.image_explanation import ImageExplanation
from regard.explain.images import (
    MEMORY_NOTE,
    Pixel,
    check_pixel,
    make_image_attention,
    normalize_sum,
    position_similarity,
    relative_position,
)
from regard.tasks.image_generation import require_palette, shift_right
from regard.tasks.image_task import load_image
from regard.tasks.protocol import ModelProtocol
from regard.types import Batch


def explain_generation(
    model: ModelProtocol, source: Any, target: str | None = None, at: Pixel | None = None
) -> ImageExplanation:
    """Explain the prediction of one pixel. `at`: row and column; None: the center."""
    if target is not None:
        raise RegardError(f"Class '{target}' cannot be explained: this is an image generator, not a classifier.")
    palette = require_palette(model)
    ids = torch.from_numpy(palette.encode(load_image(source)))[None]
    seen = palette.decode(ids[0].numpy())
    at = (palette.side // 2, palette.side // 2) if at is None else at
    check_pixel(at, seen)
    name = Path(source).name if isinstance(source, str) else "image"
    batch = shift_right(ids, model.config).to(model.device)
    training = model.training
    model.eval()
    try:
        facts = _facts(model, batch, at[0] * palette.side + at[1])
        lattice, scene = make_image_attention(
            model, token_grids(model, batch), relative_position(at, seen), is_dense=True
        )
        scene.record(model, batch)
        ways = {"rollout": normalize_sum(scene.rollout_map())}
        owed = _pixel_attribution(model, batch, scene)
    finally:
        model.train(training)
    if owed is None:
        facts["gradient × attention"] = MEMORY_NOTE
    else:
        ways["gradient × attention"] = normalize_sum(owed)
    return ImageExplanation(
        f"{name}, pixel at row {at[0]}, column {at[1]}", (), facts, image=seen,
        query_name=f"row {at[0]}, column {at[1]}", query_pixel=at, method_maps=ways, image_attention=scene,
        query_grid=lattice, position_similarity=position_similarity(model.body),
    )  # fmt: skip


def _facts(model: ModelProtocol, batch: Batch, place: int) -> dict[str, str]:
    assert batch.labels is not None
    with torch.inference_mode():
        logs = model.task.logits(model, batch)[0].float().log_softmax(-1)
    own = logs.gather(1, batch.labels[0][:, None])[:, 0]
    rank = int((logs[place] > own[place]).sum()) + 1
    return {
        "pixel color": f"probability {100 * float(own[place].exp()):.1f} %, rank {rank} of {logs.shape[1]} colors",
        "bits per pixel": f"{-float(own.mean()) / math.log(2):.3f}",
    }


def _pixel_attribution(model: ModelProtocol, batch: Batch, scene: ImageAttention) -> GridArray | None:
    """Attribution of the color of the query pixel. Later pixels have no influence and are left out of the forward pass."""
    assert batch.labels is not None
    (sight,) = scene.stages
    (place,) = sight.query_tokens
    floor = replace(sight.token_grid, length=place + 1)
    return ImageAttention((GridAttention(floor, sight.query_tokens),), (1.0,)).record(
        model, Batch(batch.inputs[:, : place + 1]), _color_log_prob(int(batch.labels[0, place]))
    )


def _color_log_prob(colour: int) -> Callable[[Tensor], Tensor]:
    def of(logits: Tensor) -> Tensor:
        last = logits[0, -1]
        return (last if last.dtype == torch.float64 else last.float()).log_softmax(-1)[colour]

    return of
