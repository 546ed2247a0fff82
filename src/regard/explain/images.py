"""Explanation of an image model or image generator: attention maps, rollout, gradient attribution, and similarity of position
embeddings, as heatmaps over the image.

A model has one grid of tokens, or several grids of decreasing resolution (the stages of Swin). Rollout within a grid is the
same as for text. Between stages, the value of a merged patch is divided equally among the merged patches inside the image: a
simplification, like equal weights for residual connection and attention."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from regard.draw.page import write_image_page
from regard.draw.panels import (
    WHOLE,
    Box,
    OverlayMap,
    draw_heatmap_overlays,
    draw_position_similarity,
    overlay_heatmap,
    save_image,
)
from regard.draw.text import check_choice
from regard.errors import InputError, InputTypeError, RegardError, UnknownNameError
from regard.explain import Explanation, chosen_class
from regard.explain import rollout as rollouts
from regard.nn.blocks.decoder import DecoderOnly
from regard.nn.recording import named_attentions
from regard.nn.vision.patches import VisionTransformer
from regard.nn.vision.swin import SwinBody
from regard.tasks.base import Model
from regard.tasks.classify import class_probabilities
from regard.tasks.depth import METERS_LABEL
from regard.tasks.draw import require_palette, shift_right
from regard.tasks.modality.image import (
    load_image,
    load_image_and_size,
    prepare_images,
    require_image_processor,
    stack_images,
)
from regard.types import AttentionRecord, Batch

METHODS = {
    "rollout": (
        "Attention rollout",
        "Attention rollout",
        "Attention multiplied through all layers, with residual connections counted as one half (Abnar & Zuidema 2020).",
        "attention rollout: Abnar & Zuidema 2020",
    ),
    "gradient × attention": (
        "Attribution (gradient × attention)",
        "Gradient × attention",
        "Regions that increase the predicted score: attention weighted by its gradient (Chefer et al. 2021).",
        "gradient × attention: Chefer et al. 2021",
    ),
    "grad-cam": (
        "Grad-CAM",
        "Grad-CAM",
        "Last feature map weighted by the gradient of the predicted score (Selvaraju et al. 2017).",
        "Grad-CAM: Selvaraju et al. 2017",
    ),
}
"""Title, short title for panels, description and paper of each method."""


GridArray = NDArray[np.float64]
Shape = tuple[int, int]
Pixel = tuple[int, int]  # Row and column.
Position = tuple[float, float]  # Fractions of height and width.

MAX_STORED_WEIGHTS = 6_000_000  # Limit of attention weights stored for single queries: enough for all patches of ViT-B.

GRADIENT_MEMORY_FACTOR = 8  # memory with gradients / memory of the weights, at most; ImageGPT needs a factor of six


@dataclass(frozen=True)
class TokenGrid:
    """The cells of an image grid as a sequence of `length` tokens."""

    grid: Shape
    length: int
    prefix_tokens: int = 0  # tokens at the start of the sequence without a position in the image
    shift: int = 0  # 1 if the output at a token predicts the next token (image generators), else 0
    keys_per_query: int | None = None  # keys per query, if attention is limited to windows
    extent: tuple[float, float] = (1.0, 1.0)  # height and width relative to the image; padding is below and right

    def token_at(self, position: tuple[float, float]) -> int:
        """Token that predicts the cell at `position`, given as fractions of image height and width."""
        down, across = (
            min(int(share / covers * count), count - 1)
            for share, covers, count in zip(position, self.extent, self.grid, strict=True)
        )
        return down * self.grid[1] + across + self.prefix_tokens - self.shift

    def to_grid(self, row: Tensor) -> Tensor:
        """Values of the tokens as a grid: (…, length) -> (…, h, w); 0 for cells without a token."""
        own = row[..., self.prefix_tokens :]
        return F.pad(own, (0, self.grid[0] * self.grid[1] - own.shape[-1])).view(*row.shape[:-1], *self.grid)


def token_grids(model: Model, batch: Batch) -> tuple[TokenGrid, ...]:
    """Grids of the model from fine to coarse; empty for models without attention."""
    body, x = model.body, batch.inputs
    if isinstance(body, VisionTransformer):
        with torch.inference_mode():
            grid = body.patches.grid(x if body.front is None else body.front.feature_maps(x)[-1])
        return (TokenGrid(grid, int(body.has_class_token) + grid[0] * grid[1], int(body.has_class_token)),)
    if isinstance(body, SwinBody):
        high, wide = x.shape[-2:]
        found = []
        for stage in range(len(body.stages)):
            side = body.patches.patch * 2**stage
            grid = -(-high // side), -(-wide // side)
            covers = grid[0] * side / high, grid[1] * side / wide
            found.append(TokenGrid(grid, grid[0] * grid[1], keys_per_query=model.config.window_size**2, extent=covers))
        return tuple(found)
    if isinstance(body, DecoderOnly):
        side, told = model.config.image_size, int(model.task.name == "draw")
        return (TokenGrid((side, side), side**2, prefix_tokens=told, shift=told),)
    return ()


@dataclass
class GridAttention:
    """Attention on one grid: averaged over `query_tokens`, and separately for each of `stored_queries`."""

    token_grid: TokenGrid
    query_tokens: tuple[int, ...]
    stored_queries: tuple[int, ...] = ()
    layers: list[rollouts.AttentionLayer] = field(default_factory=list)
    query_maps: list[GridArray] = field(default_factory=list)  # (heads, h, w) per layer
    stored_maps: list[NDArray[np.float32]] = field(default_factory=list)  # (stored queries, heads, h, w) per layer

    def add(self, records: Sequence[AttentionRecord]) -> None:
        grid, length = self.token_grid, self.token_grid.length
        parts = rollouts.slice_records(records, 0, length)
        self.layers.append(rollouts.mean_layer(parts))
        self.query_maps.append(
            grid.to_grid(rollouts.weighted_sum(parts, self.query_weights.to(parts[0].weights))).double().cpu().numpy()
        )
        if self.stored_queries:
            rows = [
                torch.stack([part.query_weights(at, length) for part in parts]).sum(0) for at in self.stored_queries
            ]
            self.stored_maps.append(grid.to_grid(torch.stack(rows)).float().cpu().numpy())

    @property
    def query_weights(self) -> Tensor:
        return rollouts.uniform_weights(self.token_grid.length, self.query_tokens)


@dataclass(frozen=True)
class ImageAttention:
    """Attention of one image by stage. `stage_weights`: contribution of each stage to the output, summing to 1."""

    stages: tuple[GridAttention, ...]
    stage_weights: tuple[float, ...]
    query_grid: Shape = (0, 0)  # rows and columns of the stored queries

    def add(self, records: Sequence[AttentionRecord]) -> None:
        self.stages[stage_index(records[0].name)].add(records)

    def record(self, model: Model, batch: Batch, score_fn: rollouts.ScoreFn | None) -> GridArray | None:
        """Run the model once and record attention. Returns the relevance (h, w) of the cells of the finest grid for the score,
        if given, or None if gradients would exceed `MAX_BYTES`."""
        gradients = score_fn is not None and self.fits_memory(model.body)
        logits, groups = rollouts.record_layers(model, batch, [self.add], gradients)
        if score_fn is None or not gradients:
            return None
        by_stage: list[list[rollouts.AttentionLayer]] = [[] for _ in self.stages]
        numbers = [stage_index(group[0].name) for group in groups]
        lengths = [self.stages[number].token_grid.length for number in numbers]
        for number, layer in zip(numbers, rollouts.relevance_layers(score_fn(logits), groups, 0, lengths), strict=True):
            by_stage[number].append(layer)
        before = self.propagate(lambda number, row: row)
        return self.propagate(lambda number, row: row + rollouts.relevance(by_stage[number], row)) - before

    def fits_memory(self, body: Any) -> bool:
        """True if all attention weights with gradients fit into `MAX_BYTES`."""
        placed = heads_on_grids(body, [stage.token_grid for stage in self.stages])
        weights = sum(heads * grid.length * (grid.keys_per_query or grid.length) for heads, grid in placed)
        return GRADIENT_MEMORY_FACTOR * 4 * weights <= rollouts.MAX_BYTES

    def propagate(self, step: Callable[[int, Tensor], Tensor]) -> GridArray:
        """Values (h, w) of the finest grid. `step` maps the weights of the tokens of a stage, from the coarsest stage on."""
        row = torch.zeros(self.stages[-1].token_grid.length, dtype=torch.float64)
        for number, stage in reversed([*enumerate(self.stages)]):
            row = step(number, row + self.stage_weights[number] * stage.query_weights)
            if number:  # each coarse cell is divided equally among the 2 × 2 fine cells inside the image
                coarse, fine = stage.token_grid.grid, self.stages[number - 1].token_grid.grid
                down, across = (torch.arange(count) // 2 for count in fine)
                many = down.bincount(minlength=coarse[0])[:, None] * across.bincount(minlength=coarse[1])
                row = (row.view(coarse) / many)[down][:, across].flatten()
        return self.stages[0].token_grid.to_grid(row).numpy()


def stage_index(name: str) -> int:
    """Stage of an attention module, from the module name."""
    match = re.match(r"stages\.(\d+)\.", name)
    return int(match[1]) if match else 0


def heads_on_grids(body: Any, grids: Sequence[TokenGrid]) -> list[tuple[int, TokenGrid]]:
    """Number of heads and grid of each attention module."""
    return [(place.heads, grids[stage_index(name)]) for name, place in named_attentions(body).items()]


def query_grid_size(body: Any, grids: Sequence[TokenGrid]) -> Shape:
    """Rows and columns of the grid of stored queries: the finest grid, reduced if `MAX_STORED_WEIGHTS` would be exceeded."""
    weights = sum(heads * math.prod(grid.grid) for heads, grid in heads_on_grids(body, grids))
    (high, wide), most = grids[0].grid, max(MAX_STORED_WEIGHTS // weights, 1)
    while high * wide > most:
        high, wide = (high - 1, wide) if high >= wide else (high, wide - 1)
    return high, wide


@dataclass(frozen=True, repr=False)
class ImageExplanation(Explanation):
    """Explanation of one image. Maps may have any grid size; heatmaps show fractions of the total attention."""

    image: Any = None  # (H, W, 3) bytes
    region: Box = WHOLE  # part of the image that the model reads
    mark: Position | None = None  # position of the query pixel in the image, if given
    query_name: str = ""  # class token, average over all positions, or row and column of a pixel
    query_pixel: tuple[int, int] | None = None  # row and column of the query pixel in the image, if given
    method_maps: dict[str, GridArray] = field(default_factory=dict)  # rollout and attribution (h, w), each summing to 1
    layers: tuple[OverlayMap, ...] = ()  # attention of the query in each layer, (heads, h, w); empty without attention
    query_grid: tuple[int, int] = (0, 0)  # rows and columns of the stored queries
    position_similarity: Any = None  # cosine similarity (n, n) of learned position embeddings, if any

    @property
    def attention(self) -> tuple[GridArray, ...]:
        """Attention of the query in each layer, (heads, h, w)."""
        return tuple(layer.weights for layer in self.layers)

    @property
    def values(self) -> dict[str, Any]:
        values: dict[str, Any] = {"title": self.title, "facts": self.facts, "region": self.region, **self.method_maps}
        if self.layers:
            values |= {"query": self.query_name, "at": self.query_pixel}
            values |= {"layers": [layer.name for layer in self.layers], "attention": self.attention}
        return values

    def extra_paths(self, path: Path) -> tuple[Path, ...]:
        if path.suffix.lower() not in (".png", ".svg"):
            return ()
        similar = (path.with_name(f"{path.stem}-positions{path.suffix}"),) * (self.position_similarity is not None)
        return path.with_name(f"{path.stem}-overlay.png"), *similar

    def _named_methods(self, column: int) -> list[OverlayMap]:
        """Rollout and attribution with titles of `METHODS`."""
        box = self.layers[0].box if self.layers else self.region
        return [OverlayMap(METHODS[name][column], grid, box) for name, grid in self.method_maps.items()]

    def _write_page(self, path: Path) -> Path:
        return write_image_page(
            self.image,
            self.layers,
            self._named_methods(0),
            path,
            self.title,
            self.facts,
            query=(self.query_name, self.mark),
            query_grid=self.query_grid,
            positions=self.position_similarity,
            descriptions={title: text for title, _, text, _ in METHODS.values()}
            | {"attention": "Attention of one layer over the image, per head or averaged."},
            region=self.region,
        )

    def _draw(self, path: Path, layer: int | None, head: int | None) -> Path:
        """Draw the methods, and averages over heads, one head of each layer, or all heads of a layer."""
        if self.layers:
            check_choice("Layer", layer, len(self.layers))
            heads = len(self.attention[layer - 1]) if layer is not None else max(map(len, self.attention))
            check_choice("Head", head, heads)
        elif layer is not None or head is not None:
            raise RegardError("This model has no attention, so layers and heads cannot be selected.")
        maps = self._named_methods(1)
        single = maps[-1]  # the overlay of the size of the image
        for number, (name, weights, box, _) in enumerate(self.layers, 1):
            if layer is head is None:
                maps.append(OverlayMap(name, weights.mean(0), box))
            elif layer in (None, number):
                chosen = range(1, len(weights) + 1) if head is None else [head] * (head <= len(weights))
                maps += [OverlayMap(f"{name}, head {n}", weights[n - 1], box) for n in chosen]
            if layer == number:
                single = OverlayMap(name, weights.mean(0) if head is None else weights[head - 1], box)
        overlay, *similar = self.extra_paths(path) or (None,)
        for place in similar:
            draw_position_similarity(self.position_similarity, place)
        if overlay is not None:
            save_image(overlay_heatmap(self.image, single.weights, single.box), overlay)
        about = [f"{name}: {value}" for name, value in self.facts.items()]
        if self.layers:
            about.append(f"query: {self.query_name}")
            about += ["average over heads"] if layer is head is None else []
        about += [METHODS[name][3] for name in self.method_maps]
        return draw_heatmap_overlays(self.image, maps, path, self.title, "; ".join(about), self.mark)


MEMORY_NOTE = "not computed: needs too much memory"
CROP_NOTE_THRESHOLD = 0.99  # The center crop is reported if less than this fraction of the image is kept.


@dataclass(frozen=True)
class View:
    """An image, and the part of it that the model reads."""

    picture: np.ndarray  # (H, W, 3) pixels, fewer than `size` if the file was decoded at a lower resolution
    size: Shape  # height and width of the image
    region: Box  # part of the image that the model reads

    @classmethod
    def open(cls, source: Any, pixels: Any) -> View:
        picture, size = load_image_and_size(source)
        return cls(picture, size, pixels.visible_box(*picture.shape[:2]))

    def crop_fact(self) -> dict[str, str]:
        """Fraction of the image that a center crop keeps, if the rest is not negligible."""
        top, left, bottom, right = (min(max(edge, 0.0), 1.0) for edge in self.region)
        kept = (bottom - top) * (right - left)
        return (
            {"center crop": f"{100 * kept:.0f} % of the image, the rest is dark"} if kept < CROP_NOTE_THRESHOLD else {}
        )

    def positions(self, pixel: Pixel | None) -> tuple[Position | None, Position | None]:
        """Center of a pixel of the image as fractions of the image, and of the part that the model reads."""
        if pixel is None:
            return None, None
        check_pixel(pixel, self.size)
        in_image = (pixel[0] + 0.5) / self.size[0], (pixel[1] + 0.5) / self.size[1]
        starts, ends = self.region[:2], self.region[2:]
        row, column = ((at - start) / (end - start) for at, start, end in zip(in_image, starts, ends, strict=True))
        if not (0 <= row < 1 and 0 <= column < 1):
            raise InputError(
                f"Pixel (row {pixel[0]}, column {pixel[1]}) is outside the center crop, which is all that the model reads."
            )
        return in_image, (row, column)

    def grid_box(self, extent: tuple[float, float]) -> Box:
        """Part of the image that a grid covers; `extent`: height and width of the grid relative to the model input."""
        top, left, bottom, right = self.region
        return top, left, top + extent[0] * (bottom - top), left + extent[1] * (right - left)


def explain_image(
    model: Model, source: Any, target: str | None, at: Pixel | None, class_name: str | None = None
) -> ImageExplanation:
    """Explain the prediction for one image. `target` or `class_name`: class to explain; None: the predicted class. `at`: query
    pixel of the image; for segmentation and depth, only the prediction at this pixel is explained."""
    target, pixels = chosen_class(target, class_name), require_image_processor(model)
    view = View.open(source, pixels)
    _, position = view.positions(at)
    image = pixels.prepare(view.picture)
    batch = image_batch(model, image)
    with torch.inference_mode():
        logits = model.objective.logits(model, batch).float()
    place = None if position is None else (int(position[0] * image.shape[0]), int(position[1] * image.shape[1]))
    class_index, prediction, facts = _target_class(model, logits, target, place)
    facts |= view.crop_fact()
    title = f"{source_name(source)} → {prediction}"
    grids = token_grids(model, batch)
    if not grids:
        if at is not None:
            raise RegardError("This model has no attention, so a position (--at) is not supported.")
        maps = {"grad-cam": _grad_cam(model, batch, class_index)}
        return ImageExplanation(title, (), facts, image=view.picture, region=view.region, method_maps=maps)
    is_dense = model.task.name != "classify"
    attention = make_image_attention(model, grids, position, is_dense)
    # a class score does not belong to one position
    has_score = at is None or is_dense
    attribution = attention.record(model, batch, _score_fn(class_index, place) if has_score else None)
    return _image_explanation(model, title, facts, view, at, attention, attribution, has_score)


def _image_explanation(
    model: Model,
    title: str,
    facts: dict[str, str],
    view: View,
    at: Pixel | None,
    attention: ImageAttention,
    attribution: GridArray | None,
    has_score: bool = True,
) -> ImageExplanation:
    """Explanation of a model with attention from the recorded attention and the attribution of the score, if there is one."""
    rolled = attention.propagate(lambda number, row: rollouts.rollout(attention.stages[number].layers, row))
    method_maps = {"rollout": normalize_sum(rolled)}
    if attribution is not None:
        method_maps["gradient × attention"] = normalize_sum(attribution)
    elif has_score:
        facts["gradient × attention"] = MEMORY_NOTE
    layers: list[OverlayMap] = []
    for stage, grid in enumerate(attention.stages, 1):
        suffix = f" (stage {stage})" if len(attention.stages) > 1 else ""
        for weights, stored in zip(grid.query_maps, grid.stored_maps, strict=True):
            box = view.grid_box(grid.token_grid.extent)
            layers.append(OverlayMap(f"layer {len(layers) + 1}{suffix}", weights, box, stored))
    similarity, table = None, model.body.position_embeddings()
    if table is not None:
        table = F.normalize(table.detach().double(), dim=1)
        similarity = (table @ table.T).cpu().numpy()
    query = "average over all positions" if len(attention.stages[0].query_tokens) > 1 else "class token"
    return ImageExplanation(
        title,
        (),
        facts,
        image=view.picture,
        region=view.region,
        mark=view.positions(at)[0],
        query_name=query if at is None else f"row {at[0]}, column {at[1]}",
        query_pixel=at,
        method_maps=method_maps,
        layers=tuple(layers),
        query_grid=attention.query_grid,
        position_similarity=similarity,
    )


def source_name(source: Any) -> str:
    return Path(source).name if isinstance(source, str | Path) else "image"


def check_pixel(pixel: Pixel, size: Shape) -> None:
    """Raise an error for a pixel that is not in an image of this height and width."""
    high, wide = size
    if not isinstance(pixel, Sequence) or len(pixel) != 2 or not all(isinstance(at, int | np.integer) for at in pixel):
        raise InputTypeError(f"A position in an image must be (row, column) as integers, got {pixel!r:.60}.")
    if not (0 <= pixel[0] < high and 0 <= pixel[1] < wide):
        raise InputError(
            f"Pixel (row {pixel[0]}, column {pixel[1]}) is outside the image: the image has {high} rows and {wide} columns, "
            "counted from 0."
        )


def image_batch(model: Model, image: np.ndarray) -> Batch:
    """Batch of one preprocessed image."""
    return prepare_images(model, Batch(stack_images([image]).to(model.device)))


def make_image_attention(
    model: Model, grids: tuple[TokenGrid, ...], position: tuple[float, float] | None, is_dense: bool
) -> ImageAttention:
    """The empty `ImageAttention`. The query is the token at `position`, else the class token or all cells. Class scores depend
    on the last stage, dense predictions (`is_dense`) equally on all stages."""
    rows, columns = size = query_grid_size(model.body, grids)
    centers = [((row + 0.5) / rows, (column + 0.5) / columns) for row in range(rows) for column in range(columns)]
    single = position is None and not is_dense and model.body.pool == "first"
    stages = []
    for grid in grids:
        first = grid.prefix_tokens - grid.shift
        cells = range(first, min(first + grid.grid[0] * grid.grid[1], grid.length))  # tokens that predict the cells
        queries = (0,) if single else tuple(cells) if position is None else (grid.token_at(position),)
        stages.append(GridAttention(grid, queries, tuple(grid.token_at(center) for center in centers)))
    last = (0.0,) * (len(grids) - 1) + (1.0,)
    return ImageAttention(tuple(stages), (1 / len(grids),) * len(grids) if is_dense else last, size)


def _target_class(
    model: Model, logits: Tensor, target: str | None, at: Pixel | None
) -> tuple[int, str, dict[str, str]]:
    """Index of the explained class (0 for depth), name of the prediction, and labeled values for the page header."""
    labels = model.spec.options.labels
    if model.task.name == "depth":
        unit = "m" if METERS_LABEL in labels else "(relative inverse depth)"
        name = "mean predicted depth" if at is None else "predicted depth at this pixel"
        return 0, "depth", {"explained value": f"{name}: {float(_pixel_value(logits[0], at)):.4g} {unit}"}
    is_dense = model.task.name != "classify"
    chances = _pixel_value(logits.softmax(1)[0], at) if is_dense else class_probabilities(model, logits)[0]
    best = int(chances.argmax())
    if target is not None and target not in labels:
        raise UnknownNameError("class", target, labels)
    which = labels.index(target) if target is not None else best
    where = " (average over all pixels)" if is_dense and at is None else ""
    facts = {
        labels[n]: f"{100 * float(chances[n]):.1f} %{where}" for n in chances.argsort(descending=True)[:3].tolist()
    }
    return which, labels[best] + (f" (explained class: {target})" if which != best else ""), facts


def _score_fn(which: int, at: Pixel | None = None) -> rollouts.ScoreFn:
    """Margin of a class, or depth; at pixel `at`, or averaged over all pixels."""

    def of(logits: Tensor) -> Tensor:
        own = logits[0] if logits.ndim == 2 else _pixel_value(logits[0], at)
        return rollouts.logit_margin(own, which) if own.ndim else own

    return of


def _pixel_value(values: Tensor, at: Pixel | None) -> Tensor:
    """Values (…, H, W) at a pixel, or averaged over all pixels."""
    return values.flatten(-2).mean(-1) if at is None else values[..., at[0], at[1]]


def normalize_sum(grid: GridArray) -> GridArray:
    total = float(grid.sum())
    return grid / total if total > 0 else grid


def _grad_cam(model: Model, batch: Batch, which: int) -> GridArray:
    """Grad-CAM (Selvaraju et al. 2017): positive part of the last feature map weighted by its average gradients."""
    is_dense = model.task.name != "classify"
    taps = model.head.tap_indices if is_dense else (model.config.feature_maps()[-1].index,)
    with torch.enable_grad():
        out = model.body(Batch(batch.inputs.detach().requires_grad_()), taps=taps)
        features, size = out.hidden_states[-1], tuple(batch.inputs.shape[-2:])
        logits = model.head(out.hidden_states, size) if is_dense else model.head(out.pooled)
        (gradient,) = torch.autograd.grad(_score_fn(which)(logits), features)
    grid = (gradient.mean((2, 3), keepdim=True) * features).sum(1).clamp(min=0)[0]
    return normalize_sum(grid.detach().double().cpu().numpy())


def explain_generation(model: Model, source: Any, target: str | None, at: Pixel | None) -> ImageExplanation:
    """Explain the prediction of one pixel. `at`: row and column; None: the center."""
    if target is not None:
        raise RegardError(f"Class '{target}' cannot be explained: this is an image generator, not a classifier.")
    palette = require_palette(model)
    ids = torch.from_numpy(palette.encode(load_image(source)))[None]
    image = palette.decode(ids[0].numpy())
    at = (palette.side // 2, palette.side // 2) if at is None else at
    view = View(image, image.shape[:2], WHOLE)
    _, position = view.positions(at)
    batch, place = shift_right(ids, model.config).to(model.device), at[0] * palette.side + at[1]
    colors = batch.require_labels()[0]
    attention = make_image_attention(model, token_grids(model, batch), position, is_dense=True)
    logits, _ = rollouts.record_layers(model, batch, [attention.add])
    logs = logits[0].float().log_softmax(-1)
    own = logs.gather(1, colors[:, None])[:, 0]
    rank = int((logs[place] > own[place]).sum()) + 1
    facts = {
        "pixel color": f"probability {100 * float(own[place].exp()):.1f} %, rank {rank} of {logs.shape[1]} colors",
        "bits per pixel": f"{-float(own.mean()) / math.log(2):.3f}",
    }

    def color_log_prob(logits: Tensor) -> Tensor:
        last = logits[0, -1]
        return (last if last.dtype == torch.float64 else last.float()).log_softmax(-1)[colors[place]]

    # later pixels have no influence and are left out of the forward pass
    (stage,) = attention.stages
    prefix = GridAttention(replace(stage.token_grid, length=place + 1), stage.query_tokens)
    attribution = ImageAttention((prefix,), (1.0,)).record(model, Batch(batch.inputs[:, : place + 1]), color_log_prob)
    title = f"{source_name(source)}, pixel at row {at[0]}, column {at[1]}"
    return _image_explanation(model, title, facts, view, at, attention, attribution)
