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

GridMap = NDArray[np.float64]
Shape = tuple[int, int]
Box = Sequence[int]

ALL_KINDS = "all"
MIN_RELATIVE_COVERAGE = 0.5
"""A place lies in a region that covers it at least so many times as much as the place that it covers most."""


@dataclass(frozen=True)
class WordAttention:
    """What was looked at while one word was said that names something."""

    kind: str
    """what the word tells: a colour, a shape, …"""
    weights: NDArray[np.floating]
    """(rows, columns)"""
    boxes: Sequence[Box]
    """of the objects that it names"""
    image_size: Shape
    """height and width of the picture that they lie in"""


@dataclass(frozen=True)
class PointingScore:
    """Means over words: how much of what was looked at lies in the region, how often the place looked at most does, and what
    either would be if all places were looked at alike."""

    num_words: int
    inside_fraction: float
    uniform_fraction: float
    hit_rate: float
    uniform_hit_rate: float


def word_attentions(
    maps: NDArray[np.floating], words: Sequence[Sequence[Any]], boxes: Sequence[Box], image_size: Shape
) -> list[WordAttention]:
    """Of maps (words, rows, columns) of a caption, and for each of its words the text, what it tells (nothing, where it names
    nothing), and the numbers of the objects that it names."""
    if len(maps) != len(words):
        raise ValueError(f"expected {len(words)} maps, one per word, got {len(maps)}")
    return [
        WordAttention(kind, weights, [boxes[number] for number in things], image_size)
        for weights, (_, kind, things) in zip(maps, words, strict=True)
        if kind
    ]


def region_mask(boxes: Iterable[Box], image_size: Shape) -> NDArray[np.bool_]:
    """The pixels (height, width) of a region."""
    mask = np.zeros(image_size, dtype=bool)
    for left, top, right, bottom in boxes:
        mask[max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)] = True
    return mask


def cell_coverage(mask: NDArray[np.bool_], grid: Shape) -> GridMap:
    """(rows, columns) how much of each place of the grid lies in the region, 0 to 1."""
    down, across = (_pixel_overlaps(places, pixels) for places, pixels in zip(grid, mask.shape, strict=True))
    return down @ mask @ across.T


def _pixel_overlaps(places: int, pixels: int) -> GridMap:
    """(places, pixels) the share of each place that each pixel is: borders of places may lie within a pixel."""
    edges, at = np.arange(places + 1) * (pixels / places), np.arange(pixels)
    ends, starts = np.minimum(edges[1:, None], at + 1), np.maximum(edges[:-1, None], at)
    return (ends - starts).clip(0) * (places / pixels)


def inside_fraction(weights: NDArray[np.floating], coverage: GridMap) -> float:
    """Of all that was looked at, how much lies in the region; nothing, where nothing was looked at."""
    total = float(weights.sum())
    return float((weights * coverage).sum()) / total if total > 0 else 0.0


def region_cells(coverage: GridMap) -> NDArray[np.bool_]:
    """The places that lie in the region: small ones may fill no place, and large ones have places at their border."""
    return (coverage > 0) & (coverage >= MIN_RELATIVE_COVERAGE * coverage.max())


def hit_rate(weights: NDArray[np.floating], coverage: GridMap) -> float:
    """1 where the place looked at most lies in the region, 0 where not; of several that are looked at alike, how many do."""
    most = weights == weights.max()
    return float(region_cells(coverage)[most].mean())


def score_by_kind(attentions: Iterable[WordAttention]) -> dict[str, PointingScore]:
    """By what the words tell, and of all. Words that name nothing in their picture do not count."""
    rows: dict[str, list[tuple[float, float, float, float]]] = {}
    for regard in attentions:
        mask = region_mask(regard.boxes, regard.image_size)
        if not mask.any():
            continue
        cover = cell_coverage(mask, (regard.weights.shape[0], regard.weights.shape[1]))
        found = (
            inside_fraction(regard.weights, cover),
            float(cover.mean()),
            hit_rate(regard.weights, cover),
            float(region_cells(cover).mean()),
        )
        for name in (regard.kind, ALL_KINDS):
            rows.setdefault(name, []).append(found)
    return {name: _mean_score(found) for name, found in sorted(rows.items())}


def _mean_score(rows: Sequence[tuple[float, float, float, float]]) -> PointingScore:
    return PointingScore(len(rows), *(float(value) for value in np.mean(rows, axis=0)))
