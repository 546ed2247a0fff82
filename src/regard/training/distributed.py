"""Distributed training with `torchrun` and DistributedDataParallel.

The micro-batches of a step are distributed over the processes; each process accumulates gradients, and
DistributedDataParallel reduces them over all processes. The update does not depend on the number of processes."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist

from regard.errors import RunError, SettingError

TIMEOUT = datetime.timedelta(hours=12)  # Time limit for processes that wait while the main process evaluates or saves.


@dataclass(frozen=True)
class ProcessGroup:
    rank: int = 0
    size: int = 1
    local_rank: int = 0  # index of the process, and of its GPU, on this machine

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

    def all_reduce_max(self, value: int) -> int:
        """Maximum over all processes, after all have called the function."""
        if self.size == 1:
            return value
        # on the CPU with gloo, without synchronizing a GPU
        return int(all_reduce(torch.tensor(value), dist.ReduceOp.MAX))


def all_reduce(values: Tensor, how: dist.ReduceOp.RedOpType) -> Tensor:
    """The values, reduced in place over all processes."""
    try:
        dist.all_reduce(values, op=how)
    except RuntimeError as error:
        raise RunError(
            "Another process of this distributed run has ended. See the error message of that process."
        ) from error
    return values


@contextmanager
def init_distributed(device: torch.device) -> Iterator[ProcessGroup]:
    """Initialize the process group of `torchrun` during the block, if there are several processes."""
    rank, size, local_rank = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    world = ProcessGroup(rank, size, local_rank) if size > 1 else ProcessGroup()
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


def check_device(name: str | torch.device) -> torch.device:
    """Device of a name, or `auto`; a device that this machine does not have is an error."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        found = torch.device(name)
    except RuntimeError as error:
        raise SettingError(f"Unknown device '{name}'. Available: auto, cpu, cuda, mps.") from error
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available.get(found.type, True):
        raise SettingError(f"No {found.type} device on this machine. Use auto or cpu.")
    if found.type == "cuda" and found.index is not None and found.index >= torch.cuda.device_count():
        raise SettingError(
            f"No device {found}: this machine has {torch.cuda.device_count()} CUDA devices (numbered from 0)."
        )
    return found


def pick_device(name: str | torch.device) -> torch.device:
    """Device of a command, which becomes the current device."""
    found = check_device(name)
    if found.type not in ("cpu", "cuda", "mps"):
        raise SettingError(f"Unknown device '{name}'. Available: auto, cpu, cuda, mps.")
    if found == torch.device("cuda") and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        found = check_device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}")
    if found.type == "cuda" and found.index is not None:
        torch.cuda.set_device(found)  # launches without a device argument and CUDA graph capture use the current device
    return found
