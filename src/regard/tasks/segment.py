"""Task `segment`: semantic segmentation of images."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.images.image_io import read_mask
from regard.data.images.labeled import ImageSample, iterate_segmented
from regard.data.images.masks import VOID, ClassMap, find_classes, find_classes_above, infer_classes
from regard.data.settings import DataSettings
from regard.data.text.tables import SkippedRow
from regard.decode.settings import DecodeSettings
from regard.errors import DataError
from regard.nn.vision.dense import segmentation_head
from regard.tasks.base import Encoded, EvalResult, LossSum, LossWeights
from regard.tasks.dense_prediction import DensePredictionTask
from regard.tasks.image_task import ImageBatchContext, load_image_and_size
from regard.tasks.metrics.segmentation_depth import (
    SegmentationMetrics,
    class_fractions,
    format_fractions,
    format_top_fractions,
)
from regard.tasks.protocol import ModelProtocol
from regard.types import IGNORE, Batch, Prediction

AUX_LOSS_WEIGHT = 0.4
"""Weight of the auxiliary head's loss, as in DPT."""


@dataclass(frozen=True)
class SegmentationContext(ImageBatchContext):
    """Batch context of images with masks, with the class names."""

    labels: tuple[str, ...] = ()


class Segment(DensePredictionTask):
    name = "segment"
    description = "Semantic segmentation: images with masks."
    columns = ("image", "mask")
    metric = "miou"
    default_model = "dpt-small"
    has_labels = True
    has_file_output = True
    keeps_label_order = True  # written masks have the same class ids as the training masks
    target_attr, map_dtype, unknown_value = "mask", np.uint8, float(VOID)
    all_unknown_message = "every pixel is void"

    def iter_samples(
        self, data: Sequence[str], columns: Mapping[str, str] | None = None
    ) -> Iterator[ImageSample | SkippedRow]:
        return iterate_segmented(data, columns)

    def labels(self, sample: ImageSample) -> Iterable[str]:
        """Class names from the class file of the masks, or the pixel values of the mask."""
        known = mask_classes(sample.mask)
        if known is not None:
            return known.names
        return [str(value) for value in np.unique(read_mask(sample.target_content or sample.mask))]

    def label_source(self, data: Sequence[str]) -> str:
        """Class file, which may be in a parent folder of the masks."""
        return repr(find_classes(data))

    def head_labels(self, labels: Sequence[str], data: DataSettings) -> tuple[str, ...]:
        numbers = all(label.isdigit() for label in labels)  # names of a class file are in order, numbers are not
        return infer_classes(map(int, labels)).names if numbers else tuple(labels)

    def head_options(self, samples: Sequence[ImageSample], data: DataSettings, train: Encoded) -> str:
        """Pixel values of the classes, if these differ from the class indices: "7,8,11"."""
        return class_ids_option(mask_classes(samples[0].mask) if samples else None, train.batch_context.labels)

    def adapt_config(self, config: Any) -> Any:
        return config.resolve_fusion_norm(classifies=True)

    def head(self, config: Any, labels: Sequence[str]) -> nn.Module | None:
        return segmentation_head(config, len(labels)) if labels else None

    def encode(
        self, samples: Sequence[ImageSample], processor: Any, config: Any, max_length: int, data: DataSettings | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:  # fmt: skip
        if len(labels) < 2:
            raise DataError("Fewer than two classes found in the masks. Segmentation needs at least two.")
        for known, mask in {mask_classes(sample.mask): sample.mask for sample in samples if sample.mask}.items():
            # these pixels would be ignored silently
            if known is not None and (strange := [name for name in known.names if name not in labels]):
                raise DataError(
                    f"class '{strange[0]}' of the class file next to this mask is unknown to this model.", mask,
                    advice="Rename the class as in the training data, or map it to 'void' in the class file to ignore it.",
                )  # fmt: skip
        return super().encode(samples, processor, config, max_length, data, labels)

    def batch_context(
        self, processor: Any, config: Any, max_length: int, data: DataSettings | None, labels: Sequence[str] = ()
    ) -> SegmentationContext:
        seeing = super().batch_context(processor, config, max_length, data)
        return SegmentationContext(seeing.pixels, seeing.augment, labels=tuple(labels))

    def read_target(self, source: str | bytes, data: Any) -> np.ndarray:
        """(H, W) class indices in the order of the labels, or `VOID`."""
        path = source if isinstance(source, str) else ""
        known = mask_classes(path) or classes_from_numbers(data.labels)
        number = {label: place for place, label in enumerate(data.labels)}
        table = np.full(VOID + 1, VOID, dtype=np.uint8)
        table[: len(known.names)] = [number.get(name, VOID) for name in known.names]
        return table[known.to_indices(read_mask(source, known.colors), path)]

    def loss(self, model: ModelProtocol, batch: Batch, terms: LossWeights = LossWeights()) -> tuple[Tensor, Tensor]:  # noqa: B008
        """(sum, count) of the cross-entropy over labeled pixels, in training plus the weighted loss of the auxiliary
        head."""
        batch = self.prepare_pair(model, batch)
        assert batch.labels is not None
        labels = batch.labels.long()
        labels = labels.masked_fill(labels == VOID, IGNORE)
        taps, shape = self.feature_maps(model, batch)
        said, beside = (
            model.head.forward_with_auxiliary(taps, shape) if model.training else (model.head(taps, shape), None)
        )
        total = F.cross_entropy(said.float(), labels, ignore_index=IGNORE, reduction="sum")
        if beside is not None:
            total = total + AUX_LOSS_WEIGHT * F.cross_entropy(
                beside.float(), labels, ignore_index=IGNORE, reduction="sum"
            )
        return total, (labels != IGNORE).sum()

    def predict(
        self, model: ModelProtocol, inputs: Sequence[Any], decode: DecodeSettings, first: int = 0
    ) -> list[Prediction]:
        """Fraction of each class in each image. `extra["mask"]` is the uint8 class map at the size of the file;
        `extra["image"]` is smaller if the file was decoded at a lower resolution."""
        return [
            self._make_prediction(model, picture, said)
            for picture, said in self.predict_maps(model, map(load_image_and_size, inputs))
        ]

    def resize_map(self, logits: Tensor, size: tuple[int, int]) -> np.ndarray:
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

    def _make_prediction(self, model: ModelProtocol, picture: np.ndarray, mask: np.ndarray) -> Prediction:
        labels = model.spec.labels
        found = class_fractions(mask, labels)
        known = {"labels": labels, "class_values": class_pixel_values(labels, model.spec.head_options)}
        return Prediction(found, tuple(found.values()), (), {"mask": mask, "image": picture, **known})

    def evaluate(
        self,
        model: ModelProtocol,
        encoded: Encoded,
        decode: DecodeSettings,
        data: DataSettings,
        sums: LossSum,
        max_samples: int | None = None,
    ) -> EvalResult:
        """Mean IoU and pixel accuracy in percent."""
        labels = model.spec.labels
        count = len(encoded) if max_samples is None else min(max_samples, len(encoded))
        overlap = SegmentationMetrics(len(labels), VOID)
        answers: list[Prediction] = []
        for picture, said, right in self.iter_predictions_and_targets(model, encoded, count):
            answer = self._make_prediction(model, picture, said)
            overlap.add(answer.extra["mask"], right)
            answers.append(
                replace(answer, extra={**answer.extra, "reference": right} if len(answers) < MAX_FIGURE_SAMPLES else {})
            )
        return overlap.report(labels, count, max_samples is None), answers

    def save_figures(
        self, folder: Path, samples: Sequence[ImageSample], predictions: Sequence[Prediction]
    ) -> list[str]:
        from regard.draw.panels import DenseSample, draw_segmentations

        shown = [
            (sample, answer.extra)
            for sample, answer in zip(samples, predictions, strict=False)
            if "reference" in answer.extra
        ]
        if not shown:
            return []
        rows = [DenseSample(one["image"], one["mask"], one["reference"], Path(of.source).name) for of, one in shown]
        return [draw_segmentations(rows, shown[0][1]["labels"], folder / "masks.png", ignore_index=VOID).name]

    def write_files(self, name: str, prediction: Prediction, folder: Path) -> dict[str, str]:
        """Overlay of the classes on the image, and the mask as a PNG of class ids with the same colors as palette."""
        from PIL import Image

        from regard.draw.colors import class_colors
        from regard.draw.figure import write_atomic
        from regard.draw.panels import DenseSample, draw_segmentations

        mask, labels = prediction.extra["mask"], prediction.extra["labels"]
        seen = draw_segmentations(
            [DenseSample(prediction.extra["image"], mask, name=name)], labels, folder / f"{name}.classes.png"
        )
        numbers = prediction.extra["class_values"]
        image = Image.fromarray(numbers[mask])
        if numbers.dtype == np.uint8:  # only 8-bit images have a palette
            colours = np.zeros((int(numbers.max()) + 1, 3), np.uint8)
            colours[numbers] = class_colors(len(labels))
            image.putpalette(colours.ravel().tolist())
        kept = write_atomic(folder / f"{name}.mask.png", lambda to: image.save(to, format="PNG"))
        return {"image": str(seen), "mask": str(kept)}

    def format_prediction(self, source: Any, prediction: Prediction) -> str:
        return format_fractions(source, prediction)

    def example_row(self, sample: ImageSample, prediction: Prediction) -> dict[str, str]:
        return {"image": sample.source, "prediction": format_top_fractions(prediction)}


VOID_VALUES = frozenset((255, 65535))
"""Values of void pixels in 8-bit and 16-bit masks."""
MAX_LOGITS = 2**25
"""Maximum number of logits in memory."""
MAX_FIGURE_SAMPLES = 6
"""Maximum number of validation images in the figure."""


def mask_classes(mask: str) -> ClassMap | None:
    return _folder_classes(os.path.dirname(os.path.abspath(mask))) if mask else None


@functools.lru_cache(maxsize=1024)
def _folder_classes(folder: str) -> ClassMap | None:
    """Classes of a folder, cached because many masks share a folder. `VOID_VALUES` are void unless the file defines them."""
    found = find_classes_above(folder)
    return None if found is None else replace(found, void=tuple({*found.void, *VOID_VALUES} - set(found.values)))


def class_ids_option(classes: ClassMap | None, labels: Sequence[str]) -> str:
    """Comma-separated class ids of a class file; empty without a file or if ids equal indices."""
    value = {} if classes is None else dict(zip(classes.names, classes.values, strict=True))
    numbers = [value.get(label, -1) for label in labels]
    plain = numbers == list(range(len(numbers))) or min(numbers, default=-1) < 0
    return "" if plain else ",".join(map(str, numbers))


def class_pixel_values(labels: Sequence[str], class_ids: str) -> np.ndarray:
    """Pixel value of each class in written masks: ids of the class file (`class_ids`), numeric class names, or indices."""
    words = class_ids.split(",") if class_ids else labels
    if not all(word.isdigit() and int(word) < 2**16 for word in words):
        return np.arange(len(labels), dtype=np.uint8)
    numbers = np.array([int(word) for word in words])
    return numbers.astype(np.uint8 if numbers.max() < 256 else np.uint16)


def classes_from_numbers(labels: Sequence[str]) -> ClassMap:
    """Classes of masks or point clouds without a class file: names are numbers."""
    values = tuple(map(int, labels))
    return ClassMap(tuple(labels), values, tuple(VOID_VALUES - set(values)))
