"""Pictures with what belongs to each: a class, a mask of classes, a map of depth, or nothing.

| what is named          | what it is                                                                               |
|------------------------|------------------------------------------------------------------------------------------|
| a folder               | of folders, each a class, whatever lies how deep in it; or with `images` beside `masks` or `depth` |
| images:masks           | two folders, in which what belongs together has one name but for its ending; so for depth |
| a table                | CSV, TSV, JSON lines: a column of paths, and one beside it                               |
| a table of Parquet     | the same, or the bytes of pictures in place of their paths                               |

Paths begin where the table lies, or in a folder `images` there. Nothing is decoded here. What is hidden, or no picture by
its name, is left out as `Empty`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from regard.data.file_discovery import DEPTHS, PICTURES, partners, subfolder, walk
from regard.data.images.tables import Inside, iterate_table
from regard.data.samples import everything, settled
from regard.data.sources import parallel
from regard.data.text.columns import listed
from regard.data.text.files import Complain, refuse
from regard.data.text.tables import Empty
from regard.errors import DataError

SPLITS = ("train", "training", "valid", "val", "validation", "dev", "test", "testing")
"""Folders of these names hold parts of the data, not classes."""
IMAGES = ("images", "image", "rgb", "pictures", "img", "frames")
BESIDE = {
    "mask": ("masks", "mask", "annotations", "labels", "segmentation"),
    "depth": ("depth", "depths", "depth_maps"),
}
"""What folders are called that hold pictures, and what belongs to them."""
TASKS = {"mask": "segment", "depth": "depth"}
"""What is learnt from those."""
ADVICE = {
    "label": "A folder for each class is wanted, or a table with the columns image and label.",
    "mask": "Two folders images:masks are wanted, or a table with the columns image and mask.",
    "depth": "Two folders images:depth are wanted, or a table with the columns image and depth.",
    "": "A folder of pictures is wanted, or a table with the column image.",
}

Stream = Iterator["Picture | Empty"]


@dataclass(frozen=True, slots=True)
class Picture:
    """A file of a picture, what belongs to it, and where it was found."""

    source: str
    """its path; where it lies in a table, its name, or nothing"""
    label: str = ""
    """nothing where it is asked for"""
    path: str = ""
    """the table or the folder"""
    line: int = 0
    """the row, or the place among the files of the folder"""
    content: bytes = field(default=b"", repr=False)
    """the bytes of the file, where it lies in a table"""
    mask: str = ""
    depth: str = ""
    """paths of what belongs to it, in a task that has such"""
    beside: bytes = field(default=b"", repr=False)
    """the bytes of its mask or its depth, where they lie in a table"""

    @property
    def place(self) -> tuple[str, int] | None:
        """What errors name, where the picture is no file of its own."""
        return (self.path, self.line) if self.content else None


def iterate_pictures(data: Sequence[str], columns: Mapping[str, str] | None = None) -> Stream:
    """Pictures and their classes, of every folder or table, in the order given."""
    return _iterate(data, columns, pictures_of, "label")


def iterate_masked(data: Sequence[str], columns: Mapping[str, str] | None = None) -> Stream:
    """Pictures and their masks."""
    return _iterate(data, columns, masked_of, "mask")


def iterate_depths(data: Sequence[str], columns: Mapping[str, str] | None = None) -> Stream:
    """Pictures and their maps of depth."""
    return _iterate(data, columns, depths_of, "depth")


def iterate_plain(data: Sequence[str], columns: Mapping[str, str] | None = None) -> Stream:
    """Pictures alone; a folder's are taken however deep they lie."""
    return _iterate(data, columns, plain_of, "")


def pictures_of(entry: str, columns: Mapping[str, str] | None = None, complain: Complain = refuse) -> Stream:
    """Those of one folder or table, with their classes."""
    return _of(entry, "label", columns, complain)


def masked_of(entry: str, columns: Mapping[str, str] | None = None, complain: Complain = refuse) -> Stream:
    return _of(entry, "mask", columns, complain)


def depths_of(entry: str, columns: Mapping[str, str] | None = None, complain: Complain = refuse) -> Stream:
    return _of(entry, "depth", columns, complain)


def plain_of(entry: str, columns: Mapping[str, str] | None = None, complain: Complain = refuse) -> Stream:
    return _of(entry, "", columns, complain)


Reader = Callable[[str, Mapping[str, str] | None, Complain], Stream]


def _iterate(data: Sequence[str], columns: Mapping[str, str] | None, read: Reader, beside: str) -> Stream:
    return everything(data, lambda entry: read(entry, columns, refuse), "pictures", ADVICE[beside])


def _of(entry: str, beside: str, columns: Mapping[str, str] | None, complain: Complain) -> Stream:
    sides = folders_of(entry, beside)
    if sides is not None:
        return _paired(entry, *sides, beside, complain)
    if not os.path.isdir(os.path.expanduser(entry)):
        return _rows(entry, beside, columns, complain)
    return _classes(entry) if beside == "label" else _files(entry)


def folders_of(entry: str, beside: str) -> tuple[str, str] | None:
    """The folder of pictures and that of what belongs to them; None where an entry is no such pair."""
    sides = parallel(entry)
    if sides is not None:
        if beside not in BESIDE:
            raise DataError("names two folders, and one is wanted.", entry, advice=ADVICE[beside])
        first, second = (os.path.expanduser(side) for side in sides)
        for side in (first, second):
            if not os.path.isdir(side):
                raise DataError("is no folder." if os.path.exists(side) else "there is no such folder.", side)
        return first, second
    folder = os.path.expanduser(entry)
    if beside not in BESIDE or not os.path.isdir(folder):
        return None
    found = subfolder(folder, IMAGES), subfolder(folder, BESIDE[beside])
    if None in found:
        there = sorted(name for name in os.listdir(folder) if os.path.isdir(os.path.join(folder, name)))
        wanted = f"It has no folder '{IMAGES[0]}' beside one '{BESIDE[beside][0]}', but: {listed(there)}."
        raise DataError("is one folder, and two are wanted.", entry, advice=f"{wanted} {ADVICE[beside]}")
    return found  # type: ignore[return-value]  # neither is None


# -- folders


def _files(entry: str) -> Stream:
    folder = os.path.expanduser(entry)
    _refuse_foreign(entry, folder, "pictures")
    for number, found in enumerate(walk(folder, PICTURES), start=1):
        yield Picture(found.path, "", entry, number) if found.fits else Empty(entry, number, found.said)


def _classes(entry: str) -> Stream:
    """A class is a folder inside the one that is named; those inside it are only order."""
    folder = os.path.expanduser(entry)
    seen, outside = False, 0
    _refuse_foreign(entry, folder, "classes")
    for number, found in enumerate(walk(folder, PICTURES), start=1):
        label = found.parts[0] if len(found.parts) > 1 else ""
        if found.fits and label:
            seen = True
            yield Picture(found.path, label, entry, number)
            continue
        outside += found.fits
        yield Empty(entry, number, f"no class: it lies beside the folders: {found.name}" if found.fits else found.said)
    if outside and not seen:
        advice = "The class of a picture is the folder that it lies in. Make one for each, or name a table of classes."
        raise DataError(f"holds {outside:,} pictures and no folder of a class.", entry, advice=advice)


def _refuse_foreign(entry: str, folder: str, wanted: str) -> None:
    """Folders that by their names are not what is `wanted`: pictures beside what belongs to them, or parts of the data."""
    with os.scandir(folder) as items:
        names = sorted(item.name for item in items if item.is_dir() and not item.name.startswith("."))
    _refuse_pairs(entry, names, wanted)
    if wanted == "classes":
        refuse_splits(entry, names)


def _refuse_pairs(entry: str, names: Sequence[str], wanted: str) -> None:
    """Only where all folders are called so: among others `image` and `label` may be classes."""
    called = {name.lower() for name in names}
    there = [task for beside, task in TASKS.items() if called & set(BESIDE[beside])]
    pictures = next((name for name in names if name.lower() in IMAGES), None)
    if pictures is None or not there or called - {*IMAGES, *(word for words in BESIDE.values() for word in words)}:
        return
    instead = "Name a folder that has one for each class, or a table with the columns image and label."
    if wanted == "pictures":
        instead = f"Name the pictures alone: {os.path.join(entry, pictures)}."
    raise DataError(
        f"looks like data for the task {' or '.join(there)}, pictures beside what belongs to them ({listed(names)}), and "
        f"{wanted} are wanted.", entry, advice=instead,
    )  # fmt: skip


def refuse_splits(entry: str, names: Sequence[str]) -> None:
    """Folders that are parts of the data, which are named each by itself."""
    if names and all(name.lower() in SPLITS for name in names):
        held = [name for name in names if not name.lower().startswith("train")]
        valid = f" --valid {os.path.join(entry, held[0])}" if held and len(names) > 1 else ""
        first = next((name for name in names if name.lower().startswith("train")), names[0])
        advice = f"Name each by itself: --data {os.path.join(entry, first)}{valid}."
        raise DataError(f"holds parts of the data ({listed(names)}), not classes.", entry, advice=advice)


def _paired(entry: str, images: str, others: str, beside: str, complain: Complain) -> Stream:
    pairs, left, over = partners(images, others, DEPTHS if beside == "depth" else PICTURES)
    for number, (found, other) in enumerate(pairs, start=1):
        if not found.fits:
            yield Empty(entry, number, found.said)
        elif other is None:
            some = "1 picture has" if left == 1 else f"{left:,} pictures have"
            advice = f"{some} none. What belongs together has one name but for the ending."
            complain("partner", DataError(f"has no {beside} in '{others}'.", found.path, advice=advice))
        else:
            yield _with(Picture(found.path, "", entry, number), beside, other)
    for path in over:
        complain("partner", DataError(f"is the {beside} of no picture in '{images}'.", path))


def _with(picture: Picture, beside: str, path: str, content: bytes = b"") -> Picture:
    if beside == "mask":
        return replace(picture, mask=path, beside=content)
    return replace(picture, depth=path, beside=content)


# -- tables


def _rows(entry: str, beside: str, columns: Mapping[str, str] | None, complain: Complain) -> Stream:
    def read() -> Iterator[tuple[int, Picture | Empty | None]]:
        for line, row in iterate_table(entry, beside, columns, complain):
            try:
                item = _picture(entry, line, row, beside)
            except DataError as error:
                complain("missing", error)
                continue
            yield line, item

    return settled(entry, read())


def _picture(entry: str, line: int, row: Mapping[str, Any], beside: str) -> Picture | Empty | None:
    image, other = row["image"], row[beside] if beside else "-"
    if not image and (not other or not beside):
        return None
    missing = [name for name, value in (("image", image), (beside, other)) if not value]
    if missing:
        return Empty(entry, line, f"no {missing[0]} beside: {str(image or other)[:60]}")
    source, content = found_file(entry, line, image, "picture")
    if beside not in BESIDE:
        if isinstance(other, Inside):
            raise DataError("the class is no text.", entry, line, "Say which column it is: --columns label=NAME.")
        return Picture(source, other if beside else "", entry, line, content)
    return _with(Picture(source, "", entry, line, content), beside, *found_file(entry, line, other, beside))


def found_file(
    entry: str, line: int | None, value: str | Inside, what: str, folders: Sequence[str] | None = None
) -> tuple[str, bytes]:
    """The path of a file that is there, or the name and the bytes of one that lies in the table.

    It may lie in one of some `folders`; None: that of the table, or the one of pictures in it."""
    if isinstance(value, Inside):
        return value.name, value.content
    if value.startswith(("http://", "https://", "s3://", "gs://")):
        raise DataError(f"'{value[:80]}' is an address.", entry, line, "Download it, and write the path of the file.")
    for folder in _near(entry) if folders is None else folders:
        path = os.path.join(folder, os.path.expanduser(value))
        if os.path.isfile(path):
            return path, b""
    advice = "Paths begin where the table lies, or in a folder 'images' beside it."
    if line == 1:
        advice += " If the first row names the columns, say which: --columns image=NAME."
    raise DataError(f"there is no {what} '{value[:80]}'.", entry, line, advice)


def _near(entry: str) -> Iterator[str]:
    here = os.path.dirname(os.path.expanduser(entry))
    yield here
    if (own := subfolder(here or ".", IMAGES)) is not None:
        yield own
