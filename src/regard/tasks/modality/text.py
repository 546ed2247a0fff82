"""Text: tokenizers, special tokens around one text or two, and batches of token sequences.

Decoders read `[start] A [delimiter] B [extract]` and classify the last token, as in the fine-tuning of GPT-1; encoders read
`[CLS] A [SEP] B [SEP]` and classify the first token. Long texts are truncated at the end, as in `transformers`.

A sample of `classify` and `choose` is one or more token sequences: a text, two texts, a pair in both orders, or a context
with each choice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.batching.padding import pad_or_pack
from regard.data.batching.samplers import (
    BatchSampler,
    BatchShape,
    FixedShape,
    LengthBucketed,
    PackedSampler,
    length_batches,
)
from regard.data.settings import DataSettings
from regard.decode.settings import DecodeSettings
from regard.errors import DataError, SettingError
from regard.files import write_json
from regard.nn.blocks.heads import text_head
from regard.processors.tokenizer.tokenizer import (
    END,
    END_OF_TEXT,
    PAD,
    START,
    Role,
    TextTokenizer,
    TokenTemplate,
    template_of,
)
from regard.processors.tokenizer.vocabulary import MARIAN_VOCABULARY
from regard.tasks import base
from regard.tasks.modality.base import Export, InputBatches, InputFields, Modality
from regard.types import IGNORE, Batch, BodyOutput, TextFields

HEAD_TOKENS = ("_start_", "_delimiter_", "_classify_")  # special tokens of GPT-1 fine-tuning, named as in its code

SPECIAL_ID_FIELDS: dict[str, Role] = {"pad_id": "pad", "bos_id": "start", "eos_id": "end", "mask_id": "mask"}
"""Config fields of special token ids, and the role of each token in the tokenizer."""


class Text(Modality):
    """Texts, converted to token ids by a tokenizer."""

    name, batch_unit, input_field = "text", "tokens", "text"
    noun = "a text"
    processor_files = ("tokenizer.json", "tokenizer_config.json", *MARIAN_VOCABULARY)
    has_text = True

    def __init__(
        self, tokenizer: str = "", head_tokens: bool = False, documents: bool = False, split_words: bool = False
    ) -> None:
        """`tokenizer`: kind of new tokenizers; `sentence` (BPE with start, end and padding tokens), `words`, `bytes` (byte
        BPE or characters), or empty for every `data.tokenizer_type`. `head_tokens`: decoders have special tokens for a
        head. `documents`: texts are parts of documents, which decoders separate by an end token. `split_words`: texts are
        lists of words."""
        self.tokenizer, self.head_tokens = tokenizer, head_tokens
        self.documents, self.split_words = documents, split_words
        size = () if tokenizer == "words" else ("data.vocab_size",)
        self.settings = (*size, "data.tokenizer", "data.split_special_tokens", "train.batch_tokens", "train.packing")

    def is_single(self, inputs: Any) -> bool:
        return isinstance(inputs, str)

    # -- tokenizer

    def train_tokenizer(self, texts: Iterable[str], data: DataSettings) -> TextTokenizer:
        """New tokenizer, trained on texts."""
        if self.tokenizer == "sentence":
            return TextTokenizer.train_sentence_bpe(texts, data.vocab_size)
        if self.tokenizer == "words":
            return TextTokenizer.from_words(texts, words=data.tokenizer_type != "char")
        if self.documents:
            from regard.data.text.documents import DETOKENIZERS

            texts = map(DETOKENIZERS[data.detokenize], texts)
        if data.tokenizer_type == "char":
            return TextTokenizer.from_characters(texts)
        if data.tokenizer_type == "wordpiece" and self.tokenizer != "bytes":
            return TextTokenizer.train_wordpiece(texts, data.vocab_size)
        return TextTokenizer.train_lm_bpe(texts, data.vocab_size)

    def build_processor(self, text: TextTokenizer, config: Any, data: DataSettings | None = None) -> Any:
        """Processor of a new model or head: the tokenizer with the special tokens of the objective. The end token is the
        last one of the vocabulary of another tokenizer."""
        if text.pieces is not None and self.tokenizer != "sentence":
            advice = "Remove data.tokenizer to train a tokenizer."
            raise DataError("The tokenizer of Marian is supported by task 'translate' only.", advice=advice)
        if config.traits.is_encoder:
            return text
        if self.documents and text.backend.token_to_id(END_OF_TEXT) is None:
            return text.with_special_tokens([END_OF_TEXT])
        return text.with_special_tokens(HEAD_TOKENS) if self.head_tokens else text

    def load_processor(self, folder: Path) -> TextTokenizer | None:
        return TextTokenizer.find(folder)

    def save_processor(self, processor: Any, config: Any, folder: Path, export: Export | None = None) -> None:
        text, found = processor, processor.settings()
        if export is not None:
            text = self._exported(text, config)
            if pad := text.id_to_token(pad_token_id(text, config, export.pad_id)):
                found["pad_token"] = pad  # other programs need one to build a batch
            if export.max_length:
                found["model_max_length"] = export.max_length
        if config.traits.token_types > 1:  # otherwise Hugging Face ignores token types
            found["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
        text.save(folder / "tokenizer.json")
        write_json(folder / "tokenizer_config.json", found)

    def _exported(self, text: TextTokenizer, config: Any) -> TextTokenizer:
        """Tokenizer that adds the special tokens of the task in other programs, so that they use the same token ids."""
        if config.traits.is_encoder:
            end, types = (config.eos_id,), min(config.traits.token_types - 1, 1)
            text = text.with_template(TokenTemplate((config.bos_id,), end * config.traits.separators, end, types))
        elif self.tokenizer in ("sentence", "words"):
            text = text.with_template(TokenTemplate(end=(config.eos_id,)))
        elif SpecialTokens.has_head_tokens(text):
            marks = SpecialTokens.from_tokenizer(text, config) if self.head_tokens else SpecialTokens((), (), ())
            text = text.with_template(TokenTemplate(marks.start, marks.delimiter, marks.extract))
        return text.with_prefix_space() if self.split_words else text

    def fit_config(self, config: Any, processor: TextTokenizer) -> Any:
        ids: dict[str, Any]
        if config.traits.is_encoder:
            ids = special_token_ids(processor)
            if missing := [str(role) for name, role in SPECIAL_ID_FIELDS.items() if name not in ids]:
                raise DataError(
                    f"The tokenizer lacks special tokens that an encoder requires: {', '.join(missing)}.",
                    advice="Remove data.tokenizer, or set data.tokenizer_type=wordpiece, to train a tokenizer with these "
                    "tokens.",
                )
        elif self.tokenizer in ("sentence", "words"):
            ids = {name: processor.backend.token_to_id(token) for name, token in SEQ2SEQ_TOKENS.items()}
            if ids["bos_id"] is None:  # decoding starts with the padding token, as in Marian
                ids["bos_id"] = ids["pad_id"]
            if missing := [SEQ2SEQ_TOKENS[name] for name, number in ids.items() if number is None]:
                raise DataError(
                    f"The tokenizer lacks special tokens that translation requires: {', '.join(missing)}. "
                    "Remove data.tokenizer to train a tokenizer with these tokens."
                )
        else:
            end = processor.backend.token_to_id(END_OF_TEXT)
            if end is None and self.documents:
                raise DataError(
                    f"The tokenizer has no token {END_OF_TEXT}, which is required at the start and end of each document."
                )
            ids = {} if end is None else {"eos_id": end}
        return replace(config, vocab_size=processor.size, **ids)

    def describe_processor(self, processor: TextTokenizer) -> str:
        return f"vocabulary of {processor.size:,} tokens"

    def row_encoding(self, processor: TextTokenizer) -> tuple[int, str]:
        return processor.size, processor.fingerprint()

    # -- batches

    def sampler(self, encoded: base.Encoded, config: Any, tokens: int, seed: int, packed: bool) -> BatchSampler:
        lengths = encoded.lengths()
        if packed and not config.traits.packs:
            return FixedShape(lengths, tokens, seed)
        if "ways" not in encoded.fields:
            return (PackedSampler if packed else LengthBucketed)(lengths, tokens, seed)
        if not packed:
            return LengthBucketed(lengths, max(tokens, int(lengths.max())), seed)
        sums, most = base.row_lengths(encoded.fields["text"]), encoded.max_sequences
        plan = PackedSampler(sums, max(tokens, int(sums.max())), seed)
        documents = plan.shape.num_documents + (most - 1) * plan.max_documents
        plan.shape = replace(plan.shape, num_documents=-(-documents // most) * most)
        return plan

    def eval_rows(self, encoded: base.Encoded, tokens: int) -> Iterator[np.ndarray]:
        return length_batches(encoded.lengths(), tokens)

    # -- samples of one or more token sequences

    def encode(self, samples: Sequence[Any], config: Any, context: base.EncodingContext) -> InputFields:
        """One token sequence per text or ordered pair, two for a symmetric pair (both orders)."""
        text, pair_order = context.processor, context.options.pair_order
        if not pair_order and context.data is not None:
            pair_order = context.data.pair_order
        marks, limit = SpecialTokens.from_tokenizer(text, config), min(context.max_length, config.max_length)
        firsts = text.encode([sample.text for sample in samples])
        seconds = text.encode([marks.second_text(sample.text_pair) if sample.text_pair else "" for sample in samples])
        sequences = []
        for first, second in zip(firsts, seconds, strict=True):
            orders = [[first, second]] if second else [[first or [config.eos_id]]]
            orders += [[second, first]] * (pair_order == "symmetric" and bool(second))
            sequences.append([marks.build_sequence(parts, limit) for parts in orders])
        return sequence_fields(samples, sequences)

    def collate(
        self, encoded: base.Encoded, rows: Any, config: Any, labels: Tensor | None, shape: BatchShape | None = None
    ) -> Batch:
        """Inputs (S, K, L) of S samples with up to K sequences, or one packed row of S·K sequences."""
        rows = [int(row) for row in rows]
        text, ways = encoded.fields["text"], encoded.fields["ways"]
        parts = [np.split(text[i], np.cumsum(ways[i])[:-1].astype(np.int64)) for i in rows]
        most = encoded.max_sequences if shape is not None else max(map(len, parts))
        none = np.zeros(0, dtype=np.int32)
        flat = [way for item in parts for way in (*item, *[none] * (most - len(item)))]
        starts = encoded.fields["second"]
        seconds = [second for i in rows for second in (*starts[i].tolist(), *[0] * (most - len(starts[i])))]
        # the first token is pooled: global attention
        batch = collate_rows(flat, seconds, [1] * len(flat), config, shape)
        if shape is not None:
            assert labels is not None
            rest = labels.new_full((shape.num_documents // most - len(labels), *labels.shape[1:]), IGNORE)
            text_fields = replace(batch.text, max_global_tokens=shape.num_documents)
            return replace(batch, labels=torch.cat([labels, rest]), text=text_fields)
        x = batch.inputs
        lengths = torch.full((len(flat),), x.shape[1]) if batch.mask is None else batch.mask
        text_fields = batch.text.map(lambda table: table.view(len(rows), most, -1))
        x, lengths = x.view(len(rows), most, -1), lengths.view(len(rows), most)
        return Batch(x, lengths, labels=labels, text=replace(text_fields, max_global_tokens=1))

    def class_head(self, config: Any, outputs: int) -> nn.Module:
        return text_head("classes", config, outputs)

    def pooled(self, model: base.Model, batch: Batch) -> tuple[Tensor, SequenceOutput]:
        """Sum of the pooled states of both orders of a symmetric pair."""
        output = run_body(model.body, batch)
        return output.pooled.sum(1), output

    def input_batches(self, model: base.Model, inputs: base.Inputs, count: int, decode: DecodeSettings) -> InputBatches:
        assert isinstance(inputs, base.Encoded)
        for rows in length_batches(inputs.lengths()[:count], base.BATCH_TOKENS):
            yield rows, self.collate(inputs, rows, model.config, None)


SEQ2SEQ_TOKENS = {"pad_id": PAD, "bos_id": START, "eos_id": END}  # special tokens of sequence-to-sequence models


def pad_id(config: Any) -> int:
    """Id of the padding token."""
    return int(config.pad_id if config.traits.is_encoder else config.eos_id)


def pad_token_id(text: TextTokenizer | None, config: Any, published: int | None) -> int:
    """Id of the padding token for other programs: the published one, the padding token of the model, or the unknown token if
    the model pads with an ordinary token, which other programs would then find in texts."""
    if published is not None:
        return published
    number = int(config.eos_id if config.traits.pad_id is None else config.pad_id)
    unknown = None if text is None or number in text.special_ids else text.special_id("unknown")
    return number if unknown is None else unknown


def special_token_ids(text: TextTokenizer) -> dict[str, int]:
    """Ids of the special tokens of an encoder that the tokenizer has, by config field."""
    ids = {name: text.special_id(role) for name, role in SPECIAL_ID_FIELDS.items()}
    return {name: number for name, number in ids.items() if number is not None}


# -- special tokens


class TokenSequence(NamedTuple):
    """Token ids of one text or two with special tokens."""

    ids: list[int]
    truncated: bool  # True if tokens of the texts were removed
    second_start: int  # position of the first token of the second text; 0 if there is only one text


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of the special tokens; empty for special tokens missing in the tokenizer of a checkpoint."""

    start: tuple[int, ...]
    delimiter: tuple[int, ...]
    extract: tuple[int, ...]

    @classmethod
    def from_tokenizer(cls, text: TextTokenizer, config: Any) -> SpecialTokens:
        """Special tokens of an encoder, of a head, or of the tokenizer of a checkpoint."""
        if config.traits.is_encoder:
            end = (config.eos_id,)
            return cls((config.bos_id,), end * config.traits.separators, end)
        if not cls.has_head_tokens(text):
            published = template_of(text.backend) or TokenTemplate()
            return cls(published.start, published.separator, published.end)
        ids = (text.backend.token_to_id(mark) for mark in HEAD_TOKENS)
        return cls(*(() if number is None else (number,) for number in ids))

    @staticmethod
    def has_head_tokens(text: TextTokenizer) -> bool:
        return any(text.backend.token_to_id(mark) is not None for mark in HEAD_TOKENS)

    def second_text(self, text: str) -> str:
        """The second of two texts, with a leading space if the tokenizer has no delimiter."""
        return text if self.delimiter else f" {text}"

    def max_text_tokens(self, max_length: int, texts: int) -> int:
        """Maximum tokens of the texts in a row of `max_length` tokens with special tokens."""
        around = len(self.start) + len(self.extract) + (len(self.delimiter) if texts > 1 else 0)
        return max(max_length - around, 1)

    def build_sequence(self, parts: Sequence[Sequence[int]], max_length: int) -> TokenSequence:
        """Concatenate texts and special tokens. Only the texts are truncated."""
        room = self.max_text_tokens(max_length, len(parts))
        kept = truncate(parts, room)
        truncated = sum(map(len, parts)) > room
        if len(kept) == 1:
            return TokenSequence([*self.start, *kept[0], *self.extract], truncated, 0)
        first = [*self.start, *kept[0], *self.delimiter]
        return TokenSequence([*first, *kept[1], *self.extract], truncated, len(first))


def truncate(parts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
    """Texts truncated at the end to `max_tokens` in total, the longer of two texts first, as in `transformers`."""
    sizes = [max_tokens]
    if len(parts) > 1:
        small = min(min(map(len, parts)), max_tokens // 2)
        sizes = [small, max_tokens - small] if len(parts[0]) <= len(parts[1]) else [max_tokens - small, small]
    fits = sum(map(len, parts)) <= max_tokens
    return [list(part if fits else part[:size]) for part, size in zip(parts, sizes, strict=True)]


# -- batches of token rows


def collate_rows(
    rows: Sequence[np.ndarray],
    second_starts: Sequence[int],
    num_global: Sequence[int],
    config: Any,
    shape: BatchShape | None,
) -> Batch:
    """Padded or packed token rows with additional inputs of encoders: token types from the start of the second text
    (`second_starts`, 0: one text), and global attention for the first `num_global` tokens."""
    token_types, global_tokens = None, None
    if config.traits.token_types > 1:
        begins = [second or len(row) for row, second in zip(rows, second_starts, strict=True)]
        types = [np.arange(len(row)) >= begin for row, begin in zip(rows, begins, strict=True)]
        token_types = pad_or_pack(types, 0, shape)[0].long()
    if config.traits.global_tokens:
        marked = [np.arange(len(row)) < count for row, count in zip(rows, num_global, strict=True)]
        global_tokens = pad_or_pack(marked, 0, shape)[0].bool()
    x, mask, offsets = pad_or_pack(rows, pad_id(config), shape)
    return Batch(x, mask, packing=offsets, text=TextFields(token_types, global_tokens))


def sequence_fields(samples: Sequence[Any], sequences: Sequence[Sequence[TokenSequence]]) -> InputFields:
    """Concatenated token sequences of each sample, lengths of the sequences and start of the second text in each, and the
    truncated samples."""
    fields: dict[str, base.FieldRows] = {
        "text": [np.concatenate(base.int_rows([way.ids for way in item])) for item in sequences],
        "ways": base.int_rows([[len(way.ids) for way in item] for item in sequences]),
        "second": base.int_rows([[way.second_start for way in item] for item in sequences]),
    }
    cut = [sample for sample, item in zip(samples, sequences, strict=True) if any(way.truncated for way in item)]
    return fields, cut


class SequenceOutput(NamedTuple):
    """Output of the body for a batch of S samples with up to K token sequences each."""

    batch: Batch  # sequences as rows (S·K, L), or one packed row
    lengths: Tensor  # (S, K) lengths of the sequences; 0 for missing sequences
    pooled: Tensor  # (S, K, D) pooled states: pooler output of an encoder, or last hidden state of a decoder
    body_output: BodyOutput


def run_body(body: Any, batch: Batch) -> SequenceOutput:
    """Run the body on inputs (S, K, L) with lengths (S, K), on (B, L) with K = 1, or on a packed row of S·K sequences."""
    if batch.packing is not None:
        starts, rows = batch.packing.starts, replace(batch, labels=None)
        output: BodyOutput = body(rows)
        lengths = starts.diff().view(len(batch.require_labels()), -1)
        last = output.sequence[0, (starts[1:] - 1).clamp(min=0)] if output.pooled is None else output.pooled
        return SequenceOutput(rows, lengths, last.view(*lengths.shape, -1), output)
    x = batch.inputs if batch.inputs.ndim == 3 else batch.inputs[:, None]
    S, K, L = x.shape
    if batch.mask is not None and batch.mask.dtype == torch.bool:  # padding on any side
        mask = batch.mask.reshape(-1, L)
        lengths, last = mask.sum(-1), L - 1 - mask.flip(-1).byte().argmax(-1)
    else:
        mask = x.new_full((S * K,), L) if batch.mask is None else batch.mask.flatten()
        lengths, last = mask, mask - 1
    lengths = lengths.view(S, K)
    positions = (
        batch.positions if batch.positions is None or batch.positions.ndim < 3 else batch.positions.flatten(0, 1)
    )
    text = batch.text.map(lambda table: table.reshape(-1, L))
    rows = Batch(x.flatten(0, 1), mask, positions, text=text)
    output = body(rows)
    if output.pooled is not None:
        return SequenceOutput(rows, lengths, output.pooled.view(S, K, -1), output)
    at = last.clamp(min=0)[:, None, None].expand(-1, 1, output.sequence.shape[-1])
    return SequenceOutput(rows, lengths, output.sequence.gather(1, at).view(S, K, -1), output)


def add_text_losses(
    model: base.Model, labels: Tensor, output: SequenceOutput, loss: base.Loss, terms: base.LossWeights
) -> base.Loss:
    """(sum, count) of a loss plus `auxiliary` × language modeling loss, and the ponder cost of adaptive computation time.

    The language modeling loss of a sample is averaged over the tokens of a sequence except the first, and over its sequences:
    long and short texts have equal weight."""
    total, count = loss
    if not terms.auxiliary:
        return base.add_act_cost(model, loss, output.body_output)
    if model.config.traits.is_encoder:
        raise SettingError(
            "train.lm_loss_weight requires a decoder, because encoders do not predict the next token. "
            "Set train.lm_loss_weight=0."
        )
    labeled = labels.view(len(labels), -1)[:, 0] != IGNORE
    x, K, sequence = output.batch.inputs, output.lengths.shape[1], output.body_output.sequence
    ways = (output.lengths > 0).sum(1, keepdim=True).clamp(min=1)
    wide = torch.float64 if output.pooled.dtype == torch.float64 else torch.float32
    shares = labeled[:, None].to(wide) / (ways * (output.lengths - 1).clamp(min=1))  # weight of each token
    shares = torch.where(output.lengths > 1, shares, 0.0).flatten()
    at = torch.arange(x.shape[1], device=x.device)
    if output.batch.packing is None:
        weights = torch.where(at < output.lengths.view(-1, 1) - 1, shares[:, None], 0.0)
    else:
        way = output.batch.packing.document_ids(at[None])[0].clamp(0, K * len(labeled) - 1)
        inside = at + 1 < output.batch.packing.starts[way + 1]  # the last token has no next token
        weights = torch.where(inside, shares[way], 0.0)[None]
    logits = model.body.to_logits(sequence).to(wide)
    losses = F.cross_entropy(logits.flatten(0, 1), x.roll(-1, 1).flatten(), reduction="none")
    total = total + terms.auxiliary * (losses * weights.flatten()).sum().to(total.dtype)
    return base.add_act_cost(model, (total, count), output.body_output)


# -- token-level heads on encoders, shared by `tag` and `qa`: long texts are split into overlapping windows

OVERLAP = 128  # maximum overlap of consecutive windows in tokens


def windows(length: int, max_length: int, stride: int = 0) -> list[tuple[int, int]]:
    """Windows (start, end) of at most `max_length` tokens that cover `length` tokens, each `stride` after the previous one
    (0: overlap of a quarter, at most OVERLAP); the last window is moved back rather than shortened."""
    step = min(stride, max_length) or max(max_length - min(OVERLAP, max_length // 4), 1)
    if length <= max_length:
        return [(0, length)]
    return [(first, first + max_length) for first in (*range(0, length - max_length, step), length - max_length)]


class WindowObjective(base.Objective):
    """Fields of a row: token ids of a window, position of the second text (0 if there is only one text), index of the sample in
    its chunk and first word or token of the sample in the window, labels."""

    fields = ("text", "second", "owner", "label")
    count_fields = ("second", "owner", "label")
    truncation = "at the end"

    def adapt_config(self, config: Any) -> Any:
        return replace(config, pooler=False) if config.traits.optional_pooler else config

    def collate(self, encoded: base.Encoded, rows: Any, config: Any, shape: BatchShape | None = None) -> Batch:
        rows = list(rows)
        ids = [encoded.fields["text"][i] for i in rows]
        seconds = [int(encoded.fields["second"][i][0]) for i in rows]
        # global attention for the question without the separators after it, or for the first token if there is no question
        num_global = [second - config.traits.separators if second else 1 for second in seconds]
        batch = collate_rows(ids, seconds, num_global, config, shape)
        labels = self._collate_labels([encoded.fields["label"][i] for i in rows], shape)
        # question lengths vary in packed rows
        most = max(num_global) if shape is None else None if any(seconds) else shape.num_documents
        return replace(batch, labels=labels, text=replace(batch.text, max_global_tokens=most))

    def _collate_labels(self, labels: Sequence[np.ndarray], shape: BatchShape | None) -> Tensor:
        """Labels of rows as one tensor."""
        raise NotImplementedError

    def logits(self, model: base.Model, batch: Batch) -> Tensor:
        return base.require_head(model)(model.body(batch).sequence)

    def token_logits(self, model: base.Model, encoded: base.Encoded) -> list[np.ndarray]:
        """Logits of all tokens of each row, (length, outputs) in float64."""
        found = base.map_rows(model, encoded, lambda batch: self.logits(model, batch).double().cpu().numpy())
        lengths = encoded.lengths()
        return [values[: lengths[row, 0]] for row, values in enumerate(found)]


def window_start(encoded: base.Encoded, row: int) -> int:
    """First word or token of the sample in this row."""
    return int(encoded.fields["owner"][row][1])
