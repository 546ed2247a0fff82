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

from regard.data.file_discovery import DEPTH_SUFFIXES, IMAGE_SUFFIXES, find_subfolder, match_files, walk_files
from regard.data.images.tables import EmbeddedFile, iterate_file_table
from regard.data.samples import drop_trailing_blanks, iterate_all
from regard.data.sources import split_parallel
from regard.data.text.columns import format_list
from regard.data.text.files import ErrorHandler, raise_error
from regard.data.text.tables import SkippedRow
from regard.errors import DataError

SPLIT_FOLDERS = ("train", "training", "valid", "val", "validation", "dev", "test", "testing")
"""Folders of these names hold parts of the data, not classes."""
IMAGE_FOLDERS = ("images", "image", "rgb", "pictures", "img", "frames")
TARGET_FOLDERS = {
    "mask": ("masks", "mask", "annotations", "labels", "segmentation"),
    "depth": ("depth", "depths", "depth_maps"),
}
"""What folders are called that hold pictures, and what belongs to them."""
TARGET_TASKS = {"mask": "segment", "depth": "depth"}
"""What is learnt from those."""
ADVICE = {
    "label": "Pass a folder with one subfolder per class, or a table with the columns image and label.",
    "mask": "Pass two folders as images:masks, or a table with the columns image and mask.",
    "depth": "Pass two folders as images:depth, or a table with the columns image and depth.",
    "": "Pass a folder of images, or a table with the column image.",
}

ImageIterator = Iterator["ImageSample | SkippedRow"]


@dataclass(frozen=True, slots=True)
class ImageSample:
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
    target_content: bytes = field(default=b"", repr=False)
    """the bytes of its mask or its depth, where they lie in a table"""

    @property
    def location(self) -> tuple[str, int] | None:
        """What errors name, where the picture is no file of its own."""
        return (self.path, self.line) if self.content else None


def iterate_images(data: Sequence[str], columns: Mapping[str, str] | None = None) -> ImageIterator:
    """Pictures and their classes, of every folder or table, in the order given."""
    return _iterate_entries(data, columns, read_images, "label")


def iterate_segmented(data: Sequence[str], columns: Mapping[str, str] | None = None) -> ImageIterator:
    """Pictures and their masks."""
    return _iterate_entries(data, columns, read_segmented, "mask")


def iterate_depth_images(data: Sequence[str], columns: Mapping[str, str] | None = None) -> ImageIterator:
    """Pictures and their maps of depth."""
    return _iterate_entries(data, columns, read_depth_images, "depth")


def iterate_unlabeled(data: Sequence[str], columns: Mapping[str, str] | None = None) -> ImageIterator:
    """Pictures alone; a folder's are taken however deep they lie."""
    return _iterate_entries(data, columns, read_unlabeled, "")


def read_images(
    entry: str, columns: Mapping[str, str] | None = None, on_error: ErrorHandler = raise_error
) -> ImageIterator:
    """Those of one folder or table, with their classes."""
    return _read_entry(entry, "label", columns, on_error)


def read_segmented(
    entry: str, columns: Mapping[str, str] | None = None, on_error: ErrorHandler = raise_error
) -> ImageIterator:
    return _read_entry(entry, "mask", columns, on_error)


def read_depth_images(
    entry: str, columns: Mapping[str, str] | None = None, on_error: ErrorHandler = raise_error
) -> ImageIterator:
    return _read_entry(entry, "depth", columns, on_error)


def read_unlabeled(
    entry: str, columns: Mapping[str, str] | None = None, on_error: ErrorHandler = raise_error
) -> ImageIterator:
    return _read_entry(entry, "", columns, on_error)


ReadEntry = Callable[[str, Mapping[str, str] | None, ErrorHandler], ImageIterator]


def _iterate_entries(
    data: Sequence[str], columns: Mapping[str, str] | None, read: ReadEntry, beside: str
) -> ImageIterator:
    return iterate_all(data, lambda entry: read(entry, columns, raise_error), "images", ADVICE[beside])


def _read_entry(entry: str, beside: str, columns: Mapping[str, str] | None, complain: ErrorHandler) -> ImageIterator:
    sides = paired_folders(entry, beside)
    if sides is not None:
        return _read_paired_folders(entry, *sides, beside, complain)
    if not os.path.isdir(os.path.expanduser(entry)):
        return _read_table(entry, beside, columns, complain)
    return _read_class_folders(entry) if beside == "label" else _read_folder(entry)


def paired_folders(entry: str, target: str) -> tuple[str, str] | None:
    """The folder of pictures and that of what belongs to them; None where an entry is no such pair."""
    sides = split_parallel(entry)
    if sides is not None:
        if target not in TARGET_FOLDERS:
            raise DataError("expected one folder, got two.", entry, advice=ADVICE[target])
        first, second = (os.path.expanduser(side) for side in sides)
        for side in (first, second):
            if not os.path.isdir(side):
                raise DataError("not a folder." if os.path.exists(side) else "folder not found.", side)
        return first, second
    folder = os.path.expanduser(entry)
    if target not in TARGET_FOLDERS or not os.path.isdir(folder):
        return None
    found = find_subfolder(folder, IMAGE_FOLDERS), find_subfolder(folder, TARGET_FOLDERS[target])
    if None in found:
        there = sorted(name for name in os.listdir(folder) if os.path.isdir(os.path.join(folder, name)))
        expected = f"'{IMAGE_FOLDERS[0]}' and '{TARGET_FOLDERS[target][0]}'"
        problem = f"expected the subfolders {expected}, found: {format_list(there)}."
        raise DataError(problem, entry, advice=ADVICE[target])
    return found  # type: ignore[return-value]  # neither is None


# -- folders


def _read_folder(entry: str) -> ImageIterator:
    folder = os.path.expanduser(entry)
    _check_layout(entry, folder, "images")
    for number, found in enumerate(walk_files(folder, IMAGE_SUFFIXES), start=1):
        yield ImageSample(found.path, "", entry, number) if found.matches else SkippedRow(entry, number, found.reason)


def _read_class_folders(entry: str) -> ImageIterator:
    """A class is a folder inside the one that is named; those inside it are only order."""
    folder = os.path.expanduser(entry)
    seen, outside = False, 0
    _check_layout(entry, folder, "classes")
    for number, found in enumerate(walk_files(folder, IMAGE_SUFFIXES), start=1):
        label = found.parts[0] if len(found.parts) > 1 else ""
        if found.matches and label:
            seen = True
            yield ImageSample(found.path, label, entry, number)
            continue
        outside += found.matches
        yield SkippedRow(entry, number, f"not in a class folder: {found.name}" if found.matches else found.reason)
    if outside and not seen:
        advice = "Create one folder per class (the folder name is the label), or pass a table with the labels."
        raise DataError(f"no class folders, only {outside:,} image{'s'[: outside > 1]}.", entry, advice=advice)


def _check_layout(entry: str, folder: str, wanted: str) -> None:
    """Folders that by their names are not what is `wanted`: pictures beside what belongs to them, or parts of the data."""
    with os.scandir(folder) as items:
        names = sorted(item.name for item in items if item.is_dir() and not item.name.startswith("."))
    _reject_paired_folders(entry, names, wanted)
    if wanted == "classes":
        reject_split_folders(entry, names)


def _reject_paired_folders(entry: str, names: Sequence[str], wanted: str) -> None:
    """Only where all folders are called so: among others `image` and `label` may be classes."""
    called = {name.lower() for name in names}
    there = [task for beside, task in TARGET_TASKS.items() if called & set(TARGET_FOLDERS[beside])]
    pictures = next((name for name in names if name.lower() in IMAGE_FOLDERS), None)
    if (
        pictures is None
        or not there
        or called - {*IMAGE_FOLDERS, *(word for words in TARGET_FOLDERS.values() for word in words)}
    ):
        return
    instead = "For classify, pass one folder per class, or a table with the columns image and label."
    if wanted == "images":
        instead = f"Pass the image folder: {os.path.join(entry, pictures)}."
    raise DataError(
        f"expected {wanted}, found data for the task {' or '.join(there)} ({format_list(names)}).",
        entry,
        advice=instead,
    )


def reject_split_folders(entry: str, names: Sequence[str]) -> None:
    """Folders that are parts of the data, which are named each by itself."""
    if names and all(name.lower() in SPLIT_FOLDERS for name in names):
        held = [name for name in names if not name.lower().startswith("train")]
        valid = f" --valid {os.path.join(entry, held[0])}" if held and len(names) > 1 else ""
        first = next((name for name in names if name.lower().startswith("train")), names[0])
        advice = f"Pass each split separately: --data {os.path.join(entry, first)}{valid}."
        raise DataError(
            f"expected class folders, found splits of the data ({format_list(names)}).", entry, advice=advice
        )


def _read_paired_folders(entry: str, images: str, others: str, beside: str, complain: ErrorHandler) -> ImageIterator:
    pairs, left, over = match_files(images, others, DEPTH_SUFFIXES if beside == "depth" else IMAGE_SUFFIXES)
    for number, (found, other) in enumerate(pairs, start=1):
        if not found.matches:
            yield SkippedRow(entry, number, found.reason)
        elif other is None:
            some = "1 image has" if left == 1 else f"{left:,} images have"
            advice = f"{some} no {beside}. File names of image and {beside} must match, except for the extension."
            complain("unmatched_files", DataError(f"no matching {beside} in '{others}'.", found.path, advice=advice))
        else:
            yield _with_target(ImageSample(found.path, "", entry, number), beside, other)
    for path in over:
        complain("unmatched_files", DataError(f"no matching image in '{images}' for this {beside}.", path))


def _with_target(picture: ImageSample, beside: str, path: str, content: bytes = b"") -> ImageSample:
    if beside == "mask":
        return replace(picture, mask=path, target_content=content)
    return replace(picture, depth=path, target_content=content)


# -- tables


def _read_table(entry: str, beside: str, columns: Mapping[str, str] | None, complain: ErrorHandler) -> ImageIterator:
    def read() -> Iterator[tuple[int, ImageSample | SkippedRow | None]]:
        for line, row in iterate_file_table(entry, beside, columns, complain):
            try:
                item = _make_sample(entry, line, row, beside)
            except DataError as error:
                complain("missing", error)
                continue
            yield line, item

    return drop_trailing_blanks(entry, read())


def _make_sample(entry: str, line: int, row: Mapping[str, Any], beside: str) -> ImageSample | SkippedRow | None:
    image, other = row["image"], row[beside] if beside else "-"
    if not image and (not other or not beside):
        return None
    missing = [name for name, value in (("image", image), (beside, other)) if not value]
    if missing:
        return SkippedRow(entry, line, f"missing {missing[0]} for: {str(image or other)[:60]}")
    source, content = resolve_file(entry, line, image, "image")
    if beside not in TARGET_FOLDERS:
        if isinstance(other, EmbeddedFile):
            raise DataError("the label is binary data, not text.", entry, line, "Pass --columns label=NAME.")
        return ImageSample(source, other if beside else "", entry, line, content)
    return _with_target(
        ImageSample(source, "", entry, line, content), beside, *resolve_file(entry, line, other, beside)
    )


def resolve_file(
    entry: str, line: int | None, value: str | EmbeddedFile, what: str, folders: Sequence[str] | None = None
) -> tuple[str, bytes]:
    """The path of a file that is there, or the name and the bytes of one that lies in the table.

    It may lie in one of some `folders`; None: that of the table, or the one of pictures in it."""
    if isinstance(value, EmbeddedFile):
        return value.name, value.content
    if value.startswith(("http://", "https://", "s3://", "gs://")):
        raise DataError(f"URLs are not supported: '{value[:80]}'.", entry, line, "Download the file and use its path.")
    for folder in _search_folders(entry) if folders is None else folders:
        path = os.path.join(folder, os.path.expanduser(value))
        if os.path.isfile(path):
            return path, b""
    advice = "Paths are relative to the folder of the table, or to a folder 'images' there."
    if line == 1:
        advice += " If the first row is a header, pass --columns image=NAME."
    raise DataError(f"{what} '{value[:80]}' not found.", entry, line, advice)


def _search_folders(entry: str) -> Iterator[str]:
    here = os.path.dirname(os.path.expanduser(entry))
    yield here
    if (own := find_subfolder(here or ".", IMAGE_FOLDERS)) is not None:
        yield own
