"""classify: a text or two in, one of some classes out. Any encoder or decoder-only system can be asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from regard.data.rows import Empty
from regard.data.settings import Data
from regard.data.tables import LABELLED, Labelled, iterate_labelled
from regard.decode.settings import Decode
from regard.draw.confusion import MANY, draw_confusion
from regard.draw.table import table
from regard.errors import DataError, RegardError
from regard.inputs.text import Text
from regard.nn.loss import cross_entropy
from regard.tasks.asked import Asked
from regard.tasks.heads import Headed, Read, first_of, numbered, read_out
from regard.tasks.marks import Marks
from regard.tasks.task import Encoded, Scored, Sums
from regard.waists import Answer

SAID = 5
"""Classes whose probabilities are told on a terminal."""


class Classify(Headed):
    name = "classify"
    about = "texts, or pairs of texts, with a class; answers with the class"
    columns = LABELLED
    unit = "texts"
    sample = Labelled
    usage = '"a text"'
    labelled = True

    def stream(self, data: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[Labelled | Empty]:
        return iterate_labelled(data, columns)

    def key(self, sample: Labelled) -> str:
        return f"{sample.text}\0{sample.other}"

    def words(self, sample: Labelled) -> Iterable[str]:
        return (sample.text, sample.other) if sample.other else (sample.text,)

    def classes(self, sample: Labelled) -> str:
        return sample.label

    def labels(self, sample: Labelled) -> Iterable[str]:
        return (sample.label,)

    def flavour(self, data: Data) -> tuple[Any, ...]:
        return (data.pair,)

    def pairing(self, samples: Sequence[Labelled], data: Data) -> str:
        return data.pair if any(sample.other for sample in samples) else ""

    def head(self, config: Any, labels: Sequence[str]) -> nn.Module | None:
        return read_out("classes", config, len(labels)) if labels else None

    def encode(
        self, samples: Sequence[Labelled], text: Text, config: Any, longest: int, data: Data | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:  # fmt: skip
        """One way for a text or an ordered pair, both orders of a symmetric one."""
        if len(labels) < 2:
            raise DataError(
                f"there is one class only ('{labels[0]}'): nothing can be told apart."
                if labels
                else "there are no classes."
            )
        return self._encode(samples, text, config, longest, data is not None and data.pair == "symmetric", labels)

    def _encode(
        self, samples: Sequence[Labelled], text: Text, config: Any, longest: int, symmetric: bool, labels: Sequence[str]
    ) -> Encoded:
        """Without `labels` those are what is asked for."""
        marks, limit = Marks.of(text, config), min(longest, config.length)
        firsts = text.encode([sample.text for sample in samples])
        seconds = text.encode([marks.second(sample.other) if sample.other else "" for sample in samples])
        ways = []
        for first, second in zip(firsts, seconds, strict=True):
            orders = [[first, second]] if second else [[first or [config.end]]]
            orders += [[second, first]] * (symmetric and bool(second))
            ways.append([marks.way(parts, limit) for parts in orders])
        right = numbered(samples, [sample.label for sample in samples], labels) if labels else [0] * len(samples)
        return self.encoded(samples, ways, right)

    def judge(self, model: Asked, found: Read) -> Tensor:
        """Both orders of a symmetric pair are added before the matrix."""
        return self.headed(model)(found.states.sum(1))

    def compare(self, logits: Tensor, found: Read, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        return cross_entropy(logits, labels, smoothing)

    def alone(self, inputs: Any) -> bool:
        return isinstance(inputs, str | tuple)

    def answer(self, model: Asked, inputs: Sequence[Any], decode: Decode, first: int = 0) -> list[Answer]:
        """Of each text, or pair as (a, b) or "a<tab>b", the likeliest class; `scores` are the probabilities of all."""
        self.headed(model)
        pairing = model.identity.pair
        samples = [_asked(item, pairing) for item in inputs]
        text = model.text_or_refuse()
        encoded = self._encode(samples, text, model.config, model.config.length, pairing == "symmetric", ())
        return self._answers(model, encoded)

    def _answers(self, model: Asked, encoded: Encoded) -> list[Answer]:
        labels = model.identity.labels
        cut = {id(sample) for sample in encoded.too_long}
        answers = []
        for sample, chances in zip(encoded.samples, self.weighed(model, encoded), strict=True):
            said = {label: float(chance) for label, chance in zip(labels, chances, strict=True)}
            extra: dict[str, Any] = {"probabilities": said} | ({"cut": True} if id(sample) in cut else {})
            answers.append(Answer(labels[int(chances.argmax())], tuple(said.values()), (), extra))
        return answers

    def score(
        self, model: Asked, encoded: Encoded, decode: Decode, data: Data, sums: Sums, most: int | None = None
    ) -> Scored:
        """Shares of 100: accuracy, the mean of the F1 of the classes, and Matthews' correlation; of all samples also how
        often each class was taken for each."""
        some = first_of(encoded, most)
        answers = self._answers(model, some)
        labels = model.identity.labels
        counts = confusion(labels, [sample.label for sample in some.samples], [str(a.value) for a in answers])
        scores: dict[str, float | str] = {name: round(100 * value, 2) for name, value in measures(counts).items()}
        scores["samples"] = len(answers)
        if most is None and len(labels) <= MANY:
            scores["confusion"] = written(labels, counts)
        return scores, answers

    def draw(self, folder: Path, samples: Sequence[Labelled], answers: Sequence[Answer]) -> list[str]:
        labels = tuple(answers[0].extra["probabilities"]) if answers else ()
        if not 1 < len(labels) <= MANY:
            return []
        counts = confusion(labels, [sample.label for sample in samples], [str(a.value) for a in answers])
        return [draw_confusion(labels, counts, folder / "confusion.png").name]

    def said(self, given: Any, answer: Answer) -> str:
        """The class, and the probabilities of the likeliest ones."""
        chances = sorted(answer.extra["probabilities"].items(), key=lambda item: -item[1])
        return "\t".join([str(answer.value), *(f"{name} {chance:.4f}" for name, chance in chances[:SAID])])

    def example(self, sample: Labelled, answer: Answer) -> dict[str, str]:
        texts = {"text": sample.text, "pair": sample.other} if sample.other else {"text": sample.text}
        sure = answer.extra["probabilities"][answer.value]
        return {**texts, "answer": str(answer.value), "reference": sample.label, "probability": f"{sure:.3f}"}


def _asked(item: Any, pairing: str) -> Labelled:
    if isinstance(item, str):
        first, tab, second = item.partition("\t") if pairing else (item, "", "")
        parts = [first, second] if tab else [item]
    else:
        parts = list(item)
    if len(parts) > 2 or not all(isinstance(part, str) for part in parts):
        raise RegardError(f"a text or a pair (a, b) of texts is wanted, not {item!r:.60}.")
    if pairing and len(parts) < 2:
        raise RegardError('this model looks at two texts together: give (a, b), or "a<tab>b" on a command line.')
    return Labelled(parts[0].strip(), parts[1].strip() if len(parts) > 1 else "", "")


# -- how good the answers are


def confusion(labels: Sequence[str], right: Sequence[str], said: Sequence[str]) -> np.ndarray:
    """(C, C): how often a sample of each class (rows) was taken for each (columns)."""
    number = {label: place for place, label in enumerate(labels)}
    counts = np.zeros((len(labels), len(labels)), dtype=np.int64)
    np.add.at(counts, ([number[label] for label in right], [number[label] for label in said]), 1)
    return counts


def measures(counts: np.ndarray) -> dict[str, float]:
    """Accuracy; F1 by class, averaged over the classes that occur or were said; and Matthews' correlation, for any number
    of classes (Gorodkin 2004), 0 where one side never varies."""
    total, hits = float(counts.sum()), np.diag(counts).astype(float)
    right, said = counts.sum(1).astype(float), counts.sum(0).astype(float)
    there = (right + said) > 0
    f1 = 2 * hits[there] / (right + said)[there]
    spread = (total**2 - (right**2).sum()) * (total**2 - (said**2).sum())
    together = hits.sum() * total - (right * said).sum()
    return {
        "accuracy": float(hits.sum()) / max(total, 1.0),
        "macro_f1": float(f1.mean()) if len(f1) else 0.0,
        "matthews": float(together / np.sqrt(spread)) if spread > 0 else 0.0,
    }


def written(labels: Sequence[str], counts: np.ndarray) -> str:
    """The same as a table."""
    rows = [
        {"is": label, **{f"said {name}": int(count) for name, count in zip(labels, row, strict=True)}}
        for label, row in zip(labels, counts, strict=True)
    ]
    return table(rows)
