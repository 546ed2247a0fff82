"""Point clouds with optional colors, normals and labels.

Readers return a `RawCloud` with the dtypes of the file. `normalize_cloud` converts all formats to a `PointCloud`: points with
NaN or infinite coordinates are dropped and counted, coordinates far from 0 are shifted before the conversion to float32, colors
become uint8, and normals get length 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import DataError

MAX_POINTS = 100_000_000
"""maximum number of points per file (about 1 GB of coordinates)"""
MAX_COORDINATE = 1e15
"""Larger coordinates are invalid; scanners use such values for missing measurements."""
MAX_OFFSET_RATIO = 64.0
"""Maximum ratio of distance from 0 to extent without a shift of the origin. At this ratio, float32 resolves 4e-6 of the
extent."""

Location = tuple[str, int]
"""Table and row of a file embedded in a table."""
Columns = Mapping[str, str]

COLUMN_ALIASES: dict[str, tuple[str, ...]] = {
    "x": ("x", "pos_x", "position_x"),
    "y": ("y", "pos_y", "position_y"),
    "z": ("z", "pos_z", "position_z"),
    "red": ("red", "r", "diffuse_red", "rp", "rf"),
    "green": ("green", "g", "diffuse_green", "gp", "gf"),
    "blue": ("blue", "b", "diffuse_blue", "bp", "bf"),
    "nx": ("nx", "normal_x", "n_x"),
    "ny": ("ny", "normal_y", "n_y"),
    "nz": ("nz", "normal_z", "n_z"),
    "label": (
        "label", "labels", "class", "classification", "semantic", "semantic_label", "sem_label", "class_id", "category",
        "segment", "segmentation",
    ),
}  # fmt: skip
"""Names of columns and properties, in order of preference; case and the prefix `scalar_` are ignored."""


@dataclass(frozen=True)
class PointCloud:
    coordinates: NDArray[np.float32]
    """(N, 3), relative to `origin`"""
    colors: NDArray[np.uint8] | None = None
    """(N, 3) red, green and blue"""
    normals: NDArray[np.float32] | None = None
    """(N, 3) of length 1, or 0 if unknown"""
    labels: NDArray[np.int64] | None = None
    """(N,) class ids as in the file; below 0 if unknown"""
    classes: tuple[str, ...] = ()
    """class names by id, if the file contains names"""
    origin: NDArray[np.float64] = field(default_factory=lambda: np.zeros(3))
    """(3,) offset subtracted from the coordinates of the file"""
    num_dropped: int = 0
    """number of dropped points with NaN or infinite coordinates"""
    from_mesh: bool = False
    """the points were sampled from a mesh"""

    def __len__(self) -> int:
        return len(self.coordinates)

    @property
    def world_coordinates(self) -> NDArray[np.float64]:
        """(N, 3) coordinates as in the file."""
        return self.coordinates.astype(np.float64) + self.origin


@dataclass(frozen=True)
class RawCloud:
    """Content of a file, with the dtypes of the file."""

    coordinates: NDArray[Any]
    colors: NDArray[Any] | None = None
    normals: NDArray[Any] | None = None
    labels: NDArray[Any] | None = None
    classes: tuple[str, ...] = ()
    faces: NDArray[np.int64] | None = None
    """(T, 3) vertex indices of the triangles of a mesh"""
    from_mesh: bool = False


class CloudFormatError(Exception):
    """Problem of a file, advice and line; the caller adds the path."""

    def __init__(self, problem: str, advice: str = "", line: int | None = None) -> None:
        super().__init__(problem)
        self.problem, self.advice, self.line = problem, advice, line

    def to_data_error(self, path: str, line: int | None = None) -> DataError:
        return DataError(self.problem, path, self.line if line is None else line, self.advice)


def resolve_columns(
    available: Mapping[str, Any] | list[str] | tuple[str, ...], columns: Columns | None = None
) -> dict[str, str]:
    """Columns of a file by their meaning: `columns` if given, otherwise by the usual names."""
    small = {name.lower().removeprefix("scalar_"): name for name in reversed(list(available))}
    found = {}
    for name, words in COLUMN_ALIASES.items():
        said = (columns or {}).get(name)
        if said is not None and said in available:
            found[name] = said
        elif said is not None:
            raise CloudFormatError(
                f"unknown column '{said}' for {name}.", f"Available columns: {', '.join(available) or 'none'}."
            )
        elif known := next((small[word] for word in words if word in small), None):
            found[name] = known
    return found


def normalize_cloud(raw: RawCloud) -> PointCloud:
    """Convert a raw point cloud to the common format; raises CloudFormatError for invalid values."""
    if raw.coordinates.ndim != 2 or raw.coordinates.shape[1] != 3:
        raise CloudFormatError(f"expected coordinates of shape (N, 3), got {raw.coordinates.shape}.")
    if raw.coordinates.dtype.kind not in "fiub":
        raise CloudFormatError(f"coordinates must be numbers, got dtype {raw.coordinates.dtype}.")
    coordinates = raw.coordinates.astype(np.float64)
    with np.errstate(invalid="ignore"):
        valid: NDArray[np.bool_] = np.all(np.abs(coordinates) <= MAX_COORDINATE, axis=1)  # false for NaN
    num_dropped = int(len(valid) - valid.sum())
    if not len(valid):
        raise CloudFormatError("the file contains no points.", "Export the file again, or remove the file.")
    if num_dropped == len(valid):
        raise CloudFormatError(f"all {len(valid):,} points have NaN or infinite coordinates.", "Export the file again.")
    colors, normals, labels = raw.colors, raw.normals, raw.labels
    if num_dropped:
        coordinates = coordinates[valid]
        colors, normals, labels = (None if part is None else part[valid] for part in (colors, normals, labels))
    origin = _choose_origin(coordinates)
    if normals is not None:
        normals = np.nan_to_num(normals.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
        lengths = np.sqrt((normals**2).sum(axis=1, keepdims=True))
        normals = np.divide(normals, lengths, out=np.zeros_like(normals), where=lengths > 0).astype(np.float32)
    return PointCloud(
        (coordinates - origin).astype(np.float32),
        None if colors is None else colors_to_uint8(colors),
        normals,
        None if labels is None else labels_to_int(labels),
        raw.classes,
        origin,
        num_dropped,
        raw.from_mesh,
    )


def _choose_origin(places: NDArray[np.float64]) -> NDArray[np.float64]:
    low, high = places.min(axis=0), places.max(axis=0)
    extent = float((high - low).max())
    if np.maximum(np.abs(low), np.abs(high)).max() <= MAX_OFFSET_RATIO * extent or not extent:
        return np.zeros(3)
    middle = (low + high) / 2
    return np.round(middle) if extent > 1 else middle


def colors_to_uint8(colors: NDArray[Any]) -> NDArray[np.uint8]:
    """(N, 3) uint8 colors from floats up to 1 or 255, or from integers up to 255 or 65,535."""
    if colors.dtype == np.uint8:
        return np.ascontiguousarray(colors)
    values = np.nan_to_num(colors.astype(np.float64), nan=0.0, posinf=-1.0, neginf=-1.0)
    low, high = float(values.min(initial=0)), float(values.max(initial=0))
    if low < 0 or high > 65535:
        raise CloudFormatError(
            f"color values range from {low:g} to {high:g}.", "Supported ranges: 0 to 1, 0 to 255 and 0 to 65,535."
        )
    whole_ones = colors.dtype.kind in "iu"
    most = 1.0 if high <= 1 and not whole_ones else 255.0 if high <= 255 else 65535.0
    return np.rint(values * (255.0 / most)).astype(np.uint8)


def labels_to_int(labels: NDArray[Any]) -> NDArray[np.int64]:
    """(N,) integer labels; NaN and infinite labels become -1, and fractions raise an error."""
    if labels.dtype.kind in "iub":
        if labels.dtype == np.uint64 and labels.max(initial=0) > 2**62:
            raise CloudFormatError(f"label values up to {labels.max()} are too large for class ids (maximum {2**62}).")
        return labels.astype(np.int64)
    values = labels.astype(np.float64)
    values = np.where(np.isfinite(values), values, -1.0)
    broken = np.flatnonzero((values != np.rint(values)) | (np.abs(values) > 2.0**53))
    if len(broken):
        raise CloudFormatError(
            f"labels must be integers, got {values[broken[0]]:g} for point {broken[0] + 1:,}.",
            "Labels are class ids. Select the label column with --columns label=NAME.",
        )
    return values.astype(np.int64)


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
    return corners[np.stack([first, first + step + 1, first + step + 2], axis=1)]


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
    vertices = raw.coordinates.astype(np.float64)
    areas, normals = triangle_areas(np.where(np.abs(vertices) <= MAX_COORDINATE, vertices, np.nan), raw.faces)
    if not areas.any():
        return replace(raw, faces=None)
    chosen, weights = sample_triangles(areas, num_points, np.random.default_rng(seed))
    corners = raw.faces[chosen]
    colors: NDArray[Any] | None = None
    if raw.colors is not None:
        colors = interpolate(raw.colors, corners, weights)
        if raw.colors.dtype.kind in "iu":  # the dtype determines the range of colors
            colors = np.rint(colors).astype(raw.colors.dtype)
    return RawCloud(interpolate(vertices, corners, weights), colors, normals[chosen], None, raw.classes, from_mesh=True)
