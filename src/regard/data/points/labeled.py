"""Datasets of point clouds: with a class per point cloud, with labels per point, or without labels.

| data               | classification                                    | segmentation                                      |
|--------------------|---------------------------------------------------|---------------------------------------------------|
| a folder           | one subfolder per class                           | point clouds with point labels, at any depth      |
| a point cloud file | (not supported)                                   | with point labels                                 |
| a table            | CSV, TSV, JSON Lines, Parquet: cloud and label    | column cloud                                      |
| a name             | `solids` (generated)                              | `rooms` (generated)                               |

A point property named `label`, `class` or `classification` is the label (all names: `COLUMN_ALIASES` in data/points/cloud.py);
`--columns label=NAME` selects another. A classes.txt next to the files names the classes. Paths in a table are relative to the
table, or to a folder `clouds` next to it. Files are not decoded here. Hidden files and other file types become `SkippedRow`.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data import file_samples
from regard.data.file_discovery import IMAGE_SUFFIXES, walk_files
from regard.data.images.image_io import cache_bytes
from regard.data.images.labeled import ClassMap, file_classes, find_classes_above, with_void_values
from regard.data.memory_tables import table_folders
from regard.data.points.cloud import COLUMN_NAMES, DEFAULT_POINTS, PointCloud
from regard.data.points.cloud_files import CLOUD_SUFFIXES, read_cloud
from regard.data.reader import Reader, file_contents, file_key
from regard.data.synthetic.point_clouds import parse_cloud_recipe
from regard.data.text.files import Columns, existing_file
from regard.data.text.formats import ALL_TABLE_SUFFIXES, TABLE_SUFFIXES, file_format, read_header
from regard.data.text.tables import Samples, first_value, iterate_all
from regard.errors import DataError, RegardError, UnknownNameError

CLOUD = file_samples.FileKind("point cloud", "cloud", CLOUD_SUFFIXES, ("clouds", "points", "scans", "meshes"))
ADVICE = {
    "classify": "Expected one folder per class, or a table with the columns 'cloud' (path) and 'label'.",
    "segment": (
        "Expected a file or a folder of point clouds with one label per point, "
        "or a table with their paths in the column 'cloud'."
    ),
    "": "Expected a folder of point clouds, a point cloud file, or a table with paths in the column 'cloud'.",
}
COLUMN_CHOICES = ("cloud", *COLUMN_NAMES)  # Names allowed in --columns for point clouds.


@dataclass(frozen=True, slots=True)
class CloudSample(file_samples.FileSample):
    """A point cloud file with its label."""

    columns: tuple[tuple[str, str], ...] = ()  # column names in the file, from --columns

    def read(self, num_points: int = DEFAULT_POINTS) -> PointCloud:
        """Read the point cloud; a mesh is sampled with `num_points` points."""
        source, columns = self.content or self.source, dict(self.columns)
        return read_cloud(source, num_points=num_points, columns=columns, location=self.location, name=self.source)


CLOUD_COLUMNS = file_samples.COLUMN_ALIASES["cloud"][:5]
"""Names of table columns that are always point clouds; the other aliases may be files of any kind."""
CLOUD_ONLY_SUFFIXES = tuple(ending for ending in CLOUD_SUFFIXES if ending not in (".txt", ".csv", ".npy"))


def is_cloud_data(entry: str, columns: Columns = None) -> bool:
    """True if the data entry is a generated point cloud dataset, a point cloud file, or a folder or table of point clouds."""
    if parse_cloud_recipe(entry) is not None or "cloud" in (columns or {}):
        return True
    path = os.path.expanduser(entry)
    if os.path.isdir(path):
        # .txt, .csv and .npy files next to images are not point clouds, but texts, tables or depth maps
        first = next((file.path for file in walk_files(path, CLOUD_SUFFIXES) if not file.reason), None)
        if first is None or first.lower().endswith(CLOUD_ONLY_SUFFIXES):
            return first is not None
        return all(file.reason for file in walk_files(path, IMAGE_SUFFIXES))
    if not os.path.isfile(path):
        return False
    names, kind = _column_names(path), file_format(path)
    # a column for files of any kind decides by its first value
    unsure = [name for name in names if name.lower() in file_samples.COLUMN_ALIASES["cloud"][len(CLOUD_COLUMNS) :]]
    return (
        any(name.lower() in CLOUD_COLUMNS for name in names)
        or any(file_format(first_value(path, name)) in CLOUD_ONLY_SUFFIXES for name in unsure)
        or (kind in CLOUD_SUFFIXES and kind not in (".txt", ".csv"))
    )


def _column_names(entry: str) -> Sequence[str]:
    """Column names of a table; empty for other files."""
    if file_format(entry) not in ALL_TABLE_SUFFIXES:
        return ()
    try:
        return tuple(read_header(entry))
    except (RegardError, OSError):  # the reader reports the error later
        return ()


def _read_entry(task: str, entry: str, columns: Columns = None) -> Samples[CloudSample]:
    """Yield the point clouds of one folder, table or name: with classes, with point labels, or without labels."""
    columns = columns or {}
    for name in columns:
        if name not in COLUMN_CHOICES:
            advice = "Select columns with --columns cloud=NAME label=NAME."
            raise UnknownNameError("column choice", name, COLUMN_CHOICES, advice)
    # for task 'classify', `label` is a column of the table, otherwise a property of the points
    target = "label" if task == "classify" else ""
    own = tuple((name, column) for name, column in columns.items() if name in COLUMN_NAMES and name != target)
    recipe = parse_cloud_recipe(entry)
    if recipe is not None:
        if task and recipe.task != task:
            advice = "Use the dataset 'solids'." if task == "classify" else "Use the dataset 'rooms'."
            problem = f"this synthetic dataset is for task '{recipe.task}', not for '{task}'."
            raise DataError(problem, entry, advice=advice)
        return (CloudSample(source, label, entry, number + 1) for number, source, label in recipe.clouds())
    if os.path.isdir(os.path.expanduser(entry)):
        file_samples.reject_split_folders(entry, file_samples.subfolder_names(entry))
        return file_samples.read_folder(CLOUD, entry, task == "classify", partial(CloudSample, path=entry, columns=own))
    # the header of .txt and .csv decides between a table of point clouds and a point cloud
    kind = file_format(entry)
    if (
        target
        or "cloud" in columns
        or (kind in TABLE_SUFFIXES and kind != ".csv")
        or any(name.lower() in file_samples.COLUMN_ALIASES["cloud"] for name in _column_names(entry))
    ):
        chosen = {name: column for name, column in columns.items() if name in ("cloud", target)} or None
        return file_samples.read_table(CLOUD, entry, target, chosen, partial(CloudSample, path=entry, columns=own))
    return iter([CloudSample(str(existing_file(entry)), "", entry, 1, columns=own)])


read_clouds, read_labeled_clouds = partial(_read_entry, "classify"), partial(_read_entry, "segment")
read_unlabeled_clouds = partial(_read_entry, "")


# -- classes of labeled points; labels below 0 are unknown and ignored

IGNORE_LABEL = -1  # Class index of points without a label, ignored by the loss.


def find_cloud_classes(entries: Sequence[str]) -> ClassMap | None:
    """Classes from a file next to the point clouds or in a parent folder, or of a generated dataset; None if there are none."""
    for entry in entries:
        path = os.path.abspath(os.path.expanduser(entry))
        folder = path if os.path.isdir(path) else table_folders(path)[-1]
        if (classes := _recipe_classes(entry) or find_classes_above(folder)) is not None:
            return classes
    return None


def _recipe_classes(source: str) -> ClassMap | None:
    recipe = parse_cloud_recipe(source)
    return None if recipe is None else ClassMap(recipe.classes, tuple(range(len(recipe.classes))))


def classes_from_cloud(cloud: PointCloud) -> ClassMap | None:
    """Classes named in the file of a point cloud; a name equal to the class id marks an id without a name."""
    named = [(name, number) for number, name in enumerate(cloud.classes) if name != str(number)]
    return ClassMap(tuple(name for name, _ in named), tuple(number for _, number in named)) if named else None


# -- cache


class CloudCache:
    """`cache(i, read)` returns the point cloud of sample i and calls `read` only if the cache has no entry. Forked workers
    inherit the entries at the time of the fork; each worker may use `max_bytes / num_workers` for further entries."""

    def __init__(self, max_bytes: int | None = None, num_workers: int = 1) -> None:
        """`max_bytes` None uses a fraction of the free memory; `num_workers` is the number of forked workers."""
        self.max_bytes = cache_bytes() if max_bytes is None else max_bytes
        self.num_workers, self.owner_pid = max(num_workers, 1), os.getpid()
        self.used_bytes = 0
        self.clouds: dict[int, PointCloud] = {}

    def __call__(self, index: int, read: Callable[[], PointCloud]) -> PointCloud:
        cloud = self.clouds.get(index)
        if cloud is None:
            cloud = read()
            size = cloud_bytes(cloud)
            if self.used_bytes + size <= (
                self.max_bytes if os.getpid() == self.owner_pid else self.max_bytes // self.num_workers
            ):
                self.used_bytes += size
                self.clouds[index] = cloud
        return cloud


def cloud_bytes(cloud: PointCloud) -> int:
    parts = (cloud.coordinates, cloud.colors, cloud.normals, cloud.labels)
    return sum(part.nbytes for part in parts if part is not None)


CRC_BYTES = 2**14  # Number of leading bytes of a file in the split key.


def _cloud_key(sample: CloudSample) -> str:
    """With a checksum of the first bytes, because names and sizes may be equal (points.ply in several folders)."""
    content = sample.content[:CRC_BYTES]
    if not content:
        with suppress(OSError), open(sample.source, "rb") as file:
            content = file.read(CRC_BYTES)
    return f"{file_key(sample)}\0{zlib.crc32(content)}"


def cloud_classes(source: str) -> ClassMap | None:
    """Classes from the class file of a point cloud or from its synthetic recipe. `VOID_VALUES` are void."""
    classes = _recipe_classes(source)
    return file_classes(source) if classes is None else with_void_values(classes)


def require_labels(cloud: PointCloud, source: str) -> NDArray[Any]:
    """Label of each point; raise an error if the points have no labels."""
    if cloud.labels is None:
        advice = "In a PLY file, labels are the property 'label'; for a table of points, pass --columns label=NAME."
        raise DataError("the points have no labels.", source or None, advice=advice)
    return cloud.labels


def _point_classes(sample: CloudSample) -> Sequence[str]:
    """Class names from the class file or from the point cloud, or the label values of the points."""
    known = cloud_classes(sample.source)
    if known is not None:
        return known.names
    cloud = sample.read()
    inside = classes_from_cloud(cloud)
    return inside.names if inside else [str(value) for value in np.unique(require_labels(cloud, sample.source))]


CLOUDS = Reader(
    unit="point clouds",
    columns=("cloud", "label"),
    sample_type=CloudSample,
    samples=partial(iterate_all, read_clouds, "clouds", ADVICE["classify"]),
    inputs=read_unlabeled_clouds,
    split_key=_cloud_key,
    contents=file_contents,
    labels=lambda sample: (sample.label,),
    suffixes=CLOUD_SUFFIXES,
    recipe=parse_cloud_recipe,
)
LABELED_CLOUDS = replace(
    CLOUDS,
    columns=("cloud",),
    samples=partial(iterate_all, read_labeled_clouds, "clouds", ADVICE["segment"]),
    labels=_point_classes,
    keeps_label_order=True,  # written labels have the same class ids as the training labels
    label_source=lambda data: repr(find_cloud_classes(data)),
)
"""Point clouds with a label per point."""
