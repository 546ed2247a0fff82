"""Decisions about whole texts: what classify, choose and embed read and said, and the numbers that made them say so."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from regard.data.settings import Data
from regard.data.text.labeled import Labelled, Question
from regard.data.text.pairs import Pair
from regard.draw.token_label import label
from regard.errors import UnknownName
from regard.explain.attribution import Score, ahead
from regard.explain.decision import Decision, Row, cut_off, encoded_one, quoted, refuse_empty, sure
from regard.processors.padding import pad
from regard.tasks.base import Encoded
from regard.tasks.multilabel import pairing_of
from regard.tasks.protocol import Asked
from regard.tasks.special_tokens import Marks, encodes, filler
from regard.types import Batch

MOST = 6
"""Labels of a text that are explained."""


def classified(model: Any, source: Any, target: str | None) -> Decision:
    """`target` is the second text of a pair, or the class that is explained in the stead of the one that was said.

    The likeliest other class is explained beside it; of several labels all that were said are."""
    labels, pairing = model.identity.labels, pairing_of(model.identity.pair)
    named = target if not pairing and target in labels else None
    if target is not None and named is None and not pairing and len(target.split()) == 1:
        raise UnknownName("class", target, labels)  # one word is hardly the second text of a pair
    item = source if target is None or named is not None else (source, target)
    if isinstance(item, str):
        item = tuple(item.split("\t", 1)) if pairing else (item,)
    answer = model.answer(item)
    texts = [part.strip() for part in item]
    refuse_empty(texts)
    sample = Labelled(texts[0], "".join(texts[1:]), labels[0])
    encoded = encoded_one(model, sample, Data(pair="symmetric" if pairing == "symmetric" else "ordered"), labels)
    orders = [texts, texts[::-1]]
    rows = _seamed(model, _ways(encoded, ("as given", "the other way round")), orders)
    chances = sorted(answer.extra["probabilities"].items(), key=lambda pair: -pair[1])
    wanted = [*([] if named is None else [named]), *(name for name, _ in chances if name != named)]
    several = isinstance(answer.value, list)
    said = str(answer.value) if not several else ", ".join(answer.value) or "(no label)"
    count = 2 if not several else min(max(len(answer.value), 1), MOST)
    scores = []
    for name in wanted[:count]:
        # a label is told by its own number, classes by how far they are ahead of each other
        of = functools.partial(_own if several else _number, labels.index(name))
        for number, row in enumerate(rows):
            shown = name if len(rows) == 1 else f"{name}, {row.name}"
            scores.append(Score(shown, number, _where(model, row), of))
    return Decision(
        title=f"{quoted(*texts)} → {label(said, 72)}"
        + (f" (what counted for {label(named, 40)})" if named not in (None, said) else ""),
        said=said,
        chances=tuple(chances),
        rows=rows,
        batch=model.task.collate(encoded, [0], model.config).to(model.device),
        scores=tuple(scores),
        facts={"answer": sure(said, chances[0][1]) if not several else said} | cut_off(encoded),
    )


def chosen(model: Any, source: Any, target: str | None) -> Decision:
    """`target` are the choices, "one|another", where the source does not hold them. Each is explained."""
    answer = model.answer(source) if target is None else model.choose(source, target.split("|"))
    told, choices = answer.extra["prompt"], [item["value"] for item in answer.extra["choices"]]
    refuse_empty([told])
    encoded = encoded_one(model, Question(told, "", tuple(choices)))
    rows = _seamed(model, _ways(encoded, choices), [[told, choice] for choice in choices])
    scores = [Score(row.name, n, _where(model, row), functools.partial(_number, n)) for n, row in enumerate(rows)]
    chances = tuple((item["value"], item["probability"]) for item in answer.extra["choices"])
    return Decision(
        title=f"{quoted(told)} → {label(choices[0], 72)}",
        said=choices[0],
        chances=chances,
        rows=rows,
        batch=model.task.collate(encoded, [0], model.config).to(model.device),
        scores=tuple(scores),
        facts={"answer": sure(*chances[0])} | cut_off(encoded),
    )


def embedded(model: Any, source: Any, target: str | None) -> Decision:
    """Of two texts what made them alike; of one what reached its vector."""
    texts = [source] if target is None else [source, target]
    for text in texts:
        refuse_empty([text])
    encoded = encoded_one(model, Pair(texts[0], texts[-1], "", 0))
    ids = [encoded.sides[side][0] for side in ("first", "second")][: len(texts)]
    x, mask = pad(ids, filler(model.config))
    alone = model.task.pooling.mode == "cls"
    places = [(0,) if alone else tuple(range(len(row))) for row in ids]
    names = ("first text", "second text")
    facts = {}
    if len(texts) > 1:
        first, second = (np.array(answer.value) for answer in model.answer(texts))
        facts["cosine"] = f"{first @ second / np.linalg.norm(first) / np.linalg.norm(second):.4f}"
        scores = [Score(f"likeness, in the {name}", n, places[n], _cosine) for n, name in enumerate(names)]
    else:
        scores = [Score("the vector", 0, places[0], None)]
    return Decision(
        title=quoted(*texts) + (f": cosine {facts['cosine']}" if facts else ""),
        said="",
        chances=(),
        rows=tuple(_beginning(model, row, name, text) for row, name, text in zip(ids, names, texts, strict=False)),
        batch=Batch(x, mask).to(model.device),
        scores=tuple(scores),
        facts=facts | cut_off(encoded, "its end"),
    )


def _beginning(model: Any, row: np.ndarray, name: str, text: str) -> Row:
    """A text of which the end is left out where it is too long."""
    lower = model.task.pooling.lower
    (whole,) = model.text_or_refuse().encode([text.strip().lower() if lower else text.strip()])
    lost = len(whole) + 2 - len(row)
    return Row(tuple(row.tolist()), 0, name, ((len(row) - 1, lost),) if lost > 0 else ())


def _number(which: int, logits: Tensor) -> Tensor:
    return ahead(logits[0], which)


def _own(which: int, logits: Tensor) -> Tensor:
    return logits[0, which]


def _cosine(vectors: Tensor) -> Tensor:
    return F.cosine_similarity(vectors[0], vectors[1], dim=0)


def _ways(encoded: Encoded, names: Sequence[str]) -> tuple[Row, ...]:
    """The ways in which one sample is read."""
    ids, sizes = encoded.sides["text"][0], encoded.sides["ways"][0]
    parts = np.split(ids, np.cumsum(sizes)[:-1].astype(np.int64))
    seconds = encoded.sides["second"][0]
    return tuple(
        Row(tuple(part.tolist()), int(second), name) for part, second, name in zip(parts, seconds, names, strict=False)
    )


def _seamed(model: Any, rows: Sequence[Row], texts: Sequence[Sequence[str]]) -> tuple[Row, ...]:
    """The rows with the places where the middle of a text was left out."""
    text = model.text_or_refuse()
    marks = Marks.of(text, model.config)
    found = []
    for row, parts in zip(rows, texts, strict=False):
        ends = [row.second - len(marks.delimiter)] * bool(row.second) + [len(row.ids) - len(marks.extract)]
        begins = [len(marks.start), row.second]
        whole = text.encode([parts[0], *(marks.second(part) for part in parts[1:])])
        seams = []
        for begin, end, ids in zip(begins, ends, whole, strict=False):
            if (lost := len(ids) - (end - begin)) > 0:
                seams.append((end - (end - begin) // 2, lost))
        found.append(replace(row, seams=tuple(seams)))
    return tuple(found)


def _where(model: Asked, row: Row) -> tuple[int, ...]:
    """The token whose state stands for the whole row: the first of an encoder, the last of a decoder."""
    return (0,) if encodes(model.config) else (len(row.ids) - 1,)
