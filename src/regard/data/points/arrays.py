"""Point clouds in NumPy files: .npy with one row per point or with named fields, .npz with one array per kind of data.

Pickled data is not loaded. The sizes in a header are compared with the file size before memory is allocated.
"""

from __future__ import annotations

import ast
import io
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.points.cloud import MAX_POINTS, CloudFormatError, Columns, RawCloud, resolve_columns
from regard.data.points.columns import cloud_from_table

NPY_MAGIC = b"\x93NUMPY"
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
    ValueError,
    TypeError,
    LookupError,
    SyntaxError,
    RecursionError,
    MemoryError,
    ArithmeticError,
    AttributeError,
)
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

    def own(what: str, other: NDArray[Any] | None) -> NDArray[Any] | None:
        return found[what][:, :3] if what in found else other

    return RawCloud(
        raw.coordinates,
        own("colors", raw.colors),
        own("normals", raw.normals),
        raw.labels if labels is None else labels,
        classes,
    )


def _class_names(arrays: Mapping[str, NDArray[Any]], small: Mapping[str, str]) -> list[str]:
    called = next(
        (small[word] for word in CLASS_NAME_ARRAYS if word in small and arrays[small[word]].dtype.kind == "U"), None
    )
    return [] if called is None or arrays[called].ndim != 1 else [str(name) for name in arrays[called]]


def _from_array(array: NDArray[Any], columns: Columns | None) -> RawCloud:
    if array.dtype.names:
        return _from_structured(array, columns)
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


def _from_structured(array: NDArray[Any], columns: Columns | None) -> RawCloud:
    """Point cloud from named fields, with the same names as PLY properties."""
    called = resolve_columns([name for name in array.dtype.names or () if not array.dtype[name].shape], columns)
    lacking = next((name for name in "xyz" if name not in called), None)
    if lacking is not None:
        raise CloudFormatError(
            f"no field is named {lacking}.", f"Available fields: {', '.join(array.dtype.names or ())}."
        )
    flat = array.ravel()

    def three(*names: str) -> NDArray[Any] | None:
        there = all(name in called for name in names)
        return np.stack([flat[called[name]] for name in names], axis=1) if there else None

    places = three("x", "y", "z")
    assert places is not None
    labels = flat[called["label"]] if "label" in called else None
    return RawCloud(places, three("red", "green", "blue"), three("nx", "ny", "nz"), labels)


# -- bytes


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
