"""Search on CUDA with a step that is recorded once and repeated as a whole.

One token of one sentence is a few hundred launches from Python, which take many times longer than the work itself. All
tensors of a quest stay where they are, so one step is recorded as a CUDA graph and repeated; recordings are kept for the
next batch of the same sizes. To meet few sizes, prompts and sources are padded to round lengths and numbers of rows, and
memory is made for a round number of positions: how much of it a row uses is a number in a tensor, not a size.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import capabilities
from regard.decode.greedy import GreedyOrSample
from regard.decode.protocol import Hypothesis, Search, StopFn
from regard.decode.settings import DecodeSettings
from regard.decode.steps import start_search
from regard.decode.stopping import StopMonitor
from regard.nn.kernels.cuda_graph import capture
from regard.nn.kernels.pristine import has_hooks
from regard.types import Batch

MAX_CACHED_GRAPHS = 6
"""Recordings of a model that are kept for later batches: each holds its memory."""

STEPS_PER_POLL = 8
"""Steps between two looks at whether all rows are finished: a look waits for the device."""

GraphKey = tuple[Any, ...]


class GraphedSearch:
    """A quest whose tensors stay where they are, and the recorded step."""

    def __init__(self, search: Any, graph: bool) -> None:
        self.search = search
        self.tensors = _static_tensors(search)
        self.graph: torch.cuda.CUDAGraph | None = None
        if graph:
            before = [tensor.clone() for tensor in self.tensors]
            self.graph, _ = capture(search.step, search.active.device, warmup=2)
            for tensor, old in zip(self.tensors, before, strict=True):
                tensor.copy_(old)

    def load(self, search: Search) -> None:
        for here, there in zip(self.tensors, _static_tensors(search), strict=True):
            here.copy_(there)

    def step(self) -> None:
        if self.graph is None:
            self.search.step()
        else:
            self.graph.replay()


class GraphCache:
    """The recordings of one body. One that is in use is not on the shelf: its tensors can serve one search at a time."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """searches wait for each other; a stream holds it while it begins only, for nobody knows how long it is read"""
        self.entries: OrderedDict[GraphKey, GraphedSearch] = OrderedDict()
        self.capture_failed = False
        """a step could not be recorded: nothing is tried again"""
        self.out_of_memory_keys: set[GraphKey] = set()
        """searches of these sizes left no memory for a recording"""

    def acquire(self, key: GraphKey, search: Any, graph: bool) -> GraphedSearch:
        recording = self.entries.pop(key, None)
        if recording is None:
            return GraphedSearch(search, graph)
        recording.load(search)
        recording.search.body = search.body
        return recording

    def release(self, key: GraphKey, graphed: GraphedSearch) -> None:
        graphed.search.body = None  # a recording does not keep its model alive
        self.entries[key] = graphed
        self.entries.move_to_end(key)
        while len(self.entries) > MAX_CACHED_GRAPHS:
            self.entries.popitem(last=False)

    def clear(self) -> None:
        self.entries.clear()
        torch.cuda.empty_cache()


_graph_caches: weakref.WeakKeyDictionary[Any, GraphCache] = weakref.WeakKeyDictionary()


def can_capture(body: Any, batch: Batch) -> bool:
    """On CUDA, for bodies that offer states of fixed size, unless someone watches: hooks are not repeated by a recording.

    Under autocast weights are converted anew each time, at addresses that do not stay."""
    if not batch.inputs.is_cuda or not getattr(body, "static_cache", False) or torch.is_autocast_enabled("cuda"):
        return False
    works = capabilities.is_available("cuda_graphs") and not (
        body in _graph_caches and _graph_caches[body].capture_failed
    )
    return works and not has_hooks(body)


def graphed_search(
    body: Any, batch: Batch, eos_id: int, limits: Tensor, settings: DecodeSettings, requests: np.ndarray, banned: Tensor | None,
    copies: range | None = None, stop_fn: StopFn | None = None, capture: bool = True,
) -> list[list[Hypothesis]] | None:  # fmt: skip
    """Search with a captured CUDA graph; None if a step cannot be captured.

    `capture=False` computes each step without a graph, in the same fixed shapes, for devices without CUDA graphs."""
    with _graph_cache(body).lock:
        loan = acquire_graph(body, batch, eos_id, limits, settings, requests, banned, copies, capture)
        if loan is None:
            return None
        try:
            for _ in loan.iterate(stop_fn):
                pass
            return loan.hypotheses()
        finally:
            loan.release()


@dataclass(frozen=True)
class GraphLease:
    """A recording that one search uses."""

    cache: GraphCache
    key: GraphKey
    graphed: GraphedSearch
    num_rows: int
    """rows of the quest that do not only fill up"""
    max_steps: int
    """steps at most"""

    def iterate(self, stop_fn: StopFn | None = None, streaming: bool = False) -> Iterator[dict[int, list[int]]]:
        """Run a few steps at a time and yield the new tokens of each row; yield {} without `stop_fn` and `streaming`.

        `streaming`: poll after the first step, so that the first token is yielded early."""
        quest = self.graphed.search
        heard = (
            StopMonitor(quest, stop_fn, self.num_rows)
            if streaming or (stop_fn is not None and isinstance(quest, GreedyOrSample))
            else None
        )
        done, stride = 0, 1 if streaming else STEPS_PER_POLL
        while done < self.max_steps:
            for _ in range(min(stride, self.max_steps - done)):
                self.graphed.step()
            done, stride = done + stride, min(2 * stride, STEPS_PER_POLL)
            yield {} if heard is None else heard.poll()
            if not bool(quest.active.any()):
                return

    def hypotheses(self) -> list[list[Hypothesis]]:
        quest = self.graphed.search
        return quest.collect(dict(enumerate(quest.hypotheses(list(range(self.num_rows))))))

    def release(self) -> None:
        with self.cache.lock:
            self.cache.release(self.key, self.graphed)


def acquire_graph(
    body: Any, batch: Batch, eos_id: int, limits: Tensor, settings: DecodeSettings, requests: np.ndarray, banned: Tensor | None,
    copies: range | None = None, capture: bool = True,
) -> GraphLease | None:  # fmt: skip
    """Start a search with a captured step; None if a step cannot be captured."""
    count, most, shelf = len(limits), int(limits.max()), _graph_cache(body)
    key: GraphKey | None = None
    with shelf.lock:
        try:
            batch, limits, requests, longest, room = _round_up_batch(batch, limits, requests, settings.num_beams > 1)
            tall = torch.full_like(limits, longest)
            quest: Any = start_search(body, batch, eos_id, tall, settings, requests, banned, room, copies)
            many = len(quest.limits) // len(limits)
            quest.limits.copy_(limits.repeat_interleave(many))
            key = _graph_key(body, quest, settings, many, eos_id, banned)
            if key in shelf.out_of_memory_keys:
                return None
            recording = shelf.acquire(key, quest, capture)
        except torch.OutOfMemoryError:  # what is kept for later gives way, and this size is computed plainly
            shelf.clear()
            shelf.out_of_memory_keys |= set() if key is None else {key}
            return None
        except RuntimeError as error:
            if key is None:  # the prompts could not be read, which has nothing to do with recording
                raise
            shelf.capture_failed = True
            warnings.warn(
                f"CUDA graph capture failed for this model ({error}); generation is slower without it.", stacklevel=2
            )
            return None
    return GraphLease(shelf, key, recording, many * count, most)


def _graph_cache(body: Any) -> GraphCache:
    return _graph_caches.setdefault(body, GraphCache())


def _graph_key(
    body: nn.Module, quest: Any, settings: DecodeSettings, copies: int, end: int, banned: Tensor | None
) -> GraphKey:
    """All that a recording depends on, and where the weights lie: other weights at the same place are the same recording.

    How long a prompt is stands in the quest's tensors, whose sizes are round."""
    weights = tuple((parameter.data_ptr(), parameter.dtype) for parameter in body.parameters())
    shapes = tuple((tuple(tensor.shape), tensor.dtype) for tensor in _static_tensors(quest))
    step = replace(
        settings, seed=0, max_new_tokens=0, max_length=0, max_extra_tokens=0, stop_strings=(), truncate_prompt=False
    )
    silent = None if banned is None else tuple(banned.tolist())
    return weights, shapes, step, copies, end, silent, body.training


def _round_up_batch(
    batch: Batch, limits: Tensor, requests: np.ndarray, beams: bool
) -> tuple[Batch, Tensor, np.ndarray, int, int]:
    """Rows and lengths rounded up, the most tokens that are said, and the room that a row needs for all it reads and says.

    Rows that only fill up repeat the last and may say one token. Of prompts without a source only the room shows in the
    sizes of a quest, so it is what is rounded most; beams share the columns behind the widest prompt, which shows too."""
    B, rows = len(limits), _round_up_rows(len(limits))
    most = int(limits.max())
    limits, requests = F.pad(limits, (0, rows - B), value=1), np.pad(requests, (0, rows - B))
    batch = batch.select_rows(torch.arange(rows, device=batch.inputs.device).clamp(max=B - 1))
    if batch.decoder_inputs is not None:
        longest = _round_up(most, 16)
        return _pad_inputs(batch, 16), limits, requests, longest, batch.decoder_inputs.shape[1] - 1 + longest
    batch = _pad_inputs(replace(batch, mask=batch.prompt_lengths), 128 if beams else 16)
    assert batch.mask is not None
    furthest = batch.inputs.shape[1] + most if beams else int((batch.mask.to(limits.device) + limits).max())
    room = _round_up(furthest - 1, 128)
    return batch, limits, requests, room, room


def _pad_inputs(batch: Batch, step: int) -> Batch:
    """Sources of a round length. Ids only: pixels and points have their own sizes."""
    if batch.inputs.ndim != 2:
        return batch
    B, L = batch.inputs.shape
    more = _round_up(L, step) - L
    changed: dict[str, Any] = {
        name: F.pad(value, (0, more))
        for name in ("inputs", "token_types", "positions")
        if (value := getattr(batch, name)) is not None and value.shape[-1] == L
    }
    lengths = torch.full((B,), L, device=batch.inputs.device) if batch.mask is None else batch.mask
    return replace(batch, **changed, mask=F.pad(lengths, (0, more)) if lengths.ndim == 2 else lengths)


def _round_up(length: int, step: int) -> int:
    return -(-length // step) * step


def _round_up_rows(rows: int) -> int:
    """1, 2, 4, 8, 16, 24, 32, 64, 96, … then by 128: few sizes; rows that only fill up cost little."""
    for step, most in ((1, 2), (4, 8), (8, 32), (32, 256)):
        if rows <= most:
            return _round_up(rows, step)
    return _round_up(rows, 128)


def _static_tensors(quest: Any) -> list[Tensor]:
    return [*quest.tensors(), *quest.state.tensors()]
