"""Classification heads on a pooled hidden state, shared by `classify` and `choose`.

A sample is encoded as one or more token sequences: a text, two texts, a pair in both orders, or a context with each choice.
The pooled state of a sequence is the pooler output of an encoder, or as in GPT-1 the last hidden state of a decoder."""

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
    pad_id,
    token_features,
    with_template,
)
from regard.types import IGNORE, Batch, BodyOutput

LABEL_PREFIX = "\0"
"""Prefix of labels among the texts of a sample: part of the data fingerprint, but not used to train the tokenizer."""

BATCH_TOKENS = 16_384
"""Tokens per batch at inference."""


@dataclass(frozen=True)
class SequenceOutput:
    """Output of the body for a batch of S samples with up to K token sequences each."""

    batch: Batch
    """sequences as rows (S·K, L), or one packed row"""
    sequence: Tensor
    """(S·K, L, D) hidden states"""
    lengths: Int[Tensor, "S K"]
    """lengths of the sequences; 0 for missing sequences"""
    pooled: Float[Tensor, "S K D"]
    """pooled state of each sequence"""
    body_output: BodyOutput
    """output of the body"""


def run_body(body: Any, batch: Batch) -> SequenceOutput:
    """Run the body on inputs (S, K, L) with lengths (S, K), on (B, L) with K = 1, or on a packed row of S·K sequences."""
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
    """Language modeling loss, summed over the samples with `labeled` (S,). The loss is averaged over the tokens of a
    sequence except the first, and over the sequences of a sample: long and short texts have equal weight."""
    x, K = output.batch.inputs, output.lengths.shape[1]
    ways = (output.lengths > 0).sum(1, keepdim=True).clamp(min=1)
    wide = torch.float64 if output.pooled.dtype == torch.float64 else torch.float32
    shares = labeled[:, None].to(wide) / (ways * (output.lengths - 1).clamp(min=1))  # weight of each token
    shares = torch.where(output.lengths > 1, shares, 0.0).flatten()
    at = torch.arange(x.shape[1], device=x.device)
    if output.batch.offsets is None:
        weights = torch.where(at < output.lengths.view(-1, 1) - 1, shares[:, None], 0.0)
    else:
        way = output.batch.offsets.document_ids(at[None])[0].clamp(0, K * len(labeled) - 1)
        inside = at + 1 < output.batch.offsets.starts[way + 1]  # the last token has no next token
        weights = torch.where(inside, shares[way], 0.0)[None]
    logits = body.to_logits(output.sequence).to(wide)
    losses = F.cross_entropy(logits.flatten(0, 1), x.roll(-1, 1).flatten(), reduction="none")
    return (losses * weights.flatten()).sum()


def missing_bias_names(head: nn.Module) -> list[str]:
    """Names of the absent biases of a head: some checkpoints contain such biases."""
    return [f"{name}.bias" for name, part in head.named_modules() if isinstance(part, nn.Linear) and part.bias is None]


def add_bias(head: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Create the absent biases that occur in the tensors of a checkpoint."""
    for name, part in head.named_modules():
        if isinstance(part, nn.Linear) and part.bias is None and f"{name}.bias" in tensors:
            part.bias = nn.Parameter(torch.zeros_like(part.weight[:, 0]))


class SequenceHeadTask(Task):
    """A task with a head on pooled states. Fields of a sample: concatenated token sequences, lengths of the sequences, start
    of the second text in each sequence, and label."""

    fields = ("text", "ways", "second", "label")
    count_fields = ("ways", "second", "label")
    metric = "accuracy"
    default_model = "gpt2-mini"
    generates, truncates = False, True

    def target_text(self, sample: Any) -> str:
        """Label as text, for the fingerprint of the data."""
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
        """The pooled state requires one more layer: the pooler of the body, or a layer in the head."""
        traits = config.traits
        return replace(config, pooler=traits.head_activation is None) if traits.optional_pooler else config

    def export_tokenizer(self, text: TextTokenizer, config: Any) -> TextTokenizer:
        """Tokenizer with a post-processor for special tokens, so that other programs classify the same token ids."""
        if config.traits.is_encoder:
            return with_template(text, config)
        if any(text.token_to_id(mark) is None for mark in SPECIAL_TOKENS):
            return text
        return text.with_post_processor(f"{START} $A {EXTRACT}", f"{START} $A {DELIMITER} $B {EXTRACT}", SPECIAL_TOKENS)

    def add_special_tokens(self, text: TextTokenizer, config: Any) -> TextTokenizer:
        return text if config.traits.is_encoder else text.with_special_tokens(SPECIAL_TOKENS)

    def fit_config(self, config: Any, processor: TextTokenizer) -> Any:
        if config.traits.is_encoder:
            return replace(config, vocab_size=processor.size, **special_token_ids(processor))
        end = processor.token_to_id(END_OF_TEXT)
        return replace(config, vocab_size=processor.size, **({} if end is None else {"eos_id": end}))

    def build_encoded(
        self, samples: Sequence[Any], sequences: Sequence[Sequence[TokenSequence]], labels: Any
    ) -> Encoded:
        """`labels`: class index per sample, or the encoded labels of multi-label samples."""
        sides: dict[str, FieldRows] = {
            "text": [np.concatenate([np.array(way.ids, dtype=np.int32) for way in item]) for item in sequences],
            "ways": [np.array([len(way.ids) for way in item], dtype=np.int32) for item in sequences],
            "second": [np.array([way.second_start for way in item], dtype=np.int32) for item in sequences],
            "label": [np.atleast_1d(np.array(number, dtype=np.int32)) for number in labels],
        }
        cut = [sample for sample, item in zip(samples, sequences, strict=True) if any(way.truncated for way in item)]
        return Encoded(list(samples), sides, cut)

    def lengths(self, encoded: Encoded) -> np.ndarray:
        """(N, 1) positions per sample: its sequences are padded to the longest one."""
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
        marks = token_features(flat, seconds, [1] * len(flat), config)  # the first token is pooled: global attention
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
        """(S, classes) logits of each sample."""
        raise NotImplementedError

    def sample_loss(
        self, logits: Tensor, output: SequenceOutput, labels: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def logits(self, model: ModelProtocol, batch: Batch) -> Tensor:
        return self.sample_logits(model, run_body(model.body, batch))

    def loss(self, model: ModelProtocol, batch: Batch, terms: LossWeights = LossWeights()) -> tuple[Tensor, Tensor]:  # noqa: B008
        """(sum, count) over samples of cross-entropy + `auxiliary` × language modeling loss."""
        assert batch.labels is not None
        found = run_body(model.body, batch)
        total, count = self.sample_loss(self.sample_logits(model, found), found, batch.labels, terms.smoothing)
        if terms.auxiliary:
            if model.config.traits.is_encoder:
                raise SettingError(
                    "train.lm_loss_weight requires a decoder, because encoders do not predict the next token. "
                    "Set train.lm_loss_weight=0."
                )
            asked = batch.labels.view(len(batch.labels), -1)[:, 0] != IGNORE
            total = total + terms.auxiliary * auxiliary_lm_loss(model.body, found, asked).to(total.dtype)
        return add_act_cost(model, (total, count), found.body_output)

    def predict_probabilities(self, model: ModelProtocol, encoded: Encoded) -> list[np.ndarray]:
        """Class probabilities of each sample."""
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
        """Class probabilities by softmax: exactly one class is correct."""
        return logits.softmax(-1)

    labels_are_sequences = False
    """True if the classes are the token sequences (choices)"""

    def require_head(self, model: ModelProtocol) -> nn.Module:
        head: nn.Module | None = model.head
        if head is None:
            raise RegardError(
                f"{model.spec.source or 'This model'} has no head for task '{self.name}'. Fine-tune the model first: "
                f"regard train {self.name} --data FILE --model {model.spec.source or 'FOLDER'} --out RUN"
            )
        return head


def build_tokenizer(texts: Iterable[str], data: DataSettings) -> TextTokenizer:
    """Train the tokenizer of `data.tokenizer_type`."""
    if data.tokenizer_type == "char":
        return TextTokenizer.from_characters(texts)
    if data.tokenizer_type == "wordpiece":
        return TextTokenizer.train_wordpiece(texts, data.vocab_size)
    return TextTokenizer.train_lm_bpe(texts, data.vocab_size)


def special_token_ids(text: TextTokenizer) -> dict[str, int]:
    """Ids of the special tokens that an encoder requires. A missing token is an error."""
    found = {name: text.special_id(role) for name, role in SPECIAL_ID_FIELDS.items()}
    if missing := [SPECIAL_ID_FIELDS[name] for name, number in found.items() if number is None]:
        raise DataError(
            f"The tokenizer lacks special tokens that an encoder requires: {', '.join(missing)}.",
            advice="Remove data.tokenizer, or set data.tokenizer_type=wordpiece, to train a tokenizer with these tokens.",
        )
    return {name: number for name, number in found.items() if number is not None}


def _pad_zeros(numbers: np.ndarray, size: int) -> list[int]:
    """The values, padded with zeros to `size`."""
    return [*numbers.tolist(), *[0] * (size - len(numbers))]


def max_sequences(encoded: Encoded) -> int:
    return int(row_lengths(encoded.fields["ways"]).max(initial=1))


def label_tensor(rows: Sequence[np.ndarray]) -> Tensor:
    """(S,) class indices, or for multi-label rows `[0, C, …]` a multi-hot tensor (S, C)."""
    if len(rows[0]) == 1:
        return torch.tensor([int(row[0]) for row in rows])
    found = torch.zeros(len(rows), int(rows[0][1]), dtype=torch.long)
    for number, row in enumerate(rows):
        found[number, torch.from_numpy(row[2:].astype(np.int64))] = 1
    return found


def first_samples(encoded: Encoded, max_samples: int | None) -> Encoded:
    """The first `max_samples` samples."""
    sides: dict[str, FieldRows] = {name: list(side)[:max_samples] for name, side in encoded.fields.items()}
    return Encoded(encoded.samples[:max_samples], sides, encoded.too_long)


def label_ids(samples: Sequence[Any], names: Sequence[str], labels: Sequence[str]) -> list[int]:
    """Class index of each sample. Unknown labels are an error."""
    known = {label: number for number, label in enumerate(labels)}
    strange: dict[str, list[Any]] = {}
    for sample, name in zip(samples, names, strict=True):
        if name not in known:
            strange.setdefault(name, []).append(sample)
    if strange:
        first = next(iter(strange.values()))[0]
        shown = ", ".join(
            f"'{name:.40}' ({len(found):,} time{'s'[: len(found) > 1]})" for name, found in list(strange.items())[:5]
        )
        more = f" and {len(strange) - 5} others" if len(strange) > 5 else ""
        advice = (
            f"Known labels: {', '.join(f'{label:.40}' for label in labels[:20])}{', …' if len(labels) > 20 else ''}. "
        )
        advice += "Add samples of the unknown label to the training data, or remove such samples from this data."
        inside = os.path.isdir(first.path)  # files of an image folder have no line numbers
        raise DataError(
            f"unknown label {shown}{more}; this is the first occurrence.",
            first.source if inside else first.path,
            None if inside else first.line,
            advice,
        )
    return [known[name] for name in names]
