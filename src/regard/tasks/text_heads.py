"""What classify and choose share: one new matrix on one state for a whole text, or for two.

A sample is read in one or more ways, each a row of tokens by itself: a text, two texts, a pair in both orders, or a context
with each of its choices. What is learnt of a way is the body's summary of it: of an encoder that of the first token, of a
decoder the state at its last token, as GPT-1 was fine-tuned.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.batching.samplers import BatchSampler, BatchShape, LengthBucketed, PackedSampler
from regard.data.settings import DataSettings
from regard.errors import DataError, RegardError, SettingError
from regard.nn.blocks.heads import ClassifierHead
from regard.processors.padding import pack, pad
from regard.processors.tokenizer.tokenizer import END_OF_TEXT, TextTokenizer
from regard.tasks.act import add_act_cost
from regard.tasks.base import Encoded, FieldRows, LossWeights, Task, row_lengths
from regard.tasks.protocol import ModelProtocol
from regard.tasks.special_tokens import (
    DELIMITER,
    EXTRACT,
    SPECIAL_ID_FIELDS,
    SPECIAL_TOKENS,
    START,
    TokenSequence,
    as_batch_fields,
    is_encoder,
    pad_id,
    token_features,
    with_template,
)
from regard.types import IGNORE, Batch, BodyOutput

LABEL_PREFIX = "\0"
"""Stands before a class among the texts of a sample: data is known again by it, and no tokenizer is made of it."""

BATCH_TOKENS = 16_384
"""Tokens that are looked at together when samples are answered."""


@dataclass(frozen=True)
class SequenceOutput:
    """What the body made of a batch: S samples in up to K ways each."""

    batch: Batch
    """the ways as rows (S·K, L), or one packed row"""
    sequence: Tensor
    """(S·K, L, D) all states"""
    lengths: Int[Tensor, "S K"]
    """of the ways; 0 where a sample has fewer"""
    pooled: Float[Tensor, "S K D"]
    """the summary of each way"""
    body_output: BodyOutput
    """what the body itself said"""


def run_body(body: Any, batch: Batch) -> SequenceOutput:
    """`batch.x` is (S, K, L) with lengths (S, K) as its mask, (B, L) of single ways, or one packed row of S·K ways."""
    if batch.offsets is not None:
        assert batch.labels is not None
        starts, rows = batch.offsets.starts, replace(batch, labels=None)
        found: BodyOutput = body(rows)
        lengths = starts.diff().view(len(batch.labels), -1)
        last = found.sequence[0, (starts[1:] - 1).clamp(min=0)] if found.pooled is None else found.pooled
        return SequenceOutput(rows, found.sequence, lengths, last.view(*lengths.shape, -1), found)
    x = batch.inputs if batch.inputs.ndim == 3 else batch.inputs[:, None]
    S, K, L = x.shape
    if batch.mask is None:
        lengths = x.new_full((S, K), L)
    else:
        lengths = (batch.mask.sum(-1) if batch.mask.dtype == torch.bool else batch.mask).view(S, K)
    tables: dict[str, Any] = {name: _flatten(getattr(batch, name), L) for name in ("token_types", "global_tokens")}
    rows = Batch(x.flatten(0, 1), lengths.flatten(), max_global_tokens=batch.max_global_tokens, **tables)
    found = body(rows)
    if found.pooled is not None:
        return SequenceOutput(rows, found.sequence, lengths, found.pooled.view(S, K, -1), found)
    last = (lengths.flatten() - 1).clamp(min=0)
    at = last[:, None, None].expand(-1, 1, found.sequence.shape[-1])
    return SequenceOutput(rows, found.sequence, lengths, found.sequence.gather(1, at).view(S, K, -1), found)


def _flatten(table: Tensor | None, length: int) -> Tensor | None:
    return None if table is None else table.reshape(-1, length)


def auxiliary_lm_loss(body: Any, output: SequenceOutput, labeled: Tensor) -> Tensor:
    """The language-model loss of the samples that are `asked` (S,), summed over them: of each the mean over its ways, of a
    way the mean over its own tokens but the first. So a long text weighs as much as a short one."""
    x, K = output.batch.inputs, output.lengths.shape[1]
    ways = (output.lengths > 0).sum(1, keepdim=True).clamp(min=1)
    wide = torch.float64 if output.pooled.dtype == torch.float64 else torch.float32
    shares = labeled[:, None].to(wide) / (ways * (output.lengths - 1).clamp(min=1))  # of each token of a way
    shares = torch.where(output.lengths > 1, shares, 0.0).flatten()
    at = torch.arange(x.shape[1], device=x.device)
    if output.batch.offsets is None:
        weights = torch.where(at < output.lengths.view(-1, 1) - 1, shares[:, None], 0.0)
    else:
        way = output.batch.offsets.document_ids(at[None])[0].clamp(0, K * len(labeled) - 1)
        inside = at + 1 < output.batch.offsets.starts[way + 1]  # the last token of a way says nothing of the next way
        weights = torch.where(inside, shares[way], 0.0)[None]
    logits = body.to_logits(output.sequence).to(wide)
    losses = F.cross_entropy(logits.flatten(0, 1), x.roll(-1, 1).flatten(), reduction="none")
    return (losses * weights.flatten()).sum()


def build_head(name: str, config: Any, outputs: int) -> ClassifierHead:
    """The head that tells `outputs` things of a summary: for decoders one matrix without a bias, as GPT-1's authors have it;
    encoders without a layer of their own for summaries have it there."""
    if not is_encoder(config):
        return ClassifierHead(name, config.width, outputs, config.dropout, bias=False)
    inner = getattr(config, "head_activation", None)
    return ClassifierHead(name, config.width, outputs, config.head_dropout, activation=inner)


def missing_bias_names(head: nn.Module) -> list[str]:
    """Where the bias of a head would be that has none: some that were published do."""
    return [f"{name}.bias" for name, part in head.named_modules() if isinstance(part, nn.Linear) and part.bias is None]


def add_bias(head: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Make room for the bias that these tensors of a head have."""
    for name, part in head.named_modules():
        if isinstance(part, nn.Linear) and part.bias is None and f"{name}.bias" in tensors:
            part.bias = nn.Parameter(torch.zeros_like(part.weight[:, 0]))


class SequenceHeadTask(Task):
    """A task with a head. Its rows of ids: all ways of a sample one after another, their lengths, and the right class."""

    fields = ("text", "ways", "second", "label")
    count_fields = ("ways", "second", "label")
    metric = "accuracy"
    default_model = "gpt2-mini"
    generates, truncates = False, True

    def target_text(self, sample: Any) -> str:
        """The right answer, as a text by which data is known again."""
        raise NotImplementedError

    def sample_texts(self, sample: Any) -> Iterable[str]:
        raise NotImplementedError

    def fingerprint_texts(self, samples: Iterable[Any]) -> Iterator[str]:
        for sample in samples:
            yield from self.sample_texts(sample)
            yield f"{LABEL_PREFIX}{self.target_text(sample)}"

    def train_tokenizer(self, texts: Iterable[str], data: DataSettings) -> TextTokenizer:
        texts = (text for text in texts if not text.startswith(LABEL_PREFIX))
        return build_tokenizer(texts, data)

    def adapt_config(self, config: Any) -> Any:
        """A summary needs one more layer: the body's own, or one in the head."""
        return replace(config, pooler=not hasattr(config, "head_activation")) if hasattr(config, "pooler") else config

    def export_tokenizer(self, text: TextTokenizer, config: Any) -> TextTokenizer:
        """Others find the marks around a text by themselves: it would be classified otherwise without them."""
        if is_encoder(config):
            return with_template(text, config)
        if any(text.token_to_id(mark) is None for mark in SPECIAL_TOKENS):
            return text
        return text.with_post_processor(f"{START} $A {EXTRACT}", f"{START} $A {DELIMITER} $B {EXTRACT}", SPECIAL_TOKENS)

    def add_special_tokens(self, text: TextTokenizer, config: Any) -> TextTokenizer:
        return text if is_encoder(config) else text.with_special_tokens(SPECIAL_TOKENS)

    def fit_config(self, config: Any, processor: TextTokenizer) -> Any:
        if is_encoder(config):
            return replace(config, vocab_size=processor.size, **special_token_ids(processor))
        end = processor.token_to_id(END_OF_TEXT)
        return replace(config, vocab_size=processor.size, **({} if end is None else {"eos_id": end}))

    def build_encoded(
        self, samples: Sequence[Any], sequences: Sequence[Sequence[TokenSequence]], labels: Any
    ) -> Encoded:
        """`right` is the number of each sample's class, or the numbers that say its classes."""
        sides: dict[str, FieldRows] = {
            "text": [np.concatenate([np.array(way.ids, dtype=np.int32) for way in item]) for item in sequences],
            "ways": [np.array([len(way.ids) for way in item], dtype=np.int32) for item in sequences],
            "second": [np.array([way.second_start for way in item], dtype=np.int32) for item in sequences],
            "label": [np.atleast_1d(np.array(number, dtype=np.int32)) for number in labels],
        }
        cut = [sample for sample, item in zip(samples, sequences, strict=True) if any(way.truncated for way in item)]
        return Encoded(list(samples), sides, cut)

    def lengths(self, encoded: Encoded) -> np.ndarray:
        """(N, 1): the ways of a sample are padded to the longest of them."""
        text, ways = encoded.fields["text"], encoded.fields["ways"]
        most = (
            row_lengths(text) if max_sequences(encoded) == 1 else np.array([len(way) * int(way.max()) for way in ways])
        )
        return most[:, None]

    def sampler(self, encoded: Encoded, config: Any, tokens: int, seed: int, packed: bool) -> BatchSampler:
        lengths, most = self.lengths(encoded), max_sequences(encoded)
        if not packed:
            return LengthBucketed(lengths, max(tokens, int(lengths.max())), seed)
        sums = row_lengths(encoded.fields["text"])
        made = PackedSampler(sums, max(tokens, int(sums.max())), seed)
        documents = made.shape.num_documents + (most - 1) * made.max_documents
        made.shape = replace(made.shape, num_documents=-(-documents // most) * most)
        return made

    def collate(self, encoded: Encoded, rows: Iterable[int], config: Any, shape: BatchShape | None = None) -> Batch:
        rows = list(rows)
        text, ways = encoded.fields["text"], encoded.fields["ways"]
        parts = [np.split(text[i], np.cumsum(ways[i])[:-1].astype(np.int64)) for i in rows]
        labels = label_tensor([encoded.fields["label"][i] for i in rows])
        most = max_sequences(encoded) if shape is not None else max(map(len, parts))
        none = np.zeros(0, dtype=np.int32)
        flat = [way for item in parts for way in (*item, *[none] * (most - len(item)))]
        seconds = [second for i in rows for second in _pad_zeros(encoded.fields["second"][i], most)]
        marks = token_features(flat, seconds, [1] * len(flat), config)  # the first token is asked: it must see all
        if shape is not None:
            sizes = shape.row_lengths[0], shape.max_lengths[0], shape.num_documents
            x, offsets = pack(flat, *sizes, pad_id(config))
            rest = shape.num_documents // most - len(labels)
            labels = torch.cat([labels, labels.new_full((rest, *labels.shape[1:]), IGNORE)])
            tables = {name: pack(table, *sizes)[0] for name, table in marks.items()}
            return Batch(
                x, labels=labels, offsets=offsets, max_global_tokens=shape.num_documents, **as_batch_fields(tables)
            )
        x, lengths = pad(flat, pad_id(config))
        lengths = torch.full((len(flat),), x.shape[1]) if lengths is None else lengths
        tables = {name: pad(table, 0)[0].view(len(rows), most, -1) for name, table in marks.items()}
        x, lengths = x.view(len(rows), most, -1), lengths.view(len(rows), most)
        return Batch(x, lengths, labels=labels, max_global_tokens=1, **as_batch_fields(tables))

    def sample_logits(self, model: ModelProtocol, output: SequenceOutput) -> Tensor:
        """The logits of each sample, (S, classes)."""
        raise NotImplementedError

    def sample_loss(
        self, logits: Tensor, output: SequenceOutput, labels: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def logits(self, model: ModelProtocol, batch: Batch) -> Tensor:
        return self.sample_logits(model, run_body(model.body, batch))

    def loss(self, model: ModelProtocol, batch: Batch, terms: LossWeights = LossWeights()) -> tuple[Tensor, Tensor]:  # noqa: B008
        """The sum over samples of cross-entropy + auxiliary x language-model loss, and how many samples there are."""
        assert batch.labels is not None
        found = run_body(model.body, batch)
        total, count = self.sample_loss(self.sample_logits(model, found), found, batch.labels, terms.smoothing)
        if terms.auxiliary:
            if is_encoder(model.config):
                raise SettingError(
                    "train.lm_loss_weight requires a decoder, because encoders do not predict the next token. "
                    "Set train.lm_loss_weight=0."
                )
            asked = batch.labels.view(len(batch.labels), -1)[:, 0] != IGNORE
            total = total + terms.auxiliary * auxiliary_lm_loss(model.body, found, asked).to(total.dtype)
        return add_act_cost(model, (total, count), found.body_output)

    def predict_probabilities(self, model: ModelProtocol, encoded: Encoded) -> list[np.ndarray]:
        """The probability of each class, for each sample."""
        found: list[np.ndarray] = [np.zeros(0)] * len(encoded)
        if not len(encoded):
            return found
        lengths = self.lengths(encoded)
        plan = LengthBucketed(lengths, max(BATCH_TOKENS, int(lengths.max())), seed=0)
        with torch.inference_mode():
            for rows in plan.sequential():
                batch = self.collate(encoded, rows, model.config).to(model.device)
                chances = self.probabilities(model, self.logits(model, batch).double()).cpu().numpy()
                for row, values in zip(rows.tolist(), chances, strict=True):
                    found[row] = values[: len(encoded.fields["ways"][row])] if self.labels_are_sequences else values
        return found

    def probabilities(self, model: ModelProtocol, logits: Tensor) -> Tensor:
        """The probability of each class; they compete."""
        return logits.softmax(-1)

    labels_are_sequences = False
    """whether the classes are the ways themselves"""

    def require_head(self, model: ModelProtocol) -> nn.Module:
        head: nn.Module | None = model.head
        if head is None:
            raise RegardError(
                f"{model.spec.source or 'This model'} has no head for task '{self.name}'. Fine-tune the model first: "
                f"regard train {self.name} --data FILE --model {model.spec.source or 'FOLDER'} --out RUN"
            )
        return head


def build_tokenizer(texts: Iterable[str], data: DataSettings) -> TextTokenizer:
    """The tokenizer that data.tokenizer_type asks for."""
    if data.tokenizer_type == "char":
        return TextTokenizer.from_characters(texts)
    if data.tokenizer_type == "wordpiece":
        return TextTokenizer.train_wordpiece(texts, data.vocab_size)
    return TextTokenizer.train_lm_bpe(texts, data.vocab_size)


def special_token_ids(text: TextTokenizer) -> dict[str, int]:
    """The special tokens that an encoder cannot do without; a tokenizer that lacks one is refused."""
    found = {name: text.special_id(role) for name, role in SPECIAL_ID_FIELDS.items()}
    if missing := [SPECIAL_ID_FIELDS[name] for name, number in found.items() if number is None]:
        raise DataError(
            f"The tokenizer lacks special tokens that an encoder requires: {', '.join(missing)}.",
            advice="Remove data.tokenizer, or set data.tokenizer_type=wordpiece, to train a tokenizer with these tokens.",
        )
    return {name: number for name, number in found.items() if number is not None}


def _pad_zeros(numbers: np.ndarray, size: int) -> list[int]:
    """As many numbers as there are ways at most."""
    return [*numbers.tolist(), *[0] * (size - len(numbers))]


def max_sequences(encoded: Encoded) -> int:
    return int(row_lengths(encoded.fields["ways"]).max(initial=1))


def label_tensor(rows: Sequence[np.ndarray]) -> Tensor:
    """(S,) the class of each sample; where a row is `[0, C, …]` (S, C): 1 where it has a label, and 0 where it has not."""
    if len(rows[0]) == 1:
        return torch.tensor([int(row[0]) for row in rows])
    found = torch.zeros(len(rows), int(rows[0][1]), dtype=torch.long)
    for number, row in enumerate(rows):
        found[number, torch.from_numpy(row[2:].astype(np.int64))] = 1
    return found


def first_samples(encoded: Encoded, max_samples: int | None) -> Encoded:
    """The first so many samples."""
    sides: dict[str, FieldRows] = {name: list(side)[:max_samples] for name, side in encoded.fields.items()}
    return Encoded(encoded.samples[:max_samples], sides, encoded.too_long)


def label_ids(samples: Sequence[Any], names: Sequence[str], labels: Sequence[str]) -> list[int]:
    """The number of each sample's class; those that are unknown are named."""
    known = {label: number for number, label in enumerate(labels)}
    strange: dict[str, list[Any]] = {}
    for sample, name in zip(samples, names, strict=True):
        if name not in known:
            strange.setdefault(name, []).append(sample)
    if strange:
        first = next(iter(strange.values()))[0]
        shown = ", ".join(
            f"'{name}' ({len(found):,} time{'s'[: len(found) > 1]})" for name, found in list(strange.items())[:5]
        )
        more = f" and {len(strange) - 5} others" if len(strange) > 5 else ""
        advice = f"Known labels: {', '.join(list(labels)[:20])}{', …' if len(labels) > 20 else ''}. "
        advice += "Add samples of the unknown label to the training data, or remove such samples from this data."
        inside = os.path.isdir(first.path)  # a folder of pictures, which has no lines
        raise DataError(
            f"unknown label {shown}{more}; this is the first occurrence.",
            first.source if inside else first.path,
            None if inside else first.line,
            advice,
        )
    return [known[name] for name in names]
