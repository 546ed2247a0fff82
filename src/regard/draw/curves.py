"""Training curves: loss, validation metrics and learning rate over steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from regard.draw.colormap import ACCENT, INK, LINE, MUTED, WARM
from regard.draw.figure import Sheet, check_suffix, figure_style
from regard.draw.token_label import label, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LogRow = Mapping[str, float | str | int]
FloatVector = NDArray[np.float64]
Series = tuple[FloatVector, FloatVector]  # steps and values

MARGIN: Final = 0.45
WIDTH: Final = 12.0
LOSS_HEIGHT: Final = 3.8
METRIC_HEIGHT: Final = 1.7
PANEL_GAP: Final = 0.85  # inches between panels, for ticks and titles
TRAIN_LABEL: Final = "training loss"
_NON_METRIC_KEYS: Final = frozenset({"kind", "step", "loss", "seconds", "elapsed", "averaged_checkpoints"})


def draw_training_curves(rows: Sequence[LogRow], path: Path, title: str = "") -> Path:
    """Draw the log rows of a training run (`kind` is "train" or "valid") into a .png or .svg file."""
    ending = check_suffix(path, (".png", ".svg"))
    train = [row for row in rows if row.get("kind") == "train"]
    valid = [row for row in rows if row.get("kind") == "valid"]
    names = dict.fromkeys(key for row in valid for key, value in row.items() if _is_number(value))
    metrics = [name for name in names if name not in _NON_METRIC_KEYS]
    losses = _series(train, "loss"), _series(valid, "loss")
    small = [(name, _series(valid, name), WARM) for name in metrics]
    small.append(("learning rate", _series(train, "lr"), MUTED))
    last = max([1.0, *(float(steps[-1]) for steps, _ in (*losses, *(item[1] for item in small)) if len(steps))])
    across = len(small) if len(small) <= 4 else min((4, 3), key=lambda many: -len(small) % many)
    left, top, gap = MARGIN + 0.4, MARGIN + (0.65 if title else 0.2), 0.75
    inner = WIDTH - left - MARGIN
    wide = (inner - gap * (across - 1)) / across
    with figure_style():
        sheet = Sheet(WIDTH, top + LOSS_HEIGHT + math.ceil(len(small) / across) * (METRIC_HEIGHT + PANEL_GAP) + MARGIN)
        sheet.text(MARGIN, MARGIN - 0.1, shorten(label(title, 500), 80) if title else "", size=15, weight="bold")
        loss = sheet.axes(left, top, inner, LOSS_HEIGHT)
        best = _draw_loss(loss, *losses, last)
        for at, (name, series, colour) in enumerate(small):
            down, column = divmod(at, across)
            begin = top + LOSS_HEIGHT + PANEL_GAP + down * (METRIC_HEIGHT + PANEL_GAP)
            axes = sheet.axes(left + column * (wide + gap), begin, wide, METRIC_HEIGHT)
            _draw_series(axes, name, series, colour, best, last)
        return sheet.save(path, ending)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _series(rows: Sequence[LogRow], name: str) -> Series:
    """Sorted steps with finite values; for a step repeated after a resume, the last logged value is used."""
    found: dict[float, float] = {}
    for row in rows:
        step, value = row.get("step"), row.get(name)
        if isinstance(step, int | float) and isinstance(value, int | float) and math.isfinite(step):
            found[float(step)] = float(value)
    kept = sorted((step, value) for step, value in found.items() if math.isfinite(value))
    pairs = np.array(kept, dtype=np.float64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _moving_average(values: FloatVector) -> FloatVector:
    """Centered moving average, which does not lag; the window is narrow at the start, where the loss falls steeply."""
    reach = max(1, len(values) // 40)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(values))
    low = at - np.minimum(at, reach)
    high = np.minimum(2 * at - low, len(values) - 1) + 1
    smoothed: FloatVector = (sums[high] - sums[low]) / (high - low)
    return smoothed


def _draw_loss(axes: Axes, train: Series, valid: Series, last: float) -> float | None:
    """Draw both losses in one panel. Returns the step with the lowest validation loss."""
    _style_axes(axes, "loss", last, ticks=8)
    if not len(train[0]) and not len(valid[0]):
        _mark_empty(axes)
        return None
    if len(train[0]):
        marker = "o" if len(train[0]) == 1 else ""
        axes.plot(*train, color=ACCENT, alpha=0.25, linewidth=1.0, marker=marker)
        axes.plot(train[0], _moving_average(train[1]), color=ACCENT, linewidth=1.8, marker=marker, label=TRAIN_LABEL)
    best = None
    if len(valid[0]):
        axes.plot(*valid, color=WARM, linewidth=1.6, marker="o", markersize=4, label="validation loss", zorder=3)
        at = int(valid[1].argmin())
        best = float(valid[0][at])
        _mark_best(axes, best, float(valid[1][at]))
    axes.legend(loc="upper right", fontsize=9, labelcolor=INK, facecolor="white", edgecolor="none", framealpha=0.9)
    return best


def _mark_best(axes: Axes, step: float, value: float) -> None:
    axes.axvline(step, color=LINE, linewidth=1.2, linestyle=(0, (4, 3)), zorder=0)
    axes.plot([step], [value], marker="o", markersize=10, markerfacecolor="none", markeredgecolor=WARM, zorder=4)
    low, high = axes.get_xlim()
    leftward = step > (low + high) / 2
    axes.annotate(
        f"best {value:.4g} at step {step:,.0f}", (step, value), xytext=(-12 if leftward else 12, 16),
        textcoords="offset points", ha="right" if leftward else "left", size=9, color=WARM, weight="bold",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
    )  # fmt: skip


def _draw_series(axes: Axes, name: str, series: Series, colour: str, best: float | None, last: float) -> None:
    _style_axes(axes, name, last, ticks=5)
    steps, values = series
    if not len(steps):
        return _mark_empty(axes)
    marker = "o" if len(steps) == 1 or (colour == WARM and len(steps) <= 60) else ""
    axes.plot(steps, values, color=colour, linewidth=1.5, marker=marker, markersize=3.5)
    if best is not None:
        axes.axvline(best, color=LINE, linewidth=1.2, linestyle=(0, (4, 3)), zorder=0)
    axes.set_title(f"last {values[-1]:.4g}", loc="right", size=8.5, color=colour, pad=6)


def _style_axes(axes: Axes, name: str, last: float, ticks: int) -> None:
    from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

    shown = shorten(label(name.replace("_", " "), 200), 24)
    axes.set_title(shown, loc="left", size=10.5, weight="bold", pad=6)
    axes.grid(axis="y", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0, labelsize=8)
    axes.set_xlim(-0.01 * last, 1.02 * last)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=ticks, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    axes.set_xlabel("step", size=8, loc="right", labelpad=3)


def _mark_empty(axes: Axes) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, "no data yet", transform=axes.transAxes, ha="center", va="center", color=MUTED, size=9)
