"""Accuracy of linear probes by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from regard.draw.colormap import ACCENT, INK, LINE, MUTED, WARM
from regard.draw.figure import Sheet, check_suffix, figure_style
from regard.draw.token_label import label
from regard.errors import RegardError

MARGIN: Final = 0.45
PLOT_WIDTH: Final = 7.2
PLOT_HEIGHT: Final = 3.6
COLORS: Final = (ACCENT, WARM, MUTED)


def draw_layer_scores(
    curves: Mapping[str, Sequence[float]],
    path: Path,
    title: str = "",
    subtitle: str = "",
    layer_names: Sequence[str] = (),
) -> Path:
    """Draw accuracies in percent by layer, one curve per name, into a .png or .svg file. `layer_names`: default 1, 2, …"""
    ending = check_suffix(path, (".png", ".svg"))
    if not curves or not all(curves.values()):
        raise RegardError("No layers to draw.")
    with figure_style():
        top = MARGIN + (0.4 if title else 0.0) + (0.3 if subtitle else 0.0) + 0.1
        sheet = Sheet(MARGIN + 0.5 + PLOT_WIDTH + MARGIN, top + PLOT_HEIGHT + 0.6)
        sheet.text(MARGIN, MARGIN - 0.1, label(title, max_width=80) if title else "", size=13, weight="bold")
        sheet.text(MARGIN, MARGIN + (0.22 if title else -0.1), subtitle, size=8.5, color=MUTED)
        axes = sheet.axes(MARGIN + 0.5, top, PLOT_WIDTH, PLOT_HEIGHT)
        deepest = max(map(len, curves.values()))
        for (name, values), colour in zip(curves.items(), COLORS * len(curves), strict=False):
            layers = range(1, len(values) + 1)
            axes.plot(layers, values, color=colour, linewidth=1.8, marker="o", markersize=4, label=label(name, 40))
            best = max(layers, key=lambda layer: (values[layer - 1], -layer))
            axes.plot([best], [values[best - 1]], "o", markersize=10, markerfacecolor="none", markeredgecolor=colour)
            where = layer_names[best - 1] if layer_names else f"layer {best}"
            axes.annotate(
                f"{values[best - 1]:.2f} at {where}", (best, values[best - 1]), xytext=(0, 10), size=9, color=colour,
                textcoords="offset points", ha="right" if best > deepest / 2 else "left", va="bottom", weight="bold",
            )  # fmt: skip
        axes.set_xlim(0.5, deepest + 0.5)
        axes.margins(y=0.18)
        low, high = axes.get_ylim()
        low, high = max(low, -2.0), min(high, 102.0)  # 0 to 100 %, with space for the ring around the best value
        axes.set_yticks([tick for tick in axes.get_yticks() if max(low, 0) <= tick <= min(high, 100)])
        axes.set_ylim(low, high)
        kinds = list(dict.fromkeys(name.rpartition(" ")[0] for name in layer_names)) or ["layer"]
        # with one kind of layer (block 1, block 2, …), ticks show only the numbers
        said = [label(name if len(kinds) > 1 else name.rpartition(" ")[2], 10) for name in layer_names]
        step = -(-deepest // (10 if len(kinds) > 1 else 24))
        axes.set_xticks(range(1, deepest + 1, step), said[::step] or None)
        axes.set_xlabel(kinds[0] if len(kinds) == 1 else "", size=8.5, labelpad=4)
        axes.set_ylabel("accuracy (%)", size=8.5)
        axes.grid(axis="y", color=LINE, linewidth=0.6)
        axes.set_axisbelow(True)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.tick_params(length=0, labelsize=8)
        if len(curves) > 1:
            axes.legend(loc="lower right", fontsize=8.5, labelcolor=INK, facecolor="white", edgecolor="none")
        return sheet.save(path, ending)
