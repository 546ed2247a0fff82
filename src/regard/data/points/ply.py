"""PLY files: read points or meshes, as text or binary in both byte orders, and write labeled point clouds.

The header lists the elements with their counts and properties. Vertices have x, y and z, and by property name colors, normals
and a label; faces have vertex indices. Counts in the header are compared with the file size before memory is allocated. A
comment `class 3 chair` names class 3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.points.cloud import MAX_POINTS, CloudFormatError, Columns, PointCloud, RawCloud, resolve_columns
from regard.data.points.mesh_sampling import triangulate
from regard.data.points.number_lines import parse_rows
from regard.errors import DataError
from regard.files import write_bytes

DTYPES = {
    "char": "i1", "int8": "i1", "uchar": "u1", "uint8": "u1", "short": "i2", "int16": "i2", "ushort": "u2", "uint16": "u2",
    "int": "i4", "int32": "i4", "uint": "u4", "uint32": "u4", "float": "f4", "float32": "f4", "double": "f8", "float64": "f8",
    "int64": "i8", "uint64": "u8",
}  # fmt: skip
BYTE_ORDERS = {"binary_little_endian": "<", "binary_big_endian": ">", "ascii": ""}
FACE_PROPERTIES = ("vertex_indices", "vertex_index")
MAX_HEADER_BYTES = 1 << 20
"""maximum size of the header in bytes"""
_CLASS_COMMENT = re.compile(r"class\s+(\d+)\s+(\S.*)")


@dataclass
class PlyElement:
    """Element of the header, such as vertex or face, with the number of rows."""

    name: str
    count: int
    scalars: dict[str, str] = field(default_factory=dict)
    """NumPy dtype of each scalar property"""
    lists: dict[str, tuple[str, str]] = field(default_factory=dict)
    """NumPy dtypes of the length and of the values of each list property"""
    property_order: list[str] = field(default_factory=list)
    """names of all properties in file order"""


@dataclass(frozen=True)
class PlyHeader:
    byte_order: str
    elements: tuple[PlyElement, ...]
    classes: tuple[str, ...]
    num_bytes: int
    """size of the header in bytes"""
    num_lines: int


def read_ply(content: bytes, columns: Columns | None = None) -> RawCloud:
    """Read the vertices, and the faces if present."""
    heading = read_header(content)
    wanted = [element for element in heading.elements if element.name in ("vertex", "face") and element.count]
    if not any(element.name == "vertex" for element in wanted):
        raise CloudFormatError(
            "the file contains no vertices.", "Expected an element 'vertex' with the properties x, y and z."
        )
    vertex: Mapping[str, NDArray[Any]] = {}
    corners: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
    reader = _AsciiReader(content, heading) if not heading.byte_order else _BinaryReader(content, heading)
    for element in heading.elements:
        values, lists = reader.read_element(element)
        if element.name == "vertex":
            vertex = values
        elif element.name == "face" and element.count:
            corners = next((lists[name] for name in FACE_PROPERTIES if name in lists), None)
        wanted = [other for other in wanted if other is not element]
        if not wanted:
            break  # later elements are not needed
    # triangulated last, because faces may precede the vertices in the file
    faces = None if corners is None else triangulate(*corners, len(vertex[next(iter(vertex))]) if vertex else 0)
    return _to_raw_cloud(vertex, faces, heading.classes, columns)


def _to_raw_cloud(
    vertex: Mapping[str, NDArray[Any]], faces: NDArray[np.int64] | None, classes: tuple[str, ...], columns: Columns | None
) -> RawCloud:  # fmt: skip
    called = resolve_columns(list(vertex), columns)
    lacking = [name for name in "xyz" if name not in called]
    if lacking:
        raise CloudFormatError(
            f"the vertices have no property {lacking[0]}.", f"Available properties: {', '.join(vertex) or 'none'}."
        )

    def three(*names: str) -> NDArray[Any] | None:
        there = all(name in called for name in names)
        return np.stack([vertex[called[name]] for name in names], axis=1) if there else None

    places = three("x", "y", "z")
    assert places is not None
    labels = vertex[called["label"]] if "label" in called else None
    # labels belong to vertices, so a labeled mesh is read as a point cloud without faces
    kept = faces if labels is None and faces is not None and len(faces) else None
    return RawCloud(places, three("red", "green", "blue"), three("nx", "ny", "nz"), labels, classes, kept)


# -- header


def read_header(content: bytes) -> PlyHeader:
    first = content[:MAX_HEADER_BYTES]
    end = re.search(rb"^[ \t]*end_header[ \t]*(\r\n|\n|\r)", first, re.MULTILINE) or re.search(
        rb"(?:\r|\n)end_header[ \t]*(\r\n|\n|\r|$)", first
    )
    if end is None:
        raise CloudFormatError(
            "the PLY header has no end_header line.",
            "The file is truncated or damaged. Copy or download the file again.",
        )
    texts = re.split(r"\r\n|\n|\r", first[: end.start(1)].decode("latin-1"))
    order, elements, named = "?", list[PlyElement](), dict[int, str]()
    for line, text in enumerate(texts, start=1):
        words = text.split()
        if line == 1 or not words or words[0] in ("obj_info", "end_header"):
            continue
        if words[0] == "comment":
            said = _CLASS_COMMENT.fullmatch(" ".join(words[1:]).encode("latin-1").decode("utf-8", "replace"))
            if said and int(said[1]) < 65536:
                named[int(said[1])] = said[2]
        elif words[0] == "format" and len(words) > 1:
            if words[1] not in BYTE_ORDERS:
                raise CloudFormatError(
                    f"unsupported PLY format '{words[1]}'.", f"Supported: {', '.join(BYTE_ORDERS)}.", line
                )
            order = BYTE_ORDERS[words[1]]
        elif words[0] == "element" and len(words) == 3 and words[2].isdigit():
            elements.append(PlyElement(words[1].lower(), int(words[2])))
        elif words[0] == "property" and elements:
            _parse_property(elements[-1], words[1:], line)
        else:
            raise CloudFormatError(f"invalid line in the PLY header: '{text[:60]}'.", "", line)
    if order == "?":
        raise CloudFormatError(
            "the PLY header has no format line.",
            "Expected a line such as 'format ascii 1.0' or 'format binary_little_endian 1.0'.",
        )
    classes = tuple(named.get(number, str(number)) for number in range(max(named, default=-1) + 1))
    return PlyHeader(order, tuple(elements), classes, end.end(1), len(texts))


def _parse_property(element: PlyElement, words: Sequence[str], line: int) -> None:
    kinds = words[1:3] if words and words[0] == "list" else words[:1]
    if len(words) != (4 if len(kinds) == 2 else 2) or not all(kind in DTYPES for kind in kinds):
        raise CloudFormatError(
            f"invalid property or unsupported type: 'property {' '.join(words)[:60]}'.",
            f"Supported types: {', '.join(DTYPES)}.",
            line,
        )
    name = words[-1]
    if name in element.property_order:
        raise CloudFormatError(f"duplicate property '{name}' in element '{element.name}'.", "", line)
    element.property_order.append(name)
    if len(kinds) == 2:
        element.lists[name] = DTYPES[kinds[0]], DTYPES[kinds[1]]
    else:
        element.scalars[name] = DTYPES[kinds[0]]


ScalarProperties = dict[str, NDArray[Any]]
ListProperties = dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]
"""Lengths and concatenated values of each list property."""


def _truncated_error(element: PlyElement, there: int, unit: str) -> CloudFormatError:
    advice = "The file is truncated or damaged. Copy or download the file again."
    return CloudFormatError(
        f"the header declares {element.count:,} '{element.name}' elements, but only {there:,} {unit} remain.", advice
    )


def _check_limit(element: PlyElement) -> None:
    if element.count > MAX_POINTS:
        raise CloudFormatError(
            f"{element.count:,} '{element.name}' elements exceed the maximum of {MAX_POINTS:,}.",
            "Split the file into smaller files.",
        )


# -- binary


class _BinaryReader:
    def __init__(self, content: bytes, heading: PlyHeader) -> None:
        self.content, self.offset, self.byte_order = content, heading.num_bytes, heading.byte_order

    def read_element(self, element: PlyElement) -> tuple[ScalarProperties, ListProperties]:
        left = len(self.content) - self.offset
        least = sum(np.dtype(kind).itemsize for kind in element.scalars.values())
        least += sum(np.dtype(count).itemsize for count, _ in element.lists.values())
        if element.count * least > left:
            raise _truncated_error(element, left, "bytes")
        _check_limit(element)
        if not element.property_order or not element.count:
            return {}, {}
        if element.lists:
            return self._read_lists(element)
        kind = np.dtype([(name, self.byte_order + element.scalars[name]) for name in element.property_order])
        rows = np.frombuffer(self.content, kind, element.count, self.offset)
        self.offset += element.count * kind.itemsize
        return {name: rows[name] for name in element.property_order}, {}

    def _read_lists(self, element: PlyElement) -> tuple[ScalarProperties, ListProperties]:
        """Read blocks of consecutive rows with equal list lengths, usually all rows."""
        fixed: dict[str, list[NDArray[Any]]] = {name: [] for name in element.scalars}
        counts: dict[str, list[NDArray[Any]]] = {name: [] for name in element.lists}
        values: dict[str, list[NDArray[Any]]] = {name: [] for name in element.lists}
        done, window = 0, 4
        while done < element.count:
            kind, sizes = self._row_dtype(element)
            most = min(window, element.count - done, (len(self.content) - self.offset) // kind.itemsize)
            if not most:
                raise _truncated_error(element, 0, "bytes")
            rows = np.frombuffer(self.content, kind, most, self.offset)
            alike = np.logical_and.reduce([rows[f"#{name}"] == size for name, size in sizes.items()])
            same = most if alike.all() else int(alike.argmin())
            for name in element.scalars:
                fixed[name].append(rows[name][:same])
            for name in element.lists:
                counts[name].append(rows[f"#{name}"][:same].astype(np.int64))
                values[name].append(rows[name][:same].astype(np.int64).ravel())
            done, window = done + same, 2 * window if same == most else 4
            self.offset += same * kind.itemsize
        return (
            {name: np.concatenate(found) for name, found in fixed.items()},
            {name: (np.concatenate(counts[name]), np.concatenate(values[name])) for name in element.lists},
        )

    def _row_dtype(self, element: PlyElement) -> tuple[np.dtype[Any], dict[str, int]]:
        """Row dtype at the current offset, and the length of each list in this row."""
        parts: list[tuple[Any, ...]] = []
        sizes: dict[str, int] = {}
        at = self.offset
        for name in element.property_order:
            if name in element.scalars:
                parts.append((name, self.byte_order + element.scalars[name]))
                at += np.dtype(element.scalars[name]).itemsize
                continue
            count, kind = (np.dtype(self.byte_order + one) for one in element.lists[name])
            if at + count.itemsize > len(self.content):
                raise _truncated_error(element, 0, "bytes")
            many = int(np.frombuffer(self.content, count, 1, at)[0])
            at += count.itemsize + many * kind.itemsize
            if many < 0 or at > len(self.content):
                raise CloudFormatError(
                    f"invalid list length {many:,} in a '{element.name}' element.", "The file is truncated or damaged."
                )
            sizes[name] = many
            parts += [(f"#{name}", count), (name, kind, (many,))]
        return np.dtype(parts), sizes


# -- text


class _AsciiReader:
    def __init__(self, content: bytes, heading: PlyHeader) -> None:
        self.lines = content[heading.num_bytes :].decode("latin-1").splitlines()
        self.header_lines, self.next_line = heading.num_lines, 0

    def read_element(self, element: PlyElement) -> tuple[ScalarProperties, ListProperties]:
        left = len(self.lines) - self.next_line
        if element.count > left:
            raise _truncated_error(element, left, "lines")
        _check_limit(element)
        taken = self.lines[self.next_line : self.next_line + element.count]
        first = self.header_lines + self.next_line + 1
        self.next_line += element.count
        if not element.lists:
            table = parse_rows(taken, first, len(element.property_order), f"per '{element.name}'")
            return {
                name: _cast_to_declared(table[:, place], element.scalars[name])
                for place, name in enumerate(element.property_order)
            }, {}
        if element.name == "vertex":
            raise CloudFormatError(
                "list properties of vertices are not supported in text PLY files.", "Save the file as binary PLY."
            )
        if element.name != "face":
            return {}, {}
        return {}, self._read_lists(element, taken, first)

    def _read_lists(self, element: PlyElement, taken: Sequence[str], first: int) -> ListProperties:
        found: dict[str, tuple[list[int], list[int]]] = {name: ([], []) for name in element.lists}
        for line, text in enumerate(taken, start=first):
            words, at = text.split(), 0
            try:
                for name in element.property_order:
                    many = int(words[at]) if name in element.lists else 1
                    if name in found:
                        numbers = words[at + 1 : at + 1 + many]
                        if many < 0 or len(numbers) < many:
                            raise IndexError
                        found[name][0].append(many)
                        found[name][1].extend(map(int, numbers) if name in FACE_PROPERTIES else [0] * many)
                        at += 1
                    at += many
            except (ValueError, IndexError) as error:
                raise CloudFormatError(
                    f"invalid '{element.name}' line: '{text[:60]}'.", "The file is truncated or damaged.", line
                ) from error
        return {name: (np.array(many, np.int64), np.array(all_of, np.int64)) for name, (many, all_of) in found.items()}


def _cast_to_declared(values: NDArray[np.float64], kind: str) -> NDArray[Any]:
    """Integers if declared in the header and exact, so that colors of 0 and 1 count as uint8, not as fractions."""
    if kind[0] == "f" or not np.isfinite(values).all():
        return values
    limits = np.iinfo(kind)
    fits = (values == np.rint(values)) & (values >= limits.min) & (values <= min(limits.max, 2**53))
    return values.astype(kind) if fits.all() else values


# -- writing


def write_ply(
    path: str | Path, cloud: PointCloud, labels: NDArray[Any] | None = None, colors: NDArray[Any] | None = None,
    classes: Sequence[str] = (),
) -> None:  # fmt: skip
    """Write a binary PLY file in the original coordinates, with labels and colors (default: from `cloud`). Comments name the
    classes."""
    labels = cloud.labels if labels is None else np.asarray(labels)
    colors = cloud.colors if colors is None else np.asarray(colors)
    names = tuple(classes) or cloud.classes
    for what, values, shape in (("labels", labels, (len(cloud),)), ("colors", colors, (len(cloud), 3))):
        if values is not None and values.shape != shape:
            raise DataError(f"expected {what} of shape {shape}, got {values.shape}.", path)
    far = bool(np.any(cloud.origin))
    parts: list[tuple[str, str, NDArray[Any]]] = []
    for place, name in enumerate("xyz"):
        parts.append((name, "f8" if far else "f4", (cloud.world_coordinates if far else cloud.coordinates)[:, place]))
    for place, name in enumerate(("nx", "ny", "nz")):
        if cloud.normals is not None:
            parts.append((name, "f4", cloud.normals[:, place]))
    for place, name in enumerate(("red", "green", "blue")):
        if colors is not None:
            parts.append((name, "u1", colors[:, place]))
    if labels is not None:
        parts.append(("label", "i4", labels))
    table = np.empty(len(cloud), dtype=[(name, f"<{kind}") for name, kind, _ in parts])
    for name, _, values in parts:
        table[name] = values
    words = {"f4": "float", "f8": "double", "u1": "uchar", "i4": "int"}
    heading = ["ply", "format binary_little_endian 1.0"]
    heading += [f"comment class {number} {' '.join(name.split())}" for number, name in enumerate(names)]
    heading += [f"element vertex {len(cloud)}", *(f"property {words[kind]} {name}" for name, kind, _ in parts)]
    write_bytes(Path(path), "\n".join([*heading, "end_header\n"]).encode() + table.tobytes())
