"""The loop: a generator of steps that knows no task. Progress, logs, evaluation and saving belong to its caller.

A step is a fixed number of grains. Before each grain the generators are seeded from (seed, step, grain), so batch,
dropout and masking are pure functions of it: going on after step n needs to know n and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.errors import RunError
from regard.training.distributed import ProcessGroup
from regard.training.execution import ForwardBackward
from regard.training.optimizer import WeightEMA, lr_at, set_lr
from regard.training.settings import TrainSettings
from regard.types import Batch


@dataclass(frozen=True)
class TrainStep:
    """One update. `loss` is the mean over its labels, `norm` the gradient's before clipping; both stay on the device."""

    step: int
    loss: Tensor
    grad_norm: Tensor
    lr: float


class NonFiniteGuard:
    """Remembers the first grain whose loss was not finite, on the device, so that looking costs nothing until asked."""

    def __init__(self, device: torch.device) -> None:
        self.first_micro_batch = torch.full((), -1, dtype=torch.long, device=device)

    def record(self, value: Tensor, micro_batch: int) -> None:
        fresh = (self.first_micro_batch < 0) & ~torch.isfinite(value)
        self.first_micro_batch = torch.where(
            fresh, torch.full_like(self.first_micro_batch, micro_batch), self.first_micro_batch
        )

    def check(self, accumulate: int, process_group: ProcessGroup) -> None:
        grain = process_group.min_nonnegative(
            int(self.first_micro_batch)
        )  # in a sum with the others' it has spread to their grains by now
        if grain >= 0:
            step, part = divmod(grain, accumulate)
            raise RunError(
                f"The loss or its gradient is NaN or infinite at step {step + 1}, micro-batch {part + 1} of {accumulate}. "
                "Training stopped; no checkpoint was written after this step. Try a lower train.lr, a larger "
                "train.warmup_steps or train.grad_clip=1."
            )


def micro_batch_seed(seed: int, micro_batch: int) -> int:
    digest = hashlib.blake2b(f"{seed}:{micro_batch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % 2**63


def micro_batch_indices(start_step: int, settings: TrainSettings, process_group: ProcessGroup) -> Iterator[int]:
    """The grains of this process, in order, from step done + 1 on."""
    for step in range(start_step, settings.steps):
        for part in process_group.micro_batches(settings.grad_accum):
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
    """Steps done + 1 … settings.steps. `grains` yields the batches of `numbers(done, …)` in their order."""
    parameters, world = forward_backward.parameters, forward_backward.process_group
    parts = world.micro_batches(settings.grad_accum)
    for number in range(start_step + 1, settings.steps + 1):
        if not model.training:
            model.train()
        sums: Tensor | None = None
        for part in parts:
            grain = (number - 1) * settings.grad_accum + part
            batch = next(micro_batches)
            torch.manual_seed(micro_batch_seed(settings.seed, grain))
            loss, count = forward_backward(batch, last=part == parts[-1])
            both = torch.stack([loss, count.to(loss.dtype)])
            sums = both if sums is None else sums + both
            if guard is not None:
                guard.record(loss, grain)
        assert sums is not None
        total, count = world.all_reduce_sum(sums).unbind()
        count = torch.where(count > 0, count, 1.0)  # of pictures of which nothing is known nothing is learnt
        norm = _scale_gradients(parameters, count, settings.grad_clip, world.size)
        if guard is not None:
            guard.record(norm, grain)
        rate = lr_at(number, settings)
        set_lr(optimizer, rate)
        optimizer.step()
        torch.autograd.graph.increment_version(parameters)  # fused optimisers do not count what they change
        forward_backward.zero_grad()
        if ema is not None:
            ema.update(number)
        yield TrainStep(number, total / count, norm, rate)


def _scale_gradients(parameters: list[nn.Parameter], count: Tensor, clip: float, world: int) -> Tensor:
    """Gradients of the sum become those of the mean over all labels of the step, then clipped; their norm before that.

    PyTorch has divided them by the number of processes; that is undone."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    scale = world / count
    norm = torch.nn.utils.get_total_norm(gradients) * scale
    if clip > 0:
        scale = scale * (clip / (norm + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(gradients, scale)
    return norm
