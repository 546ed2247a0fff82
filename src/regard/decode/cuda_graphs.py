"""Search on CUDA with the decoding step as a CUDA graph.

A step for one sentence launches hundreds of kernels from Python, and the launches take much longer than the kernels.
All tensors of a search have fixed addresses, so a step is captured once and replayed; graphs are cached for later
batches of the same shapes. For few different shapes, batch sizes, prompt and source lengths and cache lengths are
rounded up; the used length of each cache row is a value in a tensor, not a shape."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from regard import capabilities
from regard.decode.searches import BeamSearch, GreedyOrSample, Hypothesis, Search, SearchInputs, StopFn, StopMonitor
from regard.nn.kernels.cuda_graph import capture
from regard.nn.kernels.table import has_hooks
from regard.nn.recording import is_recording
from regard.types import Batch

MAX_CACHED_GRAPHS = 6  # Cached graphs per model; each graph holds the memory of its tensors.

STEPS_PER_POLL = 8  # Steps between two checks for finished rows; a check synchronizes with the device.

GraphKey = tuple[Any, ...]


class GraphedSearch:
    """A search with tensors at fixed addresses, and its captured step. One search at a time uses it."""

    num_rows: int  # rows of the search without padding rows
    max_steps: int  # maximum number of steps

    def __init__(self, search: Any, graph: bool, cache: GraphCache, key: GraphKey) -> None:
        self.search, self.cache, self.key = search, cache, key
        self.tensors = search.tensors()
        self.graph: torch.cuda.CUDAGraph | None = None
        if graph:
            before = [tensor.clone() for tensor in self.tensors]
            self.graph, _ = capture(search.step, search.active.device, warmup=2)
            for tensor, old in zip(self.tensors, before, strict=True):
                tensor.copy_(old)

    def load(self, search: Search) -> None:
        for here, there in zip(self.tensors, search.tensors(), strict=True):
            here.copy_(there)
        self.search.body = search.body

    def iterate(self, stop_fn: StopFn | None = None, streaming: bool = False) -> Iterator[dict[int, list[int]]]:
        """Run a few steps at a time and yield the new tokens of each row; yield {} without `stop_fn` and `streaming`.

        `streaming`: poll after the first step, so that the first token is yielded early."""
        monitor = None
        if streaming or (stop_fn is not None and isinstance(self.search, GreedyOrSample)):
            monitor = StopMonitor(self.search, stop_fn, self.num_rows)
        done, stride = 0, 1 if streaming else STEPS_PER_POLL
        while done < self.max_steps:
            for _ in range(min(stride, self.max_steps - done)):
                if self.graph is None:
                    self.search.step()
                else:
                    self.graph.replay()
            done, stride = done + stride, min(2 * stride, STEPS_PER_POLL)
            yield {} if monitor is None else monitor.poll()
            if not bool(self.search.active.any()):
                return

    def hypotheses(self) -> list[list[Hypothesis]]:
        found: list[list[Hypothesis]] = self.search.collect(self.search.hypotheses(list(range(self.num_rows))))
        return found

    def release(self) -> None:
        """Return to the cache, for later searches."""
        with self.cache.lock:
            self.search.body = None  # a cached graph must not keep its model alive
            self.cache.entries[self.key] = self
            self.cache.entries.move_to_end(self.key)
            while len(self.cache.entries) > MAX_CACHED_GRAPHS:
                self.cache.entries.popitem(last=False)


class GraphCache:
    """CUDA graphs of one body. A graph in use is not in the cache, because its tensors serve one search at a time."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """held during a search; a stream holds the lock only at its start, because a consumer may pause for any time"""
        self.entries: OrderedDict[GraphKey, GraphedSearch] = OrderedDict()
        self.capture_failed = False  # True after a failed capture: capture is not tried again
        self.out_of_memory_keys: set[GraphKey] = set()  # shapes without enough memory for a graph


_graph_caches: weakref.WeakKeyDictionary[Any, GraphCache] = weakref.WeakKeyDictionary()


def can_capture(body: Any, batch: Batch) -> bool:
    """True if the search can be captured: on CUDA, without hooks and without autocast.

    A replay does not run hooks, and autocast casts the weights to new addresses at every step."""
    if not batch.inputs.is_cuda or torch.is_autocast_enabled("cuda") or not capabilities.is_available("cuda_graphs"):
        return False
    failed = body in _graph_caches and _graph_caches[body].capture_failed
    return not failed and not is_recording() and not has_hooks(body)


def graphed_search(
    inputs: SearchInputs, stop_fn: StopFn | None = None, capture: bool = True
) -> list[list[Hypothesis]] | None:
    """Outputs of a search with CUDA graphs; None if a step cannot be captured.

    `capture=False` runs each step without a graph, with the same static shapes, for devices without CUDA graphs."""
    with _graph_caches.setdefault(inputs.body, GraphCache()).lock:
        graphed = acquire_graph(inputs, capture)
        if graphed is None:
            return None
        try:
            for _ in graphed.iterate(stop_fn):
                pass
            return graphed.hypotheses()
        finally:
            graphed.release()


def acquire_graph(inputs: SearchInputs, capture: bool = True) -> GraphedSearch | None:
    """Start a search with a captured step; None if a step cannot be captured."""
    cache, key = _graph_caches.setdefault(inputs.body, GraphCache()), None
    with cache.lock:
        try:
            padded, max_new_tokens, max_cache_len = _round_up(inputs)
            longest = torch.full_like(padded.limits, max_new_tokens)
            search: Search = (BeamSearch if inputs.settings.num_beams > 1 else GreedyOrSample)(
                replace(padded, limits=longest), max_cache_len
            )
            search.limits.copy_(padded.limits.repeat_interleave(search.num_samples))
            key = _graph_key(inputs, search)
            if key in cache.out_of_memory_keys:
                return None
            graphed = cache.entries.pop(key, None)
            if graphed is None:
                graphed = GraphedSearch(search, capture, cache, key)
            else:
                graphed.load(search)
        except torch.OutOfMemoryError:  # free the cached graphs, and run these shapes without a graph
            cache.entries.clear()
            torch.cuda.empty_cache()
            cache.out_of_memory_keys |= set() if key is None else {key}
            return None
        except RuntimeError as error:
            if key is None:  # the error occurred before the capture, in the prompts
                raise
            cache.capture_failed = True
            warnings.warn(
                f"CUDA graph capture failed for this model ({error}); generation is slower without it.", stacklevel=2
            )
            return None
    graphed.num_rows, graphed.max_steps = search.num_samples * len(inputs.limits), int(inputs.limits.max())
    return graphed


def _graph_key(inputs: SearchInputs, search: Search) -> GraphKey:
    """Cache key: weight addresses, shapes and settings. Weights updated in place keep their graphs.

    Prompt lengths are values in tensors, not part of the key."""
    body: Any = inputs.body
    weights = tuple((parameter.data_ptr(), parameter.dtype) for parameter in body.parameters())
    shapes = tuple((tuple(tensor.shape), tensor.dtype) for tensor in search.tensors())
    settings = replace(
        inputs.settings,
        seed=0,
        max_new_tokens=0,
        max_length=0,
        max_extra_tokens=0,
        stop_strings=(),
        truncate_prompt=False,
    )
    banned = None if inputs.banned is None else tuple(inputs.banned.tolist())
    return weights, shapes, settings, search.num_samples, inputs.eos_id, banned, body.training


def _round_up(inputs: SearchInputs) -> tuple[SearchInputs, int, int]:
    """Inputs with rounded row count and lengths, maximum new tokens, and cache length.

    Padding rows repeat the last row and generate one token. Without a source, shapes depend only on the cache length,
    which is rounded to 128; beams are cached after the longest prompt, so prompts of beam search are rounded to 128,
    too."""
    B, most, beams = len(inputs.limits), int(inputs.limits.max()), inputs.settings.num_beams > 1
    rows = _round_up_rows(B)
    limits, requests = F.pad(inputs.limits, (0, rows - B), value=1), np.pad(inputs.requests, (0, rows - B))
    batch = inputs.batch.select_rows(torch.arange(rows, device=inputs.batch.inputs.device).clamp(max=B - 1))
    if batch.decoder is not None:
        max_new_tokens = _multiple(most, 16)
        max_cache_len = batch.decoder.inputs.shape[1] - 1 + max_new_tokens
        batch = _pad_inputs(batch, 16)
    else:
        batch = _pad_inputs(replace(batch, mask=batch.prompt_lengths), 128 if beams else 16)
        assert batch.mask is not None
        longest = batch.inputs.shape[1] + most if beams else int((batch.mask.to(limits.device) + limits).max())
        max_new_tokens = max_cache_len = _multiple(longest - 1, 128)
    return replace(inputs, batch=batch, limits=limits, requests=requests), max_new_tokens, max_cache_len


def _pad_inputs(batch: Batch, step: int) -> Batch:
    """Batch with token ids padded to a multiple of `step`. Images and point clouds are unchanged."""
    if batch.inputs.ndim != 2:
        return batch
    B, L = batch.inputs.shape
    more = _multiple(L, step) - L
    lengths = torch.full((B,), L, device=batch.inputs.device) if batch.mask is None else batch.mask
    positions, types = batch.positions, batch.text.token_types
    return replace(
        batch,
        inputs=F.pad(batch.inputs, (0, more)),
        mask=F.pad(lengths, (0, more)) if lengths.ndim == 2 else lengths,
        positions=positions if positions is None or positions.shape[-1] != L else F.pad(positions, (0, more)),
        text=replace(batch.text, token_types=None if types is None else F.pad(types, (0, more))),
    )


def _multiple(length: int, step: int) -> int:
    """The smallest multiple of `step` that is at least `length`."""
    return -(-length // step) * step


def _round_up_rows(rows: int) -> int:
    """1, 2, 4, 8, 16, 24, 32, 64, 96, …, 256, then multiples of 128: few shapes, and padding rows are cheap."""
    for step, most in ((1, 2), (4, 8), (8, 32), (32, 256)):
        if rows <= most:
            return _multiple(rows, step)
    return _multiple(rows, 128)
