"""embed: a text in, one vector out, near those of texts that belong to it. Any encoder can be asked.

It learns from pairs of texts that belong together: among all second texts of a grain the first shall be nearest to its own,
and the other way round. What the others are follows from the grain: `train.tokens` says how many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.batching.samplers import Epochs, Packs, Plan, Shape
from regard.data.settings import Data
from regard.data.text import unlabeled_rows
from regard.data.text.columns import SIDES
from regard.data.text.contrastive_pairs import NAMES, iterate_together
from regard.data.text.files import Complain
from regard.data.text.pairs import Empty, Pair
from regard.decode.settings import Decode
from regard.errors import RegardError, SettingError
from regard.processors.padding import pack, pad
from regard.processors.tokenizer.tokenizer import Text
from regard.tasks.act import costed
from regard.tasks.base import READ, TEXT, Encoded, Scored, Side, Sums, Task, Terms, lengths_of
from regard.tasks.nearest import Among, Hit
from regard.tasks.pooling import Pooling, pooling_files, read_pooling
from regard.tasks.protocol import Asked
from regard.tasks.special_tokens import filler, framed
from regard.tasks.text_heads import fitting, made_text
from regard.types import IGNORE, Answer, Batch, Offsets, States

SCALE = 20.0
"""Cosines are multiplied by it before the softmax: a temperature of 0.05."""
BUDGET, LARGE = 4096, 65_536
"""Tokens that are looked at together when texts are asked for: on a CPU what its cache holds, and on other devices."""
BEST = 5
"""How many of the nearest texts are told where nobody says how many."""

Tell = Callable[[int, int], None]
"""Hears how many texts are done, of how many."""


class Vectors(NamedTuple):
    table: np.ndarray
    """(N, D)"""
    cut: list[bool]
    """whether a text was too long to be read as a whole"""


class Embed(Task):
    name = "embed"
    about = "pairs of texts that belong together; answers with a vector, or with the nearest of many texts"
    columns = SIDES
    unit = "pairs"
    metric = "mrr"
    sample = Pair
    sides = ("first", "second")
    model = "bert-mini"
    usage = '"a text"'
    generates, cuts, cut = False, True, "at their end"
    heeds = (*TEXT, *READ)

    def __init__(self, pooling: Pooling | None = None) -> None:
        self.pooling = pooling or Pooling()

    def of(self, folder: Path) -> Embed:
        """The task as the files beside published weights say it."""
        return Embed(read_pooling(folder))

    def files(self, config: Any) -> dict[str, Any]:
        """Those files, for others."""
        return pooling_files(self.pooling, config.width)

    # -- pairs of texts

    def stream(self, data: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[Pair | Empty]:
        return iterate_together(data, columns)

    def inputs_of(self, entry: str, columns: Mapping[str, str] | None, complain: Complain) -> Iterator[tuple[int, Any]]:
        return unlabeled_rows.sources(entry, columns, complain, tuple(first for first, _ in NAMES))

    def key(self, sample: Pair) -> str:
        return sample.source

    def texts(self, samples: Iterable[Pair]) -> Iterator[str]:
        for sample in samples:
            yield sample.source
            yield sample.target

    def tokenizer(self, texts: Iterable[str], data: Data) -> Text:
        return made_text(texts, data)

    def flavour(self, data: Data) -> tuple[Any, ...]:
        return self.pooling.longest, self.pooling.lower

    def dressed(self, text: Text, config: Any) -> Text:
        return framed(text, config)

    def fit(self, config: Any, reader: Text) -> Any:
        return replace(config, vocabulary=reader.size, **fitting(reader))

    def encode(
        self, samples: Sequence[Pair], reader: Text, config: Any, longest: int, data: Data | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:  # fmt: skip
        firsts, short = self._rows([sample.source for sample in samples], reader, config, longest)
        seconds, others = self._rows([sample.target for sample in samples], reader, config, longest)
        cut = [sample for sample, *either in zip(samples, short, others, strict=True) if any(either)]
        return Encoded(list(samples), {"first": firsts, "second": seconds}, cut)

    def _rows(self, texts: Sequence[str], text: Text, config: Any, longest: int) -> tuple[list[np.ndarray], list[bool]]:
        """Each between the tokens that begin and end a text. Of one that is too long the beginning is read, as published
        tools do, whose vectors these shall equal."""
        limit = min(longest, config.length, self.pooling.longest or config.length)
        told = [item.lower() if self.pooling.lower else item for item in map(str.strip, texts)]
        ids, room = text.encode(told), max(limit - 2, 1)
        rows = [np.array([config.start, *row[:room], config.end], dtype=np.int32) for row in ids]
        return rows, [len(row) > room for row in ids]

    def plan(self, encoded: Encoded, config: Any, tokens: int, seed: int, packed: bool) -> Epochs:
        lengths = self.lengths(encoded)
        return (Packs if packed else Plan)(lengths, max(tokens, int(lengths.sum(1).max())), seed)

    def collate(self, encoded: Encoded, rows: Iterable[int], config: Any, shape: Shape | None = None) -> Batch:
        """First texts as x, second ones as target. `labels` (S, 2) number the different texts: equal ones are alike."""
        rows = list(rows)
        firsts, seconds = ([encoded.sides[side][i] for i in rows] for side in self.sides)
        labels, value = torch.from_numpy(_numbered(firsts, seconds)), filler(config)
        if shape is None:
            (x, mask), (y, target_mask) = pad(firsts, value), pad(seconds, value)
            return Batch(x, mask, y, target_mask, labels=labels)
        (room, second_room), (longest, second_longest), many = shape.rooms, shape.longest, shape.documents
        x, offsets = pack(firsts, room, longest, many, value)
        y, target_offsets = pack(seconds, second_room, second_longest, many, value)
        labels = F.pad(labels, (0, 0, 0, many - len(labels)), value=IGNORE)
        return Batch(x, target=y, labels=labels, offsets=offsets, target_offsets=target_offsets)

    # -- what is learnt

    def loss(self, model: Asked, batch: Batch, terms: Terms = Terms()) -> tuple[Tensor, Tensor]:  # noqa: B008
        """The sum over pairs of the mean of two cross-entropies: of the second text among all second ones, given the first,
        and the other way round; and how many pairs there are. Texts that are equal are no contrast to each other."""
        assert batch.labels is not None and batch.target is not None
        if terms.smoothing or terms.auxiliary:
            raise SettingError(
                "train.smoothing and train.auxiliary mean nothing to embed: it has no classes. Set them to 0."
            )
        first = self._states(model, batch.x, batch.mask, batch.offsets)
        second = self._states(model, batch.target, batch.target_mask, batch.target_offsets)
        unit = replace(self.pooling, unit=True)
        firsts, seconds = (unit(states.sequence, rows) for states, rows in (first, second))
        asked = batch.labels[:, 0] != IGNORE
        with torch.autocast(firsts.device.type, enabled=False):
            alike = (SCALE * firsts @ seconds.T).masked_fill(_no_contrast(batch.labels, asked), -torch.inf)
        losses = (alike.logsumexp(1) + alike.logsumexp(0)) / 2 - alike.diagonal()
        total = losses.sum()  # what only fills up a row has no contrast: its loss is 0
        if getattr(model.body, "pools", False) and first[0].summary is not None:
            # nobody asks for it, but processes that train together wait for a gradient of every parameter
            total = total + 0.0 * first[0].summary.sum()
        return costed(model, (total, asked.sum()), first[0], second[0])

    def _states(self, model: Asked, x: Tensor, mask: Tensor | None, offsets: Offsets | None) -> tuple[States, Batch]:
        rows = _first_marked(Batch(x, mask, offsets=offsets), model.config)
        return model.body(rows), rows

    def logits(self, model: Asked, batch: Batch) -> Tensor:
        """The vectors (B, D)."""
        batch = batch if batch.marked is not None else _first_marked(batch, model.config)
        return self.pooling(model.body(batch).sequence, batch)

    # -- what is answered

    def alone(self, inputs: Any) -> bool:
        return isinstance(inputs, str | Mapping)

    def answer(self, model: Asked, inputs: Sequence[Any], decode: Decode, first: int = 0) -> list[Answer]:
        """Of a text its vector; of {"query": text, "among": texts, "best": 5} the nearest of the texts, as `nearest` says.

        The vectors of one list of texts are made once, however many queries name it."""
        shelves: dict[int, Among] = {}
        found = self.vectors(model, [_query(item) for item in inputs])
        answers = []
        for item, vector, cut in zip(inputs, *found, strict=True):
            extra = {"cut": True} if cut else {}
            if isinstance(item, Mapping):
                texts = item["among"]
                if id(texts) not in shelves:
                    shelves[id(texts)] = self.among(model, texts)
                hits = shelves[id(texts)].nearest(vector[None], item.get("best", BEST))[0]
                answers.append(_told(hits, extra))
            else:
                answers.append(Answer(vector.tolist(), extra=extra))
        return answers

    def among(self, model: Asked, texts: Sequence[str], tell: Tell | None = None) -> Among:
        """Texts that are to be searched, with their vectors."""
        if isinstance(texts, str) or not texts:
            raise RegardError("there is nothing to search: a list of texts is wanted.")
        distinct = list(dict.fromkeys(texts))
        made = self.vectors(model, distinct, tell).table
        place = {text: number for number, text in enumerate(distinct)}
        return Among(texts, made if len(distinct) == len(texts) else made[[place[text] for text in texts]])

    def nearest(self, model: Asked, queries: Sequence[str], among: Among, best: int = BEST) -> list[Answer]:
        """Of each the text that is nearest; `scores` and `hits` tell the best so many with their cosines."""
        found = self.vectors(model, queries)
        hits = among.nearest(found.table, best)
        return [_told(some, {"cut": True} if cut else {}) for some, cut in zip(hits, found.cut, strict=True)]

    def vectors(self, model: Asked, texts: Sequence[str], tell: Tell | None = None) -> Vectors:
        for item in texts:
            if not isinstance(item, str):
                raise RegardError(f"a text is wanted, not {item!r:.60}.")
        rows, cut = self._rows(texts, model.text_or_refuse(), model.config, model.config.length)
        return Vectors(self._table(model, rows, tell), cut)

    def _table(self, model: Asked, rows: Side, tell: Tell | None = None) -> np.ndarray:
        """(N, D): longer texts are looked at together with their like."""
        wide = np.float64 if next(iter(model.body.parameters())).dtype == torch.float64 else np.float32
        table, done = np.zeros((len(rows), model.config.width), dtype=wide), 0
        if not len(rows):
            return table
        lengths, budget = lengths_of(rows), BUDGET if model.device.type == "cpu" else LARGE
        with torch.inference_mode():
            for some in Plan(lengths, max(budget, int(lengths.max())), seed=0).sequential():
                x, mask = pad([rows[i] for i in some], filler(model.config))
                table[some] = self.logits(model, Batch(x, mask).to(model.device)).cpu().numpy()
                done += len(some)
                if tell is not None:
                    tell(done, len(rows))
        return table

    def choose(self, model: Asked, prompt: str, choices: Sequence[str]) -> Answer:
        raise RegardError("embed tells how near texts are, not which follows: name a file with --among to search it.")

    # -- how good it is

    def score(
        self, model: Asked, encoded: Encoded, decode: Decode, data: Data, sums: Sums, most: int | None = None
    ) -> Scored:
        """Shares of 100: how often the second text of a pair is the nearest to the first among all second texts
        (accuracy), and the mean of 1 / its rank, where it is among the nearest ten (mrr)."""
        samples = encoded.samples
        place: dict[str, int] = {}
        for number, sample in enumerate(samples):
            place.setdefault(sample.target, number)
        texts, seconds = list(place), encoded.sides["second"]
        among = Among(texts, self._table(model, [seconds[number] for number in place.values()]))
        asked = self._table(model, list(encoded.sides["first"])[:most])
        answers = _ranked(samples[: len(asked)], samples, among, among.cosines(asked))
        ranks = np.array([answer.extra["rank"] for answer in answers])
        scores: dict[str, float | str] = {
            "mrr": round(100 * float(np.where(ranks <= 10, 1 / ranks, 0.0).mean()), 2),
            "accuracy": round(100 * float((ranks == 1).mean()), 2),
            "samples": len(answers),
        }
        return scores, answers

    def said(self, given: Any, answer: Answer) -> str:
        if "hits" in answer.extra:
            return "\n".join(f"{hit['cosine']:7.4f}  {hit['value']}" for hit in answer.extra["hits"])
        return " ".join(f"{number:.6f}" for number in answer.value)

    def example(self, sample: Pair, answer: Answer) -> dict[str, str]:
        rank = str(answer.extra["rank"])
        return {"source": sample.source, "answer": str(answer.value), "reference": sample.target, "rank": rank}


def _numbered(firsts: Sequence[np.ndarray], seconds: Sequence[np.ndarray]) -> np.ndarray:
    """(S, 2): texts that are equal, on whichever side, have the same number."""
    known: dict[bytes, int] = {}
    pairs = zip(firsts, seconds, strict=True)
    return np.array([[known.setdefault(row.tobytes(), len(known)) for row in pair] for pair in pairs], dtype=np.int64)


def _no_contrast(numbers: Tensor, asked: Tensor) -> Tensor:
    """(S, S): where the second text of a pair is not to be far from the first of another: one of their texts is the same."""
    first, second = numbers.T
    same = (first[:, None] == first) | (second[:, None] == second) | (first[:, None] == second)
    same = same | ~(asked[:, None] & asked)
    return same & ~torch.eye(len(numbers), dtype=torch.bool, device=numbers.device)


def _first_marked(batch: Batch, config: Any) -> Batch:
    """Where tokens look at their neighbours only, the first sees all and is seen by all."""
    if not hasattr(config, "windows"):
        return batch
    marked = torch.zeros_like(batch.x, dtype=torch.bool)
    if batch.offsets is None:
        marked[:, 0] = True
    else:
        marked[0, batch.offsets.starts[:-1].clamp(max=marked.shape[1] - 1)] = True
    return replace(batch, marked=marked)


def _query(item: Any) -> Any:
    if not isinstance(item, Mapping):
        return item
    if not {"query", "among"} <= item.keys() <= {"query", "among", "best"}:
        raise RegardError('a text is wanted, or {"query": "…", "among": ["…", "…"]}, perhaps with "best": 5.')
    return item["query"]


def _told(hits: Sequence[Hit], extra: Mapping[str, Any]) -> Answer:
    listed = [asdict(hit) for hit in hits]
    return Answer(hits[0].value, tuple(hit.cosine for hit in hits), extra={"hits": listed, **extra})


def _ranked(
    asked: Sequence[Pair], samples: Sequence[Pair], among: Among, cosines: Iterable[np.ndarray]
) -> list[Answer]:
    """Of each pair what was found for its first text, and the rank of the best that belongs to it. Texts that are as near
    rank before it; the first text itself, where it is among the others, is not looked for."""
    place = {text: number for number, text in enumerate(among.texts)}
    right: dict[str, list[int]] = {}
    for sample in samples:
        right.setdefault(sample.source, []).append(place[sample.target])
    answers = []
    for sample, row in zip(asked, (row for part in cosines for row in part), strict=True):
        own, itself = list(dict.fromkeys(right[sample.source])), place.get(sample.source)
        if itself is not None and itself not in own:
            row[itself] = -np.inf
        level = row[own].max()
        rank = 1 + int((row >= level).sum()) - int((row[own] >= level).sum())
        top = int(row.argmax())
        answers.append(Answer(among.texts[top], (float(row[top]),), extra={"rank": rank, "cosine": float(level)}))
    return answers
