"""Attention over an image: heatmaps of layers and heads as a page, position embeddings, and one image per word of a caption."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.draw.colors import HEAT_COLORS, INK, MUTED, ImageArray, apply_colormap
from regard.draw.figure import CHAR_WIDTH_PER_POINT, MARGIN, Sheet, check_suffix, figure_style, wrap_text
from regard.draw.overlay import resize_grid
from regard.draw.page import read_asset, round_digits, write_page
from regard.draw.panels import draw_image, percent
from regard.draw.text import label
from regard.errors import RegardError

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
    ending = check_suffix(path, (".png", ".svg"))
    with figure_style():
        sheet = Sheet(6.4, 6.9)
        axes = sheet.axes(0.19, 0.69, 6.02, 6.07)
        axes.imshow(position_similarity_image(similarity), interpolation="nearest")
        axes.axis("off")
        sheet.text(0.19, 0.15, "Cosine similarity of position embeddings", 11, weight="bold")
        sheet.text(0.19, 0.4, "Each tile compares one position with all others. Bright: similar.", 8)
        return sheet.save(path, ending)


Weights = npt.NDArray[np.floating]

COLUMNS: Final = 6
MAX_WIDTH: Final = 10.5  # maximum inches between the margins
MAX_PANEL_WIDTH: Final = 1.9  # inches
GAP: Final = 0.16
HEAD_HEIGHT: Final = 0.3  # inches above an image for the word
MIN_IMAGE_SIDE: Final = 320
"""Small images are enlarged to this number of pixels, so that brightness changes smoothly."""
MIN_UNIFORM_MULTIPLE: Final = 4
"""Full brightness means this multiple of the uniform weight or more, so that uniform attention looks uniform."""
UNIFORM_NOTE: Final = "; dim: nearly uniform"
MIN_BRIGHTNESS: Final = 0.38
"""Brightness of regions without attention."""
LIGHT_COLOR: Final = (255, 178, 92)
MAX_TINT: Final = 0.45
"""Strength of the light color on a black image; weaker on brighter images."""


class CaptionWord(NamedTuple):
    """A word with the probability given all previous words, and the most likely alternatives with probabilities."""

    word: str
    probability: float
    top_k: tuple[tuple[str, float], ...] = ()


class CaptionLayer(NamedTuple):
    name: str
    weights: Weights
    """(heads, words, rows, columns): fractions of the total attention; the sum is below 1 if tokens are outside the grid"""


@dataclass(frozen=True)
class CaptionAttention:
    """An image with its caption, and the attention of each layer and head on one grid."""

    image: ImageArray
    words: tuple[CaptionWord, ...]
    layers: tuple[CaptionLayer, ...]
    method: str = "attention"
    """name of the weights"""

    def __post_init__(self) -> None:
        if not self.words or not self.layers:
            raise RegardError("No words or no attention layers to draw.")
        shapes = {layer.weights.shape[1:] for layer in self.layers}
        if len(shapes) > 1 or next(iter(shapes))[0] != len(self.words):
            raise ValueError(f"expected the maps of {len(self.words)} words in every layer, got shapes {shapes}")

    @property
    def grid(self) -> tuple[int, int]:
        rows, columns = self.layers[0].weights.shape[2:]
        return rows, columns

    def maps(self, layer: int | None = None, head: int | None = None) -> Weights:
        """Maps (words, rows, columns) of one layer and head, counted from 1; None: the average."""
        if layer is not None and not 1 <= layer <= len(self.layers):
            raise RegardError(f"Layer must be between 1 and {len(self.layers)}, got {layer}.")
        chosen = self.layers if layer is None else (self.layers[layer - 1],)
        most = min(len(one.weights) for one in chosen)
        if head is not None and not 1 <= head <= most:
            raise RegardError(f"Head must be between 1 and {most}, got {head}.")
        means = [one.weights.mean(0) if head is None else one.weights[head - 1] for one in chosen]
        return np.mean(means, axis=0)

    def describe_selection(self, layer: int | None, head: int | None) -> str:
        """Selected layers and heads as text; empty for one layer with one head."""
        many, heads = len(self.layers), len(self.layers[(layer or 1) - 1].weights)
        first = f"average over {many} layers" if layer is None else f"layer {layer} of {many}"
        second = f"average over {heads} heads" if head is None else f"head {head} of {heads}"
        return ", ".join([*([first] if many > 1 else []), *([second] if heads > 1 else [])])


def brightness_max(weights: Weights) -> float:
    """The weight shown with full brightness."""
    return max(float(weights.max(initial=0.0)), min(MIN_UNIFORM_MULTIPLE / weights.size, 1.0))


def spotlight(image: ImageArray, weights: Weights, max_weight: float) -> ImageArray:
    """The image with brightness by attention. The grid of weights is interpolated to the size of the image."""
    high, wide = image.shape[:2]
    shares = resize_grid(weights / max_weight, (high, wide), True, (1.0, 1.0)).clip(0, 1)[..., None]
    grey = image.mean(-1, keepdims=True)
    dark = MIN_BRIGHTNESS * (0.6 * image + 0.4 * grey)
    light = image + tint_strength(image) * shares * (np.array(LIGHT_COLOR) - image)
    return np.rint(dark + shares * (light - dark)).clip(0, 255).astype(np.uint8)


def tint_strength(image: ImageArray) -> float:
    return MAX_TINT * (1 - float(image.mean()) / 255)


def upscale(image: ImageArray) -> ImageArray:
    """The image enlarged to at least `MIN_IMAGE_SIDE` pixels, so that brightness changes smoothly."""
    from PIL import Image

    times = -(-MIN_IMAGE_SIDE // max(image.shape[:2]))
    if times < 2:
        return image
    size = image.shape[1] * times, image.shape[0] * times
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BICUBIC))


# -- figure


def draw_caption_attention(
    attention: CaptionAttention,
    path: Path,
    title: str = "",
    subtitle: str = "",
    layer: int | None = None,
    head: int | None = None,
) -> Path:
    """Draw the image, and one image per word with brightness by attention, into a .png or .svg file."""
    ending = check_suffix(path, (".png", ".svg"))
    maps, picture = attention.maps(layer, head), upscale(attention.image)
    many = len(maps) + 1
    across = min(many, COLUMNS)
    side = min(MAX_PANEL_WIDTH, (MAX_WIDTH + GAP) / across - GAP)
    tall = side * picture.shape[0] / picture.shape[1]
    width = max(across * (side + GAP) - GAP, 4.6)
    lines = wrap_text(title, width, 13, 3)
    under = "\n".join(
        text for text in (attention.describe_selection(layer, head), wrap_text(subtitle, width, 8.5, 3)) if text
    )
    top = MARGIN + 0.24 * (lines.count("\n") + 1) * bool(lines) + 0.17 * (under.count("\n") + 1) * bool(under)
    rows = -(-many // across)
    with figure_style():
        sheet = Sheet(2 * MARGIN + width, top + rows * (HEAD_HEIGHT + tall + GAP) + 0.38 + MARGIN - 0.2)
        sheet.text(MARGIN, MARGIN - 0.1, lines, 13, weight="bold")
        sheet.text(MARGIN, MARGIN + 0.24 * (lines.count("\n") + 1) * bool(lines) - 0.08, under, 8.5, MUTED)
        for number in range(many):
            left, down = MARGIN + number % across * (side + GAP), top + number // across * (HEAD_HEIGHT + tall + GAP)
            said = attention.words[number - 1] if number else None
            own = picture if said is None else spotlight(picture, maps[number - 1], brightness_max(maps[number - 1]))
            _draw_word(sheet, own, (left, down, side, tall), said)
        even = any(brightness_max(own) > own.max() for own in maps)
        told = f"Brightness: {attention.method}, scaled per image" + UNIFORM_NOTE * even
        _draw_scale(sheet, top + rows * (HEAD_HEIGHT + tall + GAP) + 0.06, told)
        return sheet.save(path, ending)


def _draw_word(
    sheet: Sheet, picture: ImageArray, at: tuple[float, float, float, float], said: CaptionWord | None
) -> None:
    left, top, side, tall = at
    chance = "" if said is None else percent(said.probability)
    room = int((side - (len(chance) + 1) * CHAR_WIDTH_PER_POINT * 8) / (CHAR_WIDTH_PER_POINT * 10.5))
    word = "image" if said is None else label(said.word, max(room, 3))
    axes = sheet.canvas(left, top, side, HEAD_HEIGHT + tall)
    style: dict[str, Any] = {"size": 10.5, "color": INK, "weight": "bold"}
    if said is None:
        style = {"size": 9, "color": MUTED}
    axes.text(0, HEAD_HEIGHT - 0.07, word, **style)
    axes.text(side, HEAD_HEIGHT - 0.07, chance, size=8, color=MUTED, ha="right")
    draw_image(axes, picture, 0, HEAD_HEIGHT, side, smooth=True)


def _draw_scale(sheet: Sheet, top: float, told: str) -> None:
    """Draw the legend of the brightness."""
    bar = sheet.axes(MARGIN, top, 1.2, 0.11)
    bar.imshow(
        np.linspace(MIN_BRIGHTNESS, 1, 256)[None], cmap="gray", vmin=0, vmax=1, aspect="auto", extent=(0, 1, 0, 1)
    )
    bar.set_xticks([])
    bar.set_yticks([])
    sheet.text(MARGIN + 1.32, top - 0.02, wrap_text(told, sheet.width - 2 * MARGIN - 1.32, 8, 2), 8, MUTED)


# -- page


def write_caption_page(
    attention: CaptionAttention, path: Path, title: str, note: str, facts: Mapping[str, str]
) -> Path:
    """Write a page that shows the image with the attention of one word at a time, for selected layers and heads."""
    check_suffix(path, (".html", ".htm"))
    data: dict[str, object] = {
        "picture": data_uri(attention.image),
        "size": attention.image.shape[:2],
        "grid": attention.grid,
        "words": [
            {
                "word": said.word,
                "chance": round_digits(said.probability),
                "likely": [[w, round_digits(c)] for w, c in said.top_k],
            }
            for said in attention.words
        ],
        "layers": [
            {"name": layer.name, "heads": len(layer.weights), **pack_maps(layer.weights)} for layer in attention.layers
        ],
        "how": attention.method,
        "look": {
            "dark": MIN_BRIGHTNESS,
            "warm": LIGHT_COLOR,
            "tint": round_digits(tint_strength(attention.image)),
            "even": MIN_UNIFORM_MULTIPLE,
        },
    }
    parts = {
        "note": html.escape(note),
        "style": read_asset("page.css") + read_asset("wordwise.css"),
        "body": read_asset("wordwise.html"),
        "script": read_asset("wordwise.js"),
    }
    return write_page(path, title, facts, data, parts)
