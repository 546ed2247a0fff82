"""Target maps of the size of the image, shared by segmentation and depth estimation."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.images.image_io import free_memory
from regard.data.images.labeled import ImageSample
from regard.data.settings import DataSettings
from regard.data.text.files import chunked
from regard.errors import DataError, SettingError
from regard.processors.image import augment_maps
from regard.tasks.base import Encoded, EncodingContext, ModelProtocol, Objective
from regard.tasks.modality.base import decode_source, encode_source, readable_batch, require_known_targets
from regard.tasks.modality.image import (
    Size,
    create_cache,
    eval_batch_size,
    image_processor,
    load_cached,
    load_image_and_size,
    prepare_images,
    stack_images,
    train_processor,
)
from regard.types import Batch

MAX_MAPS = 16
"""Maximum images per batch at inference."""
BYTES_PER_PIXEL = 16
"""Memory per pixel of a map during prediction and writing."""
DENSE_OPTIONS = {"image": {"whole": True, "max_inputs": MAX_MAPS}}
"""Arguments of the image modality: the whole image at the size of the maps."""


def resize_map(output: Tensor, size: Size) -> np.ndarray:
    """Output for one image (C, h, w), resized to (H, W)."""
    return F.interpolate(output[None], size, mode="bilinear", align_corners=False)[0, 0].cpu().numpy()


@dataclass(frozen=True)
class TargetMaps:
    """Target maps of images: reading, batches, and predictions of the size of the image."""

    attribute: str
    """attribute of a sample with the target file: mask or depth"""
    dtype: type
    unknown_value: float
    """value of unlabeled pixels"""
    read: Callable[[str | bytes, EncodingContext], np.ndarray]
    """(H, W) target map in the format for training"""
    unknown_message: str
    """error message if all pixels are unlabeled"""
    aspect_tolerance: float = 0.0
    """maximum relative difference between the aspect ratios of map and image if the sizes differ; 0: sizes must be equal"""
    resize: Callable[[Tensor, Size], np.ndarray] = resize_map
    """output for one image (C, h, w) at the size of the map"""

    def check_settings(self, data: DataSettings, task: str) -> None:
        if data.mixup:
            raise SettingError(
                f"data.mixup is not supported by task '{task}', because the target maps cannot be mixed. "
                "Remove data.mixup."
            )

    # -- batches

    def encode(self, samples: Sequence[ImageSample]) -> list[np.ndarray]:
        """Sources of the target maps for the token store."""
        return [encode_source(getattr(sample, self.attribute), sample.target_content) for sample in samples]

    def target(self, encoded: Encoded, number: int) -> np.ndarray:
        """(H, W) target map of a sample."""
        return self.read(decode_source(encoded.fields["beside"][number]), encoded.context)

    def require_known(self, encoded: Encoded, part: str, task: str) -> None:
        """Raise an error if all maps are unlabeled."""
        message = f"{self.unknown_message} in this file and in all {len(encoded):,} {part} maps."
        require_known_targets(
            encoded,
            lambda number: bool((self.target(encoded, number) != self.unknown_value).any()),
            message,
            decode_source,
            f"Inspect the maps with 'regard check {task}'.",
        )

    def create_cache(self, encoded: Encoded) -> None:
        """Cache of training maps, shared by the data loader workers."""
        create_cache(encoded, "beside", self.dtype)

    def collate(self, objective: Objective, encoded: Encoded, rows: Any, config: Any) -> Batch:
        """Images with their target maps as labels."""

        def build(rows: np.ndarray) -> Batch:
            pixels = train_processor(encoded.context) if rows.ndim == 2 else image_processor(encoded.context)

            def read(number: int) -> np.ndarray:
                return pixels.prepare_map(self.target(encoded, number), self.unknown_value).astype(self.dtype)

            batch = objective.modality.collate(encoded, rows, config, None)
            maps = load_cached(encoded, "beside", rows, read, pixels.size, self.dtype)
            return replace(batch, labels=torch.from_numpy(np.stack(maps)))

        return readable_batch(build, rows, objective)

    def prepare(self, model: ModelProtocol, batch: Batch) -> tuple[Batch, Tensor]:
        """Normalized pixels, and target maps with the same augmentation."""
        labels = batch.labels
        assert labels is not None
        if batch.augmentation is not None:
            labels = augment_maps(labels, batch.augmentation.params, model.require_image_processor().size)
        return prepare_images(model, batch), labels

    # -- predictions

    def predict(
        self, model: ModelProtocol, images: Iterable[tuple[np.ndarray, Size]]
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Each image and its prediction at the given size. Only one batch is in memory."""
        pixels = model.require_image_processor()
        for some in chunked(images, min(MAX_MAPS, eval_batch_size(pixels))):
            x = stack_images([pixels.prepare(picture) for picture, _ in some]).to(model.device)
            with torch.inference_mode():
                outputs = dense_logits(model, Batch(x)).float()
            outputs = outputs if outputs.ndim == 4 else outputs[:, None]
            for output, (picture, size) in zip(outputs, some, strict=True):
                # an image decoded at 1/8 of its size has a map of 64 times more pixels
                if size != picture.shape[:2] and BYTES_PER_PIXEL * size[0] * size[1] > free_memory():
                    raise DataError(
                        f"Not enough free memory for a map of {size[0]:,} x {size[1]:,} pixels.",
                        advice="Use a smaller image.",
                    )
                yield picture, self.resize(output, size)

    def predict_encoded(
        self, model: ModelProtocol, encoded: Encoded, count: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Image, prediction and target of the first `count` samples, at the size of the target."""
        targets: deque[np.ndarray] = deque()

        def images() -> Iterator[tuple[np.ndarray, Size]]:
            for number in range(count):
                picture, size = load_image_and_size(decode_source(encoded.fields["image"][number]))
                targets.append(self.target(encoded, number))
                high, wide = targets[-1].shape
                if (high, wide) != size and not abs(high * size[1] / (wide * size[0]) - 1) < self.aspect_tolerance:
                    raise DataError(
                        f"the target map is {high} x {wide}, but the image is {size[0]} x {size[1]}.",
                        getattr(encoded.samples[number], self.attribute) if encoded.samples else None,
                    )
                yield picture, (high, wide)

        for picture, prediction in self.predict(model, images()):
            yield picture, prediction, targets.popleft()


def feature_maps(model: ModelProtocol, batch: Batch) -> tuple[tuple[Tensor, ...], Size]:
    """Feature maps of the body for the head, and height and width of the pixels."""
    height, width = batch.inputs.shape[-2:]
    return model.body(batch, taps=model.head.tap_indices).hidden_states, (height, width)


def dense_logits(model: ModelProtocol, batch: Batch) -> Tensor:
    """Outputs of the head for each pixel."""
    return model.head(*feature_maps(model, prepare_images(model, batch)))
