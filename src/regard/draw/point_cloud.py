"""Point clouds in class colors, and attention of a point to its neighbors: rotatable pages and figures."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.draw.colors import HEAT_COLORS, UNKNOWN_COLOR, ImageArray, apply_colormap, class_colors
from regard.draw.figure import check_suffix
from regard.draw.page import read_asset, round_digits, write_page
from regard.draw.panels import ClassLegend, ColorScale, draw_panels, percent
from regard.types import IGNORE

FloatArray = npt.NDArray[np.floating]
IntArray = npt.NDArray[np.integer]

MAX_PAGE_POINTS: Final = 200_000
"""Maximum number of points on a page; larger point clouds are subsampled randomly."""
MAX_STILL_POINTS: Final = 60_000
"""Maximum number of points in a figure."""
STILL_SIZE: Final = 560
"""Width and height of a rendered image in pixels."""
QUANTIZATION_STEPS: Final = 2**16 - 1
HEIGHT_COLORS: Final = ("#414487", "#2a788e", "#22a884", "#7ad151", "#fde725")
"""From low to high: matplotlib's viridis without the darkest colors."""
CONFIDENCE_COLORS: Final = ("#c8501e", "#e3a85a", "#9db4c4", "#2b6fae")
ERROR_COLORS: Final = ("#a9b4c2", "#d3302b")
"""Correct, wrong."""
NO_CLASS: Final = 2**16 - 1
"""Class index of points without a label in page data."""
AXIS_ORDER: Final = {"x": (1, 2, 0), "y": (2, 0, 1), "z": (0, 1, 2)}
"""Axes in cyclic order with the up axis last; cyclic, because other orders would reflect the point cloud."""


@dataclass(frozen=True)
class PredictedCloud:
    """A point cloud with predicted classes."""

    coordinates: FloatArray
    """(N, 3)"""
    predictions: IntArray
    """(N,) class indices"""
    labels: tuple[str, ...]
    confidence: FloatArray | None = None
    """(N,) probability of the predicted class"""
    targets: IntArray | None = None
    """(N,) labels, `IGNORE` if unknown"""
    colors: npt.NDArray[np.uint8] | None = None
    """(N, 3)"""
    name: str = ""
    up: str = "z"
    origin: tuple[float, ...] = (0.0, 0.0, 0.0)
    """offset that was subtracted from the coordinates and is added for display"""

    def subsample(self, max_points: int) -> PredictedCloud:
        """At most `max_points` points, randomly chosen with a fixed seed."""
        if len(self.coordinates) <= max_points:
            return self
        at = np.sort(np.random.default_rng(0).permutation(len(self.coordinates))[:max_points])
        beside: list[Any] = [self.confidence, self.targets, self.colors]
        sure, right, colours = (None if one is None else one[at] for one in beside)
        return replace(
            self,
            coordinates=self.coordinates[at],
            predictions=self.predictions[at],
            confidence=sure,
            targets=right,
            colors=colours,
        )

    @property
    def predicted_fractions(self) -> npt.NDArray[np.float64]:
        """Fraction of points predicted as each class."""
        return np.bincount(self.predictions, minlength=len(self.labels)) / max(len(self.predictions), 1)

    @property
    def target_fractions(self) -> npt.NDArray[np.float64] | None:
        """Fraction of each class among the labeled points."""
        if self.targets is None:
            return None
        known = self.targets[self.targets >= 0]
        return np.bincount(known, minlength=len(self.labels)) / max(len(known), 1)


# -- pages


def pack_coordinates(
    coordinates: FloatArray, up: str = "z", origin: Sequence[float] = (0.0, 0.0, 0.0)
) -> dict[str, object]:
    """Page data of the coordinates: 16-bit integers from the minimum of each axis, in steps of the longest side / 65,535."""
    if not len(coordinates):
        coordinates = np.zeros((1, 3))
    low, high = coordinates.min(0).astype(np.float64), coordinates.max(0).astype(np.float64)
    longest = float((high - low).max()) or 1.0
    whole = np.rint((coordinates - low) / longest * QUANTIZATION_STEPS).astype("<u2")
    sides = [round_digits(float(side)) for side in (high - low) / longest]
    return {
        "places": to_base64(whole),
        "low": [float(value) for value in low + np.asarray(origin, dtype=np.float64)],
        "step": longest / QUANTIZATION_STEPS,
        "sides": sides,
        "spacing": round_digits(2 * point_spacing(coordinates, longest) / longest / (math.hypot(*sides) or 1.0)),
        "up": up,
        "tilt": default_tilt(high - low, up),
    }


def default_tilt(size: FloatArray, up: str) -> float:
    """Elevation angle of the camera in radians: steeper for flat scenes such as rooms than for objects."""
    across, along, high = (float(size[axis]) for axis in AXIS_ORDER[up])
    return 0.85 if high < 0.7 * min(across, along) else 0.5


def point_spacing(coordinates: FloatArray, longest: float) -> float:
    """Approximate distance between neighboring points on a surface, from the number of occupied cells of a grid coarse enough
    for at least three points per cell on average."""
    for cells in (64, 32, 16, 8, 4, 2):
        at = np.floor((coordinates - coordinates.min(0)) / longest * (cells - 1e-6)).astype(np.int64)
        covered = len(np.unique(at @ np.array([cells**2, cells, 1])))
        if len(coordinates) >= 3 * covered:
            break
    return longest * max(math.sqrt(covered / len(coordinates)) / cells, 1e-4)


def to_base64(values: npt.NDArray[Any]) -> str:
    """Bytes of the array in base64."""
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def to_hex(color: Sequence[int]) -> str:
    return "#" + "".join(f"{value:02x}" for value in color)


def write_cloud_page(
    cloud: PredictedCloud, path: Path, title: str, note: str = "", facts: Mapping[str, str] | None = None,
    class_iou: Sequence[float | None] = (),
) -> Path:  # fmt: skip
    """Write a page with a rotatable point cloud in class colors. `class_iou`: IoU of each class, if labels are known."""
    total, shares, truths, cloud = (
        len(cloud.coordinates),
        cloud.predicted_fractions,
        cloud.target_fractions,
        cloud.subsample(MAX_PAGE_POINTS),
    )
    there = shares if truths is None else shares + truths
    order = [int(n) for n in np.argsort(-shares, kind="stable") if there[n] > 0]  # also classes never predicted
    known = cloud.targets is not None
    wrong = (
        int(((cloud.targets != cloud.predictions) & (cloud.targets != IGNORE)).sum())
        if cloud.targets is not None
        else 0
    )
    ways = ["class", *["truth", "wrong"] * known, *["colours"] * (cloud.colors is not None), "height"]
    said: dict[str, object] = {
        **pack_coordinates(cloud.coordinates, cloud.up, cloud.origin),
        "labels": cloud.labels,
        "palette": [to_hex(colour) for colour in class_colors(len(cloud.labels))],
        "said": to_base64(cloud.predictions.astype("<u2")),
        "right": None
        if cloud.targets is None
        else to_base64(np.where(cloud.targets < 0, NO_CLASS, cloud.targets).astype("<u2")),
        "sure": None
        if cloud.confidence is None
        else to_base64(np.rint(255 * cloud.confidence).clip(0, 255).astype(np.uint8)),
        "colours": None if cloud.colors is None else to_base64(cloud.colors),
        "ways": [*ways, *["certainty"] * (cloud.confidence is not None)],
        "shares": [[n, round_digits(float(shares[n]))] for n in order],
        "truths": None if truths is None else [round_digits(float(share)) for share in truths],
        "ramps": {"height": HEIGHT_COLORS, "certainty": CONFIDENCE_COLORS},
        "blank": to_hex(UNKNOWN_COLOR),
        "faults": ERROR_COLORS,
        "mistakes": f"{pluralize(wrong, 'error')} in {pluralize(len(cloud.coordinates), 'point')} shown",
        "overlap": [None if value is None else round_digits(value) for value in class_iou] or None,
    }
    told = {"points": format_count(total, len(cloud.coordinates)), **(facts or {})}
    return write_viewer_page(path, title, note, told, said, ("classes.js",))


def pluralize(count: int, noun: str) -> str:
    """Number and noun: "1 point", "2,048 points"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_count(total: int, shown: int) -> str:
    return f"{total:,}" if total == shown else f"{total:,} ({shown:,} shown)"


def write_viewer_page(
    path: Path, title: str, note: str, facts: Mapping[str, str], data: Mapping[str, object], scripts: Sequence[str]
) -> Path:
    """Write a page with a rotatable point cloud. `scripts` define colors and controls."""
    check_suffix(path, (".html", ".htm"))
    parts = {
        "note": html.escape(note),
        "style": read_asset("page.css") + read_asset("cloud.css"),
        "body": read_asset("cloud.html"),
        "script": read_asset("cloud.js") + "".join(map(read_asset, scripts)),
    }
    return write_page(path, title, facts, data, parts)


# -- figures


def render_points(
    coordinates: FloatArray, colors: ImageArray, up: str = "z", tilt: float | None = None, size: int = STILL_SIZE,
    azimuth: float = -0.9, size_factors: FloatArray | None = None,
) -> ImageArray:  # fmt: skip
    """Image (size, size, 3) of points (N, 3) with colors (N, 3) as discs; nearer points cover farther points and darken the
    pixels around them. `size_factors` (N,): relative size of each point."""
    at = coordinates[:, AXIS_ORDER[up]].astype(np.float64)
    low, high = at.min(0), at.max(0)
    diagonal = float(np.linalg.norm(high - low)) or 1.0
    at = 2 * (at - (low + high) / 2) / diagonal
    tilt = default_tilt(coordinates.max(0) - coordinates.min(0), up) if tilt is None else tilt
    flat, far = math.cos(tilt), 3.3
    ahead = np.array([-flat * math.cos(azimuth), -flat * math.sin(azimuth), -math.sin(tilt)])
    across = np.array([-math.sin(azimuth), math.cos(azimuth), 0.0])
    deep = at @ ahead + far
    seen = np.stack([at @ across, at @ np.cross(ahead, across)], 1) / deep[:, None]
    first, last = seen.min(0), seen.max(0)
    scale = 0.92 * size / max(float((last - first).max()), 1e-3)  # as large as fits
    x, y = (size / 2 + scale * (seen - (first + last) / 2)).T
    apart = 2 * point_spacing(coordinates, float((high - low).max()) or 1.0) / diagonal
    radius = np.clip(0.75 * apart * scale / deep * (1.0 if size_factors is None else size_factors), 0.7, size / 40)
    before = (
        deep if size_factors is None else deep - 0.1 * (size_factors > 1)
    )  # larger points are not covered by neighbors
    return _shade_depth(*_splat_points(x, y, before, radius, colors, size), size)


def _splat_points(
    x: FloatArray, y: FloatArray, deep: FloatArray, radius: FloatArray, colours: ImageArray, side: int
) -> tuple[ImageArray, FloatArray]:  # fmt: skip
    """Color and depth of each pixel; points are drawn from the farthest to the nearest."""
    reach = math.ceil(float(radius.max(initial=0.0)))
    rows, columns, owners = [], [], []
    for down in range(-reach, reach + 1):
        for right in range(-reach, reach + 1):
            covers = np.flatnonzero(radius**2 >= down**2 + right**2)
            rows.append(np.floor(y[covers]).astype(np.int64) + down)
            columns.append(np.floor(x[covers]).astype(np.int64) + right)
            owners.append(covers)
    row, column, owner = (np.concatenate(parts) for parts in (rows, columns, owners))
    inside = (row >= 0) & (row < side) & (column >= 0) & (column < side)
    row, column, owner = row[inside], column[inside], owner[inside]
    order = np.argsort(-deep[owner], kind="stable")  # the last point drawn on a pixel is visible
    seen, far = np.full((side, side, 3), 255, np.uint8), np.full((side, side), np.inf)
    seen[row[order], column[order]] = colours[owner[order]]
    far[row[order], column[order]] = deep[owner[order]]
    return seen, far


def _shade_depth(seen: ImageArray, far: FloatArray, side: int) -> ImageArray:
    there = np.isfinite(far)
    logs = np.where(there, np.log2(np.where(there, far, 1.0)), np.inf)
    wide = np.pad(logs, 1, constant_values=np.inf)
    dark = np.zeros_like(far)
    for down in (0, 1, 2):
        for right in (0, 1, 2):
            beside = wide[down : down + side, right : right + side]
            with np.errstate(invalid="ignore"):
                dark += np.where(there & np.isfinite(beside), np.maximum(logs - beside, 0), 0)
    light = np.where(there, 0.35 + 0.65 * np.exp(-9 * dark), 1.0)
    return np.rint(seen * light[..., None]).astype(np.uint8)


def draw_clouds(clouds: Sequence[PredictedCloud], path: Path, title: str = "", subtitle: str = "") -> Path:
    """Draw each point cloud from the side and from above in predicted classes, and labels or else original colors if
    known, with a legend of the classes that occur."""
    rows, names = [], []
    for number, whole in enumerate(clouds):
        cloud = whole.subsample(MAX_STILL_POINTS)
        palette = np.array([*class_colors(len(cloud.labels)), UNKNOWN_COLOR], dtype=np.uint8)
        panels = {
            "prediction": render_points(cloud.coordinates, palette[cloud.predictions], cloud.up),
            "top view": render_points(cloud.coordinates, palette[cloud.predictions], cloud.up, tilt=1.35),
        }
        if cloud.targets is not None:
            panels["label"] = render_points(
                cloud.coordinates, palette[np.where(cloud.targets < 0, -1, cloud.targets)], cloud.up
            )
        elif cloud.colors is not None:
            panels["original color"] = render_points(cloud.coordinates, cloud.colors, cloud.up)
        rows.append(list(panels.values()))
        first = f"{cloud.name}: prediction" if cloud.name else "prediction"
        names.append([first, *([*panels][1:] if not number else [""] * (len(panels) - 1))])
    truths = [cloud.target_fractions for cloud in clouds if cloud.target_fractions is not None]
    shares = np.mean([*(cloud.predicted_fractions for cloud in clouds), *truths], axis=0)
    of = "points, prediction and label together" if truths else "points"
    return draw_panels(rows, names, path, title, subtitle, ClassLegend(clouds[0].labels, shares, of))


NEIGHBOR_COLUMNS: Final = 3
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
    rows = [panels[at : at + NEIGHBOR_COLUMNS] for at in range(0, len(panels), NEIGHBOR_COLUMNS)]
    heads = [names[at : at + NEIGHBOR_COLUMNS] for at in range(0, len(names), NEIGHBOR_COLUMNS)]
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
