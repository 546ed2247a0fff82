"""Task `classify` for point clouds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from regard.data.points.cloud import PointCloud
from regard.data.points.labeled import CloudSample, iterate_clouds
from regard.data.text.tables import SkippedRow
from regard.decode.settings import DecodeSettings
from regard.nn.kernels.losses import cross_entropy
from regard.nn.points.body import point_cloud_head
from regard.processors.points import PointProcessor
from regard.tasks.base import Encoded, LossWeights
from regard.tasks.file_classification import ClassificationMixin
from regard.tasks.point_task import PointBatchContext, PointCloudTask, pack_clouds, pack_slices
from regard.tasks.protocol import ModelProtocol
from regard.types import Batch, BodyOutput, Prediction

MAX_VOTES = 8
"""Maximum number of votes for a large point cloud, unless `decode.num_votes` is larger."""


class PointClassification(ClassificationMixin, PointCloudTask):
    description = "Point-cloud classification."
    columns = ("cloud", "label")
    fields = ("cloud", "label")
    settings_used = (*PointCloudTask.settings_used, "decode.num_votes")
    default_points, default_frame = 1024, "unit_sphere"

    def iter_samples(
        self, data: Sequence[str], columns: Mapping[str, str] | None = None
    ) -> Iterator[CloudSample | SkippedRow]:
        return iterate_clouds(data, columns)

    def adapt_config(self, config: Any) -> Any:
        return replace(config, has_decoder=False)

    def head(self, config: Any, labels: Sequence[str]) -> nn.Module | None:
        return point_cloud_head(config, len(labels)) if labels else None

    def build_batch(self, encoded: Encoded, rows: np.ndarray, config: Any) -> Batch:
        x, offsets = pack_clouds([x for _, x, _ in self.prepare_clouds(encoded, rows)])
        return Batch(x, labels=self.label_ids(encoded, rows), offsets=offsets)

    def logits(self, model: ModelProtocol, batch: Batch) -> Tensor:
        """(B, classes) logits."""
        self.require_head(model)
        return self.apply_head(model, model.body(batch))

    def apply_head(self, model: ModelProtocol, states: BodyOutput) -> Tensor:
        return self.require_head(model)(states.pooled)

    def loss(self, model: ModelProtocol, batch: Batch, terms: LossWeights = LossWeights()) -> tuple[Tensor, Tensor]:  # noqa: B008
        assert batch.labels is not None
        return cross_entropy(self.logits(model, batch), batch.labels, terms.smoothing)

    def predict(
        self, model: ModelProtocol, inputs: Sequence[Any], decode: DecodeSettings, first: int = 0
    ) -> list[Prediction]:
        """Most likely class of each point cloud (a path, bytes, a `PointCloud` or an array), with all probabilities."""
        points = model.require_point_processor()
        return self.make_predictions(
            model,
            self.vote_probabilities(model, (self.open_input(item, points) for item in inputs), points, decode),
            decode,
        )

    def predict_rows(
        self, model: ModelProtocol, encoded: Encoded, rows: np.ndarray, decode: DecodeSettings
    ) -> list[Prediction]:
        how: PointBatchContext = encoded.batch_context
        clouds = (self.load_cloud(encoded, int(number)) for number in rows)
        return self.make_predictions(model, self.vote_probabilities(model, clouds, how.points, decode), decode)

    def vote_probabilities(
        self, model: ModelProtocol, clouds: Iterable[PointCloud], points: PointProcessor, decode: DecodeSettings
    ) -> np.ndarray:
        """(B, classes) probabilities, averaged over several random subsets of the points of large point clouds."""
        draws = [points.prepare_views(cloud, decode.num_votes, max(MAX_VOTES, decode.num_votes)) for cloud in clouds]
        rows = [x for some in draws for x in some]
        tables = []
        for part in pack_slices(map(len, rows)):
            x, offsets = pack_clouds(rows[part])
            tables.append(self.predict_probabilities(model, Batch(x, offsets=offsets)))
        firsts = np.cumsum([0, *map(len, draws[:-1])])
        many = np.array([len(some) for some in draws])
        return np.add.reduceat(np.concatenate(tables), firsts) / many[:, None] if draws else np.zeros((0, 0))
