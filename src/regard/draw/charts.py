"""Charts: training curves, accuracy by layer, sequence lengths, class frequencies and scores, and the confusion matrix."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.check.report import ClassCounts, Lengths, display_name, format_percent
from regard.draw.colors import ACCENT, INK, LIGHT, LINE, MUTED, WARM, colormap
from regard.draw.figure import MARGIN, Sheet, draw_matrix, mark_point, new_figure, style_axes, text_width, wrap_text
from regard.draw.text import label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LogRow = Mapping[str, float | str | int]
FloatVector = NDArray[np.float64]
Series = tuple[FloatVector, FloatVector]  # steps and values

WIDTH: Final = 12.0
LOSS_HEIGHT: Final = 3.8
METRIC_HEIGHT: Final = 1.7
PANEL_GAP: Final = 0.85  # inches between panels, for ticks and titles
LAYERS_SIZE: Final = (7.2, 3.6)
LENGTHS_HEIGHT: Final = 4.6
DASH_PATTERN: Final = (0, (4, 3))
MAX_OUTLIERS: Final = 2000  # maximum number of outliers drawn; more would cover the density
_NON_METRIC_KEYS: Final = frozenset({"kind", "step", "loss", "seconds", "elapsed", "averaged_checkpoints"})


# -- training


def draw_training_curves(rows: Sequence[LogRow], path: Path, title: str = "") -> Path:
    """Draw the log rows of a training run (`kind` is "train" or "valid") into a .png or .svg file."""
    train = [row for row in rows if row.get("kind") == "train"]
    valid = [row for row in rows if row.get("kind") == "valid"]
    names = {
        name: None
        for row in valid
        for name, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    losses = _series(train, "loss"), _series(valid, "loss")
    panels = [(name, _series(valid, name), WARM) for name in names if name not in _NON_METRIC_KEYS]
    panels.append(("learning rate", _series(train, "lr"), MUTED))
    last = max([1.0, *(float(steps[-1]) for steps, _ in (*losses, *(panel[1] for panel in panels)) if len(steps))])
    columns = len(panels) if len(panels) <= 4 else min((4, 3), key=lambda count: -len(panels) % count)
    left, top, gap = MARGIN + 0.4, MARGIN + (0.65 if title else 0.2), 0.75
    inner = WIDTH - left - MARGIN
    width = (inner - gap * (columns - 1)) / columns
    height = LOSS_HEIGHT + math.ceil(len(panels) / columns) * (METRIC_HEIGHT + PANEL_GAP)
    title = label(title, 80) if title else ""
    with new_figure(path, WIDTH, top + height + MARGIN, title, size=15) as sheet:
        best = _draw_loss(sheet.axes(left, top, inner, LOSS_HEIGHT), *losses, last)
        for number, (name, (steps, values), color) in enumerate(panels):
            row, column = divmod(number, columns)
            down = top + LOSS_HEIGHT + PANEL_GAP + row * (METRIC_HEIGHT + PANEL_GAP)
            axes = sheet.axes(left + column * (width + gap), down, width, METRIC_HEIGHT)
            if not _style_steps(axes, name, last, 5, is_empty=not len(steps)):
                continue
            marker = "o" if len(steps) == 1 or (color == WARM and len(steps) <= 60) else ""
            axes.plot(steps, values, color=color, linewidth=1.5, marker=marker, markersize=3.5)
            if best is not None:
                axes.axvline(best, color=LINE, linewidth=1.2, linestyle=DASH_PATTERN, zorder=0)
            axes.set_title(f"last {values[-1]:.4g}", loc="right", size=8.5, color=color, pad=6)
    return path


def _series(rows: Sequence[LogRow], name: str) -> Series:
    """Sorted steps with finite values; for a step repeated after a resume, the last logged value is used."""
    values: dict[float, float] = {}
    for row in rows:
        step, value = row.get("step"), row.get(name)
        if isinstance(step, int | float) and isinstance(value, int | float) and math.isfinite(step):
            values[float(step)] = float(value)
    finite = sorted((step, value) for step, value in values.items() if math.isfinite(value))
    pairs = np.array(finite, dtype=np.float64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _draw_loss(axes: Axes, train: Series, valid: Series, last: float) -> float | None:
    """Draw both losses in one panel. Returns the step with the lowest validation loss."""
    if not _style_steps(axes, "loss", last, 8, is_empty=not len(train[0]) and not len(valid[0])):
        return None
    if len(train[0]):
        marker = "o" if len(train[0]) == 1 else ""
        axes.plot(*train, color=ACCENT, alpha=0.25, linewidth=1.0, marker=marker)
        # a centered moving average does not lag; the window is narrow at the start, where the loss falls steeply
        index, sums = np.arange(len(train[1])), np.concatenate([[0.0], np.cumsum(train[1])])
        low = index - np.minimum(index, max(1, len(index) // 40))
        high = np.minimum(2 * index - low, len(index) - 1) + 1
        smoothed = (sums[high] - sums[low]) / (high - low)
        axes.plot(train[0], smoothed, color=ACCENT, linewidth=1.8, marker=marker, label="training loss")
    best = None
    if len(valid[0]):
        axes.plot(*valid, color=WARM, linewidth=1.6, marker="o", markersize=4, label="validation loss", zorder=3)
        at = int(valid[1].argmin())
        best, value = float(valid[0][at]), float(valid[1][at])
        axes.axvline(best, color=LINE, linewidth=1.2, linestyle=DASH_PATTERN, zorder=0)
        mark_point(axes, best, value, f"best {value:.4g} at step {best:,.0f}", WARM)
    axes.legend(loc="upper right")
    return best


def _style_steps(axes: Axes, name: str, last: float, ticks: int, is_empty: bool) -> bool:
    """Prepare axes over steps up to `last`. Returns False for axes without data, which contain only a note."""
    from matplotlib.ticker import EngFormatter, MaxNLocator, StrMethodFormatter

    style_axes(axes, label(name.replace("_", " "), 24))
    axes.set_xlabel("step", size=8, loc="right", labelpad=3)
    if is_empty:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.text(0.5, 0.5, "no data yet", transform=axes.transAxes, ha="center", va="center", color=MUTED, size=9)
        return False
    axes.set_xlim(-0.01 * last, 1.02 * last)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=ticks, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:.4g}"))
    return True


# -- layers


def draw_layer_scores(
    values: Sequence[float], path: Path, title: str, subtitle: str, layer_names: Sequence[str]
) -> Path:
    """Draw accuracies in percent by layer into a .png or .svg file."""
    top = MARGIN + (0.4 if title else 0.0) + (0.3 if subtitle else 0.0) + 0.1
    width, height = MARGIN + 0.5 + LAYERS_SIZE[0] + MARGIN, top + LAYERS_SIZE[1] + 0.6
    with new_figure(path, width, height, label(title, max_width=80) if title else "", subtitle) as sheet:
        axes = sheet.axes(MARGIN + 0.5, top, *LAYERS_SIZE)
        style_axes(axes)
        axes.set_xlim(0.5, len(values) + 0.5)
        axes.plot(range(1, len(values) + 1), values, color=ACCENT, linewidth=1.8, marker="o", markersize=4)
        best = int(np.argmax(values))
        mark_point(axes, best + 1, values[best], f"{values[best]:.2f} at {layer_names[best]}", ACCENT)
        axes.margins(y=0.18)
        low, high = axes.get_ylim()
        low, high = max(low, -2.0), min(high, 102.0)  # 0 to 100 %, with space for the ring around the best value
        axes.set_yticks([tick for tick in axes.get_yticks() if max(low, 0) <= tick <= min(high, 100)])
        axes.set_ylim(low, high)
        kinds = list(dict.fromkeys(name.rpartition(" ")[0] for name in layer_names))
        # with one kind of layer (block 1, block 2, …), ticks show only the numbers
        ticks = [label(name if len(kinds) > 1 else name.rpartition(" ")[2], 10) for name in layer_names]
        step = -(-len(values) // (10 if len(kinds) > 1 else 24))
        axes.set_xticks(range(1, len(values) + 1, step), ticks[::step])
        axes.set_xlabel(kinds[0] if len(kinds) == 1 else "", size=8.5, labelpad=4)
        axes.set_ylabel("accuracy (%)", size=8.5)
    return path


# -- lengths


def draw_lengths(lengths: Lengths, path: Path) -> Path:
    """Draw histograms of estimated tokens, and the lengths of pairs or the cumulative tokens of documents."""
    is_pair, over = len(lengths.names) == 2, int((lengths.tokens.max(axis=1) > lengths.max_length).sum())
    note = f"{len(lengths.tokens):,} {lengths.unit}"
    if lengths.max_length:
        note += f", {over:,} longer than data.max_length={lengths.max_length:,}"
    if is_pair:
        note += f", {len(lengths.outliers):,} outlier{'' if len(lengths.outliers) == 1 else 's'}"
    subject = " and ".join(map(display_name, lengths.names)) if is_pair else lengths.unit
    title, note = f"Sequence lengths: {subject}", f"{note}. Tokens are estimated from bytes and words."
    with new_figure(path, WIDTH, MARGIN + 0.95 + LENGTHS_HEIGHT + 0.75, title, note, 15) as sheet:
        left, top = MARGIN + 0.5, MARGIN + 0.95
        _draw_histograms(sheet.axes(left, top, 5.2, LENGTHS_HEIGHT), lengths)
        right = left + 5.2 + 0.85
        axes = sheet.axes(right, top, WIDTH - right - MARGIN, LENGTHS_HEIGHT)
        (_draw_pair_density if is_pair else _draw_cumulative)(axes, lengths)
    return path


def _bin_edges(lengths: Lengths, count: int) -> tuple[NDArray[np.floating[Any]], bool]:
    """Bin edges between integers, and True for logarithmic bins, used if a few texts are much longer than all others."""
    least, most = int(lengths.tokens.min()), int(lengths.tokens.max())
    if least == most:  # for example one document: a visible bar in the middle
        return np.array([0.85 * least, 1.15 * least + 1]), False
    if most > 10 * np.quantile(lengths.tokens, 0.99):
        return np.unique(np.geomspace(1, most + 1, count + 1).round()) - 0.5, True
    width = -(-(most + 1) // count)
    return np.arange(0.0, most + 1 + width, width) - 0.5, False


def _style_lengths(axes: Axes, lengths: Lengths, edges: NDArray[np.floating[Any]], limit: float, labels: str) -> None:
    """Limit the axis of lengths, format ticks as integers, and set the two axis labels. Call after setting the scales."""
    from matplotlib.ticker import NullFormatter, StrMethodFormatter

    axes.set_xlim(max(float(edges[0]), 0.6 * float(lengths.tokens.min()) - 0.5), limit)
    for axis, text in zip((axes.xaxis, axes.yaxis), labels.split("|"), strict=True):
        axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axis.set_minor_formatter(NullFormatter())
        axis.set_label_text(text, size=8.5)


def _draw_histograms(axes: Axes, lengths: Lengths) -> None:
    style_axes(axes, "Histogram", "both")
    edges, is_log = _bin_edges(lengths, 48)
    limit, most = lengths.max_length, edges[-1]
    is_near = most > limit / 2 and limit > 0  # a distant limit would compress the histogram
    highest = 1
    for side, (name, color) in enumerate(zip(lengths.names, (ACCENT, WARM), strict=False)):
        values = lengths.tokens[:, side]
        heights = np.histogram(values, edges)[0]
        highest = max(highest, int(heights.max()))
        text = f"{display_name(name)}, median {int(np.median(values)):,}"
        axes.stairs(heights, edges, color=color, fill=True, alpha=0.16)
        axes.stairs(heights, edges, color=color, linewidth=1.6, label=text)
    axes.set_yscale("log")
    axes.set_ylim(0.7, 3.0 * highest)  # space for the legend above the highest bars
    axes.set_xscale("log" if is_log else "linear")
    end = 1.02 * (max(most, limit) if is_near else most)
    _style_lengths(axes, lengths, edges, end, f"tokens (estimated)|{lengths.unit} (log scale)")
    if is_near:
        axes.axvline(limit, color=INK, linewidth=1.2, linestyle=DASH_PATTERN, label=f"data.max_length={limit:,}")
    axes.legend(loc="upper right")


def _draw_pair_density(axes: Axes, lengths: Lengths) -> None:
    from matplotlib.colors import LogNorm

    style_axes(axes, "Source vs. target", "both")
    source, target = lengths.tokens[:, 0], lengths.tokens[:, 1]
    edges, is_log = _bin_edges(lengths, 80)
    density = np.histogram2d(source, target, bins=[edges, edges])[0].T
    counts, scale = np.ma.masked_equal(density, 0), LogNorm(1, max(2.0, density.max()))
    axes.pcolormesh(edges, edges, counts, cmap=colormap(LIGHT[1:]), norm=scale, rasterized=True)
    slope = float(np.median(target / np.maximum(source, 1)))
    line = np.array([max(edges[0], 0.5), edges[-1]])
    shown = lengths.outliers[:: max(1, -(-len(lengths.outliers) // MAX_OUTLIERS))]
    if len(shown):
        ring: dict[str, Any] = {"markersize": 6.5, "markerfacecolor": "none", "markeredgecolor": WARM}
        axes.plot(source[shown], target[shown], "o", markeredgewidth=1.3, label="outliers", zorder=4, **ring)
    axes.plot(line, slope * line, color=MUTED, linewidth=1, linestyle=DASH_PATTERN, label=f"median ratio {slope:.2g}")
    if edges[-1] > lengths.max_length:
        axes.axvline(lengths.max_length, color=INK, linewidth=1.1, linestyle=DASH_PATTERN, label="data.max_length")
        axes.axhline(lengths.max_length, color=INK, linewidth=1.1, linestyle=DASH_PATTERN)
    for set_scale in (axes.set_xscale, axes.set_yscale):
        set_scale("log" if is_log else "linear")
    first, second = map(display_name, lengths.names)
    end = (1.1 if is_log else 1.02) * edges[-1]
    _style_lengths(axes, lengths, edges, end, f"{first} tokens (estimated)|{second} tokens (estimated)")
    axes.set_ylim(axes.get_xlim())
    axes.legend(loc="lower right")


def _draw_cumulative(axes: Axes, lengths: Lengths) -> None:
    """Draw the fraction of all tokens in samples up to each length: a few long samples may contain most tokens."""
    style_axes(axes, "Cumulative tokens", "both")
    values = np.sort(lengths.tokens[:, 0])
    percent = 100 * np.cumsum(values) / max(int(values.sum()), 1)
    half = int(values[np.searchsorted(percent, 50.0)])
    edges, is_log = _bin_edges(lengths, 48)  # same scale as the histogram
    shown = np.unique(np.linspace(0, len(values) - 1, 1000).astype(int))
    axes.step([values[0], *values[shown]], [0.0, *percent[shown]], where="post", color=ACCENT, linewidth=1.6)
    axes.axvline(half, color=MUTED, linewidth=1, linestyle=DASH_PATTERN, label=f"half of all tokens: ≤ {half:,}")
    axes.set_xscale("log" if is_log else "linear")
    axes.set_ylim(0, 102)
    _style_lengths(axes, lengths, edges, 1.02 * edges[-1], "tokens (estimated)|% of all tokens")
    axes.legend(loc="lower right")


# -- classes

ROW_HEIGHT: Final = 0.36
PLOT_WIDTH: Final = 4.8
COLUMN_WIDTH: Final = 1.65  # inches for the numbers of one split
COUNT_WIDTH: Final = 1.5
SCORE_MARKERS: Final[tuple[dict[str, Any], ...]] = (
    {"marker": "o", "markersize": 5.2, "markerfacecolor": "white", "markeredgecolor": INK},
    {"marker": "D", "markersize": 4.6, "markerfacecolor": WARM, "markeredgecolor": INK},
)  # precision and recall
MAX_COUNTS: Final = 30  # maximum number of classes per chart of frequencies, most frequent first
MAX_LABELS: Final = 40  # maximum number of labels with scores, most frequent first
MAX_CLASSES: Final = 24  # maximum number of classes for a readable confusion matrix


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
    axes.spines[:].set_visible(False)
    return axes


def draw_class_counts(class_counts: Sequence[ClassCounts], path: Path) -> Path:
    """Draw the frequencies of classes, one chart below the other: a bar for training and a mark for validation."""
    tables = [(counts, counts.rows()) for counts in class_counts]
    left = MARGIN + text_width((label(row[0], 28) for _, rows in tables for row in rows[:MAX_COUNTS]), 9.5) + 0.2
    heights = [ROW_HEIGHT * len(rows[:MAX_COUNTS]) + 1.15 for _, rows in tables]
    splits = 1 + any(counts.valid for counts in class_counts)
    with new_figure(path, left + PLOT_WIDTH + COLUMN_WIDTH * splits + MARGIN, MARGIN + sum(heights)) as sheet:
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
    return path


class LabelScore(NamedTuple):
    name: str
    f1: float  # from 0 to 1, as precision and recall
    precision: float
    recall: float
    support: int  # number of occurrences in the reference


def draw_per_label(scores: Sequence[LabelScore], overall: LabelScore, unit: str, path: Path) -> Path:
    """Draw F1, precision, recall and support of the most frequent labels. `unit`: plural of the counted items."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    rows = [overall, *sorted(scores, key=lambda score: (-score.support, score.name))[:MAX_LABELS]]
    names = [label(score.name, max_width=28) for score in rows]
    left, top = MARGIN + text_width(names, 9.5) + 0.2, MARGIN + 0.95
    places = [-0.35 * (number > 0) - number for number in range(len(rows))]  # space below the first row
    rest = f". {MAX_LABELS} most frequent of {len(scores):,} classes" if len(scores) > MAX_LABELS else ""
    note = f"Overall {100 * overall.f1:.2f} ({overall.support:,} {unit}){rest}"
    width, height = left + PLOT_WIDTH + 0.85 + COUNT_WIDTH + 0.75 + MARGIN, ROW_HEIGHT * (1 - places[-1])
    with new_figure(path, width, top + height + 0.15 + MARGIN, "Per-class F1", note, 15) as sheet:
        axes = bar_axes(sheet, left, top, PLOT_WIDTH, places, 100, names)
        axes.set_xticks(range(0, 101, 20), [f"{tick}" for tick in range(0, 101, 20)], size=8)
        axes.grid(axis="x", color=LINE, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.get_yticklabels()[0].set_fontweight("bold")
        for place, score in zip(places, rows, strict=True):
            # F1 as a bar, precision and recall as connected markers
            height, color, weight = (0.46, LIGHT[4], "normal") if score is not overall else (0.56, ACCENT, "bold")
            axes.barh(place, 100 * score.f1, height=height, color=color, zorder=2)
            ends = [100 * score.precision, 100 * score.recall]
            axes.plot(ends, [place, place], color=INK, linewidth=1, zorder=3, clip_on=False)
            for value, marker in zip(ends, SCORE_MARKERS, strict=True):
                axes.plot(value, place, markeredgewidth=1, zorder=4, clip_on=False, **marker)
            axes.text(103, place, f"{100 * score.f1:.1f}", size=9.5, color=INK, va="center", ha="left", weight=weight)
        marks = [Line2D([], [], linestyle="", **style) for style in SCORE_MARKERS]
        spacing: dict[str, Any] = {"handlelength": 1.0, "handletextpad": 0.5, "columnspacing": 1.4, "borderpad": 0.0}
        corner: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (-0.01, 1.0), "borderaxespad": 0.3, "ncols": 3}
        style: dict[str, Any] = {"fontsize": 8.5, "labelcolor": MUTED, "frameon": False, **corner, **spacing}
        axes.legend([Patch(color=LIGHT[4]), *marks], ["F1", "precision", "recall"], **style)
        # a score from few occurrences is unreliable
        largest = max([score.support for score in rows[1:]], default=0) or 1
        counts = bar_axes(sheet, left + PLOT_WIDTH + 0.85, top, COUNT_WIDTH, places, largest, ())
        counts.text(0, 0.66, unit, size=8.5, color=MUTED, va="bottom", ha="left")
        for place, score in zip(places[1:], rows[1:], strict=True):
            counts.barh(place, score.support, height=0.22, color=LINE, zorder=2)
            end = score.support + 0.05 * largest
            counts.text(end, place, f"{score.support:,}", size=8.5, color=MUTED, va="center", ha="left")
        counts.text(0, 0, f"{overall.support:,}", size=8.5, color=INK, va="center", ha="left", weight="bold")
    return path


def draw_confusion(names: Sequence[str], counts: np.ndarray[Any, Any], path: Path) -> Path:
    """Draw counts (true class, predicted class), colored by fraction of the row, into a .png or .svg file."""
    labels = dict(enumerate(label(name, max_width=24) for name in names))
    label_width = text_width(labels.values(), 9) + 0.15
    cell = min(0.9, max(0.32, 5.0 / len(labels)))
    side = cell * len(labels)
    correct, total = int(np.trace(counts)), int(counts.sum())
    width = max(MARGIN + label_width + side + max(MARGIN, label_width * 0.7), 4.0)
    accuracy = f"Accuracy {100 * correct / max(total, 1):.1f} % ({correct:,} of {total:,})"
    note = f"{accuracy}. Rows: true class, columns: predicted class, color: fraction of the row."
    note = wrap_text(note, width - MARGIN, 8.5, 3)
    # rotated column labels need less height than width
    top = MARGIN + 0.43 + 0.17 * (1 + note.count("\n")) + 0.75 * label_width
    with new_figure(path, width, top + side + MARGIN, "Confusion matrix", note) as sheet:
        axes = sheet.axes(MARGIN + label_width, top, side, side)
        fractions = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        texts = {at: f"{count:,}" for at, count in np.ndenumerate(counts) if count}
        draw_matrix(axes, fractions, labels, labels, (9, 9), texts, text_size=min(9, 16 * cell))
    return path
