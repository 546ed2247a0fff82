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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from regard.data.file_discovery import DEPTH_SUFFIXES, IMAGE_SUFFIXES, find_subfolder, match_files
from regard.data.file_samples import (
    FileKind,
    FileSample,
    read_folder,
    read_table,
    reject_split_folders,
    resolve_file,
    subfolder_names,
)
from regard.data.reader import Reader, file_contents, file_key
from regard.data.sources import split_parallel
from regard.data.text.files import ErrorHandler, raise_error
from regard.data.text.tables import SkippedRow, format_list, iterate_all
from regard.errors import DataError

IMAGE = FileKind("image", "image", IMAGE_SUFFIXES, ("images", "image", "rgb", "pictures", "img", "frames"))
TARGET_FOLDERS = {
    "mask": ("masks", "mask", "annotations", "labels", "segmentation"),
    "depth": ("depth", "depths", "depth_maps"),
}
"""Usual names of the folders of targets."""
TARGET_TASKS = {"mask": "segment", "depth": "depth"}
ADVICE = {
    "label": "Pass a folder with one subfolder per class, or a table with the columns image and label.",
    "mask": "Pass two folders as images:masks, or a table with the columns image and mask.",
    "depth": "Pass two folders as images:depth, or a table with the columns image and depth.",
    "": "Pass a folder of images, or a table with the column image.",
}

ImageIterator = Iterator["ImageSample | SkippedRow"]


@dataclass(frozen=True, slots=True)
class ImageSample(FileSample):
    """An image file and its target."""

    mask: str = ""
    depth: str = ""
    """path of the mask or depth map, in tasks with such a target"""
    target_content: bytes = field(default=b"", repr=False)
    """file content of a mask or depth map embedded in a table"""


def _read_entry(
    target: str, entry: str, columns: Mapping[str, str] | None = None, on_error: ErrorHandler = raise_error
) -> ImageIterator:
    """Yield images of one folder or table with `target` (label, mask, depth), or without targets."""
    sides = paired_folders(entry, target)
    if sides is not None:
        return _read_paired_folders(entry, *sides, target, on_error)
    if os.path.isdir(os.path.expanduser(entry)):
        return _read_folder(entry, target)

    def make_sample(source: str, value: Any, line: int, content: bytes) -> ImageSample:
        path, target_content = resolve_file(IMAGE, entry, line, value, target)
        targets: dict[str, Any] = {target: path, "target_content": target_content}
        return ImageSample(source, "", entry, line, content, **targets)

    make = make_sample if target in TARGET_FOLDERS else partial(ImageSample, path=entry)
    return read_table(IMAGE, entry, target, columns, on_error, make)


read_images, read_unlabeled = partial(_read_entry, "label"), partial(_read_entry, "")
read_segmented, read_depth_images = partial(_read_entry, "mask"), partial(_read_entry, "depth")
iterate_images = partial(iterate_all, read_images, "images", ADVICE["label"])
iterate_unlabeled = partial(iterate_all, read_unlabeled, "images", ADVICE[""])
iterate_segmented = partial(iterate_all, read_segmented, "images", ADVICE["mask"])
iterate_depth_images = partial(iterate_all, read_depth_images, "images", ADVICE["depth"])


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
    folders = find_subfolder(folder, IMAGE.folders), find_subfolder(folder, TARGET_FOLDERS[target])
    if None in folders:
        subfolders = subfolder_names(folder)
        expected = f"'{IMAGE.folders[0]}' and '{TARGET_FOLDERS[target][0]}'"
        problem = f"expected the subfolders {expected}, found: {format_list(subfolders)}."
        parts = f" Or pass the splits: --data {entry}/{subfolders[0]} --valid …" if len(subfolders) > 1 else ""
        raise DataError(problem, entry, advice=ADVICE[target] + parts)
    return folders  # type: ignore[return-value]  # neither is None


# -- folders


def _read_folder(entry: str, target: str) -> ImageIterator:
    """Yield the images of a folder, with the subfolders as classes if the target is a label.

    Subfolders that are images with targets, or splits of the data instead of classes, raise `DataError`."""
    names, expected = subfolder_names(entry), "classes" if target == "label" else "images"
    lowered = {name.lower() for name in names}
    tasks = [task for name, task in TARGET_TASKS.items() if lowered & set(TARGET_FOLDERS[name])]
    image_folder = next((name for name in names if name.lower() in IMAGE.folders), None)
    # next to other folders, `image` or `label` can be classes
    if image_folder is not None and tasks and not lowered.difference(IMAGE.folders, *TARGET_FOLDERS.values()):
        advice = "For classify, pass one folder per class, or a table with the columns image and label."
        if expected == "images":
            advice = f"Pass the image folder: {os.path.join(entry, image_folder)}."
        problem = f"expected {expected}, found data for the task {' or '.join(tasks)} ({format_list(names)})."
        raise DataError(problem, entry, advice=advice)
    if expected == "classes":
        reject_split_folders(entry, names)
    yield from read_folder(IMAGE, entry, target == "label", partial(ImageSample, path=entry))


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
            paths: dict[str, Any] = {target: target_path}
            yield ImageSample(file.path, "", entry, number, **paths)
    for path in unused:
        on_error("unmatched_files", DataError(f"no matching image in '{images}' for this {target}.", path))


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
