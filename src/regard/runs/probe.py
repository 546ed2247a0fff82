"""`probe`: linear probes on the layers of an image model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.images.image_io import DECODE_THREADS, free_memory
from regard.data.images.labeled import ImageSample
from regard.data.text.files import chunked
from regard.data.text.tables import SkippedRow
from regard.draw.charts import draw_layer_scores
from regard.draw.figure import check_suffix
from regard.errors import DataError, RegardError, SettingError
from regard.index import read_config_files
from regard.model import Model, load
from regard.processors.image import ImageProcessor
from regard.runs.evaluate import small_sample_warning
from regard.runs.linear_probe import ProbeLayer, extract_features, probe_layers
from regard.runs.linear_probe import probe as classifiers
from regard.runs.preprocess import HeldOutKeys, LogFn, TrainingFiles, describe_empty_rows, log_progress, sort_labels
from regard.runs.settings import resolve
from regard.runs.spec import DataSources, expand_paths
from regard.runs.terminal import ProgressPrinter
from regard.tasks import Task, find_task
from regard.tasks.base import EVAL_BATCH_SIZE
from regard.tasks.classify import label_ids
from regard.tasks.draw import prepare_colors
from regard.tasks.modality.base import reservoir_sample
from regard.tasks.modality.image import prepare_images, read_sample_image
from regard.training.distributed import pick_device
from regard.types import Batch

MAX_IMAGES = 60_000
"""Default of the maximum number of training images."""
MAX_STATE_VALUES = 2**27
"""Maximum number of hidden state values in memory."""
MEMORY_FRACTION = 0.5
"""Maximum fraction of free memory for the features of all images."""

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class LayerAccuracy:
    """Accuracies of one layer in percent."""

    layer: str
    accuracy: float
    """on the test split"""
    valid: float
    """on the validation split, which selects the penalty"""
    penalty: float


@dataclass(frozen=True)
class ProbeReport:
    layers: list[LayerAccuracy]
    classes: tuple[str, ...]
    counts: dict[str, int]
    """number of images per split"""
    figure: Path | None = None

    @property
    def best(self) -> LayerAccuracy:
        """Layer with the highest accuracy; the first one of equals."""
        return max(self.layers, key=lambda known: known.accuracy)

    def as_dict(self) -> dict[str, Any]:
        found = {"layers": [asdict(known) for known in self.layers], "best": asdict(self.best)}
        return {**found, "classes": list(self.classes), **self.counts, "figure": self.figure and str(self.figure)}


def probe(
    folder: str | os.PathLike[str],
    data: Paths = (),
    *,
    valid: Paths = (),
    test: Paths = (),
    columns: Mapping[str, str] | None = None,
    max_images: int = MAX_IMAGES,
    out: str | os.PathLike[str] | None = None,
    device: str = "auto",
    dtype: str | None = None,
    log: LogFn = lambda line: None,
) -> ProbeReport:
    """Accuracy of linear classifiers on the features of each layer of a run or a Hugging Face checkpoint.

    Trains on at most `max_images` images of `data`, or of the training data of the run; the accuracy is measured on `test`
    or on held-out images and drawn to `out`, a .png or .svg file."""
    if max_images < 2:
        raise SettingError(f"--max-images must be at least 2, got {max_images}.")
    path = None if out is None else Path(out)
    if path is not None:
        check_suffix(path, (".png", ".svg"))
    _, own = read_config_files(Path(folder))
    model = load(Path(folder), device=pick_device(device), dtype=dtype)
    if model.dtype_note:
        log(model.dtype_note)
    if model.task.input != "image":
        raise RegardError(
            f"{folder}: linear probes require an image model; this model has the task {model.task.name} "
            f"on {model.task.input} inputs."
        )
    model.require_image_processor()
    files = [expand_paths(IMAGE_TASK, paths) for paths in (data, valid, test)]
    parts = _make_splits(str(folder), files, columns or {}, own, max_images, log)
    log(
        f"Images    {parts.counts()['train']:,} for training, {parts.counts()['valid']:,} for selecting the penalty, "
        f"{parts.counts()['test']:,} for the accuracy"
    )
    if few := small_sample_warning(IMAGE_TASK, len(parts.test)):
        log(f"warning: {few}. Add images with --test.")
    layers = probe_layers(model.config)
    _check_memory(layers, parts)
    looks = _ImageBatches(model, layers, parts)
    train, valid_, test_ = (
        extract_features(model.body, looks.batches(part), layers) for part in (parts.train, parts.valid, parts.test)
    )
    found = classifiers(train, valid_, test_, model.device, on_progress=ProgressPrinter("layers"))
    known = [
        LayerAccuracy(layer.name, round(one.accuracy, 2), round(one.valid_accuracy, 2), one.penalty)
        for layer, one in zip(layers, found, strict=True)
    ]
    made = ProbeReport(known, parts.classes, parts.counts(), path)
    if path is not None:
        _draw(made, Path(folder).name, path)
    return made


def _make_splits(
    folder: str,
    files: Sequence[tuple[str, ...]],
    columns: Mapping[str, str],
    own: Mapping[str, Any],
    most: int,
    say: LogFn,
) -> ImageSplits:
    data, valid, test = files
    if data:
        return split_images(data, valid, test, columns, own, most, say)
    if "sources" not in own:
        raise SettingError(f"{folder} is not a run folder, so it has no data. Pass images with --data.")
    kept = own["sources"]
    return split_images(
        tuple(kept["data"]), valid, test or tuple(kept["valid"]), columns or kept["columns"], own, most, say
    )


def _check_memory(layers: Sequence[ProbeLayer], parts: ImageSplits) -> None:
    """Raise an error before the computation if the features do not fit into memory."""
    each, count = 4 * sum(layer.width for layer in layers), sum(parts.counts().values())
    room = int(MEMORY_FRACTION * free_memory())
    if each * count > room:
        fewer = max(room // each - len(parts.valid) - len(parts.test), 2)
        raise RegardError(
            f"The features of {len(layers)} layers for {count:,} images need {each * count / 2**30:,.1f} GiB; "
            f"{room / 2**30:,.1f} GiB are available. Use fewer images: --max-images {fewer}."
        )


class _ImageBatches:
    """Batches of preprocessed images, decoded in advance by threads."""

    def __init__(self, model: Model, layers: Sequence[ProbeLayer], parts: ImageSplits) -> None:
        self.model, self.classes, self.progress = model, parts.classes, ProgressPrinter(READER.unit)
        self.processor = model.require_image_processor()
        self.total, self.done = sum(parts.counts().values()), 0
        height, width = self.processor.size
        each = sum(height * width * layer.width // layer.stride**2 for layer in layers)
        self.batch_size = max(1, min(EVAL_BATCH_SIZE, MAX_STATE_VALUES // max(each, 1)))
        if isinstance(self.processor, ImageProcessor) and self.processor.resize != "exact" and not self.processor.crop:
            self.batch_size = 1  # images have different sizes

    def batches(self, part: ImageSplit) -> Iterator[Batch]:
        with ThreadPoolExecutor(DECODE_THREADS) as pool:
            before: tuple[list[ImageSample], Iterator[NDArray[np.uint8]]] | None = None
            for some in chunked(part, self.batch_size):
                now = some, pool.map(self._read, some)
                if before is not None:
                    yield self._batch(*before)
                before = now
            if before is not None:
                yield self._batch(*before)

    def _read(self, sample: ImageSample) -> NDArray[np.uint8]:
        return self.processor.prepare(read_sample_image(sample, self.processor.min_side))

    def _batch(self, samples: list[ImageSample], read: Iterator[NDArray[np.uint8]]) -> Batch:
        x = torch.from_numpy(np.stack(list(read))).permute(0, 3, 1, 2).contiguous()
        labels = torch.tensor(label_ids(samples, [sample.label for sample in samples], self.classes))
        self.progress(self.done, self.total)
        self.done += len(samples)
        batch = Batch(x, labels=labels).to(self.model.device)
        return (prepare_colors if self.model.task.name == "draw" else prepare_images)(self.model, batch)


def _draw(made: ProbeReport, name: str, path: Path) -> None:
    counts = made.counts
    about = (
        f"Accuracy of a linear classifier ({len(made.classes)} classes) on the hidden states of each layer; "
        f"{counts['train']:,} training images, {counts['test']:,} test images."
    )
    values = [known.accuracy for known in made.layers]
    draw_layer_scores(
        {"accuracy": values}, path, f"Linear probe accuracy: {name}", about, [x.layer for x in made.layers]
    )


IMAGE_TASK = find_task("classify", "image")
"""Task that reads the images."""
READER = IMAGE_TASK.reader
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
        found = (item for item in READER.samples(self.files, self.columns or None) if not isinstance(item, SkippedRow))
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
    data: tuple[str, ...],
    valid: tuple[str, ...],
    test: tuple[str, ...],
    columns: Columns,
    run_metadata: Mapping[str, Any],
    max_images: int,
    log: LogFn,
) -> ImageSplits:
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
            log(f"note: {READER.format_count(int(shared.sum()))} of --data also in --{name}; not used for training.")
    found = {name: other.split() for name, other in others.items()}
    if "test" not in found:
        marks = left & every.location_mask(_run_holdout(run_metadata, data, log))
        if marks.any():
            log(f"Testing on the {READER.format_count(int(marks.sum()))} that this run held out during training.")
        else:
            marks = every.holdout_mask(left, "test")
            log(f"note: no --test given; {READER.format_count(int(marks.sum()))} held out (by content hash).")
            if _trained_on(run_metadata, data):
                log("warning: the model was trained on these files: accuracy on unseen images may be lower.")
        found["test"], left = every.split(marks), left & ~marks
    if "valid" not in found:
        marks = every.holdout_mask(left, "valid")
        found["valid"], left = every.split(marks), left & ~marks
    if left.sum() > max_images:
        log(f"Training on a random sample of {max_images:,} of {READER.format_count(int(left.sum()))} (--max-images).")
        kept = np.zeros_like(left)
        kept[reservoir_sample(np.flatnonzero(left), max_images)] = True
        left = kept
    if not left.any():
        raise DataError("no training images left.", ", ".join(data), advice="Pass other images with --valid or --test.")
    return ImageSplits(every.split(left), found["valid"], found["test"], classes)


def _list_images(files: tuple[str, ...], columns: Columns, say: LogFn) -> _ImageList:
    found, empty = _ImageList(files, columns), list[SkippedRow]()
    for item in log_progress(READER.samples(files, columns or None), f"{READER.unit} found", say):
        if isinstance(item, SkippedRow):
            empty.append(item)
            continue
        found.keys.append(READER.split_key(item))
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
            f"{READER.format_count(len(strange))} of class {named}, which is not in --data.",
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
