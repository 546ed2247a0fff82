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

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.points.cloud import COLUMN_ALIASES, CloudFormatError, Columns, RawCloud, resolve_columns

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
    for layout in _candidate_layouts(wide - 3, scanner_order):
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


def _candidate_layouts(more: int, scanned: bool) -> Sequence[tuple[str, ...]]:
    layouts = COLUMN_LAYOUTS.get(more, ())
    return sorted(layouts, key=lambda layout: layout[:1] != ("measured",)) if scanned else layouts


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
    found = {
        kind: table[:, [at[name] for name in three]] if all(name in at for name in three) else None
        for kind, three in VECTOR_COLUMNS.items()
    }
    labels = table[:, at["label"]] if "label" in at else None
    return RawCloud(table[:, [at[name] for name in "xyz"]], found["colors"], found["normals"], labels)
