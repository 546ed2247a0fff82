"""Segmentation, depth maps and heatmaps drawn over images, with legends. Images are bytes (H, W, 3)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from regard.draw.colors import (
    DEPTH_COLORS,
    HEAT_COLORS,
    UNKNOWN_COLOR,
    ImageArray,
    MapArray,
    apply_colormap,
    class_colors,
)
from regard.draw.figure import check_suffix, write_atomic
from regard.draw.panels import ClassLegend, ColorScale, draw_panels
from regard.errors import RegardError
from regard.types import IGNORE

MAX_SIDE: Final = 1600
"""Maximum side of drawn images in pixels; more would not be visible in a figure and would need too much memory."""
COLUMN_TITLES: Final = ("image", "prediction", "label")
CLASS_ALPHA: Final = 0.6
"""Opacity of class colors."""


class SegmentationSample(NamedTuple):
    image: ImageArray
    prediction: MapArray
    """(H, W) class indices"""
    target: MapArray | None = None
    name: str = ""


class DepthSample(NamedTuple):
    image: ImageArray
    prediction: MapArray
    """(H, W) depth, or inverse depth with `relative`"""
    target: MapArray | None = None
    """(H, W) ground truth; values that are not finite are unknown, and absolute depths not above 0"""
    name: str = ""


S = TypeVar("S", SegmentationSample, DepthSample)


class AttentionOverlay(NamedTuple):
    image: ImageArray
    weights: MapArray
    """(h, w) on a grid of any size"""
    name: str = ""
    extent: tuple[float, float] = (1.0, 1.0)
    """height and width of the grid relative to the image; a grid may extend below and to the right of the image"""


# -- images


def overlay_classes(
    image: ImageArray, classes: MapArray, num_classes: int, ignore_index: int = IGNORE, alpha: float = CLASS_ALPHA
) -> ImageArray:
    """The image in class colors with dark class boundaries; ignored pixels are unchanged."""
    image = _to_rgb(image, classes)
    there = (classes != ignore_index) & (classes >= 0) & (classes < num_classes)
    colours = np.array(class_colors(num_classes), dtype=np.float64)[np.where(there, classes, 0).astype(np.int64)]
    grey = image.mean(-1, keepdims=True)
    mixed = (1 - alpha) * (0.5 * image + 0.5 * grey) + alpha * colours
    mixed[_class_edges(classes)] *= 0.45
    return np.where(there[..., None], mixed, image).round().astype(np.uint8)


def _class_edges(classes: MapArray) -> npt.NDArray[np.bool_]:
    """Mask of the pixels whose right or lower neighbor has another class."""
    found = np.zeros(classes.shape, dtype=bool)
    found[:, :-1] |= classes[:, :-1] != classes[:, 1:]
    found[:-1] |= classes[:-1] != classes[1:]
    return found


def depth_image(depth: MapArray, near: float, far: float) -> ImageArray:
    """Colors of a depth map: bright is near, dark is far, gray is unknown. If `near` > `far`, values are inverse depths."""
    known = _valid_depth(depth, near > far)
    shares = (np.where(known, depth, near) - near) / ((far - near) or 1.0)
    return np.where(known[..., None], apply_colormap(shares, DEPTH_COLORS), np.array(UNKNOWN_COLOR, dtype=np.uint8))


def _valid_depth(depth: MapArray, relative: bool) -> npt.NDArray[np.bool_]:
    return np.isfinite(depth) & ((depth > 0) | relative)


def overlay_heatmap(
    image: ImageArray, weights: MapArray, max_weight: float | None = None, smooth: bool = True,
    extent: tuple[float, float] = (1.0, 1.0),
) -> ImageArray:  # fmt: skip
    """Heatmap over the darkened image. The grid is resized to the image, or beyond (`extent`); without `smooth`, cells are
    visible. `max_weight`: upper end of the color scale; None: the largest weight."""
    max_weight = float(np.nanmax(weights, initial=0.0)) if max_weight is None else max_weight
    shape = image.shape[0], image.shape[1]
    wide = resize_grid(np.nan_to_num(weights) / (max_weight or 1.0), shape, smooth, extent)[..., None]
    image = _to_rgb(image, wide[..., 0])
    shares = np.clip(wide, 0, 1)
    grey = 0.3 * image + 0.5 * image.mean(-1, keepdims=True)
    strength = 0.85 * shares**0.7
    return ((1 - strength) * grey + strength * apply_colormap(shares[..., 0], HEAT_COLORS)).round().astype(np.uint8)


def resize_grid(grid: MapArray, shape: tuple[int, int], smooth: bool, extent: tuple[float, float]) -> MapArray:
    from PIL import Image

    small = Image.fromarray(np.ascontiguousarray(grid, dtype=np.float32))
    way = Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST
    part = (0, 0, grid.shape[1] / extent[1], grid.shape[0] / extent[0])
    return np.asarray(small.resize((shape[1], shape[0]), way, box=part), dtype=np.float64)


def _to_rgb(picture: ImageArray, beside: MapArray) -> ImageArray:
    picture = np.repeat(picture[..., None], 3, 2) if picture.ndim == 2 else picture
    if picture.shape[:2] != beside.shape:
        raise RegardError(f"A map of {beside.shape} pixels does not match an image of {picture.shape[:2]} pixels.")
    return picture


def save_image(image: ImageArray, path: Path) -> Path:
    """Save the pixels without scaling as a .png file."""
    from PIL import Image

    check_suffix(path, (".png",))
    return write_atomic(path, lambda to: Image.fromarray(image).save(to, format="PNG"))


# -- figures with legends


def fit_to_sheet(sample: S) -> S:
    """The sample with an image of at most `MAX_SIDE` pixels, and maps of the same size. Sizes may differ before, because large
    images are decoded at reduced size."""
    from PIL import Image

    picture = sample.image
    shrunk = min(1.0, MAX_SIDE / max(picture.shape))
    high, wide = (max(round(shrunk * side), 1) for side in picture.shape[:2])
    if shrunk < 1:
        picture = np.asarray(Image.fromarray(picture).resize((wide, high), Image.Resampling.BOX))
    right = None if sample.target is None else _resize_nearest(sample.target, (high, wide))
    return sample._replace(image=picture, prediction=_resize_nearest(sample.prediction, (high, wide)), target=right)


def _resize_nearest(values: MapArray, size: tuple[int, int]) -> MapArray:
    if values.shape == size:
        return values
    rows, columns = ((np.arange(new) * 2 + 1) * old // (2 * new) for new, old in zip(size, values.shape, strict=True))
    return values[rows[:, None], columns[None]]


def draw_segmentations(
    samples: Sequence[SegmentationSample],
    class_names: Sequence[str],
    path: Path,
    title: str = "",
    subtitle: str = "",
    ignore_index: int = IGNORE,
) -> Path:
    """Draw image, prediction and, if known, label of each sample, with a legend of the classes that occur."""
    rows, samples = [], [fit_to_sheet(sample) for sample in samples]
    for sample in samples:
        answers = [answer for answer in (sample.prediction, sample.target) if answer is not None]
        rows.append(
            [
                sample.image,
                *(overlay_classes(sample.image, answer, len(class_names), ignore_index) for answer in answers),
            ]
        )
    both = any(sample.target is not None for sample in samples)
    legend = ClassLegend(
        class_names,
        _class_fractions(samples, len(class_names)),
        "pixels, prediction and label together" if both else "pixels",
    )
    return draw_panels(rows, _column_titles(samples, rows), path, title, subtitle, legend)


def draw_depths(
    samples: Sequence[DepthSample],
    path: Path,
    title: str = "",
    subtitle: str = "",
    unit: str = "m",
    relative: bool = False,
) -> Path:
    """Draw image, prediction and, if known, ground truth of each sample on one color scale. `relative`: values are inverse
    depths, and each map has a separate scale."""
    samples = [fit_to_sheet(sample) for sample in samples]
    rows, scale = [], _depth_range([answer for sample in samples for answer in _depth_maps(sample)], relative)
    for sample in samples:
        limits = [_depth_range([answer], relative) if relative else scale for answer in _depth_maps(sample)]
        maps = [depth_image(answer, *each) for answer, each in zip(_depth_maps(sample), limits, strict=True)]
        rows.append([sample.image, *maps])
    names = (f"{scale[0]:.3g}", f"{(scale[0] + scale[1]) / 2:.3g}", f"{scale[1]:.3g} {unit}".rstrip())
    gaps = any(not bool(_valid_depth(answer, relative).all()) for sample in samples for answer in _depth_maps(sample))
    below = ColorScale(
        apply_colormap(np.linspace(0, 1, 256)[None], DEPTH_COLORS), ("near", "", "far") if relative else names, gaps
    )
    return draw_panels(rows, _column_titles(samples, rows), path, title, subtitle, below)


def draw_heatmap_overlays(
    samples: Sequence[AttentionOverlay],
    path: Path,
    title: str = "",
    subtitle: str = "",
    columns: int = 4,
    unit: str | None = "of total weight",
    mark: tuple[float, float] | None = None,
) -> Path:
    """Draw heatmaps over one or several images in rows of `columns`, on one color scale; without `unit`, each on a separate
    scale with the maximum in the title. `mark`: a position as fractions of image height and width."""
    mosts = [float(np.nanmax(sample.weights, initial=0.0)) for sample in samples]
    most = max(mosts, default=0.0)
    seen = [
        overlay_heatmap(sample.image, sample.weights, most if unit else own, extent=sample.extent)
        for sample, own in zip(samples, mosts, strict=True)
    ]
    rows = [seen[at : at + columns] for at in range(0, len(seen), columns)]
    heads = [
        sample.name if unit else f"{sample.name} · {100 * own:.3g} %"
        for sample, own in zip(samples, mosts, strict=True)
    ]
    names = [heads[at : at + columns] for at in range(0, len(seen), columns)]
    ends = f"{50 * most:.3g}", f"{100 * most:.3g} % {unit or ''}"
    if not unit and len(samples) > 1:
        ends = "", "maximum, given above each image"
    # colors over a gray image, because the heatmap is transparent at 0
    glowing = overlay_heatmap(np.full((1, 256, 3), 212, np.uint8), np.linspace(0, 1, 256)[None], 1.0)
    return draw_panels(rows, names, path, title, subtitle, ColorScale(glowing, ("0", *ends)), mark)


def _column_titles(samples: Sequence[S], rows: Sequence[Sequence[ImageArray]]) -> list[list[str]]:
    """Titles of the panels: the meaning of each column above the first row, and the name of each sample, if any."""
    titles: list[list[str]] = []
    for sample, row in zip(samples, rows, strict=True):
        first, *others = [""] * len(row) if titles else COLUMN_TITLES[: len(row)]
        titles.append([sample.name or first, *others])
    return titles


def _depth_maps(sample: DepthSample) -> list[MapArray]:
    return [answer for answer in (sample.prediction, sample.target) if answer is not None]


def _depth_range(maps: Sequence[MapArray], relative: bool) -> tuple[float, float]:
    """Near and far end of the color scale: the 1st and 99th percentile of the known values."""
    known = [m[_valid_depth(m, relative)] for m in maps]
    values = np.concatenate(known) if known else np.zeros(0)
    if not values.size:
        return (1.0, 0.0) if relative else (0.0, 1.0)
    low, high = (float(value) for value in np.percentile(values, (1, 99)))
    high = high if high > low else low + max(abs(low), 1.0) * 1e-3
    return (high, low) if relative else (low, high)


def _class_fractions(samples: Sequence[SegmentationSample], many: int) -> MapArray:
    """Fraction of pixels in each class, over predictions and labels together."""
    maps = [m for sample in samples for m in (sample.prediction, sample.target) if m is not None]
    counts = [np.bincount(m[(m >= 0) & (m < many)].astype(np.int64), minlength=many) for m in maps]
    return np.sum(counts, axis=0) / max(sum(m.size for m in maps), 1)
