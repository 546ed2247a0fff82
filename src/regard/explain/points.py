"""Explanation of a point-cloud model: attention of each point to the nearest neighbors, for every layer and level."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.data.points.cloud import PointCloud
from regard.draw.point_cloud import CloudAttention, NeighborAttention
from regard.errors import RegardError
from regard.explain.explanation import Explanation
from regard.nn.recording import record_attention
from regard.processors.points import PointProcessor, split_scene
from regard.tasks.file_task import warn_once
from regard.tasks.point_task import pack_clouds
from regard.tasks.protocol import ModelProtocol
from regard.types import AttentionRecord, Batch, BodyOutput

MAX_STORED_QUERIES = 4096
"""Levels up to this size store the attention of all points, larger levels only of the query point."""

FAR_FRACTION = 0.1
"""A warning is printed if the nearest point is farther from the given coordinates than this fraction of the extent."""

PointQuery = int | tuple[float, ...]
"""Index of a point in the file, or coordinates, which select the nearest point."""

PAGE_NOTE = (
    "Attention over the k nearest neighbors, averaged over channels. The ring marks the query point. "
    "The color scale ends at the largest weight."
)


@dataclass(frozen=True)
class CloudExplanation(Explanation):
    """Explanation of one point cloud."""

    attention: CloudAttention | None = None

    @property
    def values(self) -> dict[str, Any]:
        """Values for JSON: attention weights of the query point in each layer, by the index of the key point in the file."""
        found: dict[str, Any] = {"title": self.title, "facts": self.facts}
        assert self.attention is not None
        origins = (
            self.attention.file_index
            if self.attention.file_index is not None
            else np.arange(len(self.attention.coordinates))
        )
        found["query_point"] = int(origins[self.attention.query_point])
        found["layers"] = []
        for layer in self.attention.layers:
            shares = self.attention.point_weights(layer)
            best = [int(n) for n in np.argsort(-shares, kind="stable") if shares[n] > 0]
            here = self.attention.levels[layer.level][self.attention.nearest_query(layer)]
            looked = [{"point": int(origins[n]), "weight": round(float(shares[n]), 6)} for n in best]
            found["layers"].append({"layer": layer.name, "query_point": int(origins[here]), "attention": looked})
        return found

    def save(self, path: str | Path, layer: int | None = None, head: int | None = None) -> Path:
        from regard.draw.point_cloud import draw_neighbors, write_neighbors_page

        path = Path(path)
        assert self.attention is not None
        if path.suffix.lower() == ".json":
            return super().save(path)
        if path.suffix.lower() in (".html", ".htm"):
            return write_neighbors_page(self.attention, path, self.title, PAGE_NOTE, self.facts)
        if head is not None:
            raise RegardError(
                "Attention between points is averaged over channels, so heads cannot be selected. Remove --head."
            )
        if layer is not None and not 1 <= layer <= len(self.attention.layers):
            raise RegardError(f"Layer must be between 1 and {len(self.attention.layers)}, got {layer}.")
        about = "; ".join(f"{name}: {value}" for name, value in self.facts.items())
        about += "; attention over the k nearest neighbors, averaged over channels"
        return draw_neighbors(self.attention, path, f"Attention of a point: {self.title}", about, layer)


def explain_cloud(
    model: ModelProtocol, source: Any, target: str | None = None, at: PointQuery | None = None
) -> CloudExplanation:
    """Explain the prediction for a point cloud. `at`: index or coordinates of the query point; None: nearest to the center."""
    if target is not None:
        raise RegardError(
            "Point-cloud explanations start from a point (--at INDEX or --at X,Y,Z), not from a class. "
            f"Remove '{target}'."
        )
    points: PointProcessor = model.require_point_processor()
    cloud: PointCloud = model.task.open_input(source, points)
    number = query_index(cloud, at)
    chosen = _read_indices(model, cloud, points, number)
    x, offsets = pack_clouds([points.normalize(points.rows(cloud, chosen))])
    asked = int(((cloud.coordinates[chosen] - cloud.coordinates[number]) ** 2).sum(1).argmin())
    with torch.no_grad(), record_attention(model.body) as seen:
        states: BodyOutput = model.body(Batch(x, offsets=offsets).to(model.device))
        logits = model.task.apply_head(model, states).float().softmax(-1)
    levels = level_indices(states, len(chosen))
    labels, chances = model.spec.labels, logits.reshape(-1, logits.shape[-1]).cpu().numpy()
    each = model.task.name == "segment"
    best = int((chances[asked] if each else chances[0]).argmax())
    sure = float((chances[asked] if each else chances[0])[best])
    name = Path(source).name if isinstance(source, str) else "point cloud"
    layers = layer_attention(seen.records, levels, _stored_queries(levels, cloud.coordinates[chosen], asked))
    where = ", ".join(f"{value:.4g}" for value in cloud.coordinates[number].astype(np.float64) + cloud.origin)
    if isinstance(at, tuple) and (far := _distance(cloud, number, at)) > FAR_FRACTION * float(
        np.ptp(cloud.coordinates, axis=0).max()
    ):
        warn_once(
            f"warning: {name}: no point at these coordinates; using the nearest point {number} at distance {far:.3g}"
        )
    instead = f" (nearest point used: {chosen[asked]})" if chosen[asked] != number else ""
    facts = {
        "query": f"point {number} at {where}{instead}",
        "prediction": f"{labels[best]}, {100 * sure:.1f} %",
        "points": f"{len(chosen):,} of {len(cloud):,} used" if len(chosen) < len(cloud) else f"{len(cloud):,}",
    }
    gazing = CloudAttention(
        cloud.coordinates[chosen], levels, layers, asked, chosen, chances.argmax(1) if each else None, labels if each else (),
        points.up, tuple(map(float, cloud.origin)),
    )  # fmt: skip
    return CloudExplanation(f"{name} → {labels[best]}", (), facts, attention=gazing)


def query_index(cloud: PointCloud, query: PointQuery | None) -> int:
    """Index of the query point."""
    if isinstance(query, int | np.integer):
        if not 0 <= query < len(cloud):
            raise RegardError(f"Point index must be between 0 and {len(cloud) - 1:,}, got {query}.")
        return int(query)
    if query is not None and len(query) != 3:
        raise RegardError(f"A point must be an index or coordinates (x, y, z), got {query}.")
    wanted = cloud.coordinates.mean(0) if query is None else np.asarray(query, dtype=np.float64) - cloud.origin
    return int(((cloud.coordinates - wanted) ** 2).sum(1).argmin())


def _distance(cloud: PointCloud, number: int, at: tuple[float, ...]) -> float:
    return float(np.linalg.norm(cloud.coordinates[number] + cloud.origin - np.asarray(at, dtype=np.float64)))


def _read_indices(model: ModelProtocol, cloud: PointCloud, points: PointProcessor, number: int) -> np.ndarray:
    """Indices (n,) of the input points. For segmentation, the largest block that contains the voxel of the query point."""
    if model.task.name != "segment":
        return points.prepare(cloud)[1]
    found = split_scene(cloud, points)
    cell = found.voxel_index[number]
    with_it = [chosen for chosen in found.block_indices if (chosen == cell).any()]
    return found.point_indices[max(with_it, key=len)]


def level_indices(states: BodyOutput, num_points: int) -> tuple[np.ndarray, ...]:
    """Indices of the input points of each level."""
    names = sorted(
        (name for name in states.aux_losses if re.fullmatch(r"level\d+", name)), key=lambda name: int(name[5:])
    )
    found = tuple(states.aux_losses[name].cpu().numpy().astype(np.int64) for name in names)
    return found or (np.arange(num_points),)


def _stored_queries(levels: tuple[np.ndarray, ...], places: np.ndarray, asked: int) -> list[np.ndarray | None]:
    """Queries to store for each level; None: all."""
    kept: list[np.ndarray | None] = []
    for level in levels:
        near = ((places[level] - places[asked]) ** 2).sum(1).argmin()
        kept.append(None if len(level) <= MAX_STORED_QUERIES else np.array([near]))
    return kept


def layer_attention(
    records: list[AttentionRecord], levels: tuple[np.ndarray, ...], stored_queries: list[np.ndarray | None]
) -> tuple[NeighborAttention, ...]:  # fmt: skip
    """Attention of each layer, averaged over channels, for the stored queries of the level."""
    found = []
    for look in records:
        level, brief = level_and_block(look.name, len(levels))
        weights, keys, chosen = look.weights[0].float().mean(0).cpu().numpy(), look.key_index, stored_queries[level]
        assert keys is not None
        columns = keys[0, 0].cpu().numpy().astype(np.int64)
        if chosen is not None:
            weights, columns = weights[chosen], columns[chosen]
        found.append(NeighborAttention(f"level {level + 1}, {brief}", brief, level, columns, weights, chosen))
    return tuple(found)


def level_and_block(name: str, levels: int) -> tuple[int, str]:
    """Level and title of an attention block: `down.2.blocks.0` is on level 2, `up.0.blocks.0` on the coarsest level."""
    way, stage, block = re.fullmatch(r"(down|up)\.(\d+)\.blocks\.(\d+)\b.*", name).groups()  # type: ignore[union-attr]
    if way == "down":
        return int(stage), f"block {int(block) + 1}"
    return levels - 1 - int(stage), "decoder block" if block == "0" else f"decoder block {int(block) + 1}"
