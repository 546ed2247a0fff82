"""Search for all generative systems: greedy search, sampling and beam search.

A body provides `start(batch) -> state` and `step(tokens, state) -> logits`; a state can copy rows into beams
(`expand_beams`), reorder beams (`reorder`), select rows (`select_rows`) and add rows (`append_rows`). RNNs, GPTs and
translation models share this interface. Finished rows are removed; the output of a row does not depend on other rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from regard.decode.cuda_graphs import can_capture, graphed_search
from regard.decode.greedy import GreedyOrSample
from regard.decode.memory_budget import max_rows
from regard.decode.protocol import GenerativeBody, Hypothesis, StopFn
from regard.decode.settings import DecodeSettings
from regard.decode.steps import run_search, start_search
from regard.decode.stopping import StopMonitor
from regard.nn.kernels.linear import recheck_packed
from regard.types import Batch

__all__ = ["GenerativeBody", "Hypothesis", "StopFn", "search"]


def search(
    body: GenerativeBody, batch: Batch, eos_id: int, limits: Int[Tensor, "B"], settings: DecodeSettings,
    requests: np.ndarray | None = None, banned: tuple[int, ...] = (), stop_fn: StopFn | None = None,
    max_batch_tokens: int | None = None,
) -> list[list[Hypothesis]]:  # fmt: skip
    """For each row of `batch`, continue `batch.prompt` by at most `limits` tokens and return the best outputs, best
    first.

    `requests` numbers the rows for their random streams (0, 1, 2, … when None); `banned` tokens are never generated. A
    row also ends when `stop_fn` returns True for its tokens; beams are finished first and truncated then. Rows and
    samples are split into chunks if they need too much memory, samples also if they exceed `max_batch_tokens` tokens;
    chunks do not change the outputs."""
    speakers = ActiveRows.from_batch(batch, limits, requests, banned)
    answers = [[Hypothesis((), 0.0, (), "length")] for _ in limits]
    if not speakers.rows:
        return answers
    recheck_packed()
    found: dict[int, list[Hypothesis]] = {row: [] for row in speakers.rows}
    with torch.inference_mode():
        for part, copies in _chunks(body, speakers, settings, max_batch_tokens):
            more = _search_chunk(body, part, eos_id, settings, copies, part.remap_stop_fn(stop_fn))
            for row, options in zip(part.rows, more, strict=True):
                found[row] += options
    for row, options in found.items():
        if stop_fn is not None and settings.num_beams > 1:
            options = [_truncate(option, row, stop_fn) for option in options]
        answers[row] = sorted(options, key=lambda option: -option.score)
    return answers


@dataclass(frozen=True)
class ActiveRows:
    """Rows of a batch with a limit above 0, and their row numbers in the batch."""

    rows: list[int]
    batch: Batch
    limits: Tensor
    requests: np.ndarray
    banned: Tensor | None

    @classmethod
    def from_batch(
        cls, batch: Batch, limits: Tensor, requests: np.ndarray | None, banned: tuple[int, ...]
    ) -> ActiveRows:
        prompt, lengths = batch.prompt, batch.prompt_lengths
        if prompt.ndim != 2 or prompt.shape[1] == 0 or (lengths is not None and bool((lengths < 1).any())):
            raise ValueError("Each prompt must have at least one token.")
        requests = np.arange(len(limits)) if requests is None else requests
        rows = torch.nonzero(limits > 0)[:, 0]
        if len(rows) < len(limits):
            batch = batch.select_rows(rows.to(batch.inputs.device))
        silent = torch.tensor(banned, device=batch.inputs.device) if banned else None
        return cls(rows.tolist(), batch, limits[rows], requests[rows.cpu().numpy()], silent)

    def subset(self, first: int, last: int) -> ActiveRows:
        if (first, last) == (0, len(self.rows)):
            return self
        places = torch.arange(first, last)
        batch = self.batch.select_rows(places.to(self.batch.inputs.device))
        return replace(
            self, rows=self.rows[first:last], batch=batch, limits=self.limits[first:last],
            requests=self.requests[first:last],
        )  # fmt: skip

    def remap_stop_fn(self, stop_fn: StopFn | None) -> StopFn | None:
        """`stop_fn` called with the row numbers of the whole batch."""
        return None if stop_fn is None else lambda row, tokens: stop_fn(self.rows[row], tokens)


def _chunks(
    body: GenerativeBody, speakers: ActiveRows, settings: DecodeSettings, budget: int | None
) -> Iterator[tuple[ActiveRows, range]]:
    """Chunks of rows, and the samples in each. Samples of a row stay together if possible, because each chunk processes
    its prompts again."""
    count, copies = len(speakers.rows), settings.num_return_sequences if settings.is_sampling else 1
    batch, longest = speakers.batch, int(speakers.limits.max())
    read, fits = batch.prompt.shape[1], max_rows(body, batch, longest, settings.num_beams)
    most = count * copies if fits is None else min(count * copies, fits)
    if budget is not None and copies > 1:  # the caller limited the tokens of the rows, not of the samples
        most = min(most, max(1, budget // (read + longest)))
    together = min(copies, most)
    for rows in _split_evenly(count, most // together):
        for draws in _split_evenly(copies, together):
            yield speakers.subset(rows.start, rows.stop), draws


def _split_evenly(count: int, most: int) -> list[range]:
    """Ranges of about equal size, at most `most`."""
    parts = -(-count // most)
    ends = [count * part // parts for part in range(parts + 1)]
    return [range(first, last) for first, last in pairwise(ends)]


def _search_chunk(
    body: GenerativeBody, speakers: ActiveRows, end: int, settings: DecodeSettings, copies: range, until: StopFn | None
) -> list[list[Hypothesis]]:
    asked = body, speakers.batch, end, speakers.limits, settings, speakers.requests, speakers.banned
    if can_capture(body, speakers.batch):
        found = graphed_search(*asked, copies, until)
        if found is not None:
            return found
    quest = start_search(*asked, sample_range=copies)
    return run_search(
        quest, StopMonitor(quest, until) if until is not None and isinstance(quest, GreedyOrSample) else None
    )


def _truncate(found: Hypothesis, row: int, until: StopFn) -> Hypothesis:
    """Output of a beam up to the first stop; the score of the whole beam is kept."""
    said: list[int] = []  # one growing list: `until` may continue from the previous call
    for length, token in enumerate(found.tokens, 1):
        said.append(token)
        if until(row, said):
            return replace(
                found, tokens=found.tokens[:length], log_probs=found.log_probs[:length], finish_reason="stop"
            )
    return found
