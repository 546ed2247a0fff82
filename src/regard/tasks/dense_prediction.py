"""Base class of segmentation and depth estimation: target maps of the same size as the image."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.batching.samplers import BatchSampler
from regard.data.images.image_io import ImageCache, free_memory
from regard.data.images.labeled import ImageSample
from regard.data.settings import DataSettings
from regard.data.text.files import chunked
from regard.errors import DataError, SettingError
from regard.processors.image import ImageProcessor, augment_maps
from regard.tasks.base import Encoded
from regard.tasks.file_task import decode_source, encode_source, sample_ids
from regard.tasks.image_task import (
    BICUBIC,
    IMAGE_AUGMENT_SETTINGS,
    ImageTask,
    Size,
    eval_batch_size,
    load_image_and_size,
)
from regard.tasks.protocol import ModelProtocol
from regard.types import Batch

MAX_MAPS = 16
"""Maximum images per batch at inference."""
BYTES_PER_PIXEL = 16
"""Memory per pixel of a map during prediction and writing."""


class DensePredictionTask(ImageTask):
    fields: ClassVar[tuple[str, ...]] = ("image", "beside")
    max_inputs = MAX_MAPS
    settings_used: ClassVar[tuple[str, ...]] = (*ImageTask.settings_used, *IMAGE_AUGMENT_SETTINGS, "data.image_size")
    target_attr: ClassVar[str]
    """attribute of a sample with the target file: mask or depth"""
    map_dtype: ClassVar[type]
    """dtype of target maps"""
    unknown_value: ClassVar[float]
    """value of unlabeled pixels"""
    aspect_tolerance: ClassVar[float] = 0.0
    """maximum relative difference between the aspect ratios of map and image if the sizes differ; 0: sizes must be equal"""
    all_unknown_message: ClassVar[str]
    """error message if all pixels are unlabeled"""

    def read_target(self, source: str | bytes, data: Any) -> np.ndarray:
        """(H, W) target map in the format for training."""
        raise NotImplementedError

    def unused_modules(self, body: Any, config: Any) -> Sequence[nn.Module]:
        """Modules after the last feature map of the head, kept for the checkpoint format but not trained."""
        return body.unused_modules([tap.index for tap in config.feature_maps()])

    def default_processor(self, config: Any, data: DataSettings) -> ImageProcessor:
        """Full image, resized to `data.image_size` or to a square."""
        shape = data.image_size or (config.image_size, config.image_size)
        return ImageProcessor((shape[0], shape[1]), "exact", resample=BICUBIC)

    def check_settings(self, config: Any, tokens: int, data: DataSettings) -> None:
        if data.mixup:
            raise SettingError(
                f"data.mixup is not supported by task '{self.name}', because the target maps cannot be mixed. "
                "Remove data.mixup."
            )

    def adapt_processor(self, processor: Any, config: Any, data: DataSettings) -> ImageProcessor:
        """The processor with `data.image_size` if set."""
        pixels: ImageProcessor = (
            processor.with_size(data.image_size[0], data.image_size[1]) if data.image_size else processor
        )
        return pixels.with_fixed_size(config.image_size)

    def fingerprint_texts(self, samples: Any) -> Iterator[str]:
        for sample in samples:
            (text,) = super().fingerprint_texts((sample,))
            yield f"{text}\0{os.path.basename(getattr(sample, self.target_attr))}"

    def encode(
        self, samples: Sequence[ImageSample], processor: Any, config: Any, max_length: int, data: DataSettings | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:  # fmt: skip
        sides = {
            "image": [encode_source(sample) for sample in samples],
            "beside": [encode_source(self._target_file(sample)) for sample in samples],
        }
        return Encoded(list(samples), sides, [], self.batch_context(processor, config, max_length, data, labels))

    def _target_file(self, sample: ImageSample) -> ImageSample:
        return ImageSample(getattr(sample, self.target_attr), content=sample.target_content)

    def sampler(self, encoded: Encoded, config: Any, tokens: int, seed: int, packed: bool) -> BatchSampler:
        plan = super().sampler(encoded, config, tokens, seed, packed)
        if ("beside", True) not in encoded.batch_context.caches:
            encoded.batch_context.caches["beside", True] = ImageCache(
                len(encoded), encoded.batch_context.train_pixels.size, dtype=self.map_dtype
            )
        return plan

    def validate_data(self, train: Encoded, valid: Encoded, config: Any, log: Callable[[str], None]) -> None:
        self._require_known_targets(train, "training")
        self._require_known_targets(valid, "validation")
        super().validate_data(train, valid, config, log)

    def _require_known_targets(self, encoded: Encoded, part: str) -> None:
        """Raise an error if all maps are unlabeled. Reading stops at the first labeled map, usually the first one."""
        sources, broken = encoded.fields["beside"], None
        for number in range(len(encoded)):
            try:
                if (
                    self.read_target(decode_source(sources[number]), encoded.batch_context) != self.unknown_value
                ).any():
                    return
            except DataError as error:  # unreadable files are skipped with a warning during training
                broken = error
        if broken is not None:
            raise broken
        first = decode_source(sources[0])
        raise DataError(
            f"{self.all_unknown_message} in this file and in all {len(encoded):,} {part} maps.",
            first if isinstance(first, str) else None,
            advice=f"Inspect the maps with 'regard check {self.name}'.",
        )

    def build_batch(self, encoded: Encoded, rows: np.ndarray, config: Any) -> Batch:
        x, changes = self.load_images(encoded, rows)
        learnt = rows.ndim == 2
        pixels: ImageProcessor = encoded.batch_context.train_pixels if learnt else encoded.batch_context.pixels

        def read(number: int) -> np.ndarray:
            found = self.read_target(decode_source(encoded.fields["beside"][number]), encoded.batch_context)
            return pixels.prepare_map(found, self.unknown_value).astype(self.map_dtype)

        maps = self.load_cached(encoded, "beside", sample_ids(rows), read, learnt, pixels.size, self.map_dtype)
        labels = torch.from_numpy(np.stack(maps))
        return Batch(x, labels=labels, augment_params=changes, augmentation=encoded.batch_context.augment)

    def eval_batches(
        self, encoded: Encoded, config: Any, tokens: int, data: DataSettings | None = None
    ) -> Iterator[Batch]:
        yield from super().eval_batches(encoded, config, min(tokens, MAX_MAPS), data)

    def prepare_pair(self, model: ModelProtocol, batch: Batch) -> Batch:
        """Normalized pixels and target maps with the same augmentation."""
        assert batch.labels is not None
        labels = batch.labels
        if batch.augment_params is not None:
            labels = augment_maps(labels, batch.augment_params, model.require_image_processor().size)
        return replace(self.prepare_inputs(model, batch), labels=labels)

    def feature_maps(self, model: ModelProtocol, batch: Batch) -> tuple[tuple[Tensor, ...], tuple[int, int]]:
        """Feature maps of the body for the head, and height and width of the pixels."""
        height, width = batch.inputs.shape[-2:]
        return model.body(batch, taps=model.head.tap_indices).hidden_states, (height, width)

    def logits(self, model: ModelProtocol, batch: Batch) -> Tensor:
        batch = self.prepare_inputs(model, batch)
        return model.head(*self.feature_maps(model, batch))

    def predict_maps(
        self, model: ModelProtocol, images: Iterable[tuple[np.ndarray, Size]]
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Each image and its prediction at the given size. Only one batch is in memory."""
        pixels = model.require_image_processor()
        for some in chunked(images, min(MAX_MAPS, eval_batch_size(pixels))):
            made = np.stack([pixels.prepare(picture) for picture, _ in some])
            x = torch.from_numpy(made).permute(0, 3, 1, 2).contiguous().to(model.device)
            with torch.inference_mode():
                found = self.logits(model, Batch(x)).float()
            found = found if found.ndim == 4 else found[:, None]
            for one, (picture, size) in zip(found, some, strict=True):
                if size != picture.shape[:2]:
                    _check_memory(size)
                yield picture, self.resize_map(one, size)

    def resize_map(self, logits: Tensor, size: Size) -> np.ndarray:
        """Output for one image (C, h, w), resized to (H, W)."""
        wide = F.interpolate(logits[None], size, mode="bilinear", align_corners=False)
        return wide[0, 0].cpu().numpy()

    def iter_predictions_and_targets(
        self, model: ModelProtocol, encoded: Encoded, count: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Image, prediction and target of the first `count` samples, at the size of the target."""
        right: deque[np.ndarray] = deque()

        def asked() -> Iterator[tuple[np.ndarray, Size]]:
            for number in range(count):
                picture, size = load_image_and_size(decode_source(encoded.fields["image"][number]))
                right.append(self.read_target(decode_source(encoded.fields["beside"][number]), encoded.batch_context))
                high, wide = right[-1].shape
                if (high, wide) != size and not abs(high * size[1] / (wide * size[0]) - 1) < self.aspect_tolerance:
                    raise DataError(
                        f"the target map is {high} x {wide}, but the image is {size[0]} x {size[1]}.",
                        getattr(encoded.samples[number], self.target_attr) if encoded.samples else None,
                    )
                yield picture, (high, wide)

        for picture, said in self.predict_maps(model, asked()):
            yield picture, said, right.popleft()


def _check_memory(size: Size) -> None:
    """Check the memory for a full-size map: an image decoded at 1/8 of its size has a map of 64 times more pixels."""
    if BYTES_PER_PIXEL * size[0] * size[1] > free_memory():
        raise DataError(
            f"Not enough free memory for a map of {size[0]:,} x {size[1]:,} pixels.",
            advice="Use a smaller image.",
        )
