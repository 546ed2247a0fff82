"""One search for every generating system: greedy, sampling, beam.

A body offers `start(batch) -> state` and `step(tokens, state) -> logits`; the state can `widen` rows into beams, `reorder`
their pasts, `keep` rows and `join` others. Search knows nothing else, so an RNN, a GPT and a translator share it. Rows that
have finished are dropped, and what a row answers does not depend on its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from regard.decode.heard import Heard
from regard.decode.paths import Found, Generating, Until
from regard.decode.recorded import recordable, recorded
from regard.decode.settings import Decode
from regard.decode.single import Single
from regard.decode.steps import begin, run
from regard.nn.linear import recheck
from regard.waists import Batch

__all__ = ["Found", "Generating", "Until", "search"]


def search(
    body: Generating, batch: Batch, end: int, limits: Int[Tensor, "B"], settings: Decode,
    requests: np.ndarray | None = None, banned: tuple[int, ...] = (), until: Until | None = None,
    budget: int | None = None,
) -> list[list[Found]]:  # fmt: skip
    """For each row of `batch`, whose `prompt` is gone on from, the best answers of at most `limits` tokens, best first.

    `requests` numbers the rows for their random streams (0, 1, 2, … when None); `banned` tokens are never said. A row ends
    also where `until` says so of its tokens; beams are finished first and cut then. Many draws of a row are made one part
    after another where they would be more than `budget` tokens at once: that changes none of them."""
    speakers = Speakers.of(batch, limits, requests, banned)
    answers = [[Found((), 0.0, (), "length")] for _ in limits]
    if not speakers.rows:
        return answers
    recheck()
    until = speakers.known_to(until)
    found: list[list[Found]] = [[] for _ in speakers.rows]
    with torch.inference_mode():
        for copies in _parts(speakers, settings, budget):
            for options, more in zip(found, _search(body, speakers, end, settings, copies, until), strict=True):
                options += more
    for place, (row, options) in enumerate(zip(speakers.rows, found, strict=True)):
        if until is not None and settings.beam > 1:
            options = [_cut(option, place, until) for option in options]
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

    def known_to(self, until: Until | None) -> Until | None:
        """Who is asked knows the rows by their places in the whole batch."""
        return None if until is None else lambda row, tokens: until(self.rows[row], tokens)


def _parts(speakers: Speakers, settings: Decode, budget: int | None) -> list[range]:
    """Which draws are made together."""
    copies = settings.best if settings.drawn else 1
    prompt, longest = speakers.batch.prompt, int(speakers.limits.max())
    one = prompt.shape[0] * (prompt.shape[1] + longest)
    many = copies if budget is None else max(1, budget // one)
    return [range(first, min(first + many, copies)) for first in range(0, copies, many)]


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
    for length in range(1, len(found.tokens) + 1):
        if until(row, list(found.tokens[:length])):
            return replace(found, tokens=found.tokens[:length], logs=found.logs[:length], why="until")
    return found
