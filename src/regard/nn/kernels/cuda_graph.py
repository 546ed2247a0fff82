"""CUDA graph capture."""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

T = TypeVar("T")
_switches = threading.RLock()  # The switches of cuDNN and of the garbage collector belong to the process.


@contextmanager
def cudnn_benchmark() -> Iterator[None]:
    """Enable cuDNN benchmarking, because a captured graph is replayed many times. Not with gradients: the selected
    kernels, and with them the rounding of results, may differ between runs."""
    with _switches:
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = before or not (torch.is_grad_enabled() or torch.backends.cudnn.deterministic)
        try:
            yield
        finally:
            torch.backends.cudnn.benchmark = before


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable the cyclic garbage collector: an older graph that is freed during a capture invalidates the capture."""
    with _switches:
        enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if enabled:
                gc.enable()


@functools.cache
def _capture_stream(device: int, thread: int) -> Any:
    """Capture stream, shared by all captures: libraries allocate memory per stream, and graphs of one memory pool can
    share only memory used on the same stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def capture(
    function: Callable[[], T], device: torch.device, warmup: int = 3, pool: Any = None
) -> tuple[torch.cuda.CUDAGraph, T]:
    """The graph, and the result of `function`: tensors that each replay overwrites.

    `pool`: memory pool of another graph; the two graphs must never be replayed at the same time.

    `function` runs `warmup` times before the capture, on the capture stream, including its side effects."""
    with torch.cuda.device(device), cudnn_benchmark():
        side = _capture_stream(torch.cuda.current_device(), threading.get_ident())
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(warmup):
                function()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # other threads may use CUDA meanwhile, e.g. to pin memory; the stream belongs to this device, not to device 0
        mode = "thread_local"
        with no_garbage_collection(), torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode=mode):
            result = function()
    return graph, result
