"""Heatmaps over an image as one self-contained page, and the similarity of position embeddings as a figure."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard.draw.class_colors import HEAT_COLORS, apply_colormap
from regard.draw.figure import check_suffix, write_atomic
from regard.draw.page import round_digits, write_page

WEIGHT_SCALE = 10_000
"""Weights are stored as integers: four digits relative to the largest weight."""

POSITION_IMAGE_SIZE = 800
"""Approximate width of the position similarity image in pixels."""


class OverlayMap(NamedTuple):
    """One heatmap, or the heatmaps of all heads of a layer."""

    name: str
    weights: np.ndarray
    """(h, w) or (heads, h, w)"""
    extent: tuple[float, float] = (1.0, 1.0)
    """height and width of the grid relative to the image"""
    weights_per_query: np.ndarray | None = None
    """(queries, heads, h, w) attention of each stored query"""


def write_image_page(
    image: np.ndarray, layers: Sequence[OverlayMap], methods: Mapping[str, OverlayMap], path: Path, title: str,
    facts: Mapping[str, str], query: tuple[str, tuple[float, float] | None] = ("", None), query_grid: tuple[int, int] = (0, 0),
    positions: Any = None, descriptions: Mapping[str, str] | None = None,
) -> Path:  # fmt: skip
    """Write a page with selectable heatmaps over the image: every layer and head, for the query or any stored query, and
    `methods`. `query`: name and relative position; `descriptions`: texts for the methods and for "attention"."""
    check_suffix(path, (".html", ".htm"))
    data: dict[str, object] = {
        "picture": data_uri(image),
        "size": image.shape[:2],
        "ways": {name: _quantized_grid(way.weights, way.extent) for name, way in methods.items()},
        "attention": [[_quantized_grid(grid, layer.extent) for grid in layer.weights] for layer in layers],
        "layers": [layer.name for layer in layers],
        "each": [pack_maps(layer.weights_per_query) for layer in layers if layer.weights_per_query is not None],
        "asked": {"name": query[0], "mark": query[1]},
        "lattice": query_grid,
        "positions": None if positions is None else data_uri(position_similarity_image(positions)),
        "glow": list(HEAT_COLORS),
        "about": {name: (descriptions or {}).get(name, "") for name in (*methods, "attention")},
        "unit": "cell" if not layers else "pixel" if layers[0].weights.shape[-2:] == image.shape[:2] else "patch",
    }
    return write_page(path, title, facts, data, {}, "gaze.html")


def _quantized_grid(grid: np.ndarray, covers: tuple[float, float]) -> dict[str, Any]:
    most = float(grid.max()) or 1.0
    values = np.rint(WEIGHT_SCALE * grid / most).astype(int).ravel().tolist()
    return {"most": most, "shape": list(grid.shape), "covers": covers, "values": values}


def pack_maps(maps: np.ndarray) -> dict[str, object]:
    """Maximum of each of (m, n) maps, and all weights as bytes relative to the maximum."""
    most = maps.max((2, 3))
    shares = np.rint(255 * maps / np.where(most > 0, most, 1)[:, :, None, None]).clip(0, 255).astype(np.uint8)
    found = [round_digits(value) for value in most.ravel().tolist()]
    return {"most": found, "bytes": base64.b64encode(shares.tobytes()).decode()}


def data_uri(image: np.ndarray) -> str:
    """The image as a PNG data URI."""
    from PIL import Image

    to = io.BytesIO()
    Image.fromarray(image).save(to, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(to.getvalue()).decode()}"


def position_similarity_image(similarity: np.ndarray, gap: int = 2) -> np.ndarray:
    """Image of n × n tiles from cosine similarities (n², n²): one tile per position, each with the size of the grid."""
    side = round(len(similarity) ** 0.5)
    cell = min(max(POSITION_IMAGE_SIZE // side**2, 1), 16)
    low, high = float(similarity.min()), float(np.sort(similarity, axis=1)[:, -2].max())  # without the diagonal
    shares = ((similarity - low) / max(high - low, 1e-12)).clip(0, 1).reshape(side, side, side, side)
    size = side * cell
    sheet = np.full((side * (size + gap) - gap, side * (size + gap) - gap, 3), 255, dtype=np.uint8)
    for row in range(side):
        for column in range(side):
            top, left = row * (size + gap), column * (size + gap)
            colours = apply_colormap(shares[row, column], HEAT_COLORS)
            sheet[top : top + size, left : left + size] = colours.repeat(cell, 0).repeat(cell, 1)
    return sheet


def draw_position_similarity(similarity: np.ndarray, path: Path) -> Path:
    """Draw the cosine similarity of the position embeddings, one tile per position."""
    from regard.draw.figure import figure_style

    ending = check_suffix(path, (".png", ".svg"))
    with figure_style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 6.9), dpi=160)
        axes = figure.add_axes((0.03, 0.02, 0.94, 0.88))
        axes.imshow(position_similarity_image(similarity), interpolation="nearest")
        axes.axis("off")
        figure.text(0.03, 0.955, "Cosine similarity of position embeddings", weight="bold", size=11)
        figure.text(0.03, 0.925, "Each tile compares one position with all others. Bright: similar.", size=8)
        return write_atomic(path, lambda to: figure.savefig(to, format=ending))
