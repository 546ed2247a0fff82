"""Contact sheets: rows of small images with labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.draw.colors import INK, LINE, MUTED
from regard.draw.figure import Sheet, check_suffix, figure_style
from regard.draw.text import display_width, label
from regard.errors import RegardError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ImageArray = npt.NDArray[np.uint8]

MARGIN: Final = 0.45
GAP: Final = 0.12
LABEL_HEIGHT: Final = 0.22  # inches for the label below an image
CHAR_WIDTH: Final = 0.61 * 8.5 / 72  # inches per character of a label
MAX_WIDTH: Final = 10.0
MIN_SIDE: Final = 0.45  # minimum width of an image in inches
MAX_SIDE: Final = 1.3
BLANK_COLOR: Final = np.array([228, 232, 238], dtype=np.uint8)
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
    kept = image.copy()
    kept[visible_rows:] = BLANK_COLOR
    return kept


def draw_contact_sheet(
    rows: Sequence[SheetRow], path: Path, title: str = "", subtitle: str = "", column_titles: Sequence[str] = ()
) -> Path:
    """Draw rows of images into a .png or .svg file, with `column_titles` above the columns. Pixels are not interpolated."""
    ending = check_suffix(path, (".png", ".svg"))
    many = max((len(line.images) for line in rows), default=0)
    if not many:
        raise RegardError("No images to draw.")
    names = [label(line.name, max_width=28) if line.name else "" for line in rows]
    beside = max(map(display_width, names)) * CHAR_WIDTH + 0.15 if any(names) else 0.0
    side = min(MAX_SIDE, max(MIN_SIDE, MAX_WIDTH / many - GAP))
    below = LABEL_HEIGHT if any(shown.label for line in rows for shown in line.images) else 0.0
    high = [side * max((_aspect_ratio(shown.image) for shown in line.images), default=1.0) for line in rows]
    top = MARGIN + (0.35 if title else 0.0) + (0.3 if subtitle else 0.0) + (0.25 if column_titles else 0.0)
    width, height = many * (side + GAP) - GAP, sum(high) + len(rows) * (below + GAP) - GAP
    import matplotlib

    with figure_style():
        matplotlib.rcParams["image.composite_image"] = False  # keeps images separate in .svg files
        sheet = Sheet(max(2 * MARGIN + beside + width, 4.0), top + height + MARGIN)
        sheet.text(MARGIN, MARGIN - 0.1, label(title, max_width=80) if title else "", size=13, weight="bold")
        sheet.text(MARGIN, MARGIN + (0.22 if title else -0.1), subtitle, size=8.5, color=MUTED)
        axes = _inch_axes(sheet.axes(MARGIN + beside, top, width, height), width, height)
        for column, head in enumerate(column_titles):
            middle = column * (side + GAP) + side / 2
            axes.text(middle, -0.08, label(head, _max_chars(side)), size=8.5, color=MUTED, ha="center", va="bottom")
        down = 0.0
        for line, name, tall in zip(rows, names, high, strict=True):
            axes.text(-0.15, down + tall / 2, name, size=8.5, color=INK, ha="right", va="center")
            for column, shown in enumerate(line.images):
                _draw_image(axes, shown, column * (side + GAP), down, side)
            down += tall + below + GAP
        return sheet.save(path, ending)


def _inch_axes(axes: Axes, width: float, height: float) -> Axes:
    """Set the axes to inches from the top left corner, as on the sheet."""
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_axis_off()
    return axes


def _draw_image(axes: Axes, shown: LabeledImage, left: float, top: float, side: float) -> None:
    from matplotlib.patches import Rectangle

    picture: Any = shown.image if shown.image.ndim == 3 else np.repeat(shown.image[..., None], 3, 2)
    tall = side * _aspect_ratio(picture)
    box = (left, left + side, top + tall, top)
    axes.imshow(picture, extent=box, interpolation="nearest", aspect="auto", zorder=1)
    axes.add_patch(Rectangle((left, top), side, tall, fill=False, edgecolor=LINE, linewidth=0.6, zorder=2))
    if shown.label:
        text = label(shown.label, _max_chars(side))
        axes.text(left + side / 2, top + tall + 0.05, text, size=7.5, color=MUTED, ha="center", va="top")


def _aspect_ratio(picture: ImageArray) -> float:
    return picture.shape[0] / picture.shape[1]


def _max_chars(side: float) -> int:
    return max(int(side / CHAR_WIDTH * 1.1), 4)
