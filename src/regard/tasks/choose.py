"""Task `choose`: multiple choice with encoders or decoders."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.data.settings import DataSettings
from regard.data.text.files import ErrorHandler
from regard.data.text.samples import QUESTION_COLUMNS, ChoiceSample, iterate_questions, read_questions
from regard.data.text.tables import SkippedRow, sample_inputs
from regard.decode.settings import DecodeSettings
from regard.draw.charts import MAX_CLASSES, draw_confusion
from regard.errors import RegardError
from regard.nn.blocks.heads import text_head
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.tasks.act import with_act_steps
from regard.tasks.base import ENCODING_SETTINGS, TEXT_SETTINGS, Encoded, EvalResult, LossSum
from regard.tasks.classify import class_report
from regard.tasks.metrics.per_class import ClassMetrics
from regard.tasks.protocol import ModelProtocol
from regard.tasks.special_tokens import SpecialTokens
from regard.tasks.text_heads import SequenceHeadTask, SequenceOutput, first_samples
from regard.types import IGNORE, Prediction


class Choose(SequenceHeadTask):
    name = "choose"
    description = "Multiple choice: context, optional question, choices."
    columns = QUESTION_COLUMNS
    unit = "questions"
    sample_type = ChoiceSample
    usage = '"a context" --choices "one answer|another"'
    labels_are_sequences = True
    settings_used = (*TEXT_SETTINGS, *ENCODING_SETTINGS, "train.label_smoothing", "train.lm_loss_weight")

    def iter_samples(
        self, data: Sequence[str], columns: Mapping[str, str] | None = None
    ) -> Iterator[ChoiceSample | SkippedRow]:
        return iterate_questions(data, columns)

    def iter_inputs(
        self, entry: str, columns: Mapping[str, str] | None, complain: ErrorHandler
    ) -> Iterator[tuple[int, Any]]:
        return sample_inputs(read_questions(entry, columns, complain, inputs_only=True), complain)

    def split_key(self, sample: ChoiceSample) -> str:
        return "\0".join((sample.prompt, *sample.choices))

    def sample_texts(self, sample: ChoiceSample) -> Iterable[str]:
        return (sample.prompt, *sample.choices)

    def target_text(self, sample: ChoiceSample) -> str:
        return str(sample.label)

    def head(self, config: Any, labels: Sequence[str]) -> nn.Module:
        return text_head("choice", config, 1)

    def encode(
        self,
        samples: Sequence[ChoiceSample],
        processor: TextTokenizer,
        config: Any,
        max_length: int,
        data: DataSettings | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:
        """One token sequence per choice: `[start] prompt [delimiter] choice [extract]`."""
        marks, limit = SpecialTokens.from_tokenizer(processor, config), min(max_length, config.max_length)
        told = processor.encode([sample.prompt for sample in samples])
        choices = iter(processor.encode([marks.second_text(choice) for sample in samples for choice in sample.choices]))
        ways = [
            [marks.build_sequence([first or [config.eos_id], next(choices)], limit) for _ in sample.choices]
            for first, sample in zip(told, samples, strict=True)
        ]
        return self.build_encoded(samples, ways, [max(sample.label, 0) for sample in samples])

    def sample_logits(self, model: ModelProtocol, output: SequenceOutput) -> Tensor:
        """(S, K) logits of the choices, −∞ for missing choices."""
        return self.require_head(model)(output.pooled)[..., 0].masked_fill(output.lengths == 0, -torch.inf)

    def sample_loss(
        self, logits: Tensor, output: SequenceOutput, labels: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        """Cross-entropy over the choices; label smoothing is distributed over the other choices of the question."""
        asked, there = labels != IGNORE, output.lengths > 0
        logs = (logits if logits.dtype == torch.float64 else logits.float()).masked_fill(~asked[:, None], 0.0)
        logs = logs.log_softmax(-1).masked_fill(~there, 0.0)
        own = logs.gather(1, labels.clamp(min=0)[:, None])[:, 0]
        others = (logs.sum(1) - own) / (there.sum(1) - 1).clamp(min=1)
        losses = -(1 - smoothing) * own - smoothing * others
        return torch.where(asked, losses, 0.0).sum(), asked.sum()

    def is_single(self, inputs: Any) -> bool:
        return isinstance(inputs, str | Mapping | ChoiceSample)

    def predict(
        self, model: ModelProtocol, inputs: Sequence[Any], decode: DecodeSettings, first: int = 0
    ) -> list[Prediction]:
        """Most likely choice for each {"context": …, "question": …, "choices": […]}, a dict or JSON."""
        samples = [_parse_input(item) for item in inputs]
        text = model.require_tokenizer()
        encoded = self.encode(samples, text, model.config, model.config.max_length)
        return with_act_steps(self, model, encoded, self._predictions(model, encoded))

    def rank(self, model: ModelProtocol, prompt: str, choices: Sequence[str]) -> Prediction:
        """Prediction for one context."""
        text = model.require_tokenizer()
        return self._predictions(
            model, self.encode([_make_question(prompt, "", choices)], text, model.config, model.config.max_length)
        )[0]

    def _predictions(self, model: ModelProtocol, encoded: Encoded) -> list[Prediction]:
        """Scores and `choices` are sorted by probability."""
        self.require_head(model)
        cut = {id(sample) for sample in encoded.too_long}
        answers = []
        for sample, chances in zip(encoded.samples, self.predict_probabilities(model, encoded), strict=True):
            order = np.argsort(-chances, kind="stable").tolist()
            listed = [{"value": sample.choices[i], "probability": float(chances[i])} for i in order]
            extra: dict[str, Any] = {"prompt": sample.prompt, "choices": listed, "index": order[0]}
            extra |= {"truncated": True} if id(sample) in cut else {}
            answers.append(Prediction(sample.choices[order[0]], tuple(float(chances[i]) for i in order), (), extra))
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
        """Accuracy and chance accuracy in percent."""
        some = first_samples(encoded, max_samples)
        answers = self._predictions(model, some)
        right = [sample.label == answer.extra["index"] for sample, answer in zip(some.samples, answers, strict=True)]
        chance = [1 / len(sample.choices) for sample in some.samples]
        scores: dict[str, float | str] = {
            "accuracy": round(100 * float(np.mean(right)), 2),
            "chance_accuracy": round(100 * float(np.mean(chance)), 2),
            "samples": len(answers),
        }
        places = max(len(sample.choices) for sample in some.samples)
        if max_samples is None:
            scores |= class_report(
                _choice_names(places),
                _choice_confusion(some.samples, answers, places),
                _per_choice_metrics(some.samples, answers),
            )
        return scores, answers

    def save_figures(
        self, folder: Path, samples: Sequence[ChoiceSample], predictions: Sequence[Prediction]
    ) -> list[str]:
        """Confusion matrix of choice positions, which shows position bias."""
        places = max((len(sample.choices) for sample in samples), default=0)
        if places < 2:
            return []
        if places > MAX_CLASSES:
            return [_per_choice_metrics(samples, predictions).save_figure(folder / "choices.png").name]
        counts = _choice_confusion(samples, predictions, places)
        return [draw_confusion(_choice_names(places), counts, folder / "confusion.png").name]

    def example_row(self, sample: ChoiceSample, prediction: Prediction) -> dict[str, str]:
        return {
            "context": sample.prompt,
            "prediction": str(prediction.value),
            "reference": sample.choices[sample.label],
            "probability": f"{prediction.score[0]:.3f}",
        }


def _choice_names(count: int) -> list[str]:
    return [f"choice {place}" for place in range(count)]


def _per_choice_metrics(samples: Sequence[ChoiceSample], answers: Sequence[Prediction]) -> ClassMetrics:
    """Precision, recall and F1 per choice position."""
    right = [[f"choice {sample.label}"] for sample in samples]
    return ClassMetrics.from_labels(right, [[f"choice {answer.extra['index']}"] for answer in answers], "questions")


def _choice_confusion(samples: Sequence[ChoiceSample], answers: Sequence[Prediction], places: int) -> np.ndarray:
    """(places, places) counts by position of the correct choice (rows) and of the predicted choice (columns)."""
    counts = np.zeros((places, places), dtype=np.int64)
    for sample, answer in zip(samples, answers, strict=True):
        counts[sample.label, answer.extra["index"]] += 1
    return counts


def _parse_input(item: Any) -> ChoiceSample:
    if isinstance(item, ChoiceSample):
        return item
    wanted = 'Expected {"context": "…", "choices": ["…", "…"]} with an optional "question"'
    if isinstance(item, str):
        try:
            item = json.loads(item)
        except ValueError:
            item = None
    if not isinstance(item, Mapping) or not {"context", "choices"} <= item.keys() <= {*QUESTION_COLUMNS, "answer"}:
        raise RegardError(f'{wanted}, or a context with --choices "one answer|another".')
    context, question = item["context"], item.get("question", "")
    if not isinstance(context, str) or not isinstance(question, str):
        raise RegardError(f"{wanted}; context and question must be strings.")
    return _make_question(context, question, item["choices"])


def _make_question(context: str, question: str, choices: Any) -> ChoiceSample:
    listed = [choices] if isinstance(choices, str) else list(choices)
    if len(listed) < 2 or not all(isinstance(choice, str) and choice.strip() for choice in listed):
        raise RegardError("At least two non-empty choices are required.")
    return ChoiceSample(context.strip(), question.strip(), tuple(choice.strip() for choice in listed))
