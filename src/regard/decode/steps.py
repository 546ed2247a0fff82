"""A search begins, and goes on step by step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from regard.decode.beam import Beams
from regard.decode.greedy import Single
from regard.decode.protocol import Found, Generating, Quest, State
from regard.decode.repetition import Past
from regard.decode.settings import Decode
from regard.decode.stopping import Heard
from regard.types import Batch


def begin(
    body: Generating, batch: Batch, end: int, limits: Tensor, settings: Decode, requests: np.ndarray,
    banned: Tensor | None, room: int | None = None, copies: range | None = None,
) -> Quest:  # fmt: skip
    """The prompts are read. `copies`: which draws of each row are followed, all when None."""
    state: State = body.start(batch, room)
    last, past = batch.last(), None
    if settings.repetition != 1.0:
        furthest = batch.prompt.shape[1] - 1 + int(limits.max()) if room is None else room
        past = Past(batch, settings.repetition, furthest + 1)
    if settings.beam > 1:
        return Beams(body, state, last, end, limits, settings, banned, past)
    return Single(body, state, last, end, limits, settings, requests, banned, past, copies)


def walk(quest: Quest, answers: dict[int, list[Found]], heard: Heard | None = None) -> Iterator[dict[int, list[int]]]:
    """Step by step, with what was heard in each. Rows leave with their answers as soon as they are finished."""
    while True:
        quest.step()
        yield {} if heard is None else heard.listen()
        if bool(quest.open.all()):
            continue
        closed = torch.nonzero(~quest.open)[:, 0].tolist()
        for row, found in zip(closed, quest.answers(closed), strict=True):
            answers[int(quest.rows[row])] = found
        going = torch.nonzero(quest.open)[:, 0]
        if not len(going):
            return
        quest.keep(going)


def run(quest: Quest, heard: Heard | None = None) -> list[list[Found]]:
    answers: dict[int, list[Found]] = {}
    for _ in walk(quest, answers, heard):
        pass
    return quest.gathered(answers)
