"""Grounding of captions: attention of a word over the image grid, compared with the objects named by the word.

Coverage of a grid cell by a region is exact for any grid and image size. A region is the union of boxes (left, top, right,
bottom) in pixels; right and bottom are exclusive.
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
"""A cell belongs to a region if the coverage is at least this fraction of the largest coverage of any cell."""


@dataclass(frozen=True)
class WordAttention:
    """Attention map of one generated word that names objects."""

    kind: str
    """kind of word: color, shape, …"""
    weights: NDArray[np.floating]
    """(rows, columns)"""
    boxes: Sequence[Box]
    """boxes of the named objects"""
    image_size: Shape
    """height and width of the image in pixels"""


@dataclass(frozen=True)
class PointingScore:
    """Averages over words: fraction of attention inside the region, fraction of attention maxima inside the region, and the
    same values for uniform attention."""

    num_words: int
    inside_fraction: float
    uniform_fraction: float
    hit_rate: float
    uniform_hit_rate: float


def word_attentions(
    maps: NDArray[np.floating], words: Sequence[Sequence[Any]], boxes: Sequence[Box], image_size: Shape
) -> list[WordAttention]:
    """Attention of the words that name objects, from maps (words, rows, columns). `words`: text, kind (empty if the word names
    no objects) and object indices of each word."""
    if len(maps) != len(words):
        raise ValueError(f"expected {len(words)} maps, one per word, got {len(maps)}")
    return [
        WordAttention(kind, weights, [boxes[number] for number in things], image_size)
        for weights, (_, kind, things) in zip(maps, words, strict=True)
        if kind
    ]


def region_mask(boxes: Iterable[Box], image_size: Shape) -> NDArray[np.bool_]:
    """Mask (height, width) of the pixels in the region."""
    mask = np.zeros(image_size, dtype=bool)
    for left, top, right, bottom in boxes:
        mask[max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)] = True
    return mask


def cell_coverage(mask: NDArray[np.bool_], grid: Shape) -> GridMap:
    """Fraction of each grid cell inside the region, (rows, columns)."""
    down, across = (_pixel_overlaps(places, pixels) for places, pixels in zip(grid, mask.shape, strict=True))
    return down @ mask @ across.T


def _pixel_overlaps(places: int, pixels: int) -> GridMap:
    """Fraction of each cell covered by each pixel along one axis, (cells, pixels). Cell borders may be inside a pixel."""
    edges, at = np.arange(places + 1) * (pixels / places), np.arange(pixels)
    ends, starts = np.minimum(edges[1:, None], at + 1), np.maximum(edges[:-1, None], at)
    return (ends - starts).clip(0) * (places / pixels)


def inside_fraction(weights: NDArray[np.floating], coverage: GridMap) -> float:
    """Fraction of the attention inside the region; 0 if all weights are 0."""
    total = float(weights.sum())
    return float((weights * coverage).sum()) / total if total > 0 else 0.0


def region_cells(coverage: GridMap) -> NDArray[np.bool_]:
    """Mask of the cells in the region. The threshold is relative, because a small region may fill no cell."""
    return (coverage > 0) & (coverage >= MIN_RELATIVE_COVERAGE * coverage.max())


def hit_rate(weights: NDArray[np.floating], coverage: GridMap) -> float:
    """1 if the cell with the largest weight is in the region, else 0; for ties, the fraction of these cells in the region."""
    most = weights == weights.max()
    return float(region_cells(coverage)[most].mean())


def score_by_kind(attentions: Iterable[WordAttention]) -> dict[str, PointingScore]:
    """Average scores for each kind of word and for all words. Words without objects in the image are skipped."""
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
