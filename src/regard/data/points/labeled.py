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

from regard.data.file_discovery import subfolder, walk
from regard.data.images.labeled import refuse_splits
from regard.data.images.tables import CALLED, Inside, iterate_table
from regard.data.points.cloud import Cloud
from regard.data.points.cloud_files import ENDINGS, read_cloud
from regard.data.points.columns import NAMES
from regard.data.points.mesh_sampling import LEAST
from regard.data.samples import everything, settled
from regard.data.synthetic.point_clouds import cloud_recipe_of, made_clouds
from regard.data.text.files import Complain, existing, refuse
from regard.data.text.tables import OBJECTS, PARQUET, TABS, Empty, first_value, format_of, heading
from regard.errors import DataError, RegardError, UnknownName

__all__ = [
    "Cloud", "CloudFile", "asked_clouds_of", "clouds_of", "is_clouds", "iterate_clouds", "iterate_labelled_clouds",
    "labelled_clouds_of", "read_cloud",
]  # fmt: skip

CLOUDS = ("clouds", "points", "scans", "meshes")
"""What a folder is called that holds the clouds of a table beside it."""
ADVICE = {
    "classify": "A folder for each class is wanted, or a table with the columns cloud and label.",
    "segment": "A folder of clouds whose points have labels is wanted, such a file, or a table with the column cloud.",
    "": "A folder of clouds is wanted, a file of one, or a table with the column cloud.",
}
CHOICES = ("cloud", *NAMES)
"""What --columns may say of clouds."""

Columns = Mapping[str, str] | None
Stream = Iterator["CloudFile | Empty"]


@dataclass(frozen=True, slots=True)
class CloudFile:
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
    def place(self) -> tuple[str, int] | None:
        """What errors name, where the cloud is no file of its own."""
        return (self.path, self.line) if self.content else None

    def read(self, seed: int = 0, points: int = LEAST) -> Cloud:
        """What it holds; of a mesh so many points are drawn."""
        said = dict(self.columns) or None
        if self.content:
            return read_cloud(self.content, seed, points, said, self.place, self.source)
        return read_cloud(self.source, seed, points, said)


def iterate_clouds(data: Sequence[str], columns: Columns = None) -> Stream:
    """Clouds and their classes, of every folder, table or name, in the order given."""
    return everything(data, lambda entry: clouds_of(entry, columns), "clouds", ADVICE["classify"])


def iterate_labelled_clouds(data: Sequence[str], columns: Columns = None) -> Stream:
    """Clouds whose points have labels."""
    return everything(data, lambda entry: labelled_clouds_of(entry, columns), "clouds", ADVICE["segment"])


def clouds_of(entry: str, columns: Columns = None, complain: Complain = refuse) -> Stream:
    """Those of one folder, table or name, with their classes."""
    return _of(entry, "classify", columns, complain)


def labelled_clouds_of(entry: str, columns: Columns = None, complain: Complain = refuse) -> Stream:
    return _of(entry, "segment", columns, complain)


def asked_clouds_of(entry: str, columns: Columns = None, complain: Complain = refuse) -> Stream:
    """Clouds alone, of which something is asked, whatever belongs to them."""
    return _of(entry, "", columns, complain)


SURELY = CALLED["cloud"][:5]
"""Columns of a table that are taken for clouds; the other words may mean files of any kind."""
SOLELY = tuple(ending for ending in ENDINGS if ending not in (".txt", ".csv", ".npy"))
"""Of files that are clouds and nothing else."""


def is_clouds(entry: str, columns: Columns = None) -> bool:
    """Whether what is named as data is of clouds: a set that is made, a file of one, a folder with one, a table of them."""
    if cloud_recipe_of(entry) is not None or "cloud" in (columns or {}):
        return True
    path = os.path.expanduser(entry)
    if os.path.isdir(path):
        # the first file that is not hidden decides: of texts and tables there are others than clouds
        found = (one for one in walk(path, ENDINGS) if one.fits)
        first = next(found, None)
        return first is not None and (first.path.lower().endswith(SOLELY) or not _pictured(path))
    if not os.path.isfile(path):
        return False
    return (
        _headed(path, SURELY)
        or _lists_clouds(path)
        or (format_of(path) in ENDINGS and format_of(path) not in (".txt", ".csv"))
    )


def _pictured(folder: str) -> bool:
    """Arrays may be maps of depth beside pictures."""
    from regard.data.file_discovery import PICTURES

    return any(one.fits for one in walk(folder, PICTURES))


def _of(entry: str, task: str, columns: Columns, complain: Complain) -> Stream:
    for name in columns or ():
        if name not in CHOICES:
            raise UnknownName("column choice", name, CHOICES, "Say which to use: --columns cloud=NAME label=NAME.")
    own = tuple((name, said) for name, said in (columns or {}).items() if name in NAMES and (name, task) != _CLASS)
    recipe = cloud_recipe_of(entry)
    if recipe is not None:
        if task and recipe.task != task:
            advice = "Name solids." if task == "classify" else "Name rooms."
            raise DataError(f"is made for the task {recipe.task}, not for {task}.", entry, advice=advice)
        return (CloudFile(source, label, entry, number + 1) for number, source, label in made_clouds(recipe))
    if os.path.isdir(os.path.expanduser(entry)):
        return _classes(entry, own) if task == "classify" else _files(entry, own)
    if task == "classify" or _is_table(entry, columns):
        return _rows(entry, task, columns, own, complain)
    return iter([CloudFile(str(existing(entry)), "", entry, 1, columns=own)])


_CLASS = ("label", "classify")
"""There a column of the table is meant, else one of the points."""


# -- folders


def _names(folder: str) -> list[str]:
    with os.scandir(folder) as items:
        return sorted(item.name for item in items if item.is_dir() and not item.name.startswith("."))


def _files(entry: str, own: tuple[tuple[str, str], ...]) -> Stream:
    folder = os.path.expanduser(entry)
    refuse_splits(entry, _names(folder))
    for number, found in enumerate(walk(folder, ENDINGS, "cloud"), start=1):
        yield CloudFile(found.path, "", entry, number, columns=own) if found.fits else Empty(entry, number, found.said)


def _classes(entry: str, own: tuple[tuple[str, str], ...]) -> Stream:
    """A class is a folder inside the one that is named; those inside it are only order."""
    folder = os.path.expanduser(entry)
    refuse_splits(entry, _names(folder))
    seen, outside = False, 0
    for number, found in enumerate(walk(folder, ENDINGS, "cloud"), start=1):
        label = found.parts[0] if len(found.parts) > 1 else ""
        if found.fits and label:
            seen = True
            yield CloudFile(found.path, label, entry, number, columns=own)
            continue
        outside += found.fits
        yield Empty(entry, number, f"no class: it lies beside the folders: {found.name}" if found.fits else found.said)
    if outside and not seen:
        advice = "The class of a cloud is the folder that it lies in. Make one for each, or name a table of classes."
        raise DataError(f"holds {outside:,} clouds and no folder of a class.", entry, advice=advice)


# -- tables


def _is_table(entry: str, columns: Columns) -> bool:
    """Whether a file names clouds, and is none itself; of texts and commas the heading decides."""
    kind = format_of(entry)
    if "cloud" in (columns or {}) or kind in (*OBJECTS, *PARQUET, ".tsv", ".tab"):
        return True
    return kind in (".csv", *TABS) and _headed(entry, CALLED["cloud"])


def _headed(entry: str, words: Sequence[str]) -> bool:
    """Whether it has columns, one of which is called by one of these."""
    return any(name.lower() in words for name in _heading(entry))


def _heading(entry: str) -> Sequence[str]:
    if format_of(entry) not in (".csv", *TABS, *OBJECTS, *PARQUET):
        return ()
    try:
        return tuple(heading(entry))
    except (RegardError, OSError):  # what is wrong with it is said where it is read
        return ()


def _lists_clouds(entry: str) -> bool:
    """Whether a column that may mean files of any kind begins with one of a cloud."""
    unsure = [name for name in _heading(entry) if name.lower() in CALLED["cloud"][len(SURELY) :]]
    return any(format_of(first_value(entry, name)) in SOLELY for name in unsure)


def _rows(
    entry: str, task: str, columns: Columns, own: tuple[tuple[str, str], ...], complain: Complain
) -> Stream:  # fmt: skip
    beside = "label" if task == "classify" else ""
    chosen = {name: said for name, said in (columns or {}).items() if name in ("cloud", beside)} or None

    def read() -> Iterator[tuple[int, CloudFile | Empty | None]]:
        for line, row in iterate_table(entry, beside, chosen, complain, "cloud"):
            try:
                item = _cloud(entry, line, row, beside, own)
            except DataError as error:
                complain("missing", error)
                continue
            yield line, item

    return settled(entry, read())


def _cloud(
    entry: str, line: int, row: Mapping[str, Any], beside: str, own: tuple[tuple[str, str], ...]
) -> CloudFile | Empty | None:
    cloud, label = row["cloud"], row[beside] if beside else "-"
    if not cloud and (not label or not beside):
        return None
    if not cloud or not label:
        return Empty(entry, line, f"no {'label' if cloud else 'cloud'} beside: {str(cloud or label)[:60]}")
    if isinstance(label, Inside):
        raise DataError("the class is no text.", entry, line, "Say which column it is: --columns label=NAME.")
    source, content = _found(entry, line, cloud)
    return CloudFile(source, label if beside else "", entry, line, content, own)


def _found(entry: str, line: int, value: str | Inside) -> tuple[str, bytes]:
    """The path of a file that is there, or the name and the bytes of one that lies in the table."""
    if isinstance(value, Inside):
        return value.name, value.content
    if value.startswith(("http://", "https://", "s3://", "gs://")):
        raise DataError(f"'{value[:80]}' is an address.", entry, line, "Download it, and write the path of the file.")
    here = os.path.dirname(os.path.expanduser(entry))
    for folder in filter(lambda folder: folder is not None, (here, subfolder(here or ".", CLOUDS))):
        path = os.path.join(str(folder), os.path.expanduser(value))
        if os.path.isfile(path):
            return path, b""
    advice = "Paths begin where the table lies, or in a folder 'clouds' beside it."
    if line == 1:
        advice += " If the first row names the columns, say which: --columns cloud=NAME."
    raise DataError(f"there is no cloud '{value[:80]}'.", entry, line, advice)
