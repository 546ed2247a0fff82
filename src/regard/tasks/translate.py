"""Objective `translate`: translation with sequence-to-sequence models, and the parts shared with captioning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch

from regard.data.batching.padding import pad, pad_or_pack
from regard.data.batching.samplers import BatchShape, PaddedShape, length_batches
from regard.data.settings import DataSettings
from regard.data.text.samples import Pair
from regard.decode.search import Hypothesis, search
from regard.decode.settings import DecodeSettings
from regard.errors import SettingError
from regard.tasks import base
from regard.types import IGNORE, Batch, DecoderInputs, Prediction

MAX_SOURCE_TOKENS = 8192  # source tokens per batch at inference


def format_pair(objective: base.Objective, sample: Any, prediction: Prediction) -> str:
    """Source, prediction and reference of the table row of a sample as indented lines."""
    source, answer, reference = objective.example_row(sample, prediction).values()
    return f"    {source}\n    → {answer}\n    = {reference}\n"


class Translate(base.Objective):
    metrics = ("bleu",)
    fields = ("source", "target")
    generates = has_decoder_inputs = True
    modality_options: ClassVar[Any] = {"text": {"tokenizer": "sentence"}}
    settings: ClassVar[tuple[str, ...]] = (
        "data.max_length",
        "data.pretokenized",
        *base.GENERATION_SETTINGS,
        "decode.max_extra_tokens",
    )

    def encode(self, samples: Sequence[Pair], config: Any, context: base.EncodingContext) -> base.Encoded:
        """Source + end, and start + target + end. Pairs longer than the limit are skipped."""
        source = context.processor.encode([sample.source for sample in samples])
        target = context.processor.encode([sample.target for sample in samples], target=True)
        limit = context.max_length
        fits = [len(s) <= limit and len(t) <= limit for s, t in zip(source, target, strict=True)]
        kept = [i for i, fit in enumerate(fits) if fit]
        fields = {
            "source": base.int_rows([[*source[i], config.eos_id] for i in kept]),
            "target": base.int_rows([[config.bos_id, *target[i], config.eos_id] for i in kept]),
        }
        too_long = [sample for sample, fit in zip(samples, fits, strict=True) if not fit]
        return base.Encoded([samples[i] for i in kept], fields, too_long, context)

    def collate(self, encoded: base.Encoded, rows: Any, config: Any, shape: BatchShape | None = None) -> Batch:
        """Teacher forcing: decoder inputs start + target, labels target + end."""
        rows = list(rows)
        source, target = ([encoded.fields[side][i] for i in rows] for side in self.fields)
        reads, says = [row[:-1] for row in target], [row[1:] for row in target]
        if isinstance(shape, PaddedShape):  # missing rows repeat the first source with all labels ignored
            missing, (across, over) = shape.num_documents - len(rows), shape.max_lengths
            x, mask = pad(source + source[:1] * missing, config.pad_id, across)
            y, _ = pad(reads + reads[:1] * missing, config.pad_id, over)
            labels, _ = pad(says + [says[0][:0]] * missing, IGNORE, over)
            return Batch(x, mask, labels=labels, decoder=DecoderInputs(y))
        x, mask, offsets = pad_or_pack(source, config.pad_id, shape)
        # No mask for the target: padding at the end is hidden by the causal mask.
        y, _, target_offsets = pad_or_pack(reads, config.pad_id, shape, side=-1)
        labels = pad_or_pack(says, IGNORE, shape, side=-1)[0]
        return Batch(x, mask, labels=labels, packing=offsets, decoder=DecoderInputs(y, packing=target_offsets))

    def predict(self, model: base.Model, inputs: list[str], decode: DecodeSettings, first: int = 0) -> list[Prediction]:
        """Predictions in input order; inputs of similar lengths are decoded together.

        Input i has the random stream `first + i`."""
        text, config = base.require_tokenizer(model), model.config
        # the stripped text, as in training, and the end token
        texts = [base.require_text(item).strip() for item in inputs]
        ids = [np.array([*row, config.eos_id]) for row in text.encode(texts)]
        lengths = np.array([len(row) for row in ids])
        predictions = [base.text_prediction(text, [Hypothesis((), 0.0, (), "eos")])] * len(inputs)
        # padding is never generated, as in Marian models
        banned = () if config.pad_id == config.eos_id else (config.pad_id,)
        nonempty = np.flatnonzero(lengths > 1)
        costs = lengths[nonempty] * max(decode.num_beams, decode.num_return_sequences)
        for chosen in length_batches(costs, MAX_SOURCE_TOKENS):
            rows = nonempty[chosen]
            x, mask = pad([ids[i] for i in rows], config.pad_id)
            batch = Batch(x, mask, decoder=DecoderInputs(torch.full((len(rows), 1), config.bos_id)))
            limits = torch.tensor([decode.new_token_limit(1, int(n) + decode.max_extra_tokens) for n in lengths[rows]])
            # The random stream depends on the position in the input, so batching does not change samples.
            found = search(model.body, batch, config.eos_id, limits, decode, requests=first + rows, banned=banned)
            with torch.inference_mode():
                steps = model.body.act_steps(batch.to(model.device)) if config.traits.act else None
            for number, (i, hypotheses) in enumerate(zip(rows, found, strict=True)):
                predictions[i] = base.text_prediction(text, hypotheses)
                if steps is not None:
                    predictions[i].extra["act_steps"] = steps[number, : lengths[i]].tolist()
        return predictions

    def evaluate(self, model: base.Model, encoded: base.Encoded, spec: base.EvalSpec) -> base.EvalResult:
        """BLEU (with the signature) and chrF of sacreBLEU, and the percentage of exact matches."""
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF

        samples = encoded.samples[: spec.max_samples]
        predictions = self.predict(model, [sample.source for sample in samples], spec.decode)
        texts, references = [str(one.value) for one in predictions], [sample.target for sample in samples]
        bleu = BLEU(tokenize="none", force=True) if spec.data.pretokenized else BLEU()
        matches = sum(a == b for a, b in zip(texts, references, strict=True))
        scores: base.Scores = {
            "bleu": round(bleu.corpus_score(texts, [references]).score, 2),
            "chrf": round(CHRF().corpus_score(texts, [references]).score, 2),
            "exact_match": round(100 * matches / len(references), 2),
            "samples": len(references),
            "signature": str(bleu.get_signature()),
        }
        return scores, predictions

    def example_row(self, sample: Pair, prediction: Prediction) -> dict[str, str]:
        return {"source": sample.source, "prediction": str(prediction.value), "reference": sample.target}

    format_example = format_pair


# -- algorithmic tasks


class AlgorithmicOptions(base.OptionRules):
    def complete(self, options: base.HeadOptions, train: base.Encoded) -> base.HeadOptions:
        return replace(options, max_train_length=int(base.row_lengths(train.fields["source"]).max()) - 1)


class Algorithmic(Translate):
    """Answers computed from questions, generated synthetically (`data/synthetic`) or read from files: words or characters as
    tokens, and separate scores for questions longer than all training questions."""

    metrics = ("exact_match",)
    options = AlgorithmicOptions()
    modality_options: ClassVar[Any] = {"text": {"tokenizer": "words"}}
    settings = (*(name for name in Translate.settings if name != "data.pretokenized"), "data.tokenizer_type")
    example_from = "source"

    def check_settings(self, config: Any, tokens: int, data: DataSettings) -> None:
        if data.tokenizer_type == "wordpiece":
            raise SettingError(
                "data.tokenizer_type=wordpiece is not supported by task 'algorithmic'. The tokens of this task are whole "
                "words, or single characters with data.tokenizer_type=char."
            )

    def evaluate(self, model: base.Model, encoded: base.Encoded, spec: base.EvalSpec) -> base.EvalResult:
        """Exact match and token accuracy in percent: in total, within the training lengths, and for longer questions."""
        samples, text = encoded.samples[: spec.max_samples], base.require_tokenizer(model)
        predictions = self.predict(model, [sample.source for sample in samples], spec.decode)
        targets = text.encode([sample.target for sample in samples], target=True)
        outputs = [list(one.extra["token_ids"]) for one in predictions]
        pairs = list(zip(outputs, targets, strict=True))
        exact = np.array([ours == theirs for ours, theirs in pairs])
        hits = np.array([sum(a == b for a, b in zip(*pair, strict=False)) for pair in pairs])
        sizes = np.array([max(map(len, pair)) for pair in pairs])
        limit = model.spec.options.max_train_length or 10**9
        lengths = base.row_lengths(encoded.fields["source"])[: len(samples)] - 1
        beyond = np.array(
            [n > limit if s.is_longer is None else s.is_longer for s, n in zip(samples, lengths, strict=True)]
        )
        scores: base.Scores = {}
        for name, chosen in (("", np.ones(len(samples), bool)), ("_in_range", ~beyond), ("_longer", beyond)):
            if chosen.any() and not (name and not beyond.any()):
                scores[f"exact_match{name}"] = round(100 * float(exact[chosen].mean()), 2)
                token_accuracy = float(hits[chosen].sum() / max(sizes[chosen].sum(), 1))
                scores[f"token_accuracy{name}"] = round(100 * token_accuracy, 2)
        return {**scores, "samples": len(samples)}, predictions

    def example_row(self, sample: Any, prediction: Prediction) -> dict[str, str]:
        return {"question": sample.source, "prediction": str(prediction.value), "reference": sample.target}
