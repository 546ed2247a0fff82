"""How a training went: the loss, what the task measures, and the learning rate, over the steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from regard.draw.colour import ACCENT, INK, LINE, QUIET, WARM
from regard.draw.label import label, shorten
from regard.draw.paper import Sheet, check_ending, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, float | str | int]
Numbers = NDArray[np.float64]

MARGIN: Final = 0.45
WIDTH: Final = 10.5
_NO_METRIC: Final = frozenset({"kind", "step", "loss", "seconds"})


def curves(rows: Sequence[Row], path: Path, title: str = "") -> Path:
    """Draw the log rows of a training (`kind` is "train" or "valid") into a .png or .svg file."""
    ending = check_ending(path, (".png", ".svg"))
    train = [row for row in rows if row.get("kind") == "train"]
    valid = [row for row in rows if row.get("kind") == "valid"]
    names = dict.fromkeys(key for row in valid for key, value in row.items() if _is_number(value))
    metrics = [name for name in names if name not in _NO_METRIC]
    small = [*((name, valid, WARM) for name in metrics), ("rate", train, QUIET)]
    across, gap, high = min(len(small), 3), 0.75, 1.75
    lines = math.ceil(len(small) / across)
    begin = MARGIN + (0.45 if title else 0.0)
    loss_high = 3.7
    inner = WIDTH - 2 * MARGIN - 0.45
    wide = (inner - gap * (across - 1)) / across
    with styled():
        sheet = Sheet(WIDTH, begin + 0.35 + loss_high + 0.4 + lines * (high + 0.75) + 0.1)
        sheet.text(MARGIN, MARGIN - 0.1, shorten(label(title, 500), 80), size=15, weight="bold")
        left = MARGIN + 0.45
        loss = sheet.axes(left, begin + 0.35, inner, loss_high)
        best = _draw_loss(loss, _series(train, "loss"), _series(valid, "loss"))
        for at, (name, source, colour) in enumerate(small):
            row, column = divmod(at, across)
            top = begin + 0.35 + loss_high + 0.8 + row * (high + 0.75)
            axes = sheet.axes(left + column * (wide + gap), top, wide, high)
            _draw_series(axes, "learning rate" if name == "rate" else name, *_series(source, name), colour, best)
        return sheet.save(path, ending)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _series(rows: Sequence[Row], name: str) -> tuple[Numbers, Numbers]:
    """Steps and finite values in order; a step that was trained again after a resume counts as last logged."""
    found: dict[float, float] = {}
    for row in rows:
        step, value = row.get("step"), row.get(name)
        if isinstance(step, int | float) and isinstance(value, int | float) and math.isfinite(step):
            found[float(step)] = float(value)
    kept = sorted((step, value) for step, value in found.items() if math.isfinite(value))
    pairs = np.array(kept, dtype=np.float64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _smooth(values: Numbers) -> Numbers:
    """A moving mean about each point, which unlike a trailing one does not lag; narrower at the two ends."""
    reach = max(1, len(values) // 40)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(values))
    half = np.minimum(np.minimum(at, at[::-1]), reach)
    smoothed: Numbers = (sums[at + half + 1] - sums[at - half]) / (2 * half + 1)
    return smoothed


def _draw_loss(axes: Axes, train: tuple[Numbers, Numbers], valid: tuple[Numbers, Numbers]) -> float | None:
    """Both losses in one panel; returns the step where the validation loss was least."""
    _furnish(axes, "loss")
    if not len(train[0]) and not len(valid[0]):
        _say_nothing(axes)
        return None
    if len(train[0]):
        marker = "o" if len(train[0]) == 1 else ""
        axes.plot(*train, color=ACCENT, alpha=0.25, linewidth=1.0, marker=marker)
        axes.plot(train[0], _smooth(train[1]), color=ACCENT, linewidth=1.8, label="training")
    best = None
    if len(valid[0]):
        axes.plot(*valid, color=WARM, linewidth=1.6, marker="o", markersize=4, label="validation", zorder=3)
        at = int(valid[1].argmin())
        best = float(valid[0][at])
        _mark_best(axes, best, float(valid[1][at]))
    axes.legend(frameon=False, loc="upper right", fontsize=9, labelcolor=INK)
    return best


def _mark_best(axes: Axes, step: float, value: float) -> None:
    axes.axvline(step, color=LINE, linewidth=1.2, linestyle=(0, (4, 3)), zorder=0)
    axes.plot([step], [value], marker="o", markersize=10, markerfacecolor="none", markeredgecolor=WARM, zorder=4)
    low, high = axes.get_xlim()
    leftward = step > (low + high) / 2
    axes.annotate(
        f"best {value:.4g} at step {step:,.0f}", (step, value), xytext=(-12 if leftward else 12, 16),
        textcoords="offset points", ha="right" if leftward else "left", size=9, color=WARM, weight="bold",
    )  # fmt: skip


def _draw_series(axes: Axes, name: str, steps: Numbers, values: Numbers, colour: str, best: float | None) -> None:
    _furnish(axes, name)
    if not len(steps):
        return _say_nothing(axes)
    marker = "o" if len(steps) <= 60 and colour == WARM or len(steps) == 1 else ""
    axes.plot(steps, values, color=colour, linewidth=1.5, marker=marker, markersize=3.5)
    if best is not None:
        axes.axvline(best, color=LINE, linewidth=1.2, linestyle=(0, (4, 3)), zorder=0)
    axes.set_title(f"now {values[-1]:.4g}", loc="right", size=8.5, color=colour, pad=6)


def _furnish(axes: Axes, name: str) -> None:
    from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

    axes.set_title(shorten(label(name.replace("_", " "), 200), 40), loc="left", size=10.5, weight="bold", pad=6)
    axes.grid(axis="y", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0, labelsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    axes.set_xlabel("step", size=8, loc="right", labelpad=1)


def _say_nothing(axes: Axes) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, "nothing logged yet", transform=axes.transAxes, ha="center", va="center", color=QUIET, size=9)
