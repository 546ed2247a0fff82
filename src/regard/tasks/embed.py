"""Task `embed`: sentence embeddings with encoders.

Contrastive training on pairs of similar texts: each text must be nearest to its partner among the other texts of the
micro-batch, in both directions. `train.batch_tokens` thus determines the number of negatives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.batching.samplers import BatchSampler, BatchShape, LengthBucketed, PackedSampler
from regard.data.settings import DataSettings
from regard.data.text.files import ErrorHandler
from regard.data.text.samples import PAIR_COLUMNS, Pair, iterate_positive_pairs, read_sources
from regard.data.text.tables import SIDES, SkippedRow
from regard.decode.settings import DecodeSettings
from regard.errors import RegardError, SettingError
from regard.processors.padding import pack, pad
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.tasks.act import add_act_cost
from regard.tasks.base import (
    ENCODING_SETTINGS,
    TEXT_SETTINGS,
    Encoded,
    EvalResult,
    FieldRows,
    LossSum,
    LossWeights,
    Task,
    row_lengths,
)
from regard.tasks.nearest import SearchHit, TextIndex
from regard.tasks.pooling import Pooling, pooling_files, read_pooling
from regard.tasks.protocol import ModelProtocol
from regard.tasks.special_tokens import pad_id, with_template
from regard.tasks.text_heads import build_tokenizer, special_token_ids
from regard.types import IGNORE, Batch, BodyOutput, Offsets, Prediction

SCALE = 20.0
"""Factor of the cosines before the softmax: a temperature of 0.05."""
BUDGET, LARGE = 4096, 65_536
"""Tokens per batch at inference: limited by the cache of a CPU, and on other devices."""
TOP_K = 5
"""Default number of search results."""

ProgressCallback = Callable[[int, int], None]
"""Receives the number of finished texts and of all texts."""


class Embeddings(NamedTuple):
    vectors: np.ndarray
    """(N, D)"""
    truncated: list[bool]
    """True for truncated texts"""


class Embed(Task):
    name = "embed"
    description = "Sentence embeddings: pairs of similar texts (contrastive)."
    columns = SIDES
    unit = "pairs"
    metric = "mrr"
    sample_type = Pair
    fields = ("first", "second")
    default_model = "bert-mini"
    usage = '"a text"'
    generates, truncates, truncation_side = False, True, "at the end"
    settings_used = (*TEXT_SETTINGS, *ENCODING_SETTINGS)

    def __init__(self, pooling: Pooling | None = None) -> None:
        self.pooling = pooling or Pooling()

    def from_folder(self, folder: Path) -> Embed:
        """The task with the pooling of a checkpoint."""
        return Embed(read_pooling(folder))

    def extra_files(self, config: Any) -> dict[str, Any]:
        """Pooling files for sentence-transformers."""
        return pooling_files(self.pooling, config.width)

    # -- data

    def iter_samples(
        self, data: Sequence[str], columns: Mapping[str, str] | None = None
    ) -> Iterator[Pair | SkippedRow]:
        return iterate_positive_pairs(data, columns)

    def iter_inputs(
        self, entry: str, columns: Mapping[str, str] | None, complain: ErrorHandler
    ) -> Iterator[tuple[int, Any]]:
        return read_sources(entry, columns, complain, tuple(first for first, _ in PAIR_COLUMNS))

    def split_key(self, sample: Pair) -> str:
        return sample.source

    def fingerprint_texts(self, samples: Iterable[Pair]) -> Iterator[str]:
        for sample in samples:
            yield sample.source
            yield sample.target

    def train_tokenizer(self, texts: Iterable[str], data: DataSettings) -> TextTokenizer:
        return build_tokenizer(texts, data)

    def encoding_key(self, data: DataSettings) -> tuple[Any, ...]:
        return self.pooling.max_length, self.pooling.lowercase

    def export_tokenizer(self, text: TextTokenizer, config: Any) -> TextTokenizer:
        return with_template(text, config)

    def fit_config(self, config: Any, processor: TextTokenizer) -> Any:
        return replace(config, vocab_size=processor.size, **special_token_ids(processor))

    def encode(
        self, samples: Sequence[Pair], processor: TextTokenizer, config: Any, max_length: int, data: DataSettings | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:  # fmt: skip
        firsts, short = self._encode_texts([sample.source for sample in samples], processor, config, max_length)
        seconds, others = self._encode_texts([sample.target for sample in samples], processor, config, max_length)
        cut = [sample for sample, *either in zip(samples, short, others, strict=True) if any(either)]
        return Encoded(list(samples), {"first": firsts, "second": seconds}, cut)

    def _encode_texts(
        self, texts: Sequence[str], text: TextTokenizer, config: Any, longest: int
    ) -> tuple[list[np.ndarray], list[bool]]:
        """Token ids with start and end token. Long texts are truncated at the end, as in sentence-transformers."""
        limit = min(longest, config.max_length, self.pooling.max_length or config.max_length)
        told = [item.lower() if self.pooling.lowercase else item for item in map(str.strip, texts)]
        ids, room = text.encode(told), max(limit - 2, 1)
        rows = [np.array([config.bos_id, *row[:room], config.eos_id], dtype=np.int32) for row in ids]
        return rows, [len(row) > room for row in ids]

    def sampler(self, encoded: Encoded, config: Any, tokens: int, seed: int, packed: bool) -> BatchSampler:
        lengths = self.lengths(encoded)
        return (PackedSampler if packed else LengthBucketed)(lengths, max(tokens, int(lengths.sum(1).max())), seed)

    def collate(self, encoded: Encoded, rows: Iterable[int], config: Any, shape: BatchShape | None = None) -> Batch:
        """First texts as inputs, second texts as decoder inputs. `labels` (S, 2) are text ids, equal for equal texts."""
        rows = list(rows)
        firsts, seconds = ([encoded.fields[side][i] for i in rows] for side in self.fields)
        labels, value = torch.from_numpy(_text_ids(firsts, seconds)), pad_id(config)
        if shape is None:
            (x, mask), (y, target_mask) = pad(firsts, value), pad(seconds, value)
            return Batch(x, mask, y, target_mask, labels=labels)
        (room, second_room), (longest, second_longest), many = shape.row_lengths, shape.max_lengths, shape.num_documents
        x, offsets = pack(firsts, room, longest, many, value)
        y, target_offsets = pack(seconds, second_room, second_longest, many, value)
        labels = F.pad(labels, (0, 0, 0, many - len(labels)), value=IGNORE)
        return Batch(x, decoder_inputs=y, labels=labels, offsets=offsets, decoder_offsets=target_offsets)

    # -- training

    def loss(self, model: ModelProtocol, batch: Batch, terms: LossWeights = LossWeights()) -> tuple[Tensor, Tensor]:  # noqa: B008
        """(sum, count) over pairs of the average of two cross-entropies: second texts given the first, and first texts given
        the second. Equal texts are not negatives of each other."""
        assert batch.labels is not None and batch.decoder_inputs is not None
        if terms.smoothing or terms.auxiliary:
            raise SettingError(
                "Task 'embed' does not use train.label_smoothing or train.lm_loss_weight. Set both to 0."
            )
        first = self._run_body(model, batch.inputs, batch.mask, batch.offsets)
        second = self._run_body(model, batch.decoder_inputs, batch.decoder_mask, batch.decoder_offsets)
        unit = replace(self.pooling, normalize=True)
        firsts, seconds = (unit(states.sequence, rows) for states, rows in (first, second))
        asked = batch.labels[:, 0] != IGNORE
        with torch.autocast(firsts.device.type, enabled=False):
            alike = (SCALE * firsts @ seconds.T).masked_fill(_excluded_negatives(batch.labels, asked), -torch.inf)
        losses = (alike.logsumexp(1) + alike.logsumexp(0)) / 2 - alike.diagonal()
        total = losses.sum()  # padding rows have no negatives: their loss is 0
        if model.body.has_pooler and first[0].pooled is not None:
            # Distributed training requires a gradient for every parameter, including the unused pooler.
            total = total + 0.0 * first[0].pooled.sum()
        return add_act_cost(model, (total, asked.sum()), first[0], second[0])

    def _run_body(
        self, model: ModelProtocol, x: Tensor, mask: Tensor | None, offsets: Offsets | None
    ) -> tuple[BodyOutput, Batch]:
        rows = _with_global_token(Batch(x, mask, offsets=offsets), model.config)
        return model.body(rows), rows

    def logits(self, model: ModelProtocol, batch: Batch) -> Tensor:
        """(B, D) embeddings."""
        batch = batch if batch.global_tokens is not None else _with_global_token(batch, model.config)
        return self.pooling(model.body(batch).sequence, batch)

    # -- inference

    def is_single(self, inputs: Any) -> bool:
        return isinstance(inputs, str | Mapping)

    def predict(
        self, model: ModelProtocol, inputs: Sequence[Any], decode: DecodeSettings, first: int = 0
    ) -> list[Prediction]:
        """Embedding of a text; for {"query": text, "corpus": texts, "top_k": 5} the nearest texts, as in `search`.

        The embeddings of a corpus are computed once for all its queries."""
        shelves: dict[int, TextIndex] = {}
        found = self.embed_texts(model, [_query_text(item) for item in inputs])
        answers = []
        for item, vector, cut in zip(inputs, *found, strict=True):
            extra = {"truncated": True} if cut else {}
            if isinstance(item, Mapping):
                texts = item["corpus"]
                if id(texts) not in shelves:
                    shelves[id(texts)] = self.build_index(model, texts)
                hits = shelves[id(texts)].search(vector[None], item.get("top_k", TOP_K))[0]
                answers.append(_search_prediction(hits, extra))
            else:
                answers.append(Prediction(vector.tolist(), extra=extra))
        return answers

    def build_index(
        self, model: ModelProtocol, texts: Sequence[str], on_progress: ProgressCallback | None = None
    ) -> TextIndex:
        """Texts with their embeddings, for search."""
        if isinstance(texts, str) or not texts:
            raise RegardError("Search requires a non-empty list of texts.")
        distinct = list(dict.fromkeys(texts))
        made = self.embed_texts(model, distinct, on_progress).vectors
        place = {text: number for number, text in enumerate(distinct)}
        return TextIndex(texts, made if len(distinct) == len(texts) else made[[place[text] for text in texts]])

    def search(
        self, model: ModelProtocol, queries: Sequence[str], index: TextIndex, top_k: int = TOP_K
    ) -> list[Prediction]:
        """Nearest text of each query. The scores and `hits` contain the `top_k` nearest texts with cosines."""
        found = self.embed_texts(model, queries)
        hits = index.search(found.vectors, top_k)
        return [
            _search_prediction(some, {"truncated": True} if cut else {})
            for some, cut in zip(hits, found.truncated, strict=True)
        ]

    def embed_texts(
        self, model: ModelProtocol, texts: Sequence[str], on_progress: ProgressCallback | None = None
    ) -> Embeddings:
        for item in texts:
            if not isinstance(item, str):
                raise RegardError(f"Expected a text, got {item!r:.60}.")
        rows, cut = self._encode_texts(texts, model.require_tokenizer(), model.config, model.config.max_length)
        return Embeddings(self._embed_rows(model, rows, on_progress), cut)

    def _embed_rows(self, model: ModelProtocol, rows: FieldRows, tell: ProgressCallback | None = None) -> np.ndarray:
        """(N, D) embeddings, in batches of similar lengths."""
        wide = np.float64 if next(iter(model.body.parameters())).dtype == torch.float64 else np.float32
        table, done = np.zeros((len(rows), model.config.width), dtype=wide), 0
        if not len(rows):
            return table
        lengths, budget = row_lengths(rows), BUDGET if model.device.type == "cpu" else LARGE
        with torch.inference_mode():
            for some in LengthBucketed(lengths, max(budget, int(lengths.max())), seed=0).sequential():
                x, mask = pad([rows[i] for i in some], pad_id(model.config))
                table[some] = self.logits(model, Batch(x, mask).to(model.device)).cpu().numpy()
                done += len(some)
                if tell is not None:
                    tell(done, len(rows))
        return table

    def rank(self, model: ModelProtocol, prompt: str, choices: Sequence[str]) -> Prediction:
        raise RegardError(
            "Task 'embed' cannot rank choices. To find the most similar texts in a file, pass --search FILE."
        )

    # -- metrics

    def evaluate(
        self,
        model: ModelProtocol,
        encoded: Encoded,
        decode: DecodeSettings,
        data: DataSettings,
        sums: LossSum,
        max_samples: int | None = None,
    ) -> EvalResult:
        """Percentage of pairs whose second text is nearest to the first among all second texts (accuracy), and mean
        reciprocal rank within the first ten (MRR)."""
        samples = encoded.samples
        place: dict[str, int] = {}
        for number, sample in enumerate(samples):
            place.setdefault(sample.target, number)
        texts, seconds = list(place), encoded.fields["second"]
        among = TextIndex(texts, self._embed_rows(model, [seconds[number] for number in place.values()]))
        asked = self._embed_rows(model, list(encoded.fields["first"])[:max_samples])
        answers = _rank_predictions(samples[: len(asked)], samples, among, among.iter_cosines(asked))
        ranks = np.array([answer.extra["rank"] for answer in answers])
        scores: dict[str, float | str] = {
            "mrr": round(100 * float(np.where(ranks <= 10, 1 / ranks, 0.0).mean()), 2),
            "accuracy": round(100 * float((ranks == 1).mean()), 2),
            "samples": len(answers),
        }
        return scores, answers

    def format_prediction(self, source: Any, prediction: Prediction) -> str:
        if "hits" in prediction.extra:
            return "\n".join(f"{hit['cosine']:7.4f}  {hit['value']}" for hit in prediction.extra["hits"])
        return " ".join(f"{number:.6f}" for number in prediction.value)

    def example_row(self, sample: Pair, prediction: Prediction) -> dict[str, str]:
        rank = str(prediction.extra["rank"])
        return {"source": sample.source, "prediction": str(prediction.value), "reference": sample.target, "rank": rank}


def _text_ids(firsts: Sequence[np.ndarray], seconds: Sequence[np.ndarray]) -> np.ndarray:
    """(S, 2) ids of texts. Equal texts have equal ids on both sides."""
    known: dict[bytes, int] = {}
    pairs = zip(firsts, seconds, strict=True)
    return np.array([[known.setdefault(row.tobytes(), len(known)) for row in pair] for pair in pairs], dtype=np.int64)


def _excluded_negatives(numbers: Tensor, asked: Tensor) -> Tensor:
    """(S, S) True for entries that are not negatives: two pairs with a common text, and padding."""
    first, second = numbers.T
    same = (first[:, None] == first) | (second[:, None] == second) | (first[:, None] == second)
    same = same | ~(asked[:, None] & asked)
    return same & ~torch.eye(len(numbers), dtype=torch.bool, device=numbers.device)


def _with_global_token(batch: Batch, config: Any) -> Batch:
    """Batch with global attention for the first token, if the model has local attention."""
    if not config.traits.global_tokens:
        return batch
    marked = torch.zeros_like(batch.inputs, dtype=torch.bool)
    if batch.offsets is None:
        marked[:, 0] = True
    else:
        marked[0, batch.offsets.starts[:-1].clamp(max=marked.shape[1] - 1)] = True
    return replace(batch, global_tokens=marked)


def _query_text(item: Any) -> Any:
    if not isinstance(item, Mapping):
        return item
    if not {"query", "corpus"} <= item.keys() <= {"query", "corpus", "top_k"}:
        raise RegardError('Expected a text or {"query": "…", "corpus": ["…", "…"]} with an optional "top_k": 5.')
    return item["query"]


def _search_prediction(hits: Sequence[SearchHit], extra: Mapping[str, Any]) -> Prediction:
    listed = [asdict(hit) for hit in hits]
    return Prediction(hits[0].value, tuple(hit.cosine for hit in hits), extra={"hits": listed, **extra})


def _rank_predictions(
    asked: Sequence[Pair], samples: Sequence[Pair], among: TextIndex, cosines: Iterable[np.ndarray]
) -> list[Prediction]:
    """Prediction for the first text of each pair, and the rank of its best partner. Other texts with the same cosine rank
    before the partner; the first text itself is excluded from the results."""
    place = {text: number for number, text in enumerate(among.texts)}
    right: dict[str, list[int]] = {}
    for sample in samples:
        right.setdefault(sample.source, []).append(place[sample.target])
    answers = []
    for sample, row in zip(asked, (row for part in cosines for row in part), strict=True):
        own, itself = list(dict.fromkeys(right[sample.source])), place.get(sample.source)
        if itself is not None and itself not in own:
            row[itself] = -np.inf
        level = row[own].max()
        rank = 1 + int((row >= level).sum()) - int((row[own] >= level).sum())
        top = int(row.argmax())
        answers.append(Prediction(among.texts[top], (float(row[top]),), extra={"rank": rank, "cosine": float(level)}))
    return answers
