"""Images in rows: panels with a legend, contact sheets, and images with captions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from regard.draw.colors import ACCENT, INK, LINE, MUTED, UNKNOWN_COLOR, ImageArray, MapArray, class_colors
from regard.draw.figure import CHAR_WIDTH_PER_POINT, MARGIN, Sheet, check_suffix, figure_style, text_width, wrap_text
from regard.draw.text import label
from regard.errors import RegardError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GAP: Final = 0.14
MAX_WIDTH: Final = 10.5  # maximum inches between the margins
MAX_PANEL_WIDTH: Final = 3.4  # inches
MIN_PANEL_WIDTH: Final = 1.1
HEAD_HEIGHT: Final = 0.26  # inches above a column for the title
SWATCH_SIZE: Final = 0.15
ENTRY_HEIGHT: Final = 0.25  # inches per line of the legend
MAX_LEGEND_CLASSES: Final = 36
"""Maximum number of classes in a legend, largest fraction first."""


class ClassLegend:
    """Legend of the classes that occur, in columns, largest fraction first."""

    def __init__(self, names: Sequence[str], fractions: MapArray, unit: str = "pixels") -> None:
        """`unit`: noun for the total of the fractions."""
        order = [int(at) for at in np.argsort(-fractions, kind="stable") if fractions[at] > 0]
        colors = class_colors(len(names))
        self.items = [(label(names[at], 24), colors[at], float(fractions[at])) for at in order[:MAX_LEGEND_CLASSES]]
        missing = len(order) - len(self.items)
        self.note = f"fraction of {unit}" + (f"; {missing} smaller classes not listed" if missing else "")
        self.entry_width = text_width((name for name, _, _ in self.items), 8.5) + SWATCH_SIZE + 0.75

    def columns(self, width: float) -> int:
        return max(1, min(int(width / self.entry_width), len(self.items)))

    def height(self, width: float) -> float:
        return -(-len(self.items) // self.columns(width)) * ENTRY_HEIGHT + ENTRY_HEIGHT

    def draw(self, axes: Axes, top: float, width: float) -> None:
        columns = self.columns(width)
        for number, (name, color, fraction) in enumerate(self.items):
            left, down = number % columns * (width / columns), top + number // columns * ENTRY_HEIGHT
            _draw_swatch(axes, left, down, color, name, 8.5, INK)
            end, middle = left + self.entry_width - 0.15, down + SWATCH_SIZE / 2
            axes.text(end, middle, percent(fraction), size=7.5, color=MUTED, va="center", ha="right")
        axes.text(0, top + self.height(width) - ENTRY_HEIGHT / 2, self.note, size=7.5, color=MUTED, va="center")


def percent(fraction: float) -> str:
    """Percentage with an additional digit for small fractions."""
    if fraction < 0.0005:
        return "< 0.1 %"
    return f"{100 * fraction:.0f} %" if fraction >= 0.0995 else f"{100 * fraction:.1f} %"


def _draw_swatch(
    axes: Axes, left: float, top: float, rgb: Sequence[int], name: str, size: float, text_color: str
) -> None:
    """Draw a square of one color with a name."""
    from matplotlib.patches import Rectangle

    color = tuple(part / 255 for part in rgb)
    style: dict[str, Any] = {"facecolor": color, "edgecolor": text_color, "linewidth": 0.4}
    axes.add_patch(Rectangle((left, top), SWATCH_SIZE, SWATCH_SIZE, **style))
    axes.text(left + SWATCH_SIZE + 0.08, top + SWATCH_SIZE / 2, name, size=size, color=text_color, va="center")


class ColorScale:
    """Color bar with labels for start, middle and end; `has_unknown` adds the color of unknown values."""

    def __init__(self, colors: ImageArray, names: tuple[str, str, str], has_unknown: bool = False) -> None:
        """`colors`: one row of pixels."""
        self.colors, self.names, self.has_unknown = colors, names, has_unknown

    def height(self, width: float) -> float:
        return 0.36

    def draw(self, axes: Axes, top: float, width: float) -> None:
        length = min(0.6 * width, 3.0)
        colors: Any = self.colors
        axes.imshow(colors, extent=(0, length, top + 0.12, top), aspect="auto", interpolation="nearest", zorder=1)
        for at, name, place in zip((0.0, length / 2, length), self.names, ("left", "center", "right"), strict=True):
            # the number is aligned with the bar, and the unit follows
            number, _, unit = name.partition(" ")
            axes.text(at, top + 0.17, number, size=8, color=MUTED, va="top", ha=place)
            axes.text(at + 0.05, top + 0.17, unit, size=8, color=MUTED, va="top", ha="left")
        if self.has_unknown:
            _draw_swatch(axes, length + 0.7, top - 0.01, UNKNOWN_COLOR, "unknown", 8, MUTED)


def draw_image(axes: Axes, image: ImageArray, left: float, top: float, width: float, smooth: bool) -> float:
    """Draw an image with a thin frame on a canvas. Returns the height in inches."""
    from matplotlib.patches import Rectangle

    height = width * image.shape[0] / image.shape[1]
    pixels: Any = np.repeat(image[..., None], 3, 2) if image.ndim == 2 else image
    interpolation, extent = "antialiased" if smooth else "nearest", (left, left + width, top + height, top)
    axes.imshow(pixels, extent=extent, interpolation=interpolation, aspect="auto", zorder=1)
    style: dict[str, Any] = {"edgecolor": LINE, "linewidth": 0.6, "zorder": 2, "clip_on": False}
    axes.add_patch(Rectangle((left, top), width, height, fill=False, **style))
    return height


def draw_panels(
    rows: Sequence[Sequence[ImageArray]],
    titles: Sequence[Sequence[str]],
    path: Path,
    title: str,
    subtitle: str,
    legend: ClassLegend | ColorScale,
    mark: tuple[float, float] | None = None,
) -> Path:
    """Draw panels in rows, each with one of `titles`, into a .png or .svg file. `mark`: a position in all panels, as fractions
    of height and width."""
    file_format = check_suffix(path, (".png", ".svg"))
    columns = max((len(row) for row in rows), default=0)
    if not columns:
        raise RegardError("No images to draw.")
    side = max(MIN_PANEL_WIDTH, min(MAX_PANEL_WIDTH, (MAX_WIDTH + GAP) / columns - GAP))
    heights = [side * max(panel.shape[0] / panel.shape[1] for panel in row) for row in rows]
    width = max(columns * (side + GAP) - GAP, 3.4)
    heads = [HEAD_HEIGHT if any(row) else 0.0 for row in titles]
    subtitle = wrap_text(subtitle, width, 8.5, 4) if subtitle else ""
    top = MARGIN + (0.24 if title else 0.0) + (0.22 + 0.17 * subtitle.count("\n") if subtitle else 0.0)
    height = sum(heights) + sum(heads) + GAP * len(rows) + legend.height(width) + 0.08
    with figure_style():
        sheet = Sheet(2 * MARGIN + width, top + height + MARGIN - 0.1)
        sheet.heading(label(title, int(width / (CHAR_WIDTH_PER_POINT * 13))) if title else "", subtitle)
        axes = sheet.canvas(MARGIN, top, width, height)
        down = 0.0
        for panels, names, head, row_height in zip(rows, titles, heads, heights, strict=True):
            down += head
            for column, (panel, name) in enumerate(zip(panels, names, strict=True)):
                left = column * (side + GAP)
                text = label(name, int(side / (CHAR_WIDTH_PER_POINT * 8.5))) if name else ""
                axes.text(left, down - 0.07, text, size=8.5, color=MUTED, va="bottom")
                panel_height = draw_image(axes, panel, left, down, side, smooth=panel.shape[1] >= 480)
                if mark is not None:
                    x, y = left + mark[1] * side, down + mark[0] * panel_height
                    for color, ring in (("black", 2.2), ("white", 1.1)):  # visible on dark and bright images
                        axes.plot(x, y, "o", ms=6, mfc="none", mec=color, mew=ring, zorder=3)
            down += row_height + GAP
        legend.draw(axes, down + 0.04, width)
        return sheet.save(path, file_format)


# -- contact sheets

SHEET_GAP: Final = 0.12
SHEET_WIDTH: Final = 10.0
LABEL_HEIGHT: Final = 0.22  # inches for the label below an image
MIN_SIDE: Final = 0.45  # minimum width of an image in inches
MAX_SIDE: Final = 1.3
BLANK_COLOR: Final = np.array(UNKNOWN_COLOR, dtype=np.uint8)
"""Color of pixels not yet generated."""


class LabeledImage(NamedTuple):
    image: ImageArray
    """bytes (H, W, 3), or (H, W) for grayscale"""
    label: str = ""
    """text below the image"""


class SheetRow(NamedTuple):
    """A row of images."""

    images: Sequence[LabeledImage]
    name: str = ""
    """text to the left of the row"""


def image_rows(images: Sequence[LabeledImage], columns: int = 8) -> list[SheetRow]:
    """The images in rows of `columns` images."""
    return [SheetRow(images[at : at + columns]) for at in range(0, len(images), columns)]


def blank_below(image: ImageArray, visible_rows: int) -> ImageArray:
    """The image with all pixels below the first `visible_rows` rows set to `BLANK_COLOR`."""
    visible = image.copy()
    visible[visible_rows:] = BLANK_COLOR
    return visible


def draw_contact_sheet(
    rows: Sequence[SheetRow], path: Path, title: str = "", subtitle: str = "", column_titles: Sequence[str] = ()
) -> Path:
    """Draw rows of images into a .png or .svg file, with `column_titles` above the columns. Pixels are not interpolated."""
    import matplotlib

    file_format = check_suffix(path, (".png", ".svg"))
    columns = max((len(row.images) for row in rows), default=0)
    if not columns:
        raise RegardError("No images to draw.")
    names = [label(row.name, max_width=28) if row.name else "" for row in rows]
    name_width = text_width(names, 8.5) + 0.15 if any(names) else 0.0
    side = min(MAX_SIDE, max(MIN_SIDE, SHEET_WIDTH / columns - SHEET_GAP))
    max_chars = max(int(side / (CHAR_WIDTH_PER_POINT * 8.5) * 1.1), 4)
    below = LABEL_HEIGHT if any(item.label for row in rows for item in row.images) else 0.0
    ratios = [[item.image.shape[0] / item.image.shape[1] for item in row.images] for row in rows]
    heights = [side * max(row, default=1.0) for row in ratios]
    top = MARGIN + (0.35 if title else 0.0) + (0.3 if subtitle else 0.0) + (0.25 if column_titles else 0.0)
    width, height = columns * (side + SHEET_GAP) - SHEET_GAP, sum(heights) + len(rows) * (below + SHEET_GAP) - SHEET_GAP
    with figure_style():
        matplotlib.rcParams["image.composite_image"] = False  # keeps images separate in .svg files
        sheet = Sheet(max(2 * MARGIN + name_width + width, 4.0), top + height + MARGIN)
        sheet.heading(label(title, max_width=80) if title else "", subtitle)
        axes = sheet.canvas(MARGIN + name_width, top, width, height)
        style: dict[str, Any] = {"color": MUTED, "ha": "center"}
        for column, text in enumerate(column_titles):
            middle = column * (side + SHEET_GAP) + side / 2
            axes.text(middle, -0.08, label(text, max_chars), size=8.5, va="bottom", **style)
        down = 0.0
        for row, name, row_height in zip(rows, names, heights, strict=True):
            axes.text(-0.15, down + row_height / 2, name, size=8.5, color=INK, ha="right", va="center")
            for column, item in enumerate(row.images):
                left = column * (side + SHEET_GAP)
                bottom = down + draw_image(axes, item.image, left, down, side, smooth=False)
                text = label(item.label, max_chars) if item.label else ""
                axes.text(left + side / 2, bottom + 0.05, text, size=7.5, va="top", **style)
            down += row_height + below + SHEET_GAP
        return sheet.save(path, file_format)


# -- captions

CAPTION_COLUMNS: Final = 4
CAPTION_SIZE: Final = (2.7, 2.2)  # inches, maximum width and height of an image
CAPTION_HEIGHT: Final = 1.2  # inches below the image
CAPTION_GAP: Final = 0.3
CAPTION_LINES: Final = 3


class CaptionSample(NamedTuple):
    image: ImageArray
    """bytes (H, W, 3)"""
    prediction: str
    reference: str


def draw_captions(
    samples: Sequence[CaptionSample], path: Path, title: str = "Generated and reference captions"
) -> Path:
    """Draw images with generated and reference captions into a .png or .svg file."""
    file_format = check_suffix(path, (".png", ".svg"))
    if not samples:
        raise RegardError("No images to draw.")
    across, down = CAPTION_SIZE[0] + CAPTION_GAP, CAPTION_SIZE[1] + CAPTION_HEIGHT + CAPTION_GAP
    width = min(len(samples), CAPTION_COLUMNS) * across - CAPTION_GAP
    height = -(-len(samples) // CAPTION_COLUMNS) * down - CAPTION_GAP
    with figure_style():
        sheet = Sheet(max(2 * MARGIN + width, 5.0), 2 * MARGIN + 0.4 + height)
        sheet.heading(title, "")
        axes = sheet.canvas(MARGIN, MARGIN + 0.4, width, height)
        for number, sample in enumerate(samples):
            left, base = number % CAPTION_COLUMNS * across, number // CAPTION_COLUMNS * down + CAPTION_SIZE[1]
            ratio = sample.image.shape[0] / sample.image.shape[1]
            side = min(CAPTION_SIZE[0], CAPTION_SIZE[1] / ratio)
            draw_image(axes, sample.image, left, base - side * ratio, side, smooth=True)
            texts = (sample.prediction if sample.prediction.strip() else "(empty)", sample.reference)
            prediction, reference = (wrap_text(text, CAPTION_SIZE[0], 8.5, CAPTION_LINES) for text in texts)
            style: dict[str, Any] = {"size": 8.5, "va": "top", "linespacing": 1.3}
            axes.text(left, base + 0.08, prediction, color=ACCENT, weight="bold", **style)
            axes.text(left, base + 0.12 + 0.165 * (prediction.count("\n") + 1), reference, color=MUTED, **style)
        return sheet.save(path, file_format)
