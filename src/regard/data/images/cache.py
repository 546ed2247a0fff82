"""Pictures that are decoded once: where all of them fit into memory, workers share what each of them has decoded."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from regard import capabilities

DECODE_THREADS = min(os.cpu_count() or 1, 16)
"""Threads that decode pictures, which Pillow does side by side."""

ImageArray = npt.NDArray[Any]

MEMORY_FRACTION = 0.25
"""Of the memory that is free: more is not taken for pictures."""


CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
    ),
)
"""Where a container says how much it may take, how much it has taken, and what of that is files that can be read again."""


def free_memory() -> int:
    """Bytes that may be taken without pushing anything out, of the machine and of the container around us; where the system
    does not say it, a gigabyte."""
    machine = capabilities.free_memory()
    machine = 2**30 if machine is None else machine
    return max(
        0, min([machine, *(room for files in CGROUP_FILES if (room := _cgroup_free_memory(*files)) is not None)])
    )


def _cgroup_free_memory(limit: str, taken: str, kinds: str) -> int | None:
    """What a container has left; None where there is none, or it has no limit."""
    try:
        with open(limit, encoding="ascii") as most, open(taken, encoding="ascii") as used, open(kinds) as stat:
            cached = {line.split()[0]: int(line.split()[1]) for line in stat}
            return int(most.read()) - int(used.read()) + cached.get("inactive_file", 0)
    except (OSError, ValueError, IndexError):  # "max" is no number
        return None


def local_world_size() -> int:
    """Processes of this run on this machine, each with pictures of its own, as torchrun tells them."""
    told = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, int(told)) if told.isdigit() else 1


class ImageCache:
    """`album(i, read)` is the picture of sample i, read where nobody has read it yet.

    The memory is anonymous and shared: processes that are forked after the album was made see each other's pictures, and the
    system takes pages only as they are filled."""

    def __init__(
        self, count: int, shape: tuple[int, ...], max_bytes: int | None = None, dtype: npt.DTypeLike = np.uint8
    ) -> None:
        """`most`: bytes that may be taken; pictures that need more are read anew each time."""
        size = count * int(np.prod(shape)) * np.dtype(dtype).itemsize
        max_bytes = int(MEMORY_FRACTION * free_memory() / local_world_size()) if max_bytes is None else max_bytes
        self.count, self.shape, self.enabled = count, shape, 0 < size + count <= max_bytes
        if self.enabled:
            room = mmap.mmap(-1, size + count)
            whole = np.frombuffer(room, dtype=np.uint8)
            self.images, self.filled = whole[:size].view(dtype).reshape(count, *shape), whole[size:]

    def __call__(self, index: int, read: Callable[[], ImageArray]) -> ImageArray:
        if not self.enabled:
            return read()
        if not self.filled[index]:
            picture = read()
            if picture.shape != self.shape:  # it has a size of its own
                return picture
            self.images[index] = picture
            self.filled[index] = 1  # last: who sees the mark sees the picture
        return self.images[index]

    def get_many(self, indices: Sequence[int], read: Callable[[int], ImageArray], threads: int = 1) -> list[ImageArray]:
        """Of these samples; who has no workers that decode beside it may have threads do so."""

        def one(number: int) -> ImageArray:
            return self(number, lambda: read(number))

        if threads == 1 or len(indices) < threads or (self.enabled and all(self.filled[number] for number in indices)):
            return [one(number) for number in indices]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(one, indices))
