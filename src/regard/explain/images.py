"""Explanation of an image model: attention maps, rollout, gradient attribution, and similarity of position embeddings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.errors import RegardError
from regard.explain.attribution import logit_margin
from regard.explain.grid_attention import (
    GridArray,
    GridAttention,
    ImageAttention,
    TokenGrid,
    cell_centers,
    query_grid_size,
    token_grids,
)
from regard.explain.image_explanation import ImageExplanation
from regard.tasks.depth import METERS_LABEL
from regard.tasks.image_task import load_image
from regard.tasks.protocol import ModelProtocol
from regard.types import Batch

Pixel = tuple[int, int]
"""Row and column."""

ALL_POSITIONS = "average over all positions"
MEMORY_NOTE = "not computed: needs too much memory"


def explain_image(
    model: ModelProtocol, source: Any, target: str | None = None, at: Pixel | None = None
) -> ImageExplanation:
    """Explain the prediction for one image. `target`: class to explain; None: the predicted class. `at`: query pixel of the
    preprocessed image; for segmentation and depth, only the prediction at this pixel is explained."""
    pixels = model.require_image_processor()
    seen = pixels.prepare(load_image(source))
    name = Path(source).name if isinstance(source, str) else "image"
    check_pixel(at, seen)
    training = model.training
    model.eval()
    try:
        return _explain_pixels(model, seen, target, at, name)
    finally:
        model.train(training)


def check_pixel(pixel: Pixel | None, image: np.ndarray) -> None:
    high, wide = image.shape[:2]
    if pixel is not None and not (0 <= pixel[0] < high and 0 <= pixel[1] < wide):
        raise RegardError(
            f"Pixel (row {pixel[0]}, column {pixel[1]}) is outside the image: the preprocessed image has {high} rows and "
            f"{wide} columns, counted from 0."
        )


def image_batch(model: ModelProtocol, image: np.ndarray) -> Batch:
    """Batch of one preprocessed image."""
    x = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None].contiguous().to(model.device)
    return model.task.prepare_inputs(model, Batch(x))


def _explain_pixels(
    model: ModelProtocol, seen: np.ndarray, target: str | None, at: Pixel | None, name: str
) -> ImageExplanation:
    batch = image_batch(model, seen)
    with torch.inference_mode():
        logits = model.task.logits(model, batch).float()
    which, said, facts = _target_class(model, logits, target, at)
    title = f"{name} → {said}"
    floors = token_grids(model, batch)
    if not floors:
        if at is not None:
            raise RegardError("This model has no attention, so a position (--at) is not supported.")
        return ImageExplanation(title, (), facts, image=seen, method_maps={"grad-cam": _grad_cam(model, batch, which)})
    mapped = model.task.name != "classify"
    lattice, scene = make_image_attention(model, floors, relative_position(at, seen), mapped)
    # a class score does not belong to one position
    owed = scene.record(model, batch, _score_fn(which, at) if at is None or mapped else None)
    ways = {"rollout": normalize_sum(scene.rollout_map())}
    if owed is not None:
        ways["gradient × attention"] = normalize_sum(owed)
    elif at is None or mapped:
        facts["gradient × attention"] = MEMORY_NOTE
    return ImageExplanation(
        title, (), facts, image=seen, query_name=query_name(scene, at), query_pixel=at, method_maps=ways,
        image_attention=scene, query_grid=lattice, position_similarity=position_similarity(model.body),
    )  # fmt: skip


def relative_position(pixel: Pixel | None, image: np.ndarray) -> tuple[float, float] | None:
    """Center of the pixel as fractions of image height and width."""
    return None if pixel is None else ((pixel[0] + 0.5) / image.shape[0], (pixel[1] + 0.5) / image.shape[1])


def make_image_attention(
    model: ModelProtocol, grids: tuple[TokenGrid, ...], position: tuple[float, float] | None, is_dense: bool
) -> tuple[tuple[int, int], ImageAttention]:
    """Size of the grid of stored queries, and the empty `ImageAttention`. The query is the token at `position`, else the class
    token or all cells. Class scores depend on the last stage, dense predictions (`is_dense`) equally on all stages."""
    lattice = query_grid_size(model.body, grids)
    single = position is None and not is_dense and getattr(model.body, "pool", "mean") == "first"
    sights = []
    for floor in grids:
        asks = (0,) if single else floor.grid_tokens if position is None else (floor.token_at(position),)
        sights.append(GridAttention(floor, asks, tuple(floor.token_at(centre) for centre in cell_centers(lattice))))
    last = (0.0,) * (len(grids) - 1) + (1.0,)
    return lattice, ImageAttention(tuple(sights), (1 / len(grids),) * len(grids) if is_dense else last)


def query_name(attention: ImageAttention, pixel: Pixel | None) -> str:
    if pixel is not None:
        return f"row {pixel[0]}, column {pixel[1]}"
    return ALL_POSITIONS if len(attention.stages[0].query_tokens) > 1 else "class token"


def _target_class(
    model: ModelProtocol, logits: Tensor, target: str | None, at: Pixel | None
) -> tuple[int, str, dict[str, str]]:  # fmt: skip
    """Index of the explained class (0 for depth), name of the prediction, and labeled values for the page header."""
    labels = model.spec.labels
    if model.task.name == "depth":
        unit = "m" if METERS_LABEL in labels else "(relative inverse depth)"
        if at is None:
            return 0, "depth", {"explained value": f"mean predicted depth: {float(logits[0].mean()):.4g} {unit}"}
        return 0, "depth", {"explained value": f"predicted depth at this pixel: {float(logits[0][at]):.4g} {unit}"}
    chances = (model.task.probabilities(model, logits) if model.task.name == "classify" else logits.softmax(1))[0]
    if chances.ndim > 1:
        chances = chances.flatten(1).mean(1) if at is None else chances[:, at[0], at[1]]
    best = int(chances.argmax())
    if target is not None and target not in labels:
        raise RegardError(f"Unknown class '{target}'. Known classes: {', '.join(labels)}.")
    which = labels.index(target) if target is not None else best
    where = " (average over all pixels)" if logits.ndim > 2 and at is None else ""
    facts = {
        labels[n]: f"{100 * float(chances[n]):.1f} %{where}" for n in chances.argsort(descending=True)[:3].tolist()
    }
    return which, labels[best] + (f" (explained class: {target})" if which != best else ""), facts


def _score_fn(which: int, at: Pixel | None = None) -> Callable[[Tensor], Tensor]:
    """Score as a function of the logits: margin of a class, or depth; at pixel `at`, or averaged over all pixels."""

    def of(logits: Tensor) -> Tensor:
        own = logits[0]
        if own.ndim == 1:
            return logit_margin(own, which)
        if at is not None:
            return own[at] if own.ndim == 2 else logit_margin(own[:, at[0], at[1]], which)
        return own.mean() if own.ndim == 2 else logit_margin(own.flatten(1).mean(1), which)

    return of


def normalize_sum(grid: GridArray) -> GridArray:
    total = float(grid.sum())
    return grid / total if total > 0 else grid


def _grad_cam(model: ModelProtocol, batch: Batch, which: int) -> GridArray:
    """Grad-CAM (Selvaraju et al. 2017) for models without attention: positive part of the last feature map weighted by the
    average gradient of each channel."""
    mapped = model.task.name != "classify"
    asked = model.head.tap_indices if mapped else (model.config.feature_maps()[-1].index,)
    with torch.enable_grad():
        taken = model.body(Batch(batch.inputs.detach().requires_grad_()), taps=asked)
        kept = taken.hidden_states[-1]
        logits = model.head(taken.hidden_states, tuple(batch.inputs.shape[-2:])) if mapped else model.head(taken.pooled)
        (found,) = torch.autograd.grad(_score_fn(which)(logits), kept)
    grid = (found.mean((2, 3), keepdim=True) * kept).sum(1).clamp(min=0)[0]
    return normalize_sum(grid.detach().double().cpu().numpy())


def position_similarity(body: Any) -> GridArray | None:
    """Cosine similarity (n, n) of the learned position embeddings; None without learned positions."""
    position = getattr(body, "position", None)
    if position is None:
        return None
    table = (
        position.table[0, position.num_prefix_tokens :]
        if hasattr(position, "num_prefix_tokens")
        else position.table.weight
    )
    table = torch.nn.functional.normalize(table.detach().double(), dim=1)
    return (table @ table.T).cpu().numpy()
