"""Task `segment` for point clouds.

Training uses vertical blocks of a scene around random points (`data.block_size`). Prediction uses overlapping blocks: the
scores of a point are averaged over its blocks, and points removed by `data.voxel_size` have the scores of their voxel."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.data.images.masks import ClassMap
from regard.data.points.cloud import PointCloud
from regard.data.points.labeled import (
    CloudSample,
    classes_from_cloud,
    find_classes_near,
    find_cloud_classes,
    infer_cloud_classes,
    iterate_labeled_clouds,
    labels_to_indices,
)
from regard.data.settings import DataSettings
from regard.data.synthetic.point_clouds import parse_cloud_recipe
from regard.data.text.tables import SkippedRow
from regard.decode.settings import DecodeSettings
from regard.errors import DataError
from regard.nn.kernels.losses import cross_entropy
from regard.nn.points.body import point_head
from regard.processors.points import PointProcessor, VoteAccumulator, split_scene
from regard.tasks.base import Encoded, EvalResult, LossSum, LossWeights
from regard.tasks.file_task import sample_ids, sample_location
from regard.tasks.metrics.segmentation_depth import (
    SegmentationMetrics,
    class_fractions,
    format_fractions,
    format_top_fractions,
)
from regard.tasks.point_task import PointCloudTask, decode_cloud_source, pack_clouds, pack_slices
from regard.tasks.protocol import ModelProtocol
from regard.tasks.segment import VOID_VALUES, class_ids_option, class_pixel_values, classes_from_numbers
from regard.types import IGNORE, Batch, BodyOutput, Prediction

MAX_FIGURE_SAMPLES = 3
"""Maximum number of validation point clouds in the figure."""


class PointSegmentation(PointCloudTask):
    name = "segment"
    description = "Point-cloud segmentation: point clouds with labels per point."
    columns = ("cloud",)
    metric = "miou"
    has_labels = True
    has_file_output = True
    keeps_label_order = True  # written labels have the same class ids as the training labels
    max_inputs = 1  # predictions are as large as point clouds
    fields = ("cloud",)
    default_points, default_frame = 4096, "floor"

    def iter_samples(
        self, data: Sequence[str], columns: Mapping[str, str] | None = None
    ) -> Iterator[CloudSample | SkippedRow]:
        return iterate_labeled_clouds(data, columns)

    def labels(self, sample: CloudSample) -> Iterable[str]:
        """Class names from the class file or from the point cloud, or the label values of the points."""
        known = cloud_classes(sample.source)
        if known is not None:
            return known.names
        cloud = sample.read()
        inside = classes_from_cloud(cloud)
        return inside.names if inside else [str(value) for value in np.unique(_require_labels(cloud, sample.source))]

    def label_source(self, data: Sequence[str]) -> str:
        return repr(find_cloud_classes(data))

    def head_labels(self, labels: Sequence[str], data: DataSettings) -> tuple[str, ...]:
        numbers = all(label.lstrip("-").isdigit() for label in labels)  # class names are in order, numbers are not
        return infer_cloud_classes(map(int, labels)).names if numbers else tuple(labels)

    def head_options(self, samples: Sequence[CloudSample], data: DataSettings, train: Encoded) -> str:
        """Label values of the classes, if these differ from the class indices: "7,8,11"."""
        return class_ids_option(cloud_classes(samples[0].source) if samples else None, train.batch_context.labels)

    def adapt_config(self, config: Any) -> Any:
        return replace(config, has_decoder=True)

    def head(self, config: Any, labels: Sequence[str]) -> nn.Module | None:
        return point_head(config, len(labels)) if labels else None

    def encode(
        self,
        samples: Sequence[CloudSample],
        processor: PointProcessor,
        config: Any,
        max_length: int,
        data: DataSettings | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:
        if len(labels) < 2:
            raise DataError("Fewer than two classes found in the point clouds. Segmentation needs at least two.")
        rows = [self.source_row(sample) for sample in samples]
        return Encoded(
            list(samples), {"cloud": rows}, [], self.batch_context(processor, config, max_length, data, labels)
        )

    def validate_data(self, train: Encoded, valid: Encoded, config: Any, log: Callable[[str], None]) -> None:
        for encoded, part in ((train, "training"), (valid, "validation")):
            self._require_known_labels(encoded, part)
        super().validate_data(train, valid, config, log)

    def _require_known_labels(self, encoded: Encoded, part: str) -> None:
        """Raise an error if no point is labeled. Reading stops at the first labeled point cloud, usually the first one."""
        broken = None
        for number in range(len(encoded)):
            try:
                if (self.point_labels(encoded, number, self.load_cloud(encoded, number)) != IGNORE).any():
                    return
            except DataError as error:  # unreadable files are skipped with a warning during training
                broken = error
        if broken is not None:
            raise broken
        raise DataError(
            f"no point has a label in this file and in all {len(encoded):,} {part} point clouds.",
            decode_cloud_source(encoded.fields["cloud"][0]).source or None,
            advice=f"Inspect the point clouds with 'regard check {self.name}'.",
        )

    # -- batches

    def point_labels(self, encoded: Encoded, number: int, cloud: PointCloud) -> np.ndarray:
        """(N,) class indices of the points, `IGNORE` for unlabeled points."""
        return point_label_ids(
            cloud, decode_cloud_source(encoded.fields["cloud"][number]).source, encoded.batch_context.labels
        )

    def build_batch(self, encoded: Encoded, rows: np.ndarray, config: Any) -> Batch:
        found, labels = [], []
        for number, (cloud, rows_of, chosen) in zip(sample_ids(rows), self.prepare_clouds(encoded, rows), strict=True):
            found.append(rows_of)
            labels.append(self.point_labels(encoded, int(number), cloud)[chosen])
        x, offsets = pack_clouds(found)
        return Batch(x, labels=torch.from_numpy(np.concatenate(labels)), offsets=offsets)

    def logits(self, model: ModelProtocol, batch: Batch) -> Tensor:
        """(B, N, classes) logits, or (1, N, classes) for packed point clouds."""
        self.require_head(model)
        said = self.apply_head(model, model.body(batch))
        return said if batch.offsets is not None else said.view(*batch.inputs.shape[:2], -1)

    def apply_head(self, model: ModelProtocol, states: BodyOutput) -> Tensor:
        return self.require_head(model)(states.sequence)

    def loss(self, model: ModelProtocol, batch: Batch, terms: LossWeights = LossWeights()) -> tuple[Tensor, Tensor]:  # noqa: B008
        assert batch.labels is not None
        return cross_entropy(self.logits(model, batch).flatten(0, 1), batch.labels, terms.smoothing)

    # -- inference

    def predict(
        self, model: ModelProtocol, inputs: Sequence[Any], decode: DecodeSettings, first: int = 0
    ) -> list[Prediction]:
        """Fraction of each class in each point cloud. `extra["classes"]` are the class indices of all points (N,) in file
        order, `extra["probabilities"]` their probabilities."""
        points = model.require_point_processor()
        return [self._make_prediction(model, self.open_input(item, points), item) for item in inputs]

    def predict_points(self, model: ModelProtocol, cloud: PointCloud) -> tuple[np.ndarray, np.ndarray]:
        """(N,) class index of every point and its probability, averaged over all blocks that contain the point."""
        found = split_scene(cloud, model.require_point_processor())
        votes = VoteAccumulator(len(found.point_indices), len(model.spec.labels))
        for some in pack_slices(map(len, found.rows)):
            x, offsets = pack_clouds(found.rows[some])
            with torch.inference_mode():
                said = self.logits(model, Batch(x, offsets=offsets).to(model.device))[0]
            chances = said.float().softmax(-1).cpu().numpy()
            for chosen, own in zip(
                found.block_indices[some], np.split(chances, offsets.starts[1:-1].numpy()), strict=True
            ):
                votes.add(chosen, own)
        labels, probabilities = votes.sums.argmax(axis=1), votes.probabilities().max(1)
        return labels[found.voxel_index], probabilities[found.voxel_index]

    def _make_prediction(self, model: ModelProtocol, cloud: PointCloud, item: Any = None) -> Prediction:
        labels = model.spec.labels
        said, sure = self.predict_points(model, cloud)
        found = class_fractions(said, labels)
        known: dict[str, Any] = {"labels": labels, "class_values": class_pixel_values(labels, model.spec.head_options)}
        known["up"] = model.require_point_processor().up
        source = item if isinstance(item, str) else ""
        known["file"] = Path(source).name
        if cloud.labels is not None and (right := point_label_ids_or_none(cloud, source, labels)) is not None:
            known["reference"] = right
        return Prediction(
            found, tuple(found.values()), (), {"classes": said, "probabilities": sure, "cloud": cloud, **known}
        )

    def evaluate(
        self,
        model: ModelProtocol,
        encoded: Encoded,
        decode: DecodeSettings,
        data: DataSettings,
        sums: LossSum,
        max_samples: int | None = None,
    ) -> EvalResult:
        """Mean IoU and point accuracy in percent."""
        labels = model.spec.labels
        count = len(encoded) if max_samples is None else min(max_samples, len(encoded))
        overlap = SegmentationMetrics(len(labels), IGNORE)
        answers: list[Prediction] = []
        for number in range(count):
            cloud = self.load_cloud(encoded, number)
            answer = self._make_prediction(model, cloud)
            right = self.point_labels(encoded, number, cloud)
            overlap.add(answer.extra["classes"], right)
            answers.append(
                replace(answer, extra={**answer.extra, "reference": right} if number < MAX_FIGURE_SAMPLES else {})
            )
        return overlap.report(labels, count, max_samples is None, "point"), answers

    def save_figures(
        self, folder: Path, samples: Sequence[CloudSample], predictions: Sequence[Prediction]
    ) -> list[str]:
        from regard.draw.point_cloud import draw_clouds

        shown = [
            _figure_data(answer.extra, _short_name(sample.source))
            for sample, answer in zip(samples, predictions, strict=False)
            if answer.extra
        ]
        return [draw_clouds(shown, folder / "clouds.png").name] if shown else []

    def write_files(self, name: str, prediction: Prediction, folder: Path) -> dict[str, str]:
        """Point cloud with a label and color per point, and an interactive page."""
        from regard.data.points.cloud_files import write_ply
        from regard.draw.colors import class_colors
        from regard.draw.point_cloud import write_cloud_page

        labels, numbers, said = (prediction.extra[key] for key in ("labels", "class_values", "classes"))
        colours = np.array(class_colors(len(labels)), dtype=np.uint8)
        kept = folder / f"{name}.labeled.ply"
        plain = numbers.tolist() == list(range(len(labels)))
        write_ply(kept, prediction.extra["cloud"], numbers[said], colours[said], labels if plain else ())
        facts, overlap = {}, SegmentationMetrics(len(labels), IGNORE)
        if "reference" in prediction.extra:
            overlap.add(said, prediction.extra["reference"])
            facts = {
                "point accuracy": f"{100 * overlap.accuracy():.1f} %",
                "mIoU": f"{100 * overlap.mean_iou():.1f} %",
            }
        each = list(overlap.iou_by_name(labels).values()) if facts else []
        page = write_cloud_page(
            _figure_data(prediction.extra, name),
            folder / f"{name}.html",
            prediction.extra["file"] or name,
            PAGE_NOTE,
            facts,
            each,
        )
        return {"cloud": str(kept), "page": str(page)}

    def format_prediction(self, source: Any, prediction: Prediction) -> str:
        return format_fractions(source, prediction)

    def example_row(self, sample: CloudSample, prediction: Prediction) -> dict[str, str]:
        return {"cloud": sample_location(sample), "prediction": format_top_fractions(prediction)}


PAGE_NOTE = "Predicted class of each point. Hover over a point for its confidence."


def _figure_data(found: Mapping[str, Any], name: str) -> Any:
    from regard.draw.point_cloud import PredictedCloud

    cloud: PointCloud = found["cloud"]
    return PredictedCloud(
        cloud.coordinates, found["classes"], tuple(found["labels"]), found["probabilities"], found.get("reference"),
        cloud.colors, name,
        found["up"], tuple(map(float, cloud.origin)),
    )  # fmt: skip


def _short_name(source: str) -> str:
    return source if "#" in source else Path(source).stem


def cloud_classes(source: str) -> ClassMap | None:
    """Classes from the class file of a point cloud or from its synthetic recipe. `VOID_VALUES` are void."""
    if not source:
        return None
    return _folder_classes(
        source if parse_cloud_recipe(source) else os.path.dirname(os.path.abspath(os.path.expanduser(source)))
    )


@functools.lru_cache(maxsize=4096)
def _folder_classes(folder: str) -> ClassMap | None:
    """Classes of a folder, cached because many point clouds share a folder."""
    found = find_classes_near(folder)
    return None if found is None else replace(found, void=tuple({*found.void, *VOID_VALUES} - set(found.values)))


def _require_labels(cloud: PointCloud, source: str) -> np.ndarray:
    if cloud.labels is None:
        raise DataError(
            "the points have no labels.", source or None,
            advice="In a PLY file, labels are the property 'label'; for a table of points, pass --columns label=NAME.",
        )  # fmt: skip
    return cloud.labels


def point_label_ids(cloud: PointCloud, source: str, labels: Sequence[str]) -> np.ndarray:
    """(N,) indices of the point labels among `labels`, `IGNORE` for unlabeled points."""
    values = _require_labels(cloud, source)
    known = cloud_classes(source) or classes_from_cloud(cloud) or _default_classes(labels)
    places = labels_to_indices(values, known, source)
    number = {label: place for place, label in enumerate(labels)}
    table = np.array([number.get(name, UNKNOWN_CLASS) for name in known.names] + [IGNORE], dtype=np.int64)
    right = table[places]  # the last entry is for unlabeled points
    if (right == UNKNOWN_CLASS).any():
        name = known.names[int(places[(right == UNKNOWN_CLASS).argmax()])]
        raise DataError(
            f"class '{name}' is unknown to this model.", source or None,
            advice=f"Known classes: {', '.join(labels)}. Rename the class as in the training data, or rename it to 'void' "
            "to ignore its points.",
        )  # fmt: skip
    return right


def _default_classes(labels: Sequence[str]) -> ClassMap:
    """Classes of point clouds without a class file: names are numbers, or label values are indices."""
    if all(label.isdigit() for label in labels):
        return classes_from_numbers(labels)
    return ClassMap(tuple(labels), tuple(range(len(labels))), tuple(VOID_VALUES))


UNKNOWN_CLASS = -2


def point_label_ids_or_none(cloud: PointCloud, source: str, labels: Sequence[str]) -> np.ndarray | None:
    """`point_label_ids`, or None if the labels do not match: labels are optional at inference."""
    try:
        return point_label_ids(cloud, source, labels)
    except DataError:
        return None
