"""Objective `lm`: causal language modeling and text generation with decoder-only models.

A document is one stream of tokens: end token, text, end token. Long documents are split into windows; a window never
contains tokens of two documents."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch

from regard.data.batching.padding import pack, pad
from regard.data.batching.samplers import BatchSampler, BatchShape, length_batches
from regard.data.batching.windows import TokenRanges, make_window_sampler, sliding_windows
from regard.data.settings import DataSettings
from regard.data.store import RaggedRows
from regard.data.text.documents import DETOKENIZERS, Passage, count_words
from regard.data.text.files import chunked
from regard.decode.search import Hypothesis, search, stream
from regard.decode.settings import DecodeSettings
from regard.errors import InputError, SettingError
from regard.processors.tokenizer.token_text import StreamDecoder
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.tasks import base
from regard.tasks.modality.text import SpecialTokens
from regard.types import IGNORE, Batch, Prediction

CONTINUES, TORN, OPENS, APART = 0, 1, 2, 3
"""Boundary between a passage and the previous one: same document; same document after removed passages; new document
directly after the end of the previous one; new document, but the end of the previous document was removed."""

MAX_TOKENS = 65_536  # tokens per batch at generation: prompts and new tokens
DEFAULT_NEW_TOKENS = 256  # default of the maximum number of new tokens
MAX_LINES = 16  # maximum lines of a printed sample, without consecutive empty lines
SHOWN, BEGINNING = 3, 120  # number of samples continued during validation, and number of characters of their prompts


class LanguageModeling(base.Objective):
    metrics = ("loss",)
    lower_is_better = True
    fields = ("text", "joint")
    generates = multiline = streams = ranks = True
    has_length_limit = False
    modality_options: ClassVar[Any] = {"text": {"tokenizer": "bytes", "documents": True}}
    encoding_settings = ("detokenize",)
    validation_decode: ClassVar[Any] = {"num_beams": 1, "num_return_sequences": 1, "max_new_tokens": 64}
    settings = (
        "data.tokenizer_type",
        "data.detokenize",
        "data.stride",
        *base.GENERATION_SETTINGS,
        "decode.truncate_prompt",
    )

    def check_settings(self, config: Any, tokens: int, data: DataSettings) -> None:
        if config.max_length > tokens:
            raise SettingError(
                f"train.batch_tokens={tokens} is smaller than the context (model.max_length={config.max_length}). "
                "Raise train.batch_tokens or lower model.max_length."
            )
        _check_stride(config, data.stride)

    def encode(self, samples: Sequence[Passage], config: Any, context: base.EncodingContext) -> base.Encoded:
        """Encode passages without a length limit. The end token of a document also begins the next document."""
        return encode_passages(samples, context, (config.eos_id,))

    def sampler(self, encoded: base.Encoded, config: Any, tokens: int, seed: int, packed: bool) -> BatchSampler:
        return make_window_sampler(document_spans(encoded), config.max_length, tokens, seed, packed)

    def collate(self, encoded: base.Encoded, rows: TokenRanges, config: Any, shape: BatchShape | None = None) -> Batch:
        values = token_stream(encoded)
        if shape is not None:
            sizes = shape.row_lengths[0], shape.max_lengths[0], shape.num_documents
            x, offsets = pack([values[first:last] for first, last in rows], *sizes, config.eos_id)
            labels, _ = pack([values[first + 1 : last + 1] for first, last in rows], *sizes, IGNORE)
            return Batch(x, labels=labels, packing=offsets)
        first, last = rows[:, :1], rows[:, 1:2]
        scored, room = (rows[:, 2:3], int(rows[:, 3].max())) if rows.shape[1] > 2 else (first, 0)
        at = first + np.arange(max(room, int((last - first).max())))
        read = np.minimum(at, last)
        # no mask: padding at the end is hidden by the causal mask
        ids = np.where(at < last, values[read].astype(np.int64), config.eos_id)
        targets = np.where((at < last) & (at >= scored), values[np.minimum(read + 1, last)].astype(np.int64), IGNORE)
        return Batch(torch.from_numpy(ids), labels=torch.from_numpy(targets))

    def eval_batches(self, encoded: base.Encoded, config: Any, tokens: int) -> Iterator[Batch]:
        data = encoded.context.data
        stride = config.max_length if data is None else data.stride or config.max_length
        _check_stride(config, stride)
        windows = sliding_windows(document_spans(encoded), config.max_length, stride)
        for part in chunked(windows, max(tokens // config.max_length, 1)):
            yield self.collate(encoded, np.array([(*window, 0) for window in part]), config)

    def predict(self, model: base.Model, inputs: list[str], decode: DecodeSettings, first: int = 0) -> list[Prediction]:
        """Generated continuation of each prompt. An empty prompt is the beginning of a document."""
        text, config = base.require_tokenizer(model), model.config
        prompts = [prompt_ids(base.require_text(item), text, config, decode) for item in inputs]
        lengths = np.array([len(row) for row in prompts], dtype=np.int64)
        limits = np.array([max_new_tokens(length, config, decode) for length in lengths.tolist()], dtype=np.int64)
        predictions: list[Prediction] = [Prediction("")] * len(prompts)
        for rows in length_batches(lengths + limits, MAX_TOKENS):
            x, mask = pad([prompts[i] for i in rows], config.eos_id)
            found = search(
                model.body,
                Batch(x, mask),
                config.eos_id,
                torch.from_numpy(limits[rows]),
                decode,
                requests=first + rows,
                stop_fn=stop_condition(text, decode.stop_strings),
            )
            for i, hypotheses in zip(rows.tolist(), found, strict=True):
                predictions[i] = _continuation(model, inputs[i], hypotheses, int(lengths[i]), decode)
        return predictions

    def stream(self, model: base.Model, prompt: str, decode: DecodeSettings, first: int = 0) -> Iterator[str]:
        """Generated continuation of a prompt in parts."""
        text, config = base.require_tokenizer(model), model.config
        ids = prompt_ids(prompt, text, config, decode)
        limit = torch.tensor([max_new_tokens(len(ids), config, decode)])
        batch = Batch(torch.tensor([ids]))
        request, stop = np.array([first]), stop_condition(text, decode.stop_strings)
        steps = stream(model.body, batch, config.eos_id, limit, decode, requests=request, stop_fn=stop)
        decoder = StreamDecoder(text, decode.stop_strings)

        def parts() -> Iterator[str]:
            for new in steps:
                if part := decoder.add(new[0]):
                    yield part
                if decoder.stopped:
                    return
            if rest := decoder.end():
                yield rest

        return parts()

    def rank(self, model: base.Model, prompt: str, choices: Sequence[str]) -> Prediction:
        """Rank continuations by the sum of token log-probabilities after the prompt, as in the zero-shot evaluation of
        GPT-2. The scores are the probabilities normalized over the choices."""
        choices = base.require_choices(choices)
        text, config = base.require_tokenizer(model), model.config
        start = frame_prompt(text.encode([base.require_text(prompt)])[0] or [config.eos_id], text, config)
        rows = [[*start, *row] for row in text.encode(choices)]
        if (most := max(map(len, rows))) > config.max_length:
            raise InputError(
                f"The prompt with a choice has {most} tokens, but the model supports at most {config.max_length}. "
                "Shorten the prompt."
            )
        x = pad(rows, config.eos_id)[0].to(model.device)
        with torch.inference_mode():
            logits = model.body.to_logits(model.body(Batch(x)).sequence)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        logs = logits[:, :-1].log_softmax(-1).gather(2, x[:, 1:, None])[..., 0].double().cpu()
        sums = [float(logs[i, len(start) - 1 : len(row) - 1].sum()) for i, row in enumerate(rows)]
        counts = [len(row) - len(start) for row in rows]
        chances = torch.tensor(sums, dtype=torch.float64).softmax(0).tolist()
        order = sorted(range(len(choices)), key=lambda i: -sums[i])
        listed = [
            {"value": choices[i], "probability": chances[i], "logprob": sums[i], "tokens": counts[i]} for i in order
        ]
        scores = tuple(chances[i] for i in order)
        return Prediction(choices[order[0]], scores, (), {"prompt": prompt, "choices": listed})

    def evaluate(self, model: base.Model, encoded: base.Encoded, spec: base.EvalSpec) -> base.EvalResult:
        """Perplexity per token and per word of the original text, and bits per byte."""
        size = sum(len(sample.text.encode()) for sample in encoded.samples)
        count = sum(count_words(sample.text) for sample in encoded.samples)
        scores: base.Scores = {
            "perplexity": round(base.safe_exp(spec.loss.total / spec.loss.count), 3),
            "word_perplexity": round(base.safe_exp(spec.loss.total / max(count, 1)), 2),
            "bits_per_byte": round(spec.loss.total / math.log(2) / max(size, 1), 4),
        }
        clean = DETOKENIZERS[spec.data.detokenize]  # the training texts were cleaned in the same way
        texts = [clean(sample.text) for sample in encoded.samples[:SHOWN]]
        # beginning of the text up to a word boundary
        prompts = [x[: len(x) // 2] if len(x) <= BEGINNING else x[:BEGINNING].rsplit(" ", 1)[0] for x in texts]
        return scores, self.predict(model, prompts, replace(spec.decode, truncate_prompt=True))

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


def _check_stride(config: Any, stride: int) -> None:
    if stride > config.max_length:
        raise SettingError(
            f"data.stride={stride} must not exceed the context length (model.max_length={config.max_length})."
        )


# -- documents, shared with masked language modeling


def encode_passages(
    samples: Sequence[Passage], context: base.EncodingContext, opening: Sequence[int] = ()
) -> base.Encoded:
    """Token ids of passages, with the tokens `opening` before each document, and the boundary before each passage."""
    clean = DETOKENIZERS["none" if context.data is None else context.data.detokenize]
    rows = context.processor.encode([clean(sample.text) for sample in samples])
    rows = [[*opening, *row] if sample.starts_document else row for row, sample in zip(rows, samples, strict=True)]
    joints = [
        (APART if sample.after_gap else OPENS) if sample.starts_document else TORN if sample.after_gap else CONTINUES
        for sample in samples
    ]
    fields = {"text": ragged_rows(rows), "joint": ragged_rows([[joint] for joint in joints])}
    return base.Encoded(list(samples), fields, [], context)


def ragged_rows(rows: Sequence[Sequence[int]]) -> RaggedRows:
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    values = np.concatenate([np.array(row, dtype=np.int32) for row in rows]) if len(rows) else np.zeros(0, np.int32)
    return RaggedRows(values, starts)


def token_stream(encoded: base.Encoded) -> np.ndarray:
    text = encoded.fields["text"]
    assert isinstance(text, RaggedRows)
    return text.values


def document_parts(encoded: base.Encoded) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Contiguous parts of documents: first passage, start and end in the token stream, and the boundary after each."""
    text, joint = encoded.fields["text"], encoded.fields["joint"]
    assert isinstance(text, RaggedRows) and isinstance(joint, RaggedRows)
    joints = np.asarray(joint.values)
    heads = np.flatnonzero(joints != CONTINUES)
    heads = heads if len(heads) and heads[0] == 0 else np.concatenate([[0], heads])
    following = np.append(heads[1:], len(joints))
    return heads, text.offsets[heads], text.offsets[following], np.append(joints, CONTINUES)[following]


def document_spans(encoded: base.Encoded) -> TokenRanges:
    """(N, 2) first token to read and last token to predict, for each document or contiguous part of a document."""
    _, starts, ends, boundaries = document_parts(encoded)
    # The first token of the next document is the end token of this document.
    return np.stack([starts, ends - 1 + (boundaries == OPENS)], axis=1)


# -- generation


def frame_prompt(ids: list[int], text: TextTokenizer, config: Any) -> list[int]:
    """Token ids of a prompt with the special tokens that the tokenizer of a checkpoint adds; the tokens of heads are not
    added."""
    if SpecialTokens.has_head_tokens(text):
        return ids
    marks = SpecialTokens.from_tokenizer(text, config)
    return [*marks.start, *ids, *marks.extract]


def prompt_ids(prompt: str, text: TextTokenizer, config: Any, decode: DecodeSettings) -> list[int]:
    """Token ids of a prompt. The empty prompt is the end token, which begins a document."""
    ids = frame_prompt(text.encode([prompt])[0] or [config.eos_id], text, config)
    if len(ids) <= config.max_length:
        return ids
    if decode.truncate_prompt:
        keep = max(config.max_length + 1 - (decode.max_new_tokens or DEFAULT_NEW_TOKENS), config.max_length // 2)
        return ids[-keep:]
    raise InputError(
        f"The prompt has {len(ids):,} tokens; the context of the model has {config.max_length:,}. Shorten the prompt, "
        "or set decode.truncate_prompt=true to keep the end of the prompt."
    )


def max_new_tokens(prompt_length: int, config: Any, decode: DecodeSettings) -> int:
    """Maximum number of new tokens. The last new token is not an input, so the context has one more."""
    return min(decode.new_token_limit(prompt_length, DEFAULT_NEW_TOKENS), config.max_length - prompt_length + 1)


def stop_condition(text: TextTokenizer, stop_strings: Sequence[str]) -> Callable[[int, list[int]], bool] | None:
    """Function of a row and its new tokens: True if a stop string was generated. Called after every step."""
    # Keyed by the id of the token list, which grows in place. The list is kept so that no other list has this id.
    decoders: dict[int, tuple[list[int], StreamDecoder, int]] = {}

    def is_stopped(row: int, tokens: list[int]) -> bool:
        _, decoder, known = decoders.get(id(tokens), (tokens, StreamDecoder(text, stop_strings), 0))
        decoder.add(tokens[known:])
        decoders[id(tokens)] = tokens, decoder, len(tokens)
        return decoder.stopped

    return is_stopped if stop_strings else None


def _continuation(
    model: base.Model, prompt: str, hypotheses: Sequence[Hypothesis], prompt_length: int, decode: DecodeSettings
) -> Prediction:
    """Prediction with the text before the first stop string, and the reason for the end: eos, stop, length, or context."""
    text, values, reasons = base.require_tokenizer(model), [], []
    for option in hypotheses:
        decoder = StreamDecoder(text, decode.stop_strings)
        values.append(
            decoder.add(option.tokens) + decoder.end() if decode.stop_strings else text.decode([option.tokens])[0]
        )
        full = len(option.tokens) == model.config.max_length - prompt_length + 1
        reasons.append("context" if option.finish_reason == "length" and full else option.finish_reason)
    one = base.text_prediction(text, hypotheses, values)
    for alternative, reason in zip(one.extra["alternatives"], reasons, strict=True):
        alternative["finish_reason"] = reason
    return replace(one, extra={"prompt": prompt, **one.extra, "finish_reason": reasons[0]})
