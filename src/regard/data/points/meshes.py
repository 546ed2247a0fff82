"""Mesh readers: OFF, OBJ and STL, and GLB with trimesh.

Text files are parsed here line by line, to report the line of an error and to accept variants in common datasets
(`OFF490 518 0` on one line). Faces with more than three corners are split into triangle fans.
"""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.points.cloud import MAX_POINTS, CloudFormatError, RawCloud
from regard.data.points.mesh_sampling import triangulate
from regard.data.points.number_lines import decode_lines, parse_rows

INSTALL_HINT = "pip install trimesh"
_OFF_HEADER = re.compile(r"(ST)?(C)?(N)?OFF(?![A-Za-z])\s*(.*)")


# -- OFF


def read_off(content: bytes) -> RawCloud:
    texts = decode_lines(content)
    full = [(line, bare) for line, text in enumerate(texts, start=1) if (bare := text.partition("#")[0].strip())]
    if not full:
        raise CloudFormatError("the file is empty.", "Copy or download the file again, or remove the file.")
    said = _OFF_HEADER.fullmatch(full[0][1])
    if said is None:
        problem = f"not an OFF file: the first line is '{full[0][1][:40]}'."
        raise CloudFormatError(
            problem, "Supported: OFF, COFF, NOFF and CNOFF as text, in three dimensions.", full[0][0]
        )
    rest = full[1:]
    line, counts = (full[0][0], said[4]) if said[4] else rest.pop(0) if rest else (full[0][0], "")
    words = counts.split()
    if len(words) < 2 or not all(word.isdigit() for word in words[:2]):
        problem = f"expected the numbers of vertices and faces, got '{counts[:40]}'."
        raise CloudFormatError(problem, "Binary OFF files are not supported." if "BINARY" in counts else "", line)
    vertices, faces = int(words[0]), int(words[1])
    if vertices + faces > len(rest):
        problem = f"the header declares {vertices:,} vertices and {faces:,} faces, but only {len(rest):,} lines follow."
        raise CloudFormatError(problem, "The file is truncated or damaged. Copy or download the file again.", line)
    return _parse_off(said, rest[:vertices], rest[vertices : vertices + faces])


def _parse_off(said: re.Match[str], vertices: Sequence[tuple[int, str]], faces: Sequence[tuple[int, str]]) -> RawCloud:
    coloured, upright = bool(said[2]), bool(said[3])
    wide = 3 + 3 * upright + 3 * coloured
    table = _parse_vertices(vertices, wide, "per vertex")
    normals = table[:, 3:6] if upright else None
    first = 3 + 3 * upright
    colours = table[:, first : first + 3] if coloured else None
    if colours is not None and colours.max(initial=0) > 1:
        colours = np.rint(colours)
    return RawCloud(table[:, :3], colours, normals, faces=_parse_off_faces(faces, len(vertices)))


def _parse_vertices(rows: Sequence[tuple[int, str]], wide: int, what: str) -> NDArray[np.float64]:
    """Numbers of vertex lines; line numbers are explicit because comments may separate the lines."""
    if not rows:
        return np.zeros((0, wide))
    try:
        return parse_rows([text for _, text in rows], 1, wide, what, allow_extra=True)
    except CloudFormatError as error:
        line = rows[(error.line or 1) - 1][0]
        raise CloudFormatError(error.problem, error.advice, line) from error


def _parse_off_faces(rows: Sequence[tuple[int, str]], vertices: int) -> NDArray[np.int64]:
    counts, corners = np.zeros(len(rows), np.int64), list[int]()
    for place, (line, text) in enumerate(rows):
        words = text.split()
        try:
            many = int(words[0])
            numbers = [int(word) for word in words[1 : 1 + many]]
            if len(numbers) != many:
                raise ValueError
        except ValueError as error:
            raise CloudFormatError(
                f"invalid face '{text[:60]}'.", "Expected a count and that number of vertex indices.", line
            ) from error
        counts[place] = many
        corners += numbers
    return triangulate(counts, np.array(corners, np.int64), vertices)


# -- OBJ


def read_obj(content: bytes) -> RawCloud:
    """Read vertices, with colors if present, and faces; materials, textures and curves are ignored."""
    vertices: list[list[str]] = []
    lines: list[int] = []
    counts, corners = list[int](), list[int]()
    for line, text in _join_continued(decode_lines(content)):
        words = text.partition("#")[0].split()
        if not words:
            continue
        if words[0] == "v":
            vertices.append(words[1:])
            lines.append(line)
        elif words[0] == "f":
            numbers = [_vertex_index(word, len(vertices), line) for word in words[1:]]
            counts.append(len(numbers))
            corners += numbers
    if not vertices:
        raise CloudFormatError("the file contains no vertices.", "Expected lines 'v x y z'.")
    table = _obj_vertices(vertices, lines)
    colours = table[:, 3:] if table.shape[1] == 6 else None
    faces = triangulate(np.array(counts, np.int64), np.array(corners, np.int64), len(vertices))
    return RawCloud(table[:, :3], colours, faces=faces if len(faces) else None)


def _join_continued(texts: Sequence[str]) -> list[tuple[int, str]]:
    """Lines with numbers; a line that ends in a backslash is joined with the next."""
    found: list[tuple[int, str]] = []
    joined = ""
    for line, text in enumerate(texts, start=1):
        if text.endswith("\\"):
            joined += text[:-1] + " "
            continue
        found.append((line, joined + text))
        joined = ""
    return [*found, (len(texts), joined)] if joined else found


def _obj_vertices(vertices: Sequence[Sequence[str]], lines: Sequence[int]) -> NDArray[np.float64]:
    """(V, 3) coordinates, or (V, 6) with colors if every vertex has six numbers; a fourth number is a weight."""
    wide = 6 if all(len(words) == 6 for words in vertices) else 3
    return _parse_vertices(
        [(line, " ".join(words)) for line, words in zip(lines, vertices, strict=True)], wide, "per vertex"
    )


def _vertex_index(word: str, vertices: int, line: int) -> int:
    """Vertex index from 0 of a corner `7`, `7/2`, `7//3` or `7/2/3`; negative indices count back from the last vertex."""
    try:
        number = int(word.partition("/")[0])
    except ValueError as error:
        raise CloudFormatError(
            f"invalid face corner '{word[:40]}'.", "Expected a vertex index, as in 7/2/3.", line
        ) from error
    if number == 0 or number < -vertices:
        raise CloudFormatError(
            f"a face refers to vertex {number}, but the lines above define {vertices:,} vertices (counted from 1).",
            "",
            line,
        )
    return number - 1 if number > 0 else vertices + number


# -- STL


_STL_FACET = np.dtype([("normal", "<f4", (3,)), ("corners", "<f4", (3, 3)), ("said", "<u2")])
"""50 bytes per triangle"""


def read_stl(content: bytes) -> RawCloud:
    """Read triangles from a binary or text file; triangles do not share vertices."""
    if content[:5].lower() == b"solid" and b"facet" in content[:4096].lower():
        return _parse_facets(decode_lines(content))
    many = int.from_bytes(content[80:84], "little")
    if len(content) < 84 or 84 + _STL_FACET.itemsize * many > len(content):
        problem = f"the header declares {many:,} triangles, but only {max(len(content) - 84, 0):,} bytes follow."
        raise CloudFormatError(problem, "The file is truncated or damaged. Copy or download the file again.")
    if many > MAX_POINTS:
        raise CloudFormatError(f"{many:,} triangles exceed the maximum of {MAX_POINTS:,}.", "Simplify the mesh.")
    return _stl_mesh(np.frombuffer(content, _STL_FACET, many, 84)["corners"].reshape(-1, 3))


def _parse_facets(texts: Sequence[str]) -> RawCloud:
    """Mesh from the `vertex` lines of each facet; other lines are ignored."""
    rows: list[tuple[int, str]] = []
    inside = 0
    for line, text in enumerate(texts, start=1):
        words = text.lower().split(maxsplit=1)
        if words[:1] == ["vertex"]:
            rows.append((line, words[1] if len(words) > 1 else ""))
            inside += 1
        elif words[:1] == ["endfacet"]:
            if inside != 3:
                raise CloudFormatError(
                    f"expected 3 corners in the triangle that ends on this line, got {inside}.", "", line
                )
            inside = 0
    if inside:
        raise CloudFormatError(
            "the file ends inside a triangle.",
            "The file is truncated or damaged. Copy or download the file again.",
            len(texts),
        )
    return _stl_mesh(_parse_vertices(rows, 3, "per corner"))


def _stl_mesh(corners: NDArray[Any]) -> RawCloud:
    if not len(corners):
        raise CloudFormatError("the file contains no triangles.", "Export the file again, or remove the file.")
    return RawCloud(corners, faces=np.arange(len(corners)).reshape(-1, 3))


# -- GLB


_trimesh_lock = Lock()
"""The warning filter is global, so only one thread at a time may change and restore it."""


def read_glb(content: bytes) -> RawCloud:
    """Read all meshes of a scene with their transforms, as one mesh."""
    try:
        import trimesh
    except ImportError as error:
        raise CloudFormatError(
            "reading .glb files requires trimesh, which is not installed.", f"Install trimesh: {INSTALL_HINT}"
        ) from error
    logging.getLogger("trimesh").addHandler(logging.NullHandler())  # errors are reported by CloudFormatError instead
    try:
        with _trimesh_lock, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # process=False: vertices are not merged, and faces stay as in the file
            mesh: Any = trimesh.load(io.BytesIO(content), file_type="glb", force="mesh", process=False)
            places, faces = np.asarray(mesh.vertices, np.float64), np.asarray(mesh.faces, np.int64)
            colours = np.asarray(mesh.visual.vertex_colors)[:, :3] if mesh.visual.kind == "vertex" else None
    except Exception as error:  # the readers of trimesh raise various errors for damaged files
        reason = str(error).partition("\n")[0].rstrip(".")[:120] or type(error).__name__
        raise CloudFormatError(f"not a GLB file, or damaged ({reason}).", "Copy or download the file again.") from error
    if not len(places):
        raise CloudFormatError("the file contains no vertices.", "Export the file again, or remove the file.")
    corners = triangulate(np.full(len(faces), 3), faces.ravel(), len(places))
    return RawCloud(places, colours, faces=corners if len(corners) else None)
