"""Classification of files: images and point clouds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from regard.data.settings import DataSettings
from regard.data.text.samples import LABEL_SEPARATOR
from regard.decode.settings import DecodeSettings
from regard.errors import DataError
from regard.tasks.base import Encoded, EvalResult, LossSum
from regard.tasks.classify import (
    MAX_PRINTED_LABELS,
    classification_scores,
    multilabel_metrics,
    multilabel_scores,
    predicted_labels,
    save_class_figure,
)
from regard.tasks.file_task import FileSampleTask, sample_ids, sample_location
from regard.tasks.multilabel import is_multilabel, labels_above_threshold
from regard.tasks.protocol import ModelProtocol
from regard.tasks.text_heads import label_ids
from regard.types import Batch, Prediction

TOP_K = 5


class ClassificationMixin(FileSampleTask):
    name = "classify"
    metric = "accuracy"
    has_labels = True
    settings_used: ClassVar[tuple[str, ...]] = ("train.label_smoothing", "decode.threshold")

    def labels(self, sample: Any) -> Iterable[str]:
        return (sample.label,)

    def selection_metric(self, scores: Mapping[str, Any]) -> str:
        return "micro_f1" if "micro_f1" in scores else self.metric

    def encode(
        self, samples: Sequence[Any], processor: Any, config: Any, max_length: int, data: DataSettings | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:  # fmt: skip
        if len(labels) < 2:
            found = f"Only one class found ('{labels[0]}')" if labels else "No classes found"
            raise DataError(f"{found}. Classification needs at least two.")
        right = label_ids(samples, [sample.label for sample in samples], labels)
        sides = {
            self.fields[0]: [self.source_row(sample) for sample in samples],
            "label": [np.array([label]) for label in right],
        }
        return Encoded(list(samples), sides, [], self.batch_context(processor, config, max_length, data))

    def label_ids(self, encoded: Encoded, rows: np.ndarray) -> Tensor:
        """(B,) class indices."""
        return torch.tensor([int(encoded.fields["label"][int(number)][0]) for number in sample_ids(rows)])

    def probabilities(self, model: ModelProtocol, logits: Tensor) -> Tensor:
        return logits.sigmoid() if is_multilabel(model) else logits.softmax(-1)

    def predict_probabilities(self, model: ModelProtocol, batch: Batch) -> np.ndarray:
        """(B, classes) probabilities."""
        with torch.inference_mode():
            return self.probabilities(model, self.logits(model, batch.to(model.device)).float()).cpu().numpy()

    def make_predictions(self, model: ModelProtocol, table: np.ndarray, decode: DecodeSettings) -> list[Prediction]:
        """Prediction with the class, or with the labels above the threshold, and all probabilities."""
        labels, several = model.spec.labels, is_multilabel(model)
        answers = []
        for row in table:
            said = {label: float(chance) for label, chance in zip(labels, row, strict=True)}
            value = labels_above_threshold(said, decode.threshold) if several else labels[int(row.argmax())]
            answers.append(Prediction(value, tuple(said.values()), (), {"probabilities": said}))
        return answers

    def predict_rows(
        self, model: ModelProtocol, encoded: Encoded, rows: np.ndarray, decode: DecodeSettings
    ) -> list[Prediction]:
        """Predictions for rows of the evaluation data."""
        return self.make_predictions(
            model, self.predict_probabilities(model, self.collate(encoded, rows, model.config)), decode
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
        """Accuracy, top-5 accuracy and macro F1 in percent. Multi-label models: micro F1 and macro F1."""
        labels, count = model.spec.labels, len(encoded) if max_samples is None else min(max_samples, len(encoded))
        answers: list[Prediction] = []
        for start in range(0, count, step := self.eval_batch_size(encoded.batch_context)):
            rows = np.arange(start, min(start + step, count))
            answers += self.predict_rows(model, encoded, rows, decode)
        right = [labels[int(encoded.fields["label"][number][0])] for number in range(count)]
        if is_multilabel(model):
            return multilabel_scores([(label,) for label in right], answers, max_samples is None), answers
        said = [str(answer.value) for answer in answers]
        scores = classification_scores(labels, right, said, self.unit, max_samples is None)
        if len(labels) > TOP_K:
            near = [
                label in sorted(labels, key=answer.extra["probabilities"].get, reverse=True)[:TOP_K]
                for label, answer in zip(right, answers, strict=True)
            ]
            scores["top5"] = round(100 * float(np.mean(near)), 2)
        return scores, answers

    def save_figures(self, folder: Path, samples: Sequence[Any], predictions: Sequence[Prediction]) -> list[str]:
        labels = tuple(predictions[0].extra["probabilities"]) if predictions else ()
        if len(labels) < 2:
            return []
        right, said = [sample.label for sample in samples], [str(answer.value) for answer in predictions]
        if isinstance(predictions[0].value, list):
            return [
                multilabel_metrics([(label,) for label in right], predictions).save_figure(folder / "classes.png").name
            ]
        return [save_class_figure(labels, right, said, self.unit, folder).name]

    def format_prediction(self, source: Any, prediction: Prediction) -> str:
        chances = sorted(prediction.extra["probabilities"].items(), key=lambda item: -item[1])
        said = LABEL_SEPARATOR.join(predicted_labels(prediction))
        return "\t".join(
            [str(source), said, *(f"{name} {chance:.4f}" for name, chance in chances[:MAX_PRINTED_LABELS])]
        )

    def example_row(self, sample: Any, prediction: Prediction) -> dict[str, str]:
        said = predicted_labels(prediction)
        sure = ", ".join(f"{prediction.extra['probabilities'][label]:.3f}" for label in said)
        given = {self.fields[0]: sample_location(sample)}
        return {**given, "prediction": ", ".join(said), "reference": sample.label, "probability": sure}
