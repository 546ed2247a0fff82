"""Task `qa`: extractive question answering with encoders.

The head predicts start and end logits for each token. For unanswerable questions both labels are the first token."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from regard.data.batching.samplers import BatchShape
from regard.data.settings import DataSettings
from regard.data.text.files import ErrorHandler
from regard.data.text.qa import COLUMNS, QASample, iterate_qa, read_qa_inputs
from regard.data.text.tables import SkippedRow
from regard.decode.settings import DecodeSettings
from regard.errors import RegardError
from regard.nn.blocks.heads import text_head
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.tasks.act import add_act_cost, with_act_steps
from regard.tasks.base import ENCODING_SETTINGS, TEXT_SETTINGS, Encoded, EvalResult, LossSum, LossWeights
from regard.tasks.metrics.squad import draw_question_words, question_word_table, squad_scores
from regard.tasks.protocol import ModelProtocol
from regard.tasks.special_tokens import SpecialTokens, truncate_middle
from regard.tasks.windowed import TokenHeadTask, TokenWindow, first_sample_rows, rows_by_sample, window_start, windows
from regard.types import IGNORE, Batch, Prediction

NO_ANSWER = "no answer"
"""The only label of models trained on data with unanswerable questions."""

MAX_ANSWER_TOKENS = 30
"""Maximum tokens per answer if `decode.max_new_tokens` is not set."""

MAX_LISTED = 5
"""Maximum number of answers in a prediction."""

MAX_CANDIDATES = 20
"""Maximum number of candidate spans per question."""


class SpanCandidate(NamedTuple):
    """Character span of the context with its score."""

    score: float
    start: int
    end: int


class QuestionAnswering(TokenHeadTask):
    name = "qa"
    description = "Extractive question answering: question, context, answer."
    columns = COLUMNS
    unit = "questions"
    metric = "f1"
    sample_type = QASample
    min_valid_samples = 20  # contexts, which have several questions each
    usage = "$'a question?\\tits context'"
    settings_used = (*TEXT_SETTINGS, *ENCODING_SETTINGS, "data.stride", "decode.max_new_tokens", "decode.threshold")

    def iter_samples(
        self, data: Sequence[str], columns: Mapping[str, str] | None = None
    ) -> Iterator[QASample | SkippedRow]:
        return iterate_qa(data, columns)

    def iter_inputs(
        self, entry: str, columns: Mapping[str, str] | None, complain: ErrorHandler
    ) -> Iterator[tuple[int, Any]]:
        return read_qa_inputs(entry, columns, complain)

    def split_key(self, sample: QASample) -> str:
        return sample.split_key

    def sample_texts(self, sample: QASample) -> Iterable[str]:
        return sample.question, sample.context

    def target_text(self, sample: QASample) -> str:
        return json.dumps([sample.answers, sample.starts])

    def labels(self, sample: QASample) -> Iterable[str]:
        return () if sample.is_answerable else (NO_ANSWER,)

    def encoding_key(self, data: DataSettings) -> tuple[Any, ...]:
        return (data.stride,)

    def head(self, config: Any, labels: Sequence[str]) -> nn.Module:
        return text_head("ends", config, 2, pooled=False, dropout=0.0)

    def encode(
        self,
        samples: Sequence[QASample],
        processor: TextTokenizer,
        config: Any,
        max_length: int,
        data: DataSettings | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:
        """`[CLS] question [SEP] context [SEP]`; long contexts are split into windows. The label is the first and last token
        of the answer in the row, or (0, 0) if the window does not contain the answer."""
        marks, limit = SpecialTokens.from_tokenizer(processor, config), min(max_length, config.max_length)
        stride = 0 if data is None else data.stride
        rows: list[TokenWindow] = []
        questions = processor.encode([marks.second_text(sample.question) for sample in samples])
        contexts = processor.encode_offsets([sample.context for sample in samples])
        for owner, (sample, question, (ids, places)) in enumerate(zip(samples, questions, contexts, strict=True)):
            room = marks.max_text_tokens(limit, 2)
            (asked,) = truncate_middle([question], max(room // 2, 1))
            before = [*marks.start, *asked, *marks.delimiter]
            answer = answer_tokens(sample, places)
            for first, last in windows(len(ids), max(room - len(asked), 1), stride):
                inside = answer is not None and first <= answer[0] and answer[1] < last
                label = [len(before) + place - first for place in answer] if inside and answer else [0, 0]
                rows.append(TokenWindow(owner, first, [*before, *ids[first:last], *marks.extract], len(before), label))
        return self.build_encoded(samples, rows)

    def collate_labels(self, labels: Sequence[np.ndarray], lengths: Sequence[int], shape: BatchShape | None) -> Tensor:
        """(rows, 2) labels; `IGNORE` for the empty documents of a packed row."""
        table = torch.from_numpy(np.stack(labels).astype(np.int64))
        if shape is None:
            return table
        rest = torch.full((shape.num_documents - len(table), 2), IGNORE)
        return torch.cat([table, rest])

    def loss(self, model: ModelProtocol, batch: Batch, terms: LossWeights = LossWeights()) -> tuple[Tensor, Tensor]:  # noqa: B008
        """(sum, count) over rows of the average of start and end cross-entropy over the tokens of the row."""
        assert batch.labels is not None
        states = model.body(batch)
        logits = self.require_head(model)(states.sequence)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        asked = batch.labels[:, 0] != IGNORE
        right = batch.labels.clamp(min=0)
        if batch.offsets is None:
            sums, own = _padded_log_sums(logits, batch.mask, right)
        else:
            sums, own = _packed_log_sums(logits[0], batch, right)
        return add_act_cost(model, (torch.where(asked, (sums - own).mean(-1), 0.0).sum(), asked.sum()), states)

    def is_single(self, inputs: Any) -> bool:
        return isinstance(inputs, str | tuple | Mapping | QASample)

    def predict(
        self, model: ModelProtocol, inputs: Sequence[Any], decode: DecodeSettings, first: int = 0
    ) -> list[Prediction]:
        """Most likely answer for each (question, context), {"question": …, "context": …} or "question<tab>context"."""
        samples = [_parse_input(item) for item in inputs]
        encoded = self.encode(samples, model.require_tokenizer(), model.config, model.config.max_length)
        return with_act_steps(self, model, encoded, self._predictions(model, encoded, decode, None))

    def _predictions(
        self, model: ModelProtocol, encoded: Encoded, decode: DecodeSettings, most: int | None
    ) -> list[Prediction]:
        some = first_sample_rows(encoded, most)
        logits = self.token_logits(model, some)
        contexts = model.require_tokenizer().encode_offsets([sample.context for sample in some.samples])
        answers = []
        for sample, rows, (_, places) in zip(some.samples, rows_by_sample(some, None), contexts, strict=True):
            found: list[SpanCandidate] = []
            nothing = np.inf
            for row in rows:
                begin, first = int(some.fields["second"][row][0]), window_start(some, row)
                here = logits[row][begin:-1]  # without the end token
                nothing = min(nothing, float(logits[row][0].sum()))
                found += _best_spans(here, places[first:], decode.max_new_tokens or MAX_ANSWER_TOKENS)
            answers.append(_make_prediction(sample, found, nothing, no_answer_threshold(model, decode)))
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
        """SQuAD metrics in percent; if there may be no answer, also the best threshold for no answer."""
        answers = self._predictions(model, encoded, decode, max_samples)
        said = [str(answer.extra["answers"][0]["value"]) for answer in answers]
        doubts = [float(answer.extra["null_score_diff"]) for answer in answers]
        threshold = no_answer_threshold(model, decode)
        found = squad_scores(
            encoded.samples[:max_samples], said, None if threshold is None else doubts, threshold or 0.0
        )
        scores: dict[str, float | str] = {  # rounding the threshold would change predictions
            name: value if name.endswith("threshold") else round(value, 2) for name, value in found.items()
        }
        scores["samples"] = len(answers)
        if max_samples is None:
            scores["per_class"] = question_word_table(encoded.samples, answers)
        return scores, answers

    def save_figures(self, folder: Path, samples: Sequence[QASample], predictions: Sequence[Prediction]) -> list[str]:
        return [draw_question_words(samples, predictions, folder / "questions.png").name] if predictions else []

    def format_prediction(self, source: Any, prediction: Prediction) -> str:
        """The answer with its probability, and other candidates."""
        others = [item for item in prediction.extra["answers"] if item["value"] != prediction.value]
        lines = [f"{prediction.score[0]:7.4f}  {prediction.value or '(no answer in the context)'}"]
        return "\n".join([*lines, *(f"{item['probability']:7.4f}    {item['value']}" for item in others[:3])])

    def example_row(self, sample: QASample, prediction: Prediction) -> dict[str, str]:
        return {
            "question": sample.question,
            "prediction": str(prediction.value) or "(nothing)",
            "reference": " | ".join(dict.fromkeys(sample.answers)) or "(nothing)",
            "probability": f"{prediction.score[0]:.3f}",
        }


def no_answer_threshold(model: ModelProtocol, decode: DecodeSettings) -> float | None:
    """Minimum of (score of no answer − best answer score) for an empty prediction; None if every question gets an answer.

    Hugging Face checkpoints do not record unanswerable training questions: the user must set `decode.threshold`."""
    return 0.0 if decode.threshold is None and NO_ANSWER in model.spec.labels else decode.threshold


def answer_tokens(sample: QASample, offsets: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """First and last token of the first answer; None if there is no answer or if no token overlaps with the answer."""
    if not sample.answers:
        return None
    start, end = sample.starts[0], sample.starts[0] + len(sample.answers[0])
    held = [number for number, (first, last) in enumerate(offsets) if first < end and last > start and first < last]
    return (held[0], held[-1]) if held else None


def _padded_log_sums(logits: Tensor, mask: Tensor | None, right: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, 2) logsumexp over the tokens of each row, and the logits at the labels."""
    if mask is not None:
        real = torch.arange(logits.shape[1], device=logits.device) < mask[:, None] if mask.ndim == 1 else mask
        logits = logits.masked_fill(~real[..., None], -torch.inf)
    return logits.logsumexp(1), logits.gather(1, right[:, None])[:, 0]


def _packed_log_sums(logits: Tensor, batch: Batch, right: Tensor) -> tuple[Tensor, Tensor]:
    """As `_padded_log_sums`, for the documents of a packed row; all shapes are independent of the document lengths."""
    assert batch.offsets is not None
    starts = batch.offsets.starts
    documents = len(starts) - 1
    place = torch.arange(len(logits), device=logits.device)
    owner = batch.offsets.document_ids(place).clamp(0, documents - 1)[:, None].expand(-1, 2)
    highest = logits.new_full((documents, 2), -torch.inf).scatter_reduce(0, owner, logits.detach(), "amax")
    highest = torch.where(highest.isfinite(), highest, 0.0)
    total = logits.new_zeros(documents, 2).scatter_add(0, owner, (logits - highest.gather(0, owner)).exp())
    sums = highest + total.clamp(min=torch.finfo(total.dtype).tiny).log()
    at = (starts[:-1, None] + right).clamp(max=len(logits) - 1)
    return sums, logits.gather(0, at)


def _best_spans(logits: np.ndarray, places: Sequence[tuple[int, int]], longest: int) -> list[SpanCandidate]:
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
    return [SpanCandidate(score, places[first][0], places[last][1]) for score, first, last in found]


def _make_prediction(
    sample: QASample, found: Sequence[SpanCandidate], nothing: float, threshold: float | None
) -> Prediction:
    """Prediction from the spans of all windows, with probabilities over the candidates (and no answer, with a threshold)."""
    best: dict[tuple[int, int], float] = {}
    for place in found:
        key = place.start, place.end
        best[key] = max(best.get(key, -np.inf), place.score)
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


def _parse_input(item: Any) -> QASample:
    if isinstance(item, QASample):
        return item
    wanted = (
        'Expected {"question": "…", "context": "…"} (a dict or JSON), (question, context), or "question<tab>context"'
    )
    if isinstance(item, str):
        question, tab, context = item.partition("\t")
        if tab:
            item = question, context
        else:
            try:
                item = json.loads(item)
            except ValueError:
                item = None
    if isinstance(item, Mapping) and {"question", "context"} <= item.keys():
        item = item["question"], item["context"]
    if not isinstance(item, Sequence) or len(item) != 2 or not all(isinstance(part, str) for part in item):
        raise RegardError(f"{wanted}.")
    if not item[0].strip() or not item[1].strip():
        raise RegardError("The question and the context must not be empty.")
    return QASample(item[0].strip(), item[1], (), (), False)
