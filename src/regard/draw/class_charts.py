"""Charts of classes: frequencies and scores as bars, and the confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from regard.data.check.report import ClassCounts, display_name, format_percent
from regard.draw.colors import ACCENT, INK, LIGHT, LINE, MUTED, WARM
from regard.draw.figure import MARGIN, Sheet, check_suffix, draw_matrix, figure_style, text_width, wrap_text
from regard.draw.text import label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW_HEIGHT: Final = 0.36
PLOT_WIDTH: Final = 4.8
COLUMN_WIDTH: Final = 1.65
"""inches for the numbers of one split"""
COUNT_WIDTH: Final = 1.5
PRECISION_MARKER: Final = ("o", 5.2, "white")
RECALL_MARKER: Final = ("D", 4.6, WARM)
"""marker shape, size and fill color"""
MAX_COUNTS: Final = 30
"""maximum number of classes per chart of frequencies, most frequent first"""
MAX_LABELS: Final = 40
"""maximum number of labels with scores, most frequent first"""
MAX_CLASSES: Final = 24
"""maximum number of classes for a readable confusion matrix"""


def bar_axes(
    sheet: Sheet, left: float, top: float, width: float, places: Sequence[float], max_value: float, names: Sequence[str]
) -> Axes:
    """Axes without frame for horizontal bars at `places` from 0 to `max_value`, with names on the left."""
    axes = sheet.axes(left, top, width, ROW_HEIGHT * (places[0] - places[-1] + 1))
    axes.set_xlim(0, max_value)
    axes.set_ylim(places[-1] - 0.5, places[0] + 0.5)
    axes.set_xticks([])
    axes.set_yticks(places, names, size=9.5, color=INK)
    axes.tick_params(length=0, pad=5)
    axes.set_facecolor("none")  # marks at the end of a bar overlap the next axes
    for side in axes.spines.values():
        side.set_visible(False)
    return axes


def draw_class_counts(class_counts: Sequence[ClassCounts], path: Path) -> Path:
    """Draw the frequencies of classes, one chart below the other, into a .png or .svg file: a bar for training and a mark
    for validation."""
    file_format = check_suffix(path, (".png", ".svg"))
    tables = [(counts, counts.rows()) for counts in class_counts]
    left = MARGIN + text_width((label(row[0], 28) for _, rows in tables for row in rows[:MAX_COUNTS]), 9.5) + 0.2
    heights = [ROW_HEIGHT * len(rows[:MAX_COUNTS]) + 1.15 for _, rows in tables]
    splits = 1 + any(counts.valid for counts in class_counts)
    with figure_style():
        sheet = Sheet(left + PLOT_WIDTH + COLUMN_WIDTH * splits + MARGIN, MARGIN + sum(heights))
        top = MARGIN
        for (counts, rows), height in zip(tables, heights, strict=True):
            title = display_name(counts.name)
            sheet.text(MARGIN, top - 0.1, title[:1].upper() + title[1:], size=13, weight="bold")
            if len(rows) > MAX_COUNTS:
                note = f"{MAX_COUNTS} most frequent of {len(rows):,} classes"
                sheet.text(MARGIN, top + 0.18, note, size=9, color=MUTED)
            shown = rows[:MAX_COUNTS]
            places, names = [-number for number in range(len(shown))], [label(row[0], 28) for row in shown]
            largest = max(max(row[2], row[4]) for row in shown) or 1.0
            axes = bar_axes(sheet, left, top + 0.5, PLOT_WIDTH, places, largest, names)
            axes.axvline(0, color=LINE, linewidth=1.2)
            for place, (_, _, fraction, valid_count, valid_fraction) in zip(places, shown, strict=True):
                axes.barh(place, fraction, height=0.5, color=ACCENT, alpha=0.85, zorder=2)
                if valid_count:
                    mark = [place - 0.36, place + 0.36]
                    axes.plot([valid_fraction] * 2, mark, color=WARM, linewidth=2.2, zorder=3, clip_on=False)
            # counts and percentages; column titles have the color of the bars and marks
            columns = [("training", ACCENT, 1), ("validation", WARM, 3)][: 1 + bool(counts.valid)]
            for number, (split, color, field) in enumerate(columns, 1):
                right = left + PLOT_WIDTH + COLUMN_WIDTH * (number - 1)
                numbers = bar_axes(sheet, right, top + 0.5, COLUMN_WIDTH, places, COLUMN_WIDTH, ())
                style: dict[str, Any] = {"size": 8.5, "ha": "right"}
                numbers.text(COLUMN_WIDTH, 0.72, split, color=color, weight="bold", va="bottom", **style)
                for place, row in zip(places, shown, strict=True):
                    numbers.text(COLUMN_WIDTH - 0.65, place, f"{row[field]:,}", color=INK, va="center", **style)
                    percent = format_percent(float(row[field + 1]))
                    numbers.text(COLUMN_WIDTH, place, percent, color=MUTED, va="center", **style)
            top += height
        return sheet.save(path, file_format)


class LabelScore(NamedTuple):
    name: str
    f1: float
    """from 0 to 1, as precision and recall"""
    precision: float
    recall: float
    support: int
    """number of occurrences in the reference"""


def draw_per_label(scores: Sequence[LabelScore], overall: LabelScore, unit: str, path: Path) -> Path:
    """Draw F1, precision, recall and support, one row per label, most frequent first, below a row for all labels. `unit`:
    plural of the counted items."""
    file_format = check_suffix(path, (".png", ".svg"))
    rows = [overall, *sorted(scores, key=lambda score: (-score.support, score.name))[:MAX_LABELS]]
    names = [label(score.name, max_width=28) for score in rows]
    left, top = MARGIN + text_width(names, 9.5) + 0.2, MARGIN + 0.95
    places = [-0.35 * (number > 0) - number for number in range(len(rows))]  # space below the first row
    with figure_style():
        height = ROW_HEIGHT * (1 - places[-1])
        sheet = Sheet(left + PLOT_WIDTH + 0.85 + COUNT_WIDTH + 0.75 + MARGIN, top + height + 0.15 + MARGIN)
        rest = f". {MAX_LABELS} most frequent of {len(scores):,} classes" if len(scores) > MAX_LABELS else ""
        sheet.heading("Per-class F1", f"Overall {100 * overall.f1:.2f} ({overall.support:,} {unit}){rest}", 15)
        axes = bar_axes(sheet, left, top, PLOT_WIDTH, places, 100, names)
        axes.set_xticks(range(0, 101, 20), [f"{tick}" for tick in range(0, 101, 20)], size=8)
        axes.grid(axis="x", color=LINE, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.get_yticklabels()[0].set_fontweight("bold")
        for place, score in zip(places, rows, strict=True):
            _draw_score(axes, place, score, is_overall=score is overall)
        _draw_score_legend(axes)
        # a score from few occurrences is unreliable
        largest = max([score.support for score in rows[1:]], default=0) or 1
        counts = bar_axes(sheet, left + PLOT_WIDTH + 0.85, top, COUNT_WIDTH, places, largest, ())
        counts.text(0, 0.66, unit, size=8.5, color=MUTED, va="bottom", ha="left")
        for place, score in zip(places[1:], rows[1:], strict=True):
            counts.barh(place, score.support, height=0.22, color=LINE, zorder=2)
            end = score.support + 0.05 * largest
            counts.text(end, place, f"{score.support:,}", size=8.5, color=MUTED, va="center", ha="left")
        counts.text(0, 0, f"{overall.support:,}", size=8.5, color=INK, va="center", ha="left", weight="bold")
        return sheet.save(path, file_format)


def _draw_score(axes: Axes, place: float, score: LabelScore, is_overall: bool) -> None:
    """Draw F1 as a bar, and precision and recall as connected markers."""
    height, color = (0.56, ACCENT) if is_overall else (0.46, LIGHT[4])
    axes.barh(place, 100 * score.f1, height=height, color=color, zorder=2)
    ends = [100 * score.precision, 100 * score.recall]
    axes.plot(ends, [place, place], color=INK, linewidth=1, zorder=3, clip_on=False)
    for value, (shape, size, fill) in zip(ends, (PRECISION_MARKER, RECALL_MARKER), strict=True):
        style: dict[str, Any] = {"markersize": size, "markerfacecolor": fill, "markeredgecolor": INK}
        axes.plot(value, place, shape, markeredgewidth=1, zorder=4, clip_on=False, **style)
    weight = "bold" if is_overall else "normal"
    axes.text(103, place, f"{100 * score.f1:.1f}", size=9.5, color=INK, va="center", ha="left", weight=weight)


def _draw_score_legend(axes: Axes) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    marks = [
        Line2D([], [], marker=shape, linestyle="", markersize=size, markerfacecolor=fill, markeredgecolor=INK)
        for shape, size, fill in (PRECISION_MARKER, RECALL_MARKER)
    ]
    spacing: dict[str, Any] = {"handlelength": 1.0, "handletextpad": 0.5, "columnspacing": 1.4, "borderpad": 0.0}
    axes.legend(
        [Patch(color=LIGHT[4]), *marks],
        ["F1", "precision", "recall"],
        loc="lower left",
        bbox_to_anchor=(-0.01, 1.0),
        ncols=3,
        fontsize=8.5,
        labelcolor=MUTED,
        frameon=False,
        borderaxespad=0.3,
        **spacing,
    )


def draw_confusion(names: Sequence[str], counts: np.ndarray[Any, Any], path: Path) -> Path:
    """Draw counts (true class, predicted class), colored by fraction of the row, into a .png or .svg file."""
    file_format = check_suffix(path, (".png", ".svg"))
    labels = dict(enumerate(label(name, max_width=24) for name in names))
    label_width = text_width(labels.values(), 9) + 0.15
    cell = min(0.9, max(0.32, 5.0 / len(labels)))
    side = cell * len(labels)
    correct, total = int(np.trace(counts)), int(counts.sum())
    with figure_style():
        width = max(MARGIN + label_width + side + max(MARGIN, label_width * 0.7), 4.0)
        accuracy = f"Accuracy {100 * correct / max(total, 1):.1f} % ({correct:,} of {total:,})"
        note = f"{accuracy}. Rows: true class, columns: predicted class, color: fraction of the row."
        note = wrap_text(note, width - MARGIN, 8.5, 3)
        # rotated column labels need less height than width
        top = MARGIN + 0.43 + 0.17 * (1 + note.count("\n")) + 0.75 * label_width
        sheet = Sheet(width, top + side + MARGIN)
        sheet.heading("Confusion matrix", note)
        axes = sheet.axes(MARGIN + label_width, top, side, side)
        fractions = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        texts = {at: f"{count:,}" for at, count in np.ndenumerate(counts) if count}
        draw_matrix(axes, fractions, labels, labels, (9, 9), texts, text_size=min(9, 16 * cell))
        return sheet.save(path, file_format)
