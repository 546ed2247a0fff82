"""span: a question and a context in, the stretch of the context that answers it out. Any encoder can be asked.

Two numbers are learnt for every token: whether the answer begins there, and whether it ends there. Where the context does
not say, both point at the first token of all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from regard.data.batching.samplers import Shape
from regard.data.settings import Data
from regard.data.text import unlabeled_rows
from regard.data.text.files import Complain
from regard.data.text.qa import COLUMNS, Span, iterate_spans
from regard.data.text.tables import Empty
from regard.decode.settings import Decode
from regard.errors import RegardError
from regard.nn.blocks.heads import ReadOut
from regard.processors.tokenizer.tokenizer import Text
from regard.tasks.act import costed, thought
from regard.tasks.base import READ, TEXT, Encoded, Scored, Sums, Terms
from regard.tasks.metrics.squad import draw_each_word, each_word, measure
from regard.tasks.protocol import Asked
from regard.tasks.special_tokens import Marks, shortened
from regard.tasks.windowed import Window, Windowed, begins, first_rows, rows_of, windows
from regard.types import IGNORE, Answer, Batch

SILENT = "no answer"
"""The one class of models that were trained on questions which their contexts do not answer."""

LONGEST = 30
"""Tokens of an answer when nobody says how many (decode.length)."""

SHOWN = 5
"""Answers that are told of a question beside each other."""

KEPT = 20
"""Answers of a question that are compared with each other."""


class Place(NamedTuple):
    """A stretch of characters of the context, and how much is to be said for it."""

    score: float
    first: int
    last: int


class SpanTask(Windowed):
    name = "span"
    about = "questions about a context, whose answers stand in it; answers with the words that stand there"
    columns = COLUMNS
    unit = "questions"
    metric = "f1"
    sample = Span
    least = 20  # contexts, which have several questions each
    usage = "$'a question?\\tits context'"
    heeds = (*TEXT, *READ, "data.stride", "decode.length", "decode.threshold")

    def stream(self, data: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[Span | Empty]:
        return iterate_spans(data, columns)

    def inputs_of(self, entry: str, columns: Mapping[str, str] | None, complain: Complain) -> Iterator[tuple[int, Any]]:
        return unlabeled_rows.spans(entry, columns, complain)

    def key(self, sample: Span) -> str:
        return sample.key

    def words(self, sample: Span) -> Iterable[str]:
        return sample.question, sample.context

    def right(self, sample: Span) -> str:
        return json.dumps([sample.answers, sample.starts])

    def labels(self, sample: Span) -> Iterable[str]:
        return () if sample.possible else (SILENT,)

    def flavour(self, data: Data) -> tuple[Any, ...]:
        return (data.stride,)

    def head(self, config: Any, labels: Sequence[str]) -> nn.Module:
        return ReadOut("ends", config.width, 2, 0.0)

    def encode(
        self, samples: Sequence[Span], reader: Text, config: Any, longest: int, data: Data | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:  # fmt: skip
        """`[CLS] question [SEP] context [SEP]`; a long context in windows. The label is the first and the last token of the
        answer in its row, or 0 and 0 where this window does not hold it."""
        marks, limit = Marks.of(reader, config), min(longest, config.length)
        stride = 0 if data is None else data.stride
        rows: list[Window] = []
        questions = reader.encode([marks.second(sample.question) for sample in samples])
        contexts = reader.encode_offsets([sample.context for sample in samples])
        for owner, (sample, question, (ids, places)) in enumerate(zip(samples, questions, contexts, strict=True)):
            room = marks.room(limit, 2)
            (asked,) = shortened([question], max(room // 2, 1))
            before = [*marks.start, *asked, *marks.delimiter]
            answer = answer_tokens(sample, places)
            for first, last in windows(len(ids), max(room - len(asked), 1), stride):
                inside = answer is not None and first <= answer[0] and answer[1] < last
                label = [len(before) + place - first for place in answer] if inside and answer else [0, 0]
                rows.append(Window(owner, first, [*before, *ids[first:last], *marks.extract], len(before), label))
        return self.encoded(samples, rows)

    def labels_of(self, labels: Sequence[np.ndarray], lengths: Sequence[int], shape: Shape | None) -> Tensor:
        """(rows, 2); of documents that fill up a packed row nothing is asked."""
        table = torch.from_numpy(np.stack(labels).astype(np.int64))
        if shape is None:
            return table
        rest = torch.full((shape.documents - len(table), 2), IGNORE)
        return torch.cat([table, rest])

    def loss(self, model: Asked, batch: Batch, terms: Terms = Terms()) -> tuple[Tensor, Tensor]:  # noqa: B008
        """The mean of both ends' cross-entropies over the tokens of each row, summed over rows."""
        assert batch.labels is not None
        states = model.body(batch)
        logits = self.headed(model)(states.sequence)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        asked = batch.labels[:, 0] != IGNORE
        right = batch.labels.clamp(min=0)
        if batch.offsets is None:
            sums, own = _padded(logits, batch.mask, right)
        else:
            sums, own = _packed(logits[0], batch, right)
        return costed(model, (torch.where(asked, (sums - own).mean(-1), 0.0).sum(), asked.sum()), states)

    def alone(self, inputs: Any) -> bool:
        return isinstance(inputs, str | tuple | Mapping | Span)

    def answer(self, model: Asked, inputs: Sequence[Any], decode: Decode, first: int = 0) -> list[Answer]:
        """Of each (question, context), {"question": …, "context": …} or "question<tab>context" the likeliest answer."""
        samples = [_question(item) for item in inputs]
        encoded = self.encode(samples, model.text_or_refuse(), model.config, model.config.length)
        return thought(self, model, encoded, self._answers(model, encoded, decode, None))

    def _answers(self, model: Asked, encoded: Encoded, decode: Decode, most: int | None) -> list[Answer]:
        some = first_rows(encoded, most)
        logits = self.judged(model, some)
        contexts = model.text_or_refuse().encode_offsets([sample.context for sample in some.samples])
        answers = []
        for sample, rows, (_, places) in zip(some.samples, rows_of(some, None), contexts, strict=True):
            found: list[Place] = []
            nothing = np.inf
            for row in rows:
                begin, first = int(some.sides["second"][row][0]), begins(some, row)
                here = logits[row][begin:-1]  # without the end mark
                nothing = min(nothing, float(logits[row][0].sum()))
                found += _best(here, places[first:], decode.length or LONGEST)
            answers.append(_told(sample, found, nothing, threshold_of(model, decode)))
        return answers

    def score(
        self, model: Asked, encoded: Encoded, decode: Decode, data: Data, sums: Sums, most: int | None = None
    ) -> Scored:
        """Shares of 100 by SQuAD's rules; where contexts may not say, with the threshold that would have been best."""
        answers = self._answers(model, encoded, decode, most)
        said = [str(answer.extra["answers"][0]["value"]) for answer in answers]
        doubts = [float(answer.extra["doubt"]) for answer in answers]
        threshold = threshold_of(model, decode)
        found = measure(encoded.samples[:most], said, None if threshold is None else doubts, threshold or 0.0)
        scores: dict[str, float | str] = {  # at a threshold that is rounded, others might be silent
            name: value if name.endswith("threshold") else round(value, 2) for name, value in found.items()
        }
        scores["samples"] = len(answers)
        if most is None:
            scores["each"] = each_word(encoded.samples, answers)
        return scores, answers

    def draw(self, folder: Path, samples: Sequence[Span], answers: Sequence[Answer]) -> list[str]:
        return [draw_each_word(samples, answers, folder / "questions.png").name] if answers else []

    def said(self, given: Any, answer: Answer) -> str:
        """The answer with its probability, and what else might be one."""
        others = [item for item in answer.extra["answers"] if item["value"] != answer.value]
        lines = [f"{answer.scores[0]:7.4f}  {answer.value or '(the context does not say)'}"]
        return "\n".join([*lines, *(f"{item['probability']:7.4f}    {item['value']}" for item in others[:3])])

    def example(self, sample: Span, answer: Answer) -> dict[str, str]:
        return {
            "question": sample.question,
            "answer": str(answer.value) or "(nothing)",
            "reference": " | ".join(dict.fromkeys(sample.answers)) or "(nothing)",
            "probability": f"{answer.scores[0]:.3f}",
        }


def threshold_of(model: Asked, decode: Decode) -> float | None:
    """How much more nothing must be believed than an answer before it is said; None where something always is.

    Published models do not say whether they have learnt to be silent: they are where a person names a threshold."""
    return 0.0 if decode.threshold is None and SILENT in model.identity.labels else decode.threshold


def answer_tokens(sample: Span, places: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """The first and the last token of the first answer; None where there is none, or no token of it."""
    if not sample.answers:
        return None
    start, end = sample.starts[0], sample.starts[0] + len(sample.answers[0])
    held = [number for number, (first, last) in enumerate(places) if first < end and last > start and first < last]
    return (held[0], held[-1]) if held else None


def _padded(logits: Tensor, mask: Tensor | None, right: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, 2): the log of the sum over each row, and what stands at the right places."""
    if mask is not None:
        real = torch.arange(logits.shape[1], device=logits.device) < mask[:, None] if mask.ndim == 1 else mask
        logits = logits.masked_fill(~real[..., None], -torch.inf)
    return logits.logsumexp(1), logits.gather(1, right[:, None])[:, 0]


def _packed(logits: Tensor, batch: Batch, right: Tensor) -> tuple[Tensor, Tensor]:
    """The same of the documents of one row, in a shape that does not depend on their lengths."""
    assert batch.offsets is not None
    starts = batch.offsets.starts
    documents = len(starts) - 1
    place = torch.arange(len(logits), device=logits.device)
    owner = batch.offsets.document(place).clamp(0, documents - 1)[:, None].expand(-1, 2)
    highest = logits.new_full((documents, 2), -torch.inf).scatter_reduce(0, owner, logits.detach(), "amax")
    highest = torch.where(highest.isfinite(), highest, 0.0)
    total = logits.new_zeros(documents, 2).scatter_add(0, owner, (logits - highest.gather(0, owner)).exp())
    sums = highest + total.clamp(min=torch.finfo(total.dtype).tiny).log()
    at = (starts[:-1, None] + right).clamp(max=len(logits) - 1)
    return sums, logits.gather(0, at)


def _best(logits: np.ndarray, places: Sequence[tuple[int, int]], longest: int) -> list[Place]:
    """The best stretches of one window: those that begin before they end, and not too long."""
    count = min(len(logits), len(places))
    if not count:
        return []
    begins, ends = logits[:count, 0], logits[:count, 1]
    table = begins[:, None] + ends[None]
    behind = np.subtract.outer(np.arange(count), np.arange(count))
    table = np.where((behind <= 0) & (behind > -longest), table, -np.inf)
    flat = table.ravel()
    kept = np.argpartition(-flat, min(KEPT, len(flat) - 1))[:KEPT]
    kept = kept[np.argsort(-flat[kept], kind="stable")]
    found = [(float(flat[i]), *divmod(int(i), count)) for i in kept if np.isfinite(flat[i])]
    return [Place(score, places[first][0], places[last][1]) for score, first, last in found]


def _told(sample: Span, found: Sequence[Place], nothing: float, threshold: float | None) -> Answer:
    """The best of all windows. Probabilities are among those that were kept, and nothing where nothing may be said."""
    best: dict[tuple[int, int], float] = {}
    for place in found:
        key = place.first, place.last
        best[key] = max(best.get(key, -np.inf), place.score)
    order = sorted(best, key=lambda key: (-best[key], key))[:KEPT]
    scores = np.array([best[key] for key in order] + [nothing] * (threshold is not None))
    chances = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum() if len(scores) else scores
    doubt = nothing - best[order[0]] if order else 0.0
    listed: list[dict[str, Any]] = [
        {"value": sample.context[first:last], "start": first, "end": last, "probability": float(chance)}
        for (first, last), chance in zip(order, chances, strict=False)
    ] or [{"value": "", "start": 0, "end": 0, "probability": 0.0}]
    extra: dict[str, Any] = {"question": sample.question, "doubt": doubt}
    extra["answers"] = listed[:SHOWN]
    if threshold is not None and doubt > threshold:
        return Answer("", (float(chances[-1]),), (), extra)
    return Answer(listed[0]["value"], (listed[0]["probability"],), (), {**extra, "start": listed[0]["start"]})


def _question(item: Any) -> Span:
    if isinstance(item, Span):
        return item
    wanted = (
        'a question is {"question": "…", "context": "…"}, as such or as JSON, (question, context) or "one<tab>other"'
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
        raise RegardError("a question and its context must not be empty.")
    return Span(item[0].strip(), item[1], (), (), False)
