"""Explanation of a point-cloud model: attention of each point to the nearest neighbors, for every layer and level."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.data.points.cloud import PointCloud
from regard.draw.point_cloud import CloudAttention, NeighborAttention, draw_neighbors, write_neighbors_page
from regard.draw.text import check_choice
from regard.errors import InputError, InputTypeError, RegardError
from regard.explain import Explanation
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


@dataclass(frozen=True, kw_only=True, repr=False)
class CloudExplanation(Explanation):
    """Explanation of one point cloud."""

    attention: CloudAttention

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
        return {"title": self.title, "facts": self.facts, "query_point": query_point, "layers": layers}

    def _write_page(self, path: Path) -> Path:
        return write_neighbors_page(self.attention, path, self.title, PAGE_NOTE, self.facts)

    def _draw(self, path: Path, layer: int | None, head: int | None) -> Path:
        if head is not None:
            raise RegardError(
                "Attention between points is averaged over channels, so heads cannot be selected. Remove --head."
            )
        check_choice("Layer", layer, len(self.attention.layers))
        about = [f"{name}: {value}" for name, value in self.facts.items()]
        about.append("attention over the k nearest neighbors, averaged over channels")
        return draw_neighbors(self.attention, path, f"Attention of a point: {self.title}", "; ".join(about), layer)


def explain_cloud(model: Model, source: Any, target: str | None, at: PointQuery | None) -> CloudExplanation:
    """Explain the prediction for a point cloud. `at`: index or coordinates of the query point; None: nearest to the center."""
    if target is not None:
        raise RegardError(
            "Point-cloud explanations start from a point (--at INDEX or --at X,Y,Z), not from a class. "
            f"Remove '{target}'."
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
    with torch.no_grad(), record_attention(model.body) as records:
        states: BodyOutput = model.body(Batch(x, packing=offsets).to(model.device))
        features = states.sequence if is_segment else states.pooled
        probabilities = require_head(model)(features).float().softmax(-1)
    # indices of the input level of each level
    levels = tuple(level.cpu().numpy().astype(np.int64) for level in states.aux_losses.values())
    probabilities = probabilities.reshape(-1, probabilities.shape[-1]).cpu().numpy()
    own = probabilities[query if is_segment else 0]
    labels, best = model.spec.options.labels, int(own.argmax())
    where = ", ".join(f"{value:.4g}" for value in cloud.coordinates[number].astype(np.float64) + cloud.origin)
    instead = f" (nearest point used: {indices[query]})" if indices[query] != number else ""
    facts = {
        "query": f"point {number} at {where}{instead}",
        "prediction": f"{labels[best]}, {100 * float(own[best]):.1f} %",
        "points": f"{len(indices):,} of {len(cloud):,} used" if len(indices) < len(cloud) else f"{len(cloud):,}",
    }
    attention = CloudAttention(
        coordinates,
        levels,
        layer_attention(records.records, levels, coordinates, query),
        query,
        indices,
        predictions=probabilities.argmax(1) if is_segment else None,
        labels=labels if is_segment else (),
        up=points.up,
        origin=tuple(map(float, cloud.origin)),
    )
    return CloudExplanation(f"{name} → {labels[best]}", (), facts, attention=attention)


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
