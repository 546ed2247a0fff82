"""Task `translate`: translation with sequence-to-sequence models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.batching.samplers import BatchShape, LengthBucketed, PaddedShape
from regard.data.settings import DataSettings
from regard.data.text.files import ErrorHandler
from regard.data.text.samples import Pair, iterate_pairs, read_sources
from regard.data.text.tables import SkippedRow
from regard.decode.search import Hypothesis, search
from regard.decode.settings import DecodeSettings
from regard.errors import DataError
from regard.processors.padding import pack, pad
from regard.processors.tokenizer.tokenizer import END, PAD, START, TextTokenizer
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
from regard.tasks.protocol import ModelProtocol
from regard.tasks.seq2seq import seq2seq_loss, source_act_steps, text_prediction
from regard.types import IGNORE, Batch, Prediction


class Translate(Task):
    name = "translate"
    description = "Translation: sentence pairs."
    columns = ("source", "target")
    unit = "pairs"
    metric = "bleu"
    sample_type = Pair
    fields = ("source", "target")
    default_model = "transformer-tiny"
    usage = '"a sentence"'
    settings_used = (
        *TEXT_SETTINGS,
        "data.max_length",
        "data.pretokenized",
        "train.label_smoothing",
        *SEARCH_SETTINGS,
        *GENERATION_SETTINGS,
        "decode.max_extra_tokens",
    )

    def iter_samples(
        self, data: Sequence[str], columns: Mapping[str, str] | None = None
    ) -> Iterator[Pair | SkippedRow]:
        return iterate_pairs(data, columns)

    def iter_inputs(
        self, entry: str, columns: Mapping[str, str] | None, complain: ErrorHandler
    ) -> Iterator[tuple[int, Any]]:
        return read_sources(entry, columns, complain)

    def split_key(self, sample: Pair) -> str:
        return sample.source

    def fingerprint_texts(self, samples: Iterable[Pair]) -> Iterator[str]:
        for sample in samples:
            yield sample.source
            yield sample.target

    def fit_config(self, config: Any, processor: TextTokenizer) -> Any:
        ids = {
            "pad_id": processor.token_to_id(PAD),
            "bos_id": processor.token_to_id(START),
            "eos_id": processor.token_to_id(END),
        }
        missing = [token for token in (PAD, START, END) if processor.token_to_id(token) is None]
        if missing:
            raise DataError(
                f"The tokenizer lacks special tokens that translation requires: {', '.join(missing)}. "
                "Remove data.tokenizer to train a tokenizer with these tokens."
            )
        return replace(config, vocab_size=processor.size, **ids)

    def encode(
        self, samples: Sequence[Pair], processor: TextTokenizer, config: Any, max_length: int, data: DataSettings | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:  # fmt: skip
        """Source + end, and start + target + end. Pairs longer than `max_length` are skipped."""
        source = processor.encode([sample.source for sample in samples])
        target = processor.encode([sample.target for sample in samples])
        fits = [len(s) <= max_length and len(t) <= max_length for s, t in zip(source, target, strict=True)]
        kept = [i for i, fit in enumerate(fits) if fit]
        sides = {
            "source": [np.array([*source[i], config.eos_id], dtype=np.int32) for i in kept],
            "target": [np.array([config.bos_id, *target[i], config.eos_id], dtype=np.int32) for i in kept],
        }
        too_long = [sample for sample, fit in zip(samples, fits, strict=True) if not fit]
        return Encoded([samples[i] for i in kept], sides, too_long)

    def lengths(self, encoded: Encoded) -> np.ndarray:
        """(N, 2) positions per side. The decoder input excludes the end token."""
        return super().lengths(encoded) - np.array([0, 1])

    def collate(self, encoded: Encoded, rows: Iterable[int], config: Any, shape: BatchShape | None = None) -> Batch:
        """Teacher forcing: decoder inputs start + target, labels target + end.

        With a `shape` the samples are packed into one row per side, or padded to a fixed shape."""
        rows = list(rows)
        source, target = ([encoded.fields[side][i] for i in rows] for side in self.fields)
        reads, says = [row[:-1] for row in target], [row[1:] for row in target]
        if isinstance(shape, PaddedShape):
            return _pad_to_block(source, reads, says, config.pad_id, shape)
        if shape is not None:
            (room, target_room), (longest, target_longest), many = (
                shape.row_lengths,
                shape.max_lengths,
                shape.num_documents,
            )
            x, offsets = pack(source, room, longest, many, config.pad_id)
            y, target_offsets = pack(reads, target_room, target_longest, many, config.pad_id)
            labels, _ = pack(says, target_room, target_longest, many, IGNORE)
            return Batch(x, decoder_inputs=y, labels=labels, offsets=offsets, decoder_offsets=target_offsets)
        x, lengths = pad(source, config.pad_id)
        # No mask for the target: padding at the end is hidden by the causal mask.
        return Batch(x, lengths, pad(reads, config.pad_id)[0], labels=pad(says, IGNORE)[0])

    def source_ids(self, text: TextTokenizer, inputs: Sequence[str], config: Any) -> list[list[int]]:
        """Encoder inputs: the stripped text, as in training, and the end token."""
        return [[*row, config.eos_id] for row in text.encode([item.strip() for item in inputs])]

    def loss(self, model: ModelProtocol, batch: Batch, terms: LossWeights = LossWeights()) -> tuple[Tensor, Tensor]:  # noqa: B008
        return seq2seq_loss(model, model.body(batch), batch.labels, terms.smoothing)

    def predict(
        self, model: ModelProtocol, inputs: Sequence[str], decode: DecodeSettings, first: int = 0, budget: int = 8192
    ) -> list[Prediction]:
        """Predictions in input order; inputs of similar lengths are decoded together.

        Input i has the random stream `first + i`; `budget` limits the source tokens per batch."""
        text, config = model.require_tokenizer(), model.config
        ids = [np.array(row) for row in self.source_ids(text, inputs, config)]
        lengths = np.array([len(row) for row in ids])
        answers = [text_prediction(text, [Hypothesis((), 0.0, (), "eos")])] * len(inputs)
        asked = np.flatnonzero(lengths > 1)
        banned = (
            () if config.pad_id == config.eos_id else (config.pad_id,)
        )  # padding is never generated, as in Marian models
        if not len(asked):
            return answers
        costs = lengths[asked] * max(decode.num_beams, decode.num_return_sequences)
        plan = LengthBucketed(costs, max(budget, int(costs.max())), seed=0)
        for chosen in plan.sequential():
            rows = asked[chosen]
            x, mask = pad([ids[i] for i in rows], config.pad_id)
            prompt = torch.full((len(rows), 1), config.bos_id)
            limits = torch.tensor([decode.new_token_limit(1, int(n) + decode.max_extra_tokens) for n in lengths[rows]])
            batch = Batch(x, mask, prompt).to(model.device)
            # The random stream depends on the position in the input, so batching does not change samples.
            found = search(model.body, batch, config.eos_id, limits, decode, requests=first + rows, banned=banned)
            steps = source_act_steps(model, batch)
            for number, (i, options) in enumerate(zip(rows, found, strict=True)):
                answers[i] = text_prediction(text, options)
                if steps is not None:
                    answers[i].extra["act_steps"] = steps[number][: lengths[i]]
        return answers

    def evaluate(
        self,
        model: ModelProtocol,
        encoded: Encoded,
        decode: DecodeSettings,
        data: DataSettings,
        sums: LossSum,
        max_samples: int | None = None,
    ) -> EvalResult:
        """BLEU (with the signature) and chrF of sacreBLEU, and the percentage of exact matches."""
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF

        samples = encoded.samples[:max_samples]
        answers = self.predict(model, [sample.source for sample in samples], decode)
        said, meant = [str(a.value) for a in answers], [sample.target for sample in samples]
        bleu = BLEU(tokenize="none", force=True) if data.pretokenized else BLEU()
        scores: dict[str, float | str] = {
            "bleu": round(bleu.corpus_score(said, [meant]).score, 2),
            "chrf": round(CHRF().corpus_score(said, [meant]).score, 2),
            "exact_match": round(100 * sum(a == b for a, b in zip(said, meant, strict=True)) / len(meant), 2),
            "samples": len(meant),
            "signature": str(bleu.get_signature()),
        }
        return scores, answers

    def format_scores(self, scores: Mapping[str, Any]) -> str:
        return f"{super().format_scores(scores)}  ({scores['samples']:,} samples, greedy)"

    def example_row(self, sample: Pair, prediction: Prediction) -> dict[str, str]:
        return {"source": sample.source, "prediction": str(prediction.value), "reference": sample.target}

    def format_example(self, sample: Pair, prediction: Prediction) -> str:
        return f"    {sample.source}\n    → {prediction.value}\n    = {sample.target}\n"


def _pad_to_block(
    source: list[np.ndarray], reads: list[np.ndarray], says: list[np.ndarray], fill: int, block: PaddedShape
) -> Batch:
    """Batch with the shape of a block. Missing rows repeat the first source with all labels ignored."""
    missing = block.num_documents - len(source)
    across, over = block.max_lengths
    x, lengths = pad(source + source[:1] * missing, fill, across)
    y, _ = pad(reads + reads[:1] * missing, fill, over)
    return Batch(x, lengths, y, labels=pad(says + [says[0][:0]] * missing, IGNORE, over)[0])
