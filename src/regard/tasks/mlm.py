"""Task `mlm`: masked language modeling and next-sentence prediction (NSP), the pretraining of encoders.

A row is `[CLS] text [SEP]`, or with `model.nsp` `[CLS] A [SEP] B [SEP]`, where B follows A in half of the rows and comes
from another document in the others. Rows depend on (seed, epoch), masked tokens on (seed, micro-batch); validation is
fixed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.batching.samplers import BatchSampler, BatchShape, LengthBucketed
from regard.data.batching.windows import (
    MaskedRows,
    PretrainingSampler,
    Segments,
    TokenMasker,
    segment_pairs,
    single_segments,
)
from regard.data.settings import DataSettings
from regard.data.store.token_store import RaggedRows
from regard.data.text.documents import DETOKENIZERS, Passage, iterate_texts, text_files
from regard.data.text.tables import SkippedRow
from regard.decode.settings import DecodeSettings
from regard.draw.text import markdown_table
from regard.errors import SettingError
from regard.nn.blocks.heads import PretrainingHead, mlm_head
from regard.nn.kernels.losses import cross_entropy
from regard.processors.padding import pack, pad
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.processors.tokenizer.vocabulary import BERT_MASK
from regard.tasks.act import add_act_cost
from regard.tasks.base import ENCODING_SETTINGS, TEXT_SETTINGS, Encoded, EvalResult, LossSum, LossWeights, Task
from regard.tasks.fill_mask import fill_masks, format_candidates, mask_token, text_token_mask
from regard.tasks.lm import APART, CONTINUES, OPENS, TORN
from regard.tasks.protocol import ModelProtocol
from regard.tasks.special_tokens import pad_id, with_template
from regard.tasks.text_heads import build_tokenizer, special_token_ids
from regard.types import IGNORE, Batch, BodyOutput, Prediction

BATCH_TOKENS = 16_384
"""Tokens per batch at evaluation."""

SHOWN, BEGINNING = 3, 120
"""Number of samples with predictions during validation, and number of their characters."""

NSP_NOT_MEASURED = "not measured, because the validation data is a single document"
"""Score of NSP if no other document can provide a negative B."""

MIN_LENGTH = 8
"""minimum of the maximum row length in tokens"""


@dataclass(frozen=True, eq=False)
class MaskingContext:
    """Maximum row length and token masking."""

    max_length: int
    masking: TokenMasker


class MaskedLM(Task):
    name = "mlm"
    description = "Masked language modeling (and next-sentence prediction): documents."
    columns = ("text",)
    unit = "passages"
    metric = "loss"
    lower_is_better = True
    sample_type = Passage
    fields = ("text", "joint", "document")
    count_fields = ("document",)
    default_model = "bert-mini"
    usage = '"The capital of [MASK] is Paris."'
    generates = False
    truncates = multiline = True
    min_valid_samples = 1  # a passage has many tokens
    settings_used = (
        *TEXT_SETTINGS,
        *ENCODING_SETTINGS,
        "data.mask_prob",
        "data.whole_word_mask",
        "data.detokenize",
        "train.label_smoothing",
    )

    def expand_entries(self, data: Sequence[str]) -> list[str]:
        """Text files, including all text files in folders."""
        return text_files(data)

    def iter_samples(
        self, data: Sequence[str], columns: Mapping[str, str] | None = None
    ) -> Iterator[Passage | SkippedRow]:
        return iterate_texts(data, columns)

    def split_key(self, sample: Passage) -> str:
        return sample.text

    def mark_gap(self, sample: Passage, removed: Passage) -> Passage:
        return replace(sample, after_gap=True)

    def fingerprint_texts(self, samples: Iterable[Passage]) -> Iterator[str]:
        for sample in samples:
            yield sample.text

    def encoding_key(self, data: DataSettings) -> tuple[Any, ...]:
        return (data.detokenize,)

    def train_tokenizer(self, texts: Iterable[str], data: DataSettings) -> TextTokenizer:
        return build_tokenizer(map(DETOKENIZERS[data.detokenize], texts), data)

    def check_settings(self, config: Any, tokens: int, data: DataSettings) -> None:
        name, longest = min((data.max_length, "data.max_length"), (config.max_length, "model.max_length"))[::-1]
        if longest > tokens:
            raise SettingError(
                f"train.batch_tokens={tokens} is smaller than the maximum row length ({name}={longest}). "
                f"Raise train.batch_tokens or lower {name}."
            )
        if longest < MIN_LENGTH:
            raise SettingError(f"{name} must be at least {MIN_LENGTH} for masked language modeling, got {longest}.")

    def adapt_config(self, config: Any) -> Any:
        """Only next-sentence prediction requires the pooler."""
        return replace(config, pooler=config.traits.nsp) if config.traits.optional_pooler else config

    def export_tokenizer(self, text: TextTokenizer, config: Any) -> TextTokenizer:
        return with_template(text, config)

    def fit_config(self, config: Any, processor: TextTokenizer) -> Any:
        return self.adapt_config(replace(config, vocab_size=processor.size, **special_token_ids(processor)))

    def head(self, config: Any, labels: Sequence[str]) -> nn.Module:
        return PretrainingHead(mlm_head(config), config.width, config.traits.nsp)

    def batch_context(
        self,
        processor: TextTokenizer,
        config: Any,
        max_length: int,
        data: DataSettings | None,
        labels: Sequence[str] = (),
    ) -> MaskingContext:
        data = data or DataSettings()
        starts = processor.starts_word if data.whole_word_mask else None
        hide = TokenMasker(config.mask_id, text_token_mask(processor, config), data.mask_prob, starts)
        return MaskingContext(min(max_length, data.max_length, config.max_length), hide)

    def encode(
        self,
        samples: Sequence[Passage],
        processor: TextTokenizer,
        config: Any,
        max_length: int,
        data: DataSettings | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:
        """Encode passages without special tokens and without a length limit."""
        clean = DETOKENIZERS["none" if data is None else data.detokenize]
        rows = processor.encode([clean(sample.text) for sample in samples])
        joints = [
            (APART if s.after_gap else OPENS) if s.starts_document else TORN if s.after_gap else CONTINUES
            for s in samples
        ]
        sides = {"text": _to_rows(rows), "joint": _to_rows([[joint] for joint in joints])}
        sides["document"] = _to_rows([[sample.document] for sample in samples])
        return Encoded(list(samples), sides, [], self.batch_context(processor, config, max_length, data))

    def sampler(self, encoded: Encoded, config: Any, tokens: int, seed: int, packed: bool) -> BatchSampler:
        longest, pairs = encoded.batch_context.max_length, config.traits.nsp
        return PretrainingSampler(
            document_parts(encoded), longest, num_special_tokens(config), max(tokens, longest), seed, packed, pairs
        )

    def collate(self, encoded: Encoded, rows: Any, config: Any, shape: BatchShape | None = None) -> Batch:
        """`rows` of the sampler, with the seed and the number of the micro-batch in columns 5 and 6."""
        random = np.random.default_rng(np.random.SeedSequence([*rows[0, 5:7].tolist(), 2]))
        hidden = encoded.batch_context.masking(build_rows(encoded, rows, config), random)
        return _build_batch(encoded.batch_context, hidden, rows, config, shape)

    def eval_batches(
        self, encoded: Encoded, config: Any, tokens: int, data: DataSettings | None = None
    ) -> Iterator[Batch]:
        """All rows with the same masked tokens in every evaluation, independent of the batch size."""
        random = np.random.default_rng(0)
        found, room = document_parts(encoded), encoded.batch_context.max_length - num_special_tokens(config)
        rows = (segment_pairs if config.traits.nsp else single_segments)(found[found[:, 1] > found[:, 0]], room, random)
        texts = build_rows(encoded, rows, config)
        hidden = encoded.batch_context.masking(texts, random) if texts else MaskedRows([], [], [])
        lengths = np.array([len(row) for row in texts], dtype=np.int64)
        for chosen in LengthBucketed(lengths, max(tokens, encoded.batch_context.max_length), seed=0).sequential():
            some = MaskedRows(*([side[i] for i in chosen] for side in hidden))
            yield _build_batch(encoded.batch_context, some, rows[chosen], config)

    def logits(self, model: ModelProtocol, batch: Batch) -> Tensor:
        """(B, L, V) token logits at each position."""
        return model.head.words(model.body(batch).sequence, model.body.tokens)

    def loss(self, model: ModelProtocol, batch: Batch, terms: LossWeights = LossWeights()) -> tuple[Tensor, Tensor]:  # noqa: B008
        """(sum, count) over masked tokens: MLM loss + average NSP loss × number of masked tokens. With one micro-batch per
        step this is the loss of the paper; with several, the NSP losses are weighted by the numbers of masked tokens."""
        assert batch.labels is not None
        states = model.body(batch)
        total, count = model.head.words.cross_entropy(
            labeled_states(states, batch), model.body.tokens, batch.labels, terms.smoothing
        )
        if model.head.has_nsp and batch.nsp_labels is not None:
            more, many = cross_entropy(model.head.follows(states.pooled), batch.nsp_labels)
            total = total + more * count / many.clamp(min=1)
        return add_act_cost(model, (total, count), states)

    def predict(
        self, model: ModelProtocol, inputs: Sequence[str], decode: DecodeSettings, first: int = 0
    ) -> list[Prediction]:
        """Predict every mask token of each text."""
        return fill_masks(model, inputs)

    def evaluate(
        self,
        model: ModelProtocol,
        encoded: Encoded,
        decode: DecodeSettings,
        data: DataSettings,
        sums: LossSum,
        max_samples: int | None = None,
    ) -> EvalResult:
        """Loss, perplexity and accuracy on masked tokens, and NSP accuracy, in percent."""
        measured = np.zeros(5)
        with torch.inference_mode():
            for batch in self.eval_batches(encoded, model.config, BATCH_TOKENS, data):
                measured += self._batch_scores(model, batch.to(model.device))
        loss, hits, words, right, many = measured.tolist()
        scores: dict[str, float | str] = {
            "mlm_loss": round(loss / max(words, 1), 4),
            "perplexity": round(_safe_exp(loss / max(words, 1)), 2),
            "accuracy": round(100 * hits / max(words, 1), 2),
        }
        if many or model.config.traits.nsp:
            scores["nsp_accuracy"] = round(100 * right / many, 2) if many else NSP_NOT_MEASURED
        clean = DETOKENIZERS[data.detokenize]
        shown = [_mask_words(clean(sample.text), model) for sample in encoded.samples[:SHOWN]]
        said = iter(fill_masks(model, [asked for asked, right in shown if right]))
        answers = [next(said) if right else Prediction(asked, extra={"masks": []}) for asked, right in shown]
        return scores, [
            replace(answer, extra={**answer.extra, "masked_text": asked, "references": right})
            for answer, (asked, right) in zip(answers, shown, strict=True)
        ]

    def _batch_scores(self, model: ModelProtocol, batch: Batch) -> list[float]:
        """Sum of the loss, correct predictions and number of masked tokens; correct predictions and number of text pairs."""
        assert batch.labels is not None
        states, labels = model.body(batch), batch.labels
        logits = model.head.words(labeled_states(states, batch), model.body.tokens)
        loss, count = cross_entropy(logits, labels)
        found = [loss, (logits.argmax(-1) == labels).sum(), count]
        if model.head.has_nsp and batch.nsp_labels is not None:
            said = model.head.follows(states.pooled).argmax(-1)
            found += [(said == batch.nsp_labels).sum(), (batch.nsp_labels != IGNORE).sum()]
        return [float(value) for value in found] + [0.0] * (5 - len(found))

    def format_scores(self, scores: Mapping[str, Any]) -> str:
        words = f"MLM perplexity {scores['perplexity']:8.2f}, accuracy {scores['accuracy']:5.2f} %"
        follows = scores.get("nsp_accuracy")
        if isinstance(follows, str):
            return f"{words}  NSP accuracy: {follows}"
        return words if follows is None else f"{words}  NSP accuracy {follows:5.2f} % (chance: 50 %)"

    def format_prediction(self, source: str, prediction: Prediction) -> str:
        """The text with the predicted words, and a table of candidates for each mask token."""
        if not prediction.extra["masks"]:
            return str(prediction.value)
        rows = [
            {"mask": number, "words": format_candidates(gap)}
            for number, gap in enumerate(prediction.extra["masks"], start=1)
        ]
        return f"{prediction.value}\n{markdown_table(rows)}"

    def example_row(self, sample: Passage, prediction: Prediction) -> dict[str, str]:
        words = [gap[0]["word"] for gap in prediction.extra["masks"]]
        return {
            "text": str(prediction.extra.get("masked_text", "")),
            "prediction": ", ".join(words),
            "reference": ", ".join(prediction.extra.get("references", ())),
        }

    def format_example(self, sample: Passage, prediction: Prediction) -> str:
        lines = [f"    {' '.join(str(prediction.extra['masked_text']).split())}\n"]
        for right, gap in zip(prediction.extra["references"], prediction.extra["masks"], strict=True):
            lines.append(f"    {right}: {format_candidates(gap)}\n")
        return "".join(lines)


def num_special_tokens(config: Any) -> int:
    """Number of special tokens per row."""
    return 2 + (config.traits.separators if config.traits.nsp else 0)


def document_parts(encoded: Encoded) -> Segments:
    """(start, end, document number) of each contiguous part of a document, which may lack the beginning."""
    text, joint, document = (encoded.fields[name] for name in ("text", "joint", "document"))
    assert isinstance(text, RaggedRows) and isinstance(joint, RaggedRows) and isinstance(document, RaggedRows)
    joints = np.asarray(joint.values)
    heads = np.flatnonzero(joints != CONTINUES)
    heads = heads if len(heads) and heads[0] == 0 else np.concatenate([[0], heads])
    number = np.asarray(document.values)[heads]
    return np.stack([text.offsets[heads], text.offsets[np.append(heads[1:], len(joints))], number], axis=1)


def build_rows(encoded: Encoded, rows: np.ndarray, config: Any) -> list[np.ndarray]:
    """Token ids of the rows with special tokens."""
    text = encoded.fields["text"]
    assert isinstance(text, RaggedRows)
    start, end = np.array([config.bos_id]), np.array([config.eos_id])
    middle = np.array([config.eos_id] * config.traits.separators)
    return [
        np.concatenate(
            [start, text.values[a:b], *((middle, text.values[c:d], end) if config.traits.nsp else (end,))]
        ).astype(np.int64)
        for a, b, c, d in rows[:, :4].tolist()
    ]


def _build_batch(
    how: MaskingContext, hidden: MaskedRows, rows: np.ndarray, config: Any, shape: BatchShape | None = None
) -> Batch:
    """Padded rows, or one packed row with the maximum number of label positions, because packed shapes are fixed."""
    right, lengths = torch.from_numpy(np.concatenate(hidden.labels)), [len(row) for row in hidden.inputs]
    types, follows = _nsp_fields(lengths, rows, config)
    if shape is None:
        x, mask = pad(hidden.inputs, pad_id(config))
        asked = _flat_positions(hidden.positions, x.shape[1] * np.arange(len(rows)))
        beside = None if types is None else pad(types, 0)[0]
        return Batch(x, mask, labels=right, label_positions=asked, token_types=beside, nsp_labels=follows)
    sizes = shape.row_lengths[0], shape.max_lengths[0], shape.num_documents
    x, offsets = pack(hidden.inputs, *sizes, pad_id(config))
    asked = _flat_positions(hidden.positions, np.cumsum(lengths) - lengths)
    rest = how.masking.max_masked(
        shape.row_lengths[0], shape.num_documents, shape.max_lengths[0], num_special_tokens(config)
    ) - len(asked)
    right, asked = F.pad(right, (0, rest), value=IGNORE), F.pad(asked, (0, rest))
    beside = None if types is None else pack(types, *sizes)[0]
    follows = None if follows is None else F.pad(follows, (0, shape.num_documents - len(rows)), value=IGNORE)
    return Batch(x, labels=right, label_positions=asked, token_types=beside, nsp_labels=follows, offsets=offsets)


def _nsp_fields(lengths: Sequence[int], rows: np.ndarray, config: Any) -> tuple[list[np.ndarray] | None, Tensor | None]:
    """Token types and NSP labels of rows with two texts."""
    if not config.traits.nsp:
        return None, None
    second = 1 + config.traits.separators + rows[:, 1] - rows[:, 0]
    types = [(np.arange(length) >= at).astype(np.int64) for length, at in zip(lengths, second, strict=True)]
    return types if config.traits.token_types > 1 else None, torch.from_numpy(rows[:, 4].copy())


def _flat_positions(places: Sequence[np.ndarray], starts: np.ndarray) -> Tensor:
    """Positions in the flattened batch, from positions in rows and the starts of the rows."""
    return torch.from_numpy(np.concatenate([at + first for at, first in zip(places, starts, strict=True)]))


def labeled_states(states: BodyOutput, batch: Batch) -> Tensor:
    """(M, D) hidden states at the label positions, or all hidden states."""
    if batch.label_positions is None:
        return states.sequence
    # index_select, because the backward pass of advanced indexing sorts the indices first
    return states.sequence.flatten(0, 1).index_select(0, batch.label_positions)


def _mask_words(text: str, model: ModelProtocol) -> tuple[str, tuple[str, ...]]:
    """Beginning of a text with some words masked, and the masked words. The choice is deterministic."""
    reader, gap = model.require_tokenizer(), mask_token(model.require_tokenizer())
    text = text if len(text) <= BEGINNING else text[:BEGINNING].rsplit(" ", 1)[0]
    ids, spans = reader.encode_offsets([text])[0]
    most = max(model.config.max_length // 2 - 1, 1)  # mask tokens may change the tokenization around them
    ids, spans = ids[:most], spans[:most]
    starts = np.append(reader.starts_word(ids), True)
    words = [
        place
        for place in np.flatnonzero(starts[:-1] & starts[1:]).tolist()
        if ids[place] not in reader.special_ids and any(letter.isalnum() for letter in text[slice(*spans[place])])
    ]
    if not words or gap in text or BERT_MASK in text:  # a mask token in the text itself
        return text, ()
    chosen = sorted(np.random.default_rng(0).permutation(words)[: max(round(0.15 * len(ids)), 1)].tolist())
    asked, at = "", 0
    for first, last in (spans[place] for place in chosen):
        asked, at = asked + text[at:first] + gap, last
    return asked + text[at : spans[-1][1]], tuple(text[slice(*spans[place])] for place in chosen)


def _to_rows(rows: Sequence[Sequence[int]]) -> RaggedRows:
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    values = np.concatenate([np.array(row, dtype=np.int32) for row in rows]) if len(rows) else np.zeros(0, np.int32)
    return RaggedRows(values, starts)


def _safe_exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
