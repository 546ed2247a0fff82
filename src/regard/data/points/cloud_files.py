"""Read point cloud files of all supported formats as a `PointCloud`.

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

import os
import re
from collections.abc import Callable
from functools import partial

import numpy as np

from regard.data.points.arrays import NPY_MAGIC, read_npy, read_npz
from regard.data.points.cloud import CloudFormatError, Columns, Location, PointCloud, RawCloud, normalize_cloud
from regard.data.points.mesh_sampling import DEFAULT_POINTS, sample_mesh
from regard.data.points.meshes import read_glb, read_obj, read_off, read_stl
from regard.data.points.ply import read_ply
from regard.data.points.text_files import read_points
from regard.errors import DataError

TEXT_SUFFIXES = (".xyz", ".txt", ".pts", ".asc", ".csv")
CLOUD_SUFFIXES = (".ply", ".off", ".obj", ".stl", ".glb", *TEXT_SUFFIXES, ".npy", ".npz")

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
    if isinstance(source, str) and (made := _generated_cloud(source)) is not None:
        return made
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


def _generated_cloud(source: str) -> PointCloud | None:
    """Generated point cloud of this name; None if a file has this name or the name is unknown."""
    from regard.data.synthetic.point_clouds import generate_cloud

    return None if os.path.exists(os.path.expanduser(source)) else generate_cloud(source)


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
