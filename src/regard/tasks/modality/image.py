"""Images: decoding, preprocessing, augmentation and batches.

A batch contains uint8 images (B, 3, H, W) and, in training, random augmentation parameters (`Batch.augmentation`).
Cropping, flipping and color jitter run on the device, so batches are small and a deterministic function of their number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import PIL.Image
import torch
from torch import Tensor, nn

from regard.data.batching.samplers import BatchSampler, BatchShape, Uniform
from regard.data.images import image_io
from regard.data.images.labeled import ImageSample
from regard.data.settings import DataSettings
from regard.decode.settings import DecodeSettings
from regard.errors import InputTypeError, RegardError
from regard.index import print_note
from regard.nn.blocks.heads import ClassifierHead
from regard.processors.image import Augment, CaptionProcessor, ImageProcessor, augment_images, sample_params
from regard.processors.palette import FILE, Palette
from regard.tasks.base import EVAL_BATCH_SIZE, Encoded, EncodingContext, Inputs, Model, describe, is_file
from regard.tasks.modality import base as modality
from regard.tasks.modality.base import FILE_TYPES, file_content
from regard.types import Augmentation, Batch

TRAIN_SCALE = 8 / 7  # size factor of training images for random crops: 256 pixels for 224
MIN_CROP_SIZE = 128  # minimum image size for a center crop of larger images, as usual for photographs
BICUBIC = 3  # bicubic filter of Pillow
PALETTE_SAMPLES = 2048  # number of randomly chosen images for the color palette

Size = tuple[int, int]  # height and width


class Image(modality.Modality):
    """Images, converted to pixels or to color ids of a palette."""

    name, batch_unit, input_field = "image", "images", "image"
    noun = "an image (path, bytes, file, array, tensor or Pillow image)"
    reads_files = True
    processor_files: ClassVar[tuple[str, ...]] = ("preprocessor_config.json",)
    settings = ("train.batch_size",)
    default_batch_size = 128
    fit_message = "Computing a color palette from the training images …"

    def __init__(self, whole: bool = False, max_inputs: int = 512) -> None:
        """`whole`: new models read the whole image at `data.image_size`, for targets of the size of the image."""
        self.whole, self.max_inputs = whole, max_inputs

    def is_single(self, inputs: Any) -> bool:
        if isinstance(inputs, np.ndarray | Tensor):  # of rank 4: a batch
            return inputs.ndim < 4
        return isinstance(inputs, (*FILE_TYPES, PIL.Image.Image)) or is_file(inputs)

    # -- processor

    def default_processor(self, config: Any, data: DataSettings) -> ImageProcessor | None:
        """Full image for small sizes, center crop for larger ones; None for models with a palette, fitted to the data."""
        if self.whole:
            height, width = data.image_size or (config.image_size, config.image_size)
            return ImageProcessor((height, width), "exact", resample=BICUBIC)
        if config.traits.palette:
            return None
        edge = round(TRAIN_SCALE * config.image_size) if config.image_size >= MIN_CROP_SIZE else 0
        return ImageProcessor((config.image_size, config.image_size), "shortest", edge, crop=True, resample=BICUBIC)

    def fit_processor(self, samples: Iterable[ImageSample], config: Any, data: DataSettings) -> Palette:
        """Palette with at most `num_colors` colors, fitted to a random subset of the images."""
        pictures = (
            read_sample_image(sample, min_size=config.image_size)
            for sample in modality.reservoir_sample(samples, PALETTE_SAMPLES)
        )
        return Palette.fit(pictures, config.num_colors, config.image_size)

    def load_processor(self, folder: Path) -> Any:
        return Palette.load(folder) or ImageProcessor.load(folder)

    def adapt_processor(self, processor: Any, config: Any, data: DataSettings) -> Any:
        """One image size: `data.image_size` if set for whole images, or the size of the config."""
        if self.whole and data.image_size:
            processor = processor.with_size(*data.image_size)
        return processor.with_fixed_size(config.image_size) if isinstance(processor, ImageProcessor) else processor

    def fit_config(self, config: Any, processor: Any) -> Any:
        return replace(config, num_colors=len(processor)) if isinstance(processor, Palette) else config

    def describe_processor(self, processor: Any) -> str:
        height, width = processor.size
        palette = f", palette of {len(processor):,} colors" if isinstance(processor, Palette) else ""
        return f"image size {height} x {width} pixels{palette}"

    # -- batches

    def encode(self, samples: Sequence[Any], config: Any, context: EncodingContext) -> modality.InputFields:
        check_image_processor(image_processor(context), config)
        return {"image": [modality.encode_source(sample.source, sample.content) for sample in samples]}, []

    def sampler(self, encoded: Encoded, config: Any, tokens: int, seed: int, packed: bool) -> BatchSampler:
        """The cache is created before the data loader workers are forked, so that all workers share its memory."""
        create_cache(encoded, "image", np.uint8, 3)
        return Uniform(len(encoded), tokens, seed)

    def eval_rows(self, encoded: Encoded, tokens: int) -> Iterator[np.ndarray]:
        size = min(tokens, eval_batch_size(image_processor(encoded.context)))
        return iter(Uniform(encoded.num_rows, min(size, self.max_inputs) if self.whole else size, seed=0).sequential())

    def collate(
        self, encoded: Encoded, rows: np.ndarray, config: Any, labels: Tensor | None, shape: BatchShape | None = None
    ) -> Batch:
        x, params = load_images(encoded, rows)
        changes = None if params is None else Augmentation(params, augmentation(encoded.context))
        return Batch(x, labels=labels, augmentation=changes)

    # -- classification

    def class_head(self, config: Any, outputs: int) -> nn.Module:
        width, bias = config.feature_maps()[-1].channels, config.head_bias
        return ClassifierHead("classes", width, outputs, config.head_dropout, bias, std=config.head_std)

    def pooled(self, model: Model, batch: Batch) -> tuple[Tensor, Any]:
        return super().pooled(model, prepare_images(model, batch))

    def input_batches(self, model: Model, inputs: Inputs, count: int, decode: DecodeSettings) -> modality.InputBatches:
        pixels = require_image_processor(model)
        for start in range(0, count, size := eval_batch_size(pixels)):
            rows = np.arange(start, min(start + size, count))
            if isinstance(inputs, Encoded):
                x, _ = load_images(inputs, rows)
            else:
                x = stack_images([pixels.prepare(load_image(inputs[row])) for row in rows.tolist()])
            yield rows, Batch(x)


# -- batches


def require_image_processor(model: Model) -> Any:
    """Image processor or palette of the model. A missing processor is an error."""
    found = model.processor.pixels if isinstance(model.processor, CaptionProcessor) else model.processor
    if not isinstance(found, ImageProcessor | Palette):
        raise RegardError(
            f"{model.spec.source or 'this model'} has no preprocessor_config.json, which defines the image preprocessing. "
            "logits(pixels) and states(pixels) work without this file."
        )
    return found


def create_cache(encoded: Encoded, field: str, dtype: Any, *channels: int) -> None:
    """Cache of decoded training images or maps of a field."""
    if (field, True) not in encoded.context.cache:
        shape = (*train_processor(encoded.context).size, *channels)
        encoded.context.cache[field, True] = image_io.ImageCache(len(encoded), shape, dtype=dtype)


def load_images(encoded: Encoded, rows: np.ndarray) -> tuple[Tensor, Tensor | None]:
    """(B, 3, H, W) uint8 images and augmentation parameters; rows (B, 2) are for training, (B,) for evaluation."""
    training, augment = rows.ndim == 2, augmentation(encoded.context)
    pixels = train_processor(encoded.context) if training else image_processor(encoded.context)
    side = encoded.fields["image"]

    def read(number: int) -> np.ndarray:
        # evaluation decodes as inference does; training may decode at a lower resolution, with different pixels
        return pixels.prepare(
            image_io.read_image(modality.decode_source(side[number]), pixels.min_side if training else 0)
        )

    x = stack_images(load_cached(encoded, "image", rows, read, (*pixels.size, 3)))
    if not training or augment == Augment():
        return x, None
    return x, torch.from_numpy(sample_params(np.random.default_rng(rows[:, 1].tolist()), len(rows), augment))


def load_cached(
    encoded: Encoded,
    field: str,
    rows: np.ndarray,
    read: Callable[[int], np.ndarray],
    shape: tuple[int, ...],
    dtype: Any = np.uint8,
) -> list[np.ndarray]:
    """Cached arrays if all samples fit into memory. Training decodes in data loader workers, evaluation in threads."""
    training, caches = rows.ndim == 2, encoded.context.cache
    if (field, training) not in caches:
        caches[field, training] = image_io.ImageCache(0 if training else len(encoded), shape, dtype=dtype)
    return caches[field, training].get_many(
        modality.sample_ids(rows).tolist(), read, 1 if training else image_io.DECODE_THREADS
    )


def prepare_images(model: Model, batch: Batch) -> Batch:
    """Batch with augmented and normalized pixels, or palette colors. Only uint8 batches are changed."""
    if batch.inputs.dtype != torch.uint8:
        return batch
    pixels = require_image_processor(model)
    check_image_processor(pixels, model.config)
    x = batch.inputs
    if batch.augmentation is not None:
        x = augment_images(x, batch.augmentation.params, pixels.size, batch.augmentation.settings)
    return replace(batch, inputs=pixels.normalize(x), augmentation=None)


def stack_images(images: Sequence[np.ndarray]) -> Tensor:
    """Preprocessed images (H, W, 3) as a tensor (B, 3, H, W)."""
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()


def image_processor(context: EncodingContext) -> Any:
    """Image processor or palette of the encoded samples; the processor of captions also has a tokenizer."""
    return getattr(context.processor, "pixels", context.processor)


def train_processor(context: EncodingContext) -> Any:
    """Processor of training images, with a larger size for random crops."""
    pixels = image_processor(context)
    if augmentation(context).crop == 1 or min(pixels.size) < MIN_CROP_SIZE:  # small images would become blurry
        return pixels
    return pixels.scaled(TRAIN_SCALE)


def augmentation(context: EncodingContext) -> Augment:
    data = context.data
    if data is None:
        return Augment()
    return Augment(data.crop_scale, data.flip, data.color_jitter, data.mixup, data.shift, data.random_erasing)


def eval_batch_size(pixels: ImageProcessor | Palette) -> int:
    """Images per batch at inference: more for small images, 1 if images have different sizes."""
    height, width = pixels.size
    if isinstance(pixels, Palette):
        return EVAL_BATCH_SIZE
    fits = EVAL_BATCH_SIZE * 224**2 // (height * width)
    return 1 if pixels.has_variable_size else min(max(fits, EVAL_BATCH_SIZE), 16 * EVAL_BATCH_SIZE)


def load_image(item: Any) -> np.ndarray:
    """Load a path, the bytes of a file, an open file, an array or tensor of gray, RGB or RGBA pixels, or a Pillow image."""
    return load_image_and_size(item)[0]


def load_image_and_size(item: Any) -> tuple[np.ndarray, Size]:
    """Image and its original height and width. Files above the pixel limit are downscaled, with a warning."""
    source = file_content(item)
    if source is None:
        if isinstance(item, PIL.Image.Image):
            picture = image_io.image_to_array(item)
        elif isinstance(item, Tensor):
            values = item.detach().cpu()
            picture = image_io.pixels_to_rgb((values.float() if values.is_floating_point() else values).numpy(), True)
        elif isinstance(item, np.ndarray):
            picture = image_io.pixels_to_rgb(item)
        else:
            raise InputTypeError(f"Expected {Image.noun}, got {describe(item)}.")
        return picture, (picture.shape[0], picture.shape[1])
    picture, facts = image_io.inspect_image(source, full=False)
    if facts.downscaled:
        print_note(
            f"warning: {'image' if isinstance(source, bytes) else source}: {facts.height:,} x {facts.width:,} pixels "
            f"exceed the limit of {image_io.MAX_PIXELS // 10**6} million pixels; decoded at {picture.shape[0]:,} x "
            f"{picture.shape[1]:,}."
        )
    return picture, (facts.height, facts.width)


def read_sample_image(sample: ImageSample, min_size: int) -> np.ndarray:
    """Pixels of a sample. Large files are downscaled to at least `min_size` pixels on the shorter side."""
    return image_io.read_image(sample.content or sample.source, min_size, sample.location)


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
