"""Images with a class label, a segmentation mask, a depth map, or no target.

| entry                  | content                                                                                  |
|------------------------|------------------------------------------------------------------------------------------|
| a folder               | one subfolder per class, with any nesting; or subfolders `images` and `masks` or `depth` |
| images:masks           | two folders with equal file names except for the extension; also for depth               |
| a table                | CSV, TSV or JSONL: a column of image paths and a column of targets                       |
| a Parquet table        | columns as above; images as paths or bytes                                               |

Paths are relative to the folder of the table, or to a subfolder `images`. Images are not decoded. Hidden files and files
without an image extension become `SkippedRow`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from regard.data.file_discovery import DEPTH_SUFFIXES, IMAGE_SUFFIXES, find_subfolder, match_files, walk_files
from regard.data.images.tables import EmbeddedFile, iterate_file_table
from regard.data.reader import Reader, file_contents, file_key
from regard.data.sources import split_parallel
from regard.data.text.files import ErrorHandler, raise_error
from regard.data.text.tables import SkippedRow, format_list, iterate_all, make_samples
from regard.errors import DataError

SPLIT_FOLDERS = ("train", "training", "valid", "val", "validation", "dev", "test", "testing")
"""Folders with these names are splits of the data, not classes."""
IMAGE_FOLDERS = ("images", "image", "rgb", "pictures", "img", "frames")
TARGET_FOLDERS = {
    "mask": ("masks", "mask", "annotations", "labels", "segmentation"),
    "depth": ("depth", "depths", "depth_maps"),
}
"""Usual names of the folders of targets."""
TARGET_TASKS = {"mask": "segment", "depth": "depth"}
"""Task of each target."""
ADVICE = {
    "label": "Pass a folder with one subfolder per class, or a table with the columns image and label.",
    "mask": "Pass two folders as images:masks, or a table with the columns image and mask.",
    "depth": "Pass two folders as images:depth, or a table with the columns image and depth.",
    "": "Pass a folder of images, or a table with the column image.",
}

ImageIterator = Iterator["ImageSample | SkippedRow"]


@dataclass(frozen=True, slots=True)
class ImageSample:
    """An image file and its target, with the location in the data."""

    source: str
    """path; for an embedded image the file name, or empty"""
    label: str = ""
    """empty for unlabeled inputs"""
    path: str = ""
    """table or folder"""
    line: int = 0
    """row of the table, or number of the file in the folder"""
    content: bytes = field(default=b"", repr=False)
    """file content of an image embedded in a table"""
    mask: str = ""
    depth: str = ""
    """path of the mask or depth map, in tasks with such a target"""
    target_content: bytes = field(default=b"", repr=False)
    """file content of a mask or depth map embedded in a table"""

    @property
    def location(self) -> tuple[str, int] | None:
        """Table and row of an embedded image, for error messages; else None."""
        return (self.path, self.line) if self.content else None


def _read_entry(
    target: str, entry: str, columns: Mapping[str, str] | None = None, on_error: ErrorHandler = raise_error
) -> ImageIterator:
    """Yield images of one folder or table with `target` (label, mask, depth), or without targets."""
    sides = paired_folders(entry, target)
    if sides is not None:
        return _read_paired_folders(entry, *sides, target, on_error)
    if not os.path.isdir(os.path.expanduser(entry)):
        rows = iterate_file_table(entry, target, columns, on_error)
        return make_samples(entry, rows, lambda line, row: _make_sample(entry, line, row, target), on_error, "missing")
    return _read_class_folders(entry) if target == "label" else _read_folder(entry)


def _iterate_entries(target: str, data: Sequence[str], columns: Mapping[str, str] | None = None) -> ImageIterator:
    """Yield images of all folders and tables, in input order."""
    return iterate_all(data, lambda entry: _read_entry(target, entry, columns), "images", ADVICE[target])


ReadEntry = Callable[[str, Mapping[str, str] | None, ErrorHandler], ImageIterator]

read_images, iterate_images = partial(_read_entry, "label"), partial(_iterate_entries, "label")
read_segmented, iterate_segmented = partial(_read_entry, "mask"), partial(_iterate_entries, "mask")
read_depth_images, iterate_depth_images = partial(_read_entry, "depth"), partial(_iterate_entries, "depth")
read_unlabeled, iterate_unlabeled = partial(_read_entry, ""), partial(_iterate_entries, "")


def paired_folders(entry: str, target: str) -> tuple[str, str] | None:
    """Folders of images and targets; None if the entry is not a pair of folders."""
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
    folders = find_subfolder(folder, IMAGE_FOLDERS), find_subfolder(folder, TARGET_FOLDERS[target])
    if None in folders:
        subfolders = sorted(name for name in os.listdir(folder) if os.path.isdir(os.path.join(folder, name)))
        expected = f"'{IMAGE_FOLDERS[0]}' and '{TARGET_FOLDERS[target][0]}'"
        problem = f"expected the subfolders {expected}, found: {format_list(subfolders)}."
        parts = f" Or pass the splits: --data {entry}/{subfolders[0]} --valid …" if len(subfolders) > 1 else ""
        raise DataError(problem, entry, advice=ADVICE[target] + parts)
    return folders  # type: ignore[return-value]  # neither is None


# -- folders


def _read_folder(entry: str) -> ImageIterator:
    folder = os.path.expanduser(entry)
    _check_layout(entry, folder, "images")
    for number, file in enumerate(walk_files(folder, IMAGE_SUFFIXES), start=1):
        yield ImageSample(file.path, "", entry, number) if file.matches else SkippedRow(entry, number, file.reason)


def _read_class_folders(entry: str) -> ImageIterator:
    """Yield images labeled by the first subfolder; deeper folders have no meaning."""
    folder = os.path.expanduser(entry)
    has_classes, outside = False, 0
    _check_layout(entry, folder, "classes")
    for number, file in enumerate(walk_files(folder, IMAGE_SUFFIXES), start=1):
        label = file.parts[0] if len(file.parts) > 1 else ""
        if file.matches and label:
            has_classes = True
            yield ImageSample(file.path, label, entry, number)
            continue
        outside += file.matches
        yield SkippedRow(entry, number, f"not in a class folder: {file.name}" if file.matches else file.reason)
    if outside and not has_classes:
        advice = "Create one folder per class (the folder name is the label), or pass a table with the labels."
        raise DataError(f"no class folders, only {outside:,} image{'s'[: outside > 1]}.", entry, advice=advice)


def _check_layout(entry: str, folder: str, expected: str) -> None:
    """Raise `DataError` if the subfolders are images with targets, or splits of the data, instead of `expected`."""
    with os.scandir(folder) as items:
        names = sorted(item.name for item in items if item.is_dir() and not item.name.startswith("."))
    _reject_paired_folders(entry, names, expected)
    if expected == "classes":
        reject_split_folders(entry, names)


def _reject_paired_folders(entry: str, names: Sequence[str], expected: str) -> None:
    """Raise if all subfolders have names of images or targets; next to other folders, `image` or `label` can be classes."""
    lowered = {name.lower() for name in names}
    tasks = [task for target, task in TARGET_TASKS.items() if lowered & set(TARGET_FOLDERS[target])]
    image_folder = next((name for name in names if name.lower() in IMAGE_FOLDERS), None)
    if (
        image_folder is None
        or not tasks
        or lowered - {*IMAGE_FOLDERS, *(word for words in TARGET_FOLDERS.values() for word in words)}
    ):
        return
    advice = "For classify, pass one folder per class, or a table with the columns image and label."
    if expected == "images":
        advice = f"Pass the image folder: {os.path.join(entry, image_folder)}."
    raise DataError(
        f"expected {expected}, found data for the task {' or '.join(tasks)} ({format_list(names)}).",
        entry,
        advice=advice,
    )


def reject_split_folders(entry: str, names: Sequence[str]) -> None:
    """Raise `DataError` if all folders are splits of the data, because each split is passed separately."""
    if names and all(name.lower() in SPLIT_FOLDERS for name in names):
        held_out = [name for name in names if not name.lower().startswith("train")]
        valid = f" --valid {os.path.join(entry, held_out[0])}" if held_out and len(names) > 1 else ""
        first = next((name for name in names if name.lower().startswith("train")), names[0])
        advice = f"Pass each split separately: --data {os.path.join(entry, first)}{valid}."
        raise DataError(
            f"expected class folders, found splits of the data ({format_list(names)}).", entry, advice=advice
        )


def _read_paired_folders(entry: str, images: str, targets: str, target: str, on_error: ErrorHandler) -> ImageIterator:
    pairs, num_unmatched, unused = match_files(images, targets, DEPTH_SUFFIXES if target == "depth" else IMAGE_SUFFIXES)
    for number, (file, target_path) in enumerate(pairs, start=1):
        if not file.matches:
            yield SkippedRow(entry, number, file.reason)
        elif target_path is None:
            count = "1 image has" if num_unmatched == 1 else f"{num_unmatched:,} images have"
            advice = f"{count} no {target}. File names of image and {target} must match, except for the extension."
            on_error("unmatched_files", DataError(f"no matching {target} in '{targets}'.", file.path, advice=advice))
        else:
            yield _with_target(ImageSample(file.path, "", entry, number), target, target_path)
    for path in unused:
        on_error("unmatched_files", DataError(f"no matching image in '{images}' for this {target}.", path))


def _with_target(sample: ImageSample, target: str, path: str, content: bytes = b"") -> ImageSample:
    if target == "mask":
        return replace(sample, mask=path, target_content=content)
    return replace(sample, depth=path, target_content=content)


# -- tables


def _make_sample(entry: str, line: int, row: Mapping[str, Any], target: str) -> ImageSample | SkippedRow | None:
    image, target_value = row["image"], row[target] if target else "-"
    if not image and (not target_value or not target):
        return None
    missing = [name for name, value in (("image", image), (target, target_value)) if not value]
    if missing:
        return SkippedRow(entry, line, f"missing {missing[0]} for: {str(image or target_value)[:60]}")
    source, content = resolve_file(entry, line, image, "image")
    if target not in TARGET_FOLDERS:
        if isinstance(target_value, EmbeddedFile):
            raise DataError("the label is binary data, not text.", entry, line, "Pass --columns label=NAME.")
        return ImageSample(source, target_value if target else "", entry, line, content)
    return _with_target(
        ImageSample(source, "", entry, line, content), target, *resolve_file(entry, line, target_value, target)
    )


def resolve_file(
    entry: str, line: int | None, value: str | EmbeddedFile, what: str, folders: Sequence[str] | None = None
) -> tuple[str, bytes]:
    """Path of an existing file and b"", or name and content of an embedded file.

    `folders` are searched for the file; None: the folder of the table and its subfolder of images."""
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
    parent = os.path.dirname(os.path.expanduser(entry))
    yield parent
    if (subfolder := find_subfolder(parent or ".", IMAGE_FOLDERS)) is not None:
        yield subfolder


UNLABELED = Reader(
    unit="images",
    columns=("image",),
    sample_type=ImageSample,
    samples=iterate_unlabeled,
    inputs=read_unlabeled,
    split_key=file_key,
    contents=file_contents,
    suffixes=IMAGE_SUFFIXES,
)
LABELED = replace(UNLABELED, columns=("image", "label"), samples=iterate_images, labels=lambda sample: (sample.label,))
DEPTH = replace(
    UNLABELED,
    columns=("image", "depth"),
    samples=iterate_depth_images,
    contents=lambda sample: (f"{text}\0{os.path.basename(sample.depth)}" for text in file_contents(sample)),
)
