"""Grains prepared ahead by worker processes, in order, which end when the run does: at its end, or when it is killed."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from regard import capabilities
from regard.errors import RegardError, RunError
from regard.types import Batch

MakeBatch = Callable[[int], Batch]
"""The grain of a number. It tokenizes nothing: threads of a tokenizer do not live on in a worker."""


def prefetch(make_batch: MakeBatch, indices: Iterable[int], workers: int = 0, pin: bool = False) -> Generator[Batch]:
    """The grains of these numbers, in their order. Close it (`contextlib.closing`) to end its workers at once.

    With `pin` they lie in page-locked memory, from where they reach a GPU while it computes."""
    if not uses_workers(workers):
        for number in indices:
            batch = make_batch(number)
            yield batch.pin_memory() if pin else batch
        return
    source = _start_loader(make_batch, indices, workers, pin)
    try:
        for item in source:
            if isinstance(item, _WorkerError):
                raise item.to_error()
            yield item
    except (RuntimeError, OSError, EOFError) as error:
        if not _is_worker_death(error):
            raise
        reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise RunError(
            f"A data-loader process died ({reason[0].rstrip('. ')}), probably out of memory or shared memory. "
            "Set data.num_workers=0 and continue with --resume."
        ) from error
    finally:
        # Now, and not when the last traceback that knows of them goes.
        getattr(source, "_shutdown_workers", bool)()


def uses_workers(workers: int) -> bool:
    """Whether micro-batches are prepared by worker processes: they are forked, since the data is not sent to them."""
    return workers > 0 and capabilities.is_available("fork")


class TimedIterator:
    """Grains as they come, and how long they were waited for."""

    def __init__(self, micro_batches: Iterator[Batch]) -> None:
        self.micro_batches, self.wait_seconds = micro_batches, 0.0

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        begun = time.perf_counter()
        try:
            return next(self.micro_batches)
        finally:
            self.wait_seconds += time.perf_counter() - begun

    def close(self) -> None:
        if isinstance(self.micro_batches, Generator):
            self.micro_batches.close()


def _is_worker_death(error: Exception) -> bool:
    """Whether a worker is gone, and not only something went wrong in one: that is 'Caught' there, with its traceback.

    What is seen first of a worker that was killed is its end or, in either thread, half of a message from it."""
    text = str(error)
    return "worker process" not in text and not (isinstance(error, RuntimeError) and text.startswith("Caught"))


def _start_loader(grain: MakeBatch, numbers: Iterable[int], workers: int, pin: bool) -> Iterator[Batch | _WorkerError]:
    parent = os.getpid()
    # A worker that is just starting must not hear signals either. More workers than cores are the person's choice.
    with _blocked_signals(signal.SIGINT, signal.SIGTERM), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        loader: DataLoader[Batch | _WorkerError] = DataLoader(
            _MicroBatchDataset(grain),
            batch_size=None,
            sampler=numbers,
            num_workers=workers,
            pin_memory=pin,
            collate_fn=_identity,
            worker_init_fn=lambda _: _init_worker(parent),
            multiprocessing_context=capabilities.fork_context(),
            generator=torch.Generator(),  # of its own: workers draw nothing, and the run's draws stay where they are
        )
        before = signal.getsignal(signal.SIGCHLD)
        source = iter(loader)
        if signal.getsignal(signal.SIGCHLD) is not before:
            # The loader would have the end of a worker raised wherever the run is, in the middle of a save for one. Waiting
            # for the next grain finds it too, within five seconds.
            signal.signal(signal.SIGCHLD, before or signal.SIG_DFL)
        return source


@contextmanager
def _blocked_signals(*signals: signal.Signals) -> Iterator[None]:
    """Signals that arrive meanwhile arrive afterwards; a process that is forked meanwhile never hears them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(frozen=True)
class _WorkerError:
    """An error for a person, on its way from a worker: the loader would bury it in a traceback."""

    error_type: type[RegardError]
    message: str

    def to_error(self) -> RegardError:
        made = self.error_type.__new__(
            self.error_type, self.message
        )  # what its parts were is part of the message by now
        assert isinstance(made, RegardError)
        return made


class _MicroBatchDataset(Dataset[Batch | _WorkerError]):
    def __init__(self, grain: MakeBatch) -> None:
        self.make_batch = grain

    def __getitem__(self, number: int) -> Batch | _WorkerError:
        try:
            return self.make_batch(number)
        except RegardError as error:
            return _WorkerError(type(error), str(error))


def _identity(item: Any) -> Any:
    return item


def _init_worker(parent: int) -> None:
    """In a new worker: signals are for the run, which saves and then ends its workers; without it they end at once."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if capabilities.is_available("end_with_parent"):  # otherwise the loader's own watch ends it within some seconds
        capabilities.end_with_parent()
    if os.getppid() != parent:
        os._exit(1)  # it ended before the kernel was asked
