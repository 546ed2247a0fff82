"""Clouds that are read once, as long as there is room for them; the rest are read anew each time."""

from __future__ import annotations

import os
from collections.abc import Callable

from regard.data.images.cache import MEMORY_FRACTION, free_memory, local_world_size
from regard.data.points.cloud import PointCloud


class CloudCache:
    """`shelf(i, read)` is the cloud of sample i, read where it does not stand here yet. Processes that are forked later find
    what stands here then, and keep what they read for themselves, each its part of what may be taken."""

    def __init__(self, max_bytes: int | None = None, num_workers: int = 1) -> None:
        """`most`: bytes that may be taken; None: a share of the memory that is free. `workers`: processes that are forked."""
        self.max_bytes = int(MEMORY_FRACTION * free_memory() / local_world_size()) if max_bytes is None else max_bytes
        self.num_workers, self.owner_pid = max(num_workers, 1), os.getpid()
        self.used_bytes = 0
        self.clouds: dict[int, PointCloud] = {}

    def __call__(self, index: int, read: Callable[[], PointCloud]) -> PointCloud:
        found = self.clouds.get(index)
        if found is None:
            found = read()
            size = cloud_bytes(found)
            if self.used_bytes + size <= (
                self.max_bytes if os.getpid() == self.owner_pid else self.max_bytes // self.num_workers
            ):
                self.used_bytes += size
                self.clouds[index] = found
        return found


def cloud_bytes(cloud: PointCloud) -> int:
    return sum(
        part.nbytes for part in (cloud.coordinates, cloud.colors, cloud.normals, cloud.labels) if part is not None
    )
