"""Worker processes prepare micro-batches: the same order, readable errors, and no leftover processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import closing
from itertools import count, islice
from pathlib import Path

import pytest
import torch

from conftest import TWELVE, rows, same_tensors, train_tiny
from regard.data.batching.loader import prefetch
from regard.errors import DataError, RunError, UnknownNameError
from regard.types import Batch, Packing

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers are forked, on Linux alone")


class Maker:
    """Micro-batches from a bound method, as in a run."""

    def __init__(self, wrong: Exception | None = None, at: int = 5) -> None:
        self.wrong, self.at = wrong, at

    def grain(self, number: int) -> Batch:
        if self.wrong is not None and number == self.at:
            raise self.wrong
        x = torch.arange(number, number + 6).view(2, 3)
        return Batch(x, torch.tensor([3, 2]), packing=Packing(torch.tensor([0, number]), number))


def workers() -> list[int]:
    return [process.pid for process in multiprocessing.active_children() if process.pid]


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie, which its parent has not reaped, is dead."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture(autouse=True)
def none_left() -> Iterator[None]:
    yield
    assert not workers()


@pytest.mark.parametrize("many", [0, 1, 3])
def test_micro_batches_come_in_order_from_any_number_of_workers(many: int) -> None:
    torch.manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batches = list(prefetch(Maker().grain, range(7, 19), many))
    assert [int(batch.inputs[0, 0]) for batch in batches] == list(range(7, 19))
    last, wanted = batches[-1], Maker().grain(18)
    assert torch.equal(last.inputs, wanted.inputs) and last.mask is not None and last.mask.tolist() == [3, 2]
    assert last.packing is not None and last.packing.starts.tolist() == [0, 18] and last.packing.max_length == 18
    assert torch.initial_seed() == 3 and torch.rand(1) == torch.rand(1, generator=torch.Generator().manual_seed(3))


@linux
def test_numbers_may_be_endless_signals_are_for_the_run_and_closing_ends_the_workers() -> None:
    with closing(prefetch(Maker().grain, count(2, 3), 2)) as grains:
        assert [int(batch.inputs[0, 0]) for batch in islice(grains, 4)] == [2, 5, 8, 11]
        pids = workers()
        assert len(pids) == 2
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGINT)
        assert [int(batch.inputs[0, 0]) for batch in islice(grains, 20)] == list(range(14, 74, 3))
    end = time.monotonic() + 5
    while any(map(alive, pids)):
        assert time.monotonic() < end, "workers are still alive"
        time.sleep(0.01)


ERRORS = [
    DataError("has a hole.", "a.tsv", 3, "Mend it."),
    UnknownNameError("thing", "cta", ["cat", "dog"]),
    RunError("stopped."),
]


@pytest.mark.parametrize("many", [0, 2])
@pytest.mark.parametrize("wrong", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_for_the_user_arrives_unchanged(wrong: Exception, many: int) -> None:
    grains = prefetch(Maker(wrong).grain, range(20), many)
    assert len(list(islice(grains, 5))) == 5  # earlier micro-batches arrive
    with pytest.raises(type(wrong)) as caught:
        next(grains)
    assert str(caught.value) == str(wrong) and "Traceback" not in str(caught.value)


@linux
def test_an_internal_error_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError, match="Traceback"):
        list(prefetch(Maker(ZeroDivisionError("no")).grain, range(20), 1))


@linux
def test_a_killed_worker_is_reported_in_one_paragraph() -> None:
    grains = prefetch(Maker().grain, count(), 1)
    next(grains)
    os.kill(workers()[0], signal.SIGKILL)
    with pytest.raises(RunError, match=r"data\.num_workers") as caught:
        for _ in grains:
            pass
    assert "\n" not in str(caught.value)


@linux
def test_a_run_with_workers_is_the_run_without_them(few: Path, whole: Path, tmp_path: Path) -> None:
    train_tiny(few, tmp_path / "run", *TWELVE, "data.num_workers=2")
    same_tensors(tmp_path / "run/model.safetensors", whole / "model.safetensors")
    assert rows(tmp_path / "run") == rows(whole)


@pytest.mark.slow
@linux
def test_a_run_may_resume_with_another_number_of_workers(halved: Path, whole: Path) -> None:
    train_tiny((), halved, *TWELVE, "data.num_workers=1", resume=True)
    assert rows(halved) == rows(whole)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="page-locked memory is CUDA's")
@pytest.mark.parametrize("many", [0, 2])
def test_pinned_micro_batches_are_pinned(many: int) -> None:
    for batch in prefetch(Maker().grain, range(4), many, pin=True):
        assert batch.inputs.is_pinned() and batch.packing is not None and batch.packing.starts.is_pinned()
