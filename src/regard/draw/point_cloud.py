"""Point clouds in class colors, and attention of a point to its neighbors: rotatable pages and figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.draw.colors import HEAT_COLORS, UNKNOWN_COLOR, ImageArray, apply_colormap, class_colors
from regard.draw.figure import ClassLegend, ColorScale, percent
from regard.draw.page import relative_bytes, round_digits, to_base64, write_page
from regard.draw.panels import draw_panels, in_rows
from regard.types import IGNORE

FloatArray = npt.NDArray[np.floating]
IntArray = npt.NDArray[np.integer]

MAX_PAGE_POINTS: Final = 200_000  # Maximum number of points on a page; larger point clouds are subsampled randomly.
MAX_STILL_POINTS: Final = 60_000  # Maximum number of points in a figure.
STILL_SIZE: Final = 560  # Width and height of a rendered image in pixels.
QUANTIZATION_STEPS: Final = 2**16 - 1
HEIGHT_COLORS: Final = ("#414487", "#2a788e", "#22a884", "#7ad151", "#fde725")  # viridis without dark colors
CONFIDENCE_COLORS: Final = ("#c8501e", "#e3a85a", "#9db4c4", "#2b6fae")
ERROR_COLORS: Final = ("#a9b4c2", "#d3302b")  # correct, wrong
NO_CLASS: Final = 2**16 - 1  # Class index of points without a label in page data.
VIEWER: Final = ("page.css", "cloud.css"), "cloud.html"  # styles and body of a page with a rotatable point cloud
AXIS_ORDER: Final = {"x": (1, 2, 0), "y": (2, 0, 1), "z": (0, 1, 2)}  # cyclic, the up axis last; other orders reflect


@dataclass(frozen=True)
class PredictedCloud:
    """A point cloud with predicted classes."""

    coordinates: FloatArray  # (N, 3)
    predictions: IntArray  # (N,) class indices
    labels: tuple[str, ...]
    confidence: FloatArray | None = None  # (N,) probability of the predicted class
    targets: IntArray | None = None  # (N,) labels, `IGNORE` if unknown
    colors: npt.NDArray[np.uint8] | None = None  # (N, 3)
    name: str = ""
    up: str = "z"
    origin: tuple[float, ...] = (0.0, 0.0, 0.0)  # subtracted from the coordinates before, and added for display

    def subsample(self, max_points: int) -> PredictedCloud:
        """At most `max_points` points, randomly chosen with a fixed seed."""
        if len(self.coordinates) <= max_points:
            return self
        at = np.sort(np.random.default_rng(0).permutation(len(self.coordinates))[:max_points])
        fields = ("coordinates", "predictions", "confidence", "targets", "colors")
        values: dict[str, Any] = {name: None if (value := vars(self)[name]) is None else value[at] for name in fields}
        return replace(self, **values)

    def fractions(self) -> list[npt.NDArray[np.float64]]:
        """Fraction of points predicted as each class, and of each class among the labeled points, if any are known."""
        known = [self.predictions, *([] if self.targets is None else [self.targets[self.targets >= 0]])]
        return [np.bincount(classes, minlength=len(self.labels)) / max(len(classes), 1) for classes in known]


# -- pages


def cloud_data(cloud: PredictedCloud | CloudAttention) -> dict[str, object]:
    """Page data of points and classes. Coordinates are 16-bit integers from the minimum of each axis, in steps of the longest
    side / 65,535."""
    coordinates, up = cloud.coordinates, cloud.up
    low, high = coordinates.min(0).astype(np.float64), coordinates.max(0).astype(np.float64)
    longest = float((high - low).max()) or 1.0
    whole = np.rint((coordinates - low) / longest * QUANTIZATION_STEPS).astype("<u2")
    sides = [round_digits(float(side)) for side in (high - low) / longest]
    return {
        "places": to_base64(whole),
        "low": [float(value) for value in low + np.asarray(cloud.origin, dtype=np.float64)],
        "step": longest / QUANTIZATION_STEPS,
        "sides": sides,
        "spacing": round_digits(2 * point_spacing(coordinates, longest) / longest / (math.hypot(*sides) or 1.0)),
        "up": up,
        "tilt": default_tilt(high - low, up),
        "labels": cloud.labels,
        "palette": [to_hex(color) for color in class_colors(len(cloud.labels))],
        "said": packed(cloud.predictions, "<u2"),
    }


def default_tilt(size: FloatArray, up: str) -> float:
    """Elevation angle of the camera in radians: steeper for flat scenes such as rooms than for objects."""
    across, along, high = (float(size[axis]) for axis in AXIS_ORDER[up])
    return 0.85 if high < 0.7 * min(across, along) else 0.5


def point_spacing(coordinates: FloatArray, longest: float) -> float:
    """Approximate distance between neighboring points on a surface, from the number of occupied cells of a grid."""
    for cells in (64, 32, 16, 8, 4, 2):
        at = np.floor((coordinates - coordinates.min(0)) / longest * (cells - 1e-6)).astype(np.int64)
        covered = len(np.unique(at @ np.array([cells**2, cells, 1])))
        if len(coordinates) >= 3 * covered:
            break
    return longest * max(math.sqrt(covered / len(coordinates)) / cells, 1e-4)


def packed(values: npt.NDArray[Any] | None, kind: str) -> str | None:
    """Numbers of the type `kind` in base64; None without values."""
    return None if values is None else to_base64(values.astype(kind))


def to_hex(color: Sequence[int]) -> str:
    return "#" + "".join(f"{value:02x}" for value in color)


def write_cloud_page(
    cloud: PredictedCloud,
    path: Path,
    title: str,
    note: str = "",
    facts: Mapping[str, str] | None = None,
    class_iou: Sequence[float | None] = (),
) -> Path:
    """Write a page with a rotatable point cloud in class colors. `class_iou`: IoU of each class, if labels are known."""
    total, (predicted, *true) = len(cloud.coordinates), cloud.fractions()
    cloud = cloud.subsample(MAX_PAGE_POINTS)
    present = sum(true, predicted)
    order = [int(n) for n in np.argsort(-predicted, kind="stable") if present[n] > 0]  # also classes never predicted
    targets, wrong, shown = cloud.targets, 0, len(cloud.coordinates)
    if targets is not None:
        wrong = int(((targets != cloud.predictions) & (targets != IGNORE)).sum())
    ways = ["class", *["truth", "wrong"] * (targets is not None), *["colours"] * (cloud.colors is not None), "height"]
    confidence = None if cloud.confidence is None else np.rint(255 * cloud.confidence).clip(0, 255)
    data: dict[str, object] = {
        **cloud_data(cloud),
        "right": packed(None if targets is None else np.where(targets < 0, NO_CLASS, targets), "<u2"),
        "sure": packed(confidence, "u1"),
        "colours": packed(cloud.colors, "u1"),
        "ways": [*ways, *["certainty"] * (confidence is not None)],
        "shares": [[n, round_digits(float(predicted[n]))] for n in order],
        "truths": [round_digits(float(fraction)) for fraction in true[0]] if true else None,
        "ramps": {"height": HEIGHT_COLORS, "certainty": CONFIDENCE_COLORS},
        "blank": to_hex(UNKNOWN_COLOR),
        "faults": ERROR_COLORS,
        "mistakes": f"{wrong:,} error{'s' * (wrong != 1)} in {shown:,} point{'s' * (shown != 1)} shown",
        "overlap": [None if value is None else round_digits(value) for value in class_iou] or None,
    }
    points = f"{total:,}" + (f" ({shown:,} shown)" if shown < total else "")
    return write_page(path, title, note, {"points": points, **(facts or {})}, data, *VIEWER, ("cloud.js", "classes.js"))


# -- figures


def render_points(
    coordinates: FloatArray,
    colors: ImageArray,
    up: str = "z",
    tilt: float | None = None,
    size: int = STILL_SIZE,
    size_factors: FloatArray | None = None,
) -> ImageArray:
    """Image (size, size, 3) of points (N, 3) with colors (N, 3) as discs; nearer points cover farther points and darken the
    pixels around them. `size_factors` (N,): relative size of each point."""
    at = coordinates[:, AXIS_ORDER[up]].astype(np.float64)
    low, high = at.min(0), at.max(0)
    diagonal = float(np.linalg.norm(high - low)) or 1.0
    at = 2 * (at - (low + high) / 2) / diagonal
    tilt = default_tilt(coordinates.max(0) - coordinates.min(0), up) if tilt is None else tilt
    flat, azimuth, camera_distance = math.cos(tilt), -0.9, 3.3
    ahead = np.array([-flat * math.cos(azimuth), -flat * math.sin(azimuth), -math.sin(tilt)])
    across = np.array([-math.sin(azimuth), math.cos(azimuth), 0.0])
    depth = at @ ahead + camera_distance
    projected = np.stack([at @ across, at @ np.cross(ahead, across)], 1) / depth[:, None]
    first, last = projected.min(0), projected.max(0)
    scale = 0.92 * size / max(float((last - first).max()), 1e-3)  # as large as fits
    x, y = (size / 2 + scale * (projected - (first + last) / 2)).T
    apart = 2 * point_spacing(coordinates, float((high - low).max()) or 1.0) / diagonal
    radius = np.clip(0.75 * apart * scale / depth * (1.0 if size_factors is None else size_factors), 0.7, size / 40)
    if size_factors is not None:
        depth = depth - 0.1 * (size_factors > 1)  # larger points are not covered by neighbors
    reach = math.ceil(float(radius.max(initial=0.0)))
    pixels = []  # row, column and point of each covered pixel
    for down in range(-reach, reach + 1):
        for right in range(-reach, reach + 1):
            covers = np.flatnonzero(radius**2 >= down**2 + right**2)
            rows, columns = np.floor(y[covers]).astype(np.int64) + down, np.floor(x[covers]).astype(np.int64) + right
            pixels.append(np.stack([rows, columns, covers]))
    row, column, owner = np.concatenate(pixels, axis=1)
    inside = np.flatnonzero((row >= 0) & (row < size) & (column >= 0) & (column < size))
    order = inside[np.argsort(-depth[owner[inside]], kind="stable")]  # the last point drawn on a pixel is visible
    image, distance = np.full((size, size, 3), 255, np.uint8), np.full((size, size), np.inf)
    image[row[order], column[order]] = colors[owner[order]]
    distance[row[order], column[order]] = depth[owner[order]]
    return _shade_depth(image, distance)


def _shade_depth(image: ImageArray, depth: FloatArray) -> ImageArray:
    """The image with pixels darkened by nearer neighbors."""
    covered = np.isfinite(depth)
    logs = np.where(covered, np.log2(np.where(covered, depth, 1.0)), np.inf)
    padded = np.pad(logs, 1, constant_values=np.inf)
    dark = np.zeros_like(depth)
    for neighbor in np.lib.stride_tricks.sliding_window_view(padded, depth.shape).reshape(9, *depth.shape):
        with np.errstate(invalid="ignore"):
            dark += np.where(covered & np.isfinite(neighbor), np.maximum(logs - neighbor, 0), 0)
    light = np.where(covered, 0.35 + 0.65 * np.exp(-9 * dark), 1.0)
    return np.rint(image * light[..., None]).astype(np.uint8)


def draw_clouds(clouds: Sequence[PredictedCloud], path: Path) -> Path:
    """Draw each point cloud from the side and from above in predicted classes, and labels or else original colors."""
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
    fractions = [one for cloud in clouds for one in cloud.fractions()]
    shares = np.mean(fractions, axis=0)
    of = "points, prediction and label together" if len(fractions) > len(clouds) else "points"
    return draw_panels(rows, names, path, legend=ClassLegend(clouds[0].labels, shares, of))


WEIGHT_COLORS: Final = HEAT_COLORS[1:5]  # From low to high weight, without colors too pale for a white background.
MIN_COLOR: Final = 0.25  # Position in the color scale of the smallest weight.
BACKGROUND_GRAY: Final = 245  # Gray toward which points without attention are faded.
POINT_GRAY: Final = 130.0
QUERY_COLOR: Final = (0, 150, 255)  # Color of the query point.
CLICK_HINT: Final = "Click a point to show its attention. Coarser levels use the nearest available point."
QUERY_ONLY_HINT: Final = "This point cloud is large, so attention is stored only for the query point."


class NeighborAttention(NamedTuple):
    """Attention of the points of one level in one layer."""

    name: str
    short_name: str
    level: int
    keys: IntArray  # (Q, K) point indices within the level; -1: no key
    weights: FloatArray  # (Q, K), rows sum to 1
    queries: IntArray | None = None  # (Q,) query points within the level; None: all points in order


@dataclass(frozen=True)
class CloudAttention:
    """Input points with levels, attention and query point."""

    coordinates: FloatArray
    levels: tuple[IntArray, ...]  # indices of the input points of each level
    layers: tuple[NeighborAttention, ...]
    query_point: int  # index of the query point
    file_index: IntArray | None = None  # index of each point in the file
    predictions: IntArray | None = None  # (N,) class of each point, for segmentation
    labels: tuple[str, ...] = ()
    up: str = "z"
    origin: tuple[float, ...] = (0.0, 0.0, 0.0)
    method: str = "attention"  # name of the weights

    def nearest_query(self, layer: NeighborAttention) -> int:
        """Index within the level of the query point, or of the nearest point with stored attention."""
        level = self.levels[layer.level]
        kept = np.arange(len(level)) if layer.queries is None else layer.queries
        off = ((self.coordinates[level[kept]] - self.coordinates[self.query_point]) ** 2).sum(1)
        return int(kept[off.argmin()])

    def point_weights(self, layer: NeighborAttention) -> npt.NDArray[np.float64]:
        """Attention (N,) of the query point in a layer."""
        found = np.zeros(len(self.coordinates))
        row = self.nearest_query(layer)
        row = row if layer.queries is None else int(np.flatnonzero(layer.queries == row)[0])
        there = layer.keys[row] >= 0
        np.add.at(found, self.levels[layer.level][layer.keys[row][there]], layer.weights[row][there])
        return found


def write_neighbors_page(
    attention: CloudAttention, path: Path, title: str, note: str = "", facts: Mapping[str, str] | None = None
) -> Path:
    """Write a page with a rotatable point cloud, and the attention of the query point, or of any point that is clicked."""
    layers = []
    for layer in attention.layers:
        most, shares = relative_bytes(layer.weights, 1)
        layers.append(
            {
                "name": layer.name,
                "brief": layer.short_name,
                "level": layer.level,
                "columns": layer.keys.shape[1],
                "keys": packed(np.where(layer.keys < 0, 2**32 - 1, layer.keys), "<u4"),
                "shares": to_base64(shares),
                "most": packed(most, "<f4"),
                "queries": packed(layer.queries, "<u4"),
            }
        )
    is_complete = [layer.queries is None for layer in attention.layers]
    data: dict[str, object] = {
        **cloud_data(attention),
        "origins": packed(attention.file_index, "<u4"),
        "levels": [packed(level, "<u4") for level in attention.levels],
        "layers": layers,
        "layer": 0,
        "chosen": attention.query_point,
        "method": attention.method,
        "choosing": any(is_complete),
        "hint": CLICK_HINT if all(is_complete) else QUERY_ONLY_HINT,
        "glow": list(WEIGHT_COLORS),
        "faint": MIN_COLOR,
    }
    return write_page(path, title, note, facts or {}, data, *VIEWER, ("cloud.js", "neighbours.js"))


def draw_neighbors(
    attention: CloudAttention, path: Path, title: str = "", subtitle: str = "", layer: int | None = None
) -> Path:
    """Draw all points, and the attention around the query point in each layer, or in one layer (counted from 1)."""
    chosen = attention.layers if layer is None else (attention.layers[layer - 1],)
    base = np.full((len(attention.coordinates), 3), POINT_GRAY)
    if attention.predictions is not None:
        base = np.array(class_colors(len(attention.labels)), dtype=np.float64)[attention.predictions]
    colors, sizes = BACKGROUND_GRAY + 0.6 * (base - BACKGROUND_GRAY), np.ones(len(base))
    colors[attention.query_point], sizes[attention.query_point] = QUERY_COLOR, 5.0
    pixels = np.rint(colors).astype(np.uint8)
    panels, names = [render_points(attention.coordinates, pixels, attention.up, size_factors=sizes)], ["query point"]
    for one in chosen:
        shares = attention.point_weights(one)
        most = float(shares.max())
        panels.append(_render_neighborhood(attention, one, shares / (most or 1.0)))
        names.append(f"{one.name} · max {percent(most)}")
    meaning = "maximum, given above each image; blue: query point"
    scale = ColorScale(_weight_colors(np.linspace(0, 1, 256)[None]), ("0", "", meaning))
    return draw_panels(in_rows(panels, 3), in_rows(names, 3), path, title, subtitle, scale)


def _weight_colors(shares: FloatArray) -> ImageArray:
    return apply_colormap(MIN_COLOR + (1 - MIN_COLOR) * shares, WEIGHT_COLORS)


def _render_neighborhood(attention: CloudAttention, layer: NeighborAttention, fractions: FloatArray) -> ImageArray:
    """Render the surroundings of the query, up to 2.2 times the distance of the farthest key."""
    seen, sizes, level = fractions > 0, np.ones(len(fractions)), attention.levels[layer.level]
    query = level[attention.nearest_query(layer)]
    opacity = np.full((len(fractions), 1), 0.25)
    opacity[level] = 0.7
    colors = BACKGROUND_GRAY + opacity * np.full((len(fractions), 3), POINT_GRAY - BACKGROUND_GRAY)
    colors[seen] = _weight_colors(fractions[seen])
    sizes[seen] = 1.3 + fractions[seen]
    colors[query], sizes[query] = QUERY_COLOR, 1.8
    distance = np.linalg.norm(attention.coordinates - attention.coordinates[query], axis=1)
    near = distance <= 2.2 * (float(distance[seen].max(initial=0.0)) or 1.0)
    pixels = np.rint(colors[near]).astype(np.uint8)
    return render_points(attention.coordinates[near], pixels, attention.up, size_factors=sizes[near])
