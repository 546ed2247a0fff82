"""Labeled images in three disjoint splits: training, validation and test."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.batching.split import HeldOutKeys
from regard.data.images.labeled import ImageSample
from regard.data.text.tables import SkippedRow
from regard.errors import DataError
from regard.runs.preprocess import LogFn
from regard.runs.scan import TrainingFiles, describe_empty_rows, log_progress, sort_labels
from regard.runs.settings import resolve
from regard.runs.spec import DataSources
from regard.tasks import Task, find_task
from regard.tasks.file_task import reservoir_sample

IMAGE_TASK = find_task("classify", "image")
"""Task that reads the images."""
HOLDOUT_FRACTION, MAX_HOLDOUT = 0.2, 5_000
"""Fraction of the images held out for a split without files, and maximum number."""

BoolMask = NDArray[np.bool_]
Columns = Mapping[str, str]


@dataclass(frozen=True)
class ImageSplit:
    """Images of some files, selected by a mask over all samples in order."""

    files: tuple[str, ...]
    columns: Columns
    mask: BoolMask

    def __len__(self) -> int:
        return int(self.mask.sum())

    def __iter__(self) -> Iterator[ImageSample]:
        found = (
            item
            for item in IMAGE_TASK.iter_samples(self.files, self.columns or None)
            if not isinstance(item, SkippedRow)
        )
        return compress(found, self.mask)


@dataclass(frozen=True)
class ImageSplits:
    train: ImageSplit
    valid: ImageSplit
    test: ImageSplit
    classes: tuple[str, ...]

    def counts(self) -> dict[str, int]:
        return {"train": len(self.train), "valid": len(self.valid), "test": len(self.test)}


@dataclass
class _ImageList:
    """Keys, labels and locations of images, without reading the files."""

    files: tuple[str, ...]
    columns: Columns
    keys: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    locations: list[str] = field(default_factory=list)
    """identify images independent of their labels"""

    def split(self, marks: BoolMask | None = None) -> ImageSplit:
        return ImageSplit(self.files, self.columns, np.ones(len(self.keys), bool) if marks is None else marks)

    def location_mask(self, homes: set[str]) -> BoolMask:
        return np.fromiter((home in homes for home in self.locations), bool, len(self.locations))

    def holdout_mask(self, left: BoolMask, name: str) -> BoolMask:
        """Mask of a fraction of the remaining images, held out by a content hash."""
        held = HeldOutKeys(compress(self.keys, left), HOLDOUT_FRACTION, MAX_HOLDOUT, salt=f"probe {name}")
        return left & np.fromiter((key in held for key in self.keys), bool, len(self.keys))


def split_images(
    data: tuple[str, ...], valid: tuple[str, ...], test: tuple[str, ...], columns: Columns, run_metadata: Mapping[str, Any],
    max_images: int, log: LogFn,
) -> ImageSplits:  # fmt: skip
    """Split images. Without `test` the test split is the validation data of the run (`run_metadata`) if it was trained on
    these files, otherwise a fraction of the images. At most `max_images` are used for training."""
    every = _list_images(data, columns, log)
    classes = sort_labels(set(every.labels))
    if len(classes) < 2:
        raise DataError(f"expected at least 2 classes, got 1 ('{classes[0]}').", ", ".join(data))
    others = {name: _list_images(files, columns, log) for name, files in (("valid", valid), ("test", test)) if files}
    left = np.ones(len(every.keys), bool)
    for name, other in others.items():
        _check_labels(other, classes)
        shared = left & every.location_mask(set(other.locations))
        left &= ~shared
        if shared.any():
            log(
                f"note: {IMAGE_TASK.format_count(int(shared.sum()))} of --data also in --{name}; not used for training."
            )
    found = {name: other.split() for name, other in others.items()}
    if "test" not in found:
        marks = left & every.location_mask(_run_holdout(run_metadata, data, log))
        if marks.any():
            log(f"Testing on the {IMAGE_TASK.format_count(int(marks.sum()))} that this run held out during training.")
        else:
            marks = every.holdout_mask(left, "test")
            log(f"note: no --test given; {IMAGE_TASK.format_count(int(marks.sum()))} held out (by content hash).")
            if _trained_on(run_metadata, data):
                log("warning: the model was trained on these files: accuracy on unseen images may be lower.")
        found["test"], left = every.split(marks), left & ~marks
    if "valid" not in found:
        marks = every.holdout_mask(left, "valid")
        found["valid"], left = every.split(marks), left & ~marks
    if left.sum() > max_images:
        log(
            f"Training on a random sample of {max_images:,} of {IMAGE_TASK.format_count(int(left.sum()))} (--max-images)."
        )
        kept = np.zeros_like(left)
        kept[reservoir_sample(np.flatnonzero(left), max_images)] = True
        left = kept
    if not left.any():
        raise DataError("no training images left.", ", ".join(data), advice="Pass other images with --valid or --test.")
    return ImageSplits(every.split(left), found["valid"], found["test"], classes)


def _list_images(files: tuple[str, ...], columns: Columns, say: LogFn) -> _ImageList:
    found, empty = _ImageList(files, columns), list[SkippedRow]()
    for item in log_progress(IMAGE_TASK.iter_samples(files, columns or None), f"{IMAGE_TASK.unit} found", say):
        if isinstance(item, SkippedRow):
            empty.append(item)
            continue
        found.keys.append(IMAGE_TASK.split_key(item))
        found.labels.append(item.label)
        found.locations.append(_location(item))
    if empty:
        say(describe_empty_rows(IMAGE_TASK, len(empty), empty[0].path, empty[0].line))
    return found


def _check_labels(other: _ImageList, classes: Sequence[str]) -> None:
    strange = [n for n, label in enumerate(other.labels) if label not in classes]
    if strange:
        named = ", ".join(f"'{label}'" for label in sorted({other.labels[n] for n in strange})[:5])
        raise DataError(
            f"{IMAGE_TASK.format_count(len(strange))} of class {named}, which is not in --data.",
            ", ".join(other.files),
            advice="Add images of this class to --data, or remove them here.",
        )


def _location(sample: ImageSample) -> str:
    return f"{os.path.abspath(sample.path)}\0{sample.line}" if sample.content else os.path.abspath(sample.source)


def _trained_on(own: Mapping[str, Any], data: tuple[str, ...]) -> bool:
    """True if the run was trained on one of these files."""
    return bool(set(own.get("sources", {}).get("data", ())) & set(data))


def _run_holdout(own: Mapping[str, Any], data: tuple[str, ...], say: LogFn) -> set[str]:
    """Locations of the images of these files that the run held out for validation."""
    if not _trained_on(own, data):
        return set()
    sources, task = DataSources.from_dict(own["sources"]), _run_task(own)
    if sources.valid:
        return set()
    held = TrainingFiles(task, sources, resolve(own["settings"], {}).data.valid_fraction, say).scan().held
    return {_location(sample) for sample in held}


def _run_task(own: Mapping[str, Any]) -> Task:
    return find_task(str(own["task"]), "image")
