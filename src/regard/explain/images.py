"""Explanation of an image model or image generator: attention maps, rollout, gradient attribution, and similarity of position
embeddings, as heatmaps over the image."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from regard.errors import RegardError
from regard.explain.attribution import logit_margin
from regard.explain.explanation import Explanation
from regard.explain.grid_attention import (
    GridArray,
    GridAttention,
    ImageAttention,
    TokenGrid,
    cell_centers,
    query_grid_size,
    token_grids,
)
from regard.tasks.depth import METERS_LABEL
from regard.tasks.image_generation import require_palette, shift_right
from regard.tasks.image_task import load_image
from regard.tasks.protocol import ModelProtocol
from regard.types import Batch

if TYPE_CHECKING:
    from regard.draw.panels import AttentionOverlay

METHOD_TITLES = {
    "rollout": "Attention rollout",
    "gradient × attention": "Attribution (gradient × attention)",
    "grad-cam": "Grad-CAM",
}
METHOD_DESCRIPTIONS = {
    "Attention rollout": "Attention multiplied through all layers, with residual connections counted as one half "
    "(Abnar & Zuidema 2020).",
    "Attribution (gradient × attention)": "Regions that increase the predicted score: attention weighted by its gradient "
    "(Chefer et al. 2021).",
    "Grad-CAM": "Last feature map weighted by the gradient of the predicted score (Selvaraju et al. 2017).",
    "attention": "Attention of one layer over the image, per head or averaged.",
}
"""One sentence per method; `attention` is the attention map."""
PANEL_TITLES = METHOD_TITLES | {"gradient × attention": "Gradient × attention"}
"""Titles short enough for the width of a panel."""
PAPERS = {
    "rollout": "attention rollout: Abnar & Zuidema 2020",
    "gradient × attention": "gradient × attention: Chefer et al. 2021",
    "grad-cam": "Grad-CAM: Selvaraju et al. 2017",
}


@dataclass(frozen=True)
class ImageExplanation(Explanation):
    """Explanation of one image. Maps may have any grid size; heatmaps show fractions of the total attention."""

    image: Any = None
    """(H, W, 3) bytes after preprocessing"""
    query_name: str = ""
    """class token, average over all positions, or row and column of a pixel"""
    query_pixel: tuple[int, int] | None = None
    """row and column of the query pixel, if given"""
    method_maps: dict[str, GridArray] = field(default_factory=dict)
    """rollout and attribution (h, w), each summing to 1"""
    image_attention: ImageAttention | None = None
    """attention by layer; None for models without attention"""
    query_grid: tuple[int, int] = (0, 0)
    """rows and columns of the stored queries"""
    position_similarity: Any = None
    """cosine similarity (n, n) of learned position embeddings, if any"""

    @property
    def stages(self) -> tuple[GridAttention, ...]:
        return () if self.image_attention is None else self.image_attention.stages

    @property
    def attention(self) -> tuple[GridArray, ...]:
        """Attention of the query in each layer, (heads, h, w)."""
        return tuple(layer for stage in self.stages for layer in stage.query_maps)

    @property
    def layer_names(self) -> tuple[str, ...]:
        """Names of all layers, counted over all stages."""
        numbers = [number for number, stage in enumerate(self.stages, 1) for _ in stage.query_maps]
        suffixes = [f" (stage {number})" if len(self.stages) > 1 else "" for number in numbers]
        return tuple(f"layer {number}{suffix}" for number, suffix in enumerate(suffixes, 1))

    @property
    def extents(self) -> tuple[tuple[float, float], ...]:
        """Height and width of the grid of each layer, relative to the image."""
        return tuple(stage.token_grid.extent for stage in self.stages for _ in stage.query_maps)

    @property
    def values(self) -> dict[str, Any]:
        found: dict[str, Any] = {"title": self.title, "facts": self.facts}
        found |= self.method_maps
        if self.image_attention is not None:
            found |= {
                "query": self.query_name,
                "at": self.query_pixel,
                "layers": self.layer_names,
                "attention": self.attention,
            }
        return found

    def extra_paths(self, path: Path) -> tuple[Path, ...]:
        drawn = self.position_similarity is not None and path.suffix.lower() in (".png", ".svg")
        return (path.with_name(f"{path.stem}-positions{path.suffix}"),) if drawn else ()

    def save(self, path: str | Path, layer: int | None = None, head: int | None = None) -> Path:
        path = Path(path)
        if path.suffix.lower() == ".json":
            return super().save(path)
        if path.suffix.lower() in (".html", ".htm"):
            return self._write_page(path)
        from regard.draw.panels import draw_heatmap_overlays, draw_position_similarity

        panels = self._panels(layer, head)
        for place in self.extra_paths(path):
            draw_position_similarity(self.position_similarity, place)
        about = "; ".join(f"{k}: {v}" for k, v in self.facts.items())
        if self.attention:
            about += f"; query: {self.query_name}" + ("; average over heads" if layer is head is None else "")
        about = "; ".join([about, *(PAPERS[name] for name in self.method_maps)])
        return draw_heatmap_overlays(
            panels, path, self.title, about, unit=None, mark=relative_position(self.query_pixel, self.image)
        )

    def _write_page(self, path: Path) -> Path:
        from regard.draw.page import OverlayMap, write_image_page

        first = self.extents[0] if self.extents else (1.0, 1.0)
        stored = [layer for stage in self.stages for layer in stage.stored_maps]
        layers = zip(
            self.layer_names, self.attention, self.extents, stored or (None,) * len(self.attention), strict=True
        )
        methods = {METHOD_TITLES[name]: OverlayMap(name, grid, first) for name, grid in self.method_maps.items()}
        return write_image_page(
            self.image,
            [OverlayMap(*layer) for layer in layers],
            methods,
            path,
            self.title,
            self.facts,
            query=(self.query_name, relative_position(self.query_pixel, self.image)),
            query_grid=self.query_grid,
            positions=self.position_similarity,
            descriptions=METHOD_DESCRIPTIONS,
        )

    def _panels(self, layer: int | None, head: int | None) -> list[AttentionOverlay]:
        """The methods and the selected attention maps: averages over heads, one head of each layer, or the heads of a layer."""
        from regard.draw.panels import AttentionOverlay

        self._check_layer_head(layer, head)
        first = self.extents[0] if self.extents else (1.0, 1.0)
        maps = [(PANEL_TITLES[name], grid, first) for name, grid in self.method_maps.items()]
        for number, (name, heads, extent) in enumerate(
            zip(self.layer_names, self.attention, self.extents, strict=True), 1
        ):
            if layer is head is None:
                maps.append((name, heads.mean(0), extent))
            elif layer in (None, number):
                chosen = range(1, len(heads) + 1) if head is None else [head] * (head <= len(heads))
                maps += [(f"{name}, head {n}", heads[n - 1], extent) for n in chosen]
        return [AttentionOverlay(self.image, grid, name, extent) for name, grid, extent in maps]

    def _check_layer_head(self, layer: int | None, head: int | None) -> None:
        if not self.attention:
            if layer is not None or head is not None:
                raise RegardError("This model has no attention, so layers and heads cannot be selected.")
            return
        many = len(self.attention)
        if layer is not None and not 1 <= layer <= many:
            raise RegardError(f"Layer must be between 1 and {many}, got {layer}.")
        heads = len(self.attention[layer - 1]) if layer is not None else max(map(len, self.attention))
        if head is not None and not 1 <= head <= heads:
            raise RegardError(f"Head must be between 1 and {heads}, got {head}.")


Pixel = tuple[int, int]
"""Row and column."""

ALL_POSITIONS = "average over all positions"
MEMORY_NOTE = "not computed: needs too much memory"


def explain_image(
    model: ModelProtocol, source: Any, target: str | None = None, at: Pixel | None = None
) -> ImageExplanation:
    """Explain the prediction for one image. `target`: class to explain; None: the predicted class. `at`: query pixel of the
    preprocessed image; for segmentation and depth, only the prediction at this pixel is explained."""
    processor = model.require_image_processor()
    image = processor.prepare(load_image(source))
    name = Path(source).name if isinstance(source, str) else "image"
    check_pixel(at, image)
    batch = image_batch(model, image)
    with torch.inference_mode():
        logits = model.task.logits(model, batch).float()
    class_index, prediction, facts = _target_class(model, logits, target, at)
    title = f"{name} → {prediction}"
    grids = token_grids(model, batch)
    if not grids:
        if at is not None:
            raise RegardError("This model has no attention, so a position (--at) is not supported.")
        return ImageExplanation(
            title, (), facts, image=image, method_maps={"grad-cam": _grad_cam(model, batch, class_index)}
        )
    is_dense = model.task.name != "classify"
    query_grid, attention = make_image_attention(model, grids, relative_position(at, image), is_dense)
    # a class score does not belong to one position
    attribution = attention.record(model, batch, _score_fn(class_index, at) if at is None or is_dense else None)
    method_maps = {"rollout": normalize_sum(attention.rollout_map())}
    if attribution is not None:
        method_maps["gradient × attention"] = normalize_sum(attribution)
    elif at is None or is_dense:
        facts["gradient × attention"] = MEMORY_NOTE
    return ImageExplanation(
        title,
        (),
        facts,
        image=image,
        query_name=query_name(attention, at),
        query_pixel=at,
        method_maps=method_maps,
        image_attention=attention,
        query_grid=query_grid,
        position_similarity=position_similarity(model.body),
    )


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


def relative_position(pixel: Pixel | None, image: np.ndarray) -> tuple[float, float] | None:
    """Center of the pixel as fractions of image height and width."""
    return None if pixel is None else ((pixel[0] + 0.5) / image.shape[0], (pixel[1] + 0.5) / image.shape[1])


def make_image_attention(
    model: ModelProtocol, grids: tuple[TokenGrid, ...], position: tuple[float, float] | None, is_dense: bool
) -> tuple[tuple[int, int], ImageAttention]:
    """Size of the grid of stored queries, and the empty `ImageAttention`. The query is the token at `position`, else the class
    token or all cells. Class scores depend on the last stage, dense predictions (`is_dense`) equally on all stages."""
    lattice = query_grid_size(model.body, grids)
    single = position is None and not is_dense and model.body.pool == "first"
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
    table = body.position_embeddings()
    if table is None:
        return None
    table = torch.nn.functional.normalize(table.detach().double(), dim=1)
    return (table @ table.T).cpu().numpy()


def explain_generation(
    model: ModelProtocol, source: Any, target: str | None = None, at: Pixel | None = None
) -> ImageExplanation:
    """Explain the prediction of one pixel. `at`: row and column; None: the center."""
    if target is not None:
        raise RegardError(f"Class '{target}' cannot be explained: this is an image generator, not a classifier.")
    palette = require_palette(model)
    ids = torch.from_numpy(palette.encode(load_image(source)))[None]
    image = palette.decode(ids[0].numpy())
    at = (palette.side // 2, palette.side // 2) if at is None else at
    check_pixel(at, image)
    name = Path(source).name if isinstance(source, str) else "image"
    batch = shift_right(ids, model.config).to(model.device)
    facts = _facts(model, batch, at[0] * palette.side + at[1])
    position = relative_position(at, image)
    query_grid, attention = make_image_attention(model, token_grids(model, batch), position, is_dense=True)
    attention.record(model, batch)
    method_maps = {"rollout": normalize_sum(attention.rollout_map())}
    attribution = _pixel_attribution(model, batch, attention)
    if attribution is None:
        facts["gradient × attention"] = MEMORY_NOTE
    else:
        method_maps["gradient × attention"] = normalize_sum(attribution)
    return ImageExplanation(
        f"{name}, pixel at row {at[0]}, column {at[1]}",
        (),
        facts,
        image=image,
        query_name=f"row {at[0]}, column {at[1]}",
        query_pixel=at,
        method_maps=method_maps,
        image_attention=attention,
        query_grid=query_grid,
        position_similarity=position_similarity(model.body),
    )


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
