"""Meshes become clouds: points are drawn on their faces, as many on each as its area is large."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.points.cloud import MAX_COORDINATE, CloudFormatError, RawCloud

DEFAULT_POINTS = 4096
"""points that are drawn of a mesh where nobody says how many"""
MIN_RELATIVE_AREA = 1e-12
"""A face whose area is less than this share of the largest is a line, but for rounding."""


def triangulate(counts: NDArray[np.int64], corners: NDArray[np.int64], vertices: int) -> NDArray[np.int64]:
    """(T, 3) triangles of faces with so many corners each: all that share the first. Faces of two corners are none.

    The corners are numbers of vertices; a wrong one is named with its face."""
    starts = np.cumsum(counts) - counts
    wrong = np.flatnonzero((corners < 0) | (corners >= vertices))
    if len(wrong):
        number = int(np.searchsorted(starts, wrong[0], side="right"))
        problem = (
            f"face {number:,} refers to vertex {int(corners[wrong[0]]):,}, "
            f"but the file has {vertices:,} vertices (counted from 0)."
        )
        raise CloudFormatError(problem, "The file is damaged. Export the file again.")
    triangles = np.maximum(counts - 2, 0)
    face = np.repeat(np.arange(len(counts)), triangles)
    step = np.arange(len(face)) - np.repeat(np.cumsum(triangles) - triangles, triangles)
    first = starts[face]
    return corners[np.stack([first, first + step + 1, first + step + 2], axis=1)] if len(face) else _empty_faces()


def _empty_faces() -> NDArray[np.int64]:
    return np.zeros((0, 3), dtype=np.int64)


def triangle_areas(
    coordinates: NDArray[np.float64], faces: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(T,) areas of triangles, 0 of those that are a line or have a corner nowhere; and (T, 3) their normals."""
    a, b, c = (coordinates[faces[:, corner]] for corner in range(3))
    with np.errstate(invalid="ignore", over="ignore"):
        across = np.cross(b - a, c - a)
        sizes = np.sqrt((across**2).sum(axis=1))
    sizes = np.where(np.isfinite(sizes), sizes, 0.0)
    sizes[sizes <= MIN_RELATIVE_AREA * sizes.max(initial=0.0)] = 0.0
    normals = np.divide(across, sizes[:, None], out=np.zeros_like(across), where=sizes[:, None] > 0)
    return sizes / 2, normals


def sample_triangles(
    areas: NDArray[np.float64], num_points: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """So many points, evenly by the areas of triangles: (many,) the triangle of each, and (many, 3) the weights of its corners.

    Some triangle must have an area."""
    total = np.cumsum(areas)
    chosen = np.searchsorted(total, rng.random(num_points) * total[-1], side="right")
    chosen = np.minimum(chosen, int(np.flatnonzero(areas)[-1]))  # rounding must not lead past the last that has an area
    # a point of a parallelogram that falls into its other half is turned into this one
    one, other = rng.random((2, num_points))
    over = one + other > 1
    one, other = np.where(over, 1 - one, one), np.where(over, 1 - other, other)
    return chosen, np.stack([1 - one - other, one, other], axis=1)


def interpolate(values: NDArray[Any], corners: NDArray[np.int64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, C) what points have that lie between corners, of which the vertices have these values."""
    return np.einsum("nk,nkc->nc", weights, values[corners].astype(np.float64))


def sample_mesh(raw: RawCloud, num_points: int, seed: int) -> RawCloud:
    """So many points of a mesh, evenly by area, with the normals of their faces and the colours between those of the corners.

    A pure function of the mesh and the seed. A mesh without any area, whose faces are lines, is its vertices."""
    assert raw.faces is not None
    places = raw.coordinates.astype(np.float64)
    sizes, normals = triangle_areas(np.where(np.abs(places) <= MAX_COORDINATE, places, np.nan), raw.faces)
    if not sizes.any():
        return RawCloud(raw.coordinates, raw.colors, raw.normals, raw.labels, raw.classes)
    chosen, weights = sample_triangles(sizes, num_points, np.random.default_rng(seed))
    corners = raw.faces[chosen]
    colours = None if raw.colors is None else _restore_dtype(interpolate(raw.colors, corners, weights), raw.colors)
    return RawCloud(interpolate(places, corners, weights), colours, normals[chosen], None, raw.classes, from_mesh=True)


def _restore_dtype(values: NDArray[np.float64], like: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers stay whole, so that what they mean stays the same."""
    return np.rint(values).astype(like.dtype) if like.dtype.kind in "iu" else values
