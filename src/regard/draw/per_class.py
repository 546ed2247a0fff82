"""How well each kind or class is found: bars of F1 with precision and recall, and how many there are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from regard.draw.colormap import ACCENT, INK, LIGHT, LINE, QUIET, WARM
from regard.draw.figure import Sheet, check_ending, styled
from regard.draw.token_label import columns, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARGIN: Final = 0.45
ROW: Final = 0.36
LETTER: Final = 0.61 * 9.5 / 72  # inches of a letter of a name
WIDE: Final = 4.6
COUNTS: Final = 1.5
PRECISION: Final = ("o", 5.2, "white")
RECALL: Final = ("D", 4.6, WARM)
"""the shapes of marks, their sizes and colours"""
MANY: Final = 40
"""labels that are drawn, the most frequent first"""


class Bar(NamedTuple):
    name: str
    f1: float
    """from 0 to 1, as the others"""
    precision: float
    recall: float
    many: int
    """there are"""


def draw_per_label(bars: Sequence[Bar], whole: Bar, unit: str, path: Path) -> Path:
    """A row for each label, the most frequent first, below one for all; `unit` is what is counted. Into .png or .svg."""
    ending = check_ending(path, (".png", ".svg"))
    shown = sorted(bars, key=lambda bar: (-bar.many, bar.name))[:MANY]
    rows = [whole, *shown]
    names = [label(bar.name, limit=28) for bar in rows]
    left = MARGIN + max(map(columns, names)) * LETTER + 0.2
    top, high = MARGIN + 0.95, ROW * (len(rows) + 0.35)
    with styled():
        sheet = Sheet(left + WIDE + 0.85 + COUNTS + 0.75 + MARGIN, top + high + 0.15 + MARGIN)
        sheet.text(MARGIN, MARGIN - 0.1, f"F1 {100 * whole.f1:.2f}", size=15, weight="bold")
        rest = f", the {MANY} most frequent of {len(bars):,}" if len(bars) > MANY else ""
        sheet.text(MARGIN, MARGIN + 0.25, f"of {whole.many:,} {unit}{rest}", size=9, colour=QUIET)
        places = [-0.35 * (number > 0) - number for number in range(len(rows))]  # the first stands a little apart
        axes = _scale(sheet.axes(left, top, WIDE, high), places)
        axes.set_yticks(places, names, size=9.5, color=INK)
        axes.get_yticklabels()[0].set_fontweight("bold")
        for place, bar in zip(places, rows, strict=True):
            _draw_bar(axes, place, bar, first=bar is whole)
        _write_legend(axes)
        _draw_counts(sheet.axes(left + WIDE + 0.85, top, COUNTS, high), places, rows, unit)
        return sheet.save(path, ending)


def _scale(axes: Axes, places: Sequence[float]) -> Axes:
    axes.set_xlim(0, 100)
    axes.set_ylim(places[-1] - 0.55, 0.55)
    axes.set_xticks(range(0, 101, 20))
    axes.grid(axis="x", color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0, labelsize=8, pad=5)
    return axes


def _draw_bar(axes: Axes, place: float, bar: Bar, first: bool) -> None:
    height = 0.56 if first else 0.46
    axes.barh(place, 100 * bar.f1, height=height, color=ACCENT if first else LIGHT[4], zorder=2)
    low, high = sorted((100 * bar.precision, 100 * bar.recall))
    axes.plot([low, high], [place, place], color=INK, linewidth=1, zorder=3, clip_on=False)
    for value, (shape, size, fill) in ((bar.precision, PRECISION), (bar.recall, RECALL)):
        axes.plot(
            100 * value, place, shape, markersize=size, markerfacecolor=fill, markeredgecolor=INK, markeredgewidth=1,
            zorder=4, clip_on=False,
        )  # fmt: skip
    axes.text(
        103, place, f"{100 * bar.f1:.1f}", size=9.5, color=INK, va="center", ha="left", weight="bold" if first else "normal"
    )  # fmt: skip


def _write_legend(axes: Axes) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    marks = [
        Line2D([], [], marker=shape, linestyle="", markersize=size, markerfacecolor=fill, markeredgecolor=INK)
        for shape, size, fill in (PRECISION, RECALL)
    ]
    axes.legend(
        [Patch(color=LIGHT[4]), *marks], ["F1", "precision", "recall"], loc="lower left", bbox_to_anchor=(-0.01, 1.0),
        ncols=3, fontsize=8.5, labelcolor=QUIET, frameon=False, handlelength=1.0, handletextpad=0.5, columnspacing=1.4,
        borderaxespad=0.3, borderpad=0.0,
    )  # fmt: skip


def _draw_counts(axes: Axes, places: Sequence[float], rows: Sequence[Bar], unit: str) -> None:
    """How many there are of each: a score of few says little."""
    most = max([bar.many for bar in rows[1:]], default=0) or 1
    axes.set_xlim(0, most)
    axes.set_ylim(places[-1] - 0.55, 0.55)
    axes.set_axis_off()
    axes.text(0, 0.66, unit, size=8.5, color=QUIET, va="bottom", ha="left")
    for place, bar in zip(places[1:], rows[1:], strict=True):
        axes.barh(place, bar.many, height=0.22, color=LINE, zorder=2)
        axes.text(bar.many + 0.05 * most, place, f"{bar.many:,}", size=8.5, color=QUIET, va="center", ha="left")
    axes.text(0, 0, f"{rows[0].many:,}", size=8.5, color=INK, va="center", ha="left", weight="bold")
