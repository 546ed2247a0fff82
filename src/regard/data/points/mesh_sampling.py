"""Sampling of point clouds from meshes, uniform by area."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.points.cloud import MAX_COORDINATE, CloudFormatError, RawCloud

DEFAULT_POINTS = 4096
"""default number of points sampled from a mesh"""
MIN_RELATIVE_AREA = 1e-12
"""Triangles with an area below this fraction of the largest area are degenerate (lines, except for rounding)."""


def triangulate(counts: NDArray[np.int64], corners: NDArray[np.int64], vertices: int) -> NDArray[np.int64]:
    """(T, 3) triangles of faces with `counts` corners each, as fans around the first corner. Faces with fewer than three
    corners have no triangles. An invalid vertex index raises an error with the number of the face."""
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
    """(T,) areas, 0 for degenerate triangles and for NaN or infinite coordinates, and (T, 3) normals."""
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
    """Points sampled uniformly by area: (num_points,) triangle index, and (num_points, 3) barycentric weights.

    At least one triangle must have an area above 0."""
    total = np.cumsum(areas)
    chosen = np.searchsorted(total, rng.random(num_points) * total[-1], side="right")
    chosen = np.minimum(chosen, int(np.flatnonzero(areas)[-1]))  # rounding must not select an empty triangle
    # points in the other half of the parallelogram are reflected into the triangle
    one, other = rng.random((2, num_points))
    over = one + other > 1
    one, other = np.where(over, 1 - one, one), np.where(over, 1 - other, other)
    return chosen, np.stack([1 - one - other, one, other], axis=1)


def interpolate(values: NDArray[Any], corners: NDArray[np.int64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, C) vertex values interpolated at points with these corners (N, 3) and barycentric weights (N, 3)."""
    return np.einsum("nk,nkc->nc", weights, values[corners].astype(np.float64))


def sample_mesh(raw: RawCloud, num_points: int, seed: int) -> RawCloud:
    """Point cloud sampled uniformly by area, with face normals and interpolated colors; deterministic for a seed.

    A mesh without area (only degenerate faces) becomes the point cloud of its vertices."""
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
    """Values rounded to the original integer dtype, because the dtype determines the range of colors."""
    return np.rint(values).astype(like.dtype) if like.dtype.kind in "iu" else values
