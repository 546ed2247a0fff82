"""Objective `choose`: multiple choice with encoders or decoders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from regard.data.batching.samplers import BatchShape
from regard.data.text.samples import QUESTION_COLUMNS, ChoiceSample
from regard.decode.settings import DecodeSettings
from regard.errors import InputError, InputTypeError
from regard.nn.blocks.heads import text_head
from regard.tasks import base
from regard.tasks.metrics.per_class import ClassMetrics
from regard.tasks.modality import text as modality
from regard.types import IGNORE, Batch, Prediction


class Choose(base.Objective):
    metrics = ("accuracy",)
    ranks = True
    fields = ("text", "ways", "second", "label")
    count_fields = ("ways", "second", "label")
    truncation = "at the end"
    single_types = (Mapping, ChoiceSample)
    modality_options: ClassVar[Any] = {"text": {"head_tokens": True}}
    settings = base.HEAD_SETTINGS

    def adapt_config(self, config: Any) -> Any:
        traits = config.traits
        return replace(config, pooler=traits.head_activation is None) if traits.optional_pooler else config

    def head(self, config: Any, options: base.HeadOptions) -> nn.Module:
        return text_head("choice", config, 1)

    def encode(self, samples: Sequence[ChoiceSample], config: Any, context: base.EncodingContext) -> base.Encoded:
        """One token sequence per choice: `[start] prompt [delimiter] choice [extract]`."""
        text, limit = context.processor, min(context.max_length, config.max_length)
        marks = modality.SpecialTokens.from_tokenizer(text, config)
        prompts = text.encode([sample.prompt for sample in samples])
        choices = iter(text.encode([marks.second_text(choice) for sample in samples for choice in sample.choices]))
        sequences = [
            [marks.build_sequence([prompt or [config.eos_id], next(choices)], limit) for _ in sample.choices]
            for prompt, sample in zip(prompts, samples, strict=True)
        ]
        fields, truncated = modality.sequence_fields(samples, sequences)
        fields["label"] = base.int_rows([max(sample.label, 0) for sample in samples])
        return base.Encoded(list(samples), fields, truncated, context)

    def collate(self, encoded: base.Encoded, rows: Any, config: Any, shape: BatchShape | None = None) -> Batch:
        labels = torch.tensor([int(encoded.fields["label"][int(row)][0]) for row in rows])
        return self.modality.collate(encoded, rows, config, labels, shape)

    def logits(self, model: base.Model, batch: Batch) -> Tensor:
        return _choice_logits(model, modality.run_body(model.body, batch))

    def loss(self, model: base.Model, batch: Batch, terms: base.LossWeights = base.NO_WEIGHTS) -> base.Loss:
        """(sum, count) over questions of the cross-entropy over the choices, plus `auxiliary` × language modeling loss;
        label smoothing is distributed over the other choices of the question."""
        output = modality.run_body(model.body, batch)
        logits, labels = _choice_logits(model, output), batch.require_labels()
        asked, present = labels != IGNORE, output.lengths > 0
        logs = (logits if logits.dtype == torch.float64 else logits.float()).masked_fill(~asked[:, None], 0.0)
        logs = logs.log_softmax(-1).masked_fill(~present, 0.0)
        own = logs.gather(1, labels.clamp(min=0)[:, None])[:, 0]
        others = (logs.sum(1) - own) / (present.sum(1) - 1).clamp(min=1)
        losses = -(1 - terms.smoothing) * own - terms.smoothing * others
        return modality.add_text_losses(
            model, labels, output, (torch.where(asked, losses, 0.0).sum(), asked.sum()), terms
        )

    def parse_input(self, item: Any, options: base.HeadOptions) -> ChoiceSample:
        """A question: {"context": …, "question": …, "choices": […]}, a dict or JSON."""
        if isinstance(item, ChoiceSample):
            return item
        wanted = 'Expected {"context": "…", "choices": ["…", "…"]} with an optional "question"'
        item = base.parse_json(item) if isinstance(item, str) else item
        if not isinstance(item, Mapping) or not {"context", "choices"} <= item.keys() <= {*QUESTION_COLUMNS, "answer"}:
            raise InputTypeError(f'{wanted}, or a context with --choices "one answer|another".')
        context, question = item["context"], item.get("question", "")
        if not isinstance(context, str) or not isinstance(question, str):
            raise InputTypeError(f"{wanted}; context and question must be strings.")
        return _make_question(context, question, item["choices"])

    def rank(self, model: base.Model, prompt: str, choices: Sequence[str]) -> Prediction:
        """Prediction for one context."""
        encoded = base.encode_samples(model, [_make_question(prompt, "", choices)])
        return self._predictions(model, encoded, model.spec.decode)[0]

    def _predictions(self, model: base.Model, encoded: base.Encoded, decode: DecodeSettings) -> list[Prediction]:
        """Most likely choice of each question. Scores and `choices` are sorted by probability."""
        base.require_head(model)
        truncated = {id(sample) for sample in encoded.too_long}
        tables = base.map_rows(
            model, encoded, lambda batch: self.logits(model, batch).double().softmax(-1).cpu().numpy()
        )
        predictions = []
        for sample, table in zip(encoded.samples, tables, strict=True):
            chances = table[: len(sample.choices)]
            order = np.argsort(-chances, kind="stable").tolist()
            listed = [{"value": sample.choices[i], "probability": float(chances[i])} for i in order]
            extra: dict[str, Any] = {"prompt": sample.prompt, "choices": listed, "index": order[0]}
            extra |= {"truncated": True} if id(sample) in truncated else {}
            scores = tuple(float(chances[i]) for i in order)
            predictions.append(Prediction(sample.choices[order[0]], scores, (), extra))
        return predictions

    def evaluate(self, model: base.Model, encoded: base.Encoded, spec: base.EvalSpec) -> base.EvalResult:
        """Accuracy and chance accuracy in percent."""
        some = encoded.first(spec.max_samples)
        predictions = self._predictions(model, some, spec.decode)
        correct = [sample.label == one.extra["index"] for sample, one in zip(some.samples, predictions, strict=True)]
        chance = [1 / len(sample.choices) for sample in some.samples]
        scores: base.Scores = {
            "accuracy": round(100 * float(np.mean(correct)), 2),
            "chance_accuracy": round(100 * float(np.mean(chance)), 2),
            "samples": len(predictions),
        }
        if spec.complete:
            scores |= _position_metrics(some.samples, predictions).report()
        return scores, predictions

    def save_figures(self, folder: Path, samples: Sequence[Any], predictions: Sequence[Prediction]) -> list[str]:
        """Confusion matrix of choice positions, which shows position bias."""
        metrics = _position_metrics(samples, predictions)
        return [metrics.save_figure(folder / "choices.png").name] if len(metrics.labels) > 1 else []

    def table_columns(self, prediction: Prediction) -> dict[str, Any]:
        return {**super().table_columns(prediction), "prediction_index": prediction.extra["index"]}

    def example_row(self, sample: ChoiceSample, prediction: Prediction) -> dict[str, str]:
        return {
            "context": sample.prompt,
            "prediction": str(prediction.value),
            "reference": sample.choices[sample.label],
            "probability": f"{prediction.score[0]:.3f}",
        }


def _choice_logits(model: base.Model, output: modality.SequenceOutput) -> Tensor:
    """(S, K) logits of the choices, −∞ for missing choices."""
    return base.require_head(model)(output.pooled)[..., 0].masked_fill(output.lengths == 0, -torch.inf)


def _position_metrics(samples: Sequence[ChoiceSample], predictions: Sequence[Prediction]) -> ClassMetrics:
    """Metrics per choice position: position of the correct choice, and of the predicted one."""
    names = [f"choice {place}" for place in range(max((len(sample.choices) for sample in samples), default=0))]
    targets = [(names[sample.label],) for sample in samples]
    predicted = [(names[one.extra["index"]],) for one in predictions]
    return ClassMetrics.from_labels(targets, predicted, "questions", labels=names)


def _make_question(context: str, question: str, choices: Any) -> ChoiceSample:
    listed = tuple(choice.strip() for choice in base.require_choices(choices))
    if not all(listed):
        raise InputError("At least two non-empty choices are required.")
    return ChoiceSample(base.require_text(context).strip(), question.strip(), listed)
