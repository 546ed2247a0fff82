"""Task `lm`: causal language modeling and text generation with decoder-only models.

A document is one stream of tokens: end token, text, end token. Long documents are split into windows; a window never
contains tokens of two documents."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.batching.samplers import BatchSampler, BatchShape, LengthBucketed
from regard.data.batching.windows import TokenRanges, make_window_sampler, sliding_windows
from regard.data.settings import DataSettings
from regard.data.store.token_store import RaggedRows
from regard.data.text.documents import DETOKENIZERS, Passage, count_words, iterate_texts, text_files
from regard.data.text.files import chunked
from regard.data.text.tables import SkippedRow
from regard.decode.search import Hypothesis, search, stream
from regard.decode.settings import DecodeSettings
from regard.errors import DataError, RegardError, SettingError
from regard.processors.padding import pack, pad
from regard.processors.tokenizer.token_text import StreamDecoder
from regard.processors.tokenizer.tokenizer import END_OF_TEXT, TextTokenizer
from regard.tasks.base import (
    GENERATION_SETTINGS,
    SEARCH_SETTINGS,
    TEXT_SETTINGS,
    Encoded,
    EvalResult,
    LossSum,
    LossWeights,
    Task,
)
from regard.tasks.prompts import finish_reason, max_new_tokens, prompt_ids, stop_condition, text_before_stop
from regard.tasks.protocol import ModelProtocol
from regard.types import IGNORE, Batch, Prediction

CONTINUES, TORN, OPENS, APART = 0, 1, 2, 3
"""Boundary between a passage and the previous one: same document; same document after removed passages; new document
directly after the end of the previous one; new document, but the end of the previous document was removed."""

BATCH_TOKENS = 65_536
"""Tokens per batch at generation: prompts and new tokens."""

MAX_LINES = 16
"""maximum lines of a printed sample, without consecutive empty lines"""

SHOWN, BEGINNING = 3, 120
"""Number of samples continued during validation, and number of characters of their prompts."""


class LanguageModeling(Task):
    name = "lm"
    description = "Causal language modeling and text generation: plain text."
    columns = ("text",)
    unit = "passages"
    metric = "loss"
    lower_is_better = True
    has_length_limit = False
    multiline = True
    sample_type = Passage
    fields = ("text", "joint")
    min_valid_samples = 1  # a passage has many tokens
    default_model = "gpt2-mini"
    usage = '"Once upon a time"'
    settings_used = (
        *TEXT_SETTINGS,
        "data.tokenizer_type",
        "data.detokenize",
        "data.stride",
        "train.label_smoothing",
        *SEARCH_SETTINGS,
        *GENERATION_SETTINGS,
        "decode.truncate_prompt",
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
        """Without a mark if the removed passages begin at a document boundary: the previous document is complete."""
        return sample if sample.starts_document and removed.starts_document else replace(sample, after_gap=True)

    def fingerprint_texts(self, samples: Iterable[Passage]) -> Iterator[str]:
        for sample in samples:
            yield sample.text

    def encoding_key(self, data: DataSettings) -> tuple[Any, ...]:
        return (data.detokenize,)

    def train_tokenizer(self, texts: Iterable[str], data: DataSettings) -> TextTokenizer:
        texts = map(DETOKENIZERS[data.detokenize], texts)
        return (
            TextTokenizer.from_characters(texts)
            if data.tokenizer_type == "char"
            else TextTokenizer.train_lm_bpe(texts, data.vocab_size)
        )

    def check_settings(self, config: Any, tokens: int, data: DataSettings) -> None:
        if config.max_length > tokens:
            raise SettingError(
                f"train.batch_tokens={tokens} is smaller than the context (model.max_length={config.max_length}). "
                "Raise train.batch_tokens or lower model.max_length."
            )
        if data.stride > config.max_length:
            raise SettingError(
                f"data.stride={data.stride} must not exceed the context length (model.max_length={config.max_length})."
            )

    def adapt_tokenizer(self, text: TextTokenizer) -> TextTokenizer:
        """The tokenizer with the end token, which may be missing in the vocabulary of another tokenizer."""
        return text if text.token_to_id(END_OF_TEXT) is not None else text.with_special_tokens([END_OF_TEXT])

    def fit_config(self, config: Any, processor: TextTokenizer) -> Any:
        end = processor.token_to_id(END_OF_TEXT)
        if end is None:
            raise DataError(
                f"The tokenizer has no token {END_OF_TEXT}, which is required at the start and end of each document."
            )
        return replace(config, vocab_size=processor.size, eos_id=end)

    def encode(
        self,
        samples: Sequence[Passage],
        processor: TextTokenizer,
        config: Any,
        max_length: int,
        data: DataSettings | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:
        """Encode passages without a length limit. The end token of a document also begins the next document."""
        clean = DETOKENIZERS["none" if data is None else data.detokenize]
        rows = processor.encode([clean(sample.text) for sample in samples])
        joints = [
            (APART if s.after_gap else OPENS) if s.starts_document else TORN if s.after_gap else CONTINUES
            for s in samples
        ]
        joined = [
            [config.eos_id, *row] if sample.starts_document else row for row, sample in zip(rows, samples, strict=True)
        ]
        flat = {"text": joined, "joint": [[joint] for joint in joints]}
        return Encoded(list(samples), {name: _to_rows(side) for name, side in flat.items()}, [])

    def sampler(self, encoded: Encoded, config: Any, tokens: int, seed: int, packed: bool) -> BatchSampler:
        if config.max_length > tokens:
            raise SettingError(
                f"train.batch_tokens={tokens} is smaller than the context (model.max_length={config.max_length}). "
                "Raise train.batch_tokens or lower model.max_length."
            )
        return make_window_sampler(document_spans(encoded), config.max_length, tokens, seed, packed)

    def collate(self, encoded: Encoded, rows: TokenRanges, config: Any, shape: BatchShape | None = None) -> Batch:
        values = _token_stream(encoded)
        if shape is not None:
            reads = [values[first:last] for first, last in rows]
            labels = [values[first + 1 : last + 1] for first, last in rows]
            x, offsets = pack(reads, shape.row_lengths[0], shape.max_lengths[0], shape.num_documents, config.eos_id)
            y, _ = pack(labels, shape.row_lengths[0], shape.max_lengths[0], shape.num_documents, IGNORE)
            return Batch(x, labels=y, offsets=offsets)
        first, last = rows[:, :1], rows[:, 1:2]
        said, room = (rows[:, 2:3], int(rows[:, 3].max())) if rows.shape[1] > 2 else (first, 0)
        at = first + np.arange(max(room, int((last - first).max())))
        read = np.minimum(at, last)
        # no mask: padding at the end is hidden by the causal mask
        ids = np.where(at < last, values[read].astype(np.int64), config.eos_id)
        says = np.where((at < last) & (at >= said), values[np.minimum(read + 1, last)].astype(np.int64), IGNORE)
        return Batch(torch.from_numpy(ids), labels=torch.from_numpy(says))

    def eval_batches(
        self, encoded: Encoded, config: Any, tokens: int, data: DataSettings | None = None
    ) -> Iterator[Batch]:
        stride = config.max_length if data is None else data.stride or config.max_length
        if stride > config.max_length:
            raise SettingError(
                f"data.stride={stride} must not exceed the context length (model.max_length={config.max_length})."
            )
        windows = sliding_windows(document_spans(encoded), config.max_length, stride)
        for part in chunked(windows, max(tokens // config.max_length, 1)):
            yield self.collate(encoded, np.array([(*window, 0) for window in part]), config)

    def loss(self, model: ModelProtocol, batch: Batch, terms: LossWeights = LossWeights()) -> tuple[Tensor, Tensor]:  # noqa: B008
        assert batch.labels is not None
        return model.body.cross_entropy(model.body(batch).sequence, batch.labels, terms.smoothing)

    def predict(
        self, model: ModelProtocol, inputs: Sequence[str], decode: DecodeSettings, first: int = 0
    ) -> list[Prediction]:
        """Generated continuation of each prompt. An empty prompt is the beginning of a document."""
        text, config = model.require_tokenizer(), model.config
        prompts = [prompt_ids(item, text, config, decode) for item in inputs]
        lengths = np.array([len(row) for row in prompts], dtype=np.int64)
        if not len(prompts):
            return []
        limits = np.array([max_new_tokens(length, config, decode) for length in lengths.tolist()])
        answers: list[Prediction] = [Prediction("")] * len(prompts)
        costs = lengths + limits
        plan = LengthBucketed(costs, max(BATCH_TOKENS, int(costs.max())), seed=0)
        for rows in plan.sequential():
            x, mask = pad([prompts[i] for i in rows], config.eos_id)
            batch = Batch(x, mask).to(model.device)
            until = stop_condition(text, decode.stop_strings)
            found = search(
                model.body, batch, config.eos_id, torch.from_numpy(limits[rows]), decode, requests=first + rows,
                stop_fn=until,
            )  # fmt: skip
            for i, options in zip(rows.tolist(), found, strict=True):
                answers[i] = self._make_prediction(model, inputs[i], options, int(lengths[i]), decode)
        return answers

    def _make_prediction(
        self, model: ModelProtocol, prompt: str, options: list[Hypothesis], given: int, decode: DecodeSettings
    ) -> Prediction:
        text, best = model.require_tokenizer(), options[0]
        values = [text_before_stop(text, option, decode.stop_strings) for option in options]
        why = [finish_reason(option, given, model.config) for option in options]
        extra = {
            "prompt": prompt,
            "token_ids": list(best.tokens),
            "finish_reason": why[0],
            "logprobs": np.round(best.log_probs, 6).tolist(),
            "alternatives": [
                {"value": value, "score": option.score, "finish_reason": because}
                for value, option, because in zip(values, options, why, strict=True)
            ],
        }
        return Prediction(
            values[0], tuple(option.score for option in options), tuple(text.display_tokens(best.tokens)), extra
        )

    def can_stream(self, decode: DecodeSettings) -> bool:
        return decode.num_beams == 1 and decode.num_return_sequences == 1

    def stream_prediction(
        self, model: ModelProtocol, prompt: str, decode: DecodeSettings, first: int = 0
    ) -> Iterator[str]:
        text, config = model.require_tokenizer(), model.config
        ids = prompt_ids(prompt, text, config, decode)
        limit = torch.tensor([max_new_tokens(len(ids), config, decode)])
        batch = Batch(torch.tensor([ids])).to(model.device)
        request, until = np.array([first]), stop_condition(text, decode.stop_strings)
        steps = stream(model.body, batch, config.eos_id, limit, decode, requests=request, stop_fn=until)
        return _iter_text(steps, StreamDecoder(text, decode.stop_strings))

    def rank(self, model: ModelProtocol, prompt: str, choices: Sequence[str]) -> Prediction:
        """Rank continuations by the sum of token log-probabilities after the prompt, as in the zero-shot evaluation of
        GPT-2. The scores are the probabilities normalized over the choices."""
        if len(choices) < 2 or not all(choices):
            raise SettingError("At least two non-empty choices are required.")
        text, config = model.require_tokenizer(), model.config
        given = text.encode([prompt])[0] or [config.eos_id]
        rows = [[*given, *row] for row in text.encode(list(choices))]
        if (most := max(map(len, rows))) > config.max_length:
            raise RegardError(
                f"The prompt with a choice has {most} tokens, but the model supports at most {config.max_length}. "
                "Shorten the prompt."
            )
        x = pad(rows, config.eos_id)[0].to(model.device)
        with torch.inference_mode():
            logits = model.body.to_logits(model.body(Batch(x)).sequence)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        logs = logits[:, :-1].log_softmax(-1).gather(2, x[:, 1:, None])[..., 0].double().cpu()
        sums = [float(logs[i, len(given) - 1 : len(row) - 1].sum()) for i, row in enumerate(rows)]
        counts = [len(row) - len(given) for row in rows]
        chances = torch.tensor(sums, dtype=torch.float64).softmax(0).tolist()
        order = sorted(range(len(choices)), key=lambda i: -sums[i])
        listed = [
            {"value": choices[i], "probability": chances[i], "logprob": sums[i], "tokens": counts[i]} for i in order
        ]
        return Prediction(
            choices[order[0]], tuple(chances[i] for i in order), (), {"prompt": prompt, "choices": listed}
        )

    def fast_decode(self, decode: DecodeSettings) -> DecodeSettings:
        return replace(decode, num_beams=1, num_return_sequences=1, max_new_tokens=64)

    def evaluate(
        self,
        model: ModelProtocol,
        encoded: Encoded,
        decode: DecodeSettings,
        data: DataSettings,
        sums: LossSum,
        max_samples: int | None = None,
    ) -> EvalResult:
        """Perplexity per token and per word of the original text, and bits per byte."""
        size = sum(len(sample.text.encode()) for sample in encoded.samples)
        count = sum(count_words(sample.text) for sample in encoded.samples)
        scores: dict[str, float | str] = {
            "perplexity": round(_safe_exp(sums.mean), 3),
            "word_perplexity": round(_safe_exp(sums.total / max(count, 1)), 2),
            "bits_per_byte": round(sums.total / math.log(2) / max(size, 1), 4),
        }
        clean = DETOKENIZERS[data.detokenize]  # the training texts were cleaned in the same way
        some = [_prompt_prefix(clean(sample.text)) for sample in encoded.samples[:SHOWN]]
        answers = self.predict(model, some, replace(decode, truncate_prompt=True))
        return scores, answers

    def format_scores(self, scores: Mapping[str, Any]) -> str:
        return (
            f"perplexity {scores['perplexity']:8.2f}  word perplexity {scores['word_perplexity']:9,.1f}  "
            f"bits/byte {scores['bits_per_byte']:6.3f}"
        )

    def format_prediction(self, source: str, prediction: Prediction) -> str:
        """Prompt and continuation."""
        return f"{source}{prediction.value}"

    def example_row(self, sample: Passage, prediction: Prediction) -> dict[str, str]:
        return {"text": str(prediction.extra.get("prompt", "")), "prediction": str(prediction.value)}

    def format_example(self, sample: Passage, prediction: Prediction) -> str:
        lines = f"{prediction.extra.get('prompt', '')}▸{prediction.value}".splitlines()
        shown = [line for line, before in zip(lines, ["", *lines], strict=False) if line.strip() or before.strip()]
        return "".join(f"    {line}\n" for line in shown[:MAX_LINES])


def document_spans(encoded: Encoded) -> TokenRanges:
    """(N, 2) first token to read and last token to predict, for each document or contiguous part of a document."""
    text, joint = encoded.fields["text"], encoded.fields["joint"]
    assert isinstance(text, RaggedRows) and isinstance(joint, RaggedRows)
    joints = np.asarray(joint.values)
    heads = np.flatnonzero(joints != CONTINUES)
    heads = heads if len(heads) and heads[0] == 0 else np.concatenate([[0], heads])
    following = np.append(heads[1:], len(joints))
    # The first token of the next document is the end token of this document.
    opens = np.append(joints, CONTINUES)[following] == OPENS
    return np.stack([text.offsets[heads], text.offsets[following] - 1 + opens], axis=1)


def _to_rows(rows: Sequence[Sequence[int]]) -> RaggedRows:
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    values = np.concatenate([np.array(row, dtype=np.int32) for row in rows]) if len(rows) else np.zeros(0, np.int32)
    return RaggedRows(values, starts)


def _token_stream(encoded: Encoded) -> np.ndarray:
    text = encoded.fields["text"]
    assert isinstance(text, RaggedRows)
    return text.values


def _iter_text(steps: Iterator[list[list[int]]], flow: StreamDecoder) -> Iterator[str]:
    for new in steps:
        if part := flow.add(new[0]):
            yield part
        if flow.stopped:
            return
    if rest := flow.end():
        yield rest


def _prompt_prefix(text: str) -> str:
    """Beginning of the text up to a word boundary, as prompt."""
    if len(text) <= BEGINNING:
        return text[: len(text) // 2]
    return text[:BEGINNING].rsplit(" ", 1)[0]


def _safe_exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
