"""Why a model decided as it did: what counted for its answer, and what every layer and head looked at meanwhile.

A task is explained by telling what it read, what it said, and which numbers made it say so: `deciding.py`, `words.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from regard.data.settings import Data
from regard.draw.act_steps import Thought
from regard.draw.attention_maps import AttentionMap
from regard.draw.attribution import ASKED, GRADIENT, ROLLED, Counted, Decided, told
from regard.draw.token_label import label
from regard.errors import RegardError
from regard.explain.attribution import ROOM, Score, cost, study
from regard.explain.explanation import Explanation
from regard.explain.lm import spelled
from regard.explain.text_attention import View
from regard.explain.token_blocks import Blocks
from regard.nn.recording import attention_names
from regard.processors.tokenizer.token_text import SIGNS
from regard.processors.tokenizer.tokenizer import Text
from regard.tasks.act import steps_of
from regard.tasks.base import Encoded
from regard.tasks.protocol import Asked
from regard.types import Batch

CELLS = 3_000_000
"""Weights that a page holds; where every token had a row, and there would be more, tokens stand in blocks."""
FEWEST, MOST = 96, 512
"""Tokens that have rows of their own whatever the number of heads, and never."""
BLOCKS = 128
"""Of tokens that have none."""


@dataclass(frozen=True)
class Row:
    """One row of tokens that the model read."""

    ids: tuple[int, ...]
    second: int = 0
    """where its second text begins; 0 where it has one"""
    name: str = ""
    """what tells it from other rows"""
    seams: tuple[tuple[int, int], ...] = ()
    """tokens before which others were left out because the text was too long, and how many"""


@dataclass(frozen=True)
class Decision:
    """What was read, what was said, and by which numbers."""

    title: str
    said: str
    chances: tuple[tuple[str, float], ...]
    """all that could have been said, with its probability"""
    rows: tuple[Row, ...]
    batch: Batch
    scores: tuple[Score, ...]
    facts: dict[str, str] = field(default_factory=dict)
    asked: str = ASKED
    """what the chances are"""


def explain_decision(model: Asked, decide: Callable[[], Decision]) -> Explanation:
    """Let a decision be made, then read what was read once more with all attentions watched."""
    training = model.training
    model.eval()
    try:
        decision = decide()
        heads = sum(place.heads for place in attention_names(model.body).values()) * getattr(model.body, "repeats", 1)
        views = [_view(decision, number, int((CELLS / heads) ** 0.5)) for number in range(len(decision.rows))]
        found = study(model, decision.batch, views, decision.scores)
        steps = steps_of(model, decision.batch)
    finally:
        model.train(training)
    text, counted, told_of = model.text_or_refuse(), [], set()
    for score, owed in zip(decision.scores, found, strict=True):
        make = partial(_counted, decision, score, text)
        if owed is not None:
            counted.append(make(owed, GRADIENT))
        elif (score.row, score.at) in told_of:
            continue  # attention brought the same, whatever was said
        counted.append(make(views[score.row].rolled(score.at), ROLLED))
        told_of.add((score.row, score.at))
    maps = [_map(decision, view, text) for view in views]
    maps.append(_asked_map(decision, views[decision.scores[0].row], text))
    facts = decision.facts | {"tokens": " + ".join(f"{len(row.ids):,}" for row in decision.rows)}
    if (room := cost(model.body, decision.batch)) > ROOM:
        facts["gradient × attention"] = f"left out: it would take {room / 2**30:,.0f} GiB"
    if hasattr(model.body, "repeats"):
        facts["layers"] = "the steps of one block, whose weights are the same at each"
    if steps is not None:
        facts["roll-out"] = "through all steps, also those after a token had stopped"
    decided = Decided(decision.said, decision.chances, tuple(counted), decision.asked)
    thoughts = () if steps is None else tuple(_thoughts(decision, text, steps, model.config.most))
    return Explanation(decision.title, tuple(maps), facts, decided=decided, thoughts=thoughts)


def _thoughts(decision: Decision, text: Text, steps: Sequence[list[int]], most: int) -> Iterator[Thought]:
    """How many steps each token of each row took, of systems whose tokens stop by themselves."""
    for row, own in zip(decision.rows, steps, strict=True):
        name = f": {label(row.name, 40)}" if len(decision.rows) > 1 else ""
        yield Thought(f"Steps for the tokens of the text{name}", tuple(text.pieces(row.ids)), tuple(own), most)


def _view(decision: Decision, number: int, most: int) -> View:
    own = [score for score in decision.scores if score.row == number]
    at = own[0].at
    marked = decision.batch.marked
    apart = set() if len(at) > 8 else set(at)
    length = len(decision.rows[number].ids)
    if marked is not None:
        apart |= set(np.flatnonzero(marked.reshape(-1, marked.shape[-1])[number].cpu().numpy()[:length]).tolist())
    blocks = Blocks.of(length, length if length <= min(max(most, FEWEST), MOST) else BLOCKS, apart)
    return View(number, length, blocks, at)


def _counted(decision: Decision, score: Score, text: Text, values: Any, way: str) -> Counted:
    row = decision.rows[score.row]
    total, begins = float(values.sum()), np.array(text.starts_word(row.ids))
    begins[[at for at, _ in row.seams]] = True  # no word reaches over what was left out
    return Counted(
        title=score.name,
        way=way,
        pieces=tuple(_pieces(text, row)),
        shares=values / total if total > 0 else values,
        special=tuple(token in text.special and token not in _inner(text) for token in row.ids),
        words=tuple(np.cumsum(begins).tolist()),
        second=row.second,
        at=score.at,
        map=score.row,
        seams=row.seams,
    )


def _inner(text: Text) -> set[int | None]:
    """Special tokens that stand for a word of the text."""
    return {text.role("unknown"), text.role("mask")}


def _pieces(text: Text, row: Row) -> list[str]:
    """Running text, with a blank on both sides of special tokens and where something was left out."""
    ids, seams = row.ids, dict(row.seams)
    pieces, blank = spelled(text, ids), SIGNS[" "]
    for at in range(1, len(ids)):
        if {ids[at - 1], ids[at]} & text.special or at in seams:
            pieces[at] = blank + pieces[at].removeprefix(blank)
    return pieces


def _map(decision: Decision, view: View, text: Text) -> AttentionMap:
    row, several = decision.rows[view.row], len(decision.rows) > 1
    names = view.blocks.names(text.pieces(row.ids))
    title = "What each token looked at"
    if not view.blocks.single:
        title += f", in {len(view.blocks)} blocks of up to {int(view.blocks.sizes.max()):,} tokens"
    if several:
        title += f": {label(row.name, 40)}"
    name = f"text {view.row + 1}" if several else "text"
    cut = (int(view.blocks.numbers[row.second]),) if row.second else ()
    return AttentionMap(name, title, names, names, np.stack(view.tiles), cuts=cut, rooted=not view.blocks.single)


def _asked_map(decision: Decision, view: View, text: Text) -> AttentionMap:
    """The layers one below the other: what the tokens that were asked looked at."""
    row = decision.rows[view.row]
    pieces = text.pieces(row.ids)
    keys = view.blocks.names(pieces)
    names = [pieces[at] if row.ids[at] in text.special else f"‘{pieces[at]}’" for at in view.at]
    title = f"What {told(names)} looked at, layer by layer"
    weights = np.stack(view.asked, axis=1)[None]
    return AttentionMap(
        "asked", title, tuple(f"layer {n + 1}" for n in range(len(view.asked))), keys, weights, by="layers",
        rooted=not view.blocks.single,
    )  # fmt: skip


# -- what decisions share


def encoded_one(model: Asked, sample: Any, data: Data | None = None, labels: Sequence[str] = ()) -> Encoded:
    """One sample as its task reads it."""
    config = model.config
    encoded: Encoded = model.task.encode([sample], model.text_or_refuse(), config, config.length, data, labels)
    return encoded


def refuse_empty(texts: Sequence[str]) -> None:
    if not any(text.strip() for text in texts):
        raise RegardError("there is nothing to explain: the text is empty.")


def quoted(*texts: str) -> str:
    return " ▸ ".join(label(" ".join(text.split()) or text, 72) for text in texts)


def sure(said: str, chance: float) -> str:
    return f"{label(said, 40)} {100 * chance:.1f} %"


def cut_off(encoded: Encoded, what: str = "its middle") -> dict[str, str]:
    return {"cut": f"the text is too long for the model: {what} was left out"} if encoded.too_long else {}
