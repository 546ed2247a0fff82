"""Figures with rows of image panels and a legend below."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from regard.draw.colors import INK, LINE, MUTED, UNKNOWN_COLOR, ImageArray, MapArray, class_colors
from regard.draw.figure import CHAR_WIDTH_PER_POINT, Sheet, check_suffix, figure_style, wrap_text
from regard.draw.text import display_width, label
from regard.errors import RegardError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARGIN: Final = 0.45
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
        colours = class_colors(len(names))
        self.items = [(label(names[at], 24), colours[at], float(fractions[at])) for at in order[:MAX_LEGEND_CLASSES]]
        more = (
            f"; {len(order) - MAX_LEGEND_CLASSES} smaller classes not listed" if len(order) > MAX_LEGEND_CLASSES else ""
        )
        self.note = f"fraction of {unit}{more}"
        self.entry_width = (
            max((display_width(name) for name, _, _ in self.items), default=1) * CHAR_WIDTH_PER_POINT * 8.5
            + SWATCH_SIZE
            + 0.75
        )

    def columns(self, width: float) -> int:
        return max(1, min(int(width / self.entry_width), len(self.items)))

    def height(self, width: float) -> float:
        return -(-len(self.items) // self.columns(width)) * ENTRY_HEIGHT + ENTRY_HEIGHT

    def draw(self, axes: Axes, top: float, width: float) -> None:
        from matplotlib.patches import Rectangle

        across = self.columns(width)
        for number, (name, colour, share) in enumerate(self.items):
            left, down = number % across * (width / across), top + number // across * ENTRY_HEIGHT
            rgb = tuple(part / 255 for part in colour)
            axes.add_patch(
                Rectangle((left, down), SWATCH_SIZE, SWATCH_SIZE, facecolor=rgb, edgecolor=INK, linewidth=0.4)
            )
            axes.text(left + SWATCH_SIZE + 0.08, down + SWATCH_SIZE / 2, name, size=8.5, color=INK, va="center")
            beside = left + self.entry_width - 0.15
            axes.text(beside, down + SWATCH_SIZE / 2, percent(share), size=7.5, color=MUTED, va="center", ha="right")
        axes.text(0, top + self.height(width) - ENTRY_HEIGHT / 2, self.note, size=7.5, color=MUTED, va="center")


def percent(fraction: float) -> str:
    """Percentage with an additional digit for small fractions."""
    return (
        f"{100 * fraction:.0f} %"
        if fraction >= 0.0995
        else f"{100 * fraction:.1f} %"
        if fraction >= 0.0005
        else "< 0.1 %"
    )


class ColorScale:
    """Color bar with labels for start, middle and end; `has_unknown` adds the color of unknown values."""

    def __init__(self, colors: ImageArray, names: tuple[str, str, str], has_unknown: bool = False) -> None:
        """`colors`: one row of pixels."""
        self.colors, self.names, self.has_unknown = colors, names, has_unknown

    def height(self, width: float) -> float:
        return 0.36

    def draw(self, axes: Axes, top: float, width: float) -> None:
        from matplotlib.patches import Rectangle

        long = min(0.6 * width, 3.0)
        colours: Any = self.colors
        axes.imshow(colours, extent=(0, long, top + 0.12, top), aspect="auto", interpolation="nearest", zorder=1)
        for at, name, place in zip((0.0, long / 2, long), self.names, ("left", "center", "right"), strict=True):
            # the number is aligned with the bar, and the unit follows
            number, _, unit = name.partition(" ")
            axes.text(at, top + 0.17, number, size=8, color=MUTED, va="top", ha=place)
            axes.text(at + 0.05, top + 0.17, unit, size=8, color=MUTED, va="top", ha="left")
        if self.has_unknown:
            grey, left = tuple(part / 255 for part in UNKNOWN_COLOR), long + 0.7
            axes.add_patch(
                Rectangle((left, top - 0.01), SWATCH_SIZE, SWATCH_SIZE, facecolor=grey, edgecolor=MUTED, linewidth=0.4)
            )
            axes.text(left + SWATCH_SIZE + 0.08, top + 0.06, "unknown", size=8, color=MUTED, va="center")


def draw_panels(
    rows: Sequence[Sequence[ImageArray]], names: Sequence[Any], path: Path, title: str, subtitle: str,
    legend: ClassLegend | ColorScale, mark: tuple[float, float] | None = None,
) -> Path:  # fmt: skip
    """Draw panels in rows. `names`: one name per row if the columns have fixed meanings, or one name per panel."""
    ending = check_suffix(path, (".png", ".svg"))
    many = max((len(row) for row in rows), default=0)
    if not many:
        raise RegardError("No images to draw.")
    side = max(MIN_PANEL_WIDTH, min(MAX_PANEL_WIDTH, (MAX_WIDTH + GAP) / many - GAP))
    heights = [side * max(panel.shape[0] / panel.shape[1] for panel in row) for row in rows]
    width = max(many * (side + GAP) - GAP, 3.4)
    heads: Callable[[int, int], str] = lambda row, column: _panel_title(names[row], row, column)  # noqa: E731
    above = [
        HEAD_HEIGHT if any(heads(row, column) for column in range(len(rows[row]))) else 0.0 for row in range(len(rows))
    ]
    subtitle = wrap_text(subtitle, width, 8.5, 4)
    top = MARGIN + (0.24 if title else 0.0) + (0.22 + 0.17 * subtitle.count("\n") if subtitle else 0.0)
    height = sum(heights) + sum(above) + GAP * len(rows) + legend.height(width) + 0.08
    with figure_style():
        sheet = Sheet(2 * MARGIN + width, top + height + MARGIN - 0.1)
        sheet.text(
            MARGIN,
            MARGIN - 0.1,
            label(title, int(width / (CHAR_WIDTH_PER_POINT * 13))) if title else "",
            13,
            weight="bold",
        )
        sheet.text(MARGIN, MARGIN + (0.2 if title else -0.1), subtitle, size=8.5, color=MUTED)
        axes = sheet.axes(MARGIN, top, width, height)
        axes.set_axis_off()
        down = 0.0
        for row, panels in enumerate(rows):
            for column, panel in enumerate(panels):
                left = column * (side + GAP)
                head = label(heads(row, column), int(side / (CHAR_WIDTH_PER_POINT * 8.5))) if heads(row, column) else ""
                axes.text(left, down + above[row] - 0.07, head, size=8.5, color=MUTED, va="bottom")
                _draw_image(axes, panel, left, down + above[row], side, mark)
            down += above[row] + heights[row] + GAP
        legend.draw(axes, down + 0.04, width)
        axes.set_xlim(0, width)
        axes.set_ylim(height, 0)
        return sheet.save(path, ending)


COLUMN_NAMES: Final = ("image", "prediction", "label")


def _panel_title(names: Any, row: int, column: int) -> str:
    if not isinstance(names, str):
        return str(names[column])
    meaning = COLUMN_NAMES[column] if row == 0 else ""
    return (names or meaning) if column == 0 else meaning


def _draw_image(
    axes: Axes, panel: ImageArray, left: float, top: float, side: float, mark: tuple[float, float] | None
) -> None:  # fmt: skip
    from matplotlib.patches import Rectangle

    tall = side * panel.shape[0] / panel.shape[1]
    colours: Any = np.repeat(panel[..., None], 3, 2) if panel.ndim == 2 else panel
    box = (left, left + side, top + tall, top)
    way = "nearest" if panel.shape[1] < 480 else "antialiased"
    axes.imshow(colours, extent=box, interpolation=way, aspect="auto", zorder=1)
    axes.add_patch(
        Rectangle((left, top), side, tall, fill=False, edgecolor=LINE, linewidth=0.6, zorder=2, clip_on=False)
    )
    if mark is not None:
        for colour, wide in (("black", 2.2), ("white", 1.1)):  # visible on dark and bright images
            axes.plot(
                left + mark[1] * side, top + mark[0] * tall, "o", ms=6, mfc="none", mec=colour, mew=wide, zorder=3
            )
