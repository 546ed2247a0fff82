"""A search begins, and goes on step by step."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from regard.decode.beams import Beams
from regard.decode.paths import Found, Generating, Quest, State
from regard.decode.settings import Decode
from regard.decode.single import Single
from regard.waists import Batch


def begin(
    body: Generating, batch: Batch, end: int, limits: Tensor, settings: Decode, requests: np.ndarray,
    banned: Tensor | None, room: int | None = None,
) -> Quest:  # fmt: skip
    assert batch.target is not None
    state: State = body.start(batch, room)
    last = batch.target[:, -1]
    if settings.beam > 1:
        return Beams(body, state, last, end, limits, settings, banned)
    quest = Single(body, state, last, end, limits, settings, requests, banned)
    if room is not None:
        state.widen(1)  # one beam: what it may look at is written out once for all layers
    return quest


def run(quest: Quest) -> list[list[Found]]:
    """Step by step; rows leave with their answers as soon as they are finished."""
    answers: dict[int, list[Found]] = {}
    while True:
        quest.step()
        if bool(quest.open.all()):
            continue
        closed = torch.nonzero(~quest.open)[:, 0].tolist()
        for row, found in zip(closed, quest.answers(closed), strict=True):
            answers[int(quest.rows[row])] = found
        going = torch.nonzero(quest.open)[:, 0]
        if not len(going):
            return quest.gathered(answers)
        quest.keep(going)
