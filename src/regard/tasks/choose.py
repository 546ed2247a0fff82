"""choose: what is told and some answers in, one of them out. Any encoder or decoder-only system can be asked."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.data.settings import Data
from regard.data.text import unlabeled_rows
from regard.data.text.files import Complain
from regard.data.text.labeled import QUESTION, Question, iterate_questions
from regard.data.text.tables import Empty
from regard.decode.settings import Decode
from regard.draw.confusion import MANY, draw_confusion
from regard.errors import RegardError
from regard.processors.tokenizer.tokenizer import Text
from regard.tasks.act import thought
from regard.tasks.base import READ, TEXT, Encoded, Scored, Sums
from regard.tasks.classify import told_of
from regard.tasks.metrics.per_class import Each
from regard.tasks.protocol import Asked
from regard.tasks.special_tokens import Marks
from regard.tasks.text_heads import Headed, Read, first_of, read_out
from regard.types import IGNORE, Answer


class Choose(Headed):
    name = "choose"
    about = "a context, perhaps a question, and choices; answers with one of the choices"
    columns = QUESTION
    unit = "questions"
    sample = Question
    usage = '"a context" --choices "one answer|another"'
    by_ways = True
    heeds = (*TEXT, *READ, "train.smoothing", "train.auxiliary")

    def stream(self, data: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[Question | Empty]:
        return iterate_questions(data, columns)

    def inputs_of(self, entry: str, columns: Mapping[str, str] | None, complain: Complain) -> Iterator[tuple[int, Any]]:
        return unlabeled_rows.questions(entry, columns, complain)

    def key(self, sample: Question) -> str:
        return "\0".join((sample.told, *sample.choices))

    def words(self, sample: Question) -> Iterable[str]:
        return (sample.told, *sample.choices)

    def classes(self, sample: Question) -> str:
        return str(sample.label)

    def head(self, config: Any, labels: Sequence[str]) -> nn.Module:
        return read_out("choice", config, 1)

    def encode(
        self, samples: Sequence[Question], reader: Text, config: Any, longest: int, data: Data | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:  # fmt: skip
        """A way for each choice: `[start] context and question [delimiter] choice [extract]`."""
        marks, limit = Marks.of(reader, config), min(longest, config.length)
        told = reader.encode([sample.told for sample in samples])
        choices = iter(reader.encode([marks.second(choice) for sample in samples for choice in sample.choices]))
        ways = [
            [marks.way([first or [config.end], next(choices)], limit) for _ in sample.choices]
            for first, sample in zip(told, samples, strict=True)
        ]
        return self.encoded(samples, ways, [max(sample.label, 0) for sample in samples])

    def judge(self, model: Asked, found: Read) -> Tensor:
        """(S, K): a number for each choice; that of one which is not there is −∞."""
        return self.headed(model)(found.states)[..., 0].masked_fill(found.lengths == 0, -torch.inf)

    def compare(self, logits: Tensor, found: Read, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        """Smoothing goes to the other choices of the same question."""
        asked, there = labels != IGNORE, found.lengths > 0
        logs = (logits if logits.dtype == torch.float64 else logits.float()).masked_fill(~asked[:, None], 0.0)
        logs = logs.log_softmax(-1).masked_fill(~there, 0.0)
        own = logs.gather(1, labels.clamp(min=0)[:, None])[:, 0]
        others = (logs.sum(1) - own) / (there.sum(1) - 1).clamp(min=1)
        losses = -(1 - smoothing) * own - smoothing * others
        return torch.where(asked, losses, 0.0).sum(), asked.sum()

    def alone(self, inputs: Any) -> bool:
        return isinstance(inputs, str | Mapping | Question)

    def answer(self, model: Asked, inputs: Sequence[Any], decode: Decode, first: int = 0) -> list[Answer]:
        """Of each {"context": …, "question": …, "choices": […]}, as such or as JSON, the likeliest choice."""
        samples = [_asked(item) for item in inputs]
        text = model.text_or_refuse()
        encoded = self.encode(samples, text, model.config, model.config.length)
        return thought(self, model, encoded, self._answers(model, encoded))

    def choose(self, model: Asked, prompt: str, choices: Sequence[str]) -> Answer:
        """The same of one context."""
        text = model.text_or_refuse()
        return self._answers(
            model, self.encode([_question(prompt, "", choices)], text, model.config, model.config.length)
        )[0]

    def _answers(self, model: Asked, encoded: Encoded) -> list[Answer]:
        """`scores` and `choices` begin with the likeliest."""
        self.headed(model)
        cut = {id(sample) for sample in encoded.too_long}
        answers = []
        for sample, chances in zip(encoded.samples, self.weighed(model, encoded), strict=True):
            order = np.argsort(-chances, kind="stable").tolist()
            listed = [{"value": sample.choices[i], "probability": float(chances[i])} for i in order]
            extra: dict[str, Any] = {"prompt": sample.told, "choices": listed, "index": order[0]}
            extra |= {"cut": True} if id(sample) in cut else {}
            answers.append(Answer(sample.choices[order[0]], tuple(float(chances[i]) for i in order), (), extra))
        return answers

    def score(
        self, model: Asked, encoded: Encoded, decode: Decode, data: Data, sums: Sums, most: int | None = None
    ) -> Scored:
        """The share of 100 that was answered rightly, and what would be by chance."""
        some = first_of(encoded, most)
        answers = self._answers(model, some)
        right = [sample.label == answer.extra["index"] for sample, answer in zip(some.samples, answers, strict=True)]
        chance = [1 / len(sample.choices) for sample in some.samples]
        scores: dict[str, float | str] = {
            "accuracy": round(100 * float(np.mean(right)), 2),
            "by_chance": round(100 * float(np.mean(chance)), 2),
            "samples": len(answers),
        }
        places = max(len(sample.choices) for sample in some.samples)
        if most is None:
            scores |= told_of(_places(places), _taken(some.samples, answers, places), _each(some.samples, answers))
        return scores, answers

    def draw(self, folder: Path, samples: Sequence[Question], answers: Sequence[Answer]) -> list[str]:
        """Whether some place is chosen more often than it is right."""
        places = max((len(sample.choices) for sample in samples), default=0)
        if places < 2:
            return []
        if places > MANY:
            return [_each(samples, answers).draw(folder / "choices.png").name]
        counts = _taken(samples, answers, places)
        return [draw_confusion(_places(places), counts, folder / "confusion.png").name]

    def example(self, sample: Question, answer: Answer) -> dict[str, str]:
        return {
            "told": sample.told,
            "answer": str(answer.value),
            "reference": sample.choices[sample.label],
            "probability": f"{answer.scores[0]:.3f}",
        }


def _places(count: int) -> list[str]:
    return [f"choice {place}" for place in range(count)]


def _each(samples: Sequence[Question], answers: Sequence[Answer]) -> Each:
    """How well each place is chosen where it is right."""
    right = [[f"choice {sample.label}"] for sample in samples]
    return Each.of(right, [[f"choice {answer.extra['index']}"] for answer in answers], "questions")


def _taken(samples: Sequence[Question], answers: Sequence[Answer], places: int) -> np.ndarray:
    """(places, places): how often the right choice stood at each (rows) and the one at each was taken (columns)."""
    counts = np.zeros((places, places), dtype=np.int64)
    for sample, answer in zip(samples, answers, strict=True):
        counts[sample.label, answer.extra["index"]] += 1
    return counts


def _asked(item: Any) -> Question:
    if isinstance(item, Question):
        return item
    wanted = 'a question is {"context": "…", "choices": ["…", "…"]}, perhaps with "question"'
    if isinstance(item, str):
        try:
            item = json.loads(item)
        except ValueError:
            item = None
    if not isinstance(item, Mapping) or not {"context", "choices"} <= item.keys() <= {*QUESTION, "answer"}:
        raise RegardError(f'{wanted}; or a context, and what to choose from: --choices "one answer|another".')
    context, question = item["context"], item.get("question", "")
    if not isinstance(context, str) or not isinstance(question, str):
        raise RegardError(f"{wanted}: context and question are texts.")
    return _question(context, question, item["choices"])


def _question(context: str, question: str, choices: Any) -> Question:
    listed = [choices] if isinstance(choices, str) else list(choices)
    if len(listed) < 2 or not all(isinstance(choice, str) and choice.strip() for choice in listed):
        raise RegardError("a choice needs two or more texts, none of them empty.")
    return Question(context.strip(), question.strip(), tuple(choice.strip() for choice in listed))
