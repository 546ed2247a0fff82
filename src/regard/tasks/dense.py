"""Targets for each pixel or point: checks before training, and maps of the size of the image (segmentation and depth)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.batching.samplers import BatchSampler, BatchShape
from regard.data.images.image_io import free_memory
from regard.data.images.labeled import ImageSample
from regard.data.settings import DataSettings
from regard.data.text.files import chunked
from regard.draw.panels import DenseSample
from regard.errors import DataError, SettingError
from regard.processors.image import augment_maps
from regard.tasks import base
from regard.tasks.base import Encoded, EncodingContext, Model, Objective
from regard.tasks.modality import image as modality
from regard.tasks.modality.base import decode_source, encode_source, readable_batch
from regard.tasks.modality.image import require_image_processor
from regard.types import Batch, Prediction

MAX_MAPS = 16  # maximum images per batch at inference
MapPrediction = tuple[np.ndarray, np.ndarray, Any]  # image, predicted map, and target
BYTES_PER_PIXEL = 16  # memory per pixel of a map during prediction and writing


class DenseObjective(Objective):
    """Objective with a target for each pixel or point."""

    has_file_output = True
    has_length_limit = False
    unknown_value: ClassVar[float]  # value of unlabeled pixels or points
    unknown_message: ClassVar[str]  # error message if all pixels or points are unlabeled
    target_unit: ClassVar[str]  # plural noun for targets in messages

    def _target(self, encoded: Encoded, number: int) -> np.ndarray:
        """Target of each pixel or point of a sample."""
        raise NotImplementedError

    def _target_file(self, encoded: Encoded, number: int) -> str | bytes:
        """Path or contents of the file with the target."""
        return decode_source(encoded.fields["beside"][number])

    def validate_data(self, train: Encoded, valid: Encoded, config: Any, log: Callable[[str], None]) -> None:
        """Also raise an error if all targets are unlabeled. Reading stops at the first label, usually in the first sample."""
        for encoded, part in ((train, "training"), (valid, "validation")):
            broken = None
            for number in range(len(encoded)):
                try:
                    if (self._target(encoded, number) != self.unknown_value).any():
                        break
                except DataError as error:  # unreadable files are skipped with a warning during training
                    broken = error
            else:
                if broken is not None:
                    raise broken
                path = self._target_file(encoded, 0)
                raise DataError(
                    f"{self.unknown_message} in this file and in all {len(encoded):,} {part} {self.target_unit}.",
                    path if isinstance(path, str) and path else None,
                    advice=f"Inspect the {self.target_unit} with 'regard check {self.name}'.",
                )
        super().validate_data(train, valid, config, log)


class MapObjective(DenseObjective):
    """Target maps of images: reading, batches, and predictions of the size of the image."""

    fields = ("image", "beside")
    uses_feature_maps = True
    modality_options: ClassVar[Any] = {"image": {"whole": True, "max_inputs": MAX_MAPS}}
    settings: ClassVar[tuple[str, ...]] = (*base.AUGMENT_SETTINGS, "data.image_size")
    target_unit = "maps"
    map_dtype: ClassVar[type]
    aspect_tolerance: ClassVar[float] = 0.0
    """maximum relative difference between the aspect ratios of map and image if the sizes differ; 0: sizes must be equal"""

    def _read_map(self, source: str | bytes, context: EncodingContext) -> np.ndarray:
        """(H, W) target map in the format for training."""
        raise NotImplementedError

    def _resize(self, output: Tensor, size: modality.Size) -> np.ndarray:
        """Output for one image (C, h, w), resized to (H, W)."""
        return F.interpolate(output[None], size, mode="bilinear", align_corners=False)[0, 0].cpu().numpy()

    def check_settings(self, config: Any, tokens: int, data: DataSettings) -> None:
        if data.mixup:
            raise SettingError(
                f"data.mixup is not supported by task '{self.name}', because the target maps cannot be mixed. "
                "Remove data.mixup."
            )

    # -- batches

    def encode(self, samples: Sequence[ImageSample], config: Any, context: EncodingContext) -> Encoded:
        fields, _ = self.modality.encode(samples, config, context)
        fields["beside"] = [encode_source(one.target, one.target_content) for one in samples]
        return Encoded(list(samples), fields, [], context)

    def _target(self, encoded: Encoded, number: int) -> np.ndarray:
        return self._read_map(self._target_file(encoded, number), encoded.context)

    def sampler(self, encoded: Encoded, config: Any, tokens: int, seed: int, packed: bool) -> BatchSampler:
        plan = super().sampler(encoded, config, tokens, seed, packed)
        modality.create_cache(encoded, "beside", self.map_dtype)
        return plan

    def collate(self, encoded: Encoded, rows: Any, config: Any, shape: BatchShape | None = None) -> Batch:
        """Images with their target maps as labels."""

        def build(rows: np.ndarray) -> Batch:
            processor_of = modality.train_processor if rows.ndim == 2 else modality.image_processor
            pixels = processor_of(encoded.context)

            def read(number: int) -> np.ndarray:
                return pixels.prepare_map(self._target(encoded, number), self.unknown_value).astype(self.map_dtype)

            batch = self.modality.collate(encoded, rows, config, None)
            maps = modality.load_cached(encoded, "beside", rows, read, pixels.size, self.map_dtype)
            return replace(batch, labels=torch.from_numpy(np.stack(maps)))

        return readable_batch(build, rows, self)

    def logits(self, model: Model, batch: Batch) -> Tensor:
        """Outputs of the head for each pixel."""
        return model.head(*feature_maps(model, modality.prepare_images(model, batch)))

    # -- predictions

    def _predict_maps(self, model: Model, inputs: base.Inputs, count: int) -> Iterator[MapPrediction]:
        """Image, prediction and target, if known, of the first `count` inputs. Only one batch is in memory."""
        pixels = require_image_processor(model)
        images = (self._read_input(inputs, number) for number in range(count))
        for some in chunked(images, min(MAX_MAPS, modality.eval_batch_size(pixels))):
            x = modality.stack_images([pixels.prepare(picture) for picture, *_ in some]).to(model.device)
            with torch.inference_mode():
                outputs = self.logits(model, Batch(x)).float()
            outputs = outputs if outputs.ndim == 4 else outputs[:, None]
            for output, (picture, size, target) in zip(outputs, some, strict=True):
                # an image decoded at 1/8 of its size has a map of 64 times more pixels
                if size != picture.shape[:2] and BYTES_PER_PIXEL * size[0] * size[1] > free_memory():
                    raise DataError(
                        f"Not enough free memory for a map of {size[0]:,} x {size[1]:,} pixels.",
                        advice="Use a smaller image.",
                    )
                yield picture, self._resize(output, size), target

    def _read_input(self, inputs: base.Inputs, number: int) -> tuple[np.ndarray, modality.Size, Any]:
        """Image, size of the prediction, and target of an encoded sample. The size is the size of the target, if known."""
        if not isinstance(inputs, Encoded):
            return *modality.load_image_and_size(inputs[number]), None
        picture, size = modality.load_image_and_size(decode_source(inputs.fields["image"][number]))
        target = self._target(inputs, number)
        high, wide = target.shape
        if (high, wide) != size and not abs(high * size[1] / (wide * size[0]) - 1) < self.aspect_tolerance:
            raise DataError(
                f"the target map is {high} x {wide}, but the image is {size[0]} x {size[1]}.",
                inputs.samples[number].target if inputs.samples else None,
            )
        return picture, (high, wide), target


def figure_samples(samples: Sequence[Any], predictions: Sequence[Prediction], key: str) -> list[Any]:
    """Samples of the figure with the map `extra[key]`, of predictions with a reference."""
    return [
        DenseSample(one.extra["image"], one.extra[key], one.extra["reference"], Path(sample.source).name)
        for sample, one in zip(samples, predictions, strict=False)
        if "reference" in one.extra
    ]


def augmented_maps(model: Model, batch: Batch) -> tuple[tuple[tuple[Tensor, ...], modality.Size], Tensor]:
    """Feature maps of normalized pixels with the size of the image, and target maps with the same augmentation."""
    labels = batch.require_labels()
    if batch.augmentation is not None:
        labels = augment_maps(labels, batch.augmentation.params, require_image_processor(model).size)
    return feature_maps(model, modality.prepare_images(model, batch)), labels


def feature_maps(model: Model, batch: Batch) -> tuple[tuple[Tensor, ...], modality.Size]:
    """Feature maps of the body for the head, and height and width of the pixels."""
    height, width = batch.inputs.shape[-2:]
    return model.body(batch, taps=model.head.tap_indices).hidden_states, (height, width)
