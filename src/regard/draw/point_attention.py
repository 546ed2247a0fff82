"""Attention of a point to its neighbors: a page with a rotatable point cloud and selectable query point, and a figure with
one image per layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.draw.class_colors import HEAT_COLORS, ImageArray, apply_colormap, class_colors
from regard.draw.panels import ColorScale, draw_panels, percent
from regard.draw.point_cloud import (
    FloatArray,
    IntArray,
    pack_coordinates,
    render_points,
    to_base64,
    to_hex,
    write_viewer_page,
)

COLUMNS: Final = 3
WEIGHT_COLORS: Final = HEAT_COLORS[1:5]
"""From low to high weight, without colors too pale for a white background."""
MIN_COLOR: Final = 0.25
"""Position in the color scale of the smallest weight."""
BACKGROUND_GRAY: Final = 245
"""Gray toward which points without attention are faded."""
POINT_GRAY: Final = 130.0
QUERY_COLOR: Final = (0, 150, 255)
"""Color of the query point."""
CLICK_HINT: Final = "Click a point to show its attention. Coarser levels use the nearest available point."
QUERY_ONLY_HINT: Final = "This point cloud is large, so attention is stored only for the query point."


class NeighborAttention(NamedTuple):
    """Attention of the points of one level in one layer."""

    name: str
    short_name: str
    level: int
    keys: IntArray
    """(Q, K) point indices within the level; -1: no key"""
    weights: FloatArray
    """(Q, K), rows sum to 1"""
    queries: IntArray | None = None
    """(Q,) query points within the level; None: all points in order"""

    def row_of(self, point: int) -> int:
        """Row index of a point of the level."""
        return point if self.queries is None else int(np.flatnonzero(self.queries == point)[0])


@dataclass(frozen=True)
class CloudAttention:
    """Input points with levels, attention and query point."""

    coordinates: FloatArray
    levels: tuple[IntArray, ...]
    """indices of the input points of each level"""
    layers: tuple[NeighborAttention, ...]
    query_point: int
    """index of the query point"""
    file_index: IntArray | None = None
    """index of each point in the file"""
    predictions: IntArray | None = None
    """(N,) class of each point, for segmentation"""
    labels: tuple[str, ...] = ()
    up: str = "z"
    origin: tuple[float, ...] = (0.0, 0.0, 0.0)

    def nearest_query(self, layer: NeighborAttention) -> int:
        """Index within the level of the query point, or of the nearest point with stored attention."""
        level = self.levels[layer.level]
        kept = np.arange(len(level)) if layer.queries is None else layer.queries
        off = ((self.coordinates[level[kept]] - self.coordinates[self.query_point]) ** 2).sum(1)
        return int(kept[off.argmin()])

    def point_weights(self, layer: NeighborAttention) -> npt.NDArray[np.float64]:
        """Attention (N,) of the query point in a layer."""
        found = np.zeros(len(self.coordinates))
        row = layer.row_of(self.nearest_query(layer))
        there = layer.keys[row] >= 0
        np.add.at(found, self.levels[layer.level][layer.keys[row][there]], layer.weights[row][there])
        return found


def write_neighbors_page(
    attention: CloudAttention, path: Path, title: str, note: str = "", facts: Mapping[str, str] | None = None
) -> Path:
    choosing = all(layer.queries is None for layer in attention.layers)
    data: dict[str, object] = {
        **pack_coordinates(attention.coordinates, attention.up, attention.origin),
        "labels": attention.labels,
        "palette": [to_hex(colour) for colour in class_colors(len(attention.labels))] if attention.labels else [],
        "said": None if attention.predictions is None else to_base64(attention.predictions.astype("<u2")),
        "origins": None if attention.file_index is None else to_base64(attention.file_index.astype("<u4")),
        "levels": [to_base64(level.astype("<u4")) for level in attention.levels],
        "layers": [_pack_layer(layer) for layer in attention.layers],
        "layer": 0,
        "chosen": attention.query_point,
        "choosing": any(layer.queries is None for layer in attention.layers),
        "hint": CLICK_HINT if choosing else QUERY_ONLY_HINT,
        "glow": list(WEIGHT_COLORS),
        "faint": MIN_COLOR,
    }
    return write_viewer_page(path, title, note, facts or {}, data, ("neighbours.js",))


def _pack_layer(layer: NeighborAttention) -> dict[str, Any]:
    most = layer.weights.max(1, initial=0.0)
    shares = np.rint(255 * layer.weights / np.where(most > 0, most, 1)[:, None]).clip(0, 255)
    return {
        "name": layer.name,
        "brief": layer.short_name,
        "level": layer.level,
        "columns": layer.keys.shape[1],
        "keys": to_base64(np.where(layer.keys < 0, 2**32 - 1, layer.keys).astype("<u4")),
        "shares": to_base64(shares.astype(np.uint8)),
        "most": to_base64(most.astype("<f4")),
        "queries": None if layer.queries is None else to_base64(layer.queries.astype("<u4")),
    }


def draw_neighbors(
    attention: CloudAttention, path: Path, title: str = "", subtitle: str = "", layer: int | None = None
) -> Path:
    """Draw the position of the query point, and the attention around the query point in each layer, or in one layer (counted
    from 1). Points without attention are faded."""
    chosen = attention.layers if layer is None else (attention.layers[layer - 1],)
    panels, names = [_render_overview(attention)], ["query point"]
    for one in chosen:
        shares = attention.point_weights(one)
        most = float(shares.max())
        panels.append(_render_neighborhood(attention, one, shares / (most or 1.0)))
        names.append(f"{one.name} · max {percent(most)}")
    rows = [panels[at : at + COLUMNS] for at in range(0, len(panels), COLUMNS)]
    heads = [names[at : at + COLUMNS] for at in range(0, len(names), COLUMNS)]
    meaning = "maximum, given above each image; blue: query point"
    scale = ColorScale(_weight_colors(np.linspace(0, 1, 256)[None]), ("0", "", meaning))
    return draw_panels(rows, heads, path, title, subtitle, scale)


def _weight_colors(shares: FloatArray) -> ImageArray:
    return apply_colormap(MIN_COLOR + (1 - MIN_COLOR) * shares, WEIGHT_COLORS)


def _base_colors(gazing: CloudAttention) -> npt.NDArray[np.float64]:
    """Colors (N, 3) of points without attention."""
    if gazing.predictions is None:
        return np.full((len(gazing.coordinates), 3), POINT_GRAY)
    return np.array(class_colors(len(gazing.labels)), dtype=np.float64)[gazing.predictions]


def _render_overview(gazing: CloudAttention) -> ImageArray:
    colours, larger = BACKGROUND_GRAY + 0.6 * (_base_colors(gazing) - BACKGROUND_GRAY), np.ones(len(gazing.coordinates))
    colours[gazing.query_point], larger[gazing.query_point] = QUERY_COLOR, 5.0
    return render_points(gazing.coordinates, np.rint(colours).astype(np.uint8), gazing.up, size_factors=larger)


def _render_neighborhood(gazing: CloudAttention, layer: NeighborAttention, shares: FloatArray) -> ImageArray:
    """Render the surroundings of the query, up to 2.2 times the distance of the farthest key."""
    seen, larger = shares > 0, np.ones(len(shares))
    here = gazing.levels[layer.level][gazing.nearest_query(layer)]
    part = np.full((len(shares), 1), 0.25)
    part[gazing.levels[layer.level]] = 0.7
    colours = BACKGROUND_GRAY + part * np.full((len(shares), 3), POINT_GRAY - BACKGROUND_GRAY)
    colours[seen] = _weight_colors(shares[seen])
    larger[seen] = 1.3 + shares[seen]
    colours[here], larger[here] = QUERY_COLOR, 1.8
    off = np.linalg.norm(gazing.coordinates - gazing.coordinates[here], axis=1)
    near = off <= 2.2 * (float(off[seen].max(initial=0.0)) or 1.0)
    return render_points(
        gazing.coordinates[near], np.rint(colours[near]).astype(np.uint8), gazing.up, size_factors=larger[near]
    )
