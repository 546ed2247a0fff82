"""How often each class occurs, in training and in validation: bars of shares, so that what is rare is seen as such."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from regard.data.check.class_counts import Spread, percent
from regard.draw.colormap import ACCENT, INK, LINE, QUIET, WARM
from regard.draw.figure import Sheet, check_ending, styled
from regard.draw.token_label import columns, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARGIN: Final = 0.45
ROW: Final = 0.34
LETTER: Final = 0.61 * 9.5 / 72  # inches of a letter of a name
WIDE: Final = 4.8
COLUMN: Final = 1.65
"""inches of the numbers of one set"""
MANY: Final = 30
"""classes that are drawn of each, the most frequent first"""

Row = tuple[str, int, float, int, float]


def draw_spread(spreads: Sequence[Spread], path: Path) -> Path:
    """One below the other, into a .png or .svg file."""
    ending = check_ending(path, (".png", ".svg"))
    tables = [(spread, spread.rows()) for spread in spreads]
    names = [label(name, limit=28) for _, rows in tables for name, *_ in rows[:MANY]]
    left = MARGIN + max(map(columns, names)) * LETTER + 0.2
    highs = [ROW * len(rows[:MANY]) for _, rows in tables]
    with styled():
        both = any(spread.valid for spread in spreads)
        sheet = Sheet(left + WIDE + COLUMN * (1 + both) + MARGIN, MARGIN + sum(high + 1.15 for high in highs))
        top = MARGIN
        for (spread, rows), high in zip(tables, highs, strict=True):
            sheet.text(MARGIN, top - 0.1, spread.title[:1].upper() + spread.title[1:], size=13, weight="bold")
            if len(rows) > MANY:
                sheet.text(MARGIN, top + 0.18, f"the {MANY} most frequent of {len(rows):,}", size=9, colour=QUIET)
            _draw_bars(sheet.axes(left, top + 0.5, WIDE, high), rows[:MANY])
            beside = sheet.axes(left + WIDE, top + 0.5, COLUMN * (1 + both), high)
            _write_numbers(beside, rows[:MANY], spread, both)
            top += high + 1.15
        return sheet.save(path, ending)


def _draw_bars(axes: Axes, rows: Sequence[Row]) -> None:
    """A bar for training, a mark on it for validation."""
    most = max(max(row[2], row[4]) for row in rows) or 1.0
    axes.set_xlim(0, most)
    axes.set_ylim(0.5 - len(rows), 0.5)
    names = [label(row[0], limit=28) for row in rows]
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


def _write_numbers(axes: Axes, rows: Sequence[Row], spread: Spread, both: bool) -> None:
    """How many, and which share, under a heading in the colour of the bars or of the marks."""
    axes.set_xlim(0, COLUMN * (1 + both))
    axes.set_ylim(0.5 - len(rows), 0.5)
    axes.set_axis_off()
    sets = [("training", ACCENT, 1), ("validation", WARM, 3)]
    for place, (name, colour, at) in enumerate(sets[: 1 + bool(spread.valid)]):
        end = COLUMN * (place + 1)
        axes.text(end, 0.72, name, size=8.5, color=colour, weight="bold", va="bottom", ha="right")
        for number, row in enumerate(rows):
            axes.text(end - 0.65, -number, f"{row[at]:,}", size=8.5, color=INK, va="center", ha="right")
            axes.text(end, -number, percent(float(row[at + 1])), size=8.5, color=QUIET, va="center", ha="right")
