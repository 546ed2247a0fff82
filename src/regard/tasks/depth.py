"""Objective `depth`: monocular depth estimation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from regard.data.images.image_io import read_depth
from regard.data.images.labeled import ImageSample
from regard.data.settings import DataSettings
from regard.decode.settings import DecodeSettings
from regard.draw.figure import write_atomic
from regard.draw.panels import DenseSample, draw_depths, save_depth, save_image
from regard.nn.vision.dense import depth_head, inverse_depth, metric_loss, relative_loss
from regard.tasks import base
from regard.tasks.dense import MapObjective, augmented_maps, figure_samples
from regard.tasks.metrics.segmentation_depth import align_depth, depth_scores
from regard.types import Batch, Prediction

METERS_LABEL = "meters"  # label of models that predict meters; others predict inverse depth up to scale and shift
INITIAL_DEPTH = 2.0  # initial prediction of a new head in meters
MAX_FIGURE_SAMPLES = 6  # maximum number of validation images in the figure


class DepthOptions(base.OptionRules):
    def fit(self, options: base.HeadOptions, samples: Sequence[Any], data: DataSettings) -> base.HeadOptions:
        return replace(options, labels=(METERS_LABEL,) if data.metric_depth else ())

    def export(self, options: base.HeadOptions, config: Any) -> base.ExportedOptions:
        reason = (
            "Hugging Face format stores relative depth only; this model predicts meters. To export a depth model, train "
            "with --set data.metric_depth=false."
        )
        return base.ExportedOptions(unsupported=reason if METERS_LABEL in options.labels else "")


class Depth(MapObjective):
    metrics = ("abs_rel",)
    lower_is_better = True
    options = DepthOptions()
    settings = (*MapObjective.settings, "data.metric_depth", "data.depth_scale")
    map_dtype, aspect_tolerance = np.float32, 0.02
    unknown_value, unknown_message = 0.0, "every depth is 0 (unknown)"

    def _read_map(self, source: str | bytes, context: base.EncodingContext) -> np.ndarray:
        return read_depth(source, None if context.data is None else context.data.depth_scale or None)

    def adapt_config(self, config: Any) -> Any:
        return config.resolve_fusion_norm(classifies=False)

    def head(self, config: Any, options: base.HeadOptions) -> nn.Module | None:
        return depth_head(config, INITIAL_DEPTH if METERS_LABEL in options.labels else None)

    def loss(self, model: base.Model, batch: Batch, terms: base.LossWeights = base.NO_WEIGHTS) -> base.Loss:
        taps, labels = augmented_maps(model, batch)
        known, output = labels > 0, model.head(*taps)
        if METERS_LABEL in model.spec.options.labels:
            return metric_loss(output, labels, known)
        nearness, known = inverse_depth(labels, known)
        return relative_loss(output, nearness, known)

    def predict(self, model: base.Model, inputs: list[Any], decode: DecodeSettings, first: int = 0) -> list[Prediction]:
        """Percentiles 1, 50 and 99 of the depth of each image. `extra["depth"]` is the depth map at the
        size of the file; `extra["image"]` is smaller if the file was decoded at a lower resolution."""
        maps = self._predict_maps(model, inputs, len(inputs))
        return [_make_prediction(model, picture, output) for picture, output, _ in maps]

    def evaluate(self, model: base.Model, encoded: base.Encoded, spec: base.EvalSpec) -> base.EvalResult:
        """Depth errors and delta accuracies. Relative predictions are aligned to each target first and limited to the
        maximum depth of all targets, as in the evaluation of MiDaS."""
        count, predictions = spec.count(encoded), list[Prediction]()
        found: list[dict[str, float]] = []
        metric = METERS_LABEL in model.spec.options.labels
        farthest = 0.0
        if not metric:
            farthest = max((float(self._target(encoded, number).max()) for number in range(count)), default=0.0)
        for picture, output, target in self._predict_maps(model, encoded, count):
            meters = output if metric else align_depth(output, target, farthest)
            found.append(depth_scores(meters, target))
            one = _make_prediction(model, picture, output)
            shown = len(predictions) < MAX_FIGURE_SAMPLES
            extra = {**one.extra, "meters": meters, "reference": target} if shown else {}
            predictions.append(replace(one, extra=extra))
        found = [row for row in found if row]  # images with a known depth
        names = found[0] if found else {}
        scores: base.Scores = {name: round(float(np.mean([row[name] for row in found])), 4) for name in names}
        return {**scores, "samples": count}, predictions

    def save_figures(self, folder: Path, samples: Sequence[Any], predictions: Sequence[Prediction]) -> list[str]:
        return [draw_depths(figure_samples(samples, predictions, "meters"), folder / "depths.png").name]

    def write_files(self, name: str, prediction: Prediction, folder: Path) -> dict[str, str]:
        """Depth map as a figure with a scale, as colors and as a .npy array of the size of the image; metric depth also as a
        16-bit PNG in millimeters."""
        depth, relative = prediction.extra["depth"], prediction.extra["unit"] != METERS_LABEL
        sample = DenseSample(prediction.extra["image"], depth, name=name)

        def save_array(path: Path) -> None:
            with path.open("wb") as file:
                np.save(file, depth)

        files = {"image": str(draw_depths([sample], folder / f"{name}.preview.png", relative=relative))}
        files["colors"] = str(save_depth(depth, folder / f"{name}.colors.png", relative))
        files["array"] = str(write_atomic(folder / f"{name}.npy", save_array))
        if not relative:
            millimeters = np.clip(np.rint(1000 * depth), 0, 65535).astype(np.uint16)
            files["millimeters"] = str(save_image(millimeters, folder / f"{name}.depth.png"))
        return files

    def format_prediction(self, source: Any, prediction: Prediction) -> str:
        value = prediction.value
        return f"{source}\t{value['low']} to {value['high']} {value['unit']}, median {value['median']}"

    def example_row(self, sample: ImageSample, prediction: Prediction) -> dict[str, str]:
        value = prediction.value
        return {"image": sample.source, "prediction": f"{value['low']} to {value['high']} {value['unit']}"}


def _make_prediction(model: base.Model, picture: np.ndarray, output: np.ndarray) -> Prediction:
    unit = "meters" if METERS_LABEL in model.spec.options.labels else "inverse depth"
    low, median, high = (round(float(value), 4) for value in np.percentile(output, (1, 50, 99)))
    value = {"unit": unit, "low": low, "median": median, "high": high}
    return Prediction(value, (), (), {"depth": output.astype(np.float32), "image": picture, "unit": unit})
