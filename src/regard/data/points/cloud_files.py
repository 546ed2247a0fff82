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

import ast
import io
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.points.cloud import (
    DEFAULT_POINTS,
    MAX_POINTS,
    CloudFormatError,
    Columns,
    Location,
    PointCloud,
    RawCloud,
    assemble_cloud,
    cloud_from_table,
    normalize_cloud,
    resolve_columns,
    sample_mesh,
)
from regard.data.points.formats import read_glb, read_obj, read_off, read_ply, read_points, read_stl
from regard.errors import DataError
from regard.files import write_bytes

TEXT_SUFFIXES = (".xyz", ".txt", ".pts", ".asc", ".csv")
CLOUD_SUFFIXES = (".ply", ".off", ".obj", ".stl", ".glb", *TEXT_SUFFIXES, ".npy", ".npz")

NPY_MAGIC = b"\x93NUMPY"
_MAGIC = {b"ply": ".ply", NPY_MAGIC: ".npy", b"PK\x03\x04": ".npz", b"glTF": ".glb"}
"""First bytes of formats with a signature."""
_OTHER_FORMATS = {
    b"\x1f\x8b": "gzip-compressed (decompress the file first)",
    b"LASF": "a LAS or LAZ file (convert the file to PLY)", b"\x89HDF": "an HDF5 file",
    b"# .PCD": "a PCD file (convert the file to PLY)", b"<html": "an HTML page", b"<!doc": "an HTML page",
    b"version https://git-lfs": "a Git LFS pointer (the content was not fetched)", b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image", b"%PDF-": "a PDF",
}  # fmt: skip
"""First bytes of files that are not supported, with a description."""
_OBJ_VERTEX = re.compile(rb"^v[ \t]+[-+.\d]", re.MULTILINE)
OBJ_PROBE_BYTES = 1 << 16
"""bytes to search for the first vertex of an OBJ file without an extension"""


def read_cloud(
    source: str | bytes,
    seed: int = 0,
    num_points: int = DEFAULT_POINTS,
    columns: Columns | None = None,
    location: Location | None = None,
    name: str = "",
) -> PointCloud:
    """Point cloud of a file, of its bytes, or of the name of a generated point cloud (`solids#part=test,number=3`).

    Meshes are sampled with `num_points` points and `seed`. `columns` maps meanings to names in the file, as in
    {"label": "scalar_Class"}, or to column indices. For bytes from a table, errors report `location`, and the extension of
    `name` determines formats without a signature."""
    path, line = location or (source if isinstance(source, str) else "point cloud", None)
    if isinstance(source, str) and not os.path.exists(os.path.expanduser(source)):
        from regard.data.synthetic.point_clouds import generate_cloud

        if (generated := generate_cloud(source)) is not None:
            return generated
    content = source if isinstance(source, bytes) else _read_bytes(source, path, line)
    ending = os.path.splitext(source if isinstance(source, str) else name)[1].lower()
    try:
        with np.errstate(invalid="ignore", over="ignore"):  # invalid numbers are checked and reported later
            raw = _READERS[_detect_format(content, ending)](content, columns)
            return normalize_cloud(raw if raw.faces is None else sample_mesh(raw, num_points, seed))
    except CloudFormatError as error:
        raise error.to_data_error(path, line) from error
    except MemoryError as error:
        raise DataError("the file is too large for the available memory.", path, line) from error


def _read_bytes(source: str, path: str, line: int | None) -> bytes:
    name = os.path.expanduser(source)
    if not os.path.isfile(name):  # reading a pipe could block forever
        there = "expected a point cloud file, got a folder." if os.path.isdir(name) else "not a regular file."
        raise DataError(there if os.path.exists(name) else "file not found.", path, line)
    try:
        with open(name, "rb") as stream:
            return stream.read()
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}.", path, line) from error


def _detect_format(content: bytes, ending: str) -> str:
    """Format from the first bytes, otherwise from the extension."""
    if not content.strip():
        raise CloudFormatError("the file is empty.", "Copy or download the file again, or remove the file.")
    first = content[:64].lstrip(b"\xef\xbb\xbf \r\n\t")
    for magic, kind in _OTHER_FORMATS.items():
        if first.lower().startswith(magic.lower()):
            raise CloudFormatError(
                f"not a point cloud: the file is {kind}.", f"Supported: {', '.join(CLOUD_SUFFIXES)}."
            )
    known = next((kind for magic, kind in _MAGIC.items() if content.startswith(magic)), "")
    if known == ".ply" and content[3:4] not in (b"\n", b"\r", b" "):
        known = ""
    if known:
        if ending and ending != known and ending in CLOUD_SUFFIXES:
            raise CloudFormatError(
                f"the content is {known}, but the extension is {ending}.", f"Change the extension to {known}."
            )
        return known
    if ending in (".ply", ".npy", ".npz", ".glb"):
        raise CloudFormatError(
            f"not a {ending} file: the first bytes do not match the format.",
            "The file is damaged or has the wrong extension.",
        )
    if ending in CLOUD_SUFFIXES:
        return ending
    if ending:
        raise CloudFormatError(f"unsupported file type '{ending}'.", f"Supported: {', '.join(CLOUD_SUFFIXES)}.")
    return ".off" if b"OFF" in first[:8] else ".obj" if _OBJ_VERTEX.search(content[:OBJ_PROBE_BYTES]) else ".xyz"


# -- NumPy arrays: pickled data is not loaded, and sizes in a header are compared with the file size

ARRAY_ALIASES: Mapping[str, tuple[str, ...]] = {
    "places": ("points", "xyz", "pos", "places", "coords", "coord", "positions", "position", "vertices", "pc", "point_cloud"),
    "colors": ("colors", "colours", "color", "colour", "rgb"),
    "normals": ("normals", "normal"),
    "labels": (
        "labels", "label", "y", "semantic", "semantic_gt", "segment", "segmentation", "seg", "classification", "class", "gt",
    ),
}  # fmt: skip
"""Names of arrays in an .npz, in order of preference."""
CLASS_NAME_ARRAYS = ("classes", "class_names", "names")
"""Names of an array with the class names."""
_ZIP_ERRORS = (
    zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError, ValueError, struct.error, LookupError,
)  # fmt: skip
"""Errors of `zipfile` for damaged archives."""
_HEADER_ERRORS = (
    ValueError, TypeError, LookupError, SyntaxError, RecursionError, MemoryError, ArithmeticError, AttributeError,
)  # fmt: skip
"""Errors of parsing an invalid header."""


def read_npy(content: bytes, columns: Columns | None = None) -> RawCloud:
    return _from_array(load_npy(content), columns)


def read_npz(content: bytes, columns: Columns | None = None) -> RawCloud:
    arrays = _load_npz(content)
    small = {name.lower(): name for name in reversed(list(arrays))}
    found = {
        what: arrays[small[word]]
        for what, words in ARRAY_ALIASES.items()
        if (word := next((word for word in words if word in small), None)) is not None
    }
    said = (columns or {}).get("label")
    if said is not None:
        if said in arrays:
            found["labels"] = arrays[said]
        elif not said.isdigit():
            raise CloudFormatError(f"unknown label array '{said}'.", f"Available arrays: {', '.join(arrays)}.")
    if "places" not in found:
        tables = [name for name, array in arrays.items() if array.ndim == 2 and array.shape[1] >= 3]
        if len(tables) != 1:
            advice = f"Available arrays: {', '.join(arrays) or 'none'}. Name the (N, 3) array of coordinates 'points'."
            raise CloudFormatError("no array is named points, xyz or pos.", advice)
        found["places"] = arrays[tables[0]]
    return _merge_arrays(found, tuple(_class_names(arrays, small)), columns)


def _merge_arrays(found: Mapping[str, NDArray[Any]], classes: tuple[str, ...], columns: Columns | None) -> RawCloud:
    """Point cloud from the coordinates, which may be a table with more columns; separate arrays override its columns."""
    columns = {name: said for name, said in (columns or {}).items() if name != "label" or said.isdigit()}
    raw = _from_array(found["places"], columns)
    for what in ("colors", "normals"):
        values = found.get(what)
        if values is not None and (values.ndim != 2 or values.shape[1] not in (3, 4)):
            raise CloudFormatError(f"expected {what} of shape ({len(raw.coordinates)}, 3), got {values.shape}.")
    labels = found.get("labels")
    if labels is not None and labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels is not None and labels.ndim == 0:
        labels = None  # a single label of the whole point cloud
    for what, values in (*((name, found.get(name)) for name in ("colors", "normals")), ("labels", labels)):
        if values is not None and len(values) != len(raw.coordinates):
            raise CloudFormatError(
                f"expected one entry per point in {what}: {len(raw.coordinates):,} points, {len(values):,} {what}."
            )
        if values is not None and values.dtype.kind not in "fiub":
            raise CloudFormatError(f"{what} must be numbers, got dtype {values.dtype}.")
    if labels is not None and labels.ndim != 1:
        raise CloudFormatError(f"expected one label per point, got labels of shape {labels.shape}.")

    vectors: dict[str, Any] = {what: found[what][:, :3] for what in ("colors", "normals") if what in found}
    return replace(raw, **vectors, labels=raw.labels if labels is None else labels, classes=classes)


def _class_names(arrays: Mapping[str, NDArray[Any]], small: Mapping[str, str]) -> list[str]:
    called = next(
        (small[word] for word in CLASS_NAME_ARRAYS if word in small and arrays[small[word]].dtype.kind == "U"), None
    )
    return [] if called is None or arrays[called].ndim != 1 else [str(name) for name in arrays[called]]


def _from_array(array: NDArray[Any], columns: Columns | None) -> RawCloud:
    if array.dtype.names:  # with the same names as PLY properties
        names = resolve_columns([name for name in array.dtype.names if not array.dtype[name].shape], columns)
        values = {name: array.ravel()[field] for name, field in names.items()}
        return assemble_cloud(values, "no field is named {}.", f"Available fields: {', '.join(array.dtype.names)}.")
    if array.ndim == 3 and 1 in array.shape:
        array = array.reshape([side for side in array.shape if side != 1] or [1])
    if array.ndim != 2 or array.dtype.kind not in "fiub":
        raise CloudFormatError(
            f"expected an array of numbers with one row per point, got shape {array.shape}, dtype {array.dtype}.",
            "Save the points as an array of shape (N, 3).",
        )
    if array.shape[1] > 10 and array.shape[0] in (3, 6):
        raise CloudFormatError(
            f"the array of shape {array.shape} appears to be transposed.", "Save the array with one row per point."
        )
    return cloud_from_table(array, (), columns)


def load_npy(content: bytes, name: str = "") -> NDArray[Any]:
    """Array of an .npy file; the size in the header is checked against the number of bytes first."""
    inside = f"array '{name}': " if name else ""
    start, shape, kind = _parse_header(content, inside)
    if kind.hasobject:
        advice = "Save an array of numbers: np.save(path, array.astype(np.float32))."
        raise CloudFormatError(
            f"{inside}arrays of Python objects are not supported (regard does not unpickle data).", advice
        )
    wanted = kind.itemsize * int(np.prod([int(side) for side in shape], dtype=object))
    if wanted > len(content) - start:
        problem = f"{inside}the header declares {shape} of {kind}, but only {len(content) - start:,} bytes follow."
        raise CloudFormatError(problem, "The file is truncated or damaged. Copy or download the file again.")
    if shape and shape[0] > MAX_POINTS:
        raise CloudFormatError(
            f"{inside}{shape[0]:,} points exceed the maximum of {MAX_POINTS:,}.", "Split the file into smaller files."
        )
    try:
        found: NDArray[Any] = np.load(io.BytesIO(content), allow_pickle=False)
    except (*_HEADER_ERRORS, EOFError, OSError) as error:
        raise _damaged_error(inside, error) from error
    return found


def _parse_header(content: bytes, inside: str) -> tuple[int, tuple[int, ...], np.dtype[Any]]:
    """Offset of the data, shape and dtype."""
    if not content.startswith(NPY_MAGIC):
        raise CloudFormatError(f"{inside}not an array in NumPy format.", "Write the array with np.save().")
    size = 2 if content[6:7] == b"\x01" else 4
    start = 8 + size + int.from_bytes(content[8 : 8 + size], "little")
    try:
        if start > min(len(content), 1 << 20) or b"\\" in content[:start]:
            raise ValueError("missing or truncated header")
        said = ast.literal_eval(content[8 + size : start].decode("utf-8" if content[6:7] == b"\x03" else "latin-1"))
        shape = tuple(int(side) for side in said["shape"])
        if min(shape, default=0) < 0:
            raise ValueError(f"invalid shape {shape}")
        return start, shape, np.dtype(np.lib.format.descr_to_dtype(said["descr"]))
    except _HEADER_ERRORS as error:
        raise _damaged_error(inside, error) from error


def _damaged_error(inside: str, error: Exception) -> CloudFormatError:
    reason = str(error).partition("\n")[0].rstrip(".")[:120] or type(error).__name__
    return CloudFormatError(f"{inside}damaged array ({reason}).", "Copy or write the file again.")


def _load_npz(content: bytes) -> dict[str, NDArray[Any]]:
    found: dict[str, NDArray[Any]] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for item in archive.infolist():
                if item.filename.endswith(".npy"):
                    name = item.filename.removesuffix(".npy")
                    found[name] = load_npy(_read_member(archive, item, name), name)
    except _ZIP_ERRORS as error:
        reason = str(error).partition("\n")[0].rstrip(".")[:120] or type(error).__name__
        raise CloudFormatError(f"not a .npz file, or damaged ({reason}).", "Copy or write the file again.") from error
    if not found:
        raise CloudFormatError("the archive contains no arrays.", "Write the file with np.savez().")
    return found


def _read_member(archive: zipfile.ZipFile, item: zipfile.ZipInfo, name: str) -> bytes:
    """Content of an archive member, limited to the size in the array header: a kilobyte may decompress to a gigabyte."""
    with archive.open(item) as stream:
        first = stream.read(1 << 16)
        _, shape, kind = _parse_header(first, f"array '{name}': ")
        wanted = kind.itemsize * int(np.prod([int(side) for side in shape], dtype=object))
        if wanted > 80 * MAX_POINTS:
            raise CloudFormatError(
                f"array '{name}': {wanted:,} bytes exceed the maximum of {80 * MAX_POINTS:,}.",
                "Split the file into smaller files.",
            )
        return first + stream.read(wanted + (1 << 20))


_READERS: dict[str, Callable[[bytes, Columns | None], RawCloud]] = {
    ".ply": read_ply,
    ".off": lambda content, columns: read_off(content),
    ".obj": lambda content, columns: read_obj(content),
    ".stl": lambda content, columns: read_stl(content),
    ".glb": lambda content, columns: read_glb(content),
    **{ending: partial(read_points, suffix=ending) for ending in TEXT_SUFFIXES},
    ".npy": read_npy,
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
    columns = {
        name: (kind, values[:, column])
        for names, kind, values in vectors
        if values is not None
        for column, name in enumerate(names)
    }
    table = np.empty(len(cloud), dtype=[(name, f"<{kind}") for name, (kind, _) in columns.items()])
    for name, (_, values) in columns.items():
        table[name] = values
    types = {"f4": "float", "f8": "double", "u1": "uchar", "i4": "int"}
    header = ["ply", "format binary_little_endian 1.0"]
    header += [f"comment class {n} {' '.join(name.split())}" for n, name in enumerate(tuple(classes) or cloud.classes)]
    header += [f"element vertex {len(cloud)}", *(f"property {types[kind]} {n}" for n, (kind, _) in columns.items())]
    write_bytes(Path(path), "\n".join([*header, "end_header\n"]).encode() + table.tobytes())
