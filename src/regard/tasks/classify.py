"""classify: a text or two in, one of some classes out, or several. Any encoder or decoder-only system can be asked."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from regard.data.settings import Data
from regard.data.text import unlabeled_rows
from regard.data.text.files import Complain
from regard.data.text.labeled import BETWEEN, LABELLED, Labelled, iterate_labelled
from regard.data.text.tables import Empty
from regard.decode.settings import Decode
from regard.draw.confusion import MANY, draw_confusion
from regard.draw.markdown_table import table
from regard.errors import DataError, RegardError
from regard.nn.blocks.losses import cross_entropy
from regard.processors.tokenizer.tokenizer import Text
from regard.tasks.act import thought
from regard.tasks.base import READ, TEXT, Encoded, Scored, Sums, Terms
from regard.tasks.metrics.per_class import Each, confused
from regard.tasks.multilabel import (
    PUBLISHED,
    SEVERAL,
    as_learnt,
    binary_cross_entropy,
    likely,
    pairing_of,
    read_problem,
    rows_of,
    tells_several,
)
from regard.tasks.protocol import Asked
from regard.tasks.special_tokens import Marks
from regard.tasks.text_heads import Headed, Read, first_of, read_out
from regard.types import Answer, Batch

SAID = 5
"""Classes whose probabilities are told on a terminal."""


class Classify(Headed):
    name = "classify"
    about = "texts, or pairs of texts, with a class or several; answers with the class"
    columns = LABELLED
    unit = "texts"
    sample = Labelled
    usage = '"a text"'
    labelled = True
    heeds = (*TEXT, *READ, "data.pair", "train.smoothing", "train.auxiliary", "decode.threshold")

    def stream(self, data: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[Labelled | Empty]:
        return iterate_labelled(data, columns)

    def inputs_of(self, entry: str, columns: Mapping[str, str] | None, complain: Complain) -> Iterator[tuple[int, Any]]:
        return unlabeled_rows.labelled(entry, columns, complain)

    def key(self, sample: Labelled) -> str:
        return f"{sample.text}\0{sample.other}"

    def words(self, sample: Labelled) -> Iterable[str]:
        return (sample.text, sample.other) if sample.other else (sample.text,)

    def classes(self, sample: Labelled) -> str:
        return sample.label if sample.several is None else json.dumps(sorted(sample.several))

    def labels(self, sample: Labelled) -> Iterable[str]:
        return sample.labels

    def flavour(self, data: Data) -> tuple[Any, ...]:
        return (data.pair,)

    def pairing(self, samples: Sequence[Labelled], data: Data, train: Encoded) -> str:
        several = len(train.sides["label"][0]) > 1 or any(sample.several is not None for sample in samples)
        return " ".join([SEVERAL] * several + [data.pair] * any(sample.other for sample in samples))

    def read_manner(self, published: Mapping[str, Any], labels: Sequence[str]) -> str:
        return read_problem(
            published, labels,
            "Its body can be trained for them: regard.save(regard.load(FOLDER, task='embed'), BODY) keeps that alone.",
        )  # fmt: skip

    def write_manner(self, pair: str) -> dict[str, Any]:
        return {"problem_type": PUBLISHED} if SEVERAL in pair.split() else {}

    def head(self, config: Any, labels: Sequence[str]) -> nn.Module | None:
        return read_out("classes", config, len(labels)) if labels else None

    def encode(
        self, samples: Sequence[Labelled], reader: Text, config: Any, longest: int, data: Data | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:  # fmt: skip
        """One way for a text or an ordered pair, both orders of a symmetric one."""
        if len(labels) < 2:
            raise DataError(
                f"there is one class only ('{labels[0]}'): nothing can be told apart."
                if labels
                else "there are no classes."
            )
        return self._encode(samples, reader, config, longest, data is not None and data.pair == "symmetric", labels)

    def _encode(
        self,
        samples: Sequence[Labelled],
        reader: Text,
        config: Any,
        longest: int,
        symmetric: bool,
        labels: Sequence[str],
    ) -> Encoded:
        """Without `labels` those are what is asked for."""
        marks, limit = Marks.of(reader, config), min(longest, config.length)
        firsts = reader.encode([sample.text for sample in samples])
        seconds = reader.encode([marks.second(sample.other) if sample.other else "" for sample in samples])
        ways = []
        for first, second in zip(firsts, seconds, strict=True):
            orders = [[first, second]] if second else [[first or [config.end]]]
            orders += [[second, first]] * (symmetric and bool(second))
            ways.append([marks.way(parts, limit) for parts in orders])
        right = rows_of(samples, labels) if labels else [[0]] * len(samples)
        return self.encoded(samples, ways, right)

    def judge(self, model: Asked, found: Read) -> Tensor:
        """Both orders of a symmetric pair are added before the matrix."""
        return self.headed(model)(found.states.sum(1))

    def compare(self, logits: Tensor, found: Read, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        return (binary_cross_entropy if labels.ndim == 2 else cross_entropy)(logits, labels, smoothing)

    def loss(self, model: Asked, batch: Batch, terms: Terms = Terms()) -> tuple[Tensor, Tensor]:  # noqa: B008
        """Of several labels the mean of their binary cross-entropies stands for the cross-entropy of a sample."""
        assert batch.labels is not None
        return super().loss(model, replace(batch, labels=as_learnt(model, batch.labels)), terms)

    def chances(self, model: Asked, logits: Tensor) -> Tensor:
        return logits.sigmoid() if tells_several(model) else super().chances(model, logits)

    def alone(self, inputs: Any) -> bool:
        return isinstance(inputs, str | tuple)

    def answer(self, model: Asked, inputs: Sequence[Any], decode: Decode, first: int = 0) -> list[Answer]:
        """Of each text, or pair as (a, b) or "a<tab>b", the likeliest class, or the list of labels that are likelier than
        not, the likeliest first; `scores` are the probabilities of all."""
        self.headed(model)
        pairing = pairing_of(model.identity.pair)
        samples = [_asked(item, pairing) for item in inputs]
        text = model.text_or_refuse()
        encoded = self._encode(samples, text, model.config, model.config.length, pairing == "symmetric", ())
        return thought(self, model, encoded, self._answers(model, encoded, decode))

    def _answers(self, model: Asked, encoded: Encoded, decode: Decode) -> list[Answer]:
        labels, several = model.identity.labels, tells_several(model)
        cut = {id(sample) for sample in encoded.too_long}
        answers = []
        for sample, chances in zip(encoded.samples, self.weighed(model, encoded), strict=True):
            said = {label: float(chance) for label, chance in zip(labels, chances, strict=True)}
            extra: dict[str, Any] = {"probabilities": said} | ({"cut": True} if id(sample) in cut else {})
            value = likely(said, decode.threshold) if several else labels[int(chances.argmax())]
            answers.append(Answer(value, tuple(said.values()), (), extra))
        return answers

    def score(
        self, model: Asked, encoded: Encoded, decode: Decode, data: Data, sums: Sums, most: int | None = None
    ) -> Scored:
        """Shares of 100: accuracy, the mean of the F1 of the classes, and Matthews' correlation; of all samples also how
        often each class was taken for each. Of several labels F1 over all of them, and their mean."""
        some = first_of(encoded, most)
        answers = self._answers(model, some, decode)
        if tells_several(model):
            return scored_several([sample.labels for sample in some.samples], answers, most is None), answers
        right, said = [sample.label for sample in some.samples], [str(answer.value) for answer in answers]
        return scored(model.identity.labels, right, said, self.unit, most is None), answers

    def deciding(self, scores: Mapping[str, Any]) -> str:
        return "micro_f1" if "micro_f1" in scores else self.metric

    def draw(self, folder: Path, samples: Sequence[Labelled], answers: Sequence[Answer]) -> list[str]:
        labels = tuple(answers[0].extra["probabilities"]) if answers else ()
        if len(labels) < 2:
            return []
        if isinstance(answers[0].value, list):
            return [each_of([sample.labels for sample in samples], answers).draw(folder / "classes.png").name]
        right, said = [sample.label for sample in samples], [str(answer.value) for answer in answers]
        return [drawn(labels, right, said, self.unit, folder).name]

    def said(self, given: Any, answer: Answer) -> str:
        """The class, or the labels with | between them, and the probabilities of the likeliest ones."""
        chances = sorted(answer.extra["probabilities"].items(), key=lambda item: -item[1])
        return "\t".join(
            [BETWEEN.join(labels_of(answer)), *(f"{name} {chance:.4f}" for name, chance in chances[:SAID])]
        )

    def example(self, sample: Labelled, answer: Answer) -> dict[str, str]:
        texts = {"text": sample.text, "pair": sample.other} if sample.other else {"text": sample.text}
        said = labels_of(answer)
        sure = ", ".join(f"{answer.extra['probabilities'][label]:.3f}" for label in said)
        return {**texts, "answer": ", ".join(said), "reference": ", ".join(sample.labels), "probability": sure}


def _asked(item: Any, pairing: str) -> Labelled:
    if isinstance(item, str):
        first, tab, second = item.partition("\t") if pairing else (item, "", "")
        parts = [first, second] if tab else [item]
    else:
        parts = list(item)
    if len(parts) > 2 or not all(isinstance(part, str) for part in parts):
        raise RegardError(f"a text or a pair (a, b) of texts is wanted, not {item!r:.60}.")
    if pairing and len(parts) < 2:
        raise RegardError(
            "this model looks at two texts together. On a command line, in a line of a file and in a pipe a tab stands between "
            "them (bash: $'one text\\tthe other'); a table has columns text and pair; in Python they are (a, b)."
        )
    return Labelled(parts[0].strip(), parts[1].strip() if len(parts) > 1 else "", "")


# -- how good the answers are


def labels_of(answer: Answer) -> list[str]:
    """What was said, be it one class or several labels."""
    return answer.value if isinstance(answer.value, list) else [str(answer.value)]


def each_of(right: Sequence[Sequence[str]], answers: Sequence[Answer]) -> Each:
    """Where each sample may have several labels."""
    return Each.of(right, list(map(labels_of, answers)), "labels")


def scored_several(right: Sequence[Sequence[str]], answers: Sequence[Answer], whole: bool) -> dict[str, float | str]:
    """F1 over all labels together, the mean over labels, and the share of samples that have all labels right."""
    each = each_of(right, answers)
    exact = [set(labels) == set(labels_of(answer)) for labels, answer in zip(right, answers, strict=True)]
    shares = {"micro_f1": each.whole.f1, "macro_f1": each.macro_f1, "exact": float(np.mean(exact))}
    scores: dict[str, float | str] = {name: round(100 * share, 2) for name, share in shares.items()}
    return scores | {"samples": len(answers)} | ({"each": each.table()} if whole else {})


def scored(
    labels: Sequence[str], right: Sequence[str], said: Sequence[str], unit: str, whole: bool
) -> dict[str, float | str]:
    """Shares of 100; of a `whole` validation also tables."""
    counts = confusion(labels, right, said)
    scores: dict[str, float | str] = {name: round(100 * value, 2) for name, value in measures(counts).items()}
    scores["samples"] = len(said)
    return scores | (told_of(labels, counts, _single(right, said, unit)) if whole else {})


def drawn(labels: Sequence[str], right: Sequence[str], said: Sequence[str], unit: str, folder: Path) -> Path:
    """How often each class was taken for each, or of very many how well each is told."""
    if len(labels) > MANY:
        return _single(right, said, unit).draw(folder / "classes.png")
    return draw_confusion(labels, confusion(labels, right, said), folder / "confusion.png")


def _single(right: Sequence[str], said: Sequence[str], unit: str) -> Each:
    return Each.of([(label,) for label in right], [(label,) for label in said], unit)


def told_of(labels: Sequence[str], counts: np.ndarray, each: Each) -> dict[str, float | str]:
    """How often each class was taken for each; of very many each by itself, and the most frequent confusions."""
    if len(labels) <= MANY:
        return {"confusion": written(labels, counts)}
    told: dict[str, float | str] = {"each": each.table(), "confused": confused(labels, counts)}
    return {name: value for name, value in told.items() if value}


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
