"""Point cloud file formats: PLY, OFF, OBJ, STL, GLB (with trimesh), and text files with one point per line.

Text is parsed line by line, to report the line of an error and to accept variants in common datasets (`OFF490 518 0` on one
line). Faces with more than three corners are split into triangle fans. Counts in a header are compared with the file size
before memory is allocated. In a PLY file, a comment `class 3 chair` names class 3.
"""

from __future__ import annotations

import io
import logging
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.file_discovery import COPY_AGAIN, FileFormatError, library_errors
from regard.data.points.cloud import Columns, RawCloud, assemble_cloud, check_count, cloud_from_table, triangulate
from regard.threads import suppress_warnings

TRUNCATED = "The file is truncated or damaged."

# -- rows of numbers

_SEPARATOR = re.compile(r"[\s,;]+")
_FLOAT = re.compile(r"[-+]?((\d+\.?\d*|\.\d+)(e[-+]?\d+)?|nan|inf|infinity)", re.IGNORECASE | re.ASCII)


def decode_lines(content: bytes) -> list[str]:
    """Lines of a text file. Invalid UTF-8 is replaced, which is harmless in comments and names, and an error in numbers."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise FileFormatError("expected UTF-8, got UTF-16.", "Convert the file to UTF-8.")
    if b"\0" in content[:4096]:
        problem = "expected a text file, but the file contains NUL bytes."
        raise FileFormatError(problem, "Use the extension that matches the file format.")
    return io.StringIO(content.decode("utf-8-sig", "replace"), newline=None).getvalue().split("\n")


def split_fields(text: str) -> list[str]:
    """Fields separated by spaces, tabs, commas or semicolons."""
    return [word for word in _SEPARATOR.split(text) if word] if "," in text or ";" in text else text.split()


def parse_rows(
    rows: Sequence[str], lines: Sequence[int], width: int, what: str = "per row", allow_extra: bool = False
) -> NDArray[np.float64]:
    """(N, width) numbers of rows with these line numbers; `allow_extra` ignores further fields."""
    if not rows or not width:
        return np.zeros((len(rows), width))
    plain, used = rows, range(width) if allow_extra else None
    if "," in rows[0] or ";" in rows[0]:
        plain = [text.replace(",", " ").replace(";", " ") for text in rows]
    if len(split_fields(rows[0])) >= width:  # np.loadtxt would warn about empty input
        with suppress(ValueError):
            table: NDArray[np.float64] = np.loadtxt(plain, np.float64, comments=None, ndmin=2, usecols=used)
            # np.loadtxt skips empty lines and accepts lines that are all too long
            if table.shape == (len(rows), width):
                return table
    for line, text in zip(lines, rows, strict=True):  # report the first invalid row
        words = split_fields(text)
        if len(words) < width or (len(words) > width and not allow_extra):
            numbers = f"{width} number{'s' if width > 1 else ''} {what}"
            raise FileFormatError(f"expected {numbers}, got {len(words)}: '{text.strip()[:60]}'.", line=line)
        for word in words[:width]:
            if not _FLOAT.fullmatch(word):
                raise FileFormatError(f"'{word[:40]}' is not a number.", line=line)
    raise FileFormatError("cannot be read as numbers.", line=lines[0])


# -- text files: one point per line

_COMMENT = re.compile(r"\s*(#|//|%)+")
_NUMBER = re.compile(r"[-+]?(\d|\.\d).*|[-+]?(nan|inf|infinity)", re.IGNORECASE)


def read_points(content: bytes, columns: Columns | None = None, suffix: str = ".xyz") -> RawCloud:
    """Each line has the same number of fields. Comment lines start with #, // or %. A first line with a single integer is the
    number of points and is ignored. A header may name the columns, also in a comment."""
    texts = decode_lines(content)
    first, names = _find_first_row(texts)
    if first == len(texts):
        raise FileFormatError(
            "the file is empty." if not content.strip() else "the file contains no numbers.",
            "Copy or write the file again, or remove the file.",
        )
    if ";" in texts[first] and "," in texts[first]:
        raise FileFormatError("semicolons and commas in one line.", "Use a point as the decimal separator.", first + 1)
    width, rows = len(split_fields(texts[first])), texts[first:]
    lines: Sequence[int] = range(first + 1, len(texts) + 1)
    if any(not text or text[0] in "#/%" or text.isspace() for text in rows):
        lines = [line for line in lines if texts[line - 1].strip() and not _COMMENT.match(texts[line - 1])]
        rows = [texts[line - 1] for line in lines]
    check_count(len(rows), "points")
    table = parse_rows(rows, lines, width, "as in the first row")
    if names and len(names) != width:
        problem = f"the numbers of columns differ: {len(names)} in the header, {width} in the first row."
        raise FileFormatError(problem, "Write one name per column.", first + 1)
    return cloud_from_table(table, names, columns, scanner_order=suffix == ".pts")


def _find_first_row(texts: Sequence[str]) -> tuple[int, list[str]]:
    """Index of the first line of numbers, and the column names; empty without a header."""
    names: list[str] = []
    has_count = False
    for index, text in enumerate(texts):
        comment = _COMMENT.match(text)
        words = [word.strip("\"'") for word in split_fields(text[comment.end() :] if comment else text)]
        if comment:
            names = words if {"x", "y", "z"} <= {word.lower() for word in words} else names
        elif not words:
            continue
        elif len(words) == 1 and words[0].isdigit() and not has_count:
            has_count = True
        elif not any(_NUMBER.fullmatch(word) for word in words) and not names:
            names = words
            if not {"x", "y", "z"} & {word.lower().removeprefix("scalar_") for word in words}:
                problem = f"expected a row of numbers or a header, got '{' '.join(text.split())[:60]}'."
                raise FileFormatError(problem, "A header must contain x, y and z.", index + 1)
        else:
            return index, names
    return len(texts), names


# -- PLY

DTYPES = {
    "char": "i1", "int8": "i1", "uchar": "u1", "uint8": "u1", "short": "i2", "int16": "i2", "ushort": "u2", "uint16": "u2",
    "int": "i4", "int32": "i4", "uint": "u4", "uint32": "u4", "float": "f4", "float32": "f4", "double": "f8", "float64": "f8",
    "int64": "i8", "uint64": "u8",
}  # fmt: skip
BYTE_ORDERS = {"binary_little_endian": "<", "binary_big_endian": ">", "ascii": ""}
FACE_PROPERTIES = ("vertex_indices", "vertex_index")
MAX_HEADER_BYTES = 1 << 20
_HEADER_END = rb"^[ \t]*end_header[ \t]*(\r\n|\n|\r)"
_HEADER_END_CR = rb"(?:\r|\n)end_header[ \t]*(\r\n|\n|\r|$)"
_CLASS_COMMENT = re.compile(r"class\s+(\d+)\s+(\S.*)")

Values = dict[str, NDArray[Any]]
"""Values by property. A list property has its concatenated values, and its lengths under the name with a prefix #."""


@dataclass
class PlyElement:
    """Element of the header, such as vertex or face, with the number of rows."""

    name: str
    count: int
    properties: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """NumPy dtype of each scalar property; dtypes of the length and of the values of each list property"""

    def check_size(self, required: int, available: int, unit: str) -> None:
        """Raise FileFormatError if fewer bytes or lines than required are available, or for too many rows."""
        if required > available:
            declared = f"the header declares {self.count:,} '{self.name}' elements"
            raise FileFormatError(f"{declared}, but only {available:,} {unit} remain.", COPY_AGAIN)
        check_count(self.count, f"'{self.name}' elements")


def read_ply(content: bytes, columns: Columns | None = None) -> RawCloud:
    """Read the vertices, and the faces if present."""
    byte_order, elements, classes, num_bytes, num_lines = _read_header(content)
    needed = [n for n, element in enumerate(elements) if element.name in ("vertex", "face") and element.count]
    if not any(elements[n].name == "vertex" for n in needed):
        advice = "Expected an element 'vertex' with the properties x, y and z."
        raise FileFormatError("the file contains no vertices.", advice)
    vertex, face = Values(), Values()
    position, rows = num_bytes if byte_order else num_lines, list[str]()
    if not byte_order:
        rows = [""] * num_lines + content[num_bytes:].decode("latin-1").splitlines()
    for element in elements[: needed[-1] + 1]:
        if byte_order:
            values, position = _read_binary(content, position, byte_order, element)
        else:
            values, position = _read_text(rows, position, element), position + element.count
        if element.name == "vertex":
            vertex = {name: values[name] for name, kinds in element.properties.items() if len(kinds) == 1}
        elif element.name == "face" and element.count:
            face = values
    corners = next((name for name in FACE_PROPERTIES if f"#{name}" in face), "")
    faces: NDArray[np.int64] | None = None
    if corners:  # triangulated last, because faces may precede the vertices in the file
        faces = triangulate(face[f"#{corners}"], face[corners], len(next(iter(vertex.values()), ())))
    advice = f"Available properties: {', '.join(vertex) or 'none'}."
    cloud = assemble_cloud(vertex, columns, "the vertices have no property {}.", advice)
    # labels belong to vertices, so a labeled mesh is read as a point cloud without faces
    kept = faces if cloud.labels is None and faces is not None and len(faces) else None
    return replace(cloud, classes=classes, faces=kept)


def _read_header(content: bytes) -> tuple[str, list[PlyElement], tuple[str, ...], int, int]:
    """Byte order (empty for text), elements and class names, and the number of bytes and lines of the header."""
    start = content[:MAX_HEADER_BYTES]
    end = re.search(_HEADER_END, start, re.MULTILINE) or re.search(_HEADER_END_CR, start)
    if end is None:
        raise FileFormatError("the PLY header has no end_header line.", COPY_AGAIN)
    texts = re.split(r"\r\n|\n|\r", start[: end.start(1)].decode("latin-1"))
    order, elements, names = "?", list[PlyElement](), dict[int, str]()
    for line, text in enumerate(texts, start=1):
        words = text.split()
        if line == 1 or not words or words[0] in ("obj_info", "end_header"):
            continue
        if words[0] == "comment":
            comment = _CLASS_COMMENT.fullmatch(" ".join(words[1:]).encode("latin-1").decode("utf-8", "replace"))
            if comment and int(comment[1]) < 65536:
                names[int(comment[1])] = comment[2]
        elif words[0] == "format" and len(words) > 1:
            if words[1] not in BYTE_ORDERS:
                supported = f"Supported: {', '.join(BYTE_ORDERS)}."
                raise FileFormatError(f"unsupported PLY format '{words[1]}'.", supported, line)
            order = BYTE_ORDERS[words[1]]
        elif words[0] == "element" and len(words) == 3 and words[2].isdigit():
            elements.append(PlyElement(words[1].lower(), int(words[2])))
        elif words[0] == "property" and elements:
            types = words[2:4] if words[1:2] == ["list"] else words[1:2]
            if len(words) != (5 if len(types) == 2 else 3) or not all(name in DTYPES for name in types):
                problem = f"invalid property or unsupported type: '{' '.join(words)[:70]}'."
                raise FileFormatError(problem, f"Supported types: {', '.join(DTYPES)}.", line)
            element, name = elements[-1], words[-1]
            if name in element.properties:
                raise FileFormatError(f"duplicate property '{name}' in element '{element.name}'.", line=line)
            element.properties[name] = tuple(DTYPES[kind] for kind in types)
        else:
            raise FileFormatError(f"invalid line in the PLY header: '{text[:60]}'.", line=line)
    if order == "?":
        advice = "Expected a line such as 'format ascii 1.0' or 'format binary_little_endian 1.0'."
        raise FileFormatError("the PLY header has no format line.", advice)
    classes = tuple(names.get(number, str(number)) for number in range(max(names, default=-1) + 1))
    return order, elements, classes, end.end(1), len(texts)


def _read_binary(content: bytes, offset: int, byte_order: str, element: PlyElement) -> tuple[Values, int]:
    """Values of an element, and the offset after it. Blocks of consecutive rows with equal list lengths, usually all rows,
    are read at once."""
    row_bytes = sum(np.dtype(kinds[0]).itemsize for kinds in element.properties.values())  # with empty lists
    element.check_size(element.count * row_bytes, len(content) - offset, "bytes")
    has_lists = any(len(kinds) > 1 for kinds in element.properties.values())
    blocks: dict[str, list[NDArray[Any]]] = {}
    num_read, window = 0, 4 if has_lists else element.count
    while num_read < element.count and element.properties:
        dtype, sizes = _row_dtype(content, offset, byte_order, element)
        limit = min(window, element.count - num_read, (len(content) - offset) // dtype.itemsize)
        if not limit:
            element.check_size(1, 0, "bytes")
        rows = np.frombuffer(content, dtype, limit, offset)
        is_equal = np.ones(limit, dtype=bool)
        for name, size in sizes.items():
            is_equal &= rows[f"#{name}"] == size
        num_equal = limit if is_equal.all() else int(is_equal.argmin())
        for name in dtype.names or ():
            block = rows[name][:num_equal]
            in_list = name in sizes or name.startswith("#")
            blocks.setdefault(name, []).append(block.astype(np.int64).ravel() if in_list else block)
        num_read, window = num_read + num_equal, 2 * window if num_equal == limit else 4
        offset += num_equal * dtype.itemsize
    return {name: np.concatenate(parts) for name, parts in blocks.items()}, offset


def _row_dtype(content: bytes, offset: int, order: str, element: PlyElement) -> tuple[np.dtype[Any], dict[str, int]]:
    """Row dtype at an offset, and the length of each list in this row."""
    fields: list[tuple[Any, ...]] = []
    sizes: dict[str, int] = {}
    for name, kinds in element.properties.items():
        first, *values = (np.dtype(order + kind) for kind in kinds)
        fields.append((f"#{name}" if values else name, first))
        if values:
            if offset + first.itemsize > len(content):
                element.check_size(1, 0, "bytes")
            sizes[name] = size = int(np.frombuffer(content, first, 1, offset)[0])
            fields.append((name, values[0], (size,)))
            offset += size * values[0].itemsize
            if size < 0 or offset + first.itemsize > len(content):
                raise FileFormatError(f"invalid list length {size:,} in a '{element.name}' element.", TRUNCATED)
        offset += first.itemsize
    return np.dtype(fields), sizes


def _read_text(rows: Sequence[str], first: int, element: PlyElement) -> Values:
    """Values of an element from the lines of a text file, `first` lines after the start."""
    element.check_size(element.count, len(rows) - first, "lines")
    rows, lines = rows[first : first + element.count], range(first + 1, first + element.count + 1)
    if all(len(kinds) == 1 for kinds in element.properties.values()):
        table = parse_rows(rows, lines, len(element.properties), f"per '{element.name}'")
        columns: Values = {}
        for values, (name, (kind, *_)) in zip(table.T, element.properties.items(), strict=True):
            columns[name] = values
            # integers if declared and exact, so that colors of 0 and 1 count as uint8, not as fractions
            whole = values if kind[0] == "f" else values.astype(kind)
            if ((whole == values) & (np.abs(values) <= 2.0**53)).all():
                columns[name] = whole
        return columns
    if element.name == "vertex":
        problem = "list properties of vertices are not supported in text PLY files."
        raise FileFormatError(problem, "Save the file as binary PLY.")
    if element.name != "face":
        return {}
    numbered = zip(lines, rows, strict=True)
    return _parse_lists(numbered, element.properties, f"invalid '{element.name}' line: '{{}}'.", TRUNCATED)


def _parse_lists(
    rows: Iterable[tuple[int, str]], properties: Mapping[str, tuple[str, ...]], problem: str, advice: str
) -> Values:
    """Values of the list properties in rows of text; other properties are skipped."""
    lists = [name for name, kinds in properties.items() if len(kinds) > 1]
    numbers: dict[str, list[int]] = {key: [] for name in lists for key in (f"#{name}", name)}
    for line, text in rows:
        words = iter(text.split())
        try:
            for name in properties:
                word = next(words, "")
                if name in lists:
                    values = list(islice(words, int(word)))
                    if len(values) < int(word):
                        raise ValueError
                    numbers[f"#{name}"].append(len(values))
                    numbers[name] += map(int, values) if name in FACE_PROPERTIES else [0] * len(values)
        except ValueError as error:
            raise FileFormatError(problem.format(text[:60]), advice, line) from error
    return {name: np.array(values, np.int64) for name, values in numbers.items()}


# -- OFF

_OFF_HEADER = re.compile(r"(ST)?(C)?(N)?OFF(?![A-Za-z])\s*(.*)")


def read_off(content: bytes) -> RawCloud:
    texts = enumerate(decode_lines(content), start=1)
    rows = [(line, bare) for line, text in texts if (bare := text.partition("#")[0].strip())]
    if not rows:
        raise FileFormatError("the file is empty.", COPY_AGAIN)
    line, text = rows.pop(0)
    header = _OFF_HEADER.fullmatch(text)
    if header is None:
        problem = f"not an OFF file: the first line is '{text[:40]}'."
        raise FileFormatError(problem, "Supported: OFF, COFF, NOFF and CNOFF as text, in three dimensions.", line)
    line, counts = rows.pop(0) if not header[4] and rows else (line, header[4])
    words = counts.split()
    if len(words) < 2 or not all(word.isdigit() for word in words[:2]):
        problem = f"expected the numbers of vertices and faces, got '{counts[:40]}'."
        raise FileFormatError(problem, "Binary OFF files are not supported." if "BINARY" in counts else "", line)
    num_vertices, num_faces = int(words[0]), int(words[1])
    if num_vertices + num_faces > len(rows):
        problem = f"the header declares {num_vertices:,} vertices and {num_faces:,} faces, but only {len(rows):,} lines follow."
        raise FileFormatError(problem, COPY_AGAIN, line)
    has_normals, has_colors = bool(header[3]), bool(header[2])
    first_color = 3 + 3 * has_normals
    table = _parse_vertices(rows[:num_vertices], first_color + 3 * has_colors, "per vertex")
    colors = table[:, first_color:] if has_colors else None
    if colors is not None and colors.max(initial=0) > 1:
        colors = np.rint(colors)
    advice, corners = "Expected a count and that number of vertex indices.", FACE_PROPERTIES[0]
    rows = rows[num_vertices : num_vertices + num_faces]
    face = _parse_lists(rows, {corners: ("i4", "i4")}, "invalid face '{}'.", advice)
    faces = triangulate(face[f"#{corners}"], face[corners], num_vertices)
    return RawCloud(table[:, :3], colors, table[:, 3:6] if has_normals else None, faces=faces)


def _parse_vertices(rows: Sequence[tuple[int, str]], width: int, what: str) -> NDArray[np.float64]:
    return parse_rows([text for _, text in rows], [line for line, _ in rows], width, what, allow_extra=True)


# -- OBJ


def read_obj(content: bytes) -> RawCloud:
    """Read vertices, with colors if present, and faces; materials, textures and curves are ignored."""
    vertices, counts, corners = list[tuple[int, str]](), list[int](), list[int]()
    joined = ""
    for line, text in enumerate([*decode_lines(content), ""], start=1):
        if text.endswith("\\"):  # continued on the next line
            joined += text[:-1] + " "
            continue
        words, joined = (joined + text).partition("#")[0].split(), ""
        if words[:1] == ["v"]:
            vertices.append((line, " ".join(words[1:])))
        elif words[:1] == ["f"]:
            counts.append(len(words) - 1)
            for word in words[1:]:  # a corner is `7`, `7/2`, `7//3` or `7/2/3`
                try:
                    number = int(word.partition("/")[0])
                except ValueError as error:
                    problem = f"invalid face corner '{word[:40]}'."
                    raise FileFormatError(problem, "Expected a vertex index, as in 7/2/3.", line) from error
                if number == 0 or number < -len(vertices):
                    known = f"the lines above define {len(vertices):,} vertices (counted from 1)"
                    raise FileFormatError(f"a face refers to vertex {number}, but {known}.", line=line)
                # negative indices count back from the last vertex
                corners.append(number - 1 if number > 0 else len(vertices) + number)
    if not vertices:
        raise FileFormatError("the file contains no vertices.", "Expected lines 'v x y z'.")
    # six numbers for every vertex are coordinates and a color; a fourth number is a weight
    width = 6 if all(text.count(" ") == 5 for _, text in vertices) else 3
    table = _parse_vertices(vertices, width, "per vertex")
    faces = triangulate(np.array(counts, np.int64), np.array(corners, np.int64), len(vertices))
    return RawCloud(table[:, :3], table[:, 3:] if width == 6 else None, faces=faces if len(faces) else None)


# -- STL

_STL_FACET = np.dtype([("normal", "<f4", (3,)), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])
"""50 bytes per triangle"""


def read_stl(content: bytes) -> RawCloud:
    """Read triangles from a binary or text file; triangles do not share vertices."""
    if content[:5].lower() == b"solid" and b"facet" in content[:4096].lower():
        texts, rows, num_corners = decode_lines(content), list[tuple[int, str]](), 0
        for line, text in enumerate(texts, start=1):  # other lines than `vertex` and `endfacet` are ignored
            words = text.lower().split(maxsplit=1)
            if words[:1] == ["vertex"]:
                rows.append((line, words[1] if len(words) > 1 else ""))
                num_corners += 1
            elif words[:1] == ["endfacet"]:
                if num_corners != 3:
                    problem = f"expected 3 corners in the triangle that ends on this line, got {num_corners}."
                    raise FileFormatError(problem, line=line)
                num_corners = 0
        if num_corners:
            raise FileFormatError("the file ends inside a triangle.", COPY_AGAIN, len(texts))
        corners: NDArray[Any] = _parse_vertices(rows, 3, "per corner")
    else:
        count = int.from_bytes(content[80:84], "little")
        if len(content) < 84 or 84 + _STL_FACET.itemsize * count > len(content):
            problem = f"the header declares {count:,} triangles, but only {max(len(content) - 84, 0):,} bytes follow."
            raise FileFormatError(problem, COPY_AGAIN)
        check_count(count, "triangles", "Simplify the mesh.")
        corners = np.frombuffer(content, _STL_FACET, count, 84)["corners"].reshape(-1, 3)
    if not len(corners):
        raise FileFormatError("the file contains no triangles.", "Export the file again, or remove the file.")
    return RawCloud(corners, faces=np.arange(len(corners)).reshape(-1, 3))


# -- GLB


def read_glb(content: bytes) -> RawCloud:
    """Read all meshes of a scene with their transforms, as one mesh."""
    try:
        import trimesh
    except ImportError as error:
        problem = "reading .glb files requires trimesh, which is not installed."
        raise FileFormatError(problem, "Install trimesh: pip install trimesh") from error
    logging.getLogger("trimesh").addHandler(logging.NullHandler())  # errors are reported by FileFormatError instead
    with library_errors("not a GLB file, or damaged ({})."), suppress_warnings():
        # process=False: vertices are not merged, and faces stay as in the file
        mesh: Any = trimesh.load(io.BytesIO(content), file_type="glb", force="mesh", process=False)
        return trimesh_to_cloud(mesh)


def is_trimesh(item: Any) -> bool:
    """True for a mesh, a point cloud or a scene of trimesh."""
    trimesh: Any = sys.modules.get("trimesh")
    return trimesh is not None and isinstance(item, (trimesh.Trimesh, trimesh.PointCloud, trimesh.Scene))


def trimesh_to_cloud(item: Any) -> RawCloud:
    """Vertices, colors and triangles of an object of trimesh; all meshes of a scene with their transforms, as one mesh."""
    mesh = item if hasattr(item, "vertices") else item.to_mesh()
    vertices = np.asarray(mesh.vertices, np.float64)
    faces = np.asarray(mesh.faces if hasattr(mesh, "faces") else (), np.int64)
    colors = np.asarray(mesh.visual.vertex_colors) if mesh.visual.kind == "vertex" else np.zeros(0)
    if not len(vertices):
        raise FileFormatError("the file contains no vertices.", "Export the file again, or remove the file.")
    triangles = triangulate(np.full(len(faces), 3), faces.ravel(), len(vertices))
    has_colors = len(colors) == len(vertices)
    return RawCloud(vertices, colors[:, :3] if has_colors else None, faces=triangles if len(triangles) else None)
