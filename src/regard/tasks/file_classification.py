"""classify, of whatever is opened as a file: a picture or a cloud in, one of some classes out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from regard.data.settings import Data
from regard.data.text.labeled import BETWEEN
from regard.decode.settings import Decode
from regard.errors import DataError
from regard.tasks.base import Encoded, Scored, Sums
from regard.tasks.classify import SAID, drawn, each_of, labels_of, scored, scored_several
from regard.tasks.file_task import Opened, numbers_of, place_of
from regard.tasks.multilabel import likely, tells_several
from regard.tasks.protocol import Asked
from regard.tasks.text_heads import numbered
from regard.types import Answer, Batch

TOP = 5


class Naming(Opened):
    name = "classify"
    metric = "accuracy"
    labelled = True
    heeds: ClassVar[tuple[str, ...]] = ("train.smoothing", "decode.threshold")

    def labels(self, sample: Any) -> Iterable[str]:
        return (sample.label,)

    def deciding(self, scores: Mapping[str, Any]) -> str:
        return "micro_f1" if "micro_f1" in scores else self.metric

    def encode(
        self, samples: Sequence[Any], reader: Any, config: Any, longest: int, data: Data | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:  # fmt: skip
        if len(labels) < 2:
            only = f"there is one class only ('{labels[0]}')" if labels else "there are no classes"
            raise DataError(f"{only}: nothing can be told apart.")
        right = numbered(samples, [sample.label for sample in samples], labels)
        sides = {
            self.sides[0]: [self.row(sample) for sample in samples],
            "label": [np.array([label]) for label in right],
        }
        return Encoded(list(samples), sides, [], self.how(reader, config, longest, data))

    def right(self, encoded: Encoded, rows: np.ndarray) -> Tensor:
        """(B,) the numbers of the classes."""
        return torch.tensor([int(encoded.sides["label"][int(number)][0]) for number in numbers_of(rows)])

    def chances(self, model: Asked, logits: Tensor) -> Tensor:
        return logits.sigmoid() if tells_several(model) else logits.softmax(-1)

    def table(self, model: Asked, batch: Batch) -> np.ndarray:
        """(B, classes) probabilities."""
        with torch.inference_mode():
            return self.chances(model, self.logits(model, batch.to(model.device)).float()).cpu().numpy()

    def named(self, model: Asked, table: np.ndarray, decode: Decode) -> list[Answer]:
        """The likeliest class of each, with all probabilities."""
        labels, several = model.identity.labels, tells_several(model)
        answers = []
        for row in table:
            said = {label: float(chance) for label, chance in zip(labels, row, strict=True)}
            value = likely(said, decode.threshold) if several else labels[int(row.argmax())]
            answers.append(Answer(value, tuple(said.values()), (), {"probabilities": said}))
        return answers

    def answered(self, model: Asked, encoded: Encoded, rows: np.ndarray, decode: Decode) -> list[Answer]:
        """Of samples that are there to be scored."""
        return self.named(model, self.table(model, self.collate(encoded, rows, model.config)), decode)

    def score(
        self, model: Asked, encoded: Encoded, decode: Decode, data: Data, sums: Sums, most: int | None = None
    ) -> Scored:
        """Shares of 100: the right class first, or among the first five; the mean of the F1 of the classes. Of a model that
        tells several labels F1 over all of them, and their mean."""
        labels, count = model.identity.labels, len(encoded) if most is None else min(most, len(encoded))
        answers: list[Answer] = []
        for start in range(0, count, step := self.at_a_time(encoded.how)):
            rows = np.arange(start, min(start + step, count))
            answers += self.answered(model, encoded, rows, decode)
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

    def draw(self, folder: Path, samples: Sequence[Any], answers: Sequence[Answer]) -> list[str]:
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

    def example(self, sample: Any, answer: Answer) -> dict[str, str]:
        said = labels_of(answer)
        sure = ", ".join(f"{answer.extra['probabilities'][label]:.3f}" for label in said)
        given = {self.sides[0]: place_of(sample)}
        return {**given, "answer": ", ".join(said), "reference": sample.label, "probability": sure}
