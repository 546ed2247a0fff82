"""Task `classify` for images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.images.labeled import ImageSample, iterate_images
from regard.data.settings import DataSettings
from regard.data.text.tables import SkippedRow
from regard.decode.settings import DecodeSettings
from regard.errors import SettingError
from regard.nn.blocks.heads import ClassifierHead
from regard.nn.kernels.losses import cross_entropy
from regard.processors.image import mixup_weights
from regard.tasks.base import Encoded, LossWeights
from regard.tasks.file_classification import ClassificationMixin
from regard.tasks.image_task import IMAGE_AUGMENT_SETTINGS, ImageTask, eval_batch_size
from regard.tasks.multilabel import (
    MULTILABEL,
    PUBLISHED_PROBLEM_TYPE,
    binary_cross_entropy,
    is_multilabel,
    match_label_format,
    parse_problem_type,
)
from regard.tasks.protocol import ModelProtocol
from regard.types import Batch, Prediction


class ImageClassification(ClassificationMixin, ImageTask):
    description = "Image classification, single- or multi-label."
    columns = ("image", "label")
    default_model = "vit-tiny"
    fields = ("image", "label")
    settings_used = (
        *ImageTask.settings_used,
        *IMAGE_AUGMENT_SETTINGS,
        "data.mixup",
        *ClassificationMixin.settings_used,
    )

    def iter_samples(
        self, data: Sequence[str], columns: Mapping[str, str] | None = None
    ) -> Iterator[ImageSample | SkippedRow]:
        return iterate_images(data, columns)

    def parse_head_options(self, published_config: Mapping[str, Any], labels: Sequence[str]) -> str:
        return parse_problem_type(published_config, labels)

    def export_head_options(self, head_options: str) -> dict[str, Any]:
        return {"problem_type": PUBLISHED_PROBLEM_TYPE} if MULTILABEL in head_options.split() else {}

    def adapt_config(self, config: Any) -> Any:
        return replace(config, lm_head=False) if config.traits.optional_lm_head else config

    def check_settings(self, config: Any, tokens: int, data: DataSettings) -> None:
        if data.mixup and config.traits.palette:
            raise SettingError(
                "data.mixup is not supported by models with a color palette, because palette colors cannot be averaged. "
                "Supported: data.crop_scale, data.shift, data.flip and data.color_jitter."
            )

    def head(self, config: Any, labels: Sequence[str]) -> nn.Module | None:
        if not labels:
            return None
        return ClassifierHead(
            "classes",
            config.feature_maps()[-1].channels,
            len(labels),
            config.head_dropout,
            config.head_bias,
            std=config.head_std,
        )

    def build_batch(self, encoded: Encoded, rows: np.ndarray, config: Any) -> Batch:
        x, changes = self.load_images(encoded, rows)
        return Batch(
            x, labels=self.label_ids(encoded, rows), augment_params=changes, augmentation=encoded.batch_context.augment
        )

    def logits(self, model: ModelProtocol, batch: Batch) -> Tensor:
        return self.require_head(model)(model.body(self.prepare_inputs(model, batch)).pooled)

    def loss(self, model: ModelProtocol, batch: Batch, terms: LossWeights = LossWeights()) -> tuple[Tensor, Tensor]:  # noqa: B008
        assert batch.labels is not None
        logits = self.logits(model, batch)
        if is_multilabel(model):
            # image datasets have one label per image; only pretrained models are multi-label
            return binary_cross_entropy(logits, match_label_format(model, batch.labels), terms.smoothing)
        if batch.augment_params is None or not batch.augmentation.mixup:
            return cross_entropy(logits, batch.labels, terms.smoothing)
        weight, partner = mixup_weights(batch.augment_params)
        # the loss is linear in the targets: the loss of mixed targets is the mixture of two losses
        kept, count = _weighted_cross_entropy(logits, batch.labels, weight, terms.smoothing)
        other, _ = _weighted_cross_entropy(logits, batch.labels[partner], 1 - weight, terms.smoothing)
        return kept + other, count

    def predict(
        self, model: ModelProtocol, inputs: Sequence[Any], decode: DecodeSettings, first: int = 0
    ) -> list[Prediction]:
        """Class of each image (a path, bytes, an array or a Pillow image), with all probabilities."""
        answers = []
        pixels = model.require_image_processor()
        for start in range(0, len(inputs), most := eval_batch_size(pixels)):
            x = self.open_inputs(inputs[start : start + most], pixels)
            answers += self.make_predictions(model, self.predict_probabilities(model, Batch(x)), decode)
        return answers


def _weighted_cross_entropy(logits: Tensor, labels: Tensor, weight: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """(sum, count) of the cross-entropy with a weight per row; label smoothing is distributed over the other classes."""
    chances = F.log_softmax(logits.float(), -1)
    right = chances.gather(1, labels[:, None])[:, 0]
    others = (chances.sum(1) - right) / (chances.shape[1] - 1)
    loss = -(1 - smoothing) * right - smoothing * others
    return (weight * loss).sum(), torch.full((), float(len(labels)), device=logits.device)
