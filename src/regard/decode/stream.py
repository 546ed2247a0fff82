"""A search that is heard while it goes on."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from regard.decode.cuda_graphs import borrow, recordable
from regard.decode.greedy import Single
from regard.decode.protocol import Generating, Until
from regard.decode.search import Speakers
from regard.decode.settings import Decode
from regard.decode.steps import begin, walk
from regard.decode.stopping import Heard
from regard.errors import SettingError
from regard.nn.kernels.linear import recheck
from regard.types import Batch


def stream(
    body: Generating, batch: Batch, end: int, limits: Int[Tensor, "B"], settings: Decode,
    requests: np.ndarray | None = None, banned: tuple[int, ...] = (), until: Until | None = None,
) -> Iterator[list[list[int]]]:  # fmt: skip
    """After each step (a few on CUDA) the new tokens of each row of `batch`: together those that `search` finds.

    Whoever closes the generator early, or lets it go, frees what it held."""
    if settings.beam > 1:
        raise SettingError(
            f"decode.beam={settings.beam} cannot be streamed: a beam may change its mind about what it said. "
            "Set decode.beam=1."
        )
    if settings.best > 1:
        raise SettingError(
            f"decode.best={settings.best} cannot be streamed: a stream is one answer. Set decode.best=1."
        )
    speakers = Speakers.of(batch, limits, requests, banned)
    return _told(_heard(body, speakers, end, settings, speakers.known_to(until)), speakers.rows, len(limits))


def _heard(
    body: Generating, speakers: Speakers, end: int, settings: Decode, until: Until | None
) -> Generator[dict[int, list[int]], None, None]:
    if not speakers.rows:
        return
    recheck()
    asked = body, speakers.batch, end, speakers.limits, settings, speakers.requests, speakers.banned
    loan = borrow(*asked) if recordable(body, speakers.batch) else None
    if loan is None:
        quest = begin(*asked)
        assert isinstance(quest, Single)
        yield from walk(quest, {}, Heard(quest, until))
        return
    try:
        yield from loan.walk(until, soon=True)
        loan.found()  # refuses what is no number
    finally:
        loan.back()


def _told(heard: Generator[dict[int, list[int]], None, None], rows: list[int], count: int) -> Iterator[list[list[int]]]:
    """Inference mode belongs to the thread: it is on while a step is made, and off while the listener has the word."""
    with closing(heard):
        while True:
            with torch.inference_mode():
                news = next(heard, None)
            if news is None:
                return
            placed: list[list[int]] = [[] for _ in range(count)]
            for number, tokens in news.items():
                placed[rows[number]] = tokens
            yield placed
