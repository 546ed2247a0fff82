"""Classes of segmentation masks, from a class file or from the values of the masks.

`classes.txt` has one class per line: the name, in the order of mask values from 0; or a value and a name; or a name with
RGB values before or after the name. Classes named void, ignore or unlabeled are excluded from training. `classes.json` is a
list of names, an object of values and names, or `{"classes": [...], "void": 255, "colors": [[128, 64, 128], ...]}`.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.images.image_io import Color, read_mask
from regard.data.images.labeled import UNLABELED, ImageSample, iterate_segmented, paired_folders
from regard.data.reader import file_contents
from regard.data.text.files import read_lines
from regard.errors import DataError, UnknownNameError

CLASS_FILES = ("classes.json", "classes.txt")
SEARCH_DEPTH = 3
"""Number of folders to search: the folder of the masks and two parent folders."""
VOID = 255
"""Index of ignored pixels; therefore at most 255 classes."""
VOID_NAMES = ("void", "ignore", "ignored", "unlabelled", "unlabeled", "don't care", "dontcare")
JSON_KEYS = ("classes", "void", "colours", "colors")

_COLOR_FIRST = re.compile(r"(\d{1,3})[\s,]+(\d{1,3})[\s,]+(\d{1,3})[\s,:]+(\S.*)")
_COLOR_LAST = re.compile(r"(.*\S)[\s,:]+(\d{1,3})[\s,]+(\d{1,3})[\s,]+(\d{1,3})")
_NUMBERED_NAME = re.compile(r"(\d+)(?:\s*[:=,]\s*|\s+)(\S.*)")


@dataclass(frozen=True)
class ClassMap:
    names: tuple[str, ...]
    values: tuple[int, ...]
    """mask value of each class"""
    void: tuple[int, ...] = ()
    """mask values of ignored pixels"""
    color_values: tuple[tuple[Color, int], ...] = ()
    """colors and the mask value of each; empty: masks contain values"""

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
        folder = os.path.dirname(os.path.expanduser(entry)) if sides is None else sides[1]
        if (classes := find_classes_above(os.path.abspath(folder), 1 if sides is None else SEARCH_DEPTH)) is not None:
            return classes
    return None


def find_classes_above(folder: str, search_depth: int = SEARCH_DEPTH) -> ClassMap | None:
    """Classes from a class file in `folder` or its parents, `search_depth` folders in all; None if there is no file."""
    for _ in range(search_depth):
        for name in CLASS_FILES:
            if os.path.isfile(os.path.join(folder, name)):
                return read_classes(os.path.join(folder, name))
        folder = os.path.dirname(folder)
    return None


def infer_classes(values: Iterable[int]) -> ClassMap:
    """Classes of masks without a class file: one class per value. The maximum 255 or 65,535 is void if the value below does
    not occur and there are at least two other values: masks with only 0 and 255 have two classes."""
    there = sorted(set(values))
    void = tuple(value for value in (255, 65535) if there[-1:] == [value] and value - 1 not in there and len(there) > 2)
    kept = tuple(value for value in there if value not in void)
    return ClassMap(tuple(map(str, kept)), kept, void)


def read_classes(path: str | Path) -> ClassMap:
    path = Path(path)
    try:
        classes = _read_json(path) if path.suffix == ".json" else _read_text(path)
    except DataError as error:
        raise error if error.path else DataError(error.problem, path) from error
    if not classes.names:
        raise DataError("no classes defined.", path)
    return classes


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

VOID_VALUES = frozenset((255, 65535))
"""Values of void pixels in 8-bit and 16-bit masks."""


def mask_classes(mask: str) -> ClassMap | None:
    """Classes from the class file of a mask; None without a file."""
    return folder_classes(os.path.dirname(os.path.abspath(mask))) if mask else None


@functools.lru_cache(maxsize=1024)
def folder_classes(folder: str) -> ClassMap | None:
    """Classes of a folder, cached because many masks share a folder."""
    classes = find_classes_above(folder)
    return None if classes is None else with_void_values(classes)


def with_void_values(classes: ClassMap) -> ClassMap:
    """The classes with `VOID_VALUES` as void, unless the class file defines them."""
    return replace(classes, void=tuple({*classes.void, *VOID_VALUES} - set(classes.values)))


def classes_from_numbers(labels: Sequence[str]) -> ClassMap:
    """Classes of masks or point clouds without a class file: names are numbers."""
    values = tuple(map(int, labels))
    return ClassMap(tuple(labels), values, tuple(VOID_VALUES - set(values)))


def _mask_labels(sample: ImageSample) -> Sequence[str]:
    """Class names from the class file of the masks, or the pixel values of the mask."""
    known = mask_classes(sample.mask)
    if known is not None:
        return known.names
    return [str(value) for value in np.unique(read_mask(sample.target_content or sample.mask))]


SEGMENTED = replace(
    UNLABELED,
    columns=("image", "mask"),
    samples=iterate_segmented,
    contents=lambda sample: (f"{text}\0{os.path.basename(sample.mask)}" for text in file_contents(sample)),
    labels=_mask_labels,
    keeps_label_order=True,  # written masks have the same class ids as the training masks
    label_source=lambda data: repr(find_classes(data)),  # the class file may be in a parent folder of the masks
)
