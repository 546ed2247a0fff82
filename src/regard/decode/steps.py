"""Start a search, run its steps, and read the new tokens of each step."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from regard.decode.beam import BeamSearch
from regard.decode.greedy import GreedyOrSample
from regard.decode.logits import RepetitionPenalty
from regard.decode.protocol import DecodingState, Hypothesis, Search, SearchInputs, StopFn


def start_search(inputs: SearchInputs, max_cache_len: int | None = None) -> Search:
    """Process the prompts and return the search."""
    state: DecodingState = inputs.body.start(inputs.batch, max_cache_len)
    repetition, penalty = None, inputs.settings.repetition_penalty
    if penalty != 1.0:
        longest = (
            inputs.batch.prompt.shape[1] - 1 + int(inputs.limits.max()) if max_cache_len is None else max_cache_len
        )
        repetition = RepetitionPenalty(inputs.batch, penalty, longest + 1)
    return (BeamSearch if inputs.settings.num_beams > 1 else GreedyOrSample)(inputs, state, repetition)


class StopMonitor:
    """Reports new tokens to a stream, and ends a row when `stop_fn` returns True.

    Several steps may run between two polls. Tokens are still checked one by one, and tokens after the stop are
    discarded, so that outputs do not depend on how often the search is polled."""

    def __init__(self, search: GreedyOrSample, stop_fn: StopFn | None, num_rows: int | None = None) -> None:
        self.search, self.stop_fn = search, stop_fn
        self.num_rows = num_rows
        """rows from this number on are padding"""
        self.generated: dict[int, list[int]] = {}
        """tokens by initial row number, without the end token"""
        self.num_read: dict[int, int] = {}
        """number of checked tokens by row number"""

    @classmethod
    def if_needed(cls, search: Search, stop_fn: StopFn | None, num_rows: int | None = None) -> StopMonitor | None:
        """A monitor for the stop function; None without one, and for beam search, which truncates finished beams."""
        return None if stop_fn is None or not isinstance(search, GreedyOrSample) else cls(search, stop_fn, num_rows)

    def poll(self) -> dict[int, list[int]]:
        """New tokens of each row since the last call, by row number; rows stopped by `stop_fn` are closed."""
        updated = [
            (place, number, self.num_read.get(number, 0), length)
            for place, (number, length) in enumerate(
                zip(self.search.rows.tolist(), self.search.lengths.tolist(), strict=True)
            )
            if length > self.num_read.get(number, 0) and (self.num_rows is None or number < self.num_rows)
        ]
        if not updated:
            return {}
        first = min(start for _, _, start, _ in updated)
        tokens = self.search.tokens[first : max(length for *_, length in updated)].tolist()
        news, stopped = {}, {}
        for place, number, start, length in updated:
            self.num_read[number] = length
            new = [tokens[at - first][place] for at in range(start, length)]
            news[number] = new = new[:-1] if new[-1] == self.search.eos_id else new
            generated = self.generated.setdefault(number, [])
            for count, token in enumerate(new, 1):
                generated.append(token)
                if self.stop_fn is not None and self.stop_fn(number // self.search.num_samples, generated):
                    news[number] = new[:count]
                    stopped[place] = self.num_read[number] = len(generated)
                    break
        if stopped:
            self.search.close(list(stopped), list(stopped.values()))
        return news


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
        for row, outputs in zip(closed, search.hypotheses(closed), strict=True):
            finished[int(search.rows[row])] = outputs
        remaining = torch.nonzero(search.active)[:, 0]
        if not len(remaining):
            return
        search.select_rows(remaining)


def run_search(search: Search, monitor: StopMonitor | None = None) -> list[list[Hypothesis]]:
    finished: dict[int, list[Hypothesis]] = {}
    for _ in iterate(search, finished, monitor):
        pass
    return search.collect(finished)
