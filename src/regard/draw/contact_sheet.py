"""Contact sheets: small pictures side by side, with what they are written beside and below them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.draw.colormap import INK, LINE, QUIET
from regard.draw.figure import Sheet, check_ending, styled
from regard.draw.token_label import columns, label
from regard.errors import RegardError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Picture = npt.NDArray[np.uint8]

MARGIN: Final = 0.45
GAP: Final = 0.12
BELOW: Final = 0.22  # inches for a line under a picture
LETTER: Final = 0.61 * 8.5 / 72  # inches of a letter of a name
WIDE: Final = 10.0
LEAST: Final = 0.45  # inches of the side of a picture
MOST: Final = 1.3
BLANK: Final = np.array([228, 232, 238], dtype=np.uint8)
"""where a picture has nothing yet"""


class Shown(NamedTuple):
    picture: Picture
    """bytes (H, W, 3), or (H, W) of greys"""
    label: str = ""
    """a line under it"""


class Line(NamedTuple):
    """A row of a sheet."""

    pictures: Sequence[Shown]
    name: str = ""
    """to its left"""


def grid(pictures: Sequence[Shown], across: int = 8) -> list[Line]:
    """The pictures in rows of so many."""
    return [Line(pictures[at : at + across]) for at in range(0, len(pictures), across)]


def hidden(picture: Picture, rows: int) -> Picture:
    """The picture without what stands below its first rows."""
    kept = picture.copy()
    kept[rows:] = BLANK
    return kept


def contact_sheet(
    lines: Sequence[Line], path: Path, title: str = "", about: str = "", heads: Sequence[str] = ()
) -> Path:
    """Into a .png or .svg file; `heads` stand above the columns. Pixels are drawn as they are, none is made up between."""
    ending = check_ending(path, (".png", ".svg"))
    many = max((len(line.pictures) for line in lines), default=0)
    if not many:
        raise RegardError("there is no picture to draw.")
    names = [label(line.name, limit=28) if line.name else "" for line in lines]
    beside = max(map(columns, names)) * LETTER + 0.15 if any(names) else 0.0
    side = min(MOST, max(LEAST, WIDE / many - GAP))
    below = BELOW if any(shown.label for line in lines for shown in line.pictures) else 0.0
    high = [side * max((_ratio(shown.picture) for shown in line.pictures), default=1.0) for line in lines]
    top = MARGIN + (0.35 if title else 0.0) + (0.3 if about else 0.0) + (0.25 if heads else 0.0)
    width, height = many * (side + GAP) - GAP, sum(high) + len(lines) * (below + GAP) - GAP
    import matplotlib

    with styled():
        matplotlib.rcParams["image.composite_image"] = False  # each stays a picture of its own in an .svg
        sheet = Sheet(max(2 * MARGIN + beside + width, 4.0), top + height + MARGIN)
        sheet.text(MARGIN, MARGIN - 0.1, label(title, limit=80) if title else "", size=13, weight="bold")
        sheet.text(MARGIN, MARGIN + (0.22 if title else -0.1), about, size=8.5, colour=QUIET)
        axes = _board(sheet.axes(MARGIN + beside, top, width, height), width, height)
        for column, head in enumerate(heads):
            middle = column * (side + GAP) + side / 2
            axes.text(middle, -0.08, label(head, _letters(side)), size=8.5, color=QUIET, ha="center", va="bottom")
        down = 0.0
        for line, name, tall in zip(lines, names, high, strict=True):
            axes.text(-0.15, down + tall / 2, name, size=8.5, color=INK, ha="right", va="center")
            for column, shown in enumerate(line.pictures):
                _put(axes, shown, column * (side + GAP), down, side)
            down += tall + below + GAP
        return sheet.save(path, ending)


def _board(axes: Axes, width: float, height: float) -> Axes:
    """Measured in inches from its top left corner, like the sheet."""
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_axis_off()
    return axes


def _put(axes: Axes, shown: Shown, left: float, top: float, side: float) -> None:
    from matplotlib.patches import Rectangle

    picture: Any = shown.picture if shown.picture.ndim == 3 else np.repeat(shown.picture[..., None], 3, 2)
    tall = side * _ratio(picture)
    box = (left, left + side, top + tall, top)
    axes.imshow(picture, extent=box, interpolation="nearest", aspect="auto", zorder=1)
    axes.add_patch(Rectangle((left, top), side, tall, fill=False, edgecolor=LINE, linewidth=0.6, zorder=2))
    if shown.label:
        text = label(shown.label, _letters(side))
        axes.text(left + side / 2, top + tall + 0.05, text, size=7.5, color=QUIET, ha="center", va="top")


def _ratio(picture: Picture) -> float:
    return picture.shape[0] / picture.shape[1]


def _letters(side: float) -> int:
    return max(int(side / LETTER * 1.1), 4)
