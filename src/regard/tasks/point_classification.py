"""classify, asked of bodies that read points: a cloud in, one of some classes out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from regard.data.points.cloud import Cloud
from regard.data.points.labeled import CloudFile, iterate_clouds
from regard.data.text.tables import Empty
from regard.decode.settings import Decode
from regard.nn.blocks.losses import cross_entropy
from regard.nn.points.body import cloud_head
from regard.processors.points import Points
from regard.tasks.base import Encoded, Terms
from regard.tasks.file_classification import Naming
from regard.tasks.point_task import Clouded, Gathering, packed, packs
from regard.tasks.protocol import Asked
from regard.types import Answer, Batch, States

VOTES = 8
"""Times that a large cloud is looked at, at most, where a person does not want more."""


class Discern(Naming, Clouded):
    about = "point clouds with a class (a folder for each, or a table); answers with the class"
    columns = ("cloud", "label")
    sides = ("cloud", "label")
    heeds = (*Clouded.heeds, "decode.votes")
    many, framed = 1024, "unit"

    def stream(self, data: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[CloudFile | Empty]:
        return iterate_clouds(data, columns)

    def bodied(self, config: Any) -> Any:
        return replace(config, decodes=False)

    def head(self, config: Any, labels: Sequence[str]) -> nn.Module | None:
        return cloud_head(config, len(labels)) if labels else None

    def made_of(self, encoded: Encoded, rows: np.ndarray, config: Any) -> Batch:
        x, offsets = packed([x for _, x, _ in self.gathered(encoded, rows)])
        return Batch(x, labels=self.right(encoded, rows), offsets=offsets)

    def logits(self, model: Asked, batch: Batch) -> Tensor:
        """(B, classes)"""
        self.headed(model)
        return self.read(model, model.body(batch))

    def read(self, model: Asked, states: States) -> Tensor:
        return self.headed(model)(states.summary)

    def loss(self, model: Asked, batch: Batch, terms: Terms = Terms()) -> tuple[Tensor, Tensor]:  # noqa: B008
        assert batch.labels is not None
        return cross_entropy(self.logits(model, batch), batch.labels, terms.smoothing)

    def answer(self, model: Asked, inputs: Sequence[Any], decode: Decode, first: int = 0) -> list[Answer]:
        """Of each cloud (a path, bytes, a `Cloud` or an array) the likeliest class, with all probabilities."""
        points = model.points_or_refuse()
        return self.named(
            model, self.voted(model, (self.asked(item, points) for item in inputs), points, decode), decode
        )

    def answered(self, model: Asked, encoded: Encoded, rows: np.ndarray, decode: Decode) -> list[Answer]:
        how: Gathering = encoded.how
        clouds = (self.opened(encoded, int(number)) for number in rows)
        return self.named(model, self.voted(model, clouds, how.points, decode), decode)

    def voted(self, model: Asked, clouds: Iterable[Cloud], points: Points, decode: Decode) -> np.ndarray:
        """(B, classes) probabilities. A cloud of more points than are drawn is looked at several times, each time at others of
        its points, and what is said is the mean."""
        draws = [points.draws(cloud, decode.votes, max(VOTES, decode.votes)) for cloud in clouds]
        rows = [x for some in draws for x in some]
        tables = []
        for part in packs(map(len, rows)):
            x, offsets = packed(rows[part])
            tables.append(self.table(model, Batch(x, offsets=offsets)))
        firsts = np.cumsum([0, *map(len, draws[:-1])])
        many = np.array([len(some) for some in draws])
        return np.add.reduceat(np.concatenate(tables), firsts) / many[:, None] if draws else np.zeros((0, 0))
