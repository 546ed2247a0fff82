"""What search asks of a body, what it answers, and the few words that its ways share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from regard.errors import RegardError
from regard.types import Batch

FinishReason = Literal["eos", "stop", "length", "context"]
StopFn = Callable[[int, list[int]], bool]
"""Given a row of the batch and what it has said so far: is that enough?"""


class DecodingState(Protocol):
    """What a body keeps between steps. Beams of one source are rows that stand together."""

    positions: Tensor

    def expand_beams(self, beams: int) -> None: ...
    def reorder(self, rows: Tensor) -> None: ...
    def select_rows(self, rows: Tensor) -> None: ...
    def append_rows(self, other: Any) -> None: ...
    def tensors(self) -> list[Tensor]: ...


class GenerativeBody(Protocol):
    def start(self, batch: Batch, max_cache_len: int | None = None) -> Any: ...
    def step(self, tokens: Tensor, state: Any) -> Tensor: ...


@dataclass(frozen=True)
class Hypothesis:
    """One answer: its tokens without the prompt and the end token, and the log-probability of each (the end's too).

    Log-probabilities are those of the model's own distribution, before repetition penalty, temperature and narrowing."""

    tokens: tuple[int, ...]
    score: float
    log_probs: tuple[float, ...]
    finish_reason: FinishReason
    """`eos` (end token), `stop` (`stop_fn` returned True), `length` (limit reached), or `context` (context full). Search
    itself reports `length` for both limits; the caller that sets the limits distinguishes `context`."""

    @property
    def has_eos(self) -> bool:
        return self.finish_reason == "eos"


class Search(Protocol):
    """A search under way. A step is tensor operations on tensors that stay where they are, so that it can be recorded."""

    rows: np.ndarray
    active: Tensor
    state: DecodingState

    def step(self) -> None: ...
    def tensors(self) -> list[Tensor]: ...
    def select_rows(self, rows: Tensor) -> None: ...
    def hypotheses(self, rows: list[int]) -> list[list[Hypothesis]]: ...
    def collect(self, finished: dict[int, list[Hypothesis]]) -> list[list[Hypothesis]]: ...


def copy_into(target: Tensor, value: Tensor) -> None:
    """Into the same place: a recording reads it there again."""
    target.copy_(value.reshape(target.shape))


def mask_banned(logits: Tensor, banned: Tensor | None) -> Tensor:
    """`banned` tokens are never said."""
    return logits if banned is None else logits.index_fill_(-1, banned, -float("inf"))


def force_eos(logits: Tensor, eos_id: int, last: Tensor) -> Tensor:
    """Logits with the end token as the only choice in rows that may generate one more token."""
    only = torch.full_like(logits[:1], -torch.inf)
    only[:, eos_id] = 0.0
    return torch.where(last[:, None], only, logits)


def check_not_nan(score: float) -> None:
    if score != score:
        raise RegardError("The logits are NaN: the weights are damaged, or training diverged.")
