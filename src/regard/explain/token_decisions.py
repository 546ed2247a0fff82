"""Predictions of the tasks tag, qa and mlm, with the output scores to explain."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.text.qa import QASample
from regard.data.text.tagged import TaggedSentence
from regard.draw.text import label
from regard.draw.token_data import PROBABILITIES_TITLE
from regard.errors import RegardError
from regard.explain.attribution import OutputScore, logit_margin
from regard.explain.decision import Decision, TokenRow, encode_sample, format_confidence, join_titles
from regard.processors.tokenizer.vocabulary import BERT_MASK
from regard.tasks.base import Encoded
from regard.tasks.fill_mask import mask_token, text_token_mask, token_word
from regard.tasks.special_tokens import SpecialTokens
from regard.tasks.windowed import window_start
from regard.types import IGNORE, Batch, Prediction

MAX_TARGETS = 6
"""Limit of explained entities or mask tokens per text."""


def decide_tag(model: Any, source: Any, target: str | None) -> Decision:
    """Prediction of a tagger: all entities, or the words `target`; without both, the word with the lowest confidence."""
    answer = model.predict(source)
    words, names = answer.tokens, model.spec.labels
    stretches = [_find_words(words, target)] if target is not None else _entity_spans(answer)
    stretches = stretches or [(int(np.argmin(answer.score)),) * 2]
    encoded = encode_sample(model, TaggedSentence(tuple(words), ()))
    windows = [_word_positions(model, encoded, row) for row in range(len(encoded))]
    row = _best_window(encoded, windows, stretches[0][0])
    places = windows[row]
    scores, said = [], []
    for first, last in stretches[:MAX_TARGETS]:
        at = tuple(places[word] for word in range(first, last + 1) if word in places)
        if len(at) <= last - first:
            continue  # the entity is in another window of a long sentence
        tags = [names.index(answer.value[word]) for word in range(first, last + 1)]
        shown = f"{' '.join(words[first : last + 1])}: {answer.value[first]}"
        scores.append(OutputScore(shown, 0, at, functools.partial(_position_margin, at, tuple(tags))))
        said.append(shown)
    logits = torch.from_numpy(model.task.token_logits(model, encoded)[row][scores[0].positions[0]])
    chances = sorted(zip(names, logits.softmax(-1).tolist(), strict=True), key=lambda pair: -pair[1])
    return _window_decision(
        model, encoded, row, scores,
        title=f"{join_titles(' '.join(words))} → {', '.join(said)}", said=chances[0][0], chances=tuple(chances),
        asked=f"Tag probabilities for ‘{words[stretches[0][0]]}’",
    )  # fmt: skip


def decide_qa(model: Any, source: Any, target: str | None) -> Decision:
    """Start and end of the predicted answer. `target`: the context, if `source` contains only the question."""
    item = source if target is None else (source, target)
    answer = model.predict(item)
    question, context = _split_question(item)
    said = str(answer.value)
    answers, starts = ((said,), (answer.extra["start"],)) if said else ((), ())
    encoded = encode_sample(model, QASample(question, context, answers, starts, bool(said)))
    ends = [model.task.collate(encoded, [row], model.config).labels[0].tolist() for row in range(len(encoded))]
    if said:
        row = next((row for row, found in enumerate(ends) if any(found)), 0)
    else:  # no answer: the window with the lowest no-answer score decides
        logits = model.task.token_logits(model, encoded)
        row = min(range(len(encoded)), key=lambda number: float(logits[number][0].sum()))
    scores = [
        OutputScore(f"{how} of the answer", 0, (place,), functools.partial(_span_margin, place, which))
        for which, (how, place) in enumerate(zip(("start", "end"), ends[row], strict=True))
    ]
    chances = [(item["value"], item["probability"]) for item in answer.extra["answers"]]
    shown = said or "(no answer in the context)"
    if not said:
        chances.insert(0, (shown, answer.score[0]))
    facts = {"prediction": format_confidence(shown, answer.score[0])}
    if len(encoded) > 1:
        facts["window"] = f"{row + 1} of {len(encoded)}"
    return _window_decision(
        model, encoded, row, scores,
        title=f"{join_titles(question)} → {label(shown, 72)}", said=shown, chances=tuple(chances), facts=facts,
        asked="Answer probabilities",
    )  # fmt: skip


def decide_mlm(model: Any, source: Any, target: str | None) -> Decision:
    """Most likely token for each mask token, or the token `target`."""
    answer = model.predict(source)
    text, config = model.require_tokenizer(), model.config
    marks = SpecialTokens.from_tokenizer(text, config)
    (ids,) = text.encode_masked([source.replace(BERT_MASK, mask_token(text))])
    row = [*marks.start, *ids, *marks.extract]
    batch = Batch(torch.tensor([row], device=model.device))
    places = [at for at, token in enumerate(row) if token == config.mask_id]
    with torch.inference_mode():
        logits = model.task.logits(model, batch)[0, places].float().cpu()
    known = torch.from_numpy(text_token_mask(text, config))
    likeliest = logits.masked_fill(~known, -torch.inf).argmax(-1).tolist()
    best = likeliest if target is None else [_single_token_id(text, target)] * len(places)
    scores = []
    for number, (place, token) in enumerate(zip(places, best, strict=True)):
        name = token_word(text, token) + (f", mask {number + 1}" if len(places) > 1 else "")
        scores.append(OutputScore(name, 0, (place,), functools.partial(_position_margin, (place,), (token,)), "token"))
    chances = tuple((item["word"], item["probability"]) for item in answer.extra["masks"][0])
    return Decision(
        title=f"{join_titles(source)} → {label(str(answer.value), 72)}",
        prediction=chances[0][0],
        probabilities=chances,
        rows=(TokenRow(tuple(row)),),
        batch=batch,
        scores=tuple(scores[:MAX_TARGETS]),
        probabilities_title=f"Token probabilities at the {'first ' if len(places) > 1 else ''}mask token",
    )


def _position_margin(places: tuple[int, ...], outputs: tuple[int, ...], logits: Tensor) -> Tensor:
    """Sum of the margins of `outputs` at `places` of the only sequence."""
    found = [logit_margin(logits[0, place], output) for place, output in zip(places, outputs, strict=True)]
    return torch.stack(found).sum()


def _span_margin(place: int, which: int, logits: Tensor) -> Tensor:
    """Margin of token `place` over all tokens, as start (0) or end (1) of the answer."""
    return logit_margin(logits[0, :, which], place)


def _window_decision(
    model: Any, encoded: Encoded, row: int, scores: Sequence[OutputScore], *, title: str, said: str,
    chances: tuple[tuple[str, float], ...], facts: dict[str, str] | None = None, asked: str = PROBABILITIES_TITLE,
) -> Decision:  # fmt: skip
    """A prediction made in one window of a text."""
    own = TokenRow(tuple(encoded.fields["text"][row].tolist()), int(encoded.fields["second"][row][0]))
    batch = model.task.collate(encoded, [row], model.config).to(model.device)
    return Decision(title, said, chances, (own,), batch, tuple(scores), facts or {}, asked)


# -- words


def _entity_spans(answer: Prediction) -> list[tuple[int, int]]:
    return [(entity["first"], entity["last"]) for entity in answer.extra.get("entities", ())]


def _find_words(words: Sequence[str], target: str) -> tuple[int, int]:
    """Indices of the first and last word of `target` in the text; exact matches first, then case-insensitive matches."""
    wanted = target.split()
    for same in (lambda word: word, str.casefold):
        for first in range(len(words) - len(wanted) + 1):
            if wanted and [same(word) for word in words[first : first + len(wanted)]] == list(map(same, wanted)):
                return first, first + len(wanted) - 1
    raise RegardError(f"'{target}' does not occur in the text: {' '.join(words)}. Pass a word of the text, or no word.")


def _word_positions(model: Any, encoded: Encoded, row: int) -> dict[int, int]:
    """Position of the labeled token of each word in a window, by word index."""
    labels = model.task.collate(encoded, [row], model.config).labels[0]
    return {
        window_start(encoded, row) + number: at for number, at in enumerate((labels != IGNORE).nonzero()[:, 0].tolist())
    }


def _best_window(encoded: Encoded, windows: Sequence[dict[int, int]], word: int) -> int:
    """The window with the most context on both sides of a word."""
    lengths = [len(ids) for ids in encoded.fields["text"]]
    deep = {n: min(at[word], lengths[n] - 1 - at[word]) for n, at in enumerate(windows) if word in at}
    return max(deep, key=lambda number: deep[number])


def _split_question(item: Any) -> tuple[str, str]:
    """Question and context of an input that `predict` has accepted."""
    if isinstance(item, str):
        question, tab, context = item.partition("\t")
        item = (question, context) if tab else json.loads(item)
    if isinstance(item, dict):
        item = item["question"], item["context"]
    return item[0].strip(), item[1]


def _single_token_id(text: Any, word: str) -> int:
    (ids,) = text.encode([word])
    if len(ids) != 1:
        raise RegardError(
            f"'{word}' has {len(ids)} tokens, but a mask token represents one. Pass a word of one token, or no word."
        )
    return int(ids[0])
