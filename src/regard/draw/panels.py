"""Images in rows with titles and legends: segmentation, depth, heatmaps, generated images, captions and their attention.

Images are bytes (H, W, 3), or (H, W) for grayscale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.draw.colors import (
    ACCENT,
    DEPTH_COLORS,
    HEAT_COLORS,
    INK,
    LINE,
    MUTED,
    UNKNOWN_COLOR,
    ImageArray,
    MapArray,
    apply_colormap,
    class_colors,
)
from regard.draw.figure import (
    CHAR_WIDTH_PER_POINT,
    MARGIN,
    ClassLegend,
    ColorScale,
    new_figure,
    percent,
    wrap_text,
    write_atomic,
)
from regard.draw.text import check_choice, label
from regard.draw.token_data import MIN_UNIFORM_MULTIPLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_WIDTH: Final = 10.5  # maximum inches between the margins
SMOOTH_SIDE: Final = 480  # images with fewer pixels per side are drawn without interpolation


class PanelStyle(NamedTuple):
    """Sizes in inches, and the font of the titles above the images."""

    gap: float = 0.14
    min_side: float = 1.1
    max_side: float = 3.4
    head: float = 0.26  # height above a row with titles
    font: Any = {"size": 8.5, "color": MUTED}  # noqa: RUF012


OVERLAYS: Final = PanelStyle()
CONTACT_SHEET: Final = PanelStyle(0.12, 0.45, 1.3)
WORDS: Final = PanelStyle(0.16, 0.0, 1.9, 0.3, {"size": 10.5, "color": INK, "weight": "bold"})


def _to_rgb(image: ImageArray) -> ImageArray:
    return np.repeat(image[..., None], 3, 2) if image.ndim == 2 else image


def draw_image(axes: Axes, image: ImageArray, left: float, top: float, width: float, smooth: bool) -> float:
    """Draw an image with a thin frame on a canvas. Returns the height in inches."""
    from matplotlib.patches import Rectangle

    height = width * image.shape[0] / image.shape[1]
    pixels: Any = _to_rgb(image)
    interpolation, extent = "antialiased" if smooth else "nearest", (left, left + width, top + height, top)
    axes.imshow(pixels, extent=extent, interpolation=interpolation, aspect="auto", zorder=1)
    style: dict[str, Any] = {"edgecolor": LINE, "linewidth": 0.6, "zorder": 2, "clip_on": False}
    axes.add_patch(Rectangle((left, top), width, height, fill=False, **style))
    return height


def draw_panels(
    rows: Sequence[Sequence[ImageArray]],
    titles: Sequence[Sequence[str]],
    path: Path,
    title: str = "",
    subtitle: str = "",
    legend: ClassLegend | ColorScale | None = None,
    *,
    mark: tuple[float, float] | None = None,
    notes: Sequence[Sequence[str]] | None = None,
    style: PanelStyle = OVERLAYS,
) -> Path:
    """Draw images in rows into a .png or .svg file, each with one of `titles` above, and one of `notes` at the right end of the
    title. `mark`: a position in all images, as fractions of height and width."""
    import matplotlib

    columns = max(map(len, rows))
    gap, side = style.gap, max(style.min_side, min(style.max_side, (MAX_WIDTH + style.gap) / columns - style.gap))
    heights = [side * max((image.shape[0] / image.shape[1] for image in row), default=1.0) for row in rows]
    heads = [style.head if any(row) else 0.0 for row in titles]
    width = max(columns * (side + gap) - gap, 3.4)
    title, subtitle = wrap_text(title, width, 13, 3), wrap_text(subtitle, width, 8.5, 4)
    top = MARGIN + (0.24 * (title.count("\n") + 1) if title else 0.0)
    top += 0.22 + 0.17 * subtitle.count("\n") if subtitle else 0.0
    height = sum(heights) + sum(heads) + gap * len(rows) + (0.0 if legend is None else legend.height(width) + 0.08)
    with new_figure(path, 2 * MARGIN + width, top + height + MARGIN - 0.1, title, subtitle) as sheet:
        matplotlib.rcParams["image.composite_image"] = False  # keeps images separate in .svg files
        axes = sheet.canvas(MARGIN, top, width, height)
        down = 0.0
        for row, (images, head, row_height) in enumerate(zip(rows, heads, heights, strict=True)):
            down += head
            for column, image in enumerate(images):
                left, name, note = column * (side + gap), titles[row][column], notes[row][column] if notes else ""
                room = side / CHAR_WIDTH_PER_POINT - 8 * (len(note) + 1) * bool(note)
                text = label(name, max(int(room / style.font["size"]), 3)) if name else ""
                axes.text(left, down - 0.07, text, va="bottom", **style.font)
                axes.text(left + side, down - 0.07, note, size=8, color=MUTED, va="bottom", ha="right")
                image_height = draw_image(axes, image, left, down, side, smooth=max(image.shape[:2]) >= SMOOTH_SIDE)
                if mark is not None:
                    x, y = left + mark[1] * side, down + mark[0] * image_height
                    for color, ring in (("black", 2.2), ("white", 1.1)):  # visible on dark and bright images
                        axes.plot(x, y, "o", ms=6, mfc="none", mec=color, mew=ring, zorder=3)
            down += row_height + gap
        if legend is not None:
            legend.draw(axes, down + 0.04, width)
    return path


def in_rows(items: Sequence[Any], columns: int) -> list[Sequence[Any]]:
    """The items in rows of `columns` items."""
    return [items[at : at + columns] for at in range(0, len(items), columns)]


def save_image(image: MapArray, path: Path) -> Path:
    """Save the pixels without scaling as a .png file."""
    from PIL import Image

    return write_atomic(path, lambda to: Image.fromarray(image).save(to, format="PNG"))


# -- generated images


def blank_below(image: ImageArray, visible_rows: int) -> ImageArray:
    """The image with the color of unknown values in all pixels below the first `visible_rows` rows."""
    visible = image.copy()
    visible[visible_rows:] = UNKNOWN_COLOR
    return visible


def draw_contact_sheet(
    rows: Sequence[Sequence[ImageArray]], path: Path, title: str = "", column_titles: Sequence[str] = ()
) -> Path:
    """Draw rows of images into a .png or .svg file, with `column_titles` above the columns."""
    blank = [""] * max(map(len, rows))
    titles = [list(column_titles) or blank, *[blank] * (len(rows) - 1)]
    return draw_panels(rows, titles, path, title, style=CONTACT_SHEET)


def draw_captions(samples: Sequence[tuple[ImageArray, str, str]], path: Path) -> Path:
    """Draw images with generated and reference captions into a .png or .svg file."""
    columns, (max_side, max_height), text_height, gap = 4, (2.7, 2.2), 1.2, 0.3
    across, down = max_side + gap, max_height + text_height + gap
    width, height = min(len(samples), columns) * across - gap, -(-len(samples) // columns) * down - gap
    title, height_with_title = "Generated and reference captions", 2 * MARGIN + 0.4 + height
    with new_figure(path, max(2 * MARGIN + width, 5.0), height_with_title, title) as sheet:
        axes = sheet.canvas(MARGIN, MARGIN + 0.4, width, height)
        for number, (image, prediction, reference) in enumerate(samples):
            left, base = number % columns * across, number // columns * down + max_height
            ratio = image.shape[0] / image.shape[1]
            side = min(max_side, max_height / ratio)
            draw_image(axes, image, left, base - side * ratio, side, smooth=True)
            texts = (prediction if prediction.strip() else "(empty)", reference)
            prediction, reference = (wrap_text(text, max_side, 8.5, 3) for text in texts)
            style: dict[str, Any] = {"size": 8.5, "va": "top", "linespacing": 1.3}
            axes.text(left, base + 0.08, prediction, color=ACCENT, weight="bold", **style)
            axes.text(left, base + 0.12 + 0.165 * (prediction.count("\n") + 1), reference, color=MUTED, **style)
    return path


# -- segmentation and depth

MAX_IMAGE_SIDE: Final = 1600  # maximum side of drawn images in pixels; more would not be visible in a figure
CLASS_OPACITY: Final = 0.6  # of class colors over the image


class DenseSample(NamedTuple):
    """An image with one predicted value per pixel: a class index, a depth, or a relative inverse depth."""

    image: ImageArray
    prediction: MapArray  # (H, W)
    target: MapArray | None = None  # (H, W) label; unknown: depths that are not finite, and absolute depths not above 0
    name: str = ""

    @property
    def maps(self) -> list[MapArray]:
        return [self.prediction] if self.target is None else [self.prediction, self.target]


def fit_image(image: ImageArray) -> ImageArray:
    """The image, reduced to at most `MAX_IMAGE_SIDE` pixels per side."""
    from PIL import Image

    scale = min(1.0, MAX_IMAGE_SIDE / max(image.shape[:2]))
    size = tuple(max(round(scale * side), 1) for side in image.shape[:2])
    return image if scale == 1 else np.asarray(Image.fromarray(image).resize(size[::-1], Image.Resampling.BOX))


def fit_to_sheet(sample: DenseSample) -> DenseSample:
    """The sample with an image of at most `MAX_IMAGE_SIDE` pixels, and maps of the same size."""
    image = fit_image(sample.image)
    size = image.shape[:2]
    maps = []
    for values in sample.maps:
        if values.shape != size:  # nearest values
            rows, columns = ((np.arange(n) * 2 + 1) * old // (2 * n) for n, old in zip(size, values.shape, strict=True))
            values = values[rows[:, None], columns[None]]
        maps.append(values)
    return DenseSample(image, maps[0], maps[1] if len(maps) > 1 else None, sample.name)


def overlay_classes(image: ImageArray, classes: MapArray, num_classes: int) -> ImageArray:
    """The image in semi-transparent class colors with dark class boundaries; pixels without a class are unchanged."""
    image, palette = _to_rgb(image), np.array(class_colors(num_classes), dtype=np.float64)
    found = np.empty_like(image)
    for band in in_bands(image.shape):
        part, own = image[band], classes[band]
        known = (own >= 0) & (own < num_classes)
        colors = palette[np.where(known, own, 0).astype(np.int64)]
        mixed = (1 - CLASS_OPACITY) * (0.5 * part + 0.5 * part.mean(-1, keepdims=True)) + CLASS_OPACITY * colors
        edges = np.zeros(own.shape, dtype=bool)  # pixels whose right or lower neighbor has another class
        edges[:, :-1] |= own[:, :-1] != own[:, 1:]
        below = classes[band.start + 1 : band.stop + 1]
        edges[: len(below)] |= own[: len(below)] != below
        mixed[edges] *= 0.45
        found[band] = np.where(known[..., None], mixed, part).round()
    return found


def depth_image(depth: MapArray, near: float, far: float) -> ImageArray:
    """Colors of a depth map: bright is near, dark is far, gray is unknown. If `near` > `far`, values are inverse depths."""
    found = np.empty((*depth.shape, 3), np.uint8)
    for band in in_bands(depth.shape):
        known = _valid_depth(depth[band], near > far)
        fractions = (np.where(known, depth[band], near) - near) / ((far - near) or 1.0)
        found[band] = np.where(known[..., None], apply_colormap(fractions, DEPTH_COLORS), UNKNOWN_COLOR)
    return found


def save_classes(sample: DenseSample, num_classes: int, path: Path) -> Path:
    """Save the image in class colors as a .png file of the size of the predicted classes."""
    from PIL import Image

    size, image = sample.prediction.shape, sample.image
    if image.shape[:2] != size:  # the file was decoded at a lower resolution
        image = np.asarray(Image.fromarray(image).resize(size[::-1], Image.Resampling.BILINEAR))
    return save_image(overlay_classes(image, sample.prediction, num_classes), path)


def save_depth(depth: MapArray, path: Path, relative: bool = False) -> Path:
    """Save the colors of a depth map as a .png file of the same size."""
    return save_image(depth_image(depth, *depth_range([depth], relative)), path)


def _valid_depth(depth: MapArray, relative: bool) -> npt.NDArray[np.bool_]:
    return np.isfinite(depth) & ((depth > 0) | relative)


def draw_segmentations(samples: Sequence[DenseSample], class_names: Sequence[str], path: Path) -> Path:
    """Draw image, prediction and, if known, label of each sample, with a legend of the classes that occur."""
    samples, many = [fit_to_sheet(sample) for sample in samples], len(class_names)
    rows = [[overlay_classes(sample.image, m, many) for m in sample.maps] for sample in samples]
    maps = [m for sample in samples for m in sample.maps]
    counts = [np.bincount(m[(m >= 0) & (m < many)].astype(np.int64), minlength=many) for m in maps]
    fractions = np.sum(counts, axis=0) / max(sum(m.size for m in maps), 1)
    unit = "pixels, prediction and label together" if len(maps) > len(samples) else "pixels"
    return _draw_dense(samples, rows, path, ClassLegend(class_names, fractions, unit))


def draw_depths(samples: Sequence[DenseSample], path: Path, relative: bool = False) -> Path:
    """Draw image, prediction and, if known, ground truth of each sample on one color scale in meters. `relative`: values are
    inverse depths, and each map has a separate scale."""
    samples = [fit_to_sheet(sample) for sample in samples]
    maps = [m for sample in samples for m in sample.maps]
    near, far = depth_range(maps, relative)
    rows = [
        [depth_image(m, *(depth_range([m], relative) if relative else (near, far))) for m in sample.maps]
        for sample in samples
    ]
    names = (f"{near:.3g}", f"{(near + far) / 2:.3g}", f"{far:.3g} m")
    has_unknown = any(not bool(_valid_depth(m, relative).all()) for m in maps)
    colors = apply_colormap(np.linspace(0, 1, 256)[None], DEPTH_COLORS)
    return _draw_dense(samples, rows, path, ColorScale(colors, ("near", "", "far") if relative else names, has_unknown))


def depth_range(maps: Sequence[MapArray], relative: bool) -> tuple[float, float]:
    """Near and far end of the color scale: the 1st and 99th percentile of the known values."""
    values = np.concatenate([np.zeros(0), *(m[_valid_depth(m, relative)] for m in maps)])
    if not values.size:
        return (1.0, 0.0) if relative else (0.0, 1.0)
    low, high = (float(value) for value in np.percentile(values, (1, 99)))
    high = high if high > low else low + max(abs(low), 1.0) * 1e-3
    return (high, low) if relative else (low, high)


def _draw_dense(
    samples: Sequence[DenseSample], rows: Sequence[Sequence[ImageArray]], path: Path, legend: ClassLegend | ColorScale
) -> Path:
    """Draw each sample and its colored maps, with the meaning of each column above the first row."""
    titles = []
    for number, (sample, maps) in enumerate(zip(samples, rows, strict=True)):
        first, *others = [""] * (1 + len(maps)) if number else ("image", "prediction", "label")[: 1 + len(maps)]
        titles.append([sample.name or first, *others])
    images = [[sample.image, *maps] for sample, maps in zip(samples, rows, strict=True)]
    return draw_panels(images, titles, path, legend=legend)


# -- heatmaps


Box = tuple[float, float, float, float]
"""Top, left, bottom and right of the part of an image that a grid covers, as fractions of height and width."""
WHOLE: Final[Box] = (0.0, 0.0, 1.0, 1.0)
OUTSIDE_BRIGHTNESS: Final = 0.45  # brightness of the part of the image that the model does not read
BAND_PIXELS: Final = 1 << 22  # pixels that are computed at once


class OverlayMap(NamedTuple):
    """One heatmap, or the heatmaps of all heads of a layer."""

    name: str
    weights: MapArray  # (h, w) or (heads, h, w) on a grid of any size
    box: Box = WHOLE  # part of the image that the grid covers
    weights_per_query: MapArray | None = None  # (queries, heads, h, w) attention of each stored query


def in_bands(shape: Sequence[int]) -> Iterator[slice]:
    """Bands of rows of an image with at most `BAND_PIXELS` pixels, because colors as floats need much memory."""
    step = max(BAND_PIXELS // max(shape[1], 1), 1)
    return (slice(start, min(start + step, shape[0])) for start in range(0, shape[0], step))


def overlay_heatmap(image: ImageArray, weights: MapArray, box: Box = WHOLE) -> ImageArray:
    """Heatmap over the darkened image. The color scale ends at the largest weight."""
    weights, image = np.nan_to_num(weights), _to_rgb(image)
    fractions = resize_grid(weights / (float(weights.max(initial=0.0)) or 1.0), image.shape, box).clip(0, 1)
    found = np.empty_like(image)
    for band in in_bands(image.shape):
        part, own = image[band], fractions[band]
        gray = 0.3 * part + 0.5 * part.mean(-1, keepdims=True)
        strength = 0.85 * own[..., None] ** 0.7
        found[band] = ((1 - strength) * gray + strength * apply_colormap(own, HEAT_COLORS)).round()
    return darken_outside(found, box)


def covered_pixels(shape: Sequence[int], box: Box) -> tuple[slice, slice]:
    """Rows and columns of an image of `shape` (height, width, …) that a grid covers, at least one of each."""
    sides = []
    for count, start, end in ((shape[0], box[0], box[2]), (shape[1], box[1], box[3])):
        first = min(max(round(start * count), 0), count - 1)
        sides.append(slice(first, max(min(round(end * count), count), first + 1)))
    return sides[0], sides[1]


def darken_outside(image: ImageArray, box: Box) -> ImageArray:
    """The image with a dark part outside of the box."""
    rows, columns = covered_pixels(image.shape, box)
    inside = image[rows, columns].copy()
    if inside.shape != image.shape:
        image = (OUTSIDE_BRIGHTNESS * image).astype(np.uint8)
        image[rows, columns] = inside
    return image


def resize_grid(grid: MapArray, shape: Sequence[int], box: Box = WHOLE) -> MapArray:
    """The grid interpolated to an image of `shape` (height, width, …), of which the grid covers the box; 0 outside."""
    from PIL import Image

    small = Image.fromarray(np.ascontiguousarray(grid, dtype=np.float32))
    found, part = np.zeros(shape[:2], np.float32), covered_pixels(shape, box)
    edges = [
        min(max((edge / count - start) / (end - start), 0.0), 1.0) * cells
        for pixels, count, start, end, cells in zip(part, shape, box[:2], box[2:], grid.shape, strict=False)
        for edge in (pixels.start, pixels.stop)
    ]
    size = part[1].stop - part[1].start, part[0].stop - part[0].start
    source = (edges[2], edges[0], edges[3], edges[1])
    found[part] = np.asarray(small.resize(size, Image.Resampling.BICUBIC, box=source))
    return found


def draw_heatmap_overlays(
    image: ImageArray,
    maps: Sequence[OverlayMap],
    path: Path,
    title: str = "",
    subtitle: str = "",
    mark: tuple[float, float] | None = None,
) -> Path:
    """Draw heatmaps (h, w) over the image, each on a separate color scale. `mark`: a position as fractions of the image."""
    image = fit_image(image)
    images = [overlay_heatmap(image, one.weights, one.box) for one in maps]
    maxima = [float(np.nanmax(one.weights, initial=0.0)) for one in maps]
    names = [f"{one.name} · {100 * most:.3g} %" for one, most in zip(maps, maxima, strict=True)]
    ends = "", "maximum, given above each image"
    if len(maps) == 1:
        ends = f"{50 * maxima[0]:.3g}", f"{100 * maxima[0]:.3g} %"
    # colors over a gray image, because the heatmap is transparent at 0
    colors = overlay_heatmap(np.full((1, 256, 3), 212, np.uint8), np.linspace(0, 1, 256)[None])
    legend = ColorScale(colors, ("0", *ends))
    return draw_panels(in_rows(images, 4), in_rows(names, 4), path, title, subtitle, legend, mark=mark)


POSITION_IMAGE_SIZE: Final = 800  # Approximate width of the position similarity image in pixels.


def position_similarity_image(similarity: np.ndarray) -> ImageArray:
    """Image of n × n tiles from cosine similarities (n², n²): one tile per position, each with the size of the grid."""
    side, gap = round(len(similarity) ** 0.5), 2
    cell = min(max(POSITION_IMAGE_SIZE // side**2, 1), 16)
    low, high = float(similarity.min()), float(np.sort(similarity, axis=1)[:, -2].max())  # without the diagonal
    fractions = ((similarity - low) / max(high - low, 1e-12)).clip(0, 1).reshape(side, side, side, side)
    tiles = apply_colormap(fractions, HEAT_COLORS).repeat(cell, 2).repeat(cell, 3)
    tiles = np.pad(tiles, [(0, 0), (0, 0), (0, gap), (0, gap), (0, 0)], constant_values=255)
    width = side * (side * cell + gap)
    return tiles.swapaxes(1, 2).reshape(width, width, 3)[:-gap, :-gap]


def draw_position_similarity(similarity: np.ndarray, path: Path) -> Path:
    """Draw the cosine similarity of the position embeddings, one tile per position."""
    image, title = position_similarity_image(similarity), "Cosine similarity of position embeddings"
    note = "Each tile compares one position with all others. Bright: similar."
    return draw_panels([[image]], [[""]], path, title, note, style=PanelStyle(max_side=6.0))


# -- attention of captions

MIN_BRIGHTNESS: Final = 0.38  # Brightness of regions without attention.
LIGHT_COLOR: Final = (255, 178, 92)
MAX_TINT: Final = 0.45  # Strength of the light color on a black image; weaker on brighter images.


class CaptionWord(NamedTuple):
    """A word with the probability given all previous words, and the most likely alternatives with probabilities."""

    word: str
    probability: float
    top_k: tuple[tuple[str, float], ...] = ()


class CaptionLayer(NamedTuple):
    name: str
    weights: npt.NDArray[np.floating]  # (heads, words, rows, columns); a map sums to less than 1 if tokens are outside


@dataclass(frozen=True)
class CaptionAttention:
    """An image with its caption, and the attention of each layer and head on one grid."""

    image: ImageArray
    words: tuple[CaptionWord, ...]
    layers: tuple[CaptionLayer, ...]
    method: str = "attention"  # name of the weights
    region: Box = WHOLE  # part of the image that the model reads

    @property
    def grid(self) -> tuple[int, int]:
        rows, columns = self.layers[0].weights.shape[2:]
        return rows, columns

    def maps(self, layer: int | None = None, head: int | None = None) -> npt.NDArray[np.floating]:
        """Maps (words, rows, columns) of one layer and head, counted from 1; None: the average."""
        check_choice("Layer", layer, len(self.layers))
        chosen = self.layers if layer is None else (self.layers[layer - 1],)
        check_choice("Head", head, min(len(one.weights) for one in chosen))
        return np.mean([one.weights.mean(0) if head is None else one.weights[head - 1] for one in chosen], axis=0)


def brightness_max(weights: npt.NDArray[np.floating]) -> float:
    """The weight shown with full brightness."""
    return max(float(weights.max(initial=0.0)), min(MIN_UNIFORM_MULTIPLE / weights.size, 1.0))


def tint_strength(image: ImageArray) -> float:
    return MAX_TINT * (1 - float(image.mean()) / 255)


def spotlight(image: ImageArray, weights: npt.NDArray[np.floating], max_weight: float, box: Box = WHOLE) -> ImageArray:
    """The image with brightness by attention. The grid of weights is interpolated to its part of the image."""
    fractions = resize_grid(weights / max_weight, image.shape, box).clip(0, 1)[..., None]
    dark = MIN_BRIGHTNESS * (0.6 * image + 0.4 * image.mean(-1, keepdims=True))
    light = image + tint_strength(image) * fractions * (np.array(LIGHT_COLOR) - image)
    return darken_outside(np.rint(dark + fractions * (light - dark)).clip(0, 255).astype(np.uint8), box)


def draw_caption_attention(
    attention: CaptionAttention,
    path: Path,
    title: str = "",
    subtitle: str = "",
    layer: int | None = None,
    head: int | None = None,
) -> Path:
    """Draw the image, and one image per word with brightness by attention, into a .png or .svg file."""
    from PIL import Image

    maps, image = attention.maps(layer, head), fit_image(attention.image)
    times = -(-SMOOTH_SIDE // max(image.shape[:2]))
    if times > 1:  # enlarged, so that brightness changes smoothly
        size = image.shape[1] * times, image.shape[0] * times
        image = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BICUBIC))
    many, heads = len(attention.layers), len(attention.layers[(layer or 1) - 1].weights)
    layers = f"average over {many} layers" if layer is None else f"layer {layer} of {many}"
    over = f"average over {heads} heads" if head is None else f"head {head} of {heads}"
    selection = [text for text, count in ((layers, many), (over, heads)) if count > 1]
    subtitle = "; ".join(text for text in (", ".join(selection), subtitle) if text)
    images = [image, *(spotlight(image, weights, brightness_max(weights), attention.region) for weights in maps)]
    titles = ["", *(word.word for word in attention.words)]
    notes = ["image", *(percent(word.probability) for word in attention.words)]
    is_uniform = any(brightness_max(weights) > weights.max() for weights in maps)
    note = f"Brightness: {attention.method}, scaled per image" + "; dim: nearly uniform" * is_uniform
    grays = np.rint(255 * np.linspace(MIN_BRIGHTNESS, 1, 256)).astype(np.uint8)[None, :, None].repeat(3, 2)
    rows, names, values = (in_rows(items, 6) for items in (images, titles, notes))
    scale = ColorScale(grays, note=note)
    return draw_panels(rows, names, path, title, subtitle, scale, notes=values, style=WORDS)
