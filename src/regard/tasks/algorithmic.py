"""recall: a question in, the answer that follows from it out. Questions are made by rules (data/synthetic), or are in files.

It is translation with other words, tokens that are whole, and scores that tell lengths that were learnt from longer ones.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from regard.data.settings import Data
from regard.data.synthetic.algorithmic import Question, Recipe, questions, recipe_of
from regard.data.text.pairs import Empty, Pair, iterate_pairs
from regard.decode.settings import Decode
from regard.errors import SettingError
from regard.processors.tokenizer.tokenizer import Text
from regard.tasks.base import Encoded, Scored, Sums, Task, lengths_of
from regard.tasks.protocol import Asked
from regard.tasks.synthetic import Made
from regard.tasks.translate import Translate
from regard.types import Answer


class Recall(Made, Translate):
    name = "recall"
    about = "questions with answers, made by a rule (copy, facts-2, …) or read from files; answers with one"
    unit = "questions"
    metric = "exact"
    sample = Question
    model = "universal-tiny"
    usage = '"a question"'
    heeds = tuple(name for name in (*Translate.heeds, "data.kind") if name not in ("data.vocabulary", "data.tokenized"))

    # -- samples

    def used(self, samples: Sequence[Question]) -> str:
        """One of them: its tokenizer knows no other words or digits."""
        return shlex.quote(samples[0].source) if samples else self.usage

    def recipe(self, entry: str) -> Recipe | None:
        return recipe_of(entry)

    def stream(self, data: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[Question | Empty]:
        for entry in self.entries(data):
            if recipe_of(entry):
                yield from questions(entry)
                continue
            for item in iterate_pairs([entry], columns):
                yield item if isinstance(item, Empty) else Question(item.source, item.target, item.path, item.line)

    # -- the tokenizer

    def check(self, config: Any, tokens: int, data: Data) -> None:
        if data.kind == "wordpiece":
            raise SettingError("data.kind=wordpiece is not for recall: its tokens are whole words, or characters.")

    def tokenizer(self, texts: Iterable[str], data: Data) -> Text:
        return Text.whole(texts, words=data.kind != "characters")

    def closed(self, data: Data) -> bool:
        return True

    def pairing(self, samples: Sequence[Any], data: Data, train: Encoded) -> str:
        """The tokens of the longest question that was learnt from."""
        return f"up to {int(lengths_of(train.sides['source']).max()) - 1}"

    # -- scores

    def score(
        self, model: Asked, encoded: Encoded, decode: Decode, data: Data, sums: Sums, most: int | None = None
    ) -> Scored:
        """Answers that are right as a whole, and tokens that stand in their place; of questions as long as those that were
        learnt from (inside) and of longer ones (beyond) apart."""
        samples, text = encoded.samples[:most], model.text_or_refuse()
        answers = self.answer(model, [sample.source for sample in samples], decode)
        meant = text.encode([sample.target for sample in samples])
        said = [list(answer.extra["ids"]) for answer in answers]
        right = np.array([ours == theirs for ours, theirs in zip(said, meant, strict=True)])
        hits = np.array([sum(a == b for a, b in zip(*both, strict=False)) for both in zip(said, meant, strict=True)])
        sizes = np.array([max(len(ours), len(theirs)) for ours, theirs in zip(said, meant, strict=True)])
        beyond = _beyond(samples, lengths_of(encoded.sides["source"])[: len(samples)] - 1, str(model.identity.pair))
        scores: dict[str, float | str] = {}
        for name, chosen in (("", np.ones(len(samples), bool)), ("_inside", ~beyond), ("_beyond", beyond)):
            if chosen.any() and not (name and not beyond.any()):
                scores[f"exact{name}"] = round(100 * float(right[chosen].mean()), 2)
                scores[f"tokens{name}"] = round(100 * float(hits[chosen].sum() / max(sizes[chosen].sum(), 1)), 2)
        return {**scores, "samples": len(samples)}, answers

    def line(self, scores: Mapping[str, Any]) -> str:
        return f"{Task.line(self, scores)}  (greedy, {scores['samples']:,} {self.unit})"

    def example(self, sample: Pair, answer: Answer) -> dict[str, str]:
        return {"question": sample.source, "answer": str(answer.value), "right": sample.target}


def _beyond(samples: Sequence[Question], lengths: np.ndarray, pair: str) -> np.ndarray:
    """Which questions are longer than all that were learnt from: as they say themselves, else by their tokens."""
    learnt = int(pair.rpartition(" ")[2]) if pair.startswith("up to ") else 10**9
    return np.array([n > learnt if s.beyond is None else s.beyond for s, n in zip(samples, lengths, strict=True)])
