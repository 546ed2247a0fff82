"""Objective `segment`: semantic segmentation of images or point clouds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.batching.samplers import BatchSampler, BatchShape
from regard.data.images.image_io import read_mask
from regard.data.images.labeled import ImageSample
from regard.data.images.masks import VOID, ClassMap, classes_from_numbers, infer_classes, mask_classes
from regard.data.settings import DataSettings
from regard.decode.settings import DecodeSettings
from regard.errors import DataError
from regard.index import resolve
from regard.nn.vision.dense import segmentation_head
from regard.tasks.base import (
    NO_WEIGHTS,
    Encoded,
    EncodingContext,
    EvalResult,
    EvalSpec,
    HeadOptions,
    Loss,
    LossWeights,
    ModelProtocol,
    Objective,
    OptionRules,
)
from regard.tasks.dense import DENSE_OPTIONS, TargetMaps, dense_logits, feature_maps
from regard.tasks.metrics.segmentation_depth import (
    SegmentationMetrics,
    class_fractions,
    format_fractions,
    format_top_fractions,
)
from regard.tasks.modality.base import sample_location
from regard.tasks.modality.image import AUGMENT_SETTINGS, load_image_and_size
from regard.types import IGNORE, Batch, Prediction

AUX_LOSS_WEIGHT = 0.4
"""Weight of the auxiliary head's loss, as in DPT."""
MAX_LOGITS = 2**25
"""Maximum number of logits in memory."""


class Segment(Objective):
    metrics = ("miou",)
    has_labels = has_file_output = True
    has_length_limit = False
    modality_options: ClassVar[Any] = {**DENSE_OPTIONS, "points": {"count": 4096, "frame": "floor", "max_inputs": 1}}
    input_settings: ClassVar[Any] = {"image": (*AUGMENT_SETTINGS, "data.image_size")}

    def __init__(self, task: Any) -> None:
        super().__init__(task)
        self.targets: Any = (
            MaskTargets() if task.input == "image" else resolve("regard.tasks.segment_points:PointTargets")()
        )
        """`MaskTargets` or `PointTargets`"""
        self.fields = self.targets.fields
        self.uses_feature_maps = task.input == "image"
        self.options = SegmentOptions(self.targets)

    def check_settings(self, config: Any, tokens: int, data: DataSettings) -> None:
        self.targets.check_settings(self, config, data)

    def adapt_config(self, config: Any) -> Any:
        return self.targets.adapt_config(config)

    def head(self, config: Any, options: HeadOptions) -> nn.Module | None:
        return self.targets.head(config, len(options.labels)) if options.labels else None

    def _encode(self, samples: Sequence[Any], config: Any, context: EncodingContext) -> Encoded:
        if len(context.options.labels) < 2:
            where = "masks" if self.task.input == "image" else "point clouds"
            raise DataError(f"Fewer than two classes found in the {where}. Segmentation needs at least two.")
        fields, _ = self.modality.encode(samples, config, context)
        return Encoded(list(samples), fields | self.targets.encode(samples, context.options), [], context)

    def validate_data(self, train: Encoded, valid: Encoded, config: Any, log: Callable[[str], None]) -> None:
        for encoded, part in ((train, "training"), (valid, "validation")):
            self.targets.require_known(encoded, part, self.name)
        super().validate_data(train, valid, config, log)

    def sampler(self, encoded: Encoded, config: Any, tokens: int, seed: int, packed: bool) -> BatchSampler:
        plan = super().sampler(encoded, config, tokens, seed, packed)
        self.targets.create_cache(encoded)
        return plan

    def collate(self, encoded: Encoded, rows: Any, config: Any, shape: BatchShape | None = None) -> Batch:
        return self.targets.collate(self, encoded, rows, config)

    def logits(self, model: ModelProtocol, batch: Batch) -> Tensor:
        """Logits of the classes: (B, C, H, W) for images, (B, N, C) for point clouds."""
        return self.targets.logits(model, batch)

    def loss(self, model: ModelProtocol, batch: Batch, terms: LossWeights = NO_WEIGHTS) -> Loss:
        """(sum, count) of the cross-entropy over labeled pixels or points."""
        return self.targets.loss(model, batch, terms)

    def predict(
        self, model: ModelProtocol, inputs: Sequence[Any], decode: DecodeSettings, first: int = 0
    ) -> list[Prediction]:
        """Fraction of each class in each input, with the classes of all pixels (`extra["mask"]`) or points
        (`extra["classes"]`)."""
        return [self._make_prediction(model, extra) for extra in self.targets.predict(model, inputs)]

    def _make_prediction(self, model: ModelProtocol, extra: dict[str, Any]) -> Prediction:
        options = model.spec.options
        value = class_fractions(extra[self.targets.classes_key], options.labels)
        known = {"labels": options.labels, "class_values": class_values(options)}
        return Prediction(value, tuple(value.values()), (), {**extra, **known})

    def _evaluate(self, model: ModelProtocol, encoded: Encoded, spec: EvalSpec) -> EvalResult:
        """Mean IoU and pixel or point accuracy in percent."""
        labels, count, targets = model.spec.options.labels, spec.count(encoded), self.targets
        metrics = SegmentationMetrics(len(labels), targets.ignore_index)
        predictions: list[Prediction] = []
        for extra, target in targets.predict_encoded(model, encoded, count):
            metrics.add(extra[targets.classes_key], target)
            one = self._make_prediction(model, extra)
            shown = len(predictions) < targets.max_figures
            predictions.append(replace(one, extra={**one.extra, "reference": target} if shown else {}))
        return metrics.report(labels, count, spec.complete, targets.unit), predictions

    def save_figures(self, folder: Path, samples: Sequence[Any], predictions: Sequence[Prediction]) -> list[str]:
        pairs = zip(samples, predictions, strict=False)
        shown = [(sample.source, one.extra) for sample, one in pairs if "reference" in one.extra]
        return self.targets.save_figures(folder, shown) if shown else []

    def write_files(self, name: str, prediction: Prediction, folder: Path) -> dict[str, str]:
        """The prediction as a figure or page, and as a file with the class ids of the training data."""
        return self.targets.write_files(name, prediction.extra, folder)

    def format_prediction(self, source: Any, prediction: Prediction) -> str:
        return format_fractions(source, prediction)

    def example_row(self, sample: Any, prediction: Prediction) -> dict[str, str]:
        return {self.modality.input_field: sample_location(sample), "prediction": format_top_fractions(prediction)}


class SegmentOptions(OptionRules):
    """Classes, and their values in masks or point labels if these differ from the class indices."""

    def __init__(self, targets: Any) -> None:
        self.targets = targets

    def fit(
        self, labels: Sequence[str], samples: Sequence[Any], data: DataSettings, initial: HeadOptions
    ) -> HeadOptions:
        if all(label.lstrip("-").isdigit() for label in labels):  # names are in order, numbers are not
            labels = infer_classes(value for value in map(int, labels) if value >= 0).names
        file: ClassMap | None = self.targets.class_file(samples[0]) if samples else None
        value = {} if file is None else dict(zip(file.names, file.values, strict=True))
        numbers = tuple(value.get(label, -1) for label in labels)
        plain = numbers == tuple(range(len(numbers))) or min(numbers, default=-1) < 0
        return HeadOptions(tuple(labels), class_ids=() if plain else numbers)


def class_values(options: HeadOptions) -> np.ndarray:
    """Value of each class in written files: ids of the class file, numeric class names, or indices."""
    words = options.class_ids or options.labels
    if not all(str(word).isdigit() and int(word) < 2**16 for word in words):
        return np.arange(len(options.labels), dtype=np.uint8)
    numbers = np.array([int(word) for word in words])
    return numbers.astype(np.uint8 if numbers.max() < 256 else np.uint16)


# -- images


def _read_mask(source: str | bytes, context: EncodingContext) -> np.ndarray:
    """(H, W) class indices in the order of the labels, or `VOID`."""
    path, labels = source if isinstance(source, str) else "", context.options.labels
    known = mask_classes(path) or classes_from_numbers(labels)
    number = {label: place for place, label in enumerate(labels)}
    table = np.full(VOID + 1, VOID, dtype=np.uint8)
    table[: len(known.names)] = [number.get(name, VOID) for name in known.names]
    return table[known.to_indices(read_mask(source, known.colors), path)]


def _resize_classes(logits: Tensor, size: tuple[int, int]) -> np.ndarray:
    """Class of each pixel, in chunks of rows: full-size logits of all classes would not fit into memory."""
    (classes, high, _), (rows, columns) = logits.shape, size
    places = ((torch.arange(rows, device=logits.device) + 0.5) * (high / rows) - 0.5).clamp(0, high - 1)
    mask = np.empty(size, np.uint8)
    for start in range(0, rows, step := max(MAX_LOGITS // (classes * columns), 1)):
        at = places[start : start + step]
        top = at.long()
        part = torch.lerp(logits[:, top], logits[:, (top + 1).clamp(max=high - 1)], (at - top)[:, None])
        wide = F.interpolate(part[None], (len(at), columns), mode="bilinear", align_corners=False)
        mask[start : start + step] = wide[0].argmax(0).cpu().numpy()
    return mask


MAPS = TargetMaps("mask", np.uint8, float(VOID), _read_mask, "every pixel is void", resize=_resize_classes)


class MaskTargets:
    """Masks of images: a class per pixel."""

    fields = ("image", "beside")
    classes_key, unit, ignore_index, max_figures = "mask", "pixel", VOID, 6

    def class_file(self, sample: ImageSample) -> ClassMap | None:
        return mask_classes(sample.mask)

    def check_settings(self, objective: Objective, config: Any, data: DataSettings) -> None:
        MAPS.check_settings(data, objective.name)

    def adapt_config(self, config: Any) -> Any:
        return config.resolve_fusion_norm(classifies=True)

    def head(self, config: Any, classes: int) -> nn.Module:
        return segmentation_head(config, classes)

    def encode(self, samples: Sequence[ImageSample], options: HeadOptions) -> dict[str, Any]:
        for known, mask in {mask_classes(sample.mask): sample.mask for sample in samples if sample.mask}.items():
            # these pixels would be ignored silently
            if known is not None and (strange := [name for name in known.names if name not in options.labels]):
                raise DataError(
                    f"class '{strange[0]}' of the class file next to this mask is unknown to this model.",
                    mask,
                    advice="Rename the class as in the training data, or map it to 'void' in the class file to ignore it.",
                )
        return {"beside": MAPS.encode(samples)}

    def require_known(self, encoded: Encoded, part: str, task: str) -> None:
        MAPS.require_known(encoded, part, task)

    def create_cache(self, encoded: Encoded) -> None:
        MAPS.create_cache(encoded)

    def collate(self, objective: Objective, encoded: Encoded, rows: Any, config: Any) -> Batch:
        return MAPS.collate(objective, encoded, rows, config)

    def logits(self, model: ModelProtocol, batch: Batch) -> Tensor:
        return dense_logits(model, batch)

    def loss(self, model: ModelProtocol, batch: Batch, terms: LossWeights) -> Loss:
        """In training plus the weighted loss of the auxiliary head."""
        batch, targets = MAPS.prepare(model, batch)
        labels = targets.long()
        labels = labels.masked_fill(labels == VOID, IGNORE)
        taps, size = feature_maps(model, batch)
        output, auxiliary = (
            model.head.forward_with_auxiliary(taps, size) if model.training else (model.head(taps, size), None)
        )
        total = F.cross_entropy(output.float(), labels, ignore_index=IGNORE, reduction="sum")
        if auxiliary is not None:
            more = F.cross_entropy(auxiliary.float(), labels, ignore_index=IGNORE, reduction="sum")
            total = total + AUX_LOSS_WEIGHT * more
        return total, (labels != IGNORE).sum()

    def predict(self, model: ModelProtocol, inputs: Sequence[Any]) -> Iterator[dict[str, Any]]:
        """The mask at the size of the file; the image is smaller if the file was decoded at a lower resolution."""
        for picture, mask in MAPS.predict(model, map(load_image_and_size, inputs)):
            yield {"mask": mask, "image": picture}

    def predict_encoded(
        self, model: ModelProtocol, encoded: Encoded, count: int
    ) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
        for picture, mask, target in MAPS.predict_encoded(model, encoded, count):
            yield {"mask": mask, "image": picture}, target

    def save_figures(self, folder: Path, shown: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
        from regard.draw.panels import DenseSample, draw_segmentations

        rows = [
            DenseSample(extra["image"], extra["mask"], extra["reference"], Path(source).name) for source, extra in shown
        ]
        return [draw_segmentations(rows, shown[0][1]["labels"], folder / "masks.png", ignore_index=VOID).name]

    def write_files(self, name: str, extra: dict[str, Any], folder: Path) -> dict[str, str]:
        """Overlay of the classes on the image, and the mask as a PNG of class ids with the same colors as palette."""
        from PIL import Image

        from regard.draw.colors import class_colors
        from regard.draw.figure import write_atomic
        from regard.draw.panels import DenseSample, draw_segmentations

        mask, labels, values = extra["mask"], extra["labels"], extra["class_values"]
        sample = DenseSample(extra["image"], mask, name=name)
        overlay = draw_segmentations([sample], labels, folder / f"{name}.classes.png")
        image = Image.fromarray(values[mask])
        if values.dtype == np.uint8:  # only 8-bit images have a palette
            colors = np.zeros((int(values.max()) + 1, 3), np.uint8)
            colors[values] = class_colors(len(labels))
            image.putpalette(colors.ravel().tolist())
        path = write_atomic(folder / f"{name}.mask.png", lambda to: image.save(to, format="PNG"))
        return {"image": str(overlay), "mask": str(path)}
