"""Search for all generative systems: greedy search, sampling and beam search, at once or as a stream.

A body provides `start(batch) -> state` and `step(tokens, state) -> logits`; a state can copy rows into beams
(`expand_beams`), reorder beams (`reorder`) and select rows (`select_rows`). RNNs, GPTs and translation models share
this interface. Finished rows are removed; the output of a row does not depend on other rows."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from regard.decode.cuda_graphs import acquire_graph, can_capture, graphed_search
from regard.decode.searches import (
    GenerativeBody,
    GreedyOrSample,
    Hypothesis,
    SearchInputs,
    StopFn,
    StopMonitor,
    plain_search,
)
from regard.decode.settings import DecodeSettings
from regard.errors import SettingError
from regard.types import Batch

__all__ = ["Hypothesis", "max_rows", "search", "stream"]

DEFAULT_BUDGET = 2 * 2**30  # Bytes for the tensors of a search, without the weights.
MEMORY_DIVISOR = 8
"""A search may use 1/8 of the GPU memory if this exceeds DEFAULT_BUDGET, because up to six graphs are cached."""
BYTES_PER_LOGIT = 48
"""Bytes per row and vocabulary entry during sampling: logits, filtered logits, float64 probabilities and sums."""


def search(
    body: GenerativeBody,
    batch: Batch,
    eos_id: int,
    limits: Int[Tensor, "B"],
    settings: DecodeSettings,
    requests: np.ndarray | None = None,
    banned: tuple[int, ...] = (),
    stop_fn: StopFn | None = None,
    max_batch_tokens: int | None = None,
) -> list[list[Hypothesis]]:
    """For each row of `batch`, continue `batch.prompt` by at most `limits` tokens and return the best outputs, best
    first.

    `requests` numbers the rows for their random streams (0, 1, 2, … when None); `banned` tokens are never generated. A
    row also ends when `stop_fn` returns True for its tokens; beams are finished first and truncated then. Rows and
    samples are split into chunks if they need too much memory, samples also if they exceed `max_batch_tokens` tokens;
    chunks do not change the outputs."""
    rows, inputs = _active_rows(body, batch, eos_id, limits, settings, requests, banned)
    outputs = [[Hypothesis((), 0.0, (), "length")] for _ in limits]
    if not rows:
        return outputs
    found: dict[int, list[Hypothesis]] = {row: [] for row in rows}
    with torch.inference_mode():
        for part, chunk in _chunks(inputs, max_batch_tokens):
            placed_stop_fn = None if stop_fn is None else _with_batch_rows(stop_fn, rows[part])
            more = graphed_search(chunk, placed_stop_fn) if can_capture(body, chunk.batch) else None
            if more is None:
                more = plain_search(chunk, placed_stop_fn)
            for row, options in zip(rows[part], more, strict=True):
                found[row] += options
    for row, options in found.items():
        if stop_fn is not None and settings.num_beams > 1:
            options = [_truncate(option, row, stop_fn) for option in options]
        outputs[row] = sorted(options, key=lambda option: -option.score)
    return outputs


def stream(
    body: GenerativeBody,
    batch: Batch,
    eos_id: int,
    limits: Int[Tensor, "B"],
    settings: DecodeSettings,
    requests: np.ndarray | None = None,
    banned: tuple[int, ...] = (),
    stop_fn: StopFn | None = None,
) -> Iterator[list[list[int]]]:
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
    rows, inputs = _active_rows(body, batch, eos_id, limits, settings, requests, banned)
    placed_stop_fn = None if stop_fn is None else _with_batch_rows(stop_fn, rows)
    return _stream_rows(_stream_steps(inputs, placed_stop_fn), rows, len(limits))


def _stream_steps(inputs: SearchInputs, stop_fn: StopFn | None) -> Generator[dict[int, list[int]], None, None]:
    """New tokens of each active row."""
    if not len(inputs.limits):
        return
    graphed = acquire_graph(inputs) if can_capture(inputs.body, inputs.batch) else None
    if graphed is None:
        running = GreedyOrSample(inputs)
        yield from running.run(StopMonitor(running, stop_fn))
        return
    try:
        yield from graphed.iterate(stop_fn, streaming=True)
        graphed.hypotheses()  # raises an error for NaN
    finally:
        graphed.release()


def _stream_rows(
    steps: Generator[dict[int, list[int]], None, None], rows: list[int], count: int
) -> Iterator[list[list[int]]]:
    """New tokens for all rows of the batch. Inference mode is a state of the thread, so the mode is off between steps."""
    with closing(steps):
        while True:
            with torch.inference_mode():
                news = next(steps, None)
            if news is None:
                return
            placed: list[list[int]] = [[] for _ in range(count)]
            for number, tokens in news.items():
                placed[rows[number]] = tokens
            yield placed


def _active_rows(
    body: GenerativeBody,
    batch: Batch,
    eos_id: int,
    limits: Tensor,
    settings: DecodeSettings,
    requests: np.ndarray | None,
    banned: tuple[int, ...],
) -> tuple[list[int], SearchInputs]:
    """Row numbers and inputs of the rows with a limit above 0, on the device of the body."""
    batch = batch.to(next(iter(body.parameters())).device)
    prompt, lengths = batch.prompt, batch.prompt_lengths
    if prompt.ndim != 2 or prompt.shape[1] == 0 or (lengths is not None and bool((lengths < 1).any())):
        raise ValueError("Each prompt must have at least one token.")
    requests = np.arange(len(limits)) if requests is None else requests
    rows = torch.nonzero(limits > 0)[:, 0]
    if len(rows) < len(limits):
        batch = batch.select_rows(rows.to(batch.inputs.device))
    banned_ids = torch.tensor(banned, device=batch.inputs.device) if banned else None
    chosen = requests[rows.cpu().numpy()]
    return rows.tolist(), SearchInputs(body, batch, eos_id, limits[rows], settings, chosen, banned_ids)


def _with_batch_rows(stop_fn: StopFn, rows: list[int]) -> StopFn:
    """`stop_fn` called with the row numbers of the whole batch."""
    return lambda row, tokens: stop_fn(rows[row], tokens)


def _chunks(inputs: SearchInputs, max_batch_tokens: int | None) -> Iterator[tuple[slice, SearchInputs]]:
    """Parts of the rows, and of the samples of each row. Samples of a row stay together if possible, because each chunk
    processes its prompts again."""
    count, longest, settings = len(inputs.limits), int(inputs.limits.max()), inputs.settings
    samples = settings.num_return_sequences if settings.is_sampling else 1
    most = count * samples
    if most > 1:
        most = min(most, max_rows(inputs.body, inputs.batch, longest, settings.num_beams))
    if max_batch_tokens is not None and samples > 1:  # the caller limited the tokens of the rows, not of the samples
        most = min(most, max(1, max_batch_tokens // (inputs.batch.prompt.shape[1] + longest)))
    together = min(samples, most)
    for rows in np.array_split(np.arange(count), math.ceil(count / (most // together))):
        part, some = slice(int(rows[0]), int(rows[-1]) + 1), inputs
        if len(rows) < count:
            batch = inputs.batch.select_rows(torch.from_numpy(rows).to(inputs.batch.inputs.device))
            some = replace(inputs, batch=batch, limits=inputs.limits[part], requests=inputs.requests[part])
        for numbers in np.array_split(np.arange(samples), math.ceil(samples / together)):
            yield part, replace(some, samples=range(int(numbers[0]), int(numbers[-1]) + 1))


def max_rows(body: GenerativeBody, batch: Batch, new_tokens: int, beams: int) -> int:
    """Number of rows whose decoding states and logits fit into the memory budget, at least 1.

    States are counted twice: growing caches have spare capacity, static caches are copied from another cache, and
    reordering the beams of a recurrent state makes a copy."""
    budget, device = DEFAULT_BUDGET, batch.inputs.device
    if device.type == "cuda":
        budget = max(budget, torch.cuda.get_device_properties(device).total_memory // MEMORY_DIVISOR)
    sizes = body.state_sizes(batch)
    values = sizes.per_row + beams * (sizes.per_beam + new_tokens * sizes.per_token)
    element_size = next(iter(body.parameters())).element_size()
    return max(1, budget // (2 * values * element_size + beams * sizes.vocab_size * BYTES_PER_LOGIT))


def _truncate(output: Hypothesis, row: int, stop_fn: StopFn) -> Hypothesis:
    """Output of a beam up to the first stop; the score of the whole beam is kept."""
    generated: list[int] = []  # one growing list: `stop_fn` may continue from the previous call
    for length, token in enumerate(output.tokens, 1):
        generated.append(token)
        if stop_fn(row, generated):
            tokens, log_probs = output.tokens[:length], output.log_probs[:length]
            return replace(output, tokens=tokens, log_probs=log_probs, finish_reason="stop")
    return output
