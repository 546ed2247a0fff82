"""Task `depth`: monocular depth estimation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from regard.data.images.image_io import read_depth
from regard.data.images.labeled import ImageSample, iterate_depth_images
from regard.data.settings import DataSettings
from regard.data.text.tables import SkippedRow
from regard.decode.settings import DecodeSettings
from regard.nn.vision.dense import depth_head, inverse_depth, metric_loss, relative_loss
from regard.tasks.base import Encoded, EvalResult, LossSum, LossWeights
from regard.tasks.dense_prediction import DensePredictionTask
from regard.tasks.file_task import decode_source
from regard.tasks.image_task import ImageBatchContext, load_image_and_size
from regard.tasks.metrics.segmentation_depth import DepthMetrics, align_depth
from regard.tasks.protocol import ModelProtocol
from regard.types import Batch, Prediction

METERS_LABEL = "meters"
"""Label of models that predict meters. Other models predict inverse depth up to scale and shift."""
INITIAL_DEPTH = 2.0
"""Initial prediction of a new head in meters."""
MAX_FIGURE_SAMPLES = 6
"""Maximum number of validation images in the figure."""


@dataclass(frozen=True)
class DepthContext(ImageBatchContext):
    """Batch context of images with depth maps."""

    unit: float = 0.0


class Depth(DensePredictionTask):
    name = "depth"
    description = "Depth estimation: images with depth maps."
    columns = ("image", "depth")
    metric = "abs_rel"
    lower_is_better = True
    has_file_output = True
    default_model = "dpt-small"
    target_attr, map_dtype, unknown_value = "depth", np.float32, 0.0
    aspect_tolerance = 0.02
    all_unknown_message = "every depth is 0 (unknown)"
    settings_used = (*DensePredictionTask.settings_used, "data.metric_depth", "data.depth_scale")

    def iter_samples(
        self, data: Sequence[str], columns: Mapping[str, str] | None = None
    ) -> Iterator[ImageSample | SkippedRow]:
        return iterate_depth_images(data, columns)

    def head_labels(self, labels: Sequence[str], data: DataSettings) -> tuple[str, ...]:
        return (METERS_LABEL,) if data.metric_depth else ()

    def unsupported_by_layout(self, labels: Sequence[str]) -> str:
        if METERS_LABEL not in labels:
            return ""
        return (
            "Hugging Face format stores relative depth only; this model predicts meters. To export a depth model, train "
            "with --set data.metric_depth=false."
        )

    def adapt_config(self, config: Any) -> Any:
        return config.resolve_fusion_norm(classifies=False)

    def head(self, config: Any, labels: Sequence[str]) -> nn.Module | None:
        return depth_head(config, INITIAL_DEPTH if METERS_LABEL in labels else None)

    def batch_context(
        self, processor: Any, config: Any, max_length: int, data: DataSettings | None, labels: Sequence[str] = ()
    ) -> DepthContext:
        seeing = super().batch_context(processor, config, max_length, data)
        return DepthContext(seeing.pixels, seeing.augment, unit=0.0 if data is None else data.depth_scale)

    def read_target(self, source: str | bytes, data: Any) -> np.ndarray:
        return read_depth(source, data.unit or None)

    def loss(self, model: ModelProtocol, batch: Batch, terms: LossWeights = LossWeights()) -> tuple[Tensor, Tensor]:  # noqa: B008
        batch = self.prepare_pair(model, batch)
        assert batch.labels is not None
        known, said = batch.labels > 0, model.head(*self.feature_maps(model, batch))
        if METERS_LABEL in model.spec.labels:
            return metric_loss(said, batch.labels, known)
        nearness, known = inverse_depth(batch.labels, known)
        return relative_loss(said, nearness, known)

    def predict(
        self, model: ModelProtocol, inputs: Sequence[Any], decode: DecodeSettings, first: int = 0
    ) -> list[Prediction]:
        """Percentiles 1, 50 and 99 of the depth of each image. `extra["depth"]` is the depth map at the
        size of the file; `extra["image"]` is smaller if the file was decoded at a lower resolution."""
        return [
            self._make_prediction(model, picture, said)
            for picture, said in self.predict_maps(model, map(load_image_and_size, inputs))
        ]

    def _make_prediction(self, model: ModelProtocol, picture: np.ndarray, said: np.ndarray) -> Prediction:
        unit = "meters" if METERS_LABEL in model.spec.labels else "inverse depth"
        low, middle, high = (round(float(value), 4) for value in np.percentile(said, (1, 50, 99)))
        value = {"unit": unit, "low": low, "median": middle, "high": high}
        return Prediction(value, (), (), {"depth": said.astype(np.float32), "image": picture, "unit": unit})

    def evaluate(
        self,
        model: ModelProtocol,
        encoded: Encoded,
        decode: DecodeSettings,
        data: DataSettings,
        sums: LossSum,
        max_samples: int | None = None,
    ) -> EvalResult:
        """Depth errors and delta accuracies. Relative predictions are aligned to each target first and limited to the
        maximum depth of all targets, as in the evaluation of MiDaS."""
        distances = DepthMetrics()
        answers: list[Prediction] = []
        count = len(encoded) if max_samples is None else min(max_samples, len(encoded))
        metric = METERS_LABEL in model.spec.labels
        farthest = 0.0 if metric else self._max_depth(encoded, count)
        for picture, said, right in self.iter_predictions_and_targets(model, encoded, count):
            metres = said if metric else align_depth(said, right, farthest)
            distances.add(metres, right)
            answer = self._make_prediction(model, picture, said)
            more = {**answer.extra, "meters": metres, "reference": right} if len(answers) < MAX_FIGURE_SAMPLES else {}
            answers.append(replace(answer, extra=more))
        scores: dict[str, float | str] = {name: round(value, 4) for name, value in distances.scores().items()}
        return {**scores, "samples": count}, answers

    def _max_depth(self, encoded: Encoded, count: int) -> float:
        maps = (
            self.read_target(decode_source(encoded.fields["beside"][number]), encoded.batch_context)
            for number in range(count)
        )
        return max((float(depth.max()) for depth in maps), default=0.0)

    def save_figures(
        self, folder: Path, samples: Sequence[ImageSample], predictions: Sequence[Prediction]
    ) -> list[str]:
        from regard.draw.panels import DenseSample, draw_depths

        rows = [
            DenseSample(
                answer.extra["image"], answer.extra["meters"], answer.extra["reference"], Path(sample.source).name
            )
            for sample, answer in zip(samples, predictions, strict=False)
            if "reference" in answer.extra
        ]
        return [draw_depths(rows, folder / "depths.png").name] if rows else []

    def write_files(self, name: str, prediction: Prediction, folder: Path) -> dict[str, str]:
        """Depth map as a colored figure and as a .npy array; metric depth also as a 16-bit PNG in millimeters."""
        from PIL import Image

        from regard.draw.figure import write_atomic
        from regard.draw.panels import DenseSample, draw_depths

        depth, relative = prediction.extra["depth"], prediction.extra["unit"] != METERS_LABEL
        sample = DenseSample(prediction.extra["image"], depth, name=name)
        found = {"image": str(draw_depths([sample], folder / f"{name}.preview.png", relative=relative))}
        array = write_atomic(folder / f"{name}.npy", lambda to: _save_array(to, depth))
        found["array"] = str(array)
        if not relative:
            image = Image.fromarray(np.clip(np.rint(1000 * depth), 0, 65535).astype(np.uint16))
            found["millimeters"] = str(
                write_atomic(folder / f"{name}.depth.png", lambda to: image.save(to, format="PNG"))
            )
        return found

    def format_prediction(self, source: Any, prediction: Prediction) -> str:
        value = prediction.value
        return f"{source}\t{value['low']} to {value['high']} {value['unit']}, median {value['median']}"

    def example_row(self, sample: ImageSample, prediction: Prediction) -> dict[str, str]:
        value = prediction.value
        return {"image": sample.source, "prediction": f"{value['low']} to {value['high']} {value['unit']}"}


def _save_array(path: Path, values: np.ndarray) -> None:
    with path.open("wb") as file:
        np.save(file, values)
