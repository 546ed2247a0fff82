"""tag: the words of a sentence in, a tag for each out: names of people and places, parts of speech.

Any encoder can be asked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.data.batching.samplers import Shape
from regard.data.settings import Data
from regard.data.text import unlabeled_rows
from regard.data.text.files import Complain
from regard.data.text.tables import Empty
from regard.data.text.tag_schemes import OUTSIDE, Scheme, convert, entities, parted
from regard.data.text.tag_schemes import labels as all_tags
from regard.data.text.tagged import COLUMNS, CONLL, Tagged, iterate_tagged
from regard.decode.settings import Decode
from regard.errors import DataError, RegardError
from regard.nn.blocks.heads import ReadOut
from regard.nn.blocks.losses import cross_entropy
from regard.processors.padding import pack, pad
from regard.processors.tokenizer.tokenizer import Text
from regard.tasks.act import costed, thought
from regard.tasks.base import READ, TEXT, Encoded, Scored, Sums, Terms
from regard.tasks.metrics.ner import Tagging, measure
from regard.tasks.protocol import Asked
from regard.tasks.special_tokens import Marks
from regard.tasks.text_heads import numbered
from regard.tasks.windowed import Window, Windowed, begins, first_rows, rows_of, windows
from regard.types import IGNORE, Answer, Batch

WORD = re.compile(r"\w+(?:[-'’]\w+)*|[^\w\s]")
"""A word of a text that nobody has divided, or a mark."""


class Tag(Windowed):
    name = "tag"
    about = "sentences with a tag for each word; answers with tags, and with the entities that they spell"
    columns = COLUMNS
    unit = "sentences"
    metric = "f1"
    sample = Tagged
    usage = '"a sentence"'
    labelled = True
    tables = (*CONLL, *unlabeled_rows.TABLES)
    heeds = (*TEXT, *READ, "data.scheme", "data.stride", "train.smoothing")

    def stream(self, data: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[Tagged | Empty]:
        return iterate_tagged(data, columns)

    def inputs_of(self, entry: str, columns: Mapping[str, str] | None, complain: Complain) -> Iterator[tuple[int, Any]]:
        return unlabeled_rows.sentences(entry, columns, complain)

    def key(self, sample: Tagged) -> str:
        return "\0".join(sample.words)

    def words(self, sample: Tagged) -> Iterable[str]:
        return (" ".join(sample.words),)

    def right(self, sample: Tagged) -> str:
        return " ".join(sample.tags)

    def labels(self, sample: Tagged) -> Iterable[str]:
        return sample.tags

    def head_labels(self, labels: Sequence[str], data: Data) -> tuple[str, ...]:
        """All tags that can be written of the kinds that occur, whatever scheme the files are in."""
        scheme = scheme_of(labels, data)
        if scheme == "plain":
            return tuple(labels)
        kinds = {parts[1] for tag in labels if (parts := parted(tag)) is not None and parts[0] != OUTSIDE}
        return tuple(all_tags(kinds, scheme))

    def pairing(self, samples: Sequence[Tagged], data: Data, train: Encoded) -> str:
        """The scheme that entities are spelt in."""
        return scheme_of((tag for sample in samples for tag in sample.tags), data)

    def flavour(self, data: Data) -> tuple[Any, ...]:
        return (data.scheme, data.stride)

    def head(self, config: Any, labels: Sequence[str]) -> nn.Module | None:
        return ReadOut("tags", config.width, len(labels), config.head_dropout) if labels else None

    def encode(
        self, samples: Sequence[Tagged], reader: Text, config: Any, longest: int, data: Data | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:  # fmt: skip
        """The first token of each word is asked for its tag; without `labels` those are what is asked for."""
        if data is not None and len(labels) < 2:
            raise DataError("there is one tag only: nothing can be told apart." if labels else "there are no tags.")
        marks, limit = Marks.of(reader, config), min(longest, config.length)
        room, stride = marks.room(limit, 1), 0 if data is None else data.stride
        scheme = _spelling(labels) if data is None or data.scheme == "auto" else data.scheme
        tags = [_right(sample, labels, scheme) for sample in samples]
        rows: list[Window] = []
        for owner, (ids, words) in enumerate(reader.encode_words([sample.words for sample in samples])):
            asked = _asked(words, tags[owner])
            for first, last in windows(len(ids), room, stride):
                label = [*[0] * len(marks.start), *asked[first:last], *[0] * len(marks.extract)]
                word = next((word for word, tag in zip(words[first:], asked[first:], strict=True) if tag), 0)
                rows.append(Window(owner, word, [*marks.start, *ids[first:last], *marks.extract], 0, label))
        return self.encoded(samples, rows)

    def labels_of(self, labels: Sequence[np.ndarray], lengths: Sequence[int], shape: Shape | None) -> Tensor:
        sizes = () if shape is None else (shape.rooms[0], shape.longest[0], shape.documents)
        table = pack(labels, *sizes)[0] if shape is not None else pad(labels, 0)[0]
        return torch.where(table > 0, table - 1, IGNORE)

    def loss(self, model: Asked, batch: Batch, terms: Terms = Terms()) -> tuple[Tensor, Tensor]:  # noqa: B008
        assert batch.labels is not None
        states = model.body(batch)
        loss = cross_entropy(self.headed(model)(states.sequence), batch.labels, terms.smoothing)
        return costed(model, loss, states)

    def alone(self, inputs: Any) -> bool:
        return isinstance(inputs, str | tuple)

    def answer(self, model: Asked, inputs: Sequence[Any], decode: Decode, first: int = 0) -> list[Answer]:
        """Of each sentence, as a text or as its words (a list or tuple of them), the tags. `scores` are their
        probabilities, `extra["entities"]` what they spell."""
        samples = [_sentence(item) for item in inputs]
        encoded = self.encode(samples, model.text_or_refuse(), model.config, model.config.length)
        return thought(self, model, encoded, self._answers(model, encoded, None))

    def _answers(self, model: Asked, encoded: Encoded, most: int | None) -> list[Answer]:
        names = model.identity.labels
        some = first_rows(encoded, most)
        chances = self.judged(model, some)
        answers = []
        for sample, rows in zip(some.samples, rows_of(some, None), strict=True):
            table = _by_word(len(sample.words), some, rows, chances)
            table = torch.from_numpy(table).softmax(-1).numpy()
            best = table.argmax(1)
            tags = [names[number] for number in best]
            sure = table[np.arange(len(best)), best].tolist()
            extra: dict[str, Any] = {"words": list(sample.words)}
            if model.identity.pair != "plain" and all(parted(name) is not None for name in names):
                extra |= {
                    "scheme": model.identity.pair or _spelling(names),
                    "entities": _entities(sample.words, tags, sure),
                }
            answers.append(Answer(tags, tuple(sure), tuple(sample.words), extra))
        return answers

    def score(
        self, model: Asked, encoded: Encoded, decode: Decode, data: Data, sums: Sums, most: int | None = None
    ) -> Scored:
        """Shares of 100, as `seqeval` computes them: F1, precision and recall of entities; of plain tags F1 is accuracy."""
        answers = self._answers(model, encoded, most)
        found = _measured(encoded.samples[:most], answers)
        plain = found.plain
        scores: dict[str, float | str] = dict(found.scores())
        scores = {"f1": scores["accuracy"], **scores} if plain else scores
        scores["samples"] = len(answers)
        if most is None:
            scores["each"] = found.table()
        return scores, answers

    def draw(self, folder: Path, samples: Sequence[Tagged], answers: Sequence[Answer]) -> list[str]:
        if not answers:
            return []
        return [_measured(samples, answers).draw(folder / "tags.png").name]

    def said(self, given: Any, answer: Answer) -> str:
        """The sentence with its entities in brackets, and each with its probability; of plain tags word/tag."""
        shown = _shown(answer.tokens, answer.value, "entities" in answer.extra)
        found = answer.extra.get("entities", [])
        lines = [f"{item['probability']:7.4f}  {item['kind'] or 'entity':8} {item['text']}" for item in found]
        return "\n".join([shown, *lines])

    def example(self, sample: Tagged, answer: Answer) -> dict[str, str]:
        spells = "entities" in answer.extra
        return {
            "answer": _shown(sample.words, answer.value, spells),
            "reference": _shown(sample.words, sample.tags, spells),
        }


def scheme_of(tags: Iterable[str], data: Data) -> Scheme:
    """What is learnt and said: as data.scheme has it, else IOB2 where tags spell entities."""
    if data.scheme != "auto":
        return data.scheme
    return "IOB2" if all(parted(tag) is not None for tag in tags) else "plain"


def _measured(samples: Sequence[Tagged], answers: Sequence[Answer]) -> Tagging:
    plain = any("entities" not in answer.extra for answer in answers)
    right = [_respelt(sample, answer) for sample, answer in zip(samples, answers, strict=True)]
    return measure(right, [answer.value for answer in answers], "plain" if plain else "IOB2")


def _respelt(sample: Tagged, answer: Answer) -> list[str]:
    """The right tags, spelt as those of the answer are."""
    if "entities" not in answer.extra:
        return list(sample.tags)
    return convert(sample.tags, answer.extra["scheme"])


def _right(sample: Tagged, labels: Sequence[str], scheme: Scheme) -> list[int]:
    """The number of each word's tag."""
    if not labels:
        return [0] * len(sample.words)
    tags = list(sample.tags)
    if scheme != "plain" and all(parted(tag) is not None for tag in tags):
        tags = convert(tags, scheme)
    return numbered([sample] * len(tags), tags, labels)


def _spelling(labels: Sequence[str]) -> Scheme:
    """By which scheme these are all tags."""
    letters = {parts[0] for tag in labels if (parts := parted(tag)) is not None}
    if any(parted(tag) is None for tag in labels):
        return "plain"
    if letters & {"E", "S"}:
        return "BIOES"
    if letters & {"L", "U"}:
        return "BILOU"
    return "IOB2"


def _asked(words: Sequence[int], tags: Sequence[int]) -> list[int]:
    """The tag of a word at its first token, counted from 1 as a store has no negative numbers, and 0 at its others."""
    before = [-1, *words[:-1]]
    return [tags[word] + 1 if word != last else 0 for word, last in zip(words, before, strict=True)]


def _by_word(count: int, encoded: Encoded, rows: Sequence[int], chances: Sequence[np.ndarray]) -> np.ndarray:
    """(words, tags) from windows that overlap: each word where it has the most around it."""
    table, inside = np.zeros((count, chances[rows[0]].shape[-1])), np.full(count, -1)
    for row in rows:
        label, first = encoded.sides["label"][row], begins(encoded, row)
        places = np.flatnonzero(label)
        deep, words = np.minimum(places, len(label) - 1 - places), first + np.arange(len(places))
        better = deep > inside[words]
        inside[words[better]], table[words[better]] = deep[better], chances[row][places[better]]
    return table


def _entities(words: Sequence[str], tags: Sequence[str], sure: Sequence[float]) -> list[dict[str, Any]]:
    """An entity is as sure as the least sure of its words."""
    return [
        {
            "kind": found.kind,
            "text": " ".join(words[found.first : found.last + 1]),
            "first": found.first,
            "last": found.last,
            "probability": min(sure[found.first : found.last + 1]),
        }
        for found in entities(tags)
    ]


def _shown(words: Sequence[str], tags: Sequence[str], spells: bool) -> str:
    """The sentence with its entities in brackets, or with the tag of each word."""
    if not spells:
        return " ".join(f"{word}/{tag}" for word, tag in zip(words, tags, strict=True))
    marked = list(words)
    for entity in entities(tags):
        marked[entity.first] = f"[{marked[entity.first]}"
        marked[entity.last] += f" {entity.kind}]" if entity.kind else "]"
    return " ".join(marked)


def _sentence(item: Any) -> Tagged:
    words = WORD.findall(item) if isinstance(item, str) else list(item)
    if not words or not all(isinstance(word, str) and word.strip() for word in words):
        raise RegardError(f"a sentence is wanted, as a text or as a list of its words, not {item!r:.60}.")
    return Tagged(tuple(words), ())
