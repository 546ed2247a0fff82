"""Which neighbours a point of a cloud looked at: as one page on which the cloud turns and another point is chosen by a click,
and as still pictures, one for each layer."""

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
"""From little to the largest share: without what is too pale to be seen on white."""
MIN_COLOR: Final = 0.25
"""Where in these colours shares begin."""
BACKGROUND_GRAY: Final = 245
"""The grey that points are faded to where nobody looked at them."""
POINT_GRAY: Final = 130.0
QUERY_COLOR: Final = (0, 150, 255)
"""The colour of the point that is asked."""
CLICK_HINT: Final = "Click a point to show its attention. Coarser levels use the nearest available point."
QUERY_ONLY_HINT: Final = "This point cloud is large, so attention is stored only for the query point."


class NeighborAttention(NamedTuple):
    """What the points of one level looked at in one layer."""

    name: str
    short_name: str
    level: int
    keys: IntArray
    """(Q, K) numbers of points of the level; -1: none"""
    weights: FloatArray
    """(Q, K) shares of 1"""
    queries: IntArray | None = None
    """(Q,) the points of the level whose rows these are; None: all, in their order"""

    def row_of(self, point: int) -> int:
        """The row of a point of the level."""
        return point if self.queries is None else int(np.flatnonzero(self.queries == point)[0])


@dataclass(frozen=True)
class CloudAttention:
    """A cloud as it is read, its levels, and who is asked."""

    coordinates: FloatArray
    levels: tuple[IntArray, ...]
    """of each the points that it has"""
    layers: tuple[NeighborAttention, ...]
    query_point: int
    """the point that is asked"""
    file_index: IntArray | None = None
    """by which number each point is known in its file"""
    predictions: IntArray | None = None
    """(N,) the class of each point, where points have classes"""
    labels: tuple[str, ...] = ()
    up: str = "z"
    origin: tuple[float, ...] = (0.0, 0.0, 0.0)

    def nearest_query(self, layer: NeighborAttention) -> int:
        """The point of the layer's level that stands for the one that is asked: itself, or the nearest whose row is kept."""
        level = self.levels[layer.level]
        kept = np.arange(len(level)) if layer.queries is None else layer.queries
        off = ((self.coordinates[level[kept]] - self.coordinates[self.query_point]) ** 2).sum(1)
        return int(kept[off.argmin()])

    def point_weights(self, layer: NeighborAttention) -> npt.NDArray[np.float64]:
        """(N,) what the one that is asked looked at in a layer."""
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
    """Where the point lies that is asked, and what was around it once for each layer, or for one (counted from 1): what was
    looked at glows, the rest is faded."""
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
    """The colours of the points, where nobody looks at them."""
    if gazing.predictions is None:
        return np.full((len(gazing.coordinates), 3), POINT_GRAY)
    return np.array(class_colors(len(gazing.labels)), dtype=np.float64)[gazing.predictions]


def _render_overview(gazing: CloudAttention) -> ImageArray:
    colours, larger = BACKGROUND_GRAY + 0.6 * (_base_colors(gazing) - BACKGROUND_GRAY), np.ones(len(gazing.coordinates))
    colours[gazing.query_point], larger[gazing.query_point] = QUERY_COLOR, 5.0
    return render_points(gazing.coordinates, np.rint(colours).astype(np.uint8), gazing.up, size_factors=larger)


def _render_neighborhood(gazing: CloudAttention, layer: NeighborAttention, shares: FloatArray) -> ImageArray:
    """What is near: so far as was looked, and as much again."""
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
