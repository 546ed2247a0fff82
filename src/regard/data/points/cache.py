"""In-memory cache of point clouds within a memory limit; other point clouds are read from disk each time."""

from __future__ import annotations

import os
from collections.abc import Callable

from regard.data.images.cache import MEMORY_FRACTION, free_memory, local_world_size
from regard.data.points.cloud import PointCloud


class CloudCache:
    """`cache(i, read)` returns the point cloud of sample i and calls `read` only if the cache has no entry. Forked workers
    inherit the entries at the time of the fork; each worker may use `max_bytes / num_workers` for further entries."""

    def __init__(self, max_bytes: int | None = None, num_workers: int = 1) -> None:
        """`max_bytes` None uses a fraction of the free memory; `num_workers` is the number of forked workers."""
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
