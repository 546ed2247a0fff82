"""The processes that train one model together, as `torchrun` starts them. Distribution itself is PyTorch's.

A step's grains are dealt out to the processes; each adds the gradients of its own, and DistributedDataParallel adds
them up over all. What is trained does not depend on how many there are.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch import distributed as dist

from regard.errors import RunError, SettingError

TIMEOUT = datetime.timedelta(hours=12)
"""How long the others wait while the first process validates or saves."""


@dataclass(frozen=True)
class ProcessGroup:
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """the number of this process on its machine, which is also its GPU's"""

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def check_divides(self, accumulate: int) -> None:
        if accumulate % self.size:
            able = [n for n in range(1, accumulate + 1) if accumulate % n == 0]
            raise SettingError(
                f"train.grad_accum={accumulate} is not divisible by {self.size} processes. Use "
                f"{', '.join(map(str, able))} processes, or set train.grad_accum to a multiple of {self.size} "
                "and reduce train.batch_tokens in proportion."
            )

    def micro_batches(self, accumulate: int) -> range:
        """Which grains of a step are ours."""
        return range(self.rank, accumulate, self.size)

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        return values if self.size == 1 else _all_reduce(values, dist.ReduceOp.SUM)

    def all_reduce_max(self, value: int) -> int:
        """The largest that any process says."""
        if self.size == 1:
            return value
        # on the CPU, through gloo: nothing waits for a GPU
        return int(_all_reduce(torch.tensor(value), dist.ReduceOp.MAX))

    def min_nonnegative(self, value: int) -> int:
        """The smallest that any process says; -1 says nothing."""
        far = 2**62
        said = self.all_reduce_max(far - value if value >= 0 else 0)
        return far - said if said else -1

    def barrier(self) -> None:
        if self.size > 1:
            self.all_reduce_max(0)

    def wrap(self, module: nn.Module) -> nn.Module:
        if self.size == 1:
            return module
        return nn.parallel.DistributedDataParallel(module, gradient_as_bucket_view=True)


def _all_reduce(values: Tensor, how: dist.ReduceOp.RedOpType) -> Tensor:
    try:
        dist.all_reduce(values, op=how)
    except RuntimeError as error:
        raise RunError(
            "Another process of this distributed run has ended. See the error message of that process."
        ) from error
    return values


def process_group_from_env() -> ProcessGroup:
    """What the environment says, before anything is joined."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    return (
        ProcessGroup(int(os.environ.get("RANK", "0")), size, int(os.environ.get("LOCAL_RANK", "0")))
        if size > 1
        else ProcessGroup()
    )


@contextmanager
def init_distributed(device: torch.device) -> Iterator[ProcessGroup]:
    """The process group of `torchrun`, for as long as the block lasts; a process alone joins nothing."""
    world = process_group_from_env()
    if world.size == 1 or dist.is_initialized():
        yield world
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
    try:
        yield world
    finally:
        dist.destroy_process_group()
