"""Training loop: a generator of optimizer steps, independent of tasks. The caller logs, evaluates and saves.

A step has a fixed number of micro-batches. Before each, random generators are seeded from (seed, micro-batch index), so
batch, dropout and masking are functions of the index: resuming after step n requires only n."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch import distributed as dist

from regard.errors import RunError
from regard.training.distributed import ProcessGroup, all_reduce
from regard.training.execution import ForwardBackward
from regard.training.optimizer import WeightEMA, lr_at, set_lr
from regard.training.settings import TrainSettings
from regard.types import Batch


@dataclass(frozen=True)
class TrainStep:
    """One optimizer step, with the average loss over all labels and the gradient norm before clipping, both on the
    device."""

    step: int
    loss: Tensor
    grad_norm: Tensor
    lr: float


class NonFiniteGuard:
    """Index of the first micro-batch with a non-finite loss or gradient, kept on the device to avoid synchronization."""

    def __init__(self, device: torch.device) -> None:
        self.first_micro_batch = torch.full((), -1, dtype=torch.long, device=device)

    def record(self, value: Tensor, micro_batch: int) -> None:
        is_first = (self.first_micro_batch < 0) & ~torch.isfinite(value)
        self.first_micro_batch = torch.where(is_first, micro_batch, self.first_micro_batch)

    def check(self, accumulate: int, process_group: ProcessGroup) -> None:
        micro_batch = int(self.first_micro_batch)
        if process_group.size > 1:  # minimum over all processes: after the reduction, other processes have NaN as well
            far = 2**62
            most = process_group.all_reduce_max(far - micro_batch if micro_batch >= 0 else 0)
            micro_batch = far - most if most else -1
        if micro_batch >= 0:
            step, part = divmod(micro_batch, accumulate)
            raise RunError(
                f"The loss or its gradient is NaN or infinite at step {step + 1}, micro-batch {part + 1} of {accumulate}. "
                "Training stopped; no checkpoint was written after this step. Try a lower train.lr, a larger "
                "train.warmup_steps or train.grad_clip=1."
            )


def micro_batch_seed(seed: int, micro_batch: int) -> int:
    digest = hashlib.blake2b(f"{seed}:{micro_batch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % 2**63


def micro_batch_indices(start_step: int, settings: TrainSettings, process_group: ProcessGroup) -> Iterator[int]:
    """Indices of the micro-batches of this process after `start_step` steps."""
    for step in range(start_step, settings.steps):
        for part in range(process_group.rank, settings.grad_accum, process_group.size):
            yield step * settings.grad_accum + part


def train_loop(
    model: nn.Module,
    forward_backward: ForwardBackward,
    micro_batches: Iterator[Batch],
    optimizer: torch.optim.Optimizer,
    settings: TrainSettings,
    start_step: int = 0,
    ema: WeightEMA | None = None,
    guard: NonFiniteGuard | None = None,
) -> Iterator[TrainStep]:
    """Run steps start_step + 1 to settings.steps. `micro_batches` yields batches in the order of `micro_batch_indices`."""
    parameters, world = forward_backward.parameters, forward_backward.process_group
    parts = range(world.rank, settings.grad_accum, world.size)
    for number in range(start_step + 1, settings.steps + 1):
        if not model.training:
            model.train()
        sums: Tensor | None = None
        for part in parts:
            index = (number - 1) * settings.grad_accum + part
            batch = next(micro_batches)
            torch.manual_seed(micro_batch_seed(settings.seed, index))
            loss, count = forward_backward(batch, last=part == parts[-1])
            both = torch.stack([loss, count.to(loss.dtype)])
            sums = both if sums is None else sums + both
            if guard is not None:
                guard.record(loss, index)
        assert sums is not None
        total, count = (sums if world.size == 1 else all_reduce(sums, dist.ReduceOp.SUM)).unbind()
        count = torch.where(count > 0, count, 1.0)  # no division by 0 in a step without labels
        gradients = [p.grad for p in parameters if p.grad is not None]
        # from a sum to the average over all labels; DistributedDataParallel divides by the number of processes
        scale = world.size / count
        norm = torch.nn.utils.get_total_norm(gradients) * scale
        if settings.grad_clip > 0:
            scale = scale * (settings.grad_clip / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, scale)
        if guard is not None:
            guard.record(norm, index)
        rate = lr_at(number, settings)
        set_lr(optimizer, rate)
        optimizer.step()
        torch.autograd.graph.increment_version(parameters)  # fused optimizers do not increment version counters
        forward_backward.zero_grad()
        if ema is not None:
            ema.update(number)
        yield TrainStep(number, total / count, norm, rate)
