"""What a model that draws looked at: the earlier pixels that each pixel was told from, and what made its colour likely."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.explain.grid_attention import Grid, Scene, Sight, floors_of
from regard.explain.image_explanation import Gaze
from regard.explain.images import LEFT_OUT, Pixel, alike, check_at, place_of, scene_of, shared
from regard.tasks.image_generation import palette_of, shifted
from regard.tasks.image_task import picture_of
from regard.tasks.protocol import Asked
from regard.types import Batch


def explain_painting(model: Asked, source: Any, target: str | None = None, at: Pixel | None = None) -> Gaze:
    """`at` is the pixel that is asked; None: the one in the middle."""
    if target is not None:
        raise RegardError(f"a model that draws tells no classes: '{target}' means nothing to it.")
    palette = palette_of(model)
    ids = torch.from_numpy(palette.ids(picture_of(source)))[None]
    seen = palette.picture(ids[0].numpy())
    at = (palette.side // 2, palette.side // 2) if at is None else at
    check_at(at, seen)
    name = Path(source).name if isinstance(source, str) else "a picture"
    batch = shifted(ids, model.config).to(model.device)
    training = model.training
    model.eval()
    try:
        facts = _facts(model, batch, at[0] * palette.side + at[1])
        lattice, scene = scene_of(model, floors_of(model, batch), place_of(at, seen), mapped=True)
        scene.look(model, batch)
        ways = {"roll-out": shared(scene.rolled())}
        owed = _owed(model, batch, scene)
    finally:
        model.train(training)
    if owed is None:
        facts["gradient × attention"] = LEFT_OUT
    else:
        ways["gradient × attention"] = shared(owed)
    return Gaze(
        f"{name}, seen from row {at[0]}, column {at[1]}", (), facts, picture=seen, asked=f"row {at[0]}, column {at[1]}",
        at=at, ways=ways, scene=scene, lattice=lattice, positions=alike(model.body),
    )  # fmt: skip


def _facts(model: Asked, batch: Batch, place: int) -> dict[str, str]:
    assert batch.labels is not None
    with torch.inference_mode():
        logs = model.task.logits(model, batch)[0].float().log_softmax(-1)
    own = logs.gather(1, batch.labels[0][:, None])[:, 0]
    rank = int((logs[place] > own[place]).sum()) + 1
    return {
        "its colour": f"{100 * float(own[place].exp()):.1f} % likely, no. {rank} of {logs.shape[1]} colours",
        "bits a pixel": f"{-float(own.mean()) / math.log(2):.3f}",
    }


def _owed(model: Asked, batch: Batch, scene: Scene) -> Grid | None:
    """What made the colour of the pixel likely. Nothing behind it did: that is not read again."""
    assert batch.labels is not None
    (sight,) = scene.sights
    (place,) = sight.asks
    floor = replace(sight.floor, length=place + 1)
    return Scene((Sight(floor, sight.asks),), (1.0,)).look(
        model, Batch(batch.x[:, : place + 1]), _likely(int(batch.labels[0, place]))
    )


def _likely(colour: int) -> Callable[[Tensor], Tensor]:
    def of(logits: Tensor) -> Tensor:
        last = logits[0, -1]
        return (last if last.dtype == torch.float64 else last.float()).log_softmax(-1)[colour]

    return of
