"""Figures with positions in inches from the top left corner, fonts, parts of charts, legends, and atomic file writes."""

from __future__ import annotations

import os
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.draw.colors import INK, LIGHT, LINE, MUTED, UNKNOWN_COLOR, ImageArray, MapArray, class_colors, colormap
from regard.draw.text import display_width, label
from regard.errors import InputError, RegardError
from regard.threads import suppress_warnings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

DPI: Final = 160
MARGIN: Final = 0.45  # inches around every figure
CHAR_WIDTH_PER_POINT: Final = 0.61 / 72  # inches per character and point of font size, slightly overestimated

# DejaVu is part of matplotlib; the other fonts, if installed, add missing scripts.
_FONTS: Final = (
    "DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "Microsoft YaHei", "Hiragino Sans",
    "PingFang SC", "Malgun Gothic", "Arial Unicode MS", "Noto Sans Devanagari", "Nirmala UI", "Noto Emoji",
)  # fmt: skip


_drawing = threading.RLock()  # One figure at a time: the settings of matplotlib belong to the process.


def check_suffix(path: Path, suffixes: Sequence[str]) -> str:
    """Return the file extension without the dot. Raise if the extension is not one of `suffixes`."""
    if path.suffix.lower() not in suffixes:
        raise InputError(
            f"Unsupported file type '{path}': use {' or '.join(suffixes)} here "
            "(.png and .svg for figures, .html for the interactive page)."
        )
    return path.suffix.lower()[1:]


def write_atomic(path: Path, write: Callable[[Path], object]) -> Path:
    """Write a temporary file in the same folder, then rename the file to `path`, so that no partial file is ever visible."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise RegardError(f"Cannot write '{path}': {error.strerror or error}.") from error
    finally:
        with suppress(OSError):
            temporary.unlink()
    return path


def wrap_text(text: str, inches: float, size: float, max_lines: int) -> str:
    """The text wrapped at `inches`, with an ellipsis if more than `max_lines` lines are needed."""
    columns = max(12, int(inches / (CHAR_WIDTH_PER_POINT * size)))
    visible = label(" ".join(text.split()), max_width=2000) if text else ""
    return "\n".join(textwrap.wrap(visible, columns, max_lines=max_lines, placeholder=" …"))


@contextmanager
def new_figure(
    path: Path, width: float, height: float, title: str = "", subtitle: str = "", size: float = 13
) -> Iterator[Sheet]:
    """A sheet of `width` × `height` inches with title and subtitle, saved as a .png or .svg file at the end of the block.

    The matplotlib settings are fixed, independent of the settings of the user, which are restored afterwards."""
    import matplotlib
    from matplotlib import font_manager
    from matplotlib.figure import Figure

    file_format = check_suffix(path, (".png", ".svg"))
    installed = {font.name for font in font_manager.fontManager.ttflist}
    glyphs = "Glyph|Matplotlib currently does not support"
    with _drawing, matplotlib.rc_context(), suppress_warnings(message=glyphs):
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "font.family": [name for name in _FONTS if name in installed],
                "text.parse_math": False,  # tokens may contain dollar signs
                "text.color": INK,
                "axes.edgecolor": LINE,
                "axes.labelcolor": MUTED,
                "xtick.color": MUTED,
                "ytick.color": MUTED,
                "svg.fonttype": "none",  # text stays searchable, and browsers have every glyph
                "svg.hashsalt": "regard",
                "axes.unicode_minus": False,
                "legend.fontsize": 8.5,
                "legend.labelcolor": INK,
                "legend.facecolor": "white",
                "legend.edgecolor": "none",
                "legend.framealpha": 0.9,
            }
        )
        sheet = Sheet(width, height, Figure(figsize=(width, height), dpi=DPI, facecolor="white"))
        sheet.text(MARGIN, MARGIN - 0.1, title, size, weight="bold")
        gap = size / 54 * (title.count("\n") + 1) + 0.06 if title else 0.0  # 1.3 times the font size per line
        sheet.text(MARGIN, MARGIN - 0.1 + gap, subtitle, 8.5, MUTED)
        yield sheet
        metadata = {"Date": None} if file_format == "svg" else None
        write_atomic(path, lambda to: sheet.figure.savefig(to, format=file_format, dpi=DPI, metadata=metadata))


class Sheet(NamedTuple):
    """A white figure with positions in inches from the top left corner."""

    width: float
    height: float
    figure: Figure

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        bottom = self.height - top - height
        return self.figure.add_axes((left / self.width, bottom / self.height, width / self.width, height / self.height))

    def canvas(self, left: float, top: float, width: float, height: float) -> Axes:
        """Axes without ticks and frame; positions are inches from the top left corner of the axes."""
        axes = self.axes(left, top, width, height)
        axes.set_xlim(0, width)
        axes.set_ylim(height, 0)
        axes.set_axis_off()
        axes.set_autoscale_on(False)
        return axes

    def text(self, left: float, top: float, text: str, size: float, color: str = INK, weight: str = "normal") -> None:
        at = left / self.width, 1 - top / self.height
        self.figure.text(*at, text, size=size, color=color, weight=weight, va="top", ha="left", linespacing=1.3)

    def colorbar(
        self, left: float, top: float, width: float, cmap: Colormap, max_value: float, tick_labels: tuple[str, str, str]
    ) -> None:
        """Draw a color bar with labels for 0, half and all of `max_value`."""
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        bar = self.axes(left, top, width, 0.11)
        scale = ScalarMappable(Normalize(0, max_value), cmap)
        self.figure.colorbar(scale, cax=bar, orientation="horizontal", ticks=[0, max_value / 2, max_value])
        bar.set_xticklabels(tick_labels, size=7.5)
        bar.get_xticklabels()[-1].set_horizontalalignment("left")
        bar.tick_params(length=2, pad=2)


def style_axes(axes: Axes, title: str = "", grid: Literal["both", "x", "y"] = "y") -> None:
    """Set the title, grid lines below the data, and no frame except the bottom line."""
    axes.set_title(title, loc="left", size=10.5, weight="bold", pad=6)
    axes.grid(axis=grid, color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(which="both", length=0, labelsize=8)


def mark_point(axes: Axes, x: float, y: float, text: str, color: str) -> None:
    """Draw a ring around a point, and a text next to the point on the side with more space."""
    axes.plot([x], [y], marker="o", markersize=10, markerfacecolor="none", markeredgecolor=color, zorder=4)
    leftward = x > sum(axes.get_xlim()) / 2
    axes.annotate(
        text,
        (x, y),
        xytext=(-12 if leftward else 12, 16),
        textcoords="offset points",
        ha="right" if leftward else "left",
        size=9,
        color=color,
        weight="bold",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
    )


def draw_matrix(
    axes: Axes,
    fractions: NDArray[np.floating[Any]],
    rows: Mapping[int, str],
    columns: Mapping[int, str],
    font_sizes: tuple[float, float],
    cell_texts: Mapping[tuple[int, ...], str],
    text_size: float,
    angle: int = 45,
) -> None:
    """Draw a matrix as a heatmap with text in some cells. `rows` and `columns`: labels by index; `font_sizes`: of both."""
    axes.imshow(fractions, cmap=colormap(LIGHT), vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    axes.xaxis.tick_top()
    axes.set_xticks(
        list(columns),
        list(columns.values()),
        size=font_sizes[1],
        color=INK,
        rotation=angle,
        rotation_mode="anchor",
        ha="left",
        va="center" if angle == 90 else "baseline",
    )
    axes.set_yticks(list(rows), list(rows.values()), size=font_sizes[0], color=INK)
    axes.tick_params(length=0, pad=3)
    for (row, column), text in cell_texts.items():
        color = "white" if fractions[row, column] > 0.45 else INK
        axes.text(column, row, text, size=text_size, color=color, ha="center", va="center")


def text_width(texts: Iterable[str], size: float) -> float:
    """Width of the widest text in inches at the font size `size`, slightly overestimated."""
    return max(map(display_width, texts), default=0) * CHAR_WIDTH_PER_POINT * size


# -- legends of images

SWATCH_SIZE: Final = 0.15
ENTRY_HEIGHT: Final = 0.25  # inches per line of the legend
MAX_LEGEND_CLASSES: Final = 36  # largest fraction first


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


class ColorScale(NamedTuple):
    """Color bar with labels for start, middle and end, or with a note to the right."""

    colors: ImageArray  # one row of pixels
    names: tuple[str, str, str] = ("", "", "")
    has_unknown: bool = False  # True to add the color of unknown values
    note: str = ""

    def height(self, width: float) -> float:
        return 0.36

    def draw(self, axes: Axes, top: float, width: float) -> None:
        length = 1.2 if self.note else min(0.6 * width, 3.0)
        pixels: Any = self.colors
        axes.imshow(pixels, extent=(0, length, top + 0.12, top), aspect="auto", interpolation="nearest", zorder=1)
        for at, name, place in zip((0.0, length / 2, length), self.names, ("left", "center", "right"), strict=True):
            # the number is aligned with the bar, and the unit follows
            number, _, unit = name.partition(" ")
            axes.text(at, top + 0.17, number, size=8, color=MUTED, va="top", ha=place)
            axes.text(at + 0.05, top + 0.17, unit, size=8, color=MUTED, va="top", ha="left")
        note = wrap_text(self.note, width - length - 0.12, 8, 2)
        axes.text(length + 0.12, top - 0.02, note, size=8, color=MUTED, va="top", linespacing=1.3)
        if self.has_unknown:
            _draw_swatch(axes, length + 0.7, top - 0.01, UNKNOWN_COLOR, "unknown", 8, MUTED)
