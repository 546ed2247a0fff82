"""Search with output after every step."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from regard.decode.cuda_graphs import acquire_graph, can_capture
from regard.decode.greedy import GreedyOrSample
from regard.decode.protocol import GenerativeBody, StopFn
from regard.decode.search import ActiveRows
from regard.decode.settings import DecodeSettings
from regard.decode.steps import iterate, start_search
from regard.decode.stopping import StopMonitor
from regard.errors import SettingError
from regard.nn.kernels.linear import recheck_packed
from regard.types import Batch


def stream(
    body: GenerativeBody, batch: Batch, eos_id: int, limits: Int[Tensor, "B"], settings: DecodeSettings,
    requests: np.ndarray | None = None, banned: tuple[int, ...] = (), stop_fn: StopFn | None = None,
) -> Iterator[list[list[int]]]:  # fmt: skip
    """Yield the new tokens of each row of `batch` after each step (after a few steps on CUDA); same tokens as `search`.

    Closing or deleting the generator frees the memory of the search."""
    if settings.num_beams > 1:
        raise SettingError(
            f"Streaming requires decode.num_beams=1, got decode.num_beams={settings.num_beams}: beam search revises earlier "
            "tokens."
        )
    if settings.num_return_sequences > 1:
        raise SettingError(
            "Streaming requires decode.num_return_sequences=1, "
            f"got decode.num_return_sequences={settings.num_return_sequences}."
        )
    speakers = ActiveRows.from_batch(batch, limits, requests, banned)
    return _stream_rows(
        _generate(body, speakers, eos_id, settings, speakers.remap_stop_fn(stop_fn)), speakers.rows, len(limits)
    )


def _generate(
    body: GenerativeBody, speakers: ActiveRows, end: int, settings: DecodeSettings, until: StopFn | None
) -> Generator[dict[int, list[int]], None, None]:
    if not speakers.rows:
        return
    recheck_packed()
    asked = body, speakers.batch, end, speakers.limits, settings, speakers.requests, speakers.banned
    loan = acquire_graph(*asked) if can_capture(body, speakers.batch) else None
    if loan is None:
        quest = start_search(*asked)
        assert isinstance(quest, GreedyOrSample)
        yield from iterate(quest, {}, StopMonitor(quest, until))
        return
    try:
        yield from loan.iterate(until, streaming=True)
        loan.hypotheses()  # raises an error for NaN
    finally:
        loan.release()


def _stream_rows(
    heard: Generator[dict[int, list[int]], None, None], rows: list[int], count: int
) -> Iterator[list[list[int]]]:
    """New tokens for all rows of the batch. Inference mode is a state of the thread, so the mode is off between steps."""
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
