"""Objective `algorithmic`: answers computed from questions, generated synthetically (`data/synthetic`) or read from files.

As `translate`, with words or characters as tokens and separate scores for questions longer than all training questions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from regard.data.settings import DataSettings
from regard.errors import SettingError
from regard.tasks.base import (
    Encoded,
    EvalResult,
    EvalSpec,
    HeadOptions,
    ModelProtocol,
    OptionRules,
    Scores,
    row_lengths,
)
from regard.tasks.translate import Translate
from regard.types import Prediction


class AlgorithmicOptions(OptionRules):
    def complete(self, options: HeadOptions, train: Encoded) -> HeadOptions:
        return replace(options, max_train_length=int(row_lengths(train.fields["source"]).max()) - 1)


class Algorithmic(Translate):
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

    def _evaluate(self, model: ModelProtocol, encoded: Encoded, spec: EvalSpec) -> EvalResult:
        """Exact match and token accuracy in percent: in total, within the training lengths, and for longer questions."""
        samples, text = encoded.samples[: spec.max_samples], model.require_tokenizer()
        predictions = self.predict(model, [sample.source for sample in samples], spec.decode)
        targets = text.encode([sample.target for sample in samples])
        outputs = [list(one.extra["token_ids"]) for one in predictions]
        pairs = list(zip(outputs, targets, strict=True))
        exact = np.array([ours == theirs for ours, theirs in pairs])
        hits = np.array([sum(a == b for a, b in zip(*pair, strict=False)) for pair in pairs])
        sizes = np.array([max(map(len, pair)) for pair in pairs])
        limit = model.spec.options.max_train_length or 10**9
        lengths = row_lengths(encoded.fields["source"])[: len(samples)] - 1
        beyond = np.array(
            [n > limit if s.is_longer is None else s.is_longer for s, n in zip(samples, lengths, strict=True)]
        )
        scores: Scores = {}
        for name, chosen in (("", np.ones(len(samples), bool)), ("_in_range", ~beyond), ("_longer", beyond)):
            if chosen.any() and not (name and not beyond.any()):
                scores[f"exact_match{name}"] = round(100 * float(exact[chosen].mean()), 2)
                token_accuracy = float(hits[chosen].sum() / max(sizes[chosen].sum(), 1))
                scores[f"token_accuracy{name}"] = round(100 * token_accuracy, 2)
        return {**scores, "samples": len(samples)}, predictions

    def example_row(self, sample: Any, prediction: Prediction) -> dict[str, str]:
        return {"question": sample.source, "prediction": str(prediction.value), "reference": sample.target}
