"""Protocols of bodies and searches, search results, and shared functions."""

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
"""Given a row of the batch and its generated tokens, return True to end the row."""


class DecodingState(Protocol):
    """State of a body between steps, for example a KV cache. Beams of a source are adjacent rows."""

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
    """One output: tokens without prompt and end token, and the log-probability of each token, including the end token.

    Log-probabilities are from the unmodified distribution, before repetition penalty, temperature and filters."""

    tokens: tuple[int, ...]
    score: float
    log_probs: tuple[float, ...]
    finish_reason: FinishReason
    """`eos` (end token), `stop` (`stop_fn` returned True), `length` (limit reached), or `context` (context full). A
    search reports `length` for both limits; the caller sets the limits and distinguishes `context`."""

    @property
    def has_eos(self) -> bool:
        return self.finish_reason == "eos"


class Search(Protocol):
    """A search in progress. Tensors keep their addresses between steps, so that a step can be captured as a CUDA graph."""

    rows: np.ndarray
    active: Tensor
    state: DecodingState

    def step(self) -> None: ...
    def tensors(self) -> list[Tensor]: ...
    def select_rows(self, rows: Tensor) -> None: ...
    def hypotheses(self, rows: list[int]) -> list[list[Hypothesis]]: ...
    def collect(self, finished: dict[int, list[Hypothesis]]) -> list[list[Hypothesis]]: ...


def copy_into(target: Tensor, value: Tensor) -> None:
    """Copy values into `target`: a CUDA graph requires fixed addresses."""
    target.copy_(value.reshape(target.shape))


def mask_banned(logits: Tensor, banned: Tensor | None) -> Tensor:
    """Logits with -inf for `banned` tokens, in place."""
    return logits if banned is None else logits.index_fill_(-1, banned, -float("inf"))


def force_eos(logits: Tensor, eos_id: int, last: Tensor) -> Tensor:
    """Logits with the end token as the only choice in rows that may generate one more token."""
    only = torch.full_like(logits[:1], -torch.inf)
    only[:, eos_id] = 0.0
    return torch.where(last[:, None], only, logits)


def check_not_nan(score: float) -> None:
    if score != score:
        raise RegardError("The logits are NaN: the weights are damaged, or training diverged.")
