"""Images with a class label, a segmentation mask, a depth map, or no target.

| entry                  | content                                                                                  |
|------------------------|------------------------------------------------------------------------------------------|
| a folder               | one subfolder per class, with any nesting; or subfolders `images` and `masks` or `depth` |
| images:masks           | two folders with equal file names except for the extension; also for depth               |
| a table                | CSV, TSV or JSONL: a column of image paths and a column of targets                       |
| a Parquet table        | columns as above; images as paths or bytes                                               |

Paths are relative to the folder of the table, or to a subfolder `images`. Images are not decoded. Hidden files and files
without an image extension become `SkippedRow`.

Classes of masks are in a class file, or the values of the masks. `classes.txt` has one class per line: the name, in the order
of mask values from 0; or a value and a name; or a name with RGB values before or after the name. Classes named void, ignore or
unlabeled are excluded from training. `classes.json` is a list of names, an object of values and names, or
`{"classes": [...], "void": 255, "colors": [[128, 64, 128], ...]}`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data import file_samples
from regard.data.file_discovery import CLASS_FILES, DEPTH_SUFFIXES, IMAGE_SUFFIXES, find_subfolder, match_files
from regard.data.images.image_io import Color, read_mask
from regard.data.memory_tables import table_folders
from regard.data.reader import Reader, file_contents, file_key
from regard.data.text.files import Columns, read_lines, split_parallel
from regard.data.text.tables import Samples, SkippedRow, format_list, iterate_all
from regard.errors import DataError, UnknownNameError

IMAGE = file_samples.FileKind("image", "image", IMAGE_SUFFIXES, ("images", "image", "rgb", "pictures", "img", "frames"))
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


@dataclass(frozen=True, slots=True)
class ImageSample(file_samples.FileSample):
    """An image file and its target."""

    target: str = ""  # path of the mask or depth map
    target_content: bytes = field(default=b"", repr=False)  # file content of a mask or depth map embedded in a table


def _read_entry(target: str, entry: str, columns: Columns = None) -> Samples[ImageSample]:
    """Yield images of one folder or table with `target` (label, mask, depth), or without targets."""
    sides = paired_folders(entry, target)
    if sides is not None:
        return _read_paired_folders(entry, *sides, target)
    if os.path.isdir(os.path.expanduser(entry)):
        return _read_folder(entry, target)

    def make_sample(source: str, value: Any, line: int, content: bytes) -> ImageSample:
        path, target_content = file_samples.resolve_file(IMAGE, entry, line, value, target)
        return ImageSample(source, "", entry, line, content, path, target_content)

    make = make_sample if target in TARGET_FOLDERS else partial(ImageSample, path=entry)
    return file_samples.read_table(IMAGE, entry, target, columns, make)


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
        subfolders = file_samples.subfolder_names(folder)
        expected = f"'{IMAGE.folders[0]}' and '{TARGET_FOLDERS[target][0]}'"
        problem = f"expected the subfolders {expected}, found: {format_list(subfolders)}."
        parts = f" Or pass the splits: --data {entry}/{subfolders[0]} --valid …" if len(subfolders) > 1 else ""
        raise DataError(problem, entry, advice=ADVICE[target] + parts)
    return folders  # type: ignore[return-value]  # neither is None


# -- folders


def _read_folder(entry: str, target: str) -> Samples[ImageSample]:
    """Yield the images of a folder, with the subfolders as classes if the target is a label.

    Subfolders that are images with targets, or splits of the data instead of classes, raise `DataError`."""
    names, expected = file_samples.subfolder_names(entry), "classes" if target == "label" else "images"
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
        file_samples.reject_split_folders(entry, names)
    yield from file_samples.read_folder(IMAGE, entry, target == "label", partial(ImageSample, path=entry))


def _read_paired_folders(entry: str, images: str, targets: str, target: str) -> Samples[ImageSample]:
    pairs, unused = match_files(images, targets, DEPTH_SUFFIXES if target == "depth" else IMAGE_SUFFIXES)
    num_unmatched = sum(not path and not file.reason for file, path in pairs)
    for number, (file, path) in enumerate(pairs, start=1):
        if file.reason:
            yield SkippedRow(entry, number, file.reason)
        elif path:
            yield ImageSample(file.path, "", entry, number, target=path)
        else:
            count = "1 image has" if num_unmatched == 1 else f"{num_unmatched:,} images have"
            advice = f"{count} no {target}. File names of image and {target} must match, except for the extension."
            yield DataError(f"no matching {target} in '{targets}'.", file.path, None, advice, "unmatched_files")
    for path in unused:
        yield DataError(f"no matching image in '{images}' for this {target}.", path, kind="unmatched_files")


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


def _contents_with_target(sample: ImageSample) -> Iterator[str]:
    return (f"{text}\0{os.path.basename(sample.target)}" for text in file_contents(sample))


LABELED = replace(UNLABELED, columns=("image", "label"), samples=iterate_images, labels=lambda sample: (sample.label,))
DEPTH = replace(UNLABELED, columns=("image", "depth"), samples=iterate_depth_images, contents=_contents_with_target)


# -- classes of masks

SEARCH_DEPTH = 3  # Number of folders to search: the folder of the masks and two parent folders.
VOID = 255  # Index of ignored pixels; therefore at most 255 classes.
VOID_VALUES = frozenset((255, 65535))  # Values of void pixels in 8-bit and 16-bit masks.
VOID_NAMES = ("void", "ignore", "ignored", "unlabelled", "unlabeled", "don't care", "dontcare")
JSON_KEYS = ("classes", "void", "colours", "colors")

_COLOR_FIRST = re.compile(r"(\d{1,3})[\s,]+(\d{1,3})[\s,]+(\d{1,3})[\s,:]+(\S.*)")
_COLOR_LAST = re.compile(r"(.*\S)[\s,:]+(\d{1,3})[\s,]+(\d{1,3})[\s,]+(\d{1,3})")
_NUMBERED_NAME = re.compile(r"(\d+)(?:\s*[:=,]\s*|\s+)(\S.*)")


@dataclass(frozen=True)
class ClassMap:
    names: tuple[str, ...]
    values: tuple[int, ...]  # mask value of each class
    void: tuple[int, ...] = ()  # mask values of ignored pixels
    color_values: tuple[tuple[Color, int], ...] = ()  # colors and the mask value of each; empty: masks contain values

    def __post_init__(self) -> None:
        if len(self.names) > VOID:
            raise DataError(f"too many classes: {len(self.names):,} (maximum {VOID}).")
        for what, all_of in (("name", self.names), ("number", self.values)):
            twice = next((one for one in all_of if all_of.count(one) > 1), None)
            if twice is not None:
                raise DataError(f"two classes have the same {what}: '{twice}'.")

    @property
    def colors(self) -> dict[Color, int] | None:
        """Mask value of each color, for `read_mask`; None if masks contain values."""
        return dict(self.color_values) or None

    def to_indices(
        self, values: NDArray[Any], path: str = "", void: int = VOID, noun: str = "mask values"
    ) -> NDArray[np.int16]:
        """Class indices of mask values or labels of points, in the order of `names`; `void` for void and negative values.

        `path` and `noun` are used in error messages."""
        unknown, limit = -2, 65536
        table = np.full(limit + 2, unknown, dtype=np.int16)  # the last entry is for negative values
        table[[*self.void, -1]] = void
        table[list(self.values)] = np.arange(len(self.values))
        indices: NDArray[np.int16] = table[values if values.dtype.kind == "u" else np.clip(values, -1, limit)]
        if indices.min(initial=0) == unknown:
            strange = np.unique(values[indices == unknown]).tolist()
            listed = f"{', '.join(map(str, strange[:5]))}{', …' if len(strange) > 5 else ''}"
            advice = "Add these values to classes.txt next to the files; name a class void to ignore it."
            raise DataError(f"{noun} without a class: {listed}.", path or None, advice=advice)
        return indices

    def unknown_values(self, values: Iterable[int]) -> list[int]:
        """Mask values without a class that are not void, sorted."""
        return sorted(set(values) - set(self.values) - set(self.void))


def find_classes(entries: Sequence[str]) -> ClassMap | None:
    """Classes from a class file in the mask folder or the folder of the table; None if there is no file."""
    for entry in entries:
        sides = paired_folders(entry, "mask")
        folder = table_folders(entry)[-1] if sides is None else sides[1]
        if (classes := find_classes_above(os.path.abspath(folder), 1 if sides is None else SEARCH_DEPTH)) is not None:
            return classes
    return None


def find_classes_above(folder: str, search_depth: int = SEARCH_DEPTH) -> ClassMap | None:
    """Classes from a class file in `folder` or its parents, `search_depth` folders in all; None if there is no file."""
    for level in (Path(folder), *Path(folder).parents[: search_depth - 1]):
        for path in (level / name for name in CLASS_FILES):
            if not path.is_file():
                continue
            try:
                classes = _read_json(path) if path.suffix == ".json" else _read_text(path)
            except DataError as error:
                raise error if error.path else DataError(error.problem, path) from error
            if not classes.names:
                raise DataError("no classes defined.", path)
            return classes
    return None


def infer_classes(values: Iterable[int]) -> ClassMap:
    """Classes of masks without a class file: one class per value. The maximum 255 or 65,535 is void if there are at least two
    other values: masks with only 0 and 255 have two classes."""
    there = sorted(set(values))
    void = tuple(value for value in VOID_VALUES if there[-1:] == [value] and len(there) > 2)
    kept = tuple(value for value in there if value not in void)
    return ClassMap(tuple(map(str, kept)), kept, void)


def _build_class_map(named: Sequence[tuple[int, str]], values: Sequence[Any], void: Sequence[int]) -> ClassMap:
    """`ClassMap` of (mask value, name) pairs and RGB values; names in `VOID_NAMES` are void."""
    colors: list[Color] = []
    for red, green, blue in (map(int, color) for color in values):
        if not all(0 <= part <= 255 for part in (red, green, blue)):
            raise DataError(f"invalid color [{red}, {green}, {blue}]: values must be between 0 and 255.")
        colors.append((red, green, blue))
    ignored = {value for value, name in named if name.lower() in VOID_NAMES} | set(void)
    kept = [(value, name) for value, name in named if value not in ignored]
    if any(not 0 <= value <= 65535 for value, _ in named):
        raise DataError("class ids must be between 0 and 65,535.")
    if colors and len(colors) != len(named):
        raise DataError(f"expected one color per class, got {len(colors)} colors for {len(named)} classes.")
    painted = tuple((color, value) for color, (value, _) in zip(colors, named, strict=bool(colors)))
    if len(dict(painted)) < len(painted):
        raise DataError("two classes have the same color.")
    return ClassMap(tuple(name for _, name in kept), tuple(value for value, _ in kept), tuple(sorted(ignored)), painted)


def _read_text(path: Path) -> ClassMap:
    texts = [text.strip() for _, text in read_lines(path) if text.strip() and not text.lstrip().startswith("#")]
    names, colors = texts, list[list[str]]()
    for form, name_at, first in ((_COLOR_FIRST, 4, 1), (_COLOR_LAST, 1, 2)):
        matches = [form.fullmatch(text) for text in names]
        if names and all(matches) and not colors:
            colors = [[match[first + n] for n in range(3)] for match in matches if match]
            names = [match[name_at].rstrip(" ,:") for match in matches if match]
    numbers = [(int(match[1]), match[2]) for name in names if (match := _NUMBERED_NAME.fullmatch(name))]
    return _build_class_map(numbers if len(numbers) == len(names) else list(enumerate(names)), colors, ())


def _read_json(path: Path) -> ClassMap:
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise DataError(f"invalid JSON: {error}.", path) from error
    is_plain = isinstance(document, dict) and "classes" not in document and all(str(key).isdigit() for key in document)
    if is_plain or isinstance(document, list):
        document = {"classes": document}
    if not isinstance(document, dict) or "classes" not in document:
        raise DataError("missing key 'classes'.", path, advice='Expected: {"classes": ["road", …], "void": 255}.')
    for key in document:
        if key not in JSON_KEYS:
            raise UnknownNameError("key", str(key), JSON_KEYS, f"File: {path}.")
    try:
        classes = document["classes"]
        pairs = sorted((int(key), name) for key, name in classes.items()) if isinstance(classes, dict) else None
        named = [(value, str(name)) for value, name in (enumerate(classes) if pairs is None else pairs)]
        colors = document.get("colours") or document.get("colors") or []
        if isinstance(colors, dict):
            colors = [colors[name] for _, name in named]
        void, values = document.get("void", []), {name: value for value, name in named}
        void = void if isinstance(void, list) else [] if void is None else [void]
        void = [values[item] if isinstance(item, str) else int(item) for item in void]
        return _build_class_map(named, colors, void)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise DataError(f"invalid value for classes, void or colors ({error}).", path) from error


# -- classes of the masks of a dataset


def file_classes(path: str) -> ClassMap | None:
    """Classes from the class file of a mask or a point cloud; None without a file."""
    return folder_classes(os.path.dirname(os.path.abspath(os.path.expanduser(path)))) if path else None


@lru_cache(maxsize=1024)
def folder_classes(folder: str) -> ClassMap | None:
    """Classes of a folder, cached because many masks share a folder."""
    classes = find_classes_above(folder)
    return None if classes is None else with_void_values(classes)


def with_void_values(classes: ClassMap) -> ClassMap:
    """The classes with `VOID_VALUES` as void, unless the class file defines them."""
    return replace(classes, void=tuple({*classes.void, *VOID_VALUES} - set(classes.values)))


def _mask_labels(sample: ImageSample) -> Sequence[str]:
    """Class names from the class file of the masks, or the pixel values of the mask."""
    known = file_classes(sample.target)
    if known is not None:
        return known.names
    return [str(value) for value in np.unique(read_mask(sample.target_content or sample.target))]


SEGMENTED = replace(
    UNLABELED,
    columns=("image", "mask"),
    samples=iterate_segmented,
    contents=_contents_with_target,
    labels=_mask_labels,
    keeps_label_order=True,  # written masks have the same class ids as the training masks
    label_source=lambda data: repr(find_classes(data)),  # the class file may be in a parent folder of the masks
)
