"""classify, asked of bodies that read pictures: a picture in, one of some classes out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.images.labeled import Picture, iterate_pictures
from regard.data.settings import Data
from regard.data.text.tables import Empty
from regard.decode.settings import Decode
from regard.errors import SettingError
from regard.nn.blocks.heads import ReadOut
from regard.nn.blocks.losses import cross_entropy
from regard.processors.augmentation import mixing
from regard.tasks.base import Encoded, Terms
from regard.tasks.file_classification import Naming
from regard.tasks.image_task import CHANGED, Pictured, together
from regard.tasks.multilabel import (
    PUBLISHED,
    SEVERAL,
    as_learnt,
    binary_cross_entropy,
    read_problem,
    tells_several,
)
from regard.tasks.protocol import Asked
from regard.types import Answer, Batch


class Recognise(Naming, Pictured):
    about = "pictures with a class (a folder for each, or a table); answers with the class"
    columns = ("image", "label")
    model = "vit-tiny"
    sides = ("picture", "label")
    heeds = (*Pictured.heeds, *CHANGED, "data.mixup", *Naming.heeds)

    def stream(self, data: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[Picture | Empty]:
        return iterate_pictures(data, columns)

    def read_manner(self, published: Mapping[str, Any], labels: Sequence[str]) -> str:
        return read_problem(published, labels)

    def write_manner(self, pair: str) -> dict[str, Any]:
        return {"problem_type": PUBLISHED} if SEVERAL in pair.split() else {}

    def bodied(self, config: Any) -> Any:
        return replace(config, draws=False) if hasattr(config, "draws") else config

    def check(self, config: Any, tokens: int, data: Data) -> None:
        if data.mixup and hasattr(config, "colours"):
            raise SettingError(
                "data.mixup mixes pictures, and this model reads colours of a palette, which has none between those of two: "
                "leave it out. data.crop, data.shift, data.flip and data.colour change pictures before they become colours."
            )

    def head(self, config: Any, labels: Sequence[str]) -> nn.Module | None:
        if not labels:
            return None
        bias, std = getattr(config, "head_bias", True), getattr(config, "head_std", 0.02)
        return ReadOut("classes", config.maps()[-1].channels, len(labels), config.head_dropout, bias, std=std)

    def made_of(self, encoded: Encoded, rows: np.ndarray, config: Any) -> Batch:
        x, changes = self.pictures(encoded, rows)
        return Batch(x, labels=self.right(encoded, rows), changes=changes, changed_by=encoded.how.augment)

    def logits(self, model: Asked, batch: Batch) -> Tensor:
        return self.headed(model)(model.body(self.looked_at(model, batch)).summary)

    def loss(self, model: Asked, batch: Batch, terms: Terms = Terms()) -> tuple[Tensor, Tensor]:  # noqa: B008
        assert batch.labels is not None
        logits = self.logits(model, batch)
        if tells_several(model):
            # data name one class of each picture: such a model is scored on them, and one that is trained on them tells one
            return binary_cross_entropy(logits, as_learnt(model, batch.labels), terms.smoothing)
        if batch.changes is None or not batch.changed_by.mixup:
            return cross_entropy(logits, batch.labels, terms.smoothing)
        weight, partner = mixing(batch.changes)
        # the loss is linear in the labels: mixed ones are the mixture of two losses
        kept, count = _weighed(logits, batch.labels, weight, terms.smoothing)
        other, _ = _weighed(logits, batch.labels[partner], 1 - weight, terms.smoothing)
        return kept + other, count

    def answer(self, model: Asked, inputs: Sequence[Any], decode: Decode, first: int = 0) -> list[Answer]:
        """Of each picture (a path, bytes, an array or a picture of Pillow's) the likeliest class, with all probabilities."""
        answers = []
        pixels = model.pixels_or_refuse()
        for start in range(0, len(inputs), most := together(pixels)):
            x = self.asked(inputs[start : start + most], pixels)
            answers += self.named(model, self.table(model, Batch(x)), decode)
        return answers


def _weighed(logits: Tensor, labels: Tensor, weight: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Cross-entropy where each row has a weight; smoothing gives the other classes their share, as everywhere here."""
    chances = F.log_softmax(logits.float(), -1)
    right = chances.gather(1, labels[:, None])[:, 0]
    others = (chances.sum(1) - right) / (chances.shape[1] - 1)
    loss = -(1 - smoothing) * right - smoothing * others
    return (weight * loss).sum(), torch.full((), float(len(labels)), device=logits.device)
