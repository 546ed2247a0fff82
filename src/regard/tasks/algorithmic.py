"""Task `algorithmic`: answers computed from questions, generated synthetically (`data/synthetic`) or read from files.

As `translate`, with words or characters as tokens and separate scores for questions longer than all training questions."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from regard.data.settings import DataSettings
from regard.data.synthetic.algorithmic import AlgorithmicQuestion, AlgorithmicRecipe, generate_questions, parse_recipe
from regard.data.text.samples import Pair, iterate_pairs
from regard.data.text.tables import SkippedRow
from regard.decode.settings import DecodeSettings
from regard.errors import SettingError
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.tasks.base import Encoded, EvalResult, LossSum, Task, row_lengths
from regard.tasks.protocol import ModelProtocol
from regard.tasks.synthetic import SyntheticTask
from regard.tasks.translate import Translate
from regard.types import Prediction


class Algorithmic(SyntheticTask, Translate):
    name = "algorithmic"
    description = "Algorithmic tasks: copy, reverse, sort, add, facts (bAbI style)."
    unit = "questions"
    metric = "exact_match"
    sample_type = AlgorithmicQuestion
    default_model = "universal-tiny"
    usage = '"a question"'
    settings_used = tuple(
        name
        for name in (*Translate.settings_used, "data.tokenizer_type")
        if name not in ("data.vocab_size", "data.pretokenized")
    )

    # -- samples

    def usage_for(self, samples: Sequence[AlgorithmicQuestion]) -> str:
        """Example question for the model card; other words may be missing in the vocabulary."""
        return shlex.quote(samples[0].source) if samples else self.usage

    def recipe(self, entry: str) -> AlgorithmicRecipe | None:
        return parse_recipe(entry)

    def iter_samples(
        self, data: Sequence[str], columns: Mapping[str, str] | None = None
    ) -> Iterator[AlgorithmicQuestion | SkippedRow]:
        for entry in self.expand_entries(data):
            if parse_recipe(entry):
                yield from generate_questions(entry)
                continue
            for item in iterate_pairs([entry], columns):
                yield (
                    item
                    if isinstance(item, SkippedRow)
                    else AlgorithmicQuestion(item.source, item.target, item.path, item.line)
                )

    # -- tokenizer

    def check_settings(self, config: Any, tokens: int, data: DataSettings) -> None:
        if data.tokenizer_type == "wordpiece":
            raise SettingError(
                "data.tokenizer_type=wordpiece is not supported by task 'algorithmic'. The tokens of this task are whole "
                "words, or single characters with data.tokenizer_type=char."
            )

    def train_tokenizer(self, texts: Iterable[str], data: DataSettings) -> TextTokenizer:
        return TextTokenizer.from_words(texts, words=data.tokenizer_type != "char")

    def has_closed_vocabulary(self, data: DataSettings) -> bool:
        return True

    def head_options(self, samples: Sequence[Any], data: DataSettings, train: Encoded) -> str:
        """Maximum number of tokens of a training question."""
        return f"up to {int(row_lengths(train.fields['source']).max()) - 1}"

    # -- scores

    def evaluate(
        self,
        model: ModelProtocol,
        encoded: Encoded,
        decode: DecodeSettings,
        data: DataSettings,
        sums: LossSum,
        max_samples: int | None = None,
    ) -> EvalResult:
        """Exact match and token accuracy in percent: in total, within the training lengths, and for longer questions."""
        samples, text = encoded.samples[:max_samples], model.require_tokenizer()
        answers = self.predict(model, [sample.source for sample in samples], decode)
        meant = text.encode([sample.target for sample in samples])
        said = [list(answer.extra["token_ids"]) for answer in answers]
        right = np.array([ours == theirs for ours, theirs in zip(said, meant, strict=True)])
        hits = np.array([sum(a == b for a, b in zip(*both, strict=False)) for both in zip(said, meant, strict=True)])
        sizes = np.array([max(len(ours), len(theirs)) for ours, theirs in zip(said, meant, strict=True)])
        beyond = _beyond_trained_length(
            samples, row_lengths(encoded.fields["source"])[: len(samples)] - 1, str(model.spec.head_options)
        )
        scores: dict[str, float | str] = {}
        for name, chosen in (("", np.ones(len(samples), bool)), ("_in_range", ~beyond), ("_longer", beyond)):
            if chosen.any() and not (name and not beyond.any()):
                scores[f"exact_match{name}"] = round(100 * float(right[chosen].mean()), 2)
                scores[f"token_accuracy{name}"] = round(
                    100 * float(hits[chosen].sum() / max(sizes[chosen].sum(), 1)), 2
                )
        return {**scores, "samples": len(samples)}, answers

    def format_scores(self, scores: Mapping[str, Any]) -> str:
        return f"{Task.format_scores(self, scores)}  ({scores['samples']:,} samples, greedy)"

    def example_row(self, sample: Pair, prediction: Prediction) -> dict[str, str]:
        return {"question": sample.source, "prediction": str(prediction.value), "reference": sample.target}


def _beyond_trained_length(samples: Sequence[AlgorithmicQuestion], lengths: np.ndarray, pair: str) -> np.ndarray:
    """(N,) True for questions longer than all training questions, from `is_longer` or else from the number of tokens."""
    learnt = int(pair.rpartition(" ")[2]) if pair.startswith("up to ") else 10**9
    return np.array([n > learnt if s.is_longer is None else s.is_longer for s, n in zip(samples, lengths, strict=True)])
