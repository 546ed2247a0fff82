"""Clouds that are read once, as long as there is room for them; the rest are read anew each time."""

from __future__ import annotations

import os
from collections.abc import Callable

from regard.data.images.cache import SHARE, free_memory, neighbours
from regard.data.points.cloud import Cloud


class Shelf:
    """`shelf(i, read)` is the cloud of sample i, read where it does not stand here yet. Processes that are forked later find
    what stands here then, and keep what they read for themselves, each its part of what may be taken."""

    def __init__(self, most: int | None = None, workers: int = 1) -> None:
        """`most`: bytes that may be taken; None: a share of the memory that is free. `workers`: processes that are forked."""
        self.most = int(SHARE * free_memory() / neighbours()) if most is None else most
        self.workers, self.maker = max(workers, 1), os.getpid()
        self.taken = 0
        self.clouds: dict[int, Cloud] = {}

    def __call__(self, number: int, read: Callable[[], Cloud]) -> Cloud:
        found = self.clouds.get(number)
        if found is None:
            found = read()
            size = bytes_of(found)
            if self.taken + size <= (self.most if os.getpid() == self.maker else self.most // self.workers):
                self.taken += size
                self.clouds[number] = found
        return found


def bytes_of(cloud: Cloud) -> int:
    return sum(part.nbytes for part in (cloud.places, cloud.colours, cloud.normals, cloud.labels) if part is not None)
