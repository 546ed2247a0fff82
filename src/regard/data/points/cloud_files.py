"""Read point cloud files of all supported formats as a `PointCloud`, and write PLY files.

| extension                     | content                                                        |
|-------------------------------|----------------------------------------------------------------|
| .ply                          | points or a mesh, with any properties                          |
| .off, .obj, .stl              | mesh                                                           |
| .glb                          | mesh, requires trimesh (`pip install trimesh`)                 |
| .xyz, .txt, .pts, .asc, .csv  | one point per line                                             |
| .npy, .npz                    | NumPy arrays                                                   |

Points are sampled on the faces of a mesh; a mesh with vertex labels becomes the point cloud of its vertices.
"""

from __future__ import annotations

import io
import math
import os
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from regard.data.file_discovery import COPY_AGAIN, FileFormatError, Location, library_errors, open_source, sniff_format
from regard.data.points import cloud as clouds
from regard.data.points.cloud import DEFAULT_POINTS, MAX_POINTS, Columns, PointCloud, RawCloud
from regard.data.points.formats import read_glb, read_obj, read_off, read_ply, read_points, read_stl
from regard.errors import DataError
from regard.files import write_file

TEXT_SUFFIXES = (".xyz", ".txt", ".pts", ".asc", ".csv")
CLOUD_SUFFIXES = (".ply", ".off", ".obj", ".stl", ".glb", *TEXT_SUFFIXES, ".npy", ".npz")

_MAGIC = {
    b"ply\n": ".ply",
    b"ply\r": ".ply",
    b"ply ": ".ply",
    b"\x93NUMPY": ".npy",
    b"PK\x03\x04": ".npz",
    b"glTF": ".glb",
}
_OBJ_VERTEX = re.compile(rb"^v[ \t]+[-+.\d]", re.MULTILINE)
_STL_TEXT = re.compile(rb"\s*solid\b[^\n]*\s+(facet\s+normal|endsolid)\b")
OBJ_PROBE_BYTES = 1 << 16  # bytes to search for the first vertex of an OBJ file without an extension


def read_cloud(
    source: str | bytes,
    num_points: int = DEFAULT_POINTS,
    columns: Columns | None = None,
    location: Location | None = None,
    name: str = "",
) -> PointCloud:
    """Point cloud of a file, of its bytes, or of the name of a generated point cloud (`solids#part=test,number=3`).

    Meshes are sampled with `num_points` points. `columns` maps meanings to names in the file, as in
    {"label": "scalar_Class"}, or to column indices. For bytes from a table, errors report `location`, and the extension of
    `name` determines formats without a signature."""
    if isinstance(source, str) and not os.path.exists(os.path.expanduser(source)):
        from regard.data.synthetic.point_clouds import generate_cloud

        if (generated := generate_cloud(source)) is not None:
            return generated
    ending = os.path.splitext(source if isinstance(source, str) else name)[1].lower()
    # invalid numbers are checked and reported later
    with open_source(source, "point cloud", location) as stream, np.errstate(invalid="ignore", over="ignore"):
        content = stream.read()
        raw = _READERS[_detect_format(content, ending)](content, columns)
        return clouds.normalize_cloud(raw if raw.faces is None else clouds.sample_mesh(raw, num_points))


def _detect_format(content: bytes, ending: str) -> str:
    """Format from the first bytes, otherwise from the extension."""
    if not content.strip():
        raise FileFormatError("the file is empty.", COPY_AGAIN)
    known = next((kind for magic, kind in _MAGIC.items() if content.startswith(magic)), "")
    if known:
        if ending and ending != known and ending in CLOUD_SUFFIXES:
            problem = f"the content is {known}, but the extension is {ending}."
            raise FileFormatError(problem, f"Change the extension to {known}.")
        return known
    if other := sniff_format(content):
        raise FileFormatError(f"not a point cloud: the file is {other}.", f"Supported: {', '.join(CLOUD_SUFFIXES)}.")
    if ending in (".ply", ".npy", ".npz", ".glb"):
        problem = f"not a {ending} file: the first bytes do not match the format."
        raise FileFormatError(problem, "The file is damaged or has the wrong extension.")
    if ending in CLOUD_SUFFIXES:
        return ending
    if ending:
        raise FileFormatError(f"unsupported file type '{ending}'.", f"Supported: {', '.join(CLOUD_SUFFIXES)}.")
    if b"OFF" in content[:64].lstrip()[:8]:
        return ".off"
    # 84 bytes and 50 bytes per triangle, or text
    if len(content) == 84 + 50 * int.from_bytes(content[80:84], "little") or _STL_TEXT.match(content[:OBJ_PROBE_BYTES]):
        return ".stl"
    return ".obj" if _OBJ_VERTEX.search(content[:OBJ_PROBE_BYTES]) else ".xyz"


# -- NumPy arrays: pickled data is not loaded, and sizes in a header are compared with the file size

ARRAY_ALIASES: Mapping[str, tuple[str, ...]] = {
    "places": ("points", "xyz", "pos", "places", "coords", "coord", "positions", "position", "vertices", "pc", "point_cloud"),
    "colors": ("colors", "colours", "color", "colour", "rgb"), "normals": ("normals", "normal"),
    "labels": (
        "labels", "label", "y", "semantic", "semantic_gt", "segment", "segmentation", "seg", "classification", "class", "gt",
    ),
}  # fmt: skip
"""Names of arrays in an .npz, in order of preference."""
CLASS_NAME_ARRAYS = ("classes", "class_names", "names")
WRITE_AGAIN = "Copy or write the file again."


def read_npz(content: bytes, columns: Columns | None = None) -> RawCloud:
    """Point cloud from an array of coordinates, which may be a table with more columns; separate arrays override them."""
    columns, arrays = columns or {}, _load_npz(content)
    lowered = {name.lower(): array for name, array in reversed(list(arrays.items()))}
    parts = {
        part: next(lowered[alias] for alias in aliases if alias in lowered)
        for part, aliases in ARRAY_ALIASES.items()
        if not lowered.keys().isdisjoint(aliases)
    }
    label = columns.get("label", "")
    if label in arrays:
        parts["labels"] = arrays[label]
    elif label and not label.isdigit():
        raise FileFormatError(f"unknown label array '{label}'.", f"Available arrays: {', '.join(arrays)}.")
    if "places" not in parts:
        tables = [array for array in arrays.values() if array.ndim == 2 and array.shape[1] >= 3]
        if len(tables) != 1:
            advice = f"Available arrays: {', '.join(arrays) or 'none'}. Name the (N, 3) array of coordinates 'points'."
            raise FileFormatError("no array is named points, xyz or pos.", advice)
        parts["places"] = tables[0]
    table_columns = {name: column for name, column in columns.items() if name != "label" or column.isdigit()}
    raw = _from_array(parts.pop("places"), table_columns)
    count = len(raw.coordinates)
    labels = parts.pop("labels", np.zeros(()))
    if labels.ndim:  # otherwise a single label of the whole point cloud
        parts["labels"] = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    for part, values in parts.items():
        if part != "labels" and (values.ndim != 2 or values.shape[1] not in (3, 4)):
            raise FileFormatError(f"expected {part} of shape ({count}, 3), got {values.shape}.")
        if len(values) != count:
            raise FileFormatError(f"expected one entry per point in {part}: {count:,} points, {len(values):,} {part}.")
        if values.dtype.kind not in "fiub":
            raise FileFormatError(f"{part} must be numbers, got dtype {values.dtype}.")
        if part == "labels" and values.ndim != 1:
            raise FileFormatError(f"expected one label per point, got labels of shape {values.shape}.")
    names = [lowered[name] for name in CLASS_NAME_ARRAYS if name in lowered and lowered[name].dtype.kind == "U"]
    classes = tuple(map(str, names[0])) if names and names[0].ndim == 1 else ()
    vectors: dict[str, Any] = {part: values if part == "labels" else values[:, :3] for part, values in parts.items()}
    return replace(raw, **vectors, classes=classes)


def _from_array(array: NDArray[Any], columns: Columns | None) -> RawCloud:
    if array.dtype.names:  # with the same names as PLY properties
        fields = {name: array[name].ravel() for name in array.dtype.names if not array.dtype[name].shape}
        advice = f"Available fields: {', '.join(array.dtype.names)}."
        return clouds.assemble_cloud(fields, columns, "no field is named {}.", advice)
    if array.ndim == 3 and 1 in array.shape:
        array = array.reshape([side for side in array.shape if side != 1] or [1])
    if array.ndim != 2 or array.dtype.kind not in "fiub":
        problem = f"expected numbers with one row per point, got shape {array.shape}, dtype {array.dtype}."
        raise FileFormatError(problem, "Save the points as an array of shape (N, 3).")
    if array.shape[1] > 10 and array.shape[0] in (3, 6):
        problem = f"the array of shape {array.shape} appears to be transposed."
        raise FileFormatError(problem, "Save the array with one row per point.")
    return clouds.cloud_from_table(array, (), columns)


def _read_array(stream: IO[bytes], num_bytes: int, inside: str = "") -> NDArray[Any]:
    """Array of an .npy file with `num_bytes` bytes, compared with the size in the header before memory is allocated."""
    with library_errors(f"{inside}damaged array ({{}}).", WRITE_AGAIN):
        # version 3 has the structure of version 2, and other encodings of field names
        is_first = np.lib.format.read_magic(stream) == (1, 0)
        read_header = np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0
        shape, _, kind = read_header(stream, 1 << 16)
        if min(shape, default=0) < 0:
            raise ValueError(f"invalid shape {shape}")
        if kind.hasobject:
            problem = f"{inside}arrays of Python objects are not supported (regard does not unpickle data)."
            raise FileFormatError(problem, "Save an array of numbers: np.save(path, array.astype(np.float32)).")
        wanted, left = kind.itemsize * math.prod(shape), num_bytes - stream.tell()
        if wanted > left:
            problem = f"{inside}the header declares {shape} of {kind}, but only {left:,} bytes follow."
            raise FileFormatError(problem, "The file is truncated or damaged. Copy or download the file again.")
        if wanted > 80 * MAX_POINTS:  # a kilobyte of an archive may decompress to a gigabyte
            problem = f"{inside}{wanted:,} bytes exceed the maximum of {80 * MAX_POINTS:,}."
            raise FileFormatError(problem, "Split the file into smaller files.")
        clouds.check_count(shape[0] if shape else 0, "points")
        stream.seek(0)
        array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
        return array


def _load_npz(content: bytes) -> dict[str, NDArray[Any]]:
    """Arrays of an archive."""
    arrays: dict[str, NDArray[Any]] = {}
    with (
        library_errors("not a .npz file, or damaged ({}).", WRITE_AGAIN),
        zipfile.ZipFile(io.BytesIO(content)) as archive,
    ):
        for item in archive.infolist():
            if item.filename.endswith(".npy"):
                name = item.filename.removesuffix(".npy")
                with archive.open(item) as stream:
                    arrays[name] = _read_array(stream, item.file_size, f"array '{name}': ")
    if not arrays:
        raise FileFormatError("the archive contains no arrays.", "Write the file with np.savez().")
    return arrays


_READERS: dict[str, Callable[[bytes, Columns | None], RawCloud]] = {
    ".ply": read_ply,
    ".off": lambda content, columns: read_off(content),
    ".obj": lambda content, columns: read_obj(content),
    ".stl": lambda content, columns: read_stl(content),
    ".glb": lambda content, columns: read_glb(content),
    **{ending: partial(read_points, suffix=ending) for ending in TEXT_SUFFIXES},
    ".npy": lambda content, columns: _from_array(_read_array(io.BytesIO(content), len(content)), columns),
    ".npz": read_npz,
}


# -- writing


def write_ply(
    path: str | Path,
    cloud: PointCloud,
    labels: NDArray[Any] | None = None,
    colors: NDArray[Any] | None = None,
    classes: Sequence[str] = (),
) -> None:
    """Write a binary PLY file in the original coordinates, with labels and colors (default: from `cloud`). Comments name the
    classes."""
    labels = cloud.labels if labels is None else np.asarray(labels)
    colors = cloud.colors if colors is None else np.asarray(colors)
    for what, values, shape in (("labels", labels, (len(cloud),)), ("colors", colors, (len(cloud), 3))):
        if values is not None and values.shape != shape:
            raise DataError(f"expected {what} of shape {shape}, got {values.shape}.", path)
    shifted = bool(np.any(cloud.origin))
    vectors: tuple[tuple[Sequence[str], str, NDArray[Any] | None], ...] = (
        ("xyz", "f8" if shifted else "f4", cloud.world_coordinates if shifted else cloud.coordinates),
        (("nx", "ny", "nz"), "f4", cloud.normals),
        (("red", "green", "blue"), "u1", colors),
        (("label",), "i4", None if labels is None else labels[:, None]),
    )
    columns = [
        (name, kind, values[:, n])
        for names, kind, values in vectors
        if values is not None
        for n, name in enumerate(names)
    ]
    table = np.rec.fromarrays([part for *_, part in columns], dtype=[(name, f"<{kind}") for name, kind, _ in columns])
    types = {"f4": "float", "f8": "double", "u1": "uchar", "i4": "int"}
    header = ["ply", "format binary_little_endian 1.0"]
    header += [f"comment class {n} {' '.join(name.split())}" for n, name in enumerate(tuple(classes) or cloud.classes)]
    header += [f"element vertex {len(cloud)}", *(f"property {types[kind]} {name}" for name, kind, _ in columns)]
    write_file(Path(path), "\n".join([*header, "end_header\n"]).encode() + table.tobytes())
