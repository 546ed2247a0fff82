"""Whether a captioner looked at what it named: the weights of a word over a grid of places against the pixels of the objects.

A place counts by how much of it the region covers, exactly, whatever grid and picture measure. A region is the union of boxes
(left, top, right, bottom) in pixels, right and bottom not included.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Map = NDArray[np.float64]
Shape = tuple[int, int]
Box = Sequence[int]

TOTAL = "all"
HALF = 0.5
"""A place lies in a region that covers it at least so many times as much as the place that it covers most."""


@dataclass(frozen=True)
class Regard:
    """What was looked at while one word was said that names something."""

    kind: str
    """what the word tells: a colour, a shape, …"""
    weights: NDArray[np.floating]
    """(rows, columns)"""
    boxes: Sequence[Box]
    """of the objects that it names"""
    size: Shape
    """height and width of the picture that they lie in"""


@dataclass(frozen=True)
class Score:
    """Means over words: how much of what was looked at lies in the region, how often the place looked at most does, and what
    either would be if all places were looked at alike."""

    words: int
    share: float
    even_share: float
    hit: float
    even_hit: float


def regards_of(
    maps: NDArray[np.floating], words: Sequence[Sequence[Any]], boxes: Sequence[Box], size: Shape
) -> list[Regard]:
    """Of maps (words, rows, columns) of a caption, and for each of its words the text, what it tells (nothing, where it names
    nothing), and the numbers of the objects that it names."""
    if len(maps) != len(words):
        raise ValueError(f"{len(maps)} maps cannot be those of {len(words)} words")
    return [
        Regard(kind, weights, [boxes[number] for number in things], size)
        for weights, (_, kind, things) in zip(maps, words, strict=True)
        if kind
    ]


def mask_of(boxes: Iterable[Box], size: Shape) -> NDArray[np.bool_]:
    """The pixels (height, width) of a region."""
    mask = np.zeros(size, dtype=bool)
    for left, top, right, bottom in boxes:
        mask[max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)] = True
    return mask


def covered(mask: NDArray[np.bool_], grid: Shape) -> Map:
    """(rows, columns) how much of each place of the grid lies in the region, 0 to 1."""
    down, across = (_overlaps(places, pixels) for places, pixels in zip(grid, mask.shape, strict=True))
    return down @ mask @ across.T


def _overlaps(places: int, pixels: int) -> Map:
    """(places, pixels) the share of each place that each pixel is: borders of places may lie within a pixel."""
    edges, at = np.arange(places + 1) * (pixels / places), np.arange(pixels)
    ends, starts = np.minimum(edges[1:, None], at + 1), np.maximum(edges[:-1, None], at)
    return (ends - starts).clip(0) * (places / pixels)


def share(weights: NDArray[np.floating], cover: Map) -> float:
    """Of all that was looked at, how much lies in the region; nothing, where nothing was looked at."""
    total = float(weights.sum())
    return float((weights * cover).sum()) / total if total > 0 else 0.0


def within(cover: Map) -> NDArray[np.bool_]:
    """The places that lie in the region: small ones may fill no place, and large ones have places at their border."""
    return (cover > 0) & (cover >= HALF * cover.max())


def hit(weights: NDArray[np.floating], cover: Map) -> float:
    """1 where the place looked at most lies in the region, 0 where not; of several that are looked at alike, how many do."""
    most = weights == weights.max()
    return float(within(cover)[most].mean())


def scored(regards: Iterable[Regard]) -> dict[str, Score]:
    """By what the words tell, and of all. Words that name nothing in their picture do not count."""
    rows: dict[str, list[tuple[float, float, float, float]]] = {}
    for regard in regards:
        mask = mask_of(regard.boxes, regard.size)
        if not mask.any():
            continue
        cover = covered(mask, (regard.weights.shape[0], regard.weights.shape[1]))
        found = (
            share(regard.weights, cover),
            float(cover.mean()),
            hit(regard.weights, cover),
            float(within(cover).mean()),
        )
        for name in (regard.kind, TOTAL):
            rows.setdefault(name, []).append(found)
    return {name: _summed(found) for name, found in sorted(rows.items())}


def _summed(rows: Sequence[tuple[float, float, float, float]]) -> Score:
    return Score(len(rows), *(float(value) for value in np.mean(rows, axis=0)))
