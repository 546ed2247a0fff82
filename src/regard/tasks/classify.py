"""Objective `classify`: single-label or multi-label classification of texts, text pairs, images or point clouds."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.batching.samplers import BatchShape
from regard.data.settings import DataSettings
from regard.data.text.samples import LABEL_SEPARATOR, LabeledText
from regard.decode.settings import DecodeSettings
from regard.errors import DataError, InputError, InputTypeError, SettingError, WeightsError
from regard.nn.kernels.losses import cross_entropy
from regard.processors.image import mixup_weights
from regard.tasks import base
from regard.tasks.metrics.per_class import ClassMetrics, confusion_scores
from regard.tasks.modality.base import readable_batch, sample_ids, sample_location
from regard.types import IGNORE, Batch, Prediction

MAX_PRINTED_LABELS = 5  # maximum number of printed class probabilities
TOP_K = 5  # rank of the top-5 accuracy of images and point clouds
DEFAULT_THRESHOLD = 0.5  # probability threshold of multi-label models if `decode.threshold` is not set
PUBLISHED_PROBLEM_TYPE = "multi_label_classification"
REGRESSION_ADVICE = (
    "To train a classifier on the same encoder, save the encoder without the head: "
    "regard.save(regard.load(FOLDER, task='embed'), NEW_FOLDER)."
)


@dataclass(frozen=True)
class ClassOptions(base.OptionRules):
    """Multi-label classification, and the order of text pairs."""

    advice: str  # end of the error message for a regression model

    def fit(self, options: base.HeadOptions, samples: Sequence[Any], data: DataSettings) -> base.HeadOptions:
        texts = [sample for sample in samples if isinstance(sample, LabeledText)]
        several = any(sample.label_set is not None for sample in texts)
        order = data.pair_order if any(sample.text_pair for sample in texts) else ""
        return replace(options, multi_label=several, pair_order=order)

    def complete(self, options: base.HeadOptions, train: base.Encoded) -> base.HeadOptions:
        return replace(options, multi_label=options.multi_label or len(train.fields["label"][0]) > 1)

    def load(self, options: base.HeadOptions, folder: Path, published: Any = None) -> base.HeadOptions:
        """Multi-label classification from `problem_type` of a Hugging Face config. Regression is an error."""
        if published is None:
            return options
        problem = published.get("problem_type")
        if problem == "regression" or len(options.labels) == 1:
            reason = "problem_type=regression" if problem == "regression" else "a head with one output"
            raise WeightsError(
                f"config.json: {reason} is not supported by task 'classify', which predicts classes, not numbers. "
                f"{self.advice}".rstrip()
            )
        return replace(options, multi_label=problem == PUBLISHED_PROBLEM_TYPE)

    def export(self, options: base.HeadOptions, config: Any) -> base.ExportedOptions:
        reason = "The Hugging Face format does not support a head that reads a pair in both orders (data.pair_order=symmetric)."
        return base.ExportedOptions(
            keys={"problem_type": PUBLISHED_PROBLEM_TYPE} if options.multi_label else {},
            unsupported=reason if options.pair_order == "symmetric" else "",
        )


class Classify(base.Objective):
    metrics = ("micro_f1", "accuracy")
    has_labels = has_top_k = True
    list_separator = LABEL_SEPARATOR
    count_fields = ("ways", "second", "label")
    truncation = "at the end"
    encoding_settings = ("pair_order",)
    modality_options: ClassVar[Any] = {"text": {"head_tokens": True}, "points": {"count": 1024, "frame": "unit_sphere"}}
    input_settings: ClassVar[Any] = {
        "text": (*base.HEAD_SETTINGS, "data.pair_order", "decode.threshold"),
        "image": (*base.AUGMENT_SETTINGS, "data.mixup", "train.label_smoothing", "decode.threshold"),
        "points": ("decode.num_votes",),
    }

    def __init__(self, task: Any) -> None:
        super().__init__(task)
        self.is_text = task.input == "text"
        self.single_types = (tuple,) if self.is_text else ()
        self.options = ClassOptions(REGRESSION_ADVICE if self.is_text else "")
        self._add_losses = resolve_name("regard.tasks.modality.text:add_text_losses") if self.is_text else None
        self.fields = ("text", "ways", "second", "label") if self.is_text else (self.modality.input_field, "label")

    def check_settings(self, config: Any, tokens: int, data: DataSettings) -> None:
        if self.task.input == "image" and data.mixup and config.traits.palette:
            raise SettingError(
                "data.mixup is not supported by models with a color palette, because palette colors cannot be averaged. "
                "Supported: data.crop_scale, data.shift, data.flip and data.color_jitter."
            )
        self.modality.adapt_processor(self.modality.initial_processor, config, data)

    def adapt_config(self, config: Any) -> Any:
        """The pooled state of a text encoder requires one more layer: the pooler of the body, or a layer in the head."""
        traits = config.traits
        if self.task.input == "points":
            return replace(config, has_decoder=False)
        if traits.optional_lm_head:
            return replace(config, lm_head=False)
        return replace(config, pooler=traits.head_activation is None) if traits.optional_pooler else config

    def head(self, config: Any, options: base.HeadOptions) -> nn.Module | None:
        return self.modality.class_head(config, len(options.labels)) if options.labels else None

    # -- batches

    def encode(self, samples: Sequence[Any], config: Any, context: base.EncodingContext) -> base.Encoded:
        labels = context.options.labels
        if len(labels) < 2:
            found = f"Only one class found ('{labels[0]}')" if labels else "No classes found"
            raise DataError(f"{found}. Classification needs at least two.")
        fields, truncated = self.modality.encode(samples, config, context)
        owners = [(sample, name) for sample in samples for name in sample_labels(sample)]
        numbers = iter(label_ids([sample for sample, _ in owners], [name for _, name in owners], labels))
        rows = []  # class index; for multi-label samples `[0, C, …]` with all indices, decoded by `label_tensor`
        for sample in samples:
            several = isinstance(sample, LabeledText) and sample.label_set is not None
            rows.append([*((0, len(labels)) if several else ()), *(next(numbers) for _ in sample_labels(sample))])
        fields["label"] = base.int_rows(rows)
        return base.Encoded(list(samples), fields, truncated, context)

    def collate(self, encoded: base.Encoded, rows: Any, config: Any, shape: BatchShape | None = None) -> Batch:
        def build(rows: np.ndarray) -> Batch:
            labels = label_tensor([encoded.fields["label"][int(row)] for row in sample_ids(rows)])
            return self.modality.collate(encoded, rows, config, labels, shape)

        return readable_batch(build, rows, self)

    # -- loss

    def logits(self, model: base.Model, batch: Batch) -> Tensor:
        """(B, classes) logits."""
        return base.require_head(model)(self.modality.pooled(model, batch)[0])

    def loss(self, model: base.Model, batch: Batch, terms: base.LossWeights = base.NO_WEIGHTS) -> base.Loss:
        """(sum, count) over samples of cross-entropy, or of the binary cross-entropy averaged over labels; texts: plus
        `auxiliary` × language modeling loss."""
        labels, options, head = batch.require_labels(), model.spec.options, base.require_head(model)
        if labels.ndim == 2 and not options.multi_label:
            raise DataError(
                "The samples have several labels each, but this model predicts a single class.",
                advice="Evaluate on data with one label per row, or train a multi-label model on this data.",
            )
        if labels.ndim == 1 and options.multi_label:
            classes = F.one_hot(labels.clamp(min=0), len(options.labels))
            labels = torch.where((labels == IGNORE)[:, None], IGNORE, classes)
        pooled, output = self.modality.pooled(model, replace(batch, labels=labels))
        logits = head(pooled)
        if labels.ndim == 2:
            loss = binary_cross_entropy(logits, labels, terms.smoothing)
        elif batch.augmentation is not None and batch.augmentation.settings.mixup:
            loss = _mixup_cross_entropy(logits, labels, batch.augmentation.params, terms.smoothing)
        else:
            loss = cross_entropy(logits, labels, terms.smoothing)
        return loss if self._add_losses is None else self._add_losses(model, labels, output, loss, terms)

    # -- predictions

    def predict(self, model: base.Model, inputs: list[Any], decode: DecodeSettings, first: int = 0) -> list[Prediction]:
        """Class of each input, or the list of labels above the threshold, most likely first. The scores are the
        probabilities of all classes. Texts may be pairs, given as (a, b) or "a<tab>b"."""
        if not self.is_text:
            return self._predictions(model, inputs, decode)
        base.require_head(model)
        return super().predict(model, inputs, decode, first)

    def parse_input(self, item: Any, options: base.HeadOptions) -> LabeledText:
        if isinstance(item, str):
            first, tab, second = item.partition("\t") if options.pair_order else (item, "", "")
            parts = [first, second] if tab else [item]
        else:
            parts = list(item) if isinstance(item, list | tuple) else []
        if not 0 < len(parts) < 3 or not all(isinstance(part, str) for part in parts):
            raise InputTypeError(f"Expected a text or a pair (a, b) of texts, got {base.describe(item)}.")
        if options.pair_order and len(parts) < 2:
            raise InputError(
                "This model classifies text pairs. Separate the two texts with a tab on the command line, in a file or in a "
                "pipe (bash: $'one text\\tthe other'), use the table columns 'text' and 'pair', or pass (a, b) in Python."
            )
        return LabeledText(parts[0].strip(), parts[1].strip() if len(parts) > 1 else "", "", label_set=())

    def _predictions(
        self, model: base.Model, inputs: base.Inputs, decode: DecodeSettings, max_samples: int | None = None
    ) -> list[Prediction]:
        """Predictions of inputs, or of the first `max_samples` encoded samples."""
        options, count = model.spec.options, len(inputs) if max_samples is None else max_samples
        truncated = {id(sample) for sample in inputs.too_long} if isinstance(inputs, base.Encoded) else set()
        predictions = []
        for number, row in enumerate(self._probabilities(model, inputs, count, decode)):
            chances = {label: float(chance) for label, chance in zip(options.labels, row, strict=True)}
            extra: dict[str, Any] = {"probabilities": chances}
            if isinstance(inputs, base.Encoded) and inputs.samples and id(inputs.samples[number]) in truncated:
                extra["truncated"] = True
            value: Any = options.labels[int(row.argmax())]
            if options.multi_label:
                limit = DEFAULT_THRESHOLD if decode.threshold is None else decode.threshold
                value = [
                    label for label in sorted(chances, key=lambda label: -chances[label]) if chances[label] >= limit
                ]
            predictions.append(Prediction(value, tuple(chances.values()), (), extra))
        return predictions

    def _probabilities(self, model: base.Model, inputs: base.Inputs, count: int, decode: DecodeSettings) -> np.ndarray:
        """(count, classes) probabilities, averaged over the rows of an input."""
        if not count:
            return np.zeros((0, 0))
        owners, tables = [], []
        with torch.inference_mode():
            for rows, batch in self.modality.input_batches(model, inputs, count, decode):
                logits = self.logits(model, batch.to(model.device))
                logits = logits.double() if self.is_text else logits.float()
                owners.append(rows)
                tables.append(class_probabilities(model, logits).cpu().numpy())
        owner, table = np.concatenate(owners), np.concatenate(tables)
        order = np.argsort(owner, kind="stable")
        counts = np.bincount(owner, minlength=count)
        if counts.max() == 1:
            return table[order]
        return np.add.reduceat(table[order], np.cumsum(counts) - counts) / counts[:, None]

    # -- metrics

    def evaluate(self, model: base.Model, encoded: base.Encoded, spec: base.EvalSpec) -> base.EvalResult:
        """Accuracy, macro F1 and Matthews correlation in percent, and the confusion matrix if all samples are evaluated;
        for images and point clouds also top-5 accuracy. Multi-label: micro F1, macro F1 and exact match."""
        labels, several, count = model.spec.options.labels, model.spec.options.multi_label, spec.count(encoded)
        predictions = self._predictions(model, encoded, spec.decode, count)
        rows = [encoded.fields["label"][number] for number in range(count)]
        targets = [tuple(labels[int(place)] for place in (row if len(row) == 1 else row[2:])) for row in rows]
        predicted = list(map(predicted_labels, predictions))
        metrics = self._class_metrics(labels, targets, predicted, several)
        if metrics.confusion is None:
            exact = [set(ours) == set(theirs) for ours, theirs in zip(targets, predicted, strict=True)]
            found = {"micro_f1": metrics.micro.f1, "macro_f1": metrics.macro_f1, "exact_match": float(np.mean(exact))}
        else:
            found = confusion_scores(metrics.confusion)
        scores: base.Scores = {name: round(100 * value, 2) for name, value in found.items()}
        scores |= {"samples": count, **(metrics.report() if spec.complete else {})}
        if len(labels) > TOP_K and not self.is_text and not several:
            near = [
                names[0] in sorted(labels, key=one.extra["probabilities"].get, reverse=True)[:TOP_K]
                for names, one in zip(targets, predictions, strict=True)
            ]
            scores["top5"] = round(100 * float(np.mean(near)), 2)
        return scores, predictions

    def save_figures(self, folder: Path, samples: Sequence[Any], predictions: Sequence[Prediction]) -> list[str]:
        labels = tuple(predictions[0].extra["probabilities"])
        several, targets = isinstance(predictions[0].value, list), list(map(sample_labels, samples))
        metrics = self._class_metrics(labels, targets, list(map(predicted_labels, predictions)), several)
        return [metrics.save_figure(folder / "classes.png").name]

    def _class_metrics(
        self, labels: Sequence[str], targets: Sequence[Any], predicted: Sequence[Any], several: bool
    ) -> ClassMetrics:
        """Metrics per class, with the confusion matrix if samples have one label."""
        unit = "labels" if several else self.task.reader.unit
        return ClassMetrics.from_labels(targets, predicted, unit, labels=() if several else labels)

    def top_classes(self, prediction: Prediction, count: int) -> Prediction:
        """Prediction with the `count` most likely classes (`extra["top_k"]`) in place of all probabilities. Predictions of
        several labels are these labels."""
        chances = sorted(prediction.extra["probabilities"].items(), key=lambda item: -item[1])[:count]
        value = [name for name, _ in chances] if isinstance(prediction.value, list) else prediction.value
        extra = {name: item for name, item in prediction.extra.items() if name != "probabilities"}
        extra["top_k"] = [{"value": name, "probability": chance} for name, chance in chances]
        return replace(prediction, value=value, score=tuple(chance for _, chance in chances), extra=extra)

    def format_prediction(self, source: Any, prediction: Prediction) -> str:
        """Predicted class, or labels separated by |, and the highest probabilities; files with their path."""
        options = prediction.extra.get("top_k") or self.top_classes(prediction, MAX_PRINTED_LABELS).extra["top_k"]
        shown = [f"{item['value']} {item['probability']:.4f}" for item in options]
        path = [] if self.is_text else [str(source)]
        return "\t".join([*path, LABEL_SEPARATOR.join(predicted_labels(prediction)), *shown])

    def table_columns(self, prediction: Prediction) -> dict[str, Any]:
        options = prediction.extra.get("top_k") or self.top_classes(prediction, 1).extra["top_k"]
        if isinstance(prediction.value, list):
            chances = prediction.extra.get("probabilities") or {item["value"]: item["probability"] for item in options}
            return {"prediction": prediction.value, "probability": [chances[label] for label in prediction.value]}
        columns: dict[str, Any] = {}
        for number, item in enumerate(options, 1):
            end = f"_{number}" if number > 1 else ""
            columns |= {f"prediction{end}": item["value"], f"probability{end}": item["probability"]}
        return columns

    def example_row(self, sample: Any, prediction: Prediction) -> dict[str, str]:
        if not self.is_text:
            row = {self.modality.input_field: sample_location(sample)}
        else:
            row = {"text": sample.text, "pair": sample.text_pair} if sample.text_pair else {"text": sample.text}
        predicted = predicted_labels(prediction)
        chances = ", ".join(f"{prediction.extra['probabilities'][label]:.3f}" for label in predicted)
        reference = ", ".join(sample_labels(sample))
        return {**row, "prediction": ", ".join(predicted), "reference": reference, "probability": chances}


# -- labels


def sample_labels(sample: Any) -> Sequence[str]:
    """Labels of a sample; files have one label."""
    return sample.labels if isinstance(sample, LabeledText) else (sample.label,)


def label_tensor(rows: Sequence[np.ndarray]) -> Tensor:
    """(S,) class indices, or for multi-label rows `[0, C, …]` a multi-hot tensor (S, C)."""
    if len(rows[0]) == 1:
        return torch.tensor([int(row[0]) for row in rows])
    found = torch.zeros(len(rows), int(rows[0][1]), dtype=torch.long)
    for number, row in enumerate(rows):
        found[number, torch.from_numpy(row[2:].astype(np.int64))] = 1
    return found


def label_ids(samples: Sequence[Any], names: Sequence[str], labels: Sequence[str]) -> list[int]:
    """Class index of each sample. Unknown labels are an error."""
    known = {label: number for number, label in enumerate(labels)}
    unknown = Counter(name for name in names if name not in known)
    if unknown:
        first = next(sample for sample, name in zip(samples, names, strict=True) if name in unknown)
        shown = ", ".join(f"'{name:.40}' ({n:,} time{'s'[: n > 1]})" for name, n in list(unknown.items())[:5])
        more = f" and {len(unknown) - 5} others" if len(unknown) > 5 else ""
        advice = (
            f"Known labels: {', '.join(f'{label:.40}' for label in labels[:20])}{', …' if len(labels) > 20 else ''}. "
        )
        advice += "Add samples of the unknown label to the training data, or remove such samples from this data."
        in_folder = os.path.isdir(first.path)  # files of an image folder have no line numbers
        raise DataError(
            f"unknown label {shown}{more}; this is the first occurrence.",
            first.source if in_folder else first.path,
            None if in_folder else first.line,
            advice,
        )
    return [known[name] for name in names]


def class_probabilities(model: base.Model, logits: Tensor) -> Tensor:
    """Probabilities of classes, or independent probabilities of labels."""
    return logits.sigmoid() if model.spec.options.multi_label else logits.softmax(-1)


# -- losses


def binary_cross_entropy(
    logits: Float[Tensor, "S C"], labels: Int[Tensor, "S C"], smoothing: float = 0.0
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """(sum, count) over samples of the binary cross-entropy, averaged over labels.

    Label smoothing moves targets toward 0.5."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    asked = labels[:, 0] != IGNORE
    wanted = labels.clamp(min=0).to(logits.dtype) * (1 - smoothing) + smoothing / 2
    losses = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none").mean(-1)
    return torch.where(asked, losses, 0.0).sum(), asked.sum()


def _mixup_cross_entropy(logits: Tensor, labels: Tensor, params: Tensor, smoothing: float) -> base.Loss:
    """(sum, count) of the cross-entropy of mixed images; label smoothing is distributed over the other classes. The loss is
    linear in the targets: the loss of mixed targets is the mixture of two losses."""
    weight, partner = mixup_weights(params)
    logs = F.log_softmax(logits.float(), -1)

    def weighted(labels: Tensor, weight: Tensor) -> Tensor:
        own = logs.gather(1, labels[:, None])[:, 0]
        others = (logs.sum(1) - own) / (logs.shape[1] - 1)
        return (weight * (-(1 - smoothing) * own - smoothing * others)).sum()

    total = weighted(labels, weight) + weighted(labels[partner], 1 - weight)
    return total, torch.full((), float(len(labels)), device=logits.device)


# -- metrics


def predicted_labels(prediction: Prediction) -> list[str]:
    """Predicted labels as a list, for single-label and multi-label predictions."""
    return prediction.value if isinstance(prediction.value, list) else [str(prediction.value)]
