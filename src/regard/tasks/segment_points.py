"""Point labels of the objective `segment`: a class per point.

Training uses vertical blocks of a scene around random points (`data.block_size`). Prediction uses overlapping blocks: the
scores of a point are averaged over its blocks, and points removed by `data.voxel_size` have the scores of their voxel."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from regard.data.batching.samplers import BatchShape
from regard.data.points.cloud import PointCloud
from regard.data.points.cloud_files import write_ply
from regard.data.points.labeled import IGNORE_LABEL, CloudSample, classes_from_cloud, cloud_classes, require_labels
from regard.data.settings import DataSettings
from regard.draw.colors import class_colors
from regard.draw.point_cloud import PredictedCloud, draw_clouds, write_cloud_page
from regard.errors import DataError
from regard.nn.kernels.losses import cross_entropy
from regard.nn.points.body import point_head
from regard.processors.points import split_scene
from regard.tasks import base
from regard.tasks.metrics.segmentation_depth import SegmentationMetrics
from regard.tasks.modality import points as modality
from regard.tasks.modality.base import readable_batch, sample_ids
from regard.tasks.segment import ClassPrediction, Segment, SegmentOptions, run_classes
from regard.types import IGNORE, Batch, BodyOutput, Prediction

PAGE_NOTE = "Predicted class of each point. Hover over a point for its confidence."
UNKNOWN_CLASS = -2


class SegmentPoints(Segment):
    """Labels of point clouds: a class per point."""

    fields = ("cloud",)
    modality_options: ClassVar[Any] = {"points": {"count": 4096, "frame": "floor", "max_inputs": 1}}
    options = SegmentOptions(cloud_classes, "source")
    classes_key, class_unit, max_figures = "classes", "point", 3
    unknown_value, unknown_message, target_unit = IGNORE, "no point has a label", "point clouds"

    def check_settings(self, config: Any, tokens: int, data: DataSettings) -> None:
        self.modality.adapt_processor(self.modality.initial_processor, config, data)

    def adapt_config(self, config: Any) -> Any:
        return replace(config, has_decoder=True)

    def head(self, config: Any, options: base.HeadOptions) -> nn.Module | None:
        return point_head(config, len(options.labels)) if options.labels else None

    def encode(self, samples: Sequence[CloudSample], config: Any, context: base.EncodingContext) -> base.Encoded:
        self._require_classes(context.options)
        return base.Encoded(list(samples), self.modality.encode(samples, config, context)[0], [], context)

    def _target_file(self, encoded: base.Encoded, number: int) -> str:
        return modality.decode_cloud_source(encoded.fields["cloud"][number]).source

    def _target(self, encoded: base.Encoded, number: int) -> np.ndarray:
        """(N,) class indices of the points, `IGNORE` for unlabeled points."""
        source = self._target_file(encoded, number)
        return point_label_ids(modality.load_cloud(encoded, number), source, encoded.context.options)

    def collate(self, encoded: base.Encoded, rows: Any, config: Any, shape: BatchShape | None = None) -> Batch:
        def build(rows: np.ndarray) -> Batch:
            clouds, labels = [], []
            for number, (points, chosen) in zip(sample_ids(rows), modality.prepare_clouds(encoded, rows), strict=True):
                clouds.append(points)
                labels.append(self._target(encoded, int(number))[chosen])
            x, offsets = modality.pack_clouds(clouds)
            return Batch(x, labels=torch.from_numpy(np.concatenate(labels)), packing=offsets)

        return readable_batch(build, rows, self)

    def logits(self, model: base.Model, batch: Batch) -> Tensor:
        """(B, N, classes) logits, or (1, N, classes) for packed point clouds."""
        head = base.require_head(model)
        output: BodyOutput = model.body(batch)
        logits = head(output.sequence)
        return logits if batch.packing is not None else logits.view(*batch.inputs.shape[:2], -1)

    def loss(self, model: base.Model, batch: Batch, terms: base.LossWeights = base.NO_WEIGHTS) -> base.Loss:
        """(sum, count) of the cross-entropy over labeled points."""
        return cross_entropy(self.logits(model, batch).flatten(0, 1), batch.require_labels(), terms.smoothing)

    def _predict_classes(self, model: base.Model, inputs: base.Inputs, count: int) -> Iterator[ClassPrediction]:
        """Class indices of all points (N,) in file order, and their probabilities."""
        for number in range(count):
            if isinstance(inputs, base.Encoded):
                extra = self._predict_cloud(model, modality.load_cloud(inputs, number), "")
                yield extra, self._target(inputs, number)
            else:
                item, points = inputs[number], modality.require_point_processor(model)
                source = os.fspath(item) if isinstance(item, str | os.PathLike) else ""
                yield self._predict_cloud(model, modality.open_cloud(item, points), source), None

    def _predict_cloud(self, model: base.Model, cloud: PointCloud, source: str) -> dict[str, Any]:
        """Class of every point and its probability, averaged over all blocks that contain the point."""
        processor = modality.require_point_processor(model)
        scene = split_scene(cloud, processor)
        sums = np.zeros((len(scene.point_indices), len(model.spec.options.labels)))
        counts = np.zeros((len(sums), 1))
        for some in modality.pack_slices(map(len, scene.rows)):
            x, offsets = modality.pack_clouds(scene.rows[some])
            with torch.inference_mode():
                logits = self.logits(model, Batch(x, packing=offsets).to(model.device))[0]
            chances = np.split(logits.float().softmax(-1).cpu().numpy(), offsets.starts[1:-1].numpy())
            for chosen, own in zip(scene.block_indices[some], chances, strict=True):
                sums[chosen] += own
                counts[chosen] += 1
        classes, probabilities = sums.argmax(axis=1), (sums / counts).max(axis=1).astype(np.float32)
        extra = {"classes": classes[scene.voxel_index], "probabilities": probabilities[scene.voxel_index]}
        extra |= {"cloud": cloud, "up": processor.up, "file": Path(source).name}
        if cloud.labels is not None:  # labels are optional at inference
            with suppress(DataError):  # labels of other classes
                extra["reference"] = point_label_ids(cloud, source, model.spec.options)
        return extra

    def save_figures(self, folder: Path, samples: Sequence[Any], predictions: Sequence[Prediction]) -> list[str]:
        clouds = [
            _figure_data(one.extra, sample.source if "#" in sample.source else Path(sample.source).stem)
            for sample, one in zip(samples, predictions, strict=False)
            if "reference" in one.extra
        ]
        return [draw_clouds(clouds, folder / "clouds.png").name]

    def write_files(self, name: str, prediction: Prediction, folder: Path) -> dict[str, str]:
        """Point cloud with a label and color per point, and an interactive page."""
        extra = prediction.extra
        labels, values, classes = extra["labels"], extra["class_values"], extra["classes"]
        colors = np.array(class_colors(len(labels)), dtype=np.uint8)
        path = folder / f"{name}.labeled.ply"
        plain = values.tolist() == list(range(len(labels)))
        write_ply(path, extra["cloud"], values[classes], colors[classes], labels if plain else ())
        facts, ious, metrics = {}, [], SegmentationMetrics(len(labels), IGNORE)
        if "reference" in extra:
            metrics.add(classes, extra["reference"])
            accuracy, miou = 100 * metrics.accuracy(), 100 * metrics.mean_iou()
            facts = {"point accuracy": f"{accuracy:.1f} %", "mIoU": f"{miou:.1f} %"}
            ious = list(metrics.iou_by_name(labels).values())
        page = write_cloud_page(
            _figure_data(extra, name), folder / f"{name}.html", extra["file"] or name, PAGE_NOTE, facts, ious
        )
        return {"cloud": str(path), "page": str(page)}


def _figure_data(extra: Mapping[str, Any], name: str) -> PredictedCloud:
    cloud: PointCloud = extra["cloud"]
    return PredictedCloud(
        cloud.coordinates,
        extra["classes"],
        tuple(extra["labels"]),
        extra["probabilities"],
        extra.get("reference"),
        cloud.colors,
        name,
        extra["up"],
        tuple(map(float, cloud.origin)),
    )


def point_label_ids(cloud: PointCloud, source: str, options: base.HeadOptions) -> np.ndarray:
    """(N,) indices of the point labels among the classes of the model, `IGNORE` for unlabeled points."""
    values, labels = require_labels(cloud, source), options.labels
    known = cloud_classes(source) or classes_from_cloud(cloud) or run_classes(options)
    places = known.to_indices(values, source, IGNORE_LABEL, "labels")
    number = {label: place for place, label in enumerate(labels)}
    table = np.array([number.get(name, UNKNOWN_CLASS) for name in known.names] + [IGNORE], dtype=np.int64)
    ids = table[places]  # the last entry is for unlabeled points
    if (ids == UNKNOWN_CLASS).any():
        name = known.names[int(places[(ids == UNKNOWN_CLASS).argmax()])]
        raise DataError(
            f"class '{name}' is unknown to this model.",
            source or None,
            advice=f"Known classes: {', '.join(labels)}. Rename the class as in the training data, or rename it to 'void' "
            "to ignore its points.",
        )
    return ids
