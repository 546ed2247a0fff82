"""Explanation of a point-cloud model: attention of each point to the nearest neighbors, for every layer and level."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.points.cloud import PointCloud
from regard.draw.point_cloud import CloudAttention, NeighborAttention, draw_neighbors, write_neighbors_page
from regard.draw.text import check_choice
from regard.errors import InputError, InputTypeError, RegardError
from regard.explain import Explanation
from regard.explain.rollout import logit_margin
from regard.index import print_note
from regard.nn.recording import record_attention
from regard.processors.points import PointProcessor, split_scene
from regard.tasks.base import Model, require_head
from regard.tasks.modality.points import open_cloud, pack_clouds, require_point_processor
from regard.types import AttentionRecord, Batch, BodyOutput

MAX_STORED_QUERIES = 4096  # larger levels store only the attention of the query point

FAR_FRACTION = 0.1  # maximum distance of the nearest point without a warning, as a fraction of the extent

PointQuery = int | Sequence[float]  # Index of a point in the file, or coordinates, which select the nearest point.

PAGE_NOTE = (
    "Attention over the k nearest neighbors, averaged over channels. The ring marks the query point. "
    "The color scale ends at the largest weight."
)
CLASS_NOTE = (
    "Attention over the k nearest neighbors, weighted by its gradient of the score of class ‘{}’ (gradient × attention, Chefer "
    "et al. 2021). The ring marks the query point. The color scale ends at the largest weight."
)


@dataclass(frozen=True, kw_only=True, repr=False)
class CloudExplanation(Explanation):
    """Explanation of one point cloud."""

    attention: CloudAttention
    class_name: str | None = None  # class whose score weights the attention; None: plain attention

    @property
    def values(self) -> dict[str, Any]:
        """Values for JSON: attention weights of the query point in each layer, by the index of the key point in the file."""
        attention = self.attention
        origins = np.arange(len(attention.coordinates)) if attention.file_index is None else attention.file_index
        layers = []
        for layer in attention.layers:
            weights = attention.point_weights(layer)
            best = [int(n) for n in np.argsort(-weights, kind="stable") if weights[n] > 0]
            query = attention.levels[layer.level][attention.nearest_query(layer)]
            keys = [{"point": int(origins[n]), "weight": round(float(weights[n]), 6)} for n in best]
            layers.append({"layer": layer.name, "query_point": int(origins[query]), "attention": keys})
        query_point = int(origins[attention.query_point])
        named = {"class": self.class_name} if self.class_name is not None else {}
        return {"title": self.title, "facts": self.facts, "query_point": query_point, **named, "layers": layers}

    def _write_page(self, path: Path) -> Path:
        note = PAGE_NOTE if self.class_name is None else CLASS_NOTE.format(self.class_name)
        return write_neighbors_page(self.attention, path, self.title, note, self.facts)

    def _draw(self, path: Path, layer: int | None, head: int | None) -> Path:
        if head is not None:
            raise RegardError(
                "Attention between points is averaged over channels, so heads cannot be selected. Remove --head."
            )
        check_choice("Layer", layer, len(self.attention.layers))
        about = [f"{name}: {value}" for name, value in self.facts.items()]
        about.append(f"{self.attention.method} over the k nearest neighbors, averaged over channels")
        method = self.attention.method
        title = f"{method[0].upper()}{method[1:]} of a point: {self.title}"
        return draw_neighbors(self.attention, path, title, "; ".join(about), layer)


def explain_cloud(
    model: Model, source: Any, target: str | None, at: PointQuery | None, class_name: str | None = None
) -> CloudExplanation:
    """Explain the prediction for a point cloud. `at`: index or coordinates of the query point; None: nearest to the center.

    With `class_name`, attention is weighted by the gradient of the class score; segmentation uses the score at the query
    point."""
    if target is not None:
        raise RegardError(
            "Point-cloud explanations start from a point (--at INDEX or --at X,Y,Z). "
            f"Remove '{target}', or name a class with --class."
        )
    points: PointProcessor = require_point_processor(model)
    cloud = open_cloud(source, points)
    number = query_index(cloud, at)
    name = Path(source).name if isinstance(source, str | os.PathLike) else "point cloud"
    if isinstance(at, Sequence):
        far = float(np.linalg.norm(cloud.coordinates[number] + cloud.origin - np.asarray(at, dtype=np.float64)))
        if far > FAR_FRACTION * float(np.ptp(cloud.coordinates, axis=0).max()):
            print_note(
                f"warning: {name}: no point at these coordinates; using the nearest point {number} at distance {far:.3g}"
            )
    is_segment = model.task.name == "segment"
    if is_segment:  # the largest block that contains the voxel of the query point
        scene = split_scene(cloud, points)
        blocks = [block for block in scene.block_indices if (block == scene.voxel_index[number]).any()]
        indices = scene.point_indices[max(blocks, key=len)]
    else:
        indices = points.prepare(cloud)[1]
    coordinates = cloud.coordinates[indices]
    query = int(((coordinates - cloud.coordinates[number]) ** 2).sum(1).argmin())
    x, offsets = pack_clouds([points.normalize(points.rows(cloud, indices))])
    labels, has_class = model.spec.options.labels, class_name is not None
    with torch.set_grad_enabled(has_class), record_attention(model.body, gradients=has_class) as recorded:
        states: BodyOutput = model.body(Batch(x, packing=offsets).to(model.device))
        logits = require_head(model)(states.sequence if is_segment else states.pooled)
    logits = logits.reshape(-1, logits.shape[-1])
    records = recorded.records
    if class_name is not None:
        score = logit_margin(logits[query if is_segment else 0], labels.index(class_name))
        records = [
            replace(record, weights=weights)
            for record, weights in zip(records, gradient_weights(score, records), strict=True)
        ]
    # indices of the input level of each level
    levels = tuple(level.cpu().numpy().astype(np.int64) for level in states.aux_losses.values())
    probabilities = logits.detach().float().softmax(-1).cpu().numpy()
    own = probabilities[query if is_segment else 0]
    best = int(own.argmax())
    where = ", ".join(f"{value:.4g}" for value in cloud.coordinates[number].astype(np.float64) + cloud.origin)
    instead = f" (nearest point used: {indices[query]})" if indices[query] != number else ""
    facts = {
        "query": f"point {number} at {where}{instead}",
        "prediction": f"{labels[best]}, {100 * float(own[best]):.1f} %",
        "points": f"{len(indices):,} of {len(cloud):,} used" if len(indices) < len(cloud) else f"{len(cloud):,}",
    }
    explained = ""
    if class_name is not None:
        facts["explained class"] = f"{class_name}, {100 * float(own[labels.index(class_name)]):.1f} %"
        explained = f" (explained class: {class_name})"
    attention = CloudAttention(
        coordinates,
        levels,
        layer_attention(records, levels, coordinates, query),
        query,
        indices,
        predictions=probabilities.argmax(1) if is_segment else None,
        labels=labels if is_segment else (),
        up=points.up,
        origin=tuple(map(float, cloud.origin)),
        method="attention" if class_name is None else "gradient × attention",
    )
    title = f"{name} → {labels[best]}{explained}"
    return CloudExplanation(title, (), facts, attention=attention, class_name=class_name)


def gradient_weights(score: Tensor, records: Sequence[AttentionRecord]) -> Iterator[Tensor]:
    """Positive part of gradient × attention of each record (Chefer et al. 2021), averaged over channels, as fractions of each
    query."""
    gradients = torch.autograd.grad(score, [record.weights for record in records], materialize_grads=True)
    for record, gradient in zip(records, gradients, strict=True):
        products = (gradient * record.weights.detach()).clamp(min=0).mean(1, keepdim=True)
        yield products / products.sum(-1, keepdim=True).clamp(min=torch.finfo(products.dtype).tiny)


def query_index(cloud: PointCloud, query: PointQuery | None) -> int:
    """Index of the query point."""
    if isinstance(query, int | np.integer):
        if not 0 <= query < len(cloud):
            raise InputError(f"Point index must be between 0 and {len(cloud) - 1:,}, got {query}.")
        return int(query)
    is_point = isinstance(query, Sequence) and len(query) == 3 and all(isinstance(x, Real) for x in query)
    if query is not None and not (is_point and np.isfinite(query).all()):
        raise InputTypeError(f"A point must be an index or finite coordinates (x, y, z), got {query!r:.60}.")
    wanted = cloud.coordinates.mean(0) if query is None else np.asarray(query, dtype=np.float64) - cloud.origin
    return int(((cloud.coordinates - wanted) ** 2).sum(1).argmin())


def layer_attention(
    records: list[AttentionRecord], levels: tuple[np.ndarray, ...], coordinates: np.ndarray, query: int
) -> tuple[NeighborAttention, ...]:
    """Attention of each layer, averaged over channels; of large levels only for the point nearest to the query point."""
    layers = []
    for record in records:
        # `down.2.blocks.0` is on level 2, `up.0.blocks.0` on the coarsest level
        way, stage, block = re.match(r"(down|up)\.(\d+)\.blocks\.(\d+)\b", record.name).groups()  # type: ignore[union-attr]
        level, brief = int(stage), f"block {int(block) + 1}"
        if way == "up":
            level, brief = len(levels) - 1 - level, "decoder block" if block == "0" else f"decoder {brief}"
        assert record.key_index is not None
        weights, keys = record.weights[0].float().mean(0).cpu().numpy(), record.key_index[0, 0].cpu().numpy()
        keys, queries = keys.astype(np.int64), None
        if len(levels[level]) > MAX_STORED_QUERIES:
            nearest = ((coordinates[levels[level]] - coordinates[query]) ** 2).sum(1).argmin()
            queries = np.array([nearest])
            weights, keys = weights[queries], keys[queries]
        layers.append(NeighborAttention(f"level {level + 1}, {brief}", brief, level, keys, weights, queries))
    return tuple(layers)
