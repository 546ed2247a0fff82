"""What a number owes to attention: the gradient of the number with respect to each weight, times the weight.

Chefer, Gur and Wolf (2021): of a layer counts the mean over heads of (∂y/∂A ∘ A)⁺, the looks that made y larger, and
layers are joined as R ← R + Ā R.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.explain.rollout import AttentionLayer, relevance
from regard.explain.text_attention import RowAttention, slice_records
from regard.nn.recording import named_attentions, record_attention
from regard.tasks.protocol import ModelProtocol
from regard.types import AttentionRecord, Batch

MAX_BYTES = 8 * 2**30
"""Bytes that weights may take with all that their gradients need; of more, only the attention itself is told."""

GRADIENT_MEMORY_FACTOR = 12
"""How many times as much as the weights themselves their gradients need, at worst: seen of windows over 57,767 tokens."""


@dataclass(frozen=True)
class OutputScore:
    """A number that the model came to, and where it was read."""

    name: str
    row: int
    positions: tuple[int, ...]
    """the tokens whose last states it was read from"""
    score_fn: Callable[[Tensor], Tensor] | None
    """itself, of all that the task reads; None: no number, and only the attention of these tokens is told"""
    kind: str = ""
    """kind of the explained output for titles, for example `class`"""


def logit_margin(logits: Tensor, index: int) -> Tensor:
    """How far one of some answers is ahead of them in the mean. Only differences of logits decide: what raises all of them
    alike counts for none."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return logits[index] - logits.mean()


def attribute(
    model: ModelProtocol, batch: Batch, views: Sequence[RowAttention], scores: Sequence[OutputScore]
) -> list[NDArray[np.float64] | None]:
    """Read the batch once, watched: the views are filled, and of each score it is told how much every token of its row
    counted, None where gradients would not fit into memory."""
    costly = attribution_bytes(model.body, batch) > MAX_BYTES
    by_row = {view.row: view for view in views}
    if costly or all(score.score_fn is None for score in scores):
        with torch.no_grad(), LayerGrouper(views) as layers, record_attention(model.body, callback=layers):
            model.task.logits(model, batch)
        return [None] * len(scores)
    with torch.enable_grad(), record_attention(model.body, gradients=True) as seen:
        logits = model.task.logits(model, batch)
    looks = group_by_layer(seen.records)
    for group in looks:
        for view in views:
            view.add(group)
    return [
        None
        if score.score_fn is None
        else token_relevance(score.score_fn(logits), looks, by_row[score.row], score.positions)
        for score in scores
    ]


def group_by_layer(records: Sequence[AttentionRecord]) -> list[list[AttentionRecord]]:
    layers: list[list[AttentionRecord]] = []
    for look in records:
        if not layers or starts_layer(look, layers[-1][-1]):
            layers.append([])
        layers[-1].append(look)
    return layers


def starts_layer(record: AttentionRecord, previous: AttentionRecord) -> bool:
    """Another attention looks, or the same one again for all queries: its weights may be applied more than once."""
    return record.name != previous.name or record.query_index is None


def token_relevance(
    value: Tensor, record_groups: Sequence[Sequence[AttentionRecord]], view: RowAttention, positions: Sequence[int]
) -> NDArray[np.float64]:
    """(length,) how much each token counted for a number that was read at some of them."""
    layers = []
    for group, owed in gradient_times_attention(value, record_groups):
        parts = slice_records(group, view.row, view.length, owed)
        layers.append(AttentionLayer(view.length, tuple(part.mean_edges() for part in parts)))
    return relevance(layers, view.query_weights(positions)).numpy()


def gradient_times_attention(
    value: Tensor, record_groups: Sequence[Sequence[AttentionRecord]]
) -> Iterator[tuple[Sequence[AttentionRecord], list[Tensor | None]]]:
    """The looks of each layer, and what the number owes to each of their weights: (∂y/∂A ∘ A)⁺."""
    weights = [look.weights for group in record_groups for look in group]
    found = iter(torch.autograd.grad(value, weights, retain_graph=True, allow_unused=True))
    for group in record_groups:
        owed: list[Tensor | None] = []
        for look in group:
            gradient = next(found)
            none = torch.zeros_like(look.weights)
            owed.append(none if gradient is None else (gradient * look.weights.detach()).clamp(min=0))
        yield group, owed


def attribution_bytes(body: Any, batch: Batch) -> int:
    """Bytes of all weights with what their gradients need, of rows (…, L)."""
    length, rows = batch.inputs.shape[-1], batch.inputs.numel() // max(batch.inputs.shape[-1], 1)
    windows = getattr(body, "windows", ())
    marked = 0 if batch.global_tokens is None else int(batch.global_tokens.sum(-1).max())
    places = named_attentions(body).values()
    wide = [min(length, window.left + window.right + 1 + marked) for window in windows] or [length] * len(places)
    heads = [place.heads for place in places]
    weights = sum(many * columns for many, columns in zip(heads, wide, strict=False))
    return GRADIENT_MEMORY_FACTOR * 4 * rows * length * weights * getattr(body, "repeats", 1)


class LayerConsumer(Protocol):
    """Who is handed the looks of a layer together."""

    def add(self, records: Sequence[AttentionRecord]) -> None: ...


class LayerGrouper:
    """Is told of looks one by one, and hands those of a layer to the views when the next begins."""

    def __init__(self, views: Sequence[LayerConsumer]) -> None:
        self.views, self.pending = views, list[AttentionRecord]()

    def __call__(self, look: AttentionRecord) -> None:
        if self.pending and starts_layer(look, self.pending[-1]):
            self.flush()
        self.pending.append(look)

    def flush(self) -> None:
        for view in self.views if self.pending else ():
            view.add(self.pending)
        self.pending.clear()

    def __enter__(self) -> LayerGrouper:
        return self

    def __exit__(self, *_: Any) -> None:
        self.flush()
