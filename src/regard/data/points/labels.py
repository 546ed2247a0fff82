"""Classes of labeled points: from classes.txt or classes.json (data/images/masks.py), from the names in the point cloud files,
or from the labels that occur.

Labels below 0 are unknown and ignored.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.images.masks import SEARCH_DEPTH, ClassMap, find_classes_above, infer_classes
from regard.data.points.cloud import PointCloud
from regard.data.synthetic.point_clouds import parse_cloud_recipe, recipe_classes
from regard.errors import DataError

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
