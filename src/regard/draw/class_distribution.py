"""Class frequencies in training and validation data as a bar chart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from regard.data.check.class_counts import ClassCounts, format_percent
from regard.data.check.findings import display_name
from regard.draw.colormap import ACCENT, INK, LINE, MUTED, WARM
from regard.draw.figure import Sheet, check_suffix, figure_style
from regard.draw.token_label import display_width, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARGIN: Final = 0.45
ROW_HEIGHT: Final = 0.34
CHAR_WIDTH: Final = 0.61 * 9.5 / 72  # inches per character of a class name
PLOT_WIDTH: Final = 4.8
COLUMN_WIDTH: Final = 1.65
"""inches for the numbers of one split"""
MAX_CLASSES: Final = 30
"""maximum number of classes per chart, most frequent first"""

CountRow = tuple[str, int, float, int, float]


def draw_class_counts(class_counts: Sequence[ClassCounts], path: Path) -> Path:
    """Draw one chart below the other into a .png or .svg file."""
    ending = check_suffix(path, (".png", ".svg"))
    tables = [(spread, spread.rows()) for spread in class_counts]
    names = [label(name, max_width=28) for _, rows in tables for name, *_ in rows[:MAX_CLASSES]]
    left = MARGIN + max(map(display_width, names)) * CHAR_WIDTH + 0.2
    highs = [ROW_HEIGHT * len(rows[:MAX_CLASSES]) for _, rows in tables]
    with figure_style():
        both = any(spread.valid for spread in class_counts)
        sheet = Sheet(
            left + PLOT_WIDTH + COLUMN_WIDTH * (1 + both) + MARGIN, MARGIN + sum(high + 1.15 for high in highs)
        )
        top = MARGIN
        for (spread, rows), high in zip(tables, highs, strict=True):
            title = display_name(spread.name)
            sheet.text(MARGIN, top - 0.1, title[:1].upper() + title[1:], size=13, weight="bold")
            if len(rows) > MAX_CLASSES:
                sheet.text(
                    MARGIN, top + 0.18, f"{MAX_CLASSES} most frequent of {len(rows):,} classes", size=9, color=MUTED
                )
            _draw_bars(sheet.axes(left, top + 0.5, PLOT_WIDTH, high), rows[:MAX_CLASSES])
            beside = sheet.axes(left + PLOT_WIDTH, top + 0.5, COLUMN_WIDTH * (1 + both), high)
            _draw_numbers(beside, rows[:MAX_CLASSES], spread, both)
            top += high + 1.15
        return sheet.save(path, ending)


def _draw_bars(axes: Axes, rows: Sequence[CountRow]) -> None:
    """Draw a bar for training and a mark for validation."""
    most = max(max(row[2], row[4]) for row in rows) or 1.0
    axes.set_xlim(0, most)
    axes.set_ylim(0.5 - len(rows), 0.5)
    names = [label(row[0], max_width=28) for row in rows]
    axes.set_yticks([-number for number in range(len(rows))], names, size=9.5, color=INK)
    axes.set_xticks([])
    for side in axes.spines.values():
        side.set_visible(False)
    axes.axvline(0, color=LINE, linewidth=1.2)
    axes.tick_params(length=0, pad=5)
    for number, (_, _, share, there, its) in enumerate(rows):
        axes.barh(-number, share, height=0.5, color=ACCENT, alpha=0.85, zorder=2)
        if there:
            axes.plot([its] * 2, [-number - 0.36, -number + 0.36], color=WARM, linewidth=2.2, zorder=3, clip_on=False)


def _draw_numbers(axes: Axes, rows: Sequence[CountRow], spread: ClassCounts, both: bool) -> None:
    """Draw counts and percentages; column titles have the color of the bars and marks."""
    axes.set_xlim(0, COLUMN_WIDTH * (1 + both))
    axes.set_ylim(0.5 - len(rows), 0.5)
    axes.set_axis_off()
    sets = [("training", ACCENT, 1), ("validation", WARM, 3)]
    for place, (name, colour, at) in enumerate(sets[: 1 + bool(spread.valid)]):
        end = COLUMN_WIDTH * (place + 1)
        axes.text(end, 0.72, name, size=8.5, color=colour, weight="bold", va="bottom", ha="right")
        for number, row in enumerate(rows):
            axes.text(end - 0.65, -number, f"{row[at]:,}", size=8.5, color=INK, va="center", ha="right")
            axes.text(end, -number, format_percent(float(row[at + 1])), size=8.5, color=MUTED, va="center", ha="right")
