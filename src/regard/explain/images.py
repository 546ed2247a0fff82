"""What a body looked at in a picture: attention of every layer and head over its places, their roll-out, and what counted for
the answer; and how alike its learned positions are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.errors import RegardError
from regard.explain.attribution import ahead
from regard.explain.grid_attention import Floor, Grid, Scene, Sight, centres, floors_of, lattice_of
from regard.explain.image_explanation import Gaze
from regard.tasks.depth import METRIC
from regard.tasks.image_task import picture_of
from regard.tasks.protocol import Asked
from regard.types import Batch

Pixel = tuple[int, int]
"""Row and column."""

EVERYONE = "the mean of all places"
LEFT_OUT = "left out: its weights take too much memory"


def explain_picture(model: Asked, source: Any, target: str | None = None, at: Pixel | None = None) -> Gaze:
    """`target`: the class that is asked about; None: the one that was said. `at`: a pixel of the picture as it is looked at, of
    which it is asked what it looked at; of maps also, what counted for its answer."""
    pixels = model.pixels_or_refuse()
    seen = pixels.prepare(picture_of(source))
    name = Path(source).name if isinstance(source, str) else "a picture"
    check_at(at, seen)
    training = model.training
    model.eval()
    try:
        return _explained(model, seen, target, at, name)
    finally:
        model.train(training)


def check_at(at: Pixel | None, seen: np.ndarray) -> None:
    high, wide = seen.shape[:2]
    if at is not None and not (0 <= at[0] < high and 0 <= at[1] < wide):
        raise RegardError(
            f"there is no pixel in row {at[0]} and column {at[1]}: the picture is looked at in {high} x {wide}, counted from 0."
        )


def batch_of(model: Asked, seen: np.ndarray) -> Batch:
    """One picture, as the body reads it."""
    x = torch.from_numpy(np.ascontiguousarray(seen)).permute(2, 0, 1)[None].contiguous().to(model.device)
    return model.task.looked_at(model, Batch(x))


def _explained(model: Asked, seen: np.ndarray, target: str | None, at: Pixel | None, name: str) -> Gaze:
    batch = batch_of(model, seen)
    with torch.inference_mode():
        logits = model.task.logits(model, batch).float()
    which, said, facts = _asked(model, logits, target, at)
    title = f"{name} → {said}"
    floors = floors_of(model, batch)
    if not floors:
        if at is not None:
            raise RegardError("this model has no attention, so that no place of a picture looks at others.")
        return Gaze(title, (), facts, picture=seen, ways={"what counted": _owed(model, batch, which)})
    mapped = model.task.name != "classify"
    lattice, scene = scene_of(model, floors, place_of(at, seen), mapped)
    # a class is not read from one place
    owed = scene.look(model, batch, _number(which, at) if at is None or mapped else None)
    ways = {"roll-out": shared(scene.rolled())}
    if owed is not None:
        ways["gradient × attention"] = shared(owed)
    elif at is None or mapped:
        facts["gradient × attention"] = LEFT_OUT
    return Gaze(
        title, (), facts, picture=seen, asked=asked_of(scene, at), at=at, ways=ways, scene=scene, lattice=lattice,
        positions=alike(model.body),
    )  # fmt: skip


def place_of(at: Pixel | None, seen: np.ndarray) -> tuple[float, float] | None:
    """In heights and widths of the picture."""
    return None if at is None else ((at[0] + 0.5) / seen.shape[0], (at[1] + 0.5) / seen.shape[1])


def scene_of(
    model: Asked, floors: tuple[Floor, ...], place: tuple[float, float] | None, mapped: bool
) -> tuple[tuple[int, int], Scene]:
    """Who is asked on each floor. Classes are read from the last one, by the class token or all places; maps (`mapped`) from
    each alike. Of a lattice of places it is kept what each looked at."""
    lattice = lattice_of(model.body, floors)
    single = place is None and not mapped and getattr(model.body, "pool", "mean") == "first"
    sights = []
    for floor in floors:
        asks = (0,) if single else floor.tokens if place is None else (floor.token(place),)
        sights.append(Sight(floor, asks, tuple(floor.token(centre) for centre in centres(lattice))))
    last = (0.0,) * (len(floors) - 1) + (1.0,)
    return lattice, Scene(tuple(sights), (1 / len(floors),) * len(floors) if mapped else last)


def asked_of(scene: Scene, at: Pixel | None) -> str:
    if at is not None:
        return f"row {at[0]}, column {at[1]}"
    return EVERYONE if len(scene.sights[0].asks) > 1 else "the class token"


def _asked(
    model: Asked, logits: Tensor, target: str | None, at: Pixel | None
) -> tuple[int, str, dict[str, str]]:  # fmt: skip
    """The number of the class, what was said, and facts about it; of maps of depth there are no classes."""
    labels = model.identity.labels
    if model.task.name == "depth":
        unit = METRIC if METRIC in labels else "of nearness"
        if at is None:
            return 0, "depth", {"asked about": f"the mean of the map, {float(logits[0].mean()):.4g} {unit}"}
        return 0, "depth", {"asked about": f"the depth there, {float(logits[0][at]):.4g} {unit}"}
    chances = (model.task.chances(model, logits) if model.task.name == "classify" else logits.softmax(1))[0]
    if chances.ndim > 1:
        chances = chances.flatten(1).mean(1) if at is None else chances[:, at[0], at[1]]
    best = int(chances.argmax())
    if target is not None and target not in labels:
        raise RegardError(f"'{target}' is none of its classes: {', '.join(labels)}.")
    which = labels.index(target) if target is not None else best
    where = " over all pixels" if logits.ndim > 2 and at is None else ""
    facts = {
        labels[n]: f"{100 * float(chances[n]):.1f} %{where}" for n in chances.argsort(descending=True)[:3].tolist()
    }
    return which, labels[best] + (f" (asked about {target})" if which != best else ""), facts


def _number(which: int, at: Pixel | None = None) -> Callable[[Tensor], Tensor]:
    """What is asked for, of all that the task reads: a class against the others, or the mean of a map, or its value at one
    pixel."""

    def of(logits: Tensor) -> Tensor:
        own = logits[0]
        if own.ndim == 1:
            return ahead(own, which)
        if at is not None:
            return own[at] if own.ndim == 2 else ahead(own[:, at[0], at[1]], which)
        return own.mean() if own.ndim == 2 else ahead(own.flatten(1).mean(1), which)

    return of


def shared(grid: Grid) -> Grid:
    total = float(grid.sum())
    return grid / total if total > 0 else grid


def _owed(model: Asked, batch: Batch, which: int) -> Grid:
    """Without attention: the last map times the gradient of the answer, where that is above 0
    (Grad-CAM, Selvaraju et al. 2017)."""
    mapped = model.task.name != "classify"
    asked = model.head.taps if mapped else (model.config.maps()[-1].at,)
    with torch.enable_grad():
        taken = model.body(Batch(batch.x.detach().requires_grad_()), taps=asked)
        kept = taken.taps[-1]
        logits = model.head(taken.taps, tuple(batch.x.shape[-2:])) if mapped else model.head(taken.summary)
        (found,) = torch.autograd.grad(_number(which)(logits), kept)
    grid = (found.mean((2, 3), keepdim=True) * kept).sum(1).clamp(min=0)[0]
    return shared(grid.detach().double().cpu().numpy())


def alike(body: Any) -> Grid | None:
    """(n, n) cosines of the learned positions of its own grid, where there are such."""
    position = getattr(body, "position", None)
    if position is None:
        return None
    table = position.table[0, position.before :] if hasattr(position, "before") else position.table.weight
    table = torch.nn.functional.normalize(table.detach().double(), dim=1)
    return (table @ table.T).cpu().numpy()
