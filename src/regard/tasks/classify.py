"""Task `classify`: single-label or multi-label classification of texts or text pairs with encoders or decoders."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from regard.data.settings import DataSettings
from regard.data.text.files import ErrorHandler
from regard.data.text.samples import LABEL_SEPARATOR, LABELED_COLUMNS, LabeledText, iterate_labeled, read_text_inputs
from regard.data.text.tables import SkippedRow
from regard.decode.settings import DecodeSettings
from regard.draw.charts import MAX_CLASSES, draw_confusion
from regard.draw.text import markdown_table
from regard.errors import DataError, RegardError
from regard.nn.blocks.heads import text_head
from regard.nn.kernels.losses import cross_entropy
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.tasks.act import with_act_steps
from regard.tasks.base import ENCODING_SETTINGS, TEXT_SETTINGS, Encoded, EvalResult, LossSum, LossWeights
from regard.tasks.metrics.per_class import ClassMetrics, confusion_summary
from regard.tasks.multilabel import (
    MULTILABEL,
    PUBLISHED_PROBLEM_TYPE,
    binary_cross_entropy,
    is_multilabel,
    label_rows,
    labels_above_threshold,
    match_label_format,
    pair_order,
    parse_problem_type,
)
from regard.tasks.protocol import ModelProtocol
from regard.tasks.special_tokens import SpecialTokens
from regard.tasks.text_heads import SequenceHeadTask, SequenceOutput, first_samples
from regard.types import Batch, Prediction

MAX_PRINTED_LABELS = 5
"""Maximum number of printed class probabilities."""


class Classify(SequenceHeadTask):
    name = "classify"
    description = "Classification of texts or text pairs, single- or multi-label."
    columns = LABELED_COLUMNS
    unit = "texts"
    sample_type = LabeledText
    usage = '"a text"'
    has_labels = True
    settings_used = (
        *TEXT_SETTINGS,
        *ENCODING_SETTINGS,
        "data.pair_order",
        "train.label_smoothing",
        "train.lm_loss_weight",
        "decode.threshold",
    )

    def iter_samples(
        self, data: Sequence[str], columns: Mapping[str, str] | None = None
    ) -> Iterator[LabeledText | SkippedRow]:
        return iterate_labeled(data, columns)

    def iter_inputs(
        self, entry: str, columns: Mapping[str, str] | None, complain: ErrorHandler
    ) -> Iterator[tuple[int, Any]]:
        return read_text_inputs(entry, columns, complain)

    def split_key(self, sample: LabeledText) -> str:
        return f"{sample.text}\0{sample.text_pair}"

    def sample_texts(self, sample: LabeledText) -> Iterable[str]:
        return (sample.text, sample.text_pair) if sample.text_pair else (sample.text,)

    def target_text(self, sample: LabeledText) -> str:
        return sample.label if sample.label_set is None else json.dumps(sorted(sample.label_set))

    def labels(self, sample: LabeledText) -> Iterable[str]:
        return sample.labels

    def encoding_key(self, data: DataSettings) -> tuple[Any, ...]:
        return (data.pair_order,)

    def head_options(self, samples: Sequence[LabeledText], data: DataSettings, train: Encoded) -> str:
        several = len(train.fields["label"][0]) > 1 or any(sample.label_set is not None for sample in samples)
        return " ".join([MULTILABEL] * several + [data.pair_order] * any(sample.text_pair for sample in samples))

    def parse_head_options(self, published_config: Mapping[str, Any], labels: Sequence[str]) -> str:
        return parse_problem_type(
            published_config, labels,
            "To train a classifier on the same encoder, save the encoder without the head: "
            "regard.save(regard.load(FOLDER, task='embed'), NEW_FOLDER).",
        )  # fmt: skip

    def export_head_options(self, head_options: str) -> dict[str, Any]:
        return {"problem_type": PUBLISHED_PROBLEM_TYPE} if MULTILABEL in head_options.split() else {}

    def head(self, config: Any, labels: Sequence[str]) -> nn.Module | None:
        return text_head("classes", config, len(labels)) if labels else None

    def encode(
        self,
        samples: Sequence[LabeledText],
        processor: TextTokenizer,
        config: Any,
        max_length: int,
        data: DataSettings | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:
        """One token sequence per text or ordered pair, two for a symmetric pair (both orders)."""
        if len(labels) < 2:
            raise DataError(
                f"Only one class found ('{labels[0]}'). Classification needs at least two."
                if labels
                else "No classes found. Classification needs at least two."
            )
        return self._encode(
            samples, processor, config, max_length, data is not None and data.pair_order == "symmetric", labels
        )

    def _encode(
        self,
        samples: Sequence[LabeledText],
        processor: TextTokenizer,
        config: Any,
        longest: int,
        symmetric: bool,
        labels: Sequence[str],
    ) -> Encoded:
        """`labels` is empty at inference."""
        marks, limit = SpecialTokens.from_tokenizer(processor, config), min(longest, config.max_length)
        firsts = processor.encode([sample.text for sample in samples])
        seconds = processor.encode(
            [marks.second_text(sample.text_pair) if sample.text_pair else "" for sample in samples]
        )
        ways = []
        for first, second in zip(firsts, seconds, strict=True):
            orders = [[first, second]] if second else [[first or [config.eos_id]]]
            orders += [[second, first]] * (symmetric and bool(second))
            ways.append([marks.build_sequence(parts, limit) for parts in orders])
        right = label_rows(samples, labels) if labels else [[0]] * len(samples)
        return self.build_encoded(samples, ways, right)

    def sample_logits(self, model: ModelProtocol, output: SequenceOutput) -> Tensor:
        """Logits from the sum of the pooled states of both orders of a symmetric pair."""
        return self.require_head(model)(output.pooled.sum(1))

    def sample_loss(
        self, logits: Tensor, output: SequenceOutput, labels: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        return (binary_cross_entropy if labels.ndim == 2 else cross_entropy)(logits, labels, smoothing)

    def loss(self, model: ModelProtocol, batch: Batch, terms: LossWeights = LossWeights()) -> tuple[Tensor, Tensor]:  # noqa: B008
        """As in the base class; the loss of a multi-label sample is the average binary cross-entropy over labels."""
        assert batch.labels is not None
        return super().loss(model, replace(batch, labels=match_label_format(model, batch.labels)), terms)

    def probabilities(self, model: ModelProtocol, logits: Tensor) -> Tensor:
        return logits.sigmoid() if is_multilabel(model) else super().probabilities(model, logits)

    def is_single(self, inputs: Any) -> bool:
        return isinstance(inputs, str | tuple)

    def predict(
        self, model: ModelProtocol, inputs: Sequence[Any], decode: DecodeSettings, first: int = 0
    ) -> list[Prediction]:
        """Class of each text or pair, given as (a, b) or "a<tab>b", or the list of labels above the threshold, most likely
        first. The scores are the probabilities of all classes."""
        self.require_head(model)
        pairing = pair_order(model.spec.head_options)
        samples = [_parse_input(item, pairing) for item in inputs]
        text = model.require_tokenizer()
        encoded = self._encode(samples, text, model.config, model.config.max_length, pairing == "symmetric", ())
        return with_act_steps(self, model, encoded, self._predictions(model, encoded, decode))

    def _predictions(self, model: ModelProtocol, encoded: Encoded, decode: DecodeSettings) -> list[Prediction]:
        labels, several = model.spec.labels, is_multilabel(model)
        cut = {id(sample) for sample in encoded.too_long}
        answers = []
        for sample, chances in zip(encoded.samples, self.predict_probabilities(model, encoded), strict=True):
            said = {label: float(chance) for label, chance in zip(labels, chances, strict=True)}
            extra: dict[str, Any] = {"probabilities": said} | ({"truncated": True} if id(sample) in cut else {})
            value = labels_above_threshold(said, decode.threshold) if several else labels[int(chances.argmax())]
            answers.append(Prediction(value, tuple(said.values()), (), extra))
        return answers

    def evaluate(
        self,
        model: ModelProtocol,
        encoded: Encoded,
        decode: DecodeSettings,
        data: DataSettings,
        sums: LossSum,
        max_samples: int | None = None,
    ) -> EvalResult:
        """Accuracy, macro F1 and Matthews correlation in percent, and the confusion matrix if all samples are evaluated.
        Multi-label: micro F1, macro F1 and exact match."""
        some = first_samples(encoded, max_samples)
        answers = self._predictions(model, some, decode)
        if is_multilabel(model):
            return multilabel_scores([sample.labels for sample in some.samples], answers, max_samples is None), answers
        right, said = [sample.label for sample in some.samples], [str(answer.value) for answer in answers]
        return classification_scores(model.spec.labels, right, said, self.unit, max_samples is None), answers

    def selection_metric(self, scores: Mapping[str, Any]) -> str:
        return "micro_f1" if "micro_f1" in scores else self.metric

    def save_figures(
        self, folder: Path, samples: Sequence[LabeledText], predictions: Sequence[Prediction]
    ) -> list[str]:
        labels = tuple(predictions[0].extra["probabilities"]) if predictions else ()
        if len(labels) < 2:
            return []
        if isinstance(predictions[0].value, list):
            return [
                multilabel_metrics([sample.labels for sample in samples], predictions)
                .save_figure(folder / "classes.png")
                .name
            ]
        right, said = [sample.label for sample in samples], [str(answer.value) for answer in predictions]
        return [save_class_figure(labels, right, said, self.unit, folder).name]

    def format_prediction(self, source: Any, prediction: Prediction) -> str:
        """Predicted class, or labels separated by |, and the highest probabilities."""
        chances = sorted(prediction.extra["probabilities"].items(), key=lambda item: -item[1])
        return "\t".join(
            [
                LABEL_SEPARATOR.join(predicted_labels(prediction)),
                *(f"{name} {chance:.4f}" for name, chance in chances[:MAX_PRINTED_LABELS]),
            ]
        )

    def example_row(self, sample: LabeledText, prediction: Prediction) -> dict[str, str]:
        texts = {"text": sample.text, "pair": sample.text_pair} if sample.text_pair else {"text": sample.text}
        said = predicted_labels(prediction)
        sure = ", ".join(f"{prediction.extra['probabilities'][label]:.3f}" for label in said)
        return {**texts, "prediction": ", ".join(said), "reference": ", ".join(sample.labels), "probability": sure}


def _parse_input(item: Any, pairing: str) -> LabeledText:
    if isinstance(item, str):
        first, tab, second = item.partition("\t") if pairing else (item, "", "")
        parts = [first, second] if tab else [item]
    else:
        parts = list(item)
    if len(parts) > 2 or not all(isinstance(part, str) for part in parts):
        raise RegardError(f"Expected a text or a pair (a, b) of texts, got {item!r:.60}.")
    if pairing and len(parts) < 2:
        raise RegardError(
            "This model classifies text pairs. Separate the two texts with a tab on the command line, in a file or in a pipe "
            "(bash: $'one text\\tthe other'), use the table columns 'text' and 'pair', or pass (a, b) in Python."
        )
    return LabeledText(parts[0].strip(), parts[1].strip() if len(parts) > 1 else "", "")


# -- metrics


def predicted_labels(prediction: Prediction) -> list[str]:
    """Predicted labels as a list, for single-label and multi-label predictions."""
    return prediction.value if isinstance(prediction.value, list) else [str(prediction.value)]


def multilabel_metrics(targets: Sequence[Sequence[str]], predictions: Sequence[Prediction]) -> ClassMetrics:
    """Precision, recall and F1 per label of multi-label samples."""
    return ClassMetrics.from_labels(targets, list(map(predicted_labels, predictions)), "labels")


def multilabel_scores(
    targets: Sequence[Sequence[str]], predictions: Sequence[Prediction], with_tables: bool
) -> dict[str, float | str]:
    """Micro F1, macro F1 and exact match in percent; `with_tables` adds a table per label."""
    each = multilabel_metrics(targets, predictions)
    exact = [set(labels) == set(predicted_labels(answer)) for labels, answer in zip(targets, predictions, strict=True)]
    shares = {"micro_f1": each.micro.f1, "macro_f1": each.macro_f1, "exact_match": float(np.mean(exact))}
    scores: dict[str, float | str] = {name: round(100 * share, 2) for name, share in shares.items()}
    return scores | {"samples": len(predictions)} | ({"per_class": each.table()} if with_tables else {})


def classification_scores(
    labels: Sequence[str], targets: Sequence[str], predictions: Sequence[str], unit: str, with_tables: bool
) -> dict[str, float | str]:
    """Scores in percent; `with_tables` adds the confusion matrix or tables."""
    counts = confusion_matrix(labels, targets, predictions)
    scores: dict[str, float | str] = {name: round(100 * value, 2) for name, value in confusion_scores(counts).items()}
    scores["samples"] = len(predictions)
    return scores | (
        class_report(labels, counts, _single_label_metrics(targets, predictions, unit)) if with_tables else {}
    )


def save_class_figure(
    labels: Sequence[str], targets: Sequence[str], predictions: Sequence[str], unit: str, folder: Path
) -> Path:
    """Save the confusion matrix, or for more than `MAX_CLASSES` classes the metrics per class."""
    if len(labels) > MAX_CLASSES:
        return _single_label_metrics(targets, predictions, unit).save_figure(folder / "classes.png")
    return draw_confusion(labels, confusion_matrix(labels, targets, predictions), folder / "confusion.png")


def _single_label_metrics(right: Sequence[str], said: Sequence[str], unit: str) -> ClassMetrics:
    return ClassMetrics.from_labels([(label,) for label in right], [(label,) for label in said], unit)


def class_report(labels: Sequence[str], counts: np.ndarray, metrics: ClassMetrics) -> dict[str, float | str]:
    """Confusion matrix, or for more than `MAX_CLASSES` classes the metrics per class and the most frequent confusions."""
    if len(labels) <= MAX_CLASSES:
        return {"confusion_matrix": confusion_table(labels, counts)}
    told: dict[str, float | str] = {"per_class": metrics.table(), "most_confused": confusion_summary(labels, counts)}
    return {name: value for name, value in told.items() if value}


def confusion_matrix(labels: Sequence[str], targets: Sequence[str], predictions: Sequence[str]) -> np.ndarray:
    """(C, C) counts by label (rows) and prediction (columns)."""
    number = {label: place for place, label in enumerate(labels)}
    counts = np.zeros((len(labels), len(labels)), dtype=np.int64)
    np.add.at(counts, ([number[label] for label in targets], [number[label] for label in predictions]), 1)
    return counts


def confusion_scores(counts: np.ndarray) -> dict[str, float]:
    """Accuracy, macro F1 over the classes among labels and predictions, and the multiclass Matthews correlation (Gorodkin
    2004), which is 0 if all labels or all predictions are equal."""
    total, hits = float(counts.sum()), np.diag(counts).astype(float)
    right, said = counts.sum(1).astype(float), counts.sum(0).astype(float)
    there = (right + said) > 0
    f1 = 2 * hits[there] / (right + said)[there]
    spread = (total**2 - (right**2).sum()) * (total**2 - (said**2).sum())
    together = hits.sum() * total - (right * said).sum()
    return {
        "accuracy": float(hits.sum()) / max(total, 1.0),
        "macro_f1": float(f1.mean()) if len(f1) else 0.0,
        "mcc": float(together / np.sqrt(spread)) if spread > 0 else 0.0,
    }


def confusion_table(labels: Sequence[str], counts: np.ndarray) -> str:
    """Confusion matrix as a table."""
    rows = [
        {"true \\ predicted": label, **{name: int(count) for name, count in zip(labels, row, strict=True)}}
        for label, row in zip(labels, counts, strict=True)
    ]
    return markdown_table(rows)
