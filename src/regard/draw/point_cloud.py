"""Clouds of points in the colours of their classes: as one page that needs nothing else, on which they turn under the mouse,
and as still pictures from two sides."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from regard.draw.class_colors import BLANK, Picture, class_colours
from regard.draw.figure import check_ending
from regard.draw.page import brief, part, write_page
from regard.draw.panels import Legend, draw_panels
from regard.types import IGNORE

Floats = npt.NDArray[np.floating]
Whole = npt.NDArray[np.integer]

MOST: Final = 200_000
"""Points of a page; of more so many are chosen by chance."""
STILL: Final = 60_000
"""Points of a still picture."""
SIDE: Final = 560
"""Pixels of a still picture."""
STEPS: Final = 2**16 - 1
HEIGHTS: Final = ("#414487", "#2a788e", "#22a884", "#7ad151", "#fde725")
"""From low to high: colours of matplotlib's viridis without its darkest."""
CERTAIN: Final = ("#c8501e", "#e3a85a", "#9db4c4", "#2b6fae")
FAULTS: Final = ("#a9b4c2", "#d3302b")
"""What is right, and what is wrong."""
NONE: Final = 2**16 - 1
"""Stands for no class on a page."""
UPRIGHT: Final = {"x": (1, 2, 0), "y": (2, 0, 1), "z": (0, 1, 2)}
"""The axes in the order in which the last is up; cyclic, so that nothing is mirrored."""


@dataclass(frozen=True)
class Classed:
    """A cloud and what its points were taken for."""

    places: Floats
    """(N, 3)"""
    said: Whole
    """(N,) numbers of classes"""
    labels: tuple[str, ...]
    sure: Floats | None = None
    """(N,) the probability of what was said"""
    right: Whole | None = None
    """(N,) what it is, `IGNORE` where nobody knows"""
    colours: npt.NDArray[np.uint8] | None = None
    """(N, 3)"""
    name: str = ""
    up: str = "z"
    origin: tuple[float, ...] = (0.0, 0.0, 0.0)
    """what was taken from the places, which are told with it"""

    def some(self, most: int) -> Classed:
        """At most so many of its points, the same ones each time."""
        if len(self.places) <= most:
            return self
        at = np.sort(np.random.default_rng(0).permutation(len(self.places))[:most])
        beside: list[Any] = [self.sure, self.right, self.colours]
        sure, right, colours = (None if one is None else one[at] for one in beside)
        return replace(self, places=self.places[at], said=self.said[at], sure=sure, right=right, colours=colours)

    @property
    def shares(self) -> npt.NDArray[np.float64]:
        """Of each class in what was said."""
        return np.bincount(self.said, minlength=len(self.labels)) / max(len(self.said), 1)

    @property
    def truths(self) -> npt.NDArray[np.float64] | None:
        """Of each class in the truth, among the points of which it is known."""
        if self.right is None:
            return None
        known = self.right[self.right >= 0]
        return np.bincount(known, minlength=len(self.labels)) / max(len(known), 1)


# -- pages


def packed_places(places: Floats, up: str = "z", origin: Sequence[float] = (0.0, 0.0, 0.0)) -> dict[str, object]:
    """Places as a page holds them: whole numbers of 16 bits, counted in steps from the lowest of each axis."""
    if not len(places):
        places = np.zeros((1, 3))
    low, high = places.min(0).astype(np.float64), places.max(0).astype(np.float64)
    longest = float((high - low).max()) or 1.0
    whole = np.rint((places - low) / longest * STEPS).astype("<u2")
    sides = [brief(float(side)) for side in (high - low) / longest]
    return {
        "places": encoded(whole),
        "low": [float(value) for value in low + np.asarray(origin, dtype=np.float64)],
        "step": longest / STEPS,
        "sides": sides,
        "spacing": brief(2 * spacing(places, longest) / longest / (math.hypot(*sides) or 1.0)),
        "up": up,
        "tilt": tilted(high - low, up),
    }


def tilted(sides: Floats, up: str) -> float:
    """How far from above a cloud is looked at: a room, which is wider than high, more than a thing."""
    across, along, high = (float(sides[axis]) for axis in UPRIGHT[up])
    return 0.85 if high < 0.7 * min(across, along) else 0.5


def spacing(places: Floats, longest: float) -> float:
    """About how far points lie from their neighbours, as if they were spread over a surface: by the cells of a grid that they
    cover, which is so coarse that a cell has a few of them."""
    for cells in (64, 32, 16, 8, 4, 2):
        at = np.floor((places - places.min(0)) / longest * (cells - 1e-6)).astype(np.int64)
        covered = len(np.unique(at @ np.array([cells**2, cells, 1])))
        if len(places) >= 3 * covered:
            break
    return longest * max(math.sqrt(covered / len(places)) / cells, 1e-4)


def encoded(values: npt.NDArray[Any]) -> str:
    """The bytes of an array as signs that a page may hold."""
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def hexed(colour: Sequence[int]) -> str:
    return "#" + "".join(f"{value:02x}" for value in colour)


def cloud_page(
    cloud: Classed, path: Path, title: str, note: str = "", facts: Mapping[str, str] | None = None,
    overlap: Sequence[float | None] = (),
) -> Path:  # fmt: skip
    """The cloud, turning, in the colours of its classes. `overlap`: of each class with the truth, where that is known."""
    total, shares, truths, cloud = len(cloud.places), cloud.shares, cloud.truths, cloud.some(MOST)
    there = shares if truths is None else shares + truths
    order = [int(n) for n in np.argsort(-shares, kind="stable") if there[n] > 0]  # also what was missed wholly
    known = cloud.right is not None
    wrong = int(((cloud.right != cloud.said) & (cloud.right != IGNORE)).sum()) if cloud.right is not None else 0
    ways = ["class", *["truth", "wrong"] * known, *["colours"] * (cloud.colours is not None), "height"]
    said: dict[str, object] = {
        **packed_places(cloud.places, cloud.up, cloud.origin),
        "labels": cloud.labels,
        "palette": [hexed(colour) for colour in class_colours(len(cloud.labels))],
        "said": encoded(cloud.said.astype("<u2")),
        "right": None if cloud.right is None else encoded(np.where(cloud.right < 0, NONE, cloud.right).astype("<u2")),
        "sure": None if cloud.sure is None else encoded(np.rint(255 * cloud.sure).clip(0, 255).astype(np.uint8)),
        "colours": None if cloud.colours is None else encoded(cloud.colours),
        "ways": [*ways, *["certainty"] * (cloud.sure is not None)],
        "shares": [[n, brief(float(shares[n]))] for n in order],
        "truths": None if truths is None else [brief(float(share)) for share in truths],
        "ramps": {"height": HEIGHTS, "certainty": CERTAIN},
        "blank": hexed(BLANK),
        "faults": FAULTS,
        "mistakes": f"{wrong:,} of {many(len(cloud.places), 'point')} shown",
        "overlap": [None if value is None else brief(value) for value in overlap] or None,
    }
    told = {"points": counted(total, len(cloud.places)), **(facts or {})}
    return turning_page(path, title, note, told, said, ("classes.js",))


def many(count: int, what: str) -> str:
    """So many of them, in words: "1 point", "2,048 points"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def counted(total: int, shown: int) -> str:
    return f"{total:,}" if total == shown else f"{total:,}, of which {shown:,} are shown"


def turning_page(
    path: Path, title: str, note: str, facts: Mapping[str, str], data: Mapping[str, object], scripts: Sequence[str]
) -> Path:
    """A page with a cloud that turns; the scripts say what is seen of it."""
    check_ending(path, (".html", ".htm"))
    parts = {
        "note": html.escape(note),
        "style": part("page.css") + part("cloud.css"),
        "body": part("cloud.html"),
        "script": part("cloud.js") + "".join(map(part, scripts)),
    }
    return write_page(path, title, facts, data, parts)


# -- still pictures


def still(
    places: Floats, colours: Picture, up: str = "z", tilt: float | None = None, side: int = SIDE, turn: float = -0.9,
    larger: Floats | None = None,
) -> Picture:  # fmt: skip
    """(side, side, 3) bytes: points (N, 3) in their colours (N, 3) as discs, the nearer before the farther. What stands before
    something else throws a dark edge on it. `larger` (N,): by how much, of single points."""
    at = places[:, UPRIGHT[up]].astype(np.float64)
    low, high = at.min(0), at.max(0)
    diagonal = float(np.linalg.norm(high - low)) or 1.0
    at = 2 * (at - (low + high) / 2) / diagonal
    tilt = tilted(places.max(0) - places.min(0), up) if tilt is None else tilt
    flat, far = math.cos(tilt), 3.3
    ahead = np.array([-flat * math.cos(turn), -flat * math.sin(turn), -math.sin(tilt)])
    across = np.array([-math.sin(turn), math.cos(turn), 0.0])
    deep = at @ ahead + far
    seen = np.stack([at @ across, at @ np.cross(ahead, across)], 1) / deep[:, None]
    first, last = seen.min(0), seen.max(0)
    scale = 0.92 * side / max(float((last - first).max()), 1e-3)  # as large as fits
    x, y = (side / 2 + scale * (seen - (first + last) / 2)).T
    apart = 2 * spacing(places, float((high - low).max()) or 1.0) / diagonal
    radius = np.clip(0.75 * apart * scale / deep * (1.0 if larger is None else larger), 0.7, side / 40)
    before = deep if larger is None else deep - 0.1 * (larger > 1)  # what is meant is not covered by its neighbours
    return _shaded(*_splat(x, y, before, radius, colours, side), side)


def _splat(
    x: Floats, y: Floats, deep: Floats, radius: Floats, colours: Picture, side: int
) -> tuple[Picture, Floats]:  # fmt: skip
    """The colours that are seen, and how far they are: points are laid from the farthest to the nearest."""
    reach = math.ceil(float(radius.max(initial=0.0)))
    rows, columns, owners = [], [], []
    for down in range(-reach, reach + 1):
        for right in range(-reach, reach + 1):
            covers = np.flatnonzero(radius**2 >= down**2 + right**2)
            rows.append(np.floor(y[covers]).astype(np.int64) + down)
            columns.append(np.floor(x[covers]).astype(np.int64) + right)
            owners.append(covers)
    row, column, owner = (np.concatenate(parts) for parts in (rows, columns, owners))
    inside = (row >= 0) & (row < side) & (column >= 0) & (column < side)
    row, column, owner = row[inside], column[inside], owner[inside]
    order = np.argsort(-deep[owner], kind="stable")  # of those that are laid on one pixel the last stays
    seen, far = np.full((side, side, 3), 255, np.uint8), np.full((side, side), np.inf)
    seen[row[order], column[order]] = colours[owner[order]]
    far[row[order], column[order]] = deep[owner[order]]
    return seen, far


def _shaded(seen: Picture, far: Floats, side: int) -> Picture:
    there = np.isfinite(far)
    logs = np.where(there, np.log2(np.where(there, far, 1.0)), np.inf)
    wide = np.pad(logs, 1, constant_values=np.inf)
    dark = np.zeros_like(far)
    for down in (0, 1, 2):
        for right in (0, 1, 2):
            beside = wide[down : down + side, right : right + side]
            with np.errstate(invalid="ignore"):
                dark += np.where(there & np.isfinite(beside), np.maximum(logs - beside, 0), 0)
    light = np.where(there, 0.35 + 0.65 * np.exp(-9 * dark), 1.0)
    return np.rint(seen * light[..., None]).astype(np.uint8)


def draw_clouds(clouds: Sequence[Classed], path: Path, title: str = "", about: str = "") -> Path:
    """Each cloud from the side and from above in the colours of what was said, and where it is known the truth; below them the
    names of the classes that are in either."""
    rows, names = [], []
    for number, whole in enumerate(clouds):
        cloud = whole.some(STILL)
        palette = np.array([*class_colours(len(cloud.labels)), BLANK], dtype=np.uint8)
        panels = {
            "answer": still(cloud.places, palette[cloud.said], cloud.up),
            "from above": still(cloud.places, palette[cloud.said], cloud.up, tilt=1.35),
        }
        if cloud.right is not None:
            panels["truth"] = still(cloud.places, palette[np.where(cloud.right < 0, -1, cloud.right)], cloud.up)
        elif cloud.colours is not None:
            panels["its own colours"] = still(cloud.places, cloud.colours, cloud.up)
        rows.append(list(panels.values()))
        first = f"{cloud.name}: answer" if cloud.name else "answer"
        names.append([first, *([*panels][1:] if not number else [""] * (len(panels) - 1))])
    truths = [cloud.truths for cloud in clouds if cloud.truths is not None]
    shares = np.mean([*(cloud.shares for cloud in clouds), *truths], axis=0)
    of = "points of answer and truth together" if truths else "points"
    return draw_panels(rows, names, path, title, about, Legend(clouds[0].labels, shares, of))
