"""One search for every generating system: greedy, sampling, beam.

A body offers `start(batch) -> state` and `step(tokens, state) -> logits`; the state can `widen` rows into beams, `reorder`
their pasts, `keep` rows and `join` others. Search knows nothing else, so an RNN, a GPT and a translator share it. Rows that
have finished are dropped, and what a row answers does not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from regard.decode.cuda_graphs import recordable, recorded
from regard.decode.greedy import Single
from regard.decode.memory_budget import rows_for
from regard.decode.protocol import Found, Generating, Until
from regard.decode.settings import Decode
from regard.decode.steps import begin, run
from regard.decode.stopping import Heard
from regard.nn.kernels.linear import recheck
from regard.types import Batch

__all__ = ["Found", "Generating", "Until", "search"]


def search(
    body: Generating, batch: Batch, end: int, limits: Int[Tensor, "B"], settings: Decode,
    requests: np.ndarray | None = None, banned: tuple[int, ...] = (), until: Until | None = None,
    budget: int | None = None,
) -> list[list[Found]]:  # fmt: skip
    """For each row of `batch`, whose `prompt` is gone on from, the best answers of at most `limits` tokens, best first.

    `requests` numbers the rows for their random streams (0, 1, 2, … when None); `banned` tokens are never said. A row ends
    also where `until` says so of its tokens; beams are finished first and cut then. Rows and draws are followed one part
    after another where they would take too much memory, draws also where they would be more than `budget` tokens: that
    changes none of them."""
    speakers = Speakers.of(batch, limits, requests, banned)
    answers = [[Found((), 0.0, (), "length")] for _ in limits]
    if not speakers.rows:
        return answers
    recheck()
    found: dict[int, list[Found]] = {row: [] for row in speakers.rows}
    with torch.inference_mode():
        for part, copies in _parts(body, speakers, settings, budget):
            more = _search(body, part, end, settings, copies, part.known_to(until))
            for row, options in zip(part.rows, more, strict=True):
                found[row] += options
    for row, options in found.items():
        if until is not None and settings.beam > 1:
            options = [_cut(option, row, until) for option in options]
        answers[row] = sorted(options, key=lambda option: -option.score)
    return answers


@dataclass(frozen=True)
class Speakers:
    """The rows of a batch that may say something: who may not, says nothing, whoever the neighbours are."""

    rows: list[int]
    batch: Batch
    limits: Tensor
    requests: np.ndarray
    banned: Tensor | None

    @classmethod
    def of(cls, batch: Batch, limits: Tensor, requests: np.ndarray | None, banned: tuple[int, ...]) -> Speakers:
        prompt, lengths = batch.prompt, batch.prompt_lengths
        if prompt.ndim != 2 or prompt.shape[1] == 0 or (lengths is not None and bool((lengths < 1).any())):
            raise ValueError("search goes on from a prompt, and a prompt has at least one token")
        requests = np.arange(len(limits)) if requests is None else requests
        rows = torch.nonzero(limits > 0)[:, 0]
        if len(rows) < len(limits):
            batch = batch.rows(rows.to(batch.x.device))
        silent = torch.tensor(banned, device=batch.x.device) if banned else None
        return cls(rows.tolist(), batch, limits[rows], requests[rows.cpu().numpy()], silent)

    def part(self, first: int, last: int) -> Speakers:
        if (first, last) == (0, len(self.rows)):
            return self
        places = torch.arange(first, last)
        batch = self.batch.rows(places.to(self.batch.x.device))
        return replace(
            self, rows=self.rows[first:last], batch=batch, limits=self.limits[first:last],
            requests=self.requests[first:last],
        )  # fmt: skip

    def known_to(self, until: Until | None) -> Until | None:
        """Who is asked knows the rows by their places in the whole batch."""
        return None if until is None else lambda row, tokens: until(self.rows[row], tokens)


def _parts(
    body: Generating, speakers: Speakers, settings: Decode, budget: int | None
) -> Iterator[tuple[Speakers, range]]:
    """Which rows, and which draws of them, are followed together: the draws of a row rather than many rows, for each part
    reads its prompts anew."""
    count, copies = len(speakers.rows), settings.best if settings.drawn else 1
    batch, longest = speakers.batch, int(speakers.limits.max())
    read, fits = batch.prompt.shape[1], rows_for(body, batch, longest, settings.beam)
    most = count * copies if fits is None else min(count * copies, fits)
    if budget is not None and copies > 1:  # who asks has made a batch of the rows, not of their draws
        most = min(most, max(1, budget // (read + longest)))
    together = min(copies, most)
    for rows in _evenly(count, most // together):
        for draws in _evenly(copies, together):
            yield speakers.part(rows.start, rows.stop), draws


def _evenly(count: int, most: int) -> list[range]:
    """In parts of about one size, none larger than `most`."""
    parts = -(-count // most)
    ends = [count * part // parts for part in range(parts + 1)]
    return [range(first, last) for first, last in pairwise(ends)]


def _search(
    body: Generating, speakers: Speakers, end: int, settings: Decode, copies: range, until: Until | None
) -> list[list[Found]]:
    asked = body, speakers.batch, end, speakers.limits, settings, speakers.requests, speakers.banned
    if recordable(body, speakers.batch):
        found = recorded(*asked, copies, until)
        if found is not None:
            return found
    quest = begin(*asked, copies=copies)
    return run(quest, Heard(quest, until) if until is not None and isinstance(quest, Single) else None)


def _cut(found: Found, row: int, until: Until) -> Found:
    """A beam that said enough earlier; its score stays the one by which it was chosen."""
    said: list[int] = []  # one that grows: who asks may remember how far it has read
    for length, token in enumerate(found.tokens, 1):
        said.append(token)
        if until(row, said):
            return replace(found, tokens=found.tokens[:length], logs=found.logs[:length], why="until")
    return found
