"""classify, asked of bodies that read pictures: a picture in, one of some classes out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.pictures import Picture, iterate_pictures
from regard.data.rows import Empty
from regard.data.settings import Data
from regard.data.tables import BETWEEN
from regard.decode.settings import Decode
from regard.errors import DataError, RegardError, SettingError
from regard.inputs.augment import mixing
from regard.nn.loss import cross_entropy
from regard.nn.readout import ReadOut
from regard.tasks.asked import Asked
from regard.tasks.classify import SAID, drawn, each_of, labels_of, scored, scored_several
from regard.tasks.heads import numbered
from regard.tasks.pictured import CHANGED, Pictured, place_of, row_of, together
from regard.tasks.several import (
    PUBLISHED,
    SEVERAL,
    as_learnt,
    binary_cross_entropy,
    likely,
    read_problem,
    tells_several,
)
from regard.tasks.task import Encoded, Scored, Sums, Terms
from regard.waists import Answer, Batch

TOP = 5


class Recognise(Pictured):
    name = "classify"
    about = "pictures with a class (a folder for each, or a table); answers with the class"
    columns = ("image", "label")
    metric = "accuracy"
    model = "vit-tiny"
    labelled = True
    sides = ("picture", "label")
    heeds = (*Pictured.heeds, *CHANGED, "data.mixup", "train.smoothing", "decode.threshold")

    def stream(self, data: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[Picture | Empty]:
        return iterate_pictures(data, columns)

    def labels(self, sample: Picture) -> Iterable[str]:
        return (sample.label,)

    def read_manner(self, published: Mapping[str, Any], labels: Sequence[str]) -> str:
        return read_problem(published, labels)

    def write_manner(self, pair: str) -> dict[str, Any]:
        return {"problem_type": PUBLISHED} if SEVERAL in pair.split() else {}

    def deciding(self, scores: Mapping[str, Any]) -> str:
        return "micro_f1" if "micro_f1" in scores else self.metric

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

    def encode(
        self, samples: Sequence[Picture], reader: Any, config: Any, longest: int, data: Data | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:  # fmt: skip
        if len(labels) < 2:
            only = f"there is one class only ('{labels[0]}')" if labels else "there are no classes"
            raise DataError(f"{only}: nothing can be told apart.")
        right = numbered(samples, [sample.label for sample in samples], labels)
        sides = {"picture": [row_of(sample) for sample in samples], "label": [np.array([label]) for label in right]}
        return Encoded(list(samples), sides, [], self.how(reader, config, longest, data))

    def made_of(self, encoded: Encoded, rows: np.ndarray, config: Any) -> Batch:
        x, changes = self.pictures(encoded, rows)
        labels = [int(encoded.sides["label"][int(number)][0]) for number in (rows[:, 0] if rows.ndim == 2 else rows)]
        return Batch(x, labels=torch.tensor(labels), changes=changes, changed_by=encoded.how.augment)

    def logits(self, model: Asked, batch: Batch) -> Tensor:
        if model.head is None:
            raise RegardError("this model has no head to classify yet: train it for classes of your own.")
        return model.head(model.body(self.looked_at(model, batch)).summary)

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
            answers += self._said(model, Batch(x), decode)
        return answers

    def chances(self, model: Asked, logits: Tensor) -> Tensor:
        return logits.sigmoid() if tells_several(model) else logits.softmax(-1)

    def _said(self, model: Asked, batch: Batch, decode: Decode) -> list[Answer]:
        labels, several = model.identity.labels, tells_several(model)
        with torch.inference_mode():
            table = self.chances(model, self.logits(model, batch.to(model.device)).float()).cpu().numpy()
        answers = []
        for row in table:
            said = {label: float(chance) for label, chance in zip(labels, row, strict=True)}
            value = likely(said, decode.threshold) if several else labels[int(row.argmax())]
            answers.append(Answer(value, tuple(said.values()), (), {"probabilities": said}))
        return answers

    def score(
        self, model: Asked, encoded: Encoded, decode: Decode, data: Data, sums: Sums, most: int | None = None
    ) -> Scored:
        """Shares of 100: the right class first, or among the first five; the mean of the F1 of the classes. Of a model that
        tells several labels F1 over all of them, and their mean."""
        labels, count = model.identity.labels, len(encoded) if most is None else min(most, len(encoded))
        answers: list[Answer] = []
        for start in range(0, count, step := together(encoded.how.pixels)):
            rows = np.arange(start, min(start + step, count))
            answers += self._said(model, self.collate(encoded, rows, model.config), decode)
        right = [labels[int(encoded.sides["label"][number][0])] for number in range(count)]
        if tells_several(model):
            return scored_several([(label,) for label in right], answers, most is None), answers
        said = [str(answer.value) for answer in answers]
        scores = scored(labels, right, said, self.unit, most is None)
        if len(labels) > TOP:
            near = [
                label in sorted(labels, key=answer.extra["probabilities"].get, reverse=True)[:TOP]
                for label, answer in zip(right, answers, strict=True)
            ]
            scores["top5"] = round(100 * float(np.mean(near)), 2)
        return scores, answers

    def draw(self, folder: Path, samples: Sequence[Picture], answers: Sequence[Answer]) -> list[str]:
        labels = tuple(answers[0].extra["probabilities"]) if answers else ()
        if len(labels) < 2:
            return []
        right, said = [sample.label for sample in samples], [str(answer.value) for answer in answers]
        if isinstance(answers[0].value, list):
            return [each_of([(label,) for label in right], answers).draw(folder / "classes.png").name]
        return [drawn(labels, right, said, self.unit, folder).name]

    def said(self, given: Any, answer: Answer) -> str:
        chances = sorted(answer.extra["probabilities"].items(), key=lambda item: -item[1])
        said = BETWEEN.join(labels_of(answer))
        return "\t".join([str(given), said, *(f"{name} {chance:.4f}" for name, chance in chances[:SAID])])

    def example(self, sample: Picture, answer: Answer) -> dict[str, str]:
        said = labels_of(answer)
        sure = ", ".join(f"{answer.extra['probabilities'][label]:.3f}" for label in said)
        return {"picture": place_of(sample), "answer": ", ".join(said), "reference": sample.label, "probability": sure}


def _weighed(logits: Tensor, labels: Tensor, weight: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Cross-entropy where each row has a weight; smoothing gives the other classes their share, as everywhere here."""
    chances = F.log_softmax(logits.float(), -1)
    right = chances.gather(1, labels[:, None])[:, 0]
    others = (chances.sum(1) - right) / (chances.shape[1] - 1)
    loss = -(1 - smoothing) * right - smoothing * others
    return (weight * loss).sum(), torch.full((), float(len(labels)), device=logits.device)
