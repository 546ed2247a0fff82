"""Start a search, and run its steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from regard.decode.beam import BeamSearch
from regard.decode.greedy import GreedyOrSample
from regard.decode.protocol import DecodingState, GenerativeBody, Hypothesis, Search
from regard.decode.repetition import RepetitionPenalty
from regard.decode.settings import DecodeSettings
from regard.decode.stopping import StopMonitor
from regard.types import Batch


def start_search(
    body: GenerativeBody, batch: Batch, eos_id: int, limits: Tensor, settings: DecodeSettings, requests: np.ndarray,
    banned: Tensor | None, max_cache_len: int | None = None, sample_range: range | None = None,
) -> Search:  # fmt: skip
    """Process the prompts and return the search. `sample_range`: samples of each row, None: all."""
    state: DecodingState = body.start(batch, max_cache_len)
    last, past = batch.last_tokens(), None
    if settings.repetition_penalty != 1.0:
        furthest = batch.prompt.shape[1] - 1 + int(limits.max()) if max_cache_len is None else max_cache_len
        past = RepetitionPenalty(batch, settings.repetition_penalty, furthest + 1)
    if settings.num_beams > 1:
        return BeamSearch(body, state, last, eos_id, limits, settings, banned, past)
    return GreedyOrSample(body, state, last, eos_id, limits, settings, requests, banned, past, sample_range)


def iterate(
    search: Search, finished: dict[int, list[Hypothesis]], monitor: StopMonitor | None = None
) -> Iterator[dict[int, list[int]]]:
    """Run the steps and yield the new tokens of each step. Finished rows are removed, with their outputs in `finished`."""
    while True:
        search.step()
        yield {} if monitor is None else monitor.poll()
        if bool(search.active.all()):
            continue
        closed = torch.nonzero(~search.active)[:, 0].tolist()
        for row, found in zip(closed, search.hypotheses(closed), strict=True):
            finished[int(search.rows[row])] = found
        going = torch.nonzero(search.active)[:, 0]
        if not len(going):
            return
        search.select_rows(going)


def run_search(search: Search, monitor: StopMonitor | None = None) -> list[list[Hypothesis]]:
    answers: dict[int, list[Hypothesis]] = {}
    for _ in iterate(search, answers, monitor):
        pass
    return search.collect(answers)
