"""Interfaces of bodies and their decoding states, and the base class of searches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from regard.decode.logits import RepetitionPenalty
from regard.decode.settings import DecodeSettings
from regard.errors import RegardError
from regard.types import Batch, StateSizes

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
    """A body that generates token by token. A state of `max_cache_len` positions has constant shapes."""

    def start(self, batch: Batch, max_cache_len: int | None = None) -> Any: ...
    def step(self, tokens: Tensor, state: Any) -> Tensor: ...
    def state_sizes(self, batch: Batch) -> StateSizes: ...
    def parameters(self) -> Iterable[nn.Parameter]: ...


@dataclass(frozen=True)
class SearchInputs:
    """The prompts of a search, and all that determines their outputs."""

    body: GenerativeBody
    batch: Batch
    eos_id: int
    limits: Tensor
    """(B,) maximum number of generated tokens"""
    settings: DecodeSettings
    requests: np.ndarray
    """(B,) number of each row, for its random stream"""
    banned: Tensor | None = None
    """tokens that are never generated"""
    samples: range | None = None
    """samples of each row; None: all"""

    @property
    def num_samples(self) -> int:
        """Number of samples of each row; beams are counted as one."""
        return self.settings.num_return_sequences if self.settings.is_sampling else 1

    def chunk(self, rows: range, samples: range) -> SearchInputs:
        """A part of the rows, and of the samples of each row."""
        if len(rows) == len(self.limits):
            return replace(self, samples=samples)
        batch = self.batch.select_rows(torch.arange(rows.start, rows.stop, device=self.batch.inputs.device))
        part = slice(rows.start, rows.stop)
        return replace(self, batch=batch, limits=self.limits[part], requests=self.requests[part], samples=samples)


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


class Search:
    """A search in progress: B rows, each with W paths (beams). Greedy search and sampling have one path per row.

    Steps update all tensors in place, so that a step can be captured as a CUDA graph."""

    row_tensors: tuple[str, ...]
    """names of tensors of shape (B, …)"""
    histories: tuple[str, ...]
    """names of tensors of shape (T, B, …), to which each of at most T steps appends"""
    paths = 1
    num_samples = 1
    """number of adjacent rows that are samples of one source"""
    limits: Tensor
    """(B,) maximum number of tokens"""
    active: Tensor
    """(B,) True for rows in progress"""

    def __init__(
        self, inputs: SearchInputs, state: DecodingState, last_tokens: Tensor, repetition: RepetitionPenalty | None
    ) -> None:
        self.body, self.eos_id, self.settings, self.banned = inputs.body, inputs.eos_id, inputs.settings, inputs.banned
        self.state, self.last_tokens, self.repetition = state, last_tokens, repetition
        self.float_type = torch.float32 if last_tokens.device.type == "mps" else torch.float64
        self.rows = np.arange(len(last_tokens))
        """(B,) initial row numbers"""

    def step(self) -> None:
        """Extend each path by one token."""
        raise NotImplementedError

    def is_last_step(self) -> Tensor:
        """True for paths that may generate one more token."""
        raise NotImplementedError

    def hypotheses(self, rows: list[int]) -> list[list[Hypothesis]]:
        """Outputs of these rows."""
        raise NotImplementedError

    def next_logits(self) -> Tensor:
        """Logits of the next token of each path, with -inf for tokens that must not be generated."""
        logits = self.body.step(self.last_tokens, self.state)
        if self.banned is not None:
            logits.index_fill_(-1, self.banned, -torch.inf)
        if self.settings.forced_eos:
            only_eos = torch.full_like(logits[:1], -torch.inf)
            only_eos[:, self.eos_id] = 0.0
            logits = torch.where(self.is_last_step()[:, None], only_eos, logits)
        return logits

    def tensors(self) -> list[Tensor]:
        """All tensors that a step reads or updates, and whose values differ between searches."""
        own = [getattr(self, name) for name in (*self.row_tensors, *self.histories)]
        past = [] if self.repetition is None else self.repetition.tensors()
        return [self.last_tokens, *own, *past, *self.state.tensors()]

    def select_rows(self, rows: Tensor) -> None:
        """Keep these rows with all their paths."""
        paths = rows
        if self.paths > 1:
            paths = (rows[:, None] * self.paths + torch.arange(self.paths, device=rows.device)).flatten()
        self.state.select_rows(paths)
        self.last_tokens = self.last_tokens[paths]
        if self.repetition is not None:
            self.repetition.select_rows(paths)
        for name in self.row_tensors:
            setattr(self, name, getattr(self, name)[rows])
        for name in self.histories:
            setattr(self, name, getattr(self, name)[:, rows])
        self.rows = self.rows[rows.cpu().numpy()]

    def hypothesis(self, tokens: list[int], log_probs: list[float], score: float, stopped: bool = False) -> Hypothesis:
        """Output of a path that may end with the end token."""
        if score != score:
            raise RegardError("The logits are NaN: the weights are damaged, or training diverged.")
        ended = tokens[-1:] == [self.eos_id]
        reason: FinishReason = "eos" if ended else "stop" if stopped else "length"
        return Hypothesis(tuple(tokens[: len(tokens) - ended]), score, tuple(log_probs), reason)

    def collect(self, finished: dict[int, list[Hypothesis]]) -> list[list[Hypothesis]]:
        """Outputs of each source, best first, from the outputs of each row."""
        outputs = [finished[row] for row in sorted(finished)]
        sources = (outputs[i : i + self.num_samples] for i in range(0, len(outputs), self.num_samples))
        return [sorted((one for row in source for one in row), key=lambda one: -one.score) for source in sources]
