"""F1, precision, recall and support of each class as a bar chart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from regard.draw.colormap import ACCENT, INK, LIGHT, LINE, MUTED, WARM
from regard.draw.figure import Sheet, check_suffix, figure_style
from regard.draw.token_label import display_width, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARGIN: Final = 0.45
ROW_HEIGHT: Final = 0.36
CHAR_WIDTH: Final = 0.61 * 9.5 / 72  # inches per character of a class name
PLOT_WIDTH: Final = 4.6
COUNT_WIDTH: Final = 1.5
PRECISION_MARKER: Final = ("o", 5.2, "white")
RECALL_MARKER: Final = ("D", 4.6, WARM)
"""marker shape, size and fill color"""
MAX_LABELS: Final = 40
"""maximum number of labels, most frequent first"""


class LabelScore(NamedTuple):
    name: str
    f1: float
    """from 0 to 1, as precision and recall"""
    precision: float
    recall: float
    support: int
    """number of occurrences in the reference"""


def draw_per_label(scores: Sequence[LabelScore], overall: LabelScore, unit: str, path: Path) -> Path:
    """Draw one row per label, most frequent first, below a row for all labels. `unit`: plural of the counted items."""
    ending = check_suffix(path, (".png", ".svg"))
    shown = sorted(scores, key=lambda bar: (-bar.support, bar.name))[:MAX_LABELS]
    rows = [overall, *shown]
    names = [label(bar.name, max_width=28) for bar in rows]
    left = MARGIN + max(map(display_width, names)) * CHAR_WIDTH + 0.2
    top, high = MARGIN + 0.95, ROW_HEIGHT * (len(rows) + 0.35)
    with figure_style():
        sheet = Sheet(left + PLOT_WIDTH + 0.85 + COUNT_WIDTH + 0.75 + MARGIN, top + high + 0.15 + MARGIN)
        sheet.text(MARGIN, MARGIN - 0.1, "Per-class F1", size=15, weight="bold")
        rest = f". {MAX_LABELS} most frequent of {len(scores):,} classes" if len(scores) > MAX_LABELS else ""
        sheet.text(
            MARGIN,
            MARGIN + 0.25,
            f"Overall {100 * overall.f1:.2f} ({overall.support:,} {unit}){rest}",
            size=9,
            color=MUTED,
        )
        places = [-0.35 * (number > 0) - number for number in range(len(rows))]  # space below the first row
        axes = _style_axes(sheet.axes(left, top, PLOT_WIDTH, high), places)
        axes.set_yticks(places, names, size=9.5, color=INK)
        axes.get_yticklabels()[0].set_fontweight("bold")
        for place, bar in zip(places, rows, strict=True):
            _draw_bar(axes, place, bar, first=bar is overall)
        _draw_legend(axes)
        _draw_counts(sheet.axes(left + PLOT_WIDTH + 0.85, top, COUNT_WIDTH, high), places, rows, unit)
        return sheet.save(path, ending)


def _style_axes(axes: Axes, places: Sequence[float]) -> Axes:
    axes.set_xlim(0, 100)
    axes.set_ylim(places[-1] - 0.55, 0.55)
    axes.set_xticks(range(0, 101, 20))
    axes.grid(axis="x", color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0, labelsize=8, pad=5)
    return axes


def _draw_bar(axes: Axes, place: float, bar: LabelScore, first: bool) -> None:
    height = 0.56 if first else 0.46
    axes.barh(place, 100 * bar.f1, height=height, color=ACCENT if first else LIGHT[4], zorder=2)
    low, high = sorted((100 * bar.precision, 100 * bar.recall))
    axes.plot([low, high], [place, place], color=INK, linewidth=1, zorder=3, clip_on=False)
    for value, (shape, size, fill) in ((bar.precision, PRECISION_MARKER), (bar.recall, RECALL_MARKER)):
        axes.plot(
            100 * value, place, shape, markersize=size, markerfacecolor=fill, markeredgecolor=INK, markeredgewidth=1,
            zorder=4, clip_on=False,
        )  # fmt: skip
    axes.text(
        103, place, f"{100 * bar.f1:.1f}", size=9.5, color=INK, va="center", ha="left", weight="bold" if first else "normal"
    )  # fmt: skip


def _draw_legend(axes: Axes) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    marks = [
        Line2D([], [], marker=shape, linestyle="", markersize=size, markerfacecolor=fill, markeredgecolor=INK)
        for shape, size, fill in (PRECISION_MARKER, RECALL_MARKER)
    ]
    axes.legend(
        [Patch(color=LIGHT[4]), *marks], ["F1", "precision", "recall"], loc="lower left", bbox_to_anchor=(-0.01, 1.0),
        ncols=3, fontsize=8.5, labelcolor=MUTED, frameon=False, handlelength=1.0, handletextpad=0.5, columnspacing=1.4,
        borderaxespad=0.3, borderpad=0.0,
    )  # fmt: skip


def _draw_counts(axes: Axes, places: Sequence[float], rows: Sequence[LabelScore], unit: str) -> None:
    """Draw the support of each label, because a score from few occurrences is unreliable."""
    most = max([bar.support for bar in rows[1:]], default=0) or 1
    axes.set_xlim(0, most)
    axes.set_ylim(places[-1] - 0.55, 0.55)
    axes.set_axis_off()
    axes.text(0, 0.66, unit, size=8.5, color=MUTED, va="bottom", ha="left")
    for place, bar in zip(places[1:], rows[1:], strict=True):
        axes.barh(place, bar.support, height=0.22, color=LINE, zorder=2)
        axes.text(bar.support + 0.05 * most, place, f"{bar.support:,}", size=8.5, color=MUTED, va="center", ha="left")
    axes.text(0, 0, f"{rows[0].support:,}", size=8.5, color=INK, va="center", ha="left", weight="bold")
