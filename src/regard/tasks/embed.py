"""Objective `embed`: sentence embeddings with encoders, and search of the nearest texts.

Contrastive training on pairs of similar texts: each text must be nearest to its partner among the other texts of the
micro-batch, in both directions. `train.batch_tokens` thus determines the number of negatives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.batching.samplers import BatchSampler, BatchShape
from regard.data.text.samples import Pair
from regard.decode.settings import DecodeSettings
from regard.errors import RegardError, SettingError
from regard.processors.padding import pad
from regard.tasks.base import (
    ENCODING_SETTINGS,
    NO_WEIGHTS,
    Encoded,
    EncodingContext,
    EvalResult,
    EvalSpec,
    FieldRows,
    HeadOptions,
    Loss,
    LossWeights,
    ModelProtocol,
    Objective,
    OptionRules,
    Scores,
    add_act_cost,
    int_rows,
    length_batches,
    row_lengths,
)
from regard.tasks.modality.text import pad_id, pad_or_pack
from regard.tasks.pooling import Pooling, pooling_files, read_pooling
from regard.types import IGNORE, Batch, BodyOutput, DecoderInputs, Packing, Prediction

SCALE = 20.0
"""Factor of the cosines before the softmax: a temperature of 0.05."""
BUDGET, LARGE = 4096, 65_536
"""Tokens per batch at inference: limited by the cache of a CPU, and on other devices."""
TOP_K = 5
"""Default number of search results."""

ProgressCallback = Callable[[int, int], None]
"""Receives the number of finished texts and of all texts."""


class PoolingOptions(OptionRules):
    """Pooling of a checkpoint, in files of sentence-transformers."""

    def load(self, options: HeadOptions, folder: Path, published: Mapping[str, Any] | None = None) -> HeadOptions:
        return replace(options, pooling=read_pooling(folder))

    def export_files(self, options: HeadOptions, config: Any) -> dict[str, Any]:
        return pooling_files(pooling_of(options), config.width)


class Embed(Objective):
    metrics = ("mrr",)
    fields = ("first", "second")
    truncation = "at the end"
    rank_advice = "To find the most similar texts in a file, pass --search FILE."
    options = PoolingOptions()
    single_types = (Mapping,)
    settings = ENCODING_SETTINGS

    # -- batches

    def _encode(self, samples: Sequence[Pair], config: Any, context: EncodingContext) -> Encoded:
        firsts, short = _encode_texts([sample.source for sample in samples], config, context)
        seconds, others = _encode_texts([sample.target for sample in samples], config, context)
        cut = [sample for sample, *either in zip(samples, short, others, strict=True) if any(either)]
        return Encoded(list(samples), {"first": firsts, "second": seconds}, cut, context)

    def sampler(self, encoded: Encoded, config: Any, tokens: int, seed: int, packed: bool) -> BatchSampler:
        most = max(tokens, int(encoded.lengths().sum(1).max()))
        return super().sampler(encoded, config, most, seed, packed)

    def collate(self, encoded: Encoded, rows: Iterable[int], config: Any, shape: BatchShape | None = None) -> Batch:
        """First texts as inputs, second texts as decoder inputs. `labels` (S, 2) are text ids, equal for equal texts."""
        rows = list(rows)
        firsts, seconds = ([encoded.fields[side][i] for i in rows] for side in self.fields)
        labels = torch.from_numpy(_text_ids(firsts, seconds))
        x, mask, offsets = pad_or_pack(firsts, pad_id(config), shape)
        y, target_mask, target_offsets = pad_or_pack(seconds, pad_id(config), shape, side=-1)
        if shape is not None:
            labels = F.pad(labels, (0, 0, 0, shape.num_documents - len(labels)), value=IGNORE)
        decoder = DecoderInputs(y, target_mask, target_offsets)
        return Batch(x, mask, labels=labels, packing=offsets, decoder=decoder)

    # -- training

    def loss(self, model: ModelProtocol, batch: Batch, terms: LossWeights = NO_WEIGHTS) -> Loss:
        """(sum, count) over pairs of the average of two cross-entropies: second texts given the first, and first texts given
        the second. Equal texts are not negatives of each other."""
        assert batch.labels is not None and batch.decoder is not None
        if terms.smoothing or terms.auxiliary:
            raise SettingError(
                "Task 'embed' does not use train.label_smoothing or train.lm_loss_weight. Set both to 0."
            )
        first = _run_body(model, batch.inputs, batch.mask, batch.packing)
        second = _run_body(model, batch.decoder.inputs, batch.decoder.mask, batch.decoder.packing)
        unit = replace(pooling_of(model.spec.options), normalize=True)
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

    def logits(self, model: ModelProtocol, batch: Batch) -> Tensor:
        """(B, D) embeddings."""
        batch = batch if batch.text.global_tokens is not None else _with_global_token(batch, model.config)
        return pooling_of(model.spec.options)(model.body(batch).sequence, batch)

    # -- predictions

    def predict(
        self, model: ModelProtocol, inputs: Sequence[Any], decode: DecodeSettings, first: int = 0
    ) -> list[Prediction]:
        """Embedding of a text; for {"query": text, "corpus": texts, "top_k": 5} the nearest texts, as in `search`.

        The embeddings of a corpus are computed once for all its queries."""
        indices: dict[int, TextIndex] = {}
        predictions = []
        for item, vector, truncated in zip(inputs, *embed_texts(model, list(map(_query_text, inputs))), strict=True):
            extra = {"truncated": True} if truncated else {}
            if not isinstance(item, Mapping):
                predictions.append(Prediction(vector.tolist(), extra=extra))
                continue
            texts = item["corpus"]
            if id(texts) not in indices:
                indices[id(texts)] = build_index(model, texts)
            hits = indices[id(texts)].search(vector[None], item.get("top_k", TOP_K))[0]
            predictions.append(_search_prediction(hits, extra))
        return predictions

    # -- metrics

    def _evaluate(self, model: ModelProtocol, encoded: Encoded, spec: EvalSpec) -> EvalResult:
        """Percentage of pairs whose second text is nearest to the first among all second texts (accuracy), and mean
        reciprocal rank within the first ten (MRR)."""
        samples = encoded.samples
        place: dict[str, int] = {}
        for number, sample in enumerate(samples):
            place.setdefault(sample.target, number)
        texts, seconds = list(place), encoded.fields["second"]
        among = TextIndex(texts, _embed_rows(model, [seconds[number] for number in place.values()]))
        queries = _embed_rows(model, list(encoded.fields["first"])[: spec.max_samples])
        predictions = _rank_predictions(samples[: len(queries)], samples, among, among.iter_cosines(queries))
        ranks = np.array([one.extra["rank"] for one in predictions])
        scores: Scores = {
            "mrr": round(100 * float(np.where(ranks <= 10, 1 / ranks, 0.0).mean()), 2),
            "accuracy": round(100 * float((ranks == 1).mean()), 2),
            "samples": len(predictions),
        }
        return scores, predictions

    def format_prediction(self, source: Any, prediction: Prediction) -> str:
        if "hits" in prediction.extra:
            return "\n".join(f"{hit['cosine']:7.4f}  {hit['value']}" for hit in prediction.extra["hits"])
        return " ".join(f"{number:.6f}" for number in prediction.value)

    def example_row(self, sample: Pair, prediction: Prediction) -> dict[str, str]:
        rank = str(prediction.extra["rank"])
        return {"source": sample.source, "prediction": str(prediction.value), "reference": sample.target, "rank": rank}


def pooling_of(options: HeadOptions) -> Pooling:
    """Pooling of a model; the default of new models."""
    pooling: Pooling = options.pooling or Pooling()
    return pooling


# -- embeddings


class Embeddings(NamedTuple):
    vectors: np.ndarray
    """(N, D)"""
    truncated: list[bool]
    """True for truncated texts"""


def embed_texts(model: ModelProtocol, texts: Sequence[str], on_progress: ProgressCallback | None = None) -> Embeddings:
    """Embedding of each text."""
    for item in texts:
        if not isinstance(item, str):
            raise RegardError(f"Expected a text, got {item!r:.60}.")
    context = EncodingContext(model.require_tokenizer(), options=model.spec.options)
    rows, truncated = _encode_texts(texts, model.config, context)
    return Embeddings(_embed_rows(model, rows, on_progress), truncated)


def _encode_texts(texts: Sequence[str], config: Any, context: EncodingContext) -> tuple[list[np.ndarray], list[bool]]:
    """Token ids with start and end token. Long texts are truncated at the end, as in sentence-transformers."""
    pooling = pooling_of(context.options)
    limit = min(context.max_length, config.max_length, pooling.max_length or config.max_length)
    cleaned = [item.lower() if pooling.lowercase else item for item in map(str.strip, texts)]
    ids, room = context.processor.encode(cleaned), max(limit - 2, 1)
    rows = int_rows([[config.bos_id, *row[:room], config.eos_id] for row in ids])
    return rows, [len(row) > room for row in ids]


def _embed_rows(model: ModelProtocol, rows: FieldRows, on_progress: ProgressCallback | None = None) -> np.ndarray:
    """(N, D) embeddings, in batches of similar lengths."""
    wide = np.float64 if next(iter(model.body.parameters())).dtype == torch.float64 else np.float32
    table, done = np.zeros((len(rows), model.config.width), dtype=wide), 0
    with torch.inference_mode():
        for some in length_batches(row_lengths(rows), BUDGET if model.device.type == "cpu" else LARGE):
            x, mask = pad([rows[i] for i in some], pad_id(model.config))
            table[some] = model.objective.logits(model, Batch(x, mask).to(model.device)).cpu().numpy()
            done += len(some)
            if on_progress is not None:
                on_progress(done, len(rows))
    return table


def _run_body(
    model: ModelProtocol, x: Tensor, mask: Tensor | None, offsets: Packing | None
) -> tuple[BodyOutput, Batch]:
    rows = _with_global_token(Batch(x, mask, packing=offsets), model.config)
    return model.body(rows), rows


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
    if batch.packing is None:
        marked[:, 0] = True
    else:
        marked[0, batch.packing.starts[:-1].clamp(max=marked.shape[1] - 1)] = True
    return replace(batch, text=replace(batch.text, global_tokens=marked))


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
    queries: Sequence[Pair], samples: Sequence[Pair], among: TextIndex, cosines: Iterable[np.ndarray]
) -> list[Prediction]:
    """Prediction for the first text of each pair, and the rank of its best partner. Other texts with the same cosine rank
    before the partner; the first text itself is excluded from the results."""
    place = {text: number for number, text in enumerate(among.texts)}
    partners: dict[str, list[int]] = {}
    for sample in samples:
        partners.setdefault(sample.source, []).append(place[sample.target])
    predictions = []
    for sample, row in zip(queries, (row for part in cosines for row in part), strict=True):
        own, itself = list(dict.fromkeys(partners[sample.source])), place.get(sample.source)
        if itself is not None and itself not in own:
            row[itself] = -np.inf
        level = row[own].max()
        rank = 1 + int((row >= level).sum()) - int((row[own] >= level).sum())
        top = int(row.argmax())
        extra = {"rank": rank, "cosine": float(level)}
        predictions.append(Prediction(among.texts[top], (float(row[top]),), extra=extra))
    return predictions


# -- search of the nearest texts


def build_index(model: ModelProtocol, texts: Sequence[str], on_progress: ProgressCallback | None = None) -> TextIndex:
    """Texts with their embeddings, for search."""
    if isinstance(texts, str) or not texts:
        raise RegardError("Search requires a non-empty list of texts.")
    distinct = list(dict.fromkeys(texts))
    vectors = embed_texts(model, distinct, on_progress).vectors
    place = {text: number for number, text in enumerate(distinct)}
    return TextIndex(texts, vectors if len(distinct) == len(texts) else vectors[[place[text] for text in texts]])


def search(model: ModelProtocol, queries: Sequence[str], index: TextIndex, top_k: int = TOP_K) -> list[Prediction]:
    """Nearest text of each query. The scores and `hits` contain the `top_k` nearest texts with cosines."""
    vectors, truncated = embed_texts(model, queries)
    return [
        _search_prediction(hits, {"truncated": True} if cut else {})
        for hits, cut in zip(index.search(vectors, top_k), truncated, strict=True)
    ]


MAX_COSINES = 1 << 24
"""Maximum number of cosines in memory."""


@dataclass(frozen=True, slots=True)
class SearchHit:
    value: str
    cosine: float
    index: int
    """index of the text"""


class TextIndex:
    """Texts with their embeddings. Among duplicates the first text is found."""

    def __init__(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        """`vectors` (N, D): embedding of each text."""
        self.texts = texts
        self.vectors = normalize(vectors)
        first: dict[str, int] = {}
        for place, text in enumerate(texts):
            first.setdefault(text, place)
        self.is_duplicate = np.array([first[text] != place for place, text in enumerate(texts)], dtype=bool)

    def search(self, queries: np.ndarray, top_k: int) -> list[list[SearchHit]]:
        """The `top_k` nearest texts of each query embedding (Q, D), nearest first."""
        if top_k < 1:
            raise RegardError(f"The number of texts to return (top_k) must be at least 1, got {top_k}.")
        most = min(top_k, int((~self.is_duplicate).sum()))
        found: list[list[SearchHit]] = []
        for cosines in self.iter_cosines(queries):
            cosines[:, self.is_duplicate] = -np.inf
            some = np.argpartition(-cosines, most - 1, axis=1)[:, :most]
            for row, places in zip(cosines, some, strict=True):
                order = places[np.lexsort((places, -row[places]))]
                found.append([SearchHit(self.texts[place], float(row[place]), int(place)) for place in order])
        return found

    def iter_cosines(self, queries: np.ndarray) -> Iterator[np.ndarray]:
        """(Q, N) cosines, in chunks of rows."""
        step = max(MAX_COSINES // max(len(self.texts), 1), 1)
        for start in range(0, len(queries), step):
            yield normalize(queries[start : start + step]) @ self.vectors.T


def normalize(vectors: np.ndarray) -> np.ndarray:
    """L2-normalized vectors; zero vectors are unchanged."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.maximum(lengths, np.finfo(vectors.dtype).tiny)
