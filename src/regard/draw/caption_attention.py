"""A caption word by word: what was looked at in the picture while each was said, as a sheet of small pictures and as one page
that steps through them. What was looked at keeps its light; the rest lies in the dark, and can still be seen."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.draw.class_colors import Picture
from regard.draw.colormap import INK, LINE, QUIET
from regard.draw.figure import LETTER, Sheet, check_ending, styled, wrapped
from regard.draw.image_attention import packed, uri
from regard.draw.overlay import stretched
from regard.draw.page import brief, part, write_page
from regard.draw.token_label import label
from regard.errors import RegardError

Weights = npt.NDArray[np.floating]

ACROSS: Final = 6
WIDE: Final = 10.5  # inches of a sheet between its margins, at most
PANEL: Final = 1.9  # of a picture on it
MARGIN: Final = 0.45
GAP: Final = 0.16
HEAD: Final = 0.3  # inches above a picture for its word
FINE: Final = 320
"""Pixels that a small picture is enlarged to, so that light falls smoothly on it."""
EVEN: Final = 4
"""The brightest light is so many even shares at least: what is looked at evenly looks so."""
EVENLY: Final = "; dim: all places nearly alike"
DARK: Final = 0.38
"""How much of a picture is seen where nothing was looked at."""
WARM: Final = (255, 178, 92)
TINT: Final = 0.45
"""The darker a picture is, the more light has a colour of its own: on a black one so much."""


class Said(NamedTuple):
    """A word, its probability given those before it, and the likeliest ones in its place with theirs."""

    word: str
    chance: float
    likely: tuple[tuple[str, float], ...] = ()


class Layer(NamedTuple):
    name: str
    weights: Weights
    """(heads, words, rows, columns): shares of all that was looked at; what has no place in the picture may lack"""


@dataclass(frozen=True)
class Saying:
    """A picture, what was said of it, and what was looked at by each layer and head, on one grid."""

    picture: Picture
    words: tuple[Said, ...]
    layers: tuple[Layer, ...]
    how: str = "was looked at"
    """shares of what they are: of what was looked at"""

    def __post_init__(self) -> None:
        if not self.words or not self.layers:
            raise RegardError("there is no word to draw, or nothing that was looked at.")
        shapes = {layer.weights.shape[1:] for layer in self.layers}
        if len(shapes) > 1 or next(iter(shapes))[0] != len(self.words):
            raise ValueError(f"{len(self.words)} words cannot have looked over {shapes}")

    @property
    def grid(self) -> tuple[int, int]:
        rows, columns = self.layers[0].weights.shape[2:]
        return rows, columns

    def maps(self, layer: int | None = None, head: int | None = None) -> Weights:
        """(words, rows, columns) of one layer and head, counted from 1; None: the mean of all."""
        if layer is not None and not 1 <= layer <= len(self.layers):
            raise RegardError(f"there is no layer {layer}: there are {len(self.layers)}, counted from 1.")
        chosen = self.layers if layer is None else (self.layers[layer - 1],)
        most = min(len(one.weights) for one in chosen)
        if head is not None and not 1 <= head <= most:
            raise RegardError(f"there is no head {head}: there are {most}, counted from 1.")
        means = [one.weights.mean(0) if head is None else one.weights[head - 1] for one in chosen]
        return np.mean(means, axis=0)

    def shown(self, layer: int | None, head: int | None) -> str:
        """Which layers and heads these are, in words; nothing where there is but one."""
        many, heads = len(self.layers), len(self.layers[(layer or 1) - 1].weights)
        first = f"mean of {many} layers" if layer is None else f"layer {layer} of {many}"
        second = f"mean of {heads} heads" if head is None else f"head {head} of {heads}"
        return ", ".join([*([first] if many > 1 else []), *([second] if heads > 1 else [])])


def bright(weights: Weights) -> float:
    """The weight that has the brightest light."""
    return max(float(weights.max(initial=0.0)), min(EVEN / weights.size, 1.0))


def lit(picture: Picture, weights: Weights, most: float) -> Picture:
    """The picture in the light of what was looked at. The grid of weights is stretched over it smoothly."""
    high, wide = picture.shape[:2]
    shares = stretched(weights / most, (high, wide), True, (1.0, 1.0)).clip(0, 1)[..., None]
    grey = picture.mean(-1, keepdims=True)
    dark = DARK * (0.6 * picture + 0.4 * grey)
    light = picture + tint(picture) * shares * (np.array(WARM) - picture)
    return np.rint(dark + shares * (light - dark)).clip(0, 255).astype(np.uint8)


def tint(picture: Picture) -> float:
    return TINT * (1 - float(picture.mean()) / 255)


def enlarged(picture: Picture) -> Picture:
    """No smaller than light needs to fall smoothly."""
    from PIL import Image

    times = -(-FINE // max(picture.shape[:2]))
    if times < 2:
        return picture
    size = picture.shape[1] * times, picture.shape[0] * times
    return np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.BICUBIC))


# -- the sheet


def draw_wordwise(
    saying: Saying, path: Path, title: str = "", about: str = "", layer: int | None = None, head: int | None = None
) -> Path:
    """The picture, and once more for each word, into a .png or .svg file."""
    ending = check_ending(path, (".png", ".svg"))
    maps, picture = saying.maps(layer, head), enlarged(saying.picture)
    many = len(maps) + 1
    across = min(many, ACROSS)
    side = min(PANEL, (WIDE + GAP) / across - GAP)
    tall = side * picture.shape[0] / picture.shape[1]
    width = max(across * (side + GAP) - GAP, 4.6)
    lines = wrapped(title, width, 13, 3)
    under = "\n".join(text for text in (saying.shown(layer, head), wrapped(about, width, 8.5, 2)) if text)
    top = MARGIN + 0.24 * (lines.count("\n") + 1) * bool(lines) + 0.17 * (under.count("\n") + 1) * bool(under)
    rows = -(-many // across)
    with styled():
        sheet = Sheet(2 * MARGIN + width, top + rows * (HEAD + tall + GAP) + 0.38 + MARGIN - 0.2)
        sheet.text(MARGIN, MARGIN - 0.1, lines, 13, weight="bold")
        sheet.text(MARGIN, MARGIN + 0.24 * (lines.count("\n") + 1) * bool(lines) - 0.08, under, 8.5, QUIET)
        for number in range(many):
            left, down = MARGIN + number % across * (side + GAP), top + number // across * (HEAD + tall + GAP)
            said = saying.words[number - 1] if number else None
            own = picture if said is None else lit(picture, maps[number - 1], bright(maps[number - 1]))
            _panel(sheet, own, (left, down, side, tall), said)
        even = any(bright(own) > own.max() for own in maps)
        told = f"what {saying.how} most is brightest, in each picture by itself" + EVENLY * even
        _scale(sheet, top + rows * (HEAD + tall + GAP) + 0.06, told)
        return sheet.save(path, ending)


def _panel(sheet: Sheet, picture: Picture, at: tuple[float, float, float, float], said: Said | None) -> None:
    left, top, side, tall = at
    chance = "" if said is None else _percent(said.chance)
    room = int((side - (len(chance) + 1) * LETTER * 8) / (LETTER * 10.5))
    word = "the picture" if said is None else label(said.word, max(room, 3))
    axes = sheet.axes(left, top, side, HEAD + tall)
    axes.set_axis_off()
    quiet = said is None
    axes.text(
        0, 0.07, word, size=9 if quiet else 10.5, color=QUIET if quiet else INK, weight="normal" if quiet else "bold"
    )
    axes.text(side, 0.07, chance, size=8, color=QUIET, ha="right")
    axes.imshow(picture, extent=(0, side, -tall, 0), interpolation="antialiased", aspect="auto")
    axes.plot([0, side, side, 0, 0], [0, 0, -tall, -tall, 0], color=LINE, linewidth=0.6)
    axes.set_xlim(0, side)
    axes.set_ylim(-tall, HEAD)


def _scale(sheet: Sheet, top: float, told: str) -> None:
    """What the light means."""
    bar = sheet.axes(MARGIN, top, 1.2, 0.11)
    bar.imshow(np.linspace(DARK, 1, 256)[None], cmap="gray", vmin=0, vmax=1, aspect="auto", extent=(0, 1, 0, 1))
    bar.set_xticks([])
    bar.set_yticks([])
    sheet.text(MARGIN + 1.32, top - 0.02, wrapped(told, sheet.width - 2 * MARGIN - 1.32, 8, 2), 8, QUIET)


def _percent(chance: float) -> str:
    return f"{100 * chance:.0f} %" if chance >= 0.0995 else f"{100 * chance:.1f} %" if chance >= 0.0005 else "< 0.1 %"


# -- the page


def wordwise_page(saying: Saying, path: Path, title: str, note: str, facts: Mapping[str, str]) -> Path:
    """The picture in the light of each word, one after the other; every layer and head can be chosen."""
    check_ending(path, (".html", ".htm"))
    data: dict[str, object] = {
        "picture": uri(saying.picture),
        "size": saying.picture.shape[:2],
        "grid": saying.grid,
        "words": [
            {"word": said.word, "chance": brief(said.chance), "likely": [[w, brief(c)] for w, c in said.likely]}
            for said in saying.words
        ],
        "layers": [
            {"name": layer.name, "heads": len(layer.weights), **packed(layer.weights)} for layer in saying.layers
        ],
        "how": saying.how,
        "look": {"dark": DARK, "warm": WARM, "tint": brief(tint(saying.picture)), "even": EVEN},
    }
    parts = {
        "note": html.escape(note),
        "style": part("page.css") + part("wordwise.css"),
        "body": part("wordwise.html"),
        "script": part("wordwise.js"),
    }
    return write_page(path, title, facts, data, parts)
