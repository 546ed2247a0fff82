"""Objective `segment`: semantic segmentation of images or point clouds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.images.image_io import read_mask
from regard.data.images.labeled import (
    VOID,
    VOID_VALUES,
    ClassMap,
    ImageSample,
    file_classes,
    infer_classes,
    with_void_values,
)
from regard.data.settings import DataSettings
from regard.decode.settings import DecodeSettings
from regard.draw.colors import class_colors
from regard.draw.figure import write_atomic
from regard.draw.panels import DenseSample, draw_segmentations, save_classes
from regard.errors import DataError
from regard.nn.vision.dense import segmentation_head
from regard.tasks import Task, base
from regard.tasks.dense import DenseObjective, MapObjective, augmented_maps, figure_samples
from regard.tasks.metrics.segmentation_depth import SegmentationMetrics
from regard.tasks.modality.base import sample_location
from regard.tasks.modality.image import Size
from regard.types import IGNORE, Batch, Prediction

AUX_LOSS_WEIGHT = 0.4  # weight of the auxiliary head's loss, as in DPT
MAX_LOGITS = 2**25  # maximum number of logits in memory
ClassPrediction = tuple[dict[str, Any], Any]  # `Prediction.extra` with the classes, and the target of an encoded sample


class Segment(DenseObjective):
    """Classes of pixels or points; `SegmentImages` and `SegmentPoints` read, batch and predict them."""

    metrics = ("miou",)
    has_labels = True
    classes_key: ClassVar[str]  # entry of `Prediction.extra` with the classes
    class_unit: ClassVar[str]  # noun for one class: pixel or point
    max_figures: ClassVar[int]  # maximum number of validation samples in the figure

    def _require_classes(self, options: base.HeadOptions) -> None:
        if len(options.labels) < 2:
            where = "masks" if self.task.input == "image" else "point clouds"
            raise DataError(f"Fewer than two classes found in the {where}. Segmentation needs at least two.")

    def _predict_classes(self, model: base.Model, inputs: base.Inputs, count: int) -> Iterator[ClassPrediction]:
        """Predictions of the first `count` inputs."""
        raise NotImplementedError

    def predict(self, model: base.Model, inputs: list[Any], decode: DecodeSettings, first: int = 0) -> list[Prediction]:
        """Fraction of each class in each input, with the classes of all pixels (`extra["mask"]`) or points
        (`extra["classes"]`)."""
        return [self._make_prediction(model, extra) for extra, _ in self._predict_classes(model, inputs, len(inputs))]

    def _make_prediction(self, model: base.Model, extra: dict[str, Any]) -> Prediction:
        options, classes = model.spec.options, extra[self.classes_key]
        shares = np.bincount(classes.ravel(), minlength=len(options.labels)) / max(classes.size, 1)
        value = {options.labels[n]: round(float(shares[n]), 4) for n in np.argsort(-shares) if shares[n] > 0}
        known = {"labels": options.labels, "class_values": class_values(options)}
        return Prediction(value, tuple(value.values()), (), {**extra, **known})

    def evaluate(self, model: base.Model, encoded: base.Encoded, spec: base.EvalSpec) -> base.EvalResult:
        """Mean IoU and pixel or point accuracy in percent."""
        labels, count = model.spec.options.labels, spec.count(encoded)
        metrics = SegmentationMetrics(len(labels), int(self.unknown_value))
        predictions: list[Prediction] = []
        for extra, target in self._predict_classes(model, encoded, count):
            metrics.add(extra[self.classes_key], target)
            one = self._make_prediction(model, extra)
            shown = len(predictions) < self.max_figures
            predictions.append(replace(one, extra={**one.extra, "reference": target} if shown else {}))
        found = {"miou": metrics.mean_iou(), f"{self.class_unit}_accuracy": metrics.accuracy()}
        scores: base.Scores = {name: round(100 * value, 2) for name, value in found.items()}
        scores |= {"samples": count, **({"per_class": metrics.table(labels)} if spec.complete else {})}
        return scores, predictions

    def format_prediction(self, source: Any, prediction: Prediction) -> str:
        return "\t".join([str(source), *(f"{name} {100 * share:.1f} %" for name, share in prediction.value.items())])

    def example_row(self, sample: Any, prediction: Prediction) -> dict[str, str]:
        largest = ", ".join(f"{name} {100 * share:.0f} %" for name, share in list(prediction.value.items())[:4])
        return {self.modality.input_field: sample_location(sample), "prediction": largest}


def segment(task: Task) -> Segment:
    """Objective for the input modality of the task."""
    if task.input == "image":
        return SegmentImages(task)
    made: Segment = resolve_name("regard.tasks.segment_points:SegmentPoints")(task)
    return made


@dataclass(frozen=True)
class SegmentOptions(base.OptionRules):
    """Classes, and their values in masks or point labels if these differ from the class indices."""

    class_file: Callable[[str], ClassMap | None]  # classes in a file next to the file of the targets
    target: str  # attribute of a sample with the file of the targets

    def fit(self, options: base.HeadOptions, samples: Sequence[Any], data: DataSettings) -> base.HeadOptions:
        labels = options.labels
        if all(label.lstrip("-").isdigit() for label in labels):  # names are in order, numbers are not
            labels = infer_classes(value for value in map(int, labels) if value >= 0).names
        file = self.class_file(getattr(samples[0], self.target)) if samples else None
        if file is not None:
            colors = tuple((*color, value) for color, value in file.color_values)
            options = replace(options, void_ids=tuple(sorted({*file.void} - VOID_VALUES)), class_colors=colors)
        value = {} if file is None else dict(zip(file.names, file.values, strict=True))
        numbers = tuple(value.get(label, -1) for label in labels)
        plain = numbers == tuple(range(len(numbers))) or min(numbers, default=-1) < 0
        return replace(options, labels=tuple(labels), class_ids=() if plain else numbers)


def class_values(options: base.HeadOptions) -> np.ndarray:
    """Value of each class in written files: ids of the class file, numeric class names, or indices."""
    words = options.class_ids or options.labels
    if not all(str(word).isdigit() and int(word) < 2**16 for word in words):
        return np.arange(len(options.labels), dtype=np.uint8)
    numbers = np.array([int(word) for word in words])
    return numbers.astype(np.uint8 if numbers.max() < 256 else np.uint16)


def run_classes(options: base.HeadOptions) -> ClassMap:
    """Classes of masks or point clouds without a class file: values and colors of the training data."""
    values = tuple(map(int, class_values(options)))
    colors = tuple(((red, green, blue), value) for red, green, blue, value in options.class_colors)
    return with_void_values(ClassMap(options.labels, values, options.void_ids, colors))


# -- images


class SegmentImages(MapObjective, Segment):
    """Masks of images: a class per pixel."""

    options = SegmentOptions(file_classes, "target")
    classes_key, class_unit, max_figures = "mask", "pixel", 6
    map_dtype = np.uint8
    unknown_value, unknown_message = float(VOID), "every pixel is void"

    def _read_map(self, source: str | bytes, context: base.EncodingContext) -> np.ndarray:
        """(H, W) class indices in the order of the labels, or `VOID`."""
        path, labels = source if isinstance(source, str) else "", context.options.labels
        known = file_classes(path) or run_classes(context.options)
        number = {label: place for place, label in enumerate(labels)}
        table = np.full(VOID + 1, VOID, dtype=np.uint8)
        table[: len(known.names)] = [number.get(name, VOID) for name in known.names]
        return table[known.to_indices(read_mask(source, known.colors), path)]

    def _resize(self, output: Tensor, size: Size) -> np.ndarray:
        """Class of each pixel, in chunks of rows: full-size logits of all classes would not fit into memory."""
        (classes, high, _), (rows, columns) = output.shape, size
        places = ((torch.arange(rows, device=output.device) + 0.5) * (high / rows) - 0.5).clamp(0, high - 1)
        mask = np.empty(size, np.uint8)
        for start in range(0, rows, step := max(MAX_LOGITS // (classes * columns), 1)):
            at = places[start : start + step]
            top = at.long()
            part = torch.lerp(output[:, top], output[:, (top + 1).clamp(max=high - 1)], (at - top)[:, None])
            wide = F.interpolate(part[None], (len(at), columns), mode="bilinear", align_corners=False)
            mask[start : start + step] = wide[0].argmax(0).cpu().numpy()
        return mask

    def adapt_config(self, config: Any) -> Any:
        return config.resolve_fusion_norm(classifies=True)

    def head(self, config: Any, options: base.HeadOptions) -> nn.Module | None:
        return segmentation_head(config, len(options.labels)) if options.labels else None

    def encode(self, samples: Sequence[ImageSample], config: Any, context: base.EncodingContext) -> base.Encoded:
        self._require_classes(context.options)
        for known, mask in {file_classes(sample.target): sample.target for sample in samples if sample.target}.items():
            # these pixels would be ignored silently
            if known is not None and (strange := [n for n in known.names if n not in context.options.labels]):
                raise DataError(
                    f"class '{strange[0]}' of the class file next to this mask is unknown to this model.",
                    mask,
                    advice="Rename the class as in the training data, or map it to 'void' in the class file to ignore it.",
                )
        return super().encode(samples, config, context)

    def loss(self, model: base.Model, batch: Batch, terms: base.LossWeights = base.NO_WEIGHTS) -> base.Loss:
        """(sum, count) of the cross-entropy over labeled pixels, in training plus the weighted loss of the auxiliary head."""
        taps, targets = augmented_maps(model, batch)
        labels = targets.long()
        labels = labels.masked_fill(labels == VOID, IGNORE)
        output, auxiliary = model.head.forward_with_auxiliary(*taps) if model.training else (model.head(*taps), None)
        total = F.cross_entropy(output.float(), labels, ignore_index=IGNORE, reduction="sum")
        if auxiliary is not None:
            more = F.cross_entropy(auxiliary.float(), labels, ignore_index=IGNORE, reduction="sum")
            total = total + AUX_LOSS_WEIGHT * more
        return total, (labels != IGNORE).sum()

    def _predict_classes(self, model: base.Model, inputs: base.Inputs, count: int) -> Iterator[ClassPrediction]:
        """The mask at the size of the file; the image is smaller if the file was decoded at a lower resolution."""
        for picture, mask, target in self._predict_maps(model, inputs, count):
            yield {"mask": mask, "image": picture}, target

    def save_figures(self, folder: Path, samples: Sequence[Any], predictions: Sequence[Prediction]) -> list[str]:
        rows = figure_samples(samples, predictions, "mask")
        return [draw_segmentations(rows, predictions[0].extra["labels"], folder / "masks.png").name]

    def write_files(self, name: str, prediction: Prediction, folder: Path) -> dict[str, str]:
        """Figure with a legend, overlay of the classes on the image, and the mask as a PNG of class ids with the same colors
        as palette. Overlay and mask have the size of the image."""
        from PIL import Image

        mask, labels, values = (prediction.extra[key] for key in ("mask", "labels", "class_values"))
        sample = DenseSample(prediction.extra["image"], mask, name=name)
        figure = draw_segmentations([sample], labels, folder / f"{name}.classes.png")
        overlay = save_classes(sample, len(labels), folder / f"{name}.overlay.png")
        image = Image.fromarray(values[mask])
        if values.dtype == np.uint8:  # only 8-bit images have a palette
            colors = np.zeros((int(values.max()) + 1, 3), np.uint8)
            colors[values] = class_colors(len(labels))
            image.putpalette(colors.ravel().tolist())
        path = write_atomic(folder / f"{name}.mask.png", lambda to: image.save(to, format="PNG"))
        return {"image": str(figure), "overlay": str(overlay), "mask": str(path)}
