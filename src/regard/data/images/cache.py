"""Cache of decoded images in memory shared by all worker processes, used if all images fit."""

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
"""Threads for decoding; Pillow releases the GIL."""

ImageArray = npt.NDArray[Any]

MEMORY_FRACTION = 0.25
"""Maximum fraction of free memory used by the cache."""


CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
    ),
)
"""Memory limit, memory usage and statistics (including file cache) of a container, for cgroup v2 and v1."""


def free_memory() -> int:
    """Free memory of the machine, limited by the container, in bytes; 1 GiB if the free memory of the machine is unknown."""
    machine = capabilities.free_memory()
    machine = 2**30 if machine is None else machine
    return max(
        0, min([machine, *(room for files in CGROUP_FILES if (room := _cgroup_free_memory(*files)) is not None)])
    )


def _cgroup_free_memory(limit: str, taken: str, kinds: str) -> int | None:
    """Free memory of the container in bytes; None without a container or a limit."""
    try:
        with open(limit, encoding="ascii") as most, open(taken, encoding="ascii") as used, open(kinds) as stat:
            cached = {line.split()[0]: int(line.split()[1]) for line in stat}
            return int(most.read()) - int(used.read()) + cached.get("inactive_file", 0)
    except (OSError, ValueError, IndexError):  # without a limit the file contains "max"
        return None


def local_world_size() -> int:
    """Number of processes of this run on this machine, as set by torchrun; each process has a separate cache."""
    told = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, int(told)) if told.isdigit() else 1


class ImageCache:
    """`cache(i, read)` returns the image of sample i; `read` is called only on the first access.

    The memory is anonymous and shared between processes forked after the creation of the cache; the operating system
    allocates pages only when they are written."""

    def __init__(
        self, count: int, shape: tuple[int, ...], max_bytes: int | None = None, dtype: npt.DTypeLike = np.uint8
    ) -> None:
        """The cache is disabled if all images need more than `max_bytes`; then every access calls `read`."""
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
            if picture.shape != self.shape:  # images of other sizes are not cached
                return picture
            self.images[index] = picture
            self.filled[index] = 1  # set last, so that other processes only use complete images
        return self.images[index]

    def get_many(self, indices: Sequence[int], read: Callable[[int], ImageArray], threads: int = 1) -> list[ImageArray]:
        """Images of several samples; `threads` > 1 decodes in parallel, for callers without worker processes."""

        def one(number: int) -> ImageArray:
            return self(number, lambda: read(number))

        if threads == 1 or len(indices) < threads or (self.enabled and all(self.filled[number] for number in indices)):
            return [one(number) for number in indices]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(one, indices))
