"""Point clouds with optional colors, normals and labels.

Readers return a `RawCloud` with the dtypes of the file. `normalize_cloud` converts all formats to a `PointCloud`: points with
NaN or infinite coordinates are dropped and counted, coordinates far from 0 are shifted before the conversion to float32, colors
become uint8, and normals get length 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.file_discovery import FileFormatError

MAX_POINTS = 100_000_000  # maximum number of points per file (about 1 GB of coordinates)
MAX_COORDINATE = 1e15  # Larger coordinates are invalid; scanners use such values for missing measurements.
MAX_OFFSET_RATIO = 64.0
"""Maximum ratio of distance from 0 to extent without a shift of the origin. At this ratio, float32 resolves 4e-6 of the
extent."""

Columns = Mapping[str, str]

COLUMN_ALIASES: dict[str, tuple[str, ...]] = {
    **{axis: (axis, f"pos_{axis}", f"position_{axis}") for axis in "xyz"},
    **{name: (name, name[0], f"diffuse_{name}", f"{name[0]}p", f"{name[0]}f") for name in ("red", "green", "blue")},
    **{f"n{axis}": (f"n{axis}", f"normal_{axis}", f"n_{axis}") for axis in "xyz"},
    "label": (
        "label", "labels", "class", "classification", "semantic", "semantic_label", "sem_label", "class_id", "category",
        "segment", "segmentation",
    ),
}  # fmt: skip
"""Names of columns and properties, in order of preference; case and the prefix `scalar_` are ignored."""
COLUMN_NAMES = tuple(COLUMN_ALIASES)


@dataclass(frozen=True)
class PointCloud:
    coordinates: NDArray[np.float32]  # (N, 3), relative to `origin`
    colors: NDArray[np.uint8] | None = None  # (N, 3) red, green and blue
    normals: NDArray[np.float32] | None = None  # (N, 3) of length 1, or 0 if unknown
    labels: NDArray[np.int64] | None = None  # (N,) class ids as in the file; below 0 if unknown
    classes: tuple[str, ...] = ()  # class names by id, if the file contains names
    origin: NDArray[np.float64] = field(default_factory=lambda: np.zeros(3))
    """(3,) offset subtracted from the coordinates of the file"""
    num_dropped: int = 0  # number of dropped points with NaN or infinite coordinates
    from_mesh: bool = False

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
    faces: NDArray[np.int64] | None = None  # (T, 3) vertex indices of the triangles of a mesh
    from_mesh: bool = False


def check_count(count: int, noun: str, advice: str = "Split the file into smaller files.") -> None:
    """Raise `FileFormatError` if a file has more than `MAX_POINTS` points or other elements."""
    if count > MAX_POINTS:
        raise FileFormatError(f"{count:,} {noun} exceed the maximum of {MAX_POINTS:,}.", advice)


def normalize_cloud(raw: RawCloud) -> PointCloud:
    """Convert a raw point cloud to the common format; raises FileFormatError for invalid values."""
    if raw.coordinates.ndim != 2 or raw.coordinates.shape[1] != 3:
        raise FileFormatError(f"expected coordinates of shape (N, 3), got {raw.coordinates.shape}.")
    if raw.coordinates.dtype.kind not in "fiub":
        raise FileFormatError(f"coordinates must be numbers, got dtype {raw.coordinates.dtype}.")
    coordinates = raw.coordinates.astype(np.float64)
    with np.errstate(invalid="ignore"):
        valid: NDArray[np.bool_] = np.all(np.abs(coordinates) <= MAX_COORDINATE, axis=1)  # false for NaN
    if not len(valid):
        raise FileFormatError("the file contains no points.", "Export the file again, or remove the file.")
    if not valid.any():
        raise FileFormatError(f"all {len(valid):,} points have NaN or infinite coordinates.", "Export the file again.")
    colors, normals, labels = raw.colors, raw.normals, raw.labels
    if not valid.all():
        coordinates = coordinates[valid]
        colors, normals, labels = (None if part is None else part[valid] for part in (colors, normals, labels))
    low, high = coordinates.min(axis=0), coordinates.max(axis=0)
    extent, origin = float((high - low).max()), np.zeros(3)
    if extent and np.maximum(np.abs(low), np.abs(high)).max() > MAX_OFFSET_RATIO * extent:
        origin = (low + high) / 2
        origin = np.round(origin) if extent > 1 else origin
    if normals is not None:
        normals = np.nan_to_num(normals.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
        lengths = np.sqrt((normals**2).sum(axis=1, keepdims=True))
        normals = np.divide(normals, lengths, out=np.zeros_like(normals), where=lengths > 0).astype(np.float32)
    places, num_dropped = (coordinates - origin).astype(np.float32), int(len(valid) - valid.sum())
    colors = None if colors is None else colors_to_uint8(colors)
    labels = None if labels is None else labels_to_int(labels)
    return PointCloud(places, colors, normals, labels, raw.classes, origin, num_dropped, raw.from_mesh)


def colors_to_uint8(colors: NDArray[Any]) -> NDArray[np.uint8]:
    """(N, 3) uint8 colors from floats up to 1 or 255, or from integers up to 255 or 65,535."""
    if colors.dtype == np.uint8:
        return np.ascontiguousarray(colors)
    values = np.nan_to_num(colors.astype(np.float64), nan=0.0, posinf=-1.0, neginf=-1.0)
    low, high = float(values.min(initial=0)), float(values.max(initial=0))
    if low < 0 or high > 65535:
        ranges = "Supported ranges: 0 to 1, 0 to 255 and 0 to 65,535."
        raise FileFormatError(f"color values range from {low:g} to {high:g}.", ranges)
    most = 1.0 if high <= 1 and colors.dtype.kind not in "iu" else 255.0 if high <= 255 else 65535.0
    return np.rint(values * (255.0 / most)).astype(np.uint8)


def labels_to_int(labels: NDArray[Any]) -> NDArray[np.int64]:
    """(N,) integer labels; NaN and infinite labels become -1, and fractions raise an error."""
    if labels.dtype.kind in "iub":
        if labels.dtype == np.uint64 and labels.max(initial=0) > 2**62:
            raise FileFormatError(f"label values up to {labels.max()} are too large for class ids (maximum {2**62}).")
        return labels.astype(np.int64)
    values = labels.astype(np.float64)
    values = np.where(np.isfinite(values), values, -1.0)
    broken = np.flatnonzero((values != np.rint(values)) | (np.abs(values) > 2.0**53))
    if len(broken):
        problem = f"labels must be integers, got {values[broken[0]]:g} for point {broken[0] + 1:,}."
        raise FileFormatError(problem, "Labels are class ids. Select the label column with --columns label=NAME.")
    return values.astype(np.int64)


DEFAULT_POINTS = 4096  # default number of points sampled from a mesh
MIN_RELATIVE_AREA = 1e-12
"""Triangles with an area below this fraction of the largest area are degenerate (lines, except for rounding)."""


def triangulate(counts: NDArray[np.int64], corners: NDArray[np.int64], vertices: int) -> NDArray[np.int64]:
    """(T, 3) triangles of faces with `counts` corners each, as fans around the first corner. Faces with fewer than three
    corners have no triangles. An invalid vertex index raises an error with the number of the face."""
    starts = np.cumsum(counts) - counts
    wrong = np.flatnonzero((corners < 0) | (corners >= vertices))
    if len(wrong):
        number = int(np.searchsorted(starts, wrong[0], side="right"))
        problem = f"face {number:,} refers to vertex {int(corners[wrong[0]]):,}, but the file has {vertices:,} vertices"
        raise FileFormatError(f"{problem} (counted from 0).", "The file is damaged. Export the file again.")
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


def sample_mesh(raw: RawCloud, num_points: int) -> RawCloud:
    """Point cloud sampled uniformly by area, with face normals and interpolated colors; deterministic.

    A mesh without area (only degenerate faces) becomes the point cloud of its vertices."""
    assert raw.faces is not None
    vertices = raw.coordinates.astype(np.float64)
    areas, normals = triangle_areas(np.where(np.abs(vertices) <= MAX_COORDINATE, vertices, np.nan), raw.faces)
    if not areas.any():
        return replace(raw, faces=None)
    chosen, weights = sample_triangles(areas, num_points, np.random.default_rng(0))
    corners = raw.faces[chosen]
    colors: NDArray[Any] | None = None
    if raw.colors is not None:
        colors = interpolate(raw.colors, corners, weights)
        if raw.colors.dtype.kind in "iu":  # the dtype determines the range of colors
            colors = np.rint(colors).astype(raw.colors.dtype)
    return RawCloud(interpolate(vertices, corners, weights), colors, normals[chosen], None, raw.classes, from_mesh=True)


# -- tables of points

COLUMN_LAYOUTS: Mapping[int, tuple[tuple[str, ...], ...]] = {
    0: ((),),
    1: (("label",), ("measured",)),
    2: (("measured", "label"),),
    3: (("normals",), ("colors",)),
    4: (("normals", "label"), ("colors", "label"), ("measured", "colors")),
    5: (("measured", "normals", "label"), ("measured", "colors", "label")),
    6: (("colors", "normals"), ("normals", "colors")),
    7: (("colors", "normals", "label"), ("normals", "colors", "label")),
}
"""Possible layouts of the columns after x, y and z, by number of columns, most likely first; measured values are ignored."""
NORMAL_TOLERANCE = 0.02  # maximum difference of the length of a normal from 1
MAX_CLASSES = 65536  # limit for integer labels and colors
HEADER_HINT = (
    "Add a header line such as 'x y z red green blue label', or pass --columns label=6 (column indices start at 0)."
)


def cloud_from_table(
    table: NDArray[Any], names: Sequence[str] = (), columns: Columns | None = None, scanner_order: bool = False
) -> RawCloud:
    """Point cloud from an (N, C) table. `columns` or the names of a header determine the meaning of the columns, otherwise
    the first of `COLUMN_LAYOUTS` that fits the values; `scanner_order` prefers a measured value after x, y and z (.pts)."""
    columns = {name: column for name, column in (columns or {}).items() if name in COLUMN_NAMES}
    wide = table.shape[1]
    if wide < 3:
        raise FileFormatError(f"expected at least 3 columns per point (x, y and z), got {wide}.", HEADER_HINT)
    if names or columns:
        return _from_named_columns(table, names, columns)
    layouts = COLUMN_LAYOUTS.get(wide - 3, ())
    for layout in sorted(layouts, key=lambda layout: scanner_order and layout[:1] != ("measured",)):
        ends = np.cumsum([3, *(3 if name in ("colors", "normals") else 1 for name in layout)])
        parts = {name: table[:, at:end] for name, at, end in zip(layout, ends, ends[1:], strict=False)}
        if all(_is_plausible(name, values) for name, values in parts.items()):
            label = parts["label"][:, 0] if "label" in parts else None
            return RawCloud(table[:, :3], parts.get("colors"), parts.get("normals"), label)
    wanted = " or ".join(dict.fromkeys(" and ".join(layout) for layout in layouts)).replace("measured", "intensity")
    reason = f"the columns after x, y and z do not match {wanted}" if layouts else "only x, y and z are identified"
    raise FileFormatError(f"{wide} columns per point, but {reason}.", HEADER_HINT)


def _is_plausible(name: str, values: NDArray[Any]) -> bool:
    """True if the values are possible for this kind of column."""
    if name == "measured":
        return True
    finite = values[np.isfinite(values).all(axis=1)]
    if name == "normals":
        with np.errstate(over="ignore"):
            sizes = np.sqrt((finite.astype(np.float64) ** 2).sum(axis=1))
        some = sizes[sizes > 0]
        return bool(len(some) and (np.abs(some - 1) < NORMAL_TOLERANCE).mean() > 0.99)
    if not len(finite):
        return False
    low, high = float(finite.min()), float(finite.max())
    whole = bool((finite == np.rint(finite)).all())
    if name == "label":
        return whole and low >= -1 and high < MAX_CLASSES
    return low >= 0 and (high <= 1 or (whole and high < MAX_CLASSES))


def _from_named_columns(table: NDArray[Any], names: Sequence[str], columns: Columns) -> RawCloud:
    """Point cloud by the names of the header, and by `columns` with header names or column indices."""
    places = {name: index for index, name in reversed(list(enumerate(names or "xyz")))}
    for name, column in columns.items():
        if column in names:
            continue
        if column.isdigit():
            if int(column) >= table.shape[1]:
                problem = f"unknown column {column} for {name}."
                raise FileFormatError(problem, f"Column indices run from 0 to {table.shape[1] - 1}.")
            places[column] = int(column)
        elif not names:
            problem = f"no header line, so the column '{column}' for {name} cannot be found."
            raise FileFormatError(problem, "Pass a column index, counted from 0.")
    advice = f"Columns of the header: {', '.join(names)}. {HEADER_HINT}"
    available = {name: table[:, index] for name, index in places.items()}
    return assemble_cloud(available, columns, "the header has no column {}.", advice)


def assemble_cloud(
    available: Mapping[str, NDArray[Any]], columns: Columns | None, problem: str, advice: str
) -> RawCloud:
    """Point cloud from the arrays of a file, selected by `columns` if given, otherwise by the usual names; `problem` and
    `advice` report a missing x, y or z."""
    lowered = {name.lower().removeprefix("scalar_"): name for name in reversed(list(available))}
    values = {}
    for name, aliases in COLUMN_ALIASES.items():
        column = (columns or {}).get(name)
        if column is None:
            column = next((lowered[alias] for alias in aliases if alias in lowered), None)
        elif column not in available:
            known = f"Available columns: {', '.join(available) or 'none'}."
            raise FileFormatError(f"unknown column '{column}' for {name}.", known)
        if column:
            values[name] = available[column]
    for axis in "xyz":
        if axis not in values:
            raise FileFormatError(problem.format(axis), advice)

    def three(*names: str) -> Any:
        return np.stack([values[name] for name in names], axis=1) if set(names) <= values.keys() else None

    return RawCloud(three(*"xyz"), three("red", "green", "blue"), three("nx", "ny", "nz"), values.get("label"))
