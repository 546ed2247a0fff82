"""Explanation of a prediction on text: attribution of the output scores, and attention of every layer and head.

The functions of `text_decisions.py` and `token_decisions.py` return the `Decision` of a task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from regard.data.settings import DataSettings
from regard.draw.text import label
from regard.draw.token_data import (
    GRADIENT,
    PROBABILITIES_TITLE,
    ROLLOUT,
    ActSteps,
    AttentionMap,
    DecisionAttribution,
    TokenAttribution,
    describe_tokens,
)
from regard.errors import RegardError
from regard.explain.attribution import MAX_BYTES, OutputScore, attribute, attribution_bytes
from regard.explain.explanation import Explanation
from regard.explain.lm import display_pieces
from regard.explain.text_attention import RowAttention
from regard.explain.token_blocks import TokenBlocks
from regard.nn.recording import named_attentions
from regard.processors.tokenizer.token_text import WHITESPACE_SYMBOLS
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.tasks.act import act_steps
from regard.tasks.base import Encoded
from regard.tasks.protocol import ModelProtocol
from regard.types import Batch

MAX_WEIGHTS = 3_000_000
"""Attention weights per text on a page. If one map row per token would need more, tokens are grouped into blocks."""
MIN_TOKEN_ROWS, MAX_TOKEN_ROWS = 96, 512
"""Texts up to the minimum always have one map row per token, texts above the maximum never."""
MAX_BLOCKS = 128
"""Blocks per text if tokens are grouped."""


@dataclass(frozen=True)
class TokenRow:
    """One input sequence of the model."""

    ids: tuple[int, ...]
    second_start: int = 0
    """position of the second text; 0: there is no second text"""
    name: str = ""
    """name for titles if there are several rows"""
    truncations: tuple[tuple[int, int], ...] = ()
    """positions after a truncation, each with the number of tokens removed before the position"""


@dataclass(frozen=True)
class Decision:
    """A prediction to explain: input rows, candidate probabilities and output scores."""

    title: str
    prediction: str
    probabilities: tuple[tuple[str, float], ...]
    """candidate predictions with probabilities"""
    rows: tuple[TokenRow, ...]
    batch: Batch
    scores: tuple[OutputScore, ...]
    facts: dict[str, str] = field(default_factory=dict)
    probabilities_title: str = PROBABILITIES_TITLE
    """title of the probability chart"""


def explain_decision(model: ModelProtocol, decide: Callable[[], Decision]) -> Explanation:
    """Explain the decision returned by `decide`: run the batch again with attention recording."""
    training = model.training
    model.eval()
    try:
        decision = decide()
        heads = sum(place.heads for place in named_attentions(model.body).values()) * getattr(model.body, "repeats", 1)
        views = [
            _row_attention(decision, number, int((MAX_WEIGHTS / heads) ** 0.5)) for number in range(len(decision.rows))
        ]
        found = attribute(model, decision.batch, views, decision.scores)
        steps = act_steps(model, decision.batch)
    finally:
        model.train(training)
    text, counted, told_of = model.require_tokenizer(), [], set()
    for score, owed in zip(decision.scores, found, strict=True):
        make = partial(_token_attribution, decision, score, text)
        if owed is not None:
            counted.append(make(owed, GRADIENT))
        elif (score.row, score.positions) in told_of:
            continue  # rollout does not depend on the score
        counted.append(make(views[score.row].rollout(score.positions), ROLLOUT))
        told_of.add((score.row, score.positions))
    maps = [_attention_map(decision, view, text) for view in views]
    maps.append(_output_map(decision, views[decision.scores[0].row], text))
    facts = decision.facts | {"tokens": " + ".join(f"{len(row.ids):,}" for row in decision.rows)}
    if (room := attribution_bytes(model.body, decision.batch)) > MAX_BYTES:
        facts["gradient × attention"] = f"not computed: needs {room / 2**30:,.0f} GiB of memory"
    if hasattr(model.body, "repeats"):
        facts["layers"] = "steps of one block with shared weights"
    if steps is not None:
        facts["attention rollout"] = "over all steps, including steps after a token has halted"
    decided = DecisionAttribution(
        decision.prediction, decision.probabilities, tuple(counted), decision.probabilities_title
    )
    thoughts = () if steps is None else tuple(_act_steps(decision, text, steps, model.config.max_steps))
    return Explanation(decision.title, tuple(maps), facts, decision=decided, act_steps=thoughts)


def _act_steps(decision: Decision, text: TextTokenizer, steps: Sequence[list[int]], most: int) -> Iterator[ActSteps]:
    """Number of steps per token of each row, for models with adaptive computation time."""
    for row, own in zip(decision.rows, steps, strict=True):
        name = f": {label(row.name, 40)}" if len(decision.rows) > 1 else ""
        yield ActSteps(f"Ponder steps per token (ACT){name}", tuple(text.display_tokens(row.ids)), tuple(own), most)


def _row_attention(decision: Decision, number: int, most: int) -> RowAttention:
    own = [score for score in decision.scores if score.row == number]
    at = own[0].positions
    marked = decision.batch.global_tokens
    apart = set() if len(at) > 8 else set(at)
    length = len(decision.rows[number].ids)
    if marked is not None:
        apart |= set(np.flatnonzero(marked.reshape(-1, marked.shape[-1])[number].cpu().numpy()[:length]).tolist())
    blocks = TokenBlocks.split(
        length, length if length <= min(max(most, MIN_TOKEN_ROWS), MAX_TOKEN_ROWS) else MAX_BLOCKS, apart
    )
    return RowAttention(number, length, blocks, at)


def _token_attribution(
    decision: Decision, score: OutputScore, text: TextTokenizer, values: Any, way: str
) -> TokenAttribution:
    row = decision.rows[score.row]
    total, begins = float(values.sum()), np.array(text.starts_word(row.ids))
    begins[[at for at, _ in row.truncations]] = True  # a truncation ends a word
    return TokenAttribution(
        title=score.name,
        target_kind=score.kind,
        method=way,
        pieces=tuple(_pieces(text, row)),
        fractions=values / total if total > 0 else values,
        special=tuple(token in text.special_ids and token not in _content_special_ids(text) for token in row.ids),
        words=tuple(np.cumsum(begins).tolist()),
        second_start=row.second_start,
        output_positions=score.positions,
        map_index=score.row,
        truncations=row.truncations,
    )


def _content_special_ids(text: TextTokenizer) -> set[int | None]:
    """Special tokens that represent a word of the text: unknown and mask."""
    return {text.special_id("unknown"), text.special_id("mask")}


def _pieces(text: TextTokenizer, row: TokenRow) -> list[str]:
    """Displayed tokens, with a space on both sides of special tokens and at truncations."""
    ids, seams = row.ids, dict(row.truncations)
    pieces, blank = display_pieces(text, ids), WHITESPACE_SYMBOLS[" "]
    for at in range(1, len(ids)):
        if {ids[at - 1], ids[at]} & text.special_ids or at in seams:
            pieces[at] = blank + pieces[at].removeprefix(blank)
    return pieces


def _attention_map(decision: Decision, view: RowAttention, text: TextTokenizer) -> AttentionMap:
    row, several = decision.rows[view.row], len(decision.rows) > 1
    names = view.blocks.names(text.display_tokens(row.ids))
    title = "Self-attention"
    if not view.blocks.is_trivial:
        title += f", in {len(view.blocks)} blocks of up to {int(view.blocks.sizes.max()):,} tokens"
    if several:
        title += f": {label(row.name, 40)}"
    name = f"text {view.row + 1}" if several else "text"
    cut = (int(view.blocks.block_ids[row.second_start]),) if row.second_start else ()
    return AttentionMap(
        name, title, names, names, np.stack(view.block_maps), boundaries=cut, sqrt_scale=not view.blocks.is_trivial
    )


def _output_map(decision: Decision, view: RowAttention, text: TextTokenizer) -> AttentionMap:
    """Attention from the output positions, one row per layer."""
    row = decision.rows[view.row]
    pieces = text.display_tokens(row.ids)
    keys = view.blocks.names(pieces)
    names = [pieces[at] if row.ids[at] in text.special_ids else f"‘{pieces[at]}’" for at in view.query_positions]
    title = f"Attention from {describe_tokens(names)} by layer"
    weights = np.stack(view.query_maps, axis=1)[None]
    return AttentionMap(
        "asked", title, tuple(f"layer {n + 1}" for n in range(len(view.query_maps))), keys, weights, row_kind="layers",
        sqrt_scale=not view.blocks.is_trivial, description="Rows: layers. Columns: keys.",
    )  # fmt: skip


# -- functions shared by the tasks


def encode_sample(
    model: ModelProtocol, sample: Any, data: DataSettings | None = None, labels: Sequence[str] = ()
) -> Encoded:
    """One sample, encoded by the task of the model."""
    config = model.config
    encoded: Encoded = model.task.encode([sample], model.require_tokenizer(), config, config.max_length, data, labels)
    return encoded


def check_not_empty(texts: Sequence[str]) -> None:
    if not any(text.strip() for text in texts):
        raise RegardError("Nothing to explain: the text is empty.")


def join_titles(*texts: str) -> str:
    return " ▸ ".join(label(" ".join(text.split()) or text, 72) for text in texts)


def format_confidence(prediction: str, probability: float) -> str:
    return f"{label(prediction, 40)} {100 * probability:.1f} %"


def truncation_fact(encoded: Encoded, part: str = "middle") -> dict[str, str]:
    return (
        {"truncated": f"the text exceeds the maximum length of the model; the {part} was removed"}
        if encoded.too_long
        else {}
    )
