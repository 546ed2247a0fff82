"""What search asks of a body, what it answers, and the few words that its ways share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from regard.errors import RegardError
from regard.waists import Batch


class State(Protocol):
    """What a body keeps between steps. Beams of one source are rows that stand together."""

    def widen(self, beams: int) -> None: ...
    def reorder(self, rows: Tensor) -> None: ...
    def keep(self, rows: Tensor) -> None: ...


class Generating(Protocol):
    def start(self, batch: Batch, room: int | None = None) -> State: ...
    def step(self, tokens: Tensor, state: State) -> Tensor: ...


@dataclass(frozen=True)
class Found:
    """One answer: its tokens without the prompt and the end token, and the log-probability of each (the end's too)."""

    tokens: tuple[int, ...]
    score: float
    logs: tuple[float, ...]
    ended: bool


class Quest(Protocol):
    """A search under way. A step is tensor operations on tensors that stay where they are, so that it can be recorded."""

    rows: np.ndarray
    open: Tensor
    state: State

    def step(self) -> None: ...
    def tensors(self) -> list[Tensor]: ...
    def keep(self, rows: Tensor) -> None: ...
    def answers(self, rows: list[int]) -> list[list[Found]]: ...
    def gathered(self, answers: dict[int, list[Found]]) -> list[list[Found]]: ...


def put(here: Tensor, value: Tensor) -> None:
    """Into the same place: a recording reads it there again."""
    here.copy_(value.reshape(here.shape))


def silence(logits: Tensor, banned: Tensor | None) -> Tensor:
    """`banned` tokens are never said."""
    return logits if banned is None else logits.index_fill_(-1, banned, -float("inf"))


def refuse_nan(score: float) -> None:
    if score != score:
        raise RegardError("the model's logits are not numbers (NaN): its weights are broken or its training diverged.")
