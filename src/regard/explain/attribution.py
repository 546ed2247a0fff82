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

from regard.explain.rollout import Layer, relevance
from regard.explain.text_attention import View, parted
from regard.nn.recording import attention_names, watch
from regard.tasks.protocol import Asked
from regard.types import Batch, Look

ROOM = 8 * 2**30
"""Bytes that weights may take with all that their gradients need; of more, only the attention itself is told."""

COPIES = 12
"""How many times as much as the weights themselves their gradients need, at worst: seen of windows over 57,767 tokens."""


@dataclass(frozen=True)
class Score:
    """A number that the model came to, and where it was read."""

    name: str
    row: int
    at: tuple[int, ...]
    """the tokens whose last states it was read from"""
    of: Callable[[Tensor], Tensor] | None
    """itself, of all that the task reads; None: no number, and only the attention of these tokens is told"""


def ahead(logits: Tensor, which: int) -> Tensor:
    """How far one of some answers is ahead of them in the mean. Only differences of logits decide: what raises all of them
    alike counts for none."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return logits[which] - logits.mean()


def study(
    model: Asked, batch: Batch, views: Sequence[View], scores: Sequence[Score]
) -> list[NDArray[np.float64] | None]:
    """Read the batch once, watched: the views are filled, and of each score it is told how much every token of its row
    counted, None where gradients would not fit into memory."""
    costly = cost(model.body, batch) > ROOM
    by_row = {view.row: view for view in views}
    if costly or all(score.of is None for score in scores):
        with torch.no_grad(), Layers(views) as layers, watch(model.body, each=layers):
            model.task.logits(model, batch)
        return [None] * len(scores)
    with torch.enable_grad(), watch(model.body, gradients=True) as seen:
        logits = model.task.logits(model, batch)
    looks = by_layer(seen.looks)
    for group in looks:
        for view in views:
            view.add(group)
    return [
        None if score.of is None else counted(score.of(logits), looks, by_row[score.row], score.at) for score in scores
    ]


def by_layer(looks: Sequence[Look]) -> list[list[Look]]:
    layers: list[list[Look]] = []
    for look in looks:
        if not layers or begins_layer(look, layers[-1][-1]):
            layers.append([])
        layers[-1].append(look)
    return layers


def begins_layer(look: Look, before: Look) -> bool:
    """Another attention looks, or the same one again for all queries: its weights may be applied more than once."""
    return look.name != before.name or look.queries is None


def counted(value: Tensor, looks: Sequence[Sequence[Look]], view: View, at: Sequence[int]) -> NDArray[np.float64]:
    """(length,) how much each token counted for a number that was read at some of them."""
    layers = []
    for group, owed in owing(value, looks):
        parts = parted(group, view.row, view.length, owed)
        layers.append(Layer(view.length, tuple(part.links() for part in parts)))
    return relevance(layers, view.start(at)).numpy()


def owing(value: Tensor, looks: Sequence[Sequence[Look]]) -> Iterator[tuple[Sequence[Look], list[Tensor | None]]]:
    """The looks of each layer, and what the number owes to each of their weights: (∂y/∂A ∘ A)⁺."""
    weights = [look.weights for group in looks for look in group]
    found = iter(torch.autograd.grad(value, weights, retain_graph=True, allow_unused=True))
    for group in looks:
        owed: list[Tensor | None] = []
        for look in group:
            gradient = next(found)
            none = torch.zeros_like(look.weights)
            owed.append(none if gradient is None else (gradient * look.weights.detach()).clamp(min=0))
        yield group, owed


def cost(body: Any, batch: Batch) -> int:
    """Bytes of all weights with what their gradients need, of rows (…, L)."""
    length, rows = batch.x.shape[-1], batch.x.numel() // max(batch.x.shape[-1], 1)
    windows = getattr(body, "windows", ())
    marked = 0 if batch.marked is None else int(batch.marked.sum(-1).max())
    places = attention_names(body).values()
    wide = [min(length, window.left + window.right + 1 + marked) for window in windows] or [length] * len(places)
    heads = [place.heads for place in places]
    weights = sum(many * columns for many, columns in zip(heads, wide, strict=False))
    return COPIES * 4 * rows * length * weights * getattr(body, "repeats", 1)


class Viewer(Protocol):
    """Who is handed the looks of a layer together."""

    def add(self, looks: Sequence[Look]) -> None: ...


class Layers:
    """Is told of looks one by one, and hands those of a layer to the views when the next begins."""

    def __init__(self, views: Sequence[Viewer]) -> None:
        self.views, self.waiting = views, list[Look]()

    def __call__(self, look: Look) -> None:
        if self.waiting and begins_layer(look, self.waiting[-1]):
            self.settle()
        self.waiting.append(look)

    def settle(self) -> None:
        for view in self.views if self.waiting else ():
            view.add(self.waiting)
        self.waiting.clear()

    def __enter__(self) -> Layers:
        return self

    def __exit__(self, *_: Any) -> None:
        self.settle()
