"""Point clouds with what belongs to each: a class, labels of its points, or nothing.

| what is named      | to tell clouds apart                              | to tell points apart                              |
|--------------------|---------------------------------------------------|---------------------------------------------------|
| a folder           | of folders, each a class, whatever lies in it      | of clouds whose points have labels, however deep  |
| a file of a cloud  |                                                   | whose points have labels                          |
| a table            | CSV, TSV, JSON lines, Parquet: cloud and label     | the column cloud                                  |
| a name             | `solids`, which the project makes                  | `rooms`                                           |

What is called `label`, `class`, `classification` or `scalar_Label` among the properties of points is their label
(data/points/cloud.py
lists the words); `--columns label=NAME` says it otherwise. A classes.txt beside the files names the classes. Paths in a table
begin where it lies, or in a folder `clouds` there. Nothing is decoded here. What is hidden, or no cloud by its name, is left
out as `Empty`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from regard.data.file_discovery import find_subfolder, walk_files
from regard.data.images.labeled import reject_split_folders
from regard.data.images.tables import COLUMN_ALIASES, EmbeddedFile, iterate_file_table
from regard.data.points.cloud import PointCloud
from regard.data.points.cloud_files import CLOUD_SUFFIXES, read_cloud
from regard.data.points.columns import COLUMN_NAMES
from regard.data.points.mesh_sampling import DEFAULT_POINTS
from regard.data.samples import drop_trailing_blanks, iterate_all
from regard.data.synthetic.point_clouds import iter_recipe_clouds, parse_cloud_recipe
from regard.data.text.files import ErrorHandler, existing_file, raise_error
from regard.data.text.tables import (
    JSON_SUFFIXES,
    PARQUET_SUFFIXES,
    TAB_SUFFIXES,
    SkippedRow,
    file_format,
    first_value,
    read_header,
)
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
"""What a folder is called that holds the clouds of a table beside it."""
ADVICE = {
    "classify": "Expected one folder per class, or a table with the columns cloud and label.",
    "segment": "Expected point clouds with a label per point (a folder or a file), or a table with the column cloud.",
    "": "Expected a folder of point clouds, a point cloud file, or a table with the column cloud.",
}
COLUMN_CHOICES = ("cloud", *COLUMN_NAMES)
"""What --columns may say of clouds."""

OptionalColumns = Mapping[str, str] | None
CloudIterator = Iterator["CloudSample | SkippedRow"]


@dataclass(frozen=True, slots=True)
class CloudSample:
    """A file of a cloud, what belongs to it, and where it was found."""

    source: str
    """its path, or the name that it is made by; where it lies in a table, its name, or nothing"""
    label: str = ""
    """its class; nothing where its points have classes, or where it is asked for"""
    path: str = ""
    """the table, the folder, or the name of a set"""
    line: int = 0
    """the row, or the place among the files of the folder"""
    content: bytes = field(default=b"", repr=False)
    """the bytes of the file, where it lies in a table"""
    columns: tuple[tuple[str, str], ...] = ()
    """what is called how in the file, where a person said it"""

    def __post_init__(self) -> None:
        # what was kept as JSON comes back as lists
        object.__setattr__(self, "columns", tuple((name, said) for name, said in self.columns))

    @property
    def location(self) -> tuple[str, int] | None:
        """What errors name, where the cloud is no file of its own."""
        return (self.path, self.line) if self.content else None

    def read(self, seed: int = 0, num_points: int = DEFAULT_POINTS) -> PointCloud:
        """What it holds; of a mesh so many points are drawn."""
        said = dict(self.columns) or None
        if self.content:
            return read_cloud(self.content, seed, num_points, said, self.location, self.source)
        return read_cloud(self.source, seed, num_points, said)


def iterate_clouds(data: Sequence[str], columns: OptionalColumns = None) -> CloudIterator:
    """Clouds and their classes, of every folder, table or name, in the order given."""
    return iterate_all(data, lambda entry: read_clouds(entry, columns), "clouds", ADVICE["classify"])


def iterate_labeled_clouds(data: Sequence[str], columns: OptionalColumns = None) -> CloudIterator:
    """Clouds whose points have labels."""
    return iterate_all(data, lambda entry: read_labeled_clouds(entry, columns), "clouds", ADVICE["segment"])


def read_clouds(entry: str, columns: OptionalColumns = None, on_error: ErrorHandler = raise_error) -> CloudIterator:
    """Those of one folder, table or name, with their classes."""
    return _read_entry(entry, "classify", columns, on_error)


def read_labeled_clouds(
    entry: str, columns: OptionalColumns = None, on_error: ErrorHandler = raise_error
) -> CloudIterator:
    return _read_entry(entry, "segment", columns, on_error)


def read_unlabeled_clouds(
    entry: str, columns: OptionalColumns = None, on_error: ErrorHandler = raise_error
) -> CloudIterator:
    """Clouds alone, of which something is asked, whatever belongs to them."""
    return _read_entry(entry, "", columns, on_error)


CLOUD_COLUMNS = COLUMN_ALIASES["cloud"][:5]
"""Columns of a table that are taken for clouds; the other words may mean files of any kind."""
CLOUD_ONLY_SUFFIXES = tuple(ending for ending in CLOUD_SUFFIXES if ending not in (".txt", ".csv", ".npy"))
"""Of files that are clouds and nothing else."""


def is_cloud_data(entry: str, columns: OptionalColumns = None) -> bool:
    """Whether what is named as data is of clouds: a set that is made, a file of one, a folder with one, a table of them."""
    if parse_cloud_recipe(entry) is not None or "cloud" in (columns or {}):
        return True
    path = os.path.expanduser(entry)
    if os.path.isdir(path):
        # the first file that is not hidden decides: of texts and tables there are others than clouds
        found = (one for one in walk_files(path, CLOUD_SUFFIXES) if one.matches)
        first = next(found, None)
        return first is not None and (first.path.lower().endswith(CLOUD_ONLY_SUFFIXES) or not _has_images(path))
    if not os.path.isfile(path):
        return False
    return (
        _has_column(path, CLOUD_COLUMNS)
        or _lists_clouds(path)
        or (file_format(path) in CLOUD_SUFFIXES and file_format(path) not in (".txt", ".csv"))
    )


def _has_images(folder: str) -> bool:
    """Arrays may be maps of depth beside pictures."""
    from regard.data.file_discovery import IMAGE_SUFFIXES

    return any(one.matches for one in walk_files(folder, IMAGE_SUFFIXES))


def _read_entry(entry: str, task: str, columns: OptionalColumns, complain: ErrorHandler) -> CloudIterator:
    for name in columns or ():
        if name not in COLUMN_CHOICES:
            raise UnknownNameError(
                "column choice", name, COLUMN_CHOICES, "Select columns with --columns cloud=NAME label=NAME."
            )
    own = tuple(
        (name, said) for name, said in (columns or {}).items() if name in COLUMN_NAMES and (name, task) != _TABLE_LABEL
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
        return _read_table(entry, task, columns, own, complain)
    return iter([CloudSample(str(existing_file(entry)), "", entry, 1, columns=own)])


_TABLE_LABEL = ("label", "classify")
"""There a column of the table is meant, else one of the points."""


# -- folders


def _subfolder_names(folder: str) -> list[str]:
    with os.scandir(folder) as items:
        return sorted(item.name for item in items if item.is_dir() and not item.name.startswith("."))


def _read_folder(entry: str, own: tuple[tuple[str, str], ...]) -> CloudIterator:
    folder = os.path.expanduser(entry)
    reject_split_folders(entry, _subfolder_names(folder))
    for number, found in enumerate(walk_files(folder, CLOUD_SUFFIXES, "point cloud"), start=1):
        yield (
            CloudSample(found.path, "", entry, number, columns=own)
            if found.matches
            else SkippedRow(entry, number, found.reason)
        )


def _read_class_folders(entry: str, own: tuple[tuple[str, str], ...]) -> CloudIterator:
    """A class is a folder inside the one that is named; those inside it are only order."""
    folder = os.path.expanduser(entry)
    reject_split_folders(entry, _subfolder_names(folder))
    seen, outside = False, 0
    for number, found in enumerate(walk_files(folder, CLOUD_SUFFIXES, "point cloud"), start=1):
        label = found.parts[0] if len(found.parts) > 1 else ""
        if found.matches and label:
            seen = True
            yield CloudSample(found.path, label, entry, number, columns=own)
            continue
        outside += found.matches
        yield SkippedRow(entry, number, f"not in a class folder: {found.name}" if found.matches else found.reason)
    if outside and not seen:
        advice = "The folder of a point cloud is the class. Create one folder per class, or pass a table with labels."
        raise DataError(
            f"no class folders found ({outside:,} point cloud{'s' if outside > 1 else ''} in the folder itself).",
            entry,
            advice=advice,
        )


# -- tables


def _is_table(entry: str, columns: OptionalColumns) -> bool:
    """Whether a file names clouds, and is none itself; of texts and commas the heading decides."""
    kind = file_format(entry)
    if "cloud" in (columns or {}) or kind in (*JSON_SUFFIXES, *PARQUET_SUFFIXES, ".tsv", ".tab"):
        return True
    return kind in (".csv", *TAB_SUFFIXES) and _has_column(entry, COLUMN_ALIASES["cloud"])


def _has_column(entry: str, words: Sequence[str]) -> bool:
    """Whether it has columns, one of which is called by one of these."""
    return any(name.lower() in words for name in _column_names(entry))


def _column_names(entry: str) -> Sequence[str]:
    if file_format(entry) not in (".csv", *TAB_SUFFIXES, *JSON_SUFFIXES, *PARQUET_SUFFIXES):
        return ()
    try:
        return tuple(read_header(entry))
    except (RegardError, OSError):  # what is wrong with it is said where it is read
        return ()


def _lists_clouds(entry: str) -> bool:
    """Whether a column that may mean files of any kind begins with one of a cloud."""
    unsure = [name for name in _column_names(entry) if name.lower() in COLUMN_ALIASES["cloud"][len(CLOUD_COLUMNS) :]]
    return any(file_format(first_value(entry, name)) in CLOUD_ONLY_SUFFIXES for name in unsure)


def _read_table(
    entry: str, task: str, columns: OptionalColumns, own: tuple[tuple[str, str], ...], complain: ErrorHandler
) -> CloudIterator:  # fmt: skip
    beside = "label" if task == "classify" else ""
    chosen = {name: said for name, said in (columns or {}).items() if name in ("cloud", beside)} or None

    def read() -> Iterator[tuple[int, CloudSample | SkippedRow | None]]:
        for line, row in iterate_file_table(entry, beside, chosen, complain, "cloud"):
            try:
                item = _make_sample(entry, line, row, beside, own)
            except DataError as error:
                complain("missing", error)
                continue
            yield line, item

    return drop_trailing_blanks(entry, read())


def _make_sample(
    entry: str, line: int, row: Mapping[str, Any], beside: str, own: tuple[tuple[str, str], ...]
) -> CloudSample | SkippedRow | None:
    cloud, label = row["cloud"], row[beside] if beside else "-"
    if not cloud and (not label or not beside):
        return None
    if not cloud or not label:
        return SkippedRow(entry, line, f"no {'label' if cloud else 'point cloud'} for: {str(cloud or label)[:60]}")
    if isinstance(label, EmbeddedFile):
        raise DataError("the label must be text.", entry, line, "Select the label column with --columns label=NAME.")
    source, content = _resolve_file(entry, line, cloud)
    return CloudSample(source, label if beside else "", entry, line, content, own)


def _resolve_file(entry: str, line: int, value: str | EmbeddedFile) -> tuple[str, bytes]:
    """The path of a file that is there, or the name and the bytes of one that lies in the table."""
    if isinstance(value, EmbeddedFile):
        return value.name, value.content
    if value.startswith(("http://", "https://", "s3://", "gs://")):
        raise DataError(f"'{value[:80]}' is a URL.", entry, line, "Download the file, and use the local path.")
    here = os.path.dirname(os.path.expanduser(entry))
    for folder in filter(lambda folder: folder is not None, (here, find_subfolder(here or ".", CLOUD_FOLDERS))):
        path = os.path.join(str(folder), os.path.expanduser(value))
        if os.path.isfile(path):
            return path, b""
    advice = "Paths are relative to the folder of the table, or to a folder 'clouds' next to the table."
    if line == 1:
        advice += " If the first row is a header, select the column with --columns cloud=NAME."
    raise DataError(f"point cloud '{value[:80]}' not found.", entry, line, advice)
