"""Micro-batches prepared in advance by worker processes, which exit when the run ends or is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack

import torch
from torch.utils.data import DataLoader, Dataset

from regard import capabilities
from regard.errors import RegardError, RunError
from regard.threads import suppress_warnings
from regard.types import Batch

MakeBatch = Callable[[int], Batch]
"""Micro-batch of an index. Must not call a tokenizer, because tokenizer threads do not survive a fork."""


def prefetch(make_batch: MakeBatch, indices: Iterable[int], workers: int = 0, pin: bool = False) -> Generator[Batch]:
    """Yield the micro-batches of `indices` in order. Close the generator (`contextlib.closing`) to stop the workers.

    With `pin`, micro-batches are in page-locked memory, so that copies to the GPU overlap with computation."""
    # workers inherit the data from the run, so fork is required
    if workers == 0 or not capabilities.is_available("fork"):
        for number in indices:
            batch = make_batch(number)
            yield batch.pin_memory() if pin else batch
        return
    source = _start_loader(make_batch, indices, workers, pin)
    try:
        for item in source:
            if isinstance(item, RegardError):
                raise item
            yield item
    except (RuntimeError, OSError, EOFError) as error:
        # the first error after a kill is the exit of the worker or a truncated message, in the main or the pinning
        # thread; exceptions raised in a worker start with 'Caught'
        if "worker process" in str(error) or (isinstance(error, RuntimeError) and str(error).startswith("Caught")):
            raise
        reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise RunError(
            f"A data-loader process died ({reason[0].rstrip('. ')}), probably out of memory or shared memory. "
            "Set data.num_workers=0 and continue with --resume."
        ) from error
    finally:
        # Stop workers now, because tracebacks can keep the loader alive.
        getattr(source, "_shutdown_workers", bool)()


def _start_loader(
    make_batch: MakeBatch, numbers: Iterable[int], workers: int, pin: bool
) -> Iterator[Batch | RegardError]:
    parent = os.getpid()
    # A starting worker must not handle signals: processes forked while signals are blocked never receive them.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    with ExitStack() as stack:
        stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, mask)
        stack.enter_context(suppress_warnings(category=UserWarning))  # the number of workers is a user setting
        loader: DataLoader[Batch | RegardError] = DataLoader(
            _MicroBatchDataset(make_batch),
            batch_size=None,
            sampler=numbers,
            num_workers=workers,
            pin_memory=pin,
            collate_fn=lambda item: item,
            worker_init_fn=lambda _: _init_worker(parent),
            multiprocessing_context=capabilities.fork_context(),
            generator=torch.Generator(),  # keeps the global random state of the run
        )
        before = signal.getsignal(signal.SIGCHLD)
        source = iter(loader)
        if signal.getsignal(signal.SIGCHLD) is not before:
            # The handler of DataLoader raises at any point of the run, for example while a checkpoint is written. Waiting
            # for the next micro-batch detects a dead worker too, within five seconds.
            signal.signal(signal.SIGCHLD, before or signal.SIG_DFL)
        return source


class _MicroBatchDataset(Dataset[Batch | RegardError]):
    """Micro-batches, or their errors as data, because DataLoader would add a traceback to the message."""

    def __init__(self, make_batch: MakeBatch) -> None:
        self.make_batch = make_batch

    def __getitem__(self, number: int) -> Batch | RegardError:
        try:
            return self.make_batch(number)
        except RegardError as error:
            return error


def _init_worker(parent: int) -> None:
    """Ignore signals in a new worker, because the run saves and then stops workers; exit at once if the run is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if capabilities.is_available("end_with_parent"):  # otherwise the watchdog of DataLoader exits within seconds
        capabilities.end_with_parent()
    if os.getppid() != parent:
        os._exit(1)  # the run ended before end_with_parent was called
