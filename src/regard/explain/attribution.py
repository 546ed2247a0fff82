"""Attribution by gradients: relevance of each token for an output score, and recorded forward passes.

Chefer, Gur and Wolf (2021): the relevance Ā of a layer is the average over heads of (∂y/∂A ∘ A)⁺, the attention that
increases the score y. Layers are combined by R ← R + Ā R. Models without attention have input saliency."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.explain.rollout import AttentionLayer, RowAttention, relevance, slice_records
from regard.nn.attention.longformer import LongformerAttention
from regard.nn.recording import named_attentions, record_attention
from regard.tasks.protocol import ModelProtocol
from regard.types import AttentionRecord, Batch

MAX_BYTES = 8 * 2**30
"""Memory limit for attention weights with gradients; above the limit, only attention rollout is computed."""

GRADIENT_MEMORY_FACTOR = 12
"""Memory with gradients divided by memory of the weights alone, at most; measured for windows over 57,767 tokens."""


@dataclass(frozen=True)
class OutputScore:
    """A scalar output to explain, and the positions of the hidden states used to compute the output."""

    name: str
    row: int
    positions: tuple[int, ...]
    """tokens whose last hidden states are the input of the head"""
    score_fn: Callable[[Tensor], Tensor] | None
    """computes the score from the logits of the task; None: no score, only attention rollout"""
    kind: str = ""
    """kind of the explained output for titles, for example `class`"""


def logit_margin(logits: Tensor, index: int) -> Tensor:
    """Logit `index` minus the average logit, because an equal increase of all logits changes no prediction."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return logits[index] - logits.mean()


def attribute(
    model: ModelProtocol, batch: Batch, views: Sequence[RowAttention], scores: Sequence[OutputScore]
) -> list[NDArray[np.float64] | None]:
    """Run the batch once and add the recorded attention to `views`. Returns the relevance of each token, (length,), per score;
    None if the score has no `score_fn` or if gradients would exceed `MAX_BYTES`."""
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
    """True for a record of another module, and for another application of the same module to all queries."""
    return record.name != previous.name or record.query_index is None


def token_relevance(
    value: Tensor, record_groups: Sequence[Sequence[AttentionRecord]], view: RowAttention, positions: Sequence[int]
) -> NDArray[np.float64]:
    """Relevance of each token, (length,), for `value`, a score computed from the hidden states at `positions`."""
    layers = []
    for group, owed in gradient_times_attention(value, record_groups):
        parts = slice_records(group, view.row, view.length, owed)
        layers.append(AttentionLayer(view.length, tuple(part.mean_edges() for part in parts)))
    return relevance(layers, view.query_weights(positions)).numpy()


def gradient_times_attention(
    value: Tensor, record_groups: Sequence[Sequence[AttentionRecord]]
) -> Iterator[tuple[Sequence[AttentionRecord], list[Tensor | None]]]:
    """Records of each layer, and the positive part of gradient × attention (∂y/∂A ∘ A)⁺ for each record."""
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
    """Estimated memory of all attention weights with gradients, for inputs (…, L)."""
    length, rows = batch.inputs.shape[-1], batch.inputs.numel() // max(batch.inputs.shape[-1], 1)
    marked = 0 if batch.global_tokens is None else int(batch.global_tokens.sum(-1).max())
    places = named_attentions(body).values()
    wide = [
        # other modules record the weights of all keys, also under a window
        min(length, window.left + window.right + 1 + marked) if isinstance(place, LongformerAttention) else length
        for window, place in zip(body.windows or [None] * len(places), places, strict=False)
    ]
    heads = [place.heads for place in places]
    weights = sum(many * columns for many, columns in zip(heads, wide, strict=False))
    return GRADIENT_MEMORY_FACTOR * 4 * rows * length * weights * body.repeats


class LayerConsumer(Protocol):
    """A receiver of all attention records of a layer at once."""

    def add(self, records: Sequence[AttentionRecord]) -> None: ...


class LayerGrouper:
    """Callback for `record_attention`: collects the records of a layer and passes complete layers to `views`."""

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
