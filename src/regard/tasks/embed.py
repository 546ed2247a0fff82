"""Objective `embed`: sentence embeddings with encoders, and search of the nearest texts.

Contrastive training on pairs of similar texts: each text must be nearest to its partner among the other texts of the
micro-batch, in both directions. `train.batch_tokens` thus determines the number of negatives."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from regard.data.batching.padding import pad, pad_or_pack
from regard.data.batching.samplers import BatchSampler, BatchShape, length_batches
from regard.data.text.samples import Pair
from regard.decode.settings import DecodeSettings
from regard.errors import InputError, InputTypeError, SettingError, WeightsError
from regard.nn.attention.masks import valid_mask
from regard.tasks import base
from regard.tasks.modality.text import pad_id
from regard.types import IGNORE, Batch, DecoderInputs, Prediction

SCALE = 20.0  # factor of the cosines before the softmax: a temperature of 0.05
BUDGET, LARGE = 4096, 65_536  # tokens per batch at inference: limited by the cache of a CPU, and on other devices
TOP_K = 5  # default number of search results

ProgressCallback = Callable[[int, int], None]  # receives the number of finished texts and of all texts


class PoolingOptions(base.OptionRules):
    """Pooling of a checkpoint, in files of sentence-transformers."""

    def load(self, options: base.HeadOptions, folder: Path, published: Any = None) -> base.HeadOptions:
        return replace(options, pooling=read_pooling(folder))

    def export(self, options: base.HeadOptions, config: Any) -> base.ExportedOptions:
        pooling = pooling_of(options)
        limit = min(pooling.max_length or config.max_length, config.max_length)
        return base.ExportedOptions(files=pooling_files(pooling, config.width), max_length=limit)


class Embed(base.Objective):
    metrics = ("mrr",)
    fields = ("first", "second")
    truncation = "at the end"
    rank_advice = "To find the most similar texts in a file, pass --search FILE."
    options = PoolingOptions()
    single_types = (Mapping,)
    settings = base.ENCODING_SETTINGS

    # -- batches

    def encode(self, samples: Sequence[Pair], config: Any, context: base.EncodingContext) -> base.Encoded:
        firsts, short = _encode_texts([sample.source for sample in samples], config, context)
        seconds, others = _encode_texts([sample.target for sample in samples], config, context)
        cut = [sample for sample, *either in zip(samples, short, others, strict=True) if any(either)]
        return base.Encoded(list(samples), {"first": firsts, "second": seconds}, cut, context)

    def sampler(self, encoded: base.Encoded, config: Any, tokens: int, seed: int, packed: bool) -> BatchSampler:
        return super().sampler(encoded, config, max(tokens, int(encoded.lengths().sum(1).max())), seed, packed)

    def collate(self, encoded: base.Encoded, rows: Any, config: Any, shape: BatchShape | None = None) -> Batch:
        """First texts as inputs, second texts as decoder inputs. `labels` (S, 2) are text ids, equal for equal texts."""
        rows = list(rows)
        firsts, seconds = ([encoded.fields[side][i] for i in rows] for side in self.fields)
        known: dict[bytes, int] = {}
        pairs = zip(firsts, seconds, strict=True)
        labels = torch.tensor([[known.setdefault(row.tobytes(), len(known)) for row in pair] for pair in pairs])
        x, mask, offsets = pad_or_pack(firsts, pad_id(config), shape)
        y, target_mask, target_offsets = pad_or_pack(seconds, pad_id(config), shape, side=-1)
        if shape is not None:
            labels = F.pad(labels, (0, 0, 0, shape.num_documents - len(labels)), value=IGNORE)
        decoder = DecoderInputs(y, target_mask, target_offsets)
        return Batch(x, mask, labels=labels, packing=offsets, decoder=decoder)

    # -- training

    def loss(self, model: base.Model, batch: Batch, terms: base.LossWeights = base.NO_WEIGHTS) -> base.Loss:
        """(sum, count) over pairs of the average of two cross-entropies: second texts given the first, and first texts given
        the second. Equal texts are not negatives of each other."""
        if terms.smoothing or terms.auxiliary:
            raise SettingError(
                "Task 'embed' does not use train.label_smoothing or train.lm_loss_weight. Set both to 0."
            )
        sides: tuple[Batch | DecoderInputs, ...] = (batch, batch.require_decoder())
        rows = [_with_global_token(Batch(x.inputs, x.mask, packing=x.packing), model.config) for x in sides]
        states = [model.body(side) for side in rows]
        unit = replace(pooling_of(model.spec.options), normalize=True)
        firsts, seconds = (unit(one.sequence, side) for one, side in zip(states, rows, strict=True))
        first_id, second_id = batch.require_labels().T
        asked = first_id != IGNORE
        # pairs with a common text and padding are not negatives
        same = (first_id[:, None] == first_id) | (second_id[:, None] == second_id) | (first_id[:, None] == second_id)
        excluded = (same | ~(asked[:, None] & asked)) & ~torch.eye(len(asked), dtype=torch.bool, device=asked.device)
        with torch.autocast(firsts.device.type, enabled=False):
            alike = (SCALE * firsts @ seconds.T).masked_fill(excluded, -torch.inf)
        losses = (alike.logsumexp(1) + alike.logsumexp(0)) / 2 - alike.diagonal()
        total = losses.sum()  # padding rows have no negatives: their loss is 0
        if model.body.has_pooler and states[0].pooled is not None:
            # Distributed training requires a gradient for every parameter, including the unused pooler.
            total = total + 0.0 * states[0].pooled.sum()
        return base.add_act_cost(model, (total, asked.sum()), *states)

    def logits(self, model: base.Model, batch: Batch) -> Tensor:
        """(B, D) embeddings."""
        batch = _with_global_token(batch, model.config)
        return pooling_of(model.spec.options)(model.body(batch).sequence, batch)

    # -- predictions

    def predict(self, model: base.Model, inputs: list[Any], decode: DecodeSettings, first: int = 0) -> list[Prediction]:
        """Embedding of a text; for {"query": text, "corpus": texts, "top_k": 5} the nearest texts, as in `search`.

        The embeddings of a corpus are computed once for all its queries."""
        for item in inputs:
            if isinstance(item, Mapping) and not {"query", "corpus"} <= item.keys() <= {"query", "corpus", "top_k"}:
                raise InputTypeError(
                    'Expected a text or {"query": "…", "corpus": ["…", "…"]} with an optional "top_k": 5.'
                )
        texts = [item["query"] if isinstance(item, Mapping) else item for item in inputs]
        vectors, truncated = embed_texts(model, texts)
        indices: dict[int, TextIndex] = {}
        predictions = []
        for item, vector in zip(inputs, vectors, strict=True):
            if not isinstance(item, Mapping):
                predictions.append(Prediction(vector.tolist()))
                continue
            corpus = item["corpus"]
            if id(corpus) not in indices:
                indices[id(corpus)] = build_index(model, corpus)
            predictions += indices[id(corpus)].search(vector[None], item.get("top_k", TOP_K))
        return _mark_truncated(predictions, truncated)

    # -- metrics

    def evaluate(self, model: base.Model, encoded: base.Encoded, spec: base.EvalSpec) -> base.EvalResult:
        """Percentage of pairs whose second text is nearest to the first among all second texts (accuracy), and mean
        reciprocal rank within the first ten (MRR)."""
        samples = encoded.samples
        targets: dict[str, int] = {}
        for number, sample in enumerate(samples):
            targets.setdefault(sample.target, number)
        place = {text: number for number, text in enumerate(targets)}
        partners: dict[str, list[int]] = {}
        for sample in samples:
            partners.setdefault(sample.source, []).append(place[sample.target])
        seconds = encoded.fields["second"]
        among = TextIndex(list(targets), _embed_rows(model, [seconds[number] for number in targets.values()]))
        queries = _embed_rows(model, list(encoded.fields["first"])[: spec.max_samples])
        predictions = []
        for sample, row in zip(samples[: len(queries)], chain.from_iterable(among.iter_cosines(queries)), strict=True):
            own, itself = list(dict.fromkeys(partners[sample.source])), place.get(sample.source)
            if itself is not None and itself not in own:  # the first text itself is not a result
                row[itself] = -np.inf
            level = row[own].max()
            # other texts with the same cosine rank before the partner
            rank = 1 + int((row >= level).sum()) - int((row[own] >= level).sum())
            top = int(row.argmax())
            extra = {"rank": rank, "cosine": float(level)}
            predictions.append(Prediction(among.texts[top], (float(row[top]),), extra=extra))
        ranks = np.array([one.extra["rank"] for one in predictions])
        scores: base.Scores = {
            "mrr": round(100 * float(np.where(ranks <= 10, 1 / ranks, 0.0).mean()), 2),
            "accuracy": round(100 * float((ranks == 1).mean()), 2),
            "samples": len(predictions),
        }
        return scores, predictions

    def format_prediction(self, source: Any, prediction: Prediction) -> str:
        if "hits" in prediction.extra:
            return "\n".join(f"{hit['cosine']:7.4f}  {hit['value']}" for hit in prediction.extra["hits"])
        return " ".join(f"{number:.6f}" for number in prediction.value)

    def table_columns(self, prediction: Prediction) -> dict[str, Any]:
        """The embedding, or the nearest texts with their cosines, and their lines in the searched file."""
        columns: dict[str, Any] = {"prediction": prediction.value}
        for number, hit in enumerate(prediction.extra.get("hits", ()), 1):
            end = f"_{number}" if number > 1 else ""
            found = {"prediction": hit["value"], "score": hit["cosine"], "line": hit["line"]}
            columns |= {f"{name}{end}": value for name, value in found.items()}
        return columns

    def example_row(self, sample: Pair, prediction: Prediction) -> dict[str, str]:
        rank = str(prediction.extra["rank"])
        return {"source": sample.source, "prediction": str(prediction.value), "reference": sample.target, "rank": rank}


def pooling_of(options: base.HeadOptions) -> Pooling:
    """Pooling of a model; the default of new models."""
    pooling: Pooling = options.pooling or Pooling()
    return pooling


# -- embeddings


def embed_texts(
    model: base.Model, texts: Sequence[str], on_progress: ProgressCallback | None = None
) -> tuple[np.ndarray, list[bool]]:
    """(N, D) embeddings of texts, and True for truncated texts."""
    for item in texts:
        base.require_text(item)
    context = base.EncodingContext(base.require_tokenizer(model), options=model.spec.options)
    rows, truncated = _encode_texts(texts, model.config, context)
    return _embed_rows(model, rows, on_progress), truncated


def _encode_texts(
    texts: Sequence[str], config: Any, context: base.EncodingContext
) -> tuple[list[np.ndarray], list[bool]]:
    """Token ids with start and end token. Long texts are truncated at the end, as in sentence-transformers."""
    pooling = pooling_of(context.options)
    limit = min(context.max_length, config.max_length, pooling.max_length or config.max_length)
    cleaned = [item.lower() if pooling.lowercase else item for item in map(str.strip, texts)]
    ids, room = context.processor.encode(cleaned), max(limit - 2, 1)
    rows = base.int_rows([[config.bos_id, *row[:room], config.eos_id] for row in ids])
    return rows, [len(row) > room for row in ids]


def _embed_rows(model: base.Model, rows: base.FieldRows, on_progress: ProgressCallback | None = None) -> np.ndarray:
    """(N, D) embeddings, in batches of similar lengths."""
    wide = np.float64 if next(iter(model.body.parameters())).dtype == torch.float64 else np.float32
    table, done = np.zeros((len(rows), model.config.width), dtype=wide), 0
    with torch.inference_mode():
        for some in length_batches(base.row_lengths(rows), BUDGET if model.device.type == "cpu" else LARGE):
            x, mask = pad([rows[i] for i in some], pad_id(model.config))
            table[some] = model.objective.logits(model, Batch(x, mask).to(model.device)).cpu().numpy()
            done += len(some)
            if on_progress is not None:
                on_progress(done, len(rows))
    return table


def _with_global_token(batch: Batch, config: Any) -> Batch:
    """Batch with global attention for the first token, if the model has local attention."""
    if not config.traits.global_tokens or batch.text.global_tokens is not None:
        return batch
    marked = torch.zeros_like(batch.inputs, dtype=torch.bool)
    if batch.packing is None:
        marked[:, 0] = True
    else:
        marked[0, batch.packing.starts[:-1].clamp(max=marked.shape[1] - 1)] = True
    return replace(batch, text=replace(batch.text, global_tokens=marked))


# -- search of the nearest texts


def build_index(model: base.Model, texts: Sequence[str], on_progress: ProgressCallback | None = None) -> TextIndex:
    """Texts with their embeddings, for search."""
    if not isinstance(texts, Sequence) or isinstance(texts, str) or not texts:
        raise InputTypeError("Search requires a non-empty list of texts.")
    distinct = list(dict.fromkeys(texts))
    vectors = embed_texts(model, distinct, on_progress)[0]
    place = {text: number for number, text in enumerate(distinct)}
    return TextIndex(texts, vectors if len(distinct) == len(texts) else vectors[[place[text] for text in texts]])


def search(model: base.Model, queries: Sequence[str], index: TextIndex, top_k: int = TOP_K) -> list[Prediction]:
    """Nearest text of each query. The scores and `hits` contain the `top_k` nearest texts with cosines."""
    vectors, truncated = embed_texts(model, queries)
    return _mark_truncated(index.search(vectors, top_k), truncated)


def _mark_truncated(predictions: list[Prediction], truncated: Sequence[bool]) -> list[Prediction]:
    for one, cut in zip(predictions, truncated, strict=True):
        one.extra.update({"truncated": True} if cut else {})
    return predictions


MAX_COSINES = 1 << 24  # maximum number of cosines in memory


class TextIndex:
    """Texts with their embeddings. Among duplicates the first text is found."""

    def __init__(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        """`vectors` (N, D): embedding of each text."""
        self.texts = texts
        self.vectors = normalize(vectors)
        first = {text: place for place, text in reversed(list(enumerate(texts)))}
        self.is_duplicate = np.array([first[text] != place for place, text in enumerate(texts)], dtype=bool)

    def search(self, queries: np.ndarray, top_k: int) -> list[Prediction]:
        """Nearest text of each query embedding (Q, D). `extra["hits"]` has the `top_k` nearest texts, nearest first."""
        if not isinstance(top_k, int) or top_k < 1:
            raise InputError(f"The number of texts to return (top_k) must be at least 1, got {top_k}.")
        most = min(top_k, int((~self.is_duplicate).sum()))
        found = []
        for cosines in self.iter_cosines(queries):
            cosines[:, self.is_duplicate] = -np.inf
            some = np.argpartition(-cosines, most - 1, axis=1)[:, :most]
            for row, places in zip(cosines, some, strict=True):
                order = places[np.lexsort((places, -row[places]))]
                hits = [{"value": self.texts[i], "cosine": float(row[i]), "index": int(i)} for i in order]
                found.append(Prediction(hits[0]["value"], tuple(row[order].tolist()), extra={"hits": hits}))
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


# -- pooling of hidden states to an embedding, and the configuration files of sentence-transformers

Mode = Literal["mean", "cls", "max", "mean_sqrt_len_tokens"]

MODULES, READS, SAID = "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"
POOLING, NORMALIZE = "1_Pooling", "2_Normalize"

MODE_FLAGS: dict[str, str] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Older keys for the values of `pooling_mode`."""


@dataclass(frozen=True)
class Pooling:
    mode: Mode = "mean"  # mean, hidden state of the first token, maximum per dimension, or sum / √length
    normalize: bool = True  # true for L2 normalization
    max_length: int | None = None  # maximum tokens per text including special tokens; None: limit of the model
    lowercase: bool = False  # True if texts are lowercased

    def __call__(self, states: Float[Tensor, "B L D"], batch: Batch) -> Float[Tensor, "S D"]:
        """Embedding of each row, or of each document in a packed row, in float32 or float64."""
        states = states if states.dtype == torch.float64 else states.float()
        vectors = self._pool_rows(states, batch) if batch.packing is None else self._pool_documents(states[0], batch)
        return F.normalize(vectors, dim=-1) if self.normalize else vectors

    def _pool_rows(self, states: Tensor, batch: Batch) -> Tensor:
        if self.mode == "cls":
            return states[:, 0]
        if batch.mask is None:
            return states.amax(1) if self.mode == "max" else states.sum(1) / self._divisor(states.shape[1])
        real = valid_mask(batch.mask, states.shape[1])[..., None]
        if self.mode == "max":
            return states.masked_fill(~real, -torch.inf).amax(1)
        return (states * real).sum(1) / self._divisor(real.sum(1).clamp(min=1).to(states.dtype))

    def _pool_documents(self, states: Tensor, batch: Batch) -> Tensor:
        """Embeddings of all documents. The values for empty documents are not used."""
        assert batch.packing is not None
        starts, (L, D) = batch.packing.starts, states.shape
        if self.mode == "cls":
            return states[starts[:-1].clamp(max=L - 1)]
        document = batch.packing.document_ids(torch.arange(L, device=states.device)[None])[0]
        vectors = states.new_zeros(len(starts) - 1, D)
        if self.mode == "max":
            return vectors.scatter_reduce(0, document[:, None].expand(L, D), states, "amax", include_self=False)
        lengths = starts.diff().clamp(min=1).to(states.dtype)[:, None]
        return vectors.index_add(0, document, states) / self._divisor(lengths)

    def _divisor(self, length: Any) -> Any:
        return length if self.mode == "mean" else length**0.5


# -- configuration files


def read_pooling(folder: Path) -> Pooling:
    """Pooling from the files of a checkpoint, or the default. Unsupported modules are an error."""
    if not (folder / MODULES).exists():
        return Pooling()
    modules = _read_json(folder / MODULES, list)
    kinds = [str(module.get("type", "")).rpartition(".")[2] if isinstance(module, dict) else "?" for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise WeightsError(
            f"{folder / MODULES}: the modules {', '.join(kinds)} are not supported. Supported: Transformer, Pooling and an "
            "optional Normalize. Remove the file to use mean pooling with L2 normalization."
        )
    path = folder / str(modules[1].get("path") or POOLING) / "config.json"
    reads = _read_json(folder / READS, dict) if (folder / READS).exists() else {}
    said = _read_json(folder / SAID, dict) if (folder / SAID).exists() else {}
    if said.get("default_prompt_name"):
        raise WeightsError(
            f"{folder / SAID}: default_prompt_name='{said['default_prompt_name']}' is not supported. Remove "
            "default_prompt_name and add the prompt to the texts."
        )
    longest = reads.get("max_seq_length")
    if longest is not None and (not isinstance(longest, int) or longest < 3):
        raise WeightsError(f"{folder / READS}: max_seq_length must be an integer of at least 3, got {longest!r}.")
    flags = _read_json(path, dict)
    named = flags.get("pooling_mode", [mode for flag, mode in MODE_FLAGS.items() if flags.get(flag)] or ["mean"])
    modes = [named] if isinstance(named, str) else list(named)
    if len(modes) != 1 or modes[0] not in get_args(Mode):
        raise WeightsError(
            f"{path}: pooling by {' and '.join(map(str, modes))} is not supported. Supported: {', '.join(get_args(Mode))}."
        )
    return Pooling(cast(Mode, modes[0]), len(kinds) > 2, longest, bool(reads.get("do_lower_case")))


def pooling_files(pooling: Pooling, width: int) -> dict[str, Any]:
    """JSON files that `read_pooling` restores the pooling from, {file name: content}."""
    kinds = [("Transformer", ""), ("Pooling", POOLING), ("Normalize", NORMALIZE)][: 3 if pooling.normalize else 2]
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, path) in enumerate(kinds)
    ]
    flags = {name: mode == pooling.mode for name, mode in MODE_FLAGS.items()}
    return {
        MODULES: modules,
        f"{POOLING}/config.json": {"word_embedding_dimension": width, **flags},
        READS: {"max_seq_length": pooling.max_length, "do_lower_case": pooling.lowercase},
    }


def _read_json(path: Path, kind: type) -> Any:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path}: cannot be read ({error}).") from error
    if not isinstance(found, kind):
        raise WeightsError(f"{path}: expected a JSON {'list' if kind is list else 'object'}.")
    return found
