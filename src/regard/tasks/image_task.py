"""Base class of image tasks: files, decoding, augmentation and batches.

A batch contains uint8 images (B, 3, H, W) and, in training, random augmentation parameters (`Batch.augment_params`).
Cropping, flipping and color jitter run on the device, so batches are small and a deterministic function of their number."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from regard.data.batching.samplers import BatchSampler, Uniform
from regard.data.file_discovery import IMAGE_SUFFIXES
from regard.data.images.image_io import (
    DECODE_THREADS,
    MAX_PIXELS,
    ImageCache,
    image_to_array,
    inspect_image,
    read_image,
)
from regard.data.images.labeled import ImageSample, read_unlabeled
from regard.data.settings import DataSettings
from regard.data.text.files import ErrorHandler
from regard.data.text.tables import SkippedRow
from regard.errors import RegardError
from regard.processors.image import NO_AUGMENT, Augment, ImageProcessor, augment_images, sample_params
from regard.processors.palette import FILE, Palette
from regard.tasks.base import Encoded
from regard.tasks.file_task import (
    EVAL_BATCH_SIZE,
    FileSampleTask,
    decode_source,
    reservoir_sample,
    sample_ids,
    warn_once,
)
from regard.tasks.protocol import ModelProtocol
from regard.types import Batch

TRAIN_SCALE = 8 / 7
"""Size factor of training images for random crops: 256 pixels for 224."""

MIN_CROP_SIZE = 128
"""Minimum image size for a center crop of larger images, as usual for photographs."""

BICUBIC = 3
"""Bicubic filter of Pillow."""

PALETTE_SAMPLES = 2048
"""Number of randomly chosen images for the color palette."""


Size = tuple[int, int]
"""Height and width."""


@dataclass(frozen=True)
class ImageBatchContext:
    """Preprocessing, augmentation and caches of images: see `Task.batch_context`."""

    pixels: ImageProcessor | Palette
    augment: Augment
    caches: dict[tuple[str, bool], ImageCache] = field(default_factory=dict)
    """by field and training mode"""

    @property
    def train_pixels(self) -> ImageProcessor | Palette:
        """Processor of training images, with a larger size for random crops."""
        if self.augment.crop == 1 or min(self.pixels.size) < MIN_CROP_SIZE:  # small images would become blurry
            return self.pixels
        return self.pixels.scaled(TRAIN_SCALE)


IMAGE_AUGMENT_SETTINGS = ("data.crop_scale", "data.shift", "data.flip", "data.color_jitter", "data.random_erasing")
"""Settings of image augmentation in training."""


class ImageTask(FileSampleTask):
    modality = "image"
    batch_unit = "images"
    unit = "images"
    sample_type = ImageSample
    usage = "image.jpg"
    suffixes = IMAGE_SUFFIXES
    processor_files: ClassVar[tuple[str, ...]] = ("preprocessor_config.json",)
    fields: ClassVar[tuple[str, ...]] = ("image",)
    settings_used: ClassVar[tuple[str, ...]] = ("train.batch_size",)

    # -- samples

    def iter_table(
        self, entry: str, columns: Mapping[str, str] | None, complain: ErrorHandler
    ) -> Iterator[ImageSample | SkippedRow]:
        """Images listed or contained in a table; labels are ignored."""
        return read_unlabeled(entry, columns, complain)

    # -- processor

    def load_processor(self, folder: Path) -> ImageProcessor | Palette | None:
        return Palette.load(folder) or (ImageProcessor.load(folder) if ImageProcessor.exists(folder) else None)

    def save_processor(self, processor: ImageProcessor | Palette, config: Any, folder: Path) -> None:
        processor.save(folder)

    def default_processor(self, config: Any, data: DataSettings) -> ImageProcessor | None:
        """Full image for small sizes, center crop for larger ones; None for models with a palette, fitted to the data."""
        if config.traits.palette:
            return None
        edge = round(TRAIN_SCALE * config.image_size) if config.image_size >= MIN_CROP_SIZE else 0
        return ImageProcessor((config.image_size, config.image_size), "shortest", edge, crop=True, resample=BICUBIC)

    def adapt_processor(
        self, processor: ImageProcessor | Palette, config: Any, data: DataSettings
    ) -> ImageProcessor | Palette:
        return processor.with_fixed_size(config.image_size) if isinstance(processor, ImageProcessor) else processor

    def fit_processor(self, samples: Iterable[ImageSample], config: Any, data: DataSettings) -> Palette:
        """Palette with at most `num_colors` colors, fitted to a random subset of the images."""
        pictures = (
            read_sample_image(sample, min_size=config.image_size)
            for sample in reservoir_sample(samples, PALETTE_SAMPLES)
        )
        return Palette.fit(pictures, config.num_colors, config.image_size)

    def fit_config(self, config: Any, processor: Any) -> Any:
        return replace(config, num_colors=len(processor)) if isinstance(processor, Palette) else config

    def describe_processor(self, processor: ImageProcessor | Palette) -> str:
        height, width = processor.size
        palette = f", palette of {len(processor):,} colors" if isinstance(processor, Palette) else ""
        return f"image size {height} x {width} pixels{palette}"

    def batch_budget(self, train: Any) -> int:
        return train.batch_size if train.batch_size > 0 else 128

    # -- batches

    def batch_context(
        self, processor: Any, config: Any, max_length: int, data: DataSettings | None, labels: Sequence[str] = ()
    ) -> ImageBatchContext:
        check_image_processor(processor, config)
        return ImageBatchContext(processor, NO_AUGMENT if data is None else self.augment(data))

    def augment(self, data: DataSettings) -> Augment:
        apart = 4 / 3 if data.crop_scale < 1 else 1.0
        return Augment(
            data.crop_scale,
            apart,
            data.flip,
            data.color_jitter,
            data.mixup,
            shift=data.shift,
            erase=data.random_erasing,
        )

    def sampler(self, encoded: Encoded, config: Any, tokens: int, seed: int, packed: bool) -> BatchSampler:
        """The cache is created before the data loader workers are forked, so that all workers share its memory."""
        if ("image", True) not in encoded.batch_context.caches:
            height, width = encoded.batch_context.train_pixels.size
            encoded.batch_context.caches["image", True] = ImageCache(len(encoded), (height, width, 3))
        return Uniform(len(encoded), tokens, seed)

    def eval_batch_size(self, context: Any) -> int:
        return eval_batch_size(context.pixels)

    def eval_batches(
        self, encoded: Encoded, config: Any, tokens: int, data: DataSettings | None = None
    ) -> Iterator[Batch]:
        for rows in Uniform(
            len(encoded), min(tokens, self.eval_batch_size(encoded.batch_context)), seed=0
        ).sequential():
            yield self.collate(encoded, rows, config)

    def load_images(self, encoded: Encoded, rows: np.ndarray) -> tuple[Tensor, Tensor | None]:
        """(B, 3, H, W) uint8 images and augmentation parameters; rows (B, 2) are for training, (B,) for evaluation."""
        how: ImageBatchContext = encoded.batch_context
        learnt = rows.ndim == 2
        pixels = how.train_pixels if learnt else how.pixels
        numbers, side = sample_ids(rows), encoded.fields["image"]

        def read(number: int) -> np.ndarray:
            # evaluation decodes as inference does; training may decode at a lower resolution, with different pixels
            return pixels.prepare(read_image(decode_source(side[number]), pixels.min_side if learnt else 0))

        found = self.load_cached(encoded, "image", numbers, read, learnt, (*pixels.size, 3))
        x = torch.from_numpy(np.stack(found)).permute(0, 3, 1, 2).contiguous()
        if not learnt or how.augment.is_identity:
            return x, None
        random = np.random.default_rng(rows[:, 1].tolist())
        return x, torch.from_numpy(sample_params(random, len(rows), how.augment))

    def load_cached(
        self, encoded: Encoded, field: str, rows: np.ndarray, read: Callable[[int], np.ndarray], training: bool,
        shape: tuple[int, ...], dtype: Any = np.uint8,
    ) -> list[np.ndarray]:  # fmt: skip
        """Cached arrays if all samples fit into memory. Training decodes in data loader workers, evaluation in threads."""
        albums = encoded.batch_context.caches
        if (field, training) not in albums:
            albums[field, training] = ImageCache(0 if training else len(encoded), shape, dtype=dtype)
        return albums[field, training].get_many(rows.tolist(), read, 1 if training else DECODE_THREADS)

    def prepare_inputs(self, model: ModelProtocol, batch: Batch) -> Batch:
        """Batch with augmented and normalized pixels, or palette colors. Only uint8 batches are changed."""
        if batch.inputs.dtype != torch.uint8:
            return batch
        pixels = model.require_image_processor()
        check_image_processor(pixels, model.config)
        x = batch.inputs
        if batch.augment_params is not None:
            x = augment_images(x, batch.augment_params, pixels.size, batch.augmentation)
        return replace(batch, inputs=pixels.normalize(x), augment_params=None)

    # -- inference

    def is_single(self, inputs: Any) -> bool:
        return isinstance(inputs, str | bytes | os.PathLike | np.ndarray) or hasattr(inputs, "convert")

    def open_inputs(self, inputs: Sequence[Any], pixels: ImageProcessor | Palette) -> Tensor:
        """Preprocessed uint8 images (B, 3, H, W), opened one at a time to limit memory."""
        made = np.stack([pixels.prepare(load_image(item)) for item in inputs])
        return torch.from_numpy(made).permute(0, 3, 1, 2).contiguous()


def eval_batch_size(pixels: ImageProcessor | Palette) -> int:
    """Images per batch at inference: more for small images, 1 if images have different sizes."""
    height, width = pixels.size
    fits = EVAL_BATCH_SIZE * 224**2 // (height * width) if isinstance(pixels, ImageProcessor) else 0
    return 1 if pixels.has_variable_size else min(max(fits, EVAL_BATCH_SIZE), 16 * EVAL_BATCH_SIZE)


def load_image(item: Any) -> np.ndarray:
    """Load a path, the bytes of a file, a uint8 array (H, W, 3), or a Pillow image."""
    return load_image_and_size(item)[0]


def load_image_and_size(item: Any) -> tuple[np.ndarray, Size]:
    """Image and its original height and width. Files above the pixel limit are downscaled, with a warning."""
    picture = _in_memory_image(item)
    if picture is not None:
        return picture, (picture.shape[0], picture.shape[1])
    picture, facts = inspect_image(item if isinstance(item, bytes) else os.fspath(item), full=False)
    if facts.downscaled:
        warn_once(
            f"warning: {'image' if isinstance(item, bytes) else os.fspath(item)}: {facts.height:,} x {facts.width:,} pixels "
            f"exceed the limit of {MAX_PIXELS // 10**6} million pixels; decoded at {picture.shape[0]:,} x "
            f"{picture.shape[1]:,}."
        )
    return picture, (facts.height, facts.width)


def _in_memory_image(item: Any) -> np.ndarray | None:
    """An array or Pillow image as an array; None for files."""
    if isinstance(item, np.ndarray):
        if item.dtype != np.uint8 or item.ndim != 3 or item.shape[2] != 3:
            raise RegardError(f"Expected a uint8 array of shape (H, W, 3), got {item.dtype} {item.shape}.")
        return item
    return image_to_array(item) if hasattr(item, "convert") else None


def read_sample_image(sample: ImageSample, min_size: int) -> np.ndarray:
    """Pixels of a sample. Large files are downscaled to at least `min_size` pixels on the shorter side."""
    return read_image(sample.content or sample.source, min_size, sample.location)


def check_image_processor(processor: Any, config: Any) -> None:
    """Raise an error if the processor does not match the model."""
    if isinstance(processor, Palette) != config.traits.palette:
        kinds = ("palette colors", "pixels")
        expected, found = kinds if config.traits.palette else kinds[::-1]
        raise RegardError(f"{FILE} does not match the model: the model expects {expected}, the file produces {found}.")
    if isinstance(processor, Palette) and (len(processor), processor.side) != (config.num_colors, config.image_size):
        raise RegardError(
            f"The checkpoint has a palette of {len(processor)} colors and images of {processor.side} px; the settings have "
            f"{config.num_colors} colors and {config.image_size} px. Remove model.num_colors and "
            "model.image_size: the checkpoint defines both."
        )
