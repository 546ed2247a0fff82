"""Pictures that are decoded once: where all of them fit into memory, workers share what each of them has decoded."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

READERS = min(os.cpu_count() or 1, 16)
"""Threads that decode pictures, which Pillow does side by side."""

Picture = npt.NDArray[Any]

SHARE = 0.25
"""Of the memory that is free: more is not taken for pictures."""


def free_memory() -> int:
    """Bytes that may be taken without pushing anything out; where the system does not say it, a gigabyte."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            found = {line.split(":")[0]: int(line.split()[1]) for line in file}
        return 1024 * found["MemAvailable"]
    except (OSError, ValueError, KeyError, IndexError):
        return 2**30


class Album:
    """`album(i, read)` is the picture of sample i, read where nobody has read it yet.

    The memory is anonymous and shared: processes that are forked after the album was made see each other's pictures, and the
    system takes pages only as they are filled."""

    def __init__(
        self, count: int, shape: tuple[int, ...], most: int | None = None, kind: npt.DTypeLike = np.uint8
    ) -> None:
        """`most`: bytes that may be taken; pictures that need more are read anew each time."""
        size = count * int(np.prod(shape)) * np.dtype(kind).itemsize
        most = int(SHARE * free_memory()) if most is None else most
        self.count, self.shape, self.kept = count, shape, 0 < size + count <= most
        if self.kept:
            room = mmap.mmap(-1, size + count)
            whole = np.frombuffer(room, dtype=np.uint8)
            self.pictures, self.there = whole[:size].view(kind).reshape(count, *shape), whole[size:]

    def __call__(self, number: int, read: Callable[[], Picture]) -> Picture:
        if not self.kept:
            return read()
        if not self.there[number]:
            picture = read()
            if picture.shape != self.shape:  # it has a size of its own
                return picture
            self.pictures[number] = picture
            self.there[number] = 1  # last: who sees the mark sees the picture
        return self.pictures[number]

    def several(self, numbers: Sequence[int], read: Callable[[int], Picture], threads: int = 1) -> list[Picture]:
        """Of these samples; who has no workers that decode beside it may have threads do so."""

        def one(number: int) -> Picture:
            return self(number, lambda: read(number))

        if threads == 1 or len(numbers) < threads or (self.kept and all(self.there[number] for number in numbers)):
            return [one(number) for number in numbers]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(one, numbers))
