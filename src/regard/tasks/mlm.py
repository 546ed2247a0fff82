"""Objective `mlm`: masked language modeling and next-sentence prediction (NSP), the pretraining of encoders.

A row is `[CLS] text [SEP]`, or with `model.nsp` `[CLS] A [SEP] B [SEP]`, where B follows A in half of the rows and comes
from another document in the others. Rows depend on (seed, epoch), masked tokens on (seed, micro-batch); validation is
fixed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.batching.padding import pad, pad_or_pack
from regard.data.batching.samplers import BatchSampler, BatchShape, length_batches
from regard.data.batching.windows import (
    MaskedRows,
    PretrainingSampler,
    Segments,
    TokenMasker,
    segment_pairs,
    single_segments,
)
from regard.data.settings import DataSettings
from regard.data.store import RaggedRows
from regard.data.text.documents import DETOKENIZERS, Passage
from regard.decode.settings import DecodeSettings
from regard.draw.text import markdown_table
from regard.errors import InputError, RegardError, SettingError
from regard.nn.blocks.heads import PretrainingHead, mlm_head
from regard.nn.kernels.losses import cross_entropy
from regard.processors.tokenizer.token_text import TokenFormat
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.processors.tokenizer.vocabulary import BERT_MASK
from regard.tasks import base, lm
from regard.tasks.modality.text import SpecialTokens, pad_id
from regard.types import IGNORE, Batch, BodyOutput, Prediction, TextFields

SHOWN, BEGINNING = 3, 120  # number of samples with predictions during validation, and number of their characters
NSP_NOT_MEASURED = "not measured, because the validation data is a single document"
"""Score of NSP if no other document can provide a negative B."""
MIN_LENGTH = 8  # minimum of the maximum row length in tokens
TOP_K = 5  # number of candidates per mask token


class MaskedLM(base.Objective):
    metrics = ("loss",)
    lower_is_better = True
    fields = ("text", "joint", "document")
    count_fields = ("document",)
    multiline = True
    truncation = "at the end"
    modality_options: ClassVar[Any] = {"text": {"documents": True}}
    encoding_settings = ("detokenize",)
    settings = (
        *base.ENCODING_SETTINGS,
        "data.mask_prob",
        "data.whole_word_mask",
        "data.detokenize",
        "train.label_smoothing",
    )

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

    def head(self, config: Any, options: base.HeadOptions) -> nn.Module:
        return PretrainingHead(mlm_head(config), config.width, config.traits.nsp)

    def encode(self, samples: Sequence[Passage], config: Any, context: base.EncodingContext) -> base.Encoded:
        """Encode passages without special tokens and without a length limit."""
        encoded = lm.encode_passages(samples, context)
        documents = lm.ragged_rows([[sample.document] for sample in samples])
        return replace(encoded, fields={**encoded.fields, "document": documents})

    def sampler(self, encoded: base.Encoded, config: Any, tokens: int, seed: int, packed: bool) -> BatchSampler:
        longest, special = row_limit(encoded.context, config), num_special_tokens(config)
        return PretrainingSampler(
            document_parts(encoded), longest, special, max(tokens, longest), seed, packed, config.traits.nsp
        )

    def collate(self, encoded: base.Encoded, rows: Any, config: Any, shape: BatchShape | None = None) -> Batch:
        """`rows` of the sampler, with the seed and the number of the micro-batch in columns 5 and 6."""
        random = np.random.default_rng(np.random.SeedSequence([*rows[0, 5:7].tolist(), 2]))
        masker = token_masker(encoded.context, config)
        return _build_batch(masker, masker(build_rows(encoded, rows, config), random), rows, config, shape)

    def eval_batches(self, encoded: base.Encoded, config: Any, tokens: int) -> Iterator[Batch]:
        """All rows with the same masked tokens in every evaluation, independent of the batch size."""
        random, masker = np.random.default_rng(0), token_masker(encoded.context, config)
        parts, longest = document_parts(encoded), row_limit(encoded.context, config)
        parts = parts[parts[:, 1] > parts[:, 0]]
        make_rows = segment_pairs if config.traits.nsp else single_segments
        rows = make_rows(parts, longest - num_special_tokens(config), random)
        texts = build_rows(encoded, rows, config)
        masked = masker(texts, random) if texts else MaskedRows([], [], [])
        for chosen in length_batches(np.array([len(row) for row in texts], dtype=np.int64), max(tokens, longest)):
            some = MaskedRows(*([side[i] for i in chosen] for side in masked))
            yield _build_batch(masker, some, rows[chosen], config)

    def logits(self, model: base.Model, batch: Batch) -> Tensor:
        """(B, L, V) token logits at each position."""
        return model.head.words(model.body(batch).sequence, model.body.tokens)

    def loss(self, model: base.Model, batch: Batch, terms: base.LossWeights = base.NO_WEIGHTS) -> base.Loss:
        """(sum, count) over masked tokens: MLM loss + average NSP loss × number of masked tokens. With one micro-batch per
        step this is the loss of the paper; with several, the NSP losses are weighted by the numbers of masked tokens."""
        states = model.body(batch)
        total, count = model.head.words.cross_entropy(
            labeled_states(states, batch), model.body.tokens, batch.require_labels(), terms.smoothing
        )
        if model.head.has_nsp and batch.text.nsp_labels is not None:
            more, many = cross_entropy(model.head.follows(states.pooled), batch.text.nsp_labels)
            total = total + more * count / many.clamp(min=1)
        return base.add_act_cost(model, (total, count), states)

    def predict(self, model: base.Model, inputs: list[str], decode: DecodeSettings, first: int = 0) -> list[Prediction]:
        """Fill each mask token with the most likely token, independently of other mask tokens. `extra["masks"]` has the
        `TOP_K` candidates of each mask token."""
        text, config = base.require_tokenizer(model), model.config
        gap = mask_token(text)
        texts = [base.require_text(item).replace(BERT_MASK, gap) for item in inputs]
        for item in texts:
            if gap not in item:
                raise InputError(f"No {gap} in {item!r:.80}. Write {gap} in place of each word to predict.")
        marks = SpecialTokens.from_tokenizer(text, config)
        rows = [[*marks.start, *ids, *marks.extract] for ids in text.encode_masked(texts)]
        if (most := max(map(len, rows), default=0)) > config.max_length:
            raise InputError(
                f"Input has {most:,} tokens, but the model supports at most {config.max_length:,}. Shorten the text around "
                f"{gap}."
            )
        predictions: list[Prediction] = [Prediction("")] * len(rows)
        known = torch.from_numpy(np.flatnonzero(text_token_mask(text, config))).to(model.device)
        for chosen in length_batches(np.array([len(row) for row in rows], dtype=np.int64), base.BATCH_TOKENS):
            x, mask = pad([rows[i] for i in chosen], config.pad_id)
            batch = Batch(x, mask).to(model.device)
            at = (batch.inputs == config.mask_id).nonzero()
            with torch.inference_mode():
                states = model.body(batch)
                gaps = states.sequence[at[:, 0], at[:, 1]]
                chances = model.head.words(gaps, model.body.tokens).double().softmax(-1)[:, known]
            best_chances, best = chances.topk(min(TOP_K, len(known)))
            tokens = known[best].cpu().numpy()
            for number, row in enumerate(chosen.tolist()):
                own = (at[:, 0] == number).cpu()
                found = tokens[own.numpy()], best_chances.cpu()[own].numpy()
                predictions[row] = _filled_text(text, texts[row], rows[row], *found)
                if states.act_steps is not None:
                    predictions[row].extra["act_steps"] = states.act_steps[number, : len(rows[row])].tolist()
        return predictions

    def evaluate(self, model: base.Model, encoded: base.Encoded, spec: base.EvalSpec) -> base.EvalResult:
        """Loss, perplexity and accuracy on masked tokens, and NSP accuracy, in percent."""
        measured = np.zeros(5)
        with torch.inference_mode():
            for batch in self.eval_batches(encoded, model.config, base.BATCH_TOKENS):
                batch = batch.to(model.device)
                states, labels, follows = model.body(batch), batch.require_labels(), batch.text.nsp_labels
                logits = model.head.words(labeled_states(states, batch), model.body.tokens)
                found = [*cross_entropy(logits, labels), (logits.argmax(-1) == labels).sum()]
                if model.head.has_nsp and follows is not None:
                    predicted = model.head.follows(states.pooled).argmax(-1)
                    found += [(predicted == follows).sum(), (follows != IGNORE).sum()]
                measured[: len(found)] += [float(value) for value in found]
        loss, words, hits, correct, pairs = measured.tolist()
        scores: base.Scores = {
            "mlm_loss": round(loss / max(words, 1), 4),
            "perplexity": round(base.safe_exp(loss / max(words, 1)), 2),
            "accuracy": round(100 * hits / max(words, 1), 2),
        }
        if pairs or model.config.traits.nsp:
            scores["nsp_accuracy"] = round(100 * correct / pairs, 2) if pairs else NSP_NOT_MEASURED
        clean = DETOKENIZERS[spec.data.detokenize]
        shown = [_mask_words(clean(sample.text), model) for sample in encoded.samples[:SHOWN]]
        filled = iter(self.predict(model, [text for text, references in shown if references], spec.decode))
        predictions = []
        for text, references in shown:
            predictions.append(next(filled) if references else Prediction(text, extra={"masks": []}))
            predictions[-1].extra.update(masked_text=text, references=references)
        return scores, predictions

    def format_scores(self, scores: Mapping[str, Any]) -> str:
        words = f"MLM perplexity {scores['perplexity']:8.2f}, accuracy {scores['accuracy']:5.2f} %"
        follows = scores.get("nsp_accuracy")
        if isinstance(follows, str):
            return f"{words}  NSP accuracy: {follows}"
        return words if follows is None else f"{words}  NSP accuracy {follows:5.2f} % (chance: 50 %)"

    def table_columns(self, prediction: Prediction) -> dict[str, Any]:
        words = [candidates[0]["word"] for candidates in prediction.extra["masks"]]
        return {"prediction": prediction.value, "words": words, "probability": list(prediction.score)}

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
        return {
            "text": str(prediction.extra.get("masked_text", "")),
            "prediction": ", ".join(gap[0]["word"] for gap in prediction.extra["masks"]),
            "reference": ", ".join(prediction.extra.get("references", ())),
        }

    def format_example(self, sample: Passage, prediction: Prediction) -> str:
        lines = [f"    {' '.join(str(prediction.extra['masked_text']).split())}\n"]
        for reference, gap in zip(prediction.extra["references"], prediction.extra["masks"], strict=True):
            lines.append(f"    {reference}: {format_candidates(gap)}\n")
        return "".join(lines)


def num_special_tokens(config: Any) -> int:
    """Number of special tokens per row."""
    return 2 + (config.traits.separators if config.traits.nsp else 0)


# -- rows and batches


def row_limit(context: base.EncodingContext, config: Any) -> int:
    """Maximum row length in tokens."""
    data = context.data or DataSettings()
    return min(context.max_length, data.max_length, config.max_length)


def token_masker(context: base.EncodingContext, config: Any) -> TokenMasker:
    if "masker" not in context.cache:
        text, data = context.processor, context.data or DataSettings()
        starts = text.starts_word if data.whole_word_mask else None
        context.cache["masker"] = TokenMasker(config.mask_id, text_token_mask(text, config), data.mask_prob, starts)
    masker: TokenMasker = context.cache["masker"]
    return masker


def document_parts(encoded: base.Encoded) -> Segments:
    """(start, end, document number) of each contiguous part of a document, which may lack the beginning."""
    heads, starts, ends, _ = lm.document_parts(encoded)
    document = encoded.fields["document"]
    assert isinstance(document, RaggedRows)
    return np.stack([starts, ends, np.asarray(document.values)[heads]], axis=1)


def build_rows(encoded: base.Encoded, rows: np.ndarray, config: Any) -> list[np.ndarray]:
    """Token ids of the rows with special tokens."""
    values = lm.token_stream(encoded)
    start, end = np.array([config.bos_id]), np.array([config.eos_id])
    middle = np.array([config.eos_id] * config.traits.separators)
    return [
        np.concatenate([start, values[a:b], *((middle, values[c:d], end) if config.traits.nsp else (end,))]).astype(
            np.int64
        )
        for a, b, c, d in rows[:, :4].tolist()
    ]


def _build_batch(
    masker: TokenMasker, masked: MaskedRows, rows: np.ndarray, config: Any, shape: BatchShape | None = None
) -> Batch:
    """Padded rows, or one packed row with the maximum number of label positions, because packed shapes are fixed."""
    labels, lengths = torch.from_numpy(np.concatenate(masked.labels)), [len(row) for row in masked.inputs]
    x, mask, offsets = pad_or_pack(masked.inputs, pad_id(config), shape)
    starts = x.shape[1] * np.arange(len(rows)) if shape is None else np.cumsum(lengths) - lengths
    # positions in the flattened batch, from positions in rows
    positions = np.concatenate([at + first for at, first in zip(masked.positions, starts, strict=True)])
    text = TextFields(label_positions=torch.from_numpy(positions))
    if config.traits.nsp:
        second = 1 + config.traits.separators + rows[:, 1] - rows[:, 0]
        types = [(np.arange(length) >= at).astype(np.int64) for length, at in zip(lengths, second, strict=True)]
        token_types = pad_or_pack(types, 0, shape)[0] if config.traits.token_types > 1 else None
        text = replace(text, token_types=token_types, nsp_labels=torch.from_numpy(rows[:, 4].copy()))
    if shape is not None:
        sizes = shape.row_lengths[0], shape.num_documents, shape.max_lengths[0]
        room = masker.max_masked(*sizes, num_special_tokens(config)) - len(positions)
        labels = F.pad(labels, (0, room), value=IGNORE)
        text = replace(text, label_positions=F.pad(torch.from_numpy(positions), (0, room)))
        if text.nsp_labels is not None:
            documents = (0, shape.num_documents - len(rows))
            text = replace(text, nsp_labels=F.pad(text.nsp_labels, documents, value=IGNORE))
    return Batch(x, mask, labels=labels, packing=offsets, text=text)


def labeled_states(states: BodyOutput, batch: Batch) -> Tensor:
    """(M, D) hidden states at the label positions, or all hidden states."""
    if batch.text.label_positions is None:
        return states.sequence
    # index_select, because the backward pass of advanced indexing sorts the indices first
    return states.sequence.flatten(0, 1).index_select(0, batch.text.label_positions)


def _mask_words(text: str, model: base.Model) -> tuple[str, tuple[str, ...]]:
    """Beginning of a text with some words masked, and the masked words. The choice is deterministic."""
    tokenizer, gap = base.require_tokenizer(model), mask_token(base.require_tokenizer(model))
    text = text if len(text) <= BEGINNING else text[:BEGINNING].rsplit(" ", 1)[0]
    ids, spans = tokenizer.encode_offsets([text])[0]
    most = max(model.config.max_length // 2 - 1, 1)  # mask tokens may change the tokenization around them
    ids, spans = ids[:most], spans[:most]
    starts = np.append(tokenizer.starts_word(ids), True)
    words = [
        place
        for place in np.flatnonzero(starts[:-1] & starts[1:]).tolist()
        if ids[place] not in tokenizer.special_ids and any(letter.isalnum() for letter in text[slice(*spans[place])])
    ]
    if not words or gap in text or BERT_MASK in text:  # a mask token in the text itself
        return text, ()
    chosen = sorted(np.random.default_rng(0).permutation(words)[: max(round(0.15 * len(ids)), 1)].tolist())
    masked, at = "", 0
    for first, last in (spans[place] for place in chosen):
        masked, at = masked + text[at:first] + gap, last
    return masked + text[at : spans[-1][1]], tuple(text[slice(*spans[place])] for place in chosen)


# -- mask tokens in a text, and the predicted words


def text_token_mask(text: TextTokenizer, config: Any) -> npt.NDArray[np.bool_]:
    """(V,) True for ids of text tokens, False for special tokens and unused ids."""
    table = np.zeros(config.vocab_size, dtype=bool)
    table[[number for number in text.backend.get_vocab().values() if number not in text.special_ids]] = True
    return table


def mask_token(text: TextTokenizer) -> str:
    """The mask token as text."""
    mask = text.special_id("mask")
    if mask is None:
        raise RegardError("The tokenizer has no mask token, so the model cannot predict masked words.")
    return text.id_to_token(mask)


def _filled_text(
    text: TextTokenizer, masked: str, row: Sequence[int], tokens: np.ndarray, chances: np.ndarray
) -> Prediction:
    ids, gap = np.array(row, dtype=np.int64), mask_token(text)
    places = np.flatnonzero(ids == text.special_id("mask"))
    ids[places] = tokens[:, 0]
    starts = text.starts_word(ids)
    gaps: list[list[dict[str, Any]]] = []
    for place, *candidates in zip(places, tokens.tolist(), chances.tolist(), strict=True):
        gaps.append([])
        for token, chance in zip(*candidates, strict=True):
            begins = bool(text.starts_word(np.append(ids[:place], token))[-1])
            gaps[-1].append({"word": token_word(text, token), "begins": begins, "probability": chance})
    filled, *rest = masked.split(gap)
    for number, part in enumerate(rest):
        # a piece that continues a word is appended without a space
        filled = (filled if starts[places[number]] else filled.rstrip()) + gaps[number][0]["word"] + part
    scores = tuple(float(chance) for chance in chances[:, 0])
    return Prediction(filled, scores, tuple(text.display_tokens(ids[places].tolist())), {"masks": gaps})


def token_word(text: TextTokenizer, token: int) -> str:
    """A token as a word or a piece of a word."""
    if text.token_format is TokenFormat.WORDPIECE:
        return text.id_to_token(token).removeprefix(text.word_mark)
    return text.decode([[token]])[0].strip()


def format_candidates(gap: Sequence[dict[str, Any]]) -> str:
    """Candidates of a mask token with probabilities. A dot marks pieces that continue the previous word."""
    return "  ".join(f"{'' if item['begins'] else '·'}{item['word']} {item['probability']:.3f}" for item in gap)
