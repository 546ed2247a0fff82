"""What search asks of a body, what it answers, and the few words that its ways share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from torch import Tensor

from regard.errors import RegardError
from regard.types import Batch

Why = Literal["end", "until", "length", "context"]
Until = Callable[[int, list[int]], bool]
"""Given a row of the batch and what it has said so far: is that enough?"""


class State(Protocol):
    """What a body keeps between steps. Beams of one source are rows that stand together."""

    at: Tensor

    def widen(self, beams: int) -> None: ...
    def reorder(self, rows: Tensor) -> None: ...
    def keep(self, rows: Tensor) -> None: ...
    def join(self, other: Any) -> None: ...
    def tensors(self) -> list[Tensor]: ...


class Generating(Protocol):
    def start(self, batch: Batch, room: int | None = None) -> Any: ...
    def step(self, tokens: Tensor, state: Any) -> Tensor: ...


@dataclass(frozen=True)
class Found:
    """One answer: its tokens without the prompt and the end token, and the log-probability of each (the end's too).

    Log-probabilities are those of the model's own distribution, before repetition penalty, temperature and narrowing."""

    tokens: tuple[int, ...]
    score: float
    logs: tuple[float, ...]
    why: Why
    """what ended it: the end token, a stop string (`until`), or that it may not be longer, as was asked or as the context
    is full (which who set the limits knows: search says length)"""

    @property
    def ended(self) -> bool:
        return self.why == "end"


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
