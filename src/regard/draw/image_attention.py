"""What was looked at in a picture as one page that needs nothing else, and learned positions as a sheet of small maps."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard.draw.class_colors import GLOW, ramped
from regard.draw.figure import check_ending, write_whole
from regard.draw.page import brief, write_page

SCALE = 10_000
"""Weights are kept as whole numbers: four digits of the largest."""

SHEET = 800
"""About how many pixels a sheet of learned positions is wide."""


class Looked(NamedTuple):
    """A map, or those of the heads of a layer, to be laid over a picture."""

    name: str
    weights: np.ndarray
    """(h, w) or (heads, h, w)"""
    covers: tuple[float, float] = (1.0, 1.0)
    """how far the grid reaches, in heights and widths of the picture"""
    each: np.ndarray | None = None
    """(places, heads, h, w) what each place of a lattice looked at"""


def gaze_page(
    picture: np.ndarray, layers: Sequence[Looked], ways: Mapping[str, Looked], path: Path, title: str,
    facts: Mapping[str, str], asked: tuple[str, tuple[float, float] | None] = ("", None), lattice: tuple[int, int] = (0, 0),
    positions: Any = None, about: Mapping[str, str] | None = None,
) -> Path:  # fmt: skip
    """The picture, on which every layer and head, the roll-out and what counted can be laid, and what each place looked at.
    `asked`: who looked, in words and where that is; `about`: what each of the ways means, and "attention"."""
    check_ending(path, (".html", ".htm"))
    data: dict[str, object] = {
        "picture": uri(picture),
        "size": picture.shape[:2],
        "ways": {name: _whole(way.weights, way.covers) for name, way in ways.items()},
        "attention": [[_whole(grid, layer.covers) for grid in layer.weights] for layer in layers],
        "layers": [layer.name for layer in layers],
        "each": [packed(layer.each) for layer in layers if layer.each is not None],
        "asked": {"name": asked[0], "mark": asked[1]},
        "lattice": lattice,
        "positions": None if positions is None else uri(position_sheet(positions)),
        "glow": list(GLOW),
        "about": {name: (about or {}).get(name, "") for name in (*ways, "attention")},
        "unit": "pixel" if layers and layers[0].weights.shape[-2:] == picture.shape[:2] else "place",
    }
    return write_page(path, title, facts, data, {}, "gaze.html")


def _whole(grid: np.ndarray, covers: tuple[float, float]) -> dict[str, Any]:
    most = float(grid.max()) or 1.0
    values = np.rint(SCALE * grid / most).astype(int).ravel().tolist()
    return {"most": most, "shape": list(grid.shape), "covers": covers, "values": values}


def packed(each: np.ndarray) -> dict[str, object]:
    """Of each of (m, n) maps the largest weight, and all as bytes, shares of that."""
    most = each.max((2, 3))
    shares = np.rint(255 * each / np.where(most > 0, most, 1)[:, :, None, None]).clip(0, 255).astype(np.uint8)
    found = [brief(value) for value in most.ravel().tolist()]
    return {"most": found, "bytes": base64.b64encode(shares.tobytes()).decode()}


def uri(picture: np.ndarray) -> str:
    """A picture as a page holds it in itself."""
    from PIL import Image

    to = io.BytesIO()
    Image.fromarray(picture).save(to, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(to.getvalue()).decode()}"


def position_sheet(alike: np.ndarray, gap: int = 2) -> np.ndarray:
    """(n², n²) cosines as a sheet of n x n maps, one for each place, each as large as the grid itself."""
    side = round(len(alike) ** 0.5)
    cell = min(max(SHEET // side**2, 1), 16)
    low, high = float(alike.min()), float(np.sort(alike, axis=1)[:, -2].max())  # each is most like itself
    shares = ((alike - low) / max(high - low, 1e-12)).clip(0, 1).reshape(side, side, side, side)
    size = side * cell
    sheet = np.full((side * (size + gap) - gap, side * (size + gap) - gap, 3), 255, dtype=np.uint8)
    for row in range(side):
        for column in range(side):
            top, left = row * (size + gap), column * (size + gap)
            colours = ramped(shares[row, column], GLOW)
            sheet[top : top + size, left : left + size] = colours.repeat(cell, 0).repeat(cell, 1)
    return sheet


def draw_positions(alike: np.ndarray, path: Path) -> Path:
    """How alike the learned position of each place is to those of all others."""
    from regard.draw.figure import styled

    ending = check_ending(path, (".png", ".svg"))
    with styled():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 6.9), dpi=160)
        axes = figure.add_axes((0.03, 0.02, 0.94, 0.88))
        axes.imshow(position_sheet(alike), interpolation="nearest")
        axes.axis("off")
        figure.text(0.03, 0.955, "How alike learned positions are", weight="bold", size=11)
        figure.text(0.03, 0.925, "each small map: one place against all others; bright is alike", size=8)
        return write_whole(path, lambda to: figure.savefig(to, format=ending))
