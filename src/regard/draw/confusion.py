"""Confusion matrix as a heatmap."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from regard.draw.colormap import INK, LIGHT, MUTED
from regard.draw.figure import Sheet, check_suffix, figure_style, wrap_text
from regard.draw.token_label import display_width, label

MARGIN: Final = 0.45
CHAR_WIDTH: Final = 0.61 * 9 / 72  # inches per character of a class name
MAX_CLASSES: Final = 24
"""maximum number of classes for a readable matrix"""


def draw_confusion(names: Sequence[str], counts: np.ndarray[Any, Any], path: Path) -> Path:
    """Draw counts (true class, predicted class), colored by fraction of the row, into a .png or .svg file."""
    from matplotlib.colors import LinearSegmentedColormap

    ending = check_suffix(path, (".png", ".svg"))
    shown = [label(name, max_width=24) for name in names]
    many, wide = len(shown), max(map(display_width, shown)) * CHAR_WIDTH + 0.15
    cell = min(0.9, max(0.32, 5.0 / many))
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    with figure_style():
        right, total = int(np.trace(counts)), int(counts.sum())
        score = f"Accuracy {100 * right / max(total, 1):.1f} % ({right:,} of {total:,})"
        width = max(MARGIN + wide + cell * many + max(MARGIN, wide * 0.7), 4.0)
        about = f"{score}. Rows: true class, columns: predicted class, color: fraction of the row."
        about = wrap_text(about, width - MARGIN, 8.5, 3)
        # rotated column labels need less height than width
        left, top = MARGIN + wide, MARGIN + 0.43 + 0.17 * (1 + about.count("\n")) + 0.75 * wide
        sheet = Sheet(width, top + cell * many + MARGIN)
        sheet.text(MARGIN, MARGIN - 0.1, "Confusion matrix", size=13, weight="bold")
        sheet.text(MARGIN, MARGIN + 0.2, about, size=8.5, color=MUTED)
        axes = sheet.axes(left, top, cell * many, cell * many)
        shades = LinearSegmentedColormap.from_list("regard", list(LIGHT))
        axes.imshow(shares, cmap=shades, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        axes.xaxis.tick_top()
        axes.set_xticks(range(many), shown, size=9, color=INK, rotation=45, ha="left", rotation_mode="anchor")
        axes.set_yticks(range(many), shown, size=9, color=INK)
        axes.tick_params(length=0, pad=4)
        for (row, column), count in np.ndenumerate(counts):
            if count:
                colour = "white" if shares[row, column] > 0.45 else INK
                axes.text(column, row, f"{count:,}", size=min(9, 16 * cell), color=colour, ha="center", va="center")
        return sheet.save(path, ending)
