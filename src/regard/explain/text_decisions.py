"""Predictions of the tasks classify, choose and embed, with the output scores to explain."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from regard.data.settings import DataSettings
from regard.data.text.labeled import ChoiceSample, LabeledText
from regard.data.text.pairs import Pair
from regard.draw.text import label
from regard.errors import UnknownNameError
from regard.explain.attribution import OutputScore, logit_margin
from regard.explain.decision import (
    Decision,
    TokenRow,
    check_not_empty,
    encode_sample,
    format_confidence,
    join_titles,
    truncation_fact,
)
from regard.processors.padding import pad
from regard.tasks.base import Encoded
from regard.tasks.multilabel import pair_order
from regard.tasks.protocol import ModelProtocol
from regard.tasks.special_tokens import SpecialTokens, is_encoder, pad_id
from regard.types import Batch

MAX_LABELS = 6
"""Limit of explained labels per text."""


def decide_classify(model: Any, source: Any, target: str | None) -> Decision:
    """Prediction of a classifier. `target`: the second text of a pair, or the class to explain instead of the predicted class.

    The most likely other class is explained too. Multi-label classifiers: all predicted labels, up to `MAX_LABELS`."""
    labels, pairing = model.spec.labels, pair_order(model.spec.head_options)
    named = target if not pairing and target in labels else None
    if target is not None and named is None and not pairing and len(target.split()) == 1:
        raise UnknownNameError("class", target, labels)  # one word is an unlikely second text
    item = source if target is None or named is not None else (source, target)
    if isinstance(item, str):
        item = tuple(item.split("\t", 1)) if pairing else (item,)
    answer = model.predict(item)
    texts = [part.strip() for part in item]
    check_not_empty(texts)
    sample = LabeledText(texts[0], "".join(texts[1:]), labels[0])
    encoded = encode_sample(
        model, sample, DataSettings(pair_order="symmetric" if pairing == "symmetric" else "ordered"), labels
    )
    orders = [texts, texts[::-1]]
    rows = _mark_truncations(model, _encoded_rows(encoded, ("given order", "reverse order")), orders)
    chances = sorted(answer.extra["probabilities"].items(), key=lambda pair: -pair[1])
    wanted = [*([] if named is None else [named]), *(name for name, _ in chances if name != named)]
    several = isinstance(answer.value, list)
    said = str(answer.value) if not several else ", ".join(answer.value) or "(no label)"
    count = 2 if not several else min(max(len(answer.value), 1), MAX_LABELS)
    scores = []
    for name in wanted[:count]:
        # labels are explained by their own logit, classes by their margin over the average logit
        of = functools.partial(_class_logit if several else _class_margin, labels.index(name))
        for number, row in enumerate(rows):
            shown = name if len(rows) == 1 else f"{name}, {row.name}"
            scores.append(
                OutputScore(shown, number, _output_positions(model, row), of, "label" if several else "class")
            )
    return Decision(
        title=f"{join_titles(*texts)} → {label(said, 72)}"
        + (f" (attribution for {label(named, 40)})" if named not in (None, said) else ""),
        prediction=said,
        probabilities=tuple(chances),
        rows=rows,
        batch=model.task.collate(encoded, [0], model.config).to(model.device),
        scores=tuple(scores),
        facts={"prediction": format_confidence(said, chances[0][1]) if not several else said}
        | truncation_fact(encoded),
    )


def decide_choice(model: Any, source: Any, target: str | None) -> Decision:
    """Prediction among choices; every choice is explained. `target`: the choices "one|another", if not part of the source."""
    answer = model.predict(source) if target is None else model.rank(source, target.split("|"))
    told, choices = answer.extra["prompt"], [item["value"] for item in answer.extra["choices"]]
    check_not_empty([told])
    encoded = encode_sample(model, ChoiceSample(told, "", tuple(choices)))
    rows = _mark_truncations(model, _encoded_rows(encoded, choices), [[told, choice] for choice in choices])
    scores = [
        OutputScore(row.name, n, _output_positions(model, row), functools.partial(_class_margin, n), "choice")
        for n, row in enumerate(rows)
    ]
    chances = tuple((item["value"], item["probability"]) for item in answer.extra["choices"])
    return Decision(
        title=f"{join_titles(told)} → {label(choices[0], 72)}",
        prediction=choices[0],
        probabilities=chances,
        rows=rows,
        batch=model.task.collate(encoded, [0], model.config).to(model.device),
        scores=tuple(scores),
        facts={"prediction": format_confidence(*chances[0])} | truncation_fact(encoded),
        probabilities_title="Choice probabilities",
    )


def decide_embed(model: Any, source: Any, target: str | None) -> Decision:
    """Attribution of the cosine similarity of two texts, or rollout of the embedding of one text."""
    texts = [source] if target is None else [source, target]
    for text in texts:
        check_not_empty([text])
    encoded = encode_sample(model, Pair(texts[0], texts[-1], "", 0))
    ids = [encoded.fields[side][0] for side in ("first", "second")][: len(texts)]
    x, mask = pad(ids, pad_id(model.config))
    alone = model.task.pooling.mode == "cls"
    places = [(0,) if alone else tuple(range(len(row))) for row in ids]
    names = ("first text", "second text")
    facts = {}
    if len(texts) > 1:
        first, second = (np.array(answer.value) for answer in model.predict(texts))
        facts["cosine similarity"] = f"{first @ second / np.linalg.norm(first) / np.linalg.norm(second):.4f}"
        scores = [OutputScore(f"cosine similarity, {name}", n, places[n], _cosine) for n, name in enumerate(names)]
    else:
        scores = [OutputScore("embedding", 0, places[0], None)]
    return Decision(
        title=join_titles(*texts) + (f": cosine similarity {facts['cosine similarity']}" if facts else ""),
        prediction="",
        probabilities=(),
        rows=tuple(_truncated_row(model, row, name, text) for row, name, text in zip(ids, names, texts, strict=False)),
        batch=Batch(x, mask).to(model.device),
        scores=tuple(scores),
        facts=facts | truncation_fact(encoded, "end"),
    )


def _truncated_row(model: Any, row: np.ndarray, name: str, text: str) -> TokenRow:
    """Token row of one text, truncated at the end if too long."""
    lower = model.task.pooling.lowercase
    (whole,) = model.require_tokenizer().encode([text.strip().lower() if lower else text.strip()])
    lost = len(whole) + 2 - len(row)
    return TokenRow(tuple(row.tolist()), 0, name, ((len(row) - 1, lost),) if lost > 0 else ())


def _class_margin(which: int, logits: Tensor) -> Tensor:
    return logit_margin(logits[0], which)


def _class_logit(which: int, logits: Tensor) -> Tensor:
    return logits[0, which]


def _cosine(vectors: Tensor) -> Tensor:
    return F.cosine_similarity(vectors[0], vectors[1], dim=0)


def _encoded_rows(encoded: Encoded, names: Sequence[str]) -> tuple[TokenRow, ...]:
    """Token rows of one sample: a text, both orders of a pair, or one row per choice."""
    ids, sizes = encoded.fields["text"][0], encoded.fields["ways"][0]
    parts = np.split(ids, np.cumsum(sizes)[:-1].astype(np.int64))
    seconds = encoded.fields["second"][0]
    return tuple(
        TokenRow(tuple(part.tolist()), int(second), name)
        for part, second, name in zip(parts, seconds, names, strict=False)
    )


def _mark_truncations(model: Any, rows: Sequence[TokenRow], texts: Sequence[Sequence[str]]) -> tuple[TokenRow, ...]:
    """The rows with the positions and sizes of truncations in the middle of a text."""
    text = model.require_tokenizer()
    marks = SpecialTokens.from_tokenizer(text, model.config)
    found = []
    for row, parts in zip(rows, texts, strict=False):
        ends = [row.second_start - len(marks.delimiter)] * bool(row.second_start) + [len(row.ids) - len(marks.extract)]
        begins = [len(marks.start), row.second_start]
        whole = text.encode([parts[0], *(marks.second_text(part) for part in parts[1:])])
        seams = []
        for begin, end, ids in zip(begins, ends, whole, strict=False):
            if (lost := len(ids) - (end - begin)) > 0:
                seams.append((end - (end - begin) // 2, lost))
        found.append(replace(row, truncations=tuple(seams)))
    return tuple(found)


def _output_positions(model: ModelProtocol, row: TokenRow) -> tuple[int, ...]:
    """Position of the hidden state used by the head: the first token of an encoder, the last token of a decoder."""
    return (0,) if is_encoder(model.config) else (len(row.ids) - 1,)
