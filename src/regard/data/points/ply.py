"""PLY: points or a mesh with any properties, as text or as bytes of either order; and how labelled clouds are written.

The heading says what elements follow, how many, and what properties each has. Of the vertices x, y and z are read, and by their
names colours, normals and a label; of the faces the corners. Nothing is made room for on a heading's word: what it promises is
compared with the bytes that are there. A comment `class 3 chair` names the class that has this number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.points.cloud import LIMIT, Cloud, Columns, Raw, Wrong, meant
from regard.data.points.mesh_sampling import fans
from regard.data.points.number_lines import rows_of
from regard.errors import DataError
from regard.files import write_bytes

TYPES = {
    "char": "i1", "int8": "i1", "uchar": "u1", "uint8": "u1", "short": "i2", "int16": "i2", "ushort": "u2", "uint16": "u2",
    "int": "i4", "int32": "i4", "uint": "u4", "uint32": "u4", "float": "f4", "float32": "f4", "double": "f8", "float64": "f8",
    "int64": "i8", "uint64": "u8",
}  # fmt: skip
ORDERS = {"binary_little_endian": "<", "binary_big_endian": ">", "ascii": ""}
CORNERS = ("vertex_indices", "vertex_index")
HEADING = 1 << 20
"""bytes within which a heading ends"""
_CLASS = re.compile(r"class\s+(\d+)\s+(\S.*)")


@dataclass
class Element:
    """What stands in a file so many times: a vertex or a face."""

    name: str
    many: int
    fixed: dict[str, str] = field(default_factory=dict)
    """properties of one number each, and NumPy's letters for their kinds"""
    lists: dict[str, tuple[str, str]] = field(default_factory=dict)
    """properties of several numbers: the kinds of their count and of themselves"""
    order: list[str] = field(default_factory=list)
    """all of them as they follow one another"""


@dataclass(frozen=True)
class Heading:
    order: str
    elements: tuple[Element, ...]
    classes: tuple[str, ...]
    size: int
    """bytes that it takes"""
    lines: int


def read_ply(content: bytes, columns: Columns | None = None) -> Raw:
    """The vertices, and the faces where there are any."""
    heading = read_heading(content)
    wanted = [element for element in heading.elements if element.name in ("vertex", "face") and element.many]
    if not any(element.name == "vertex" for element in wanted):
        raise Wrong("holds no vertices.", "A cloud has an element 'vertex' with the properties x, y and z.")
    vertex: Mapping[str, NDArray[Any]] = {}
    corners: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
    reader = _Text(content, heading) if not heading.order else _Bytes(content, heading)
    for element in heading.elements:
        values, lists = reader.take(element)
        if element.name == "vertex":
            vertex = values
        elif element.name == "face" and element.many:
            corners = next((lists[name] for name in CORNERS if name in lists), None)
        wanted = [other for other in wanted if other is not element]
        if not wanted:
            break  # what follows is not asked for
    # faces may stand before the vertices that they name
    faces = None if corners is None else fans(*corners, len(vertex[next(iter(vertex))]) if vertex else 0)
    return _raw(vertex, faces, heading.classes, columns)


def _raw(
    vertex: Mapping[str, NDArray[Any]], faces: NDArray[np.int64] | None, classes: tuple[str, ...], columns: Columns | None
) -> Raw:  # fmt: skip
    called = meant(list(vertex), columns)
    lacking = [name for name in "xyz" if name not in called]
    if lacking:
        raise Wrong(f"its vertices have no {lacking[0]}.", f"They have: {', '.join(vertex) or 'nothing'}.")

    def three(*names: str) -> NDArray[Any] | None:
        there = all(name in called for name in names)
        return np.stack([vertex[called[name]] for name in names], axis=1) if there else None

    places = three("x", "y", "z")
    assert places is not None
    labels = vertex[called["label"]] if "label" in called else None
    # labels belong to points: such a mesh is its points
    kept = faces if labels is None and faces is not None and len(faces) else None
    return Raw(places, three("red", "green", "blue"), three("nx", "ny", "nz"), labels, classes, kept)


# -- the heading


def read_heading(content: bytes) -> Heading:
    first = content[:HEADING]
    end = re.search(rb"^[ \t]*end_header[ \t]*(\r\n|\n|\r)", first, re.MULTILINE) or re.search(
        rb"(?:\r|\n)end_header[ \t]*(\r\n|\n|\r|$)", first
    )
    if end is None:
        raise Wrong("is a PLY file whose heading does not end.", "It is cut off or damaged: copy or download it again.")
    texts = re.split(r"\r\n|\n|\r", first[: end.start(1)].decode("latin-1"))
    order, elements, named = "?", list[Element](), dict[int, str]()
    for line, text in enumerate(texts, start=1):
        words = text.split()
        if line == 1 or not words or words[0] in ("obj_info", "end_header"):
            continue
        if words[0] == "comment":
            said = _CLASS.fullmatch(" ".join(words[1:]).encode("latin-1").decode("utf-8", "replace"))
            if said and int(said[1]) < 65536:
                named[int(said[1])] = said[2]
        elif words[0] == "format" and len(words) > 1:
            if words[1] not in ORDERS:
                raise Wrong(f"its numbers are written as '{words[1]}'.", f"Known are {', '.join(ORDERS)}.", line)
            order = ORDERS[words[1]]
        elif words[0] == "element" and len(words) == 3 and words[2].isdigit():
            elements.append(Element(words[1].lower(), int(words[2])))
        elif words[0] == "property" and elements:
            _property(elements[-1], words[1:], line)
        else:
            raise Wrong(f"'{text[:60]}' is no line of a PLY heading.", "", line)
    if order == "?":
        raise Wrong("its heading does not say the format.", "A line 'format ascii 1.0', or of bytes, is wanted.")
    classes = tuple(named.get(number, str(number)) for number in range(max(named, default=-1) + 1))
    return Heading(order, tuple(elements), classes, end.end(1), len(texts))


def _property(element: Element, words: Sequence[str], line: int) -> None:
    kinds = words[1:3] if words and words[0] == "list" else words[:1]
    if len(words) != (4 if len(kinds) == 2 else 2) or not all(kind in TYPES for kind in kinds):
        raise Wrong(f"'property {' '.join(words)[:60]}' is of no known type.", f"Known are {', '.join(TYPES)}.", line)
    name = words[-1]
    if name in element.order:
        raise Wrong(f"the element {element.name} has two properties '{name}'.", "", line)
    element.order.append(name)
    if len(kinds) == 2:
        element.lists[name] = TYPES[kinds[0]], TYPES[kinds[1]]
    else:
        element.fixed[name] = TYPES[kinds[0]]


Values = dict[str, NDArray[Any]]
Lists = dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]
"""Of each list property how many numbers each has, and all of them."""


def _promised(element: Element, there: int, unit: str) -> Wrong:
    advice = "It is cut off or damaged: copy or download it again."
    return Wrong(f"promises {element.many:,} of '{element.name}', and {there:,} {unit} are left for them.", advice)


def _limited(element: Element) -> None:
    if element.many > LIMIT:
        raise Wrong(f"has {element.many:,} of '{element.name}', and at most {LIMIT:,} are read.", "Cut it into parts.")


# -- bytes


class _Bytes:
    def __init__(self, content: bytes, heading: Heading) -> None:
        self.content, self.at, self.order = content, heading.size, heading.order

    def take(self, element: Element) -> tuple[Values, Lists]:
        left = len(self.content) - self.at
        least = sum(np.dtype(kind).itemsize for kind in element.fixed.values())
        least += sum(np.dtype(count).itemsize for count, _ in element.lists.values())
        if element.many * least > left:
            raise _promised(element, left, "bytes")
        _limited(element)
        if not element.order or not element.many:
            return {}, {}
        if element.lists:
            return self._runs(element)
        kind = np.dtype([(name, self.order + element.fixed[name]) for name in element.order])
        rows = np.frombuffer(self.content, kind, element.many, self.at)
        self.at += element.many * kind.itemsize
        return {name: rows[name] for name in element.order}, {}

    def _runs(self, element: Element) -> tuple[Values, Lists]:
        """Rows of the same sizes are read together: in most files these are all of them."""
        fixed: dict[str, list[NDArray[Any]]] = {name: [] for name in element.fixed}
        counts: dict[str, list[NDArray[Any]]] = {name: [] for name in element.lists}
        values: dict[str, list[NDArray[Any]]] = {name: [] for name in element.lists}
        done, window = 0, 4
        while done < element.many:
            kind, sizes = self._row(element)
            most = min(window, element.many - done, (len(self.content) - self.at) // kind.itemsize)
            if not most:
                raise _promised(element, 0, "bytes")
            rows = np.frombuffer(self.content, kind, most, self.at)
            alike = np.logical_and.reduce([rows[f"#{name}"] == size for name, size in sizes.items()])
            same = most if alike.all() else int(alike.argmin())
            for name in element.fixed:
                fixed[name].append(rows[name][:same])
            for name in element.lists:
                counts[name].append(rows[f"#{name}"][:same].astype(np.int64))
                values[name].append(rows[name][:same].astype(np.int64).ravel())
            done, window = done + same, 2 * window if same == most else 4
            self.at += same * kind.itemsize
        return (
            {name: np.concatenate(found) for name, found in fixed.items()},
            {name: (np.concatenate(counts[name]), np.concatenate(values[name])) for name in element.lists},
        )

    def _row(self, element: Element) -> tuple[np.dtype[Any], dict[str, int]]:
        """How the row here is laid out, and how many numbers its lists have."""
        parts: list[tuple[Any, ...]] = []
        sizes: dict[str, int] = {}
        at = self.at
        for name in element.order:
            if name in element.fixed:
                parts.append((name, self.order + element.fixed[name]))
                at += np.dtype(element.fixed[name]).itemsize
                continue
            count, kind = (np.dtype(self.order + one) for one in element.lists[name])
            if at + count.itemsize > len(self.content):
                raise _promised(element, 0, "bytes")
            many = int(np.frombuffer(self.content, count, 1, at)[0])
            at += count.itemsize + many * kind.itemsize
            if many < 0 or at > len(self.content):
                raise Wrong(
                    f"a '{element.name}' has a list of {many:,} numbers, which are not there.", "It is damaged."
                )
            sizes[name] = many
            parts += [(f"#{name}", count), (name, kind, (many,))]
        return np.dtype(parts), sizes


# -- text


class _Text:
    def __init__(self, content: bytes, heading: Heading) -> None:
        self.lines = content[heading.size :].decode("latin-1").splitlines()
        self.before, self.at = heading.lines, 0

    def take(self, element: Element) -> tuple[Values, Lists]:
        left = len(self.lines) - self.at
        if element.many > left:
            raise _promised(element, left, "lines")
        _limited(element)
        taken = self.lines[self.at : self.at + element.many]
        first = self.before + self.at + 1
        self.at += element.many
        if not element.lists:
            table = rows_of(taken, first, len(element.order), f"a '{element.name}'")
            return {
                name: _as_said(table[:, place], element.fixed[name]) for place, name in enumerate(element.order)
            }, {}
        if element.name == "vertex":
            raise Wrong("its vertices have lists of numbers, which are read as bytes only.", "Write it as binary PLY.")
        if element.name != "face":
            return {}, {}
        return {}, self._lists(element, taken, first)

    def _lists(self, element: Element, taken: Sequence[str], first: int) -> Lists:
        found: dict[str, tuple[list[int], list[int]]] = {name: ([], []) for name in element.lists}
        for line, text in enumerate(taken, start=first):
            words, at = text.split(), 0
            try:
                for name in element.order:
                    many = int(words[at]) if name in element.lists else 1
                    if name in found:
                        numbers = words[at + 1 : at + 1 + many]
                        if many < 0 or len(numbers) < many:
                            raise IndexError
                        found[name][0].append(many)
                        found[name][1].extend(map(int, numbers) if name in CORNERS else [0] * many)
                        at += 1
                    at += many
            except (ValueError, IndexError) as error:
                raise Wrong(f"'{text[:60]}' is no '{element.name}'.", "It is cut off or damaged.", line) from error
        return {name: (np.array(many, np.int64), np.array(all_of, np.int64)) for name, (many, all_of) in found.items()}


def _as_said(values: NDArray[np.float64], kind: str) -> NDArray[Any]:
    """Whole numbers where the heading says so, and they are: colours of 0 and 1 are bytes then, and no shares."""
    if kind[0] == "f" or not np.isfinite(values).all():
        return values
    limits = np.iinfo(kind)
    fits = (values == np.rint(values)) & (values >= limits.min) & (values <= min(limits.max, 2**53))
    return values.astype(kind) if fits.all() else values


# -- writing


def write_ply(
    path: str | Path, cloud: Cloud, labels: NDArray[Any] | None = None, colours: NDArray[Any] | None = None,
    classes: Sequence[str] = (),
) -> None:  # fmt: skip
    """A cloud with a label and a colour for each point, those of the cloud where none are given; as bytes, in the coordinates
    of its file. Comments name the classes."""
    labels = cloud.labels if labels is None else np.asarray(labels)
    colours = cloud.colours if colours is None else np.asarray(colours)
    names = tuple(classes) or cloud.classes
    for what, values, shape in (("labels", labels, (len(cloud),)), ("colours", colours, (len(cloud), 3))):
        if values is not None and values.shape != shape:
            raise DataError(f"{what} {values.shape} are given for {len(cloud):,} points.", path)
    far = bool(np.any(cloud.origin))
    parts: list[tuple[str, str, NDArray[Any]]] = []
    for place, name in enumerate("xyz"):
        parts.append((name, "f8" if far else "f4", (cloud.world if far else cloud.places)[:, place]))
    for place, name in enumerate(("nx", "ny", "nz")):
        if cloud.normals is not None:
            parts.append((name, "f4", cloud.normals[:, place]))
    for place, name in enumerate(("red", "green", "blue")):
        if colours is not None:
            parts.append((name, "u1", colours[:, place]))
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
