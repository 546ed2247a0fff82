"""One way to record work as a CUDA graph."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

T = TypeVar("T")


@contextmanager
def cudnn_benchmark() -> Iterator[None]:
    """What is recorded is repeated many times: cuDNN may try its kernels first and take the fastest. Not where something
    learns: which one is fastest may differ from run to run, and with it the last digits."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before or not (torch.is_grad_enabled() or torch.backends.cudnn.deterministic)
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@functools.cache
def _capture_stream(device: int, thread: int) -> Any:
    """A stream of its own, and the same for all that is recorded: libraries keep memory for each, and recordings of one pool
    can share only what one stream has used."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def capture(
    function: Callable[[], T], device: torch.device, warmup: int = 3, pool: Any = None
) -> tuple[torch.cuda.CUDAGraph, T]:
    """The recording and what the recorded work returned: tensors that each repetition fills anew.

    `pool`: of another recording, whose memory this one may use, since the two are never repeated at once.

    Recording asks for a few real runs before it, on a stream of their own; what they change is the caller's affair."""
    with torch.cuda.device(device), cudnn_benchmark():
        side = _capture_stream(torch.cuda.current_device(), threading.get_ident())
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(warmup):
                function()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # other threads (that pin memory, say) may use CUDA meanwhile; a stream of this device, not of the first
        with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"):
            result = function()
    return graph, result
