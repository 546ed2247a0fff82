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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.file_discovery import IMAGE_SUFFIXES, find_subfolder, walk_files
from regard.data.images.cache import MEMORY_FRACTION, free_memory, local_world_size
from regard.data.images.labeled import reject_split_folders
from regard.data.images.masks import ClassMap, with_void_values
from regard.data.images.tables import COLUMN_ALIASES, EmbeddedFile, iterate_file_table
from regard.data.points.cloud import DEFAULT_POINTS, PointCloud
from regard.data.points.cloud_files import CLOUD_SUFFIXES, read_cloud
from regard.data.points.columns import COLUMN_NAMES, classes_from_cloud, find_classes_near, find_cloud_classes
from regard.data.reader import Reader, file_contents, file_key
from regard.data.synthetic.point_clouds import iter_recipe_clouds, parse_cloud_recipe
from regard.data.text.files import ErrorHandler, existing_file, raise_error
from regard.data.text.formats import ALL_TABLE_SUFFIXES, TABLE_SUFFIXES, file_format, read_header
from regard.data.text.tables import SkippedRow, first_value, iterate_all, make_samples
from regard.errors import DataError, RegardError, UnknownNameError

__all__ = [
    "CloudSample",
    "PointCloud",
    "is_cloud_data",
    "iterate_clouds",
    "iterate_labeled_clouds",
    "read_cloud",
    "read_clouds",
    "read_labeled_clouds",
    "read_unlabeled_clouds",
]

CLOUD_FOLDERS = ("clouds", "points", "scans", "meshes")
"""Names of a folder next to a table with the point cloud files."""
ADVICE = {
    "classify": "Expected one folder per class, or a table with the columns 'cloud' (path) and 'label'.",
    "segment": (
        "Expected a file or a folder of point clouds with one label per point, "
        "or a table with their paths in the column 'cloud'."
    ),
    "": "Expected a folder of point clouds, a point cloud file, or a table with paths in the column 'cloud'.",
}
COLUMN_CHOICES = ("cloud", *COLUMN_NAMES)
"""Names allowed in --columns for point clouds."""

OptionalColumns = Mapping[str, str] | None
CloudIterator = Iterator["CloudSample | SkippedRow"]


@dataclass(frozen=True, slots=True)
class CloudSample:
    """Point cloud file with its label and location."""

    source: str
    """path, or name of a generated point cloud; for an embedded file its name, or empty"""
    label: str = ""
    """class; empty if the points have labels, or for unlabeled data"""
    path: str = ""
    """table, folder or dataset name"""
    line: int = 0
    """row in the table, or number of the file in the folder"""
    content: bytes = field(default=b"", repr=False)
    """content of a file embedded in a table"""
    columns: tuple[tuple[str, str], ...] = ()
    """column names in the file, from --columns"""

    def __post_init__(self) -> None:
        # samples restored from JSON have lists instead of tuples
        object.__setattr__(self, "columns", tuple((name, column) for name, column in self.columns))

    @property
    def location(self) -> tuple[str, int] | None:
        """Location for errors, if the file is embedded in a table."""
        return (self.path, self.line) if self.content else None

    def read(self, seed: int = 0, num_points: int = DEFAULT_POINTS) -> PointCloud:
        """Read the point cloud; a mesh is sampled with `num_points` points."""
        columns = dict(self.columns) or None
        if self.content:
            return read_cloud(self.content, seed, num_points, columns, self.location, self.source)
        return read_cloud(self.source, seed, num_points, columns)


CLOUD_COLUMNS = COLUMN_ALIASES["cloud"][:5]
"""Names of table columns that are always point clouds; the other aliases may be files of any kind."""
CLOUD_ONLY_SUFFIXES = tuple(ending for ending in CLOUD_SUFFIXES if ending not in (".txt", ".csv", ".npy"))
"""Extensions of files that are always point clouds."""


def is_cloud_data(entry: str, columns: OptionalColumns = None) -> bool:
    """True if the data entry is a generated point cloud dataset, a point cloud file, or a folder or table of point clouds."""
    if parse_cloud_recipe(entry) is not None or "cloud" in (columns or {}):
        return True
    path = os.path.expanduser(entry)
    if os.path.isdir(path):
        # .txt, .csv and .npy files next to images are not point clouds, but texts, tables or depth maps
        first = next((file.path for file in walk_files(path, CLOUD_SUFFIXES) if file.matches), None)
        if first is None or first.lower().endswith(CLOUD_ONLY_SUFFIXES):
            return first is not None
        return not any(file.matches for file in walk_files(path, IMAGE_SUFFIXES))
    if not os.path.isfile(path):
        return False
    return (
        _has_column(path, CLOUD_COLUMNS)
        or _lists_clouds(path)
        or (file_format(path) in CLOUD_SUFFIXES and file_format(path) not in (".txt", ".csv"))
    )


def _read_entry(
    task: str, entry: str, columns: OptionalColumns = None, on_error: ErrorHandler = raise_error
) -> CloudIterator:
    """Yield the point clouds of one folder, table or name: with classes, with point labels, or without labels."""
    for name in columns or ():
        if name not in COLUMN_CHOICES:
            raise UnknownNameError(
                "column choice", name, COLUMN_CHOICES, "Select columns with --columns cloud=NAME label=NAME."
            )
    own = tuple(
        (name, column)
        for name, column in (columns or {}).items()
        if name in COLUMN_NAMES and (name, task) != _TABLE_LABEL
    )
    recipe = parse_cloud_recipe(entry)
    if recipe is not None:
        if task and recipe.task != task:
            advice = "Use the dataset 'solids'." if task == "classify" else "Use the dataset 'rooms'."
            raise DataError(
                f"this synthetic dataset is for task '{recipe.task}', not for '{task}'.", entry, advice=advice
            )
        return (CloudSample(source, label, entry, number + 1) for number, source, label in iter_recipe_clouds(recipe))
    if os.path.isdir(os.path.expanduser(entry)):
        return _read_class_folders(entry, own) if task == "classify" else _read_folder(entry, own)
    if task == "classify" or _is_table(entry, columns):
        return _read_table(entry, task, columns, own, on_error)
    return iter([CloudSample(str(existing_file(entry)), "", entry, 1, columns=own)])


def _iterate_entries(task: str, data: Sequence[str], columns: OptionalColumns = None) -> CloudIterator:
    """Yield the point clouds of all folders, tables and names, in input order."""
    return iterate_all(data, lambda entry: _read_entry(task, entry, columns), "clouds", ADVICE[task])


read_clouds, iterate_clouds = partial(_read_entry, "classify"), partial(_iterate_entries, "classify")
read_labeled_clouds, iterate_labeled_clouds = partial(_read_entry, "segment"), partial(_iterate_entries, "segment")
read_unlabeled_clouds = partial(_read_entry, "")

_TABLE_LABEL = ("label", "classify")
"""For task 'classify', `label` is a column of the table, otherwise a property of the points."""


# -- folders


def _subfolder_names(folder: str) -> list[str]:
    with os.scandir(folder) as items:
        return sorted(item.name for item in items if item.is_dir() and not item.name.startswith("."))


def _read_folder(entry: str, own: tuple[tuple[str, str], ...]) -> CloudIterator:
    folder = os.path.expanduser(entry)
    reject_split_folders(entry, _subfolder_names(folder))
    for number, file in enumerate(walk_files(folder, CLOUD_SUFFIXES, "point cloud"), start=1):
        yield (
            CloudSample(file.path, "", entry, number, columns=own)
            if file.matches
            else SkippedRow(entry, number, file.reason)
        )


def _read_class_folders(entry: str, own: tuple[tuple[str, str], ...]) -> CloudIterator:
    """Point clouds with the first subfolder as the class; deeper subfolders are ignored."""
    folder = os.path.expanduser(entry)
    reject_split_folders(entry, _subfolder_names(folder))
    has_classes, outside = False, 0
    for number, file in enumerate(walk_files(folder, CLOUD_SUFFIXES, "point cloud"), start=1):
        label = file.parts[0] if len(file.parts) > 1 else ""
        if file.matches and label:
            has_classes = True
            yield CloudSample(file.path, label, entry, number, columns=own)
            continue
        outside += file.matches
        yield SkippedRow(entry, number, f"not in a class folder: {file.name}" if file.matches else file.reason)
    if outside and not has_classes:
        advice = "The folder of a point cloud is the class. Create one folder per class, or pass a table with labels."
        raise DataError(
            f"no class folders found ({outside:,} point cloud{'s' if outside > 1 else ''} in the folder itself).",
            entry,
            advice=advice,
        )


# -- tables


def _is_table(entry: str, columns: OptionalColumns) -> bool:
    """True if the file is a table of point clouds, not a point cloud itself; the header decides for .txt and .csv."""
    kind = file_format(entry)
    if "cloud" in (columns or {}) or (kind in TABLE_SUFFIXES and kind != ".csv"):
        return True
    return kind in ALL_TABLE_SUFFIXES and _has_column(entry, COLUMN_ALIASES["cloud"])


def _has_column(entry: str, words: Sequence[str]) -> bool:
    """True if the table has a column with one of these names."""
    return any(name.lower() in words for name in _column_names(entry))


def _column_names(entry: str) -> Sequence[str]:
    if file_format(entry) not in ALL_TABLE_SUFFIXES:
        return ()
    try:
        return tuple(read_header(entry))
    except (RegardError, OSError):  # the reader reports the error later
        return ()


def _lists_clouds(entry: str) -> bool:
    """True if the first value of a column for files of any kind is a point cloud file."""
    unsure = [name for name in _column_names(entry) if name.lower() in COLUMN_ALIASES["cloud"][len(CLOUD_COLUMNS) :]]
    return any(file_format(first_value(entry, name)) in CLOUD_ONLY_SUFFIXES for name in unsure)


def _read_table(
    entry: str, task: str, columns: OptionalColumns, own: tuple[tuple[str, str], ...], on_error: ErrorHandler
) -> CloudIterator:
    target = "label" if task == "classify" else ""
    chosen = {name: column for name, column in (columns or {}).items() if name in ("cloud", target)} or None
    rows = iterate_file_table(entry, target, chosen, on_error, "cloud")
    return make_samples(entry, rows, lambda line, row: _make_sample(entry, line, row, target, own), on_error, "missing")


def _make_sample(
    entry: str, line: int, row: Mapping[str, Any], target: str, own: tuple[tuple[str, str], ...]
) -> CloudSample | SkippedRow | None:
    cloud, label = row["cloud"], row[target] if target else "-"
    if not cloud and (not label or not target):
        return None
    if not cloud or not label:
        return SkippedRow(entry, line, f"no {'label' if cloud else 'point cloud'} for: {str(cloud or label)[:60]}")
    if isinstance(label, EmbeddedFile):
        raise DataError("the label must be text.", entry, line, "Select the label column with --columns label=NAME.")
    source, content = _resolve_file(entry, line, cloud)
    return CloudSample(source, label if target else "", entry, line, content, own)


def _resolve_file(entry: str, line: int, value: str | EmbeddedFile) -> tuple[str, bytes]:
    """Path of an existing file, or name and content of an embedded file."""
    if isinstance(value, EmbeddedFile):
        return value.name, value.content
    if value.startswith(("http://", "https://", "s3://", "gs://")):
        raise DataError(f"'{value[:80]}' is a URL.", entry, line, "Download the file, and use the local path.")
    here = os.path.dirname(os.path.expanduser(entry))
    for folder in (here, find_subfolder(here or ".", CLOUD_FOLDERS)):
        if folder is not None and os.path.isfile(path := os.path.join(folder, os.path.expanduser(value))):
            return path, b""
    advice = "Paths are relative to the folder of the table, or to a folder 'clouds' next to the table."
    if line == 1:
        advice += " If the first row is a header, select the column with --columns cloud=NAME."
    raise DataError(f"point cloud '{value[:80]}' not found.", entry, line, advice)


class CloudCache:
    """`cache(i, read)` returns the point cloud of sample i and calls `read` only if the cache has no entry. Forked workers
    inherit the entries at the time of the fork; each worker may use `max_bytes / num_workers` for further entries."""

    def __init__(self, max_bytes: int | None = None, num_workers: int = 1) -> None:
        """`max_bytes` None uses a fraction of the free memory; `num_workers` is the number of forked workers."""
        self.max_bytes = int(MEMORY_FRACTION * free_memory() / local_world_size()) if max_bytes is None else max_bytes
        self.num_workers, self.owner_pid = max(num_workers, 1), os.getpid()
        self.used_bytes = 0
        self.clouds: dict[int, PointCloud] = {}

    def __call__(self, index: int, read: Callable[[], PointCloud]) -> PointCloud:
        found = self.clouds.get(index)
        if found is None:
            found = read()
            size = cloud_bytes(found)
            if self.used_bytes + size <= (
                self.max_bytes if os.getpid() == self.owner_pid else self.max_bytes // self.num_workers
            ):
                self.used_bytes += size
                self.clouds[index] = found
        return found


def cloud_bytes(cloud: PointCloud) -> int:
    return sum(
        part.nbytes for part in (cloud.coordinates, cloud.colors, cloud.normals, cloud.labels) if part is not None
    )


CRC_BYTES = 2**14
"""Number of leading bytes of a file in the split key."""


def _cloud_key(sample: CloudSample) -> str:
    """With a checksum of the first bytes, because names and sizes may be equal (points.ply in several folders)."""
    content = sample.content[:CRC_BYTES]
    if not content:
        with suppress(OSError), open(sample.source, "rb") as file:
            content = file.read(CRC_BYTES)
    return f"{file_key(sample)}\0{zlib.crc32(content)}"


def cloud_classes(source: str) -> ClassMap | None:
    """Classes from the class file of a point cloud or from its synthetic recipe. `VOID_VALUES` are void."""
    if not source:
        return None
    return _folder_classes(
        source if parse_cloud_recipe(source) else os.path.dirname(os.path.abspath(os.path.expanduser(source)))
    )


@lru_cache(maxsize=4096)
def _folder_classes(folder: str) -> ClassMap | None:
    """Classes of a folder, cached because many point clouds share a folder."""
    found = find_classes_near(folder)
    return None if found is None else with_void_values(found)


def require_labels(cloud: PointCloud, source: str) -> NDArray[Any]:
    """Label of each point; raise an error if the points have no labels."""
    if cloud.labels is None:
        raise DataError(
            "the points have no labels.",
            source or None,
            advice="In a PLY file, labels are the property 'label'; for a table of points, pass --columns label=NAME.",
        )
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
    samples=iterate_clouds,
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
    samples=iterate_labeled_clouds,
    labels=_point_classes,
    keeps_label_order=True,  # written labels have the same class ids as the training labels
    label_source=lambda data: repr(find_cloud_classes(data)),
)
"""Point clouds with a label per point."""
