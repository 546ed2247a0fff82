"""Objective `qa`: extractive question answering with encoders.

The head predicts start and end logits for each token. For unanswerable questions both labels are the first token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.data.batching.samplers import BatchShape
from regard.data.text.qa import NO_ANSWER, QASample
from regard.decode.settings import DecodeSettings
from regard.draw.charts import draw_per_label
from regard.draw.text import markdown_table
from regard.errors import InputError, InputTypeError
from regard.nn.attention.masks import valid_mask
from regard.nn.blocks.heads import text_head
from regard.tasks import base
from regard.tasks.metrics.per_class import score_row
from regard.tasks.metrics.squad import question_word_scores, squad_scores
from regard.tasks.modality.text import SpecialTokens, WindowObjective, truncate, window_start, windows
from regard.types import IGNORE, Batch, Packing, Prediction

Span = tuple[float, int, int]  # score, start and end of characters of the context
MAX_ANSWER_TOKENS = 30  # maximum tokens per answer if `decode.max_new_tokens` is not set
MAX_LISTED = 5  # maximum number of answers in a prediction
MAX_CANDIDATES = 20  # maximum number of candidate spans per question


class QuestionAnswering(WindowObjective):
    metrics = ("f1",)
    single_types = (tuple, Mapping, QASample)
    encoding_settings = ("stride",)
    settings = (*base.ENCODING_SETTINGS, "data.stride", "decode.max_new_tokens", "decode.threshold")

    def head(self, config: Any, options: base.HeadOptions) -> nn.Module:
        return text_head("ends", config, 2, pooled=False, dropout=0.0)

    def encode(self, samples: Sequence[QASample], config: Any, context: base.EncodingContext) -> base.Encoded:
        """`[CLS] question [SEP] context [SEP]`; long contexts are split into windows. The label is the first and last token
        of the answer in the row, or (0, 0) if the window does not contain the answer."""
        text, limit = context.processor, min(context.max_length, config.max_length)
        marks, stride = SpecialTokens.from_tokenizer(text, config), 0 if context.data is None else context.data.stride
        room = marks.max_text_tokens(limit, 2)
        rows: list[tuple[Any, ...]] = []
        questions = text.encode([marks.second_text(sample.question) for sample in samples])
        contexts = text.encode_offsets([sample.context for sample in samples])
        for owner, (sample, question, (ids, places)) in enumerate(zip(samples, questions, contexts, strict=True)):
            (question_ids,) = truncate([question], max(room // 2, 1))
            before = [*marks.start, *question_ids, *marks.delimiter]
            answer = answer_tokens(sample, places)
            for first, last in windows(len(ids), max(room - len(question_ids), 1), stride):
                inside = answer is not None and first <= answer[0] and answer[1] < last
                label = [len(before) + place - first for place in answer] if inside and answer else [0, 0]
                rows.append(([*before, *ids[first:last], *marks.extract], len(before), (owner, first), label))
        fields = {name: base.int_rows([row[at] for row in rows]) for at, name in enumerate(self.fields)}
        return base.Encoded(list(samples), fields, [], context)

    def _collate_labels(self, labels: Sequence[np.ndarray], shape: BatchShape | None) -> Tensor:
        """(rows, 2) labels; `IGNORE` for the empty documents of a packed row."""
        table = torch.from_numpy(np.stack(labels).astype(np.int64))
        if shape is None:
            return table
        return torch.cat([table, torch.full((shape.num_documents - len(table), 2), IGNORE)])

    def loss(self, model: base.Model, batch: Batch, terms: base.LossWeights = base.NO_WEIGHTS) -> base.Loss:
        """(sum, count) over rows of the average of start and end cross-entropy over the tokens of the row."""
        states = model.body(batch)
        logits = base.require_head(model)(states.sequence)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        asked = batch.require_labels()[:, 0] != IGNORE
        targets = batch.require_labels().clamp(min=0)
        if batch.packing is not None:
            sums, own = _packed_log_sums(logits[0], batch.packing, targets)
        else:
            if batch.mask is not None:
                logits = logits.masked_fill(~valid_mask(batch.mask, logits.shape[1])[..., None], -torch.inf)
            sums, own = logits.logsumexp(1), logits.gather(1, targets[:, None])[:, 0]
        return base.add_act_cost(model, (torch.where(asked, (sums - own).mean(-1), 0.0).sum(), asked.sum()), states)

    def parse_input(self, item: Any, options: base.HeadOptions) -> QASample:
        """A question with its context: (question, context), {"question": …, "context": …} or "question<tab>context"."""
        if isinstance(item, QASample):
            return item
        wanted = 'Expected {"question": "…", "context": "…"} (a dict or JSON), (question, context), or "question<tab>context"'
        if isinstance(item, str):
            question, tab, context = item.partition("\t")
            item = (question, context) if tab else base.parse_json(item)
        if isinstance(item, Mapping) and {"question", "context"} <= item.keys():
            item = item["question"], item["context"]
        if not isinstance(item, Sequence) or len(item) != 2 or not all(isinstance(part, str) for part in item):
            raise InputTypeError(f"{wanted}.")
        if not item[0].strip() or not item[1].strip():
            raise InputError("The question and the context must not be empty.")
        return QASample(item[0].strip(), item[1], (), (), False)

    def _predictions(self, model: base.Model, encoded: base.Encoded, decode: DecodeSettings) -> list[Prediction]:
        logits, threshold = self.token_logits(model, encoded), no_answer_threshold(model, decode)
        contexts = base.require_tokenizer(model).encode_offsets([sample.context for sample in encoded.samples])
        predictions = []
        for sample, rows, (_, places) in zip(encoded.samples, encoded.rows_by_sample(), contexts, strict=True):
            candidates: list[Span] = []
            nothing = np.inf
            for row in rows:
                begin, first = int(encoded.fields["second"][row][0]), window_start(encoded, row)
                nothing = min(nothing, float(logits[row][0].sum()))
                inside = logits[row][begin:-1]  # without the end token
                candidates += _best_spans(inside, places[first:], decode.max_new_tokens or MAX_ANSWER_TOKENS)
            predictions.append(_make_prediction(sample, candidates, nothing, threshold))
        return predictions

    def evaluate(self, model: base.Model, encoded: base.Encoded, spec: base.EvalSpec) -> base.EvalResult:
        """SQuAD metrics in percent; if there may be no answer, also the best threshold for no answer."""
        some = encoded.first(spec.max_samples)
        predictions = self._predictions(model, some, spec.decode)
        texts = [str(one.extra["answers"][0]["value"]) for one in predictions]
        differences = [float(one.extra["null_score_diff"]) for one in predictions]
        threshold = no_answer_threshold(model, spec.decode)
        found = squad_scores(some.samples, texts, None if threshold is None else differences, threshold or 0.0)
        scores: base.Scores = {  # rounding the threshold would change predictions
            name: value if name.endswith("threshold") else round(value, 2) for name, value in found.items()
        }
        scores["samples"] = len(predictions)
        if spec.complete:
            bars = question_word_scores(encoded.samples, predictions)
            scores["per_class"] = markdown_table([score_row(bar, "question", "questions") for bar in bars])
        return scores, predictions

    def save_figures(self, folder: Path, samples: Sequence[Any], predictions: Sequence[Prediction]) -> list[str]:
        *bars, overall = question_word_scores(samples, predictions)
        return [draw_per_label(bars, overall, "questions", folder / "questions.png").name]

    def format_prediction(self, source: Any, prediction: Prediction) -> str:
        """The answer with its probability, and other candidates."""
        others = [item for item in prediction.extra["answers"] if item["value"] != prediction.value]
        lines = [f"{prediction.score[0]:7.4f}  {prediction.value or '(no answer in the context)'}"]
        return "\n".join([*lines, *(f"{item['probability']:7.4f}    {item['value']}" for item in others[:3])])

    def table_columns(self, prediction: Prediction) -> dict[str, Any]:
        return {**super().table_columns(prediction), "prediction_start": prediction.extra.get("start")}

    def example_row(self, sample: QASample, prediction: Prediction) -> dict[str, str]:
        return {
            "question": sample.question,
            "prediction": str(prediction.value) or "(nothing)",
            "reference": " | ".join(dict.fromkeys(sample.answers)) or "(nothing)",
            "probability": f"{prediction.score[0]:.3f}",
        }


def no_answer_threshold(model: base.Model, decode: DecodeSettings) -> float | None:
    """Minimum of (score of no answer − best answer score) for an empty prediction; None if every question gets an answer.

    Hugging Face checkpoints do not record unanswerable training questions: the user must set `decode.threshold`."""
    return 0.0 if decode.threshold is None and NO_ANSWER in model.spec.options.labels else decode.threshold


def answer_tokens(sample: QASample, offsets: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """First and last token of the first answer; None if there is no answer or if no token overlaps with the answer."""
    if not sample.answers:
        return None
    start, end = sample.starts[0], sample.starts[0] + len(sample.answers[0])
    held = [number for number, (first, last) in enumerate(offsets) if first < end and last > start and first < last]
    return (held[0], held[-1]) if held else None


def _packed_log_sums(logits: Tensor, packing: Packing, right: Tensor) -> tuple[Tensor, Tensor]:
    """(documents, 2) logsumexp over the tokens of each document of a packed row, and the logits at the labels; all shapes are
    independent of the document lengths."""
    starts = packing.starts
    documents = len(starts) - 1
    place = torch.arange(len(logits), device=logits.device)
    owner = packing.document_ids(place).clamp(0, documents - 1)[:, None].expand(-1, 2)
    highest = logits.new_full((documents, 2), -torch.inf).scatter_reduce(0, owner, logits.detach(), "amax")
    highest = torch.where(highest.isfinite(), highest, 0.0)
    total = logits.new_zeros(documents, 2).scatter_add(0, owner, (logits - highest.gather(0, owner)).exp())
    sums = highest + total.clamp(min=torch.finfo(total.dtype).tiny).log()
    at = (starts[:-1, None] + right).clamp(max=len(logits) - 1)
    return sums, logits.gather(0, at)


def _best_spans(logits: np.ndarray, places: Sequence[tuple[int, int]], longest: int) -> list[Span]:
    """Best spans of one window with start ≤ end and at most `longest` tokens."""
    count = min(len(logits), len(places))
    if not count:
        return []
    begins, ends = logits[:count, 0], logits[:count, 1]
    table = begins[:, None] + ends[None]
    behind = np.subtract.outer(np.arange(count), np.arange(count))
    table = np.where((behind <= 0) & (behind > -longest), table, -np.inf)
    flat = table.ravel()
    kept = np.argpartition(-flat, min(MAX_CANDIDATES, len(flat) - 1))[:MAX_CANDIDATES]
    kept = kept[np.argsort(-flat[kept], kind="stable")]
    found = [(float(flat[i]), *divmod(int(i), count)) for i in kept if np.isfinite(flat[i])]
    return [(score, places[first][0], places[last][1]) for score, first, last in found]


def _make_prediction(sample: QASample, found: Sequence[Span], nothing: float, threshold: float | None) -> Prediction:
    """Prediction from the spans of all windows, with probabilities over the candidates (and no answer, with a threshold)."""
    best: dict[tuple[int, int], float] = {}
    for score, *place in found:
        key = place[0], place[1]
        best[key] = max(best.get(key, -np.inf), score)
    order = sorted(best, key=lambda key: (-best[key], key))[:MAX_CANDIDATES]
    scores = np.array([best[key] for key in order] + [nothing] * (threshold is not None))
    chances = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum() if len(scores) else scores
    doubt = nothing - best[order[0]] if order else 0.0
    listed: list[dict[str, Any]] = [
        {"value": sample.context[first:last], "start": first, "end": last, "probability": float(chance)}
        for (first, last), chance in zip(order, chances, strict=False)
    ] or [{"value": "", "start": 0, "end": 0, "probability": 0.0}]
    extra: dict[str, Any] = {"question": sample.question, "null_score_diff": doubt}
    extra["answers"] = listed[:MAX_LISTED]
    if threshold is not None and doubt > threshold:
        return Prediction("", (float(chances[-1]),), (), extra)
    return Prediction(listed[0]["value"], (listed[0]["probability"],), (), {**extra, "start": listed[0]["start"]})
