"""Classes of the points of point clouds: from a classes.txt or classes.json (data/images/masks.py), by
the files themselves, where they name them, or by the numbers that occur.

A number below 0 is no class: nothing is known there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.images.masks import ABOVE, Classes, classes_in, seen_classes
from regard.data.points.cloud import Cloud
from regard.data.synthetic.point_clouds import classes_made, cloud_recipe_of
from regard.errors import DataError

UNKNOWN = -1
"""Stands where nothing is to be learnt."""
MOST = 65535
"""the highest number that a class can have"""


def find_cloud_classes(entries: Sequence[str]) -> Classes | None:
    """As a file says it that lies beside the clouds or in a folder above them; None where there is none."""
    for entry in entries:
        if (found := classes_beside(entry)) is not None:
            return found
    return None


def classes_beside(source: str) -> Classes | None:
    """The same of one cloud or one entry; of what is made by a name its classes."""
    recipe = cloud_recipe_of(source)
    if recipe is not None:
        names = classes_made(recipe)
        return Classes(names, tuple(range(len(names))))
    path = os.path.abspath(os.path.expanduser(source))
    return classes_in(path if os.path.isdir(path) else os.path.dirname(path), ABOVE)


def classes_inside(cloud: Cloud) -> Classes | None:
    """As the file of a cloud names them; names that are bare numbers stand for those that it does not name."""
    if not cloud.classes:
        return None
    named = [(name, number) for number, name in enumerate(cloud.classes) if name != str(number)]
    return Classes(tuple(name for name, _ in named), tuple(number for _, number in named)) if named else None


def seen_cloud_classes(values: Iterable[int]) -> Classes:
    """Of labels that nothing is said about: each number from 0 on is a class that is called so."""
    return seen_classes(value for value in values if value >= 0)


def numbered(labels: NDArray[np.int64], classes: Classes, path: str = "") -> NDArray[np.int64]:
    """(N,) the places of the classes in the order of their names, `UNKNOWN` where there is none; `path` is named in errors."""
    table = np.full(MOST + 2, -2, dtype=np.int64)  # the last is asked for by -1
    table[[*classes.void, -1]] = UNKNOWN
    table[list(classes.values)] = np.arange(len(classes.values))
    found = table[np.where(labels < 0, -1, np.minimum(labels, MOST))]
    strange = np.unique(labels[(found == -2) | (labels > MOST)]).tolist()
    if strange:
        told = f"holds the labels {', '.join(map(str, strange[:5]))}{', …' if len(strange) > 5 else ''}, which no class has."
        raise DataError(told, path or None, advice="Name them in classes.txt beside the clouds, as void if need be.")
    return found


def counted(labels: NDArray[Any]) -> dict[int, int]:
    """How often each number occurs."""
    values, counts = np.unique(labels, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))
