"""Meaning of the columns of a point table: from `--columns`, from the header, or from the number of columns and the values.

| columns | meaning                                                                                                    |
|---------|------------------------------------------------------------------------------------------------------------|
| 3       | x y z                                                                                                      |
| 4       | x y z, label (if integers), otherwise a measured value (ignored)                                           |
| 5       | x y z, measured value, label                                                                               |
| 6       | x y z, normals (if of length 1), otherwise colors (up to 1, 255 or 65,535)                                 |
| 7       | x y z, normals or colors, label; or x y z, measured value, colors (preferred in .pts)                      |
| 8       | x y z, measured value, normals or colors, label                                                            |
| 9, 10   | x y z, colors and normals in any order, and a label in the last of 10 columns                              |

Other tables need a header line ("x y z red green blue label"), or `--columns label=6` with a name of the header or a column
index from 0.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.images.masks import SEARCH_DEPTH, ClassMap, find_classes_above, infer_classes
from regard.data.points.cloud import COLUMN_ALIASES, CloudFormatError, Columns, PointCloud, RawCloud, resolve_columns
from regard.data.synthetic.point_clouds import parse_cloud_recipe, recipe_classes
from regard.errors import DataError

COLUMN_NAMES = tuple(COLUMN_ALIASES)
"""Possible meanings of a column."""
VECTOR_COLUMNS = {"colors": ("red", "green", "blue"), "normals": ("nx", "ny", "nz")}
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
"""Possible layouts of the columns after x, y and z, by number of columns, most likely first."""
NORMAL_TOLERANCE = 0.02
"""maximum difference of the length of a normal from 1"""
MAX_CLASSES = 65536
"""limit for integer labels and colors"""
HEADER_HINT = (
    "Add a header line such as 'x y z red green blue label', or pass --columns label=6 (column indices start at 0)."
)


def cloud_from_table(
    table: NDArray[Any], names: Sequence[str] = (), columns: Columns | None = None, scanner_order: bool = False
) -> RawCloud:
    """Point cloud from an (N, C) table; `scanner_order` prefers layouts with a measured value after x, y and z (.pts)."""
    columns = {name: said for name, said in (columns or {}).items() if name in COLUMN_NAMES}
    wide = table.shape[1]
    if wide < 3:
        raise CloudFormatError(f"expected at least 3 columns per point (x, y and z), got {wide}.", HEADER_HINT)
    if names or columns:
        return _from_named_columns(table, names, columns)
    layouts: Sequence[tuple[str, ...]] = COLUMN_LAYOUTS.get(wide - 3, ())
    if scanner_order:
        layouts = sorted(layouts, key=lambda layout: layout[:1] != ("measured",))
    for layout in layouts:
        places = _column_slices(layout)
        if all(_is_plausible(name, table[:, at]) for name, at in places.items()):
            found = {name: table[:, at] for name, at in places.items()}
            return RawCloud(table[:, :3], found.get("colors"), found.get("normals"), found.get("label"))
    if wide - 3 in COLUMN_LAYOUTS:
        wanted = " or ".join(dict.fromkeys(" and ".join(layout) for layout in COLUMN_LAYOUTS[wide - 3]))
        wanted = wanted.replace("measured", "intensity")
        raise CloudFormatError(
            f"{wide} columns per point, but the columns after x, y and z do not match {wanted}.", HEADER_HINT
        )
    raise CloudFormatError(f"{wide} columns per point, but only x, y and z are identified.", HEADER_HINT)


def _column_slices(layout: Sequence[str]) -> dict[str, Any]:
    """Column index or slice of each part of a layout; the layout starts after x, y and z."""
    found: dict[str, Any] = {}
    at = 3
    for name in layout:
        found[name] = slice(at, at + 3) if name in VECTOR_COLUMNS else at
        at += 3 if name in VECTOR_COLUMNS else 1
    return found


def _is_plausible(name: str, values: NDArray[Any]) -> bool:
    """True if the values are possible for this kind of column."""
    if name == "measured":
        return True
    finite = values[np.isfinite(values) if values.ndim == 1 else np.isfinite(values).all(axis=1)]
    if not len(finite):
        return False
    if name == "normals":
        with np.errstate(over="ignore"):
            sizes = np.sqrt((finite.astype(np.float64) ** 2).sum(axis=1))
        some = sizes[sizes > 0]
        return bool(len(some) and (np.abs(some - 1) < NORMAL_TOLERANCE).mean() > 0.99)
    low, high = float(finite.min()), float(finite.max())
    whole = bool((finite == np.rint(finite)).all())
    if name == "label":
        return whole and low >= -1 and high < MAX_CLASSES
    return low >= 0 and (high <= 1 or (whole and high < MAX_CLASSES))


def _from_named_columns(table: NDArray[Any], names: Sequence[str], columns: Columns) -> RawCloud:
    """Point cloud by the names of the header, and by `columns` with header names or column indices."""
    there = {name: place for place, name in reversed(list(enumerate(names)))}
    placed = {name: said for name, said in columns.items() if said not in there and said.isdigit()}
    for name, said in placed.items():
        if int(said) >= table.shape[1]:
            problem = f"unknown column {said} for {name}."
            raise CloudFormatError(problem, f"Column indices run from 0 to {table.shape[1] - 1}.")
    rest = {name: said for name, said in columns.items() if name not in placed}
    if rest and not names:
        name, said = next(iter(rest.items()))
        raise CloudFormatError(
            f"no header line, so the column '{said}' for {name} cannot be found.",
            "Pass a column index, counted from 0.",
        )
    at = {name: there[called] for name, called in resolve_columns(list(there), rest).items()}
    at |= {name: int(said) for name, said in placed.items()}
    if not names:
        at = {**{name: place for place, name in enumerate("xyz")}, **at}
    lacking = next((name for name in "xyz" if name not in at), None)
    if lacking is not None:
        raise CloudFormatError(
            f"the header has no column {lacking}.", f"Columns of the header: {', '.join(names)}. {HEADER_HINT}"
        )
    return assemble_cloud({name: table[:, column] for name, column in at.items()})


def assemble_cloud(values: Mapping[str, NDArray[Any]]) -> RawCloud:
    """Point cloud from one array for each meaning of `COLUMN_NAMES`; x, y and z are required."""

    def three(*names: str) -> NDArray[Any] | None:
        available = all(name in values for name in names)
        return np.stack([values[name] for name in names], axis=1) if available else None

    coordinates = np.stack([values[name] for name in "xyz"], axis=1)
    return RawCloud(coordinates, three("red", "green", "blue"), three("nx", "ny", "nz"), values.get("label"))


# -- classes of labeled points; labels below 0 are unknown and ignored

IGNORE_LABEL = -1
"""Class index of points without a label, ignored by the loss."""
MAX_LABEL = 65535
"""maximum label value"""


def find_cloud_classes(entries: Sequence[str]) -> ClassMap | None:
    """Classes from a file next to the point clouds or in a parent folder; None if there is no such file."""
    for entry in entries:
        if (found := find_classes_near(entry)) is not None:
            return found
    return None


def find_classes_near(source: str) -> ClassMap | None:
    """Classes of one point cloud or data entry; a generated dataset defines its own classes."""
    recipe = parse_cloud_recipe(source)
    if recipe is not None:
        names = recipe_classes(recipe)
        return ClassMap(names, tuple(range(len(names))))
    path = os.path.abspath(os.path.expanduser(source))
    return find_classes_above(path if os.path.isdir(path) else os.path.dirname(path), SEARCH_DEPTH)


def classes_from_cloud(cloud: PointCloud) -> ClassMap | None:
    """Classes named in the file of a point cloud; a name equal to the class id marks an id without a name."""
    if not cloud.classes:
        return None
    named = [(name, number) for number, name in enumerate(cloud.classes) if name != str(number)]
    return ClassMap(tuple(name for name, _ in named), tuple(number for _, number in named)) if named else None


def infer_cloud_classes(values: Iterable[int]) -> ClassMap:
    """Classes from labels without names: each label from 0 on is a class, named by its number."""
    return infer_classes(value for value in values if value >= 0)


def labels_to_indices(labels: NDArray[np.int64], classes: ClassMap, path: str = "") -> NDArray[np.int64]:
    """(N,) class indices of labels, IGNORE_LABEL for unknown and void labels; errors report `path`."""
    table = np.full(MAX_LABEL + 2, -2, dtype=np.int64)  # the last entry is for label -1
    table[[*classes.void, -1]] = IGNORE_LABEL
    table[list(classes.values)] = np.arange(len(classes.values))
    found = table[np.where(labels < 0, -1, np.minimum(labels, MAX_LABEL))]
    strange = np.unique(labels[(found == -2) | (labels > MAX_LABEL)]).tolist()
    if strange:
        told = f"labels without a class: {', '.join(map(str, strange[:5]))}{', …' if len(strange) > 5 else ''}."
        raise DataError(
            told,
            path or None,
            advice="Name these labels in classes.txt next to the point clouds; the name void marks labels to ignore.",
        )
    return found


def count_labels(labels: NDArray[Any]) -> dict[int, int]:
    """Number of occurrences of each label."""
    values, counts = np.unique(labels, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))
