"""Which neighbours a point of a cloud looked at: as one page on which the cloud turns and another point is chosen by a click,
and as still pictures, one for each layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.draw.class_colors import GLOW, Picture, class_colours, ramped
from regard.draw.panels import Scale, draw_panels, percent
from regard.draw.point_cloud import Floats, Whole, encoded, hexed, packed_places, still, turning_page

ACROSS: Final = 3
SHARES: Final = GLOW[1:5]
"""From little to the largest share: without what is too pale to be seen on white."""
FAINT: Final = 0.25
"""Where in these colours shares begin."""
GROUND: Final = 245
"""The grey that points are faded to where nobody looked at them."""
GREY: Final = 130.0
ASKING: Final = (0, 150, 255)
"""The colour of the point that is asked."""
ANYONE: Final = "Click on a point to see what it looked at; of coarser layers the nearest that is there is taken."
ASKED: Final = "Of clouds this large what was looked at is kept of the point that was asked alone."


class Looked(NamedTuple):
    """What the points of one level looked at in one layer."""

    name: str
    brief: str
    level: int
    keys: Whole
    """(Q, K) numbers of points of the level; -1: none"""
    weights: Floats
    """(Q, K) shares of 1"""
    queries: Whole | None = None
    """(Q,) the points of the level whose rows these are; None: all, in their order"""

    def row(self, point: int) -> int:
        """The row of a point of the level."""
        return point if self.queries is None else int(np.flatnonzero(self.queries == point)[0])


@dataclass(frozen=True)
class Gazing:
    """A cloud as it is read, its levels, and who is asked."""

    places: Floats
    levels: tuple[Whole, ...]
    """of each the points that it has"""
    layers: tuple[Looked, ...]
    asked: int
    """the point that is asked"""
    origins: Whole | None = None
    """by which number each point is known in its file"""
    said: Whole | None = None
    """(N,) the class of each point, where points have classes"""
    labels: tuple[str, ...] = ()
    up: str = "z"
    origin: tuple[float, ...] = (0.0, 0.0, 0.0)

    def nearest(self, layer: Looked) -> int:
        """The point of the layer's level that stands for the one that is asked: itself, or the nearest whose row is kept."""
        level = self.levels[layer.level]
        kept = np.arange(len(level)) if layer.queries is None else layer.queries
        off = ((self.places[level[kept]] - self.places[self.asked]) ** 2).sum(1)
        return int(kept[off.argmin()])

    def shares(self, layer: Looked) -> npt.NDArray[np.float64]:
        """(N,) what the one that is asked looked at in a layer."""
        found = np.zeros(len(self.places))
        row = layer.row(self.nearest(layer))
        there = layer.keys[row] >= 0
        np.add.at(found, self.levels[layer.level][layer.keys[row][there]], layer.weights[row][there])
        return found


def neighbours_page(
    gazing: Gazing, path: Path, title: str, note: str = "", facts: Mapping[str, str] | None = None
) -> Path:
    choosing = all(layer.queries is None for layer in gazing.layers)
    data: dict[str, object] = {
        **packed_places(gazing.places, gazing.up, gazing.origin),
        "labels": gazing.labels,
        "palette": [hexed(colour) for colour in class_colours(len(gazing.labels))] if gazing.labels else [],
        "said": None if gazing.said is None else encoded(gazing.said.astype("<u2")),
        "origins": None if gazing.origins is None else encoded(gazing.origins.astype("<u4")),
        "levels": [encoded(level.astype("<u4")) for level in gazing.levels],
        "layers": [_packed(layer) for layer in gazing.layers],
        "layer": 0,
        "chosen": gazing.asked,
        "choosing": any(layer.queries is None for layer in gazing.layers),
        "hint": ANYONE if choosing else ASKED,
        "glow": list(SHARES),
        "faint": FAINT,
    }
    return turning_page(path, title, note, facts or {}, data, ("neighbours.js",))


def _packed(layer: Looked) -> dict[str, Any]:
    most = layer.weights.max(1, initial=0.0)
    shares = np.rint(255 * layer.weights / np.where(most > 0, most, 1)[:, None]).clip(0, 255)
    return {
        "name": layer.name,
        "brief": layer.brief,
        "level": layer.level,
        "columns": layer.keys.shape[1],
        "keys": encoded(np.where(layer.keys < 0, 2**32 - 1, layer.keys).astype("<u4")),
        "shares": encoded(shares.astype(np.uint8)),
        "most": encoded(most.astype("<f4")),
        "queries": None if layer.queries is None else encoded(layer.queries.astype("<u4")),
    }


def draw_neighbours(gazing: Gazing, path: Path, title: str = "", about: str = "", layer: int | None = None) -> Path:
    """Where the point lies that is asked, and what was around it once for each layer, or for one (counted from 1): what was
    looked at glows, the rest is faded."""
    chosen = gazing.layers if layer is None else (gazing.layers[layer - 1],)
    panels, names = [_whole(gazing)], ["the point that is asked"]
    for one in chosen:
        shares = gazing.shares(one)
        most = float(shares.max())
        panels.append(_glowing(gazing, one, shares / (most or 1.0)))
        names.append(f"{one.name} · largest share {percent(most)}")
    rows = [panels[at : at + ACROSS] for at in range(0, len(panels), ACROSS)]
    heads = [names[at : at + ACROSS] for at in range(0, len(names), ACROSS)]
    meaning = "largest share of each picture, which is written above it; blue: the point that looks"
    scale = Scale(_shade(np.linspace(0, 1, 256)[None]), ("0", "", meaning))
    return draw_panels(rows, heads, path, title, about, scale)


def _shade(shares: Floats) -> Picture:
    return ramped(FAINT + (1 - FAINT) * shares, SHARES)


def _own(gazing: Gazing) -> npt.NDArray[np.float64]:
    """The colours of the points, where nobody looks at them."""
    if gazing.said is None:
        return np.full((len(gazing.places), 3), GREY)
    return np.array(class_colours(len(gazing.labels)), dtype=np.float64)[gazing.said]


def _whole(gazing: Gazing) -> Picture:
    colours, larger = GROUND + 0.6 * (_own(gazing) - GROUND), np.ones(len(gazing.places))
    colours[gazing.asked], larger[gazing.asked] = ASKING, 5.0
    return still(gazing.places, np.rint(colours).astype(np.uint8), gazing.up, larger=larger)


def _glowing(gazing: Gazing, layer: Looked, shares: Floats) -> Picture:
    """What is near: so far as was looked, and as much again."""
    seen, larger = shares > 0, np.ones(len(shares))
    here = gazing.levels[layer.level][gazing.nearest(layer)]
    part = np.full((len(shares), 1), 0.25)
    part[gazing.levels[layer.level]] = 0.7
    colours = GROUND + part * np.full((len(shares), 3), GREY - GROUND)
    colours[seen] = _shade(shares[seen])
    larger[seen] = 1.3 + shares[seen]
    colours[here], larger[here] = ASKING, 1.8
    off = np.linalg.norm(gazing.places - gazing.places[here], axis=1)
    near = off <= 2.2 * (float(off[seen].max(initial=0.0)) or 1.0)
    return still(gazing.places[near], np.rint(colours[near]).astype(np.uint8), gazing.up, larger=larger[near])
