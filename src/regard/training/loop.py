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
from regard.training.distributed import World
from regard.training.execution import Compute
from regard.training.optimizer import Average, rate_at, set_rate
from regard.training.settings import Train
from regard.types import Batch


@dataclass(frozen=True)
class Step:
    """One update. `loss` is the mean over its labels, `norm` the gradient's before clipping; both stay on the device."""

    number: int
    loss: Tensor
    norm: Tensor
    rate: float


class Watchman:
    """Remembers the first grain whose loss was not finite, on the device, so that looking costs nothing until asked."""

    def __init__(self, device: torch.device) -> None:
        self.first = torch.full((), -1, dtype=torch.long, device=device)

    def note(self, loss: Tensor, grain: int) -> None:
        fresh = (self.first < 0) & ~torch.isfinite(loss)
        self.first = torch.where(fresh, torch.full_like(self.first, grain), self.first)

    def check(self, accumulate: int, world: World) -> None:
        grain = world.earliest(int(self.first))  # in a sum with the others' it has spread to their grains by now
        if grain >= 0:
            step, part = divmod(grain, accumulate)
            raise RunError(
                f"the loss or its gradient is not a finite number at step {step + 1}, grain {part + 1} of {accumulate}. "
                "Training stops; no checkpoint was written after that. A lower train.rate, a longer train.warmup or "
                "train.clip=1 usually helps."
            )


def grain_seed(seed: int, grain: int) -> int:
    digest = hashlib.blake2b(f"{seed}:{grain}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % 2**63


def numbers(done: int, settings: Train, world: World) -> Iterator[int]:
    """The grains of this process, in order, from step done + 1 on."""
    for step in range(done, settings.steps):
        for part in world.parts(settings.accumulate):
            yield step * settings.accumulate + part


def loop(
    model: nn.Module, compute: Compute, grains: Iterator[Batch], optimiser: torch.optim.Optimizer, settings: Train,
    done: int = 0, average: Average | None = None, watchman: Watchman | None = None,
) -> Iterator[Step]:  # fmt: skip
    """Steps done + 1 … settings.steps. `grains` yields the batches of `numbers(done, …)` in their order."""
    parameters, world = compute.parameters, compute.world
    parts = world.parts(settings.accumulate)
    for number in range(done + 1, settings.steps + 1):
        if not model.training:
            model.train()
        sums: Tensor | None = None
        for part in parts:
            grain = (number - 1) * settings.accumulate + part
            batch = next(grains)
            torch.manual_seed(grain_seed(settings.seed, grain))
            loss, count = compute(batch, last=part == parts[-1])
            both = torch.stack([loss, count.to(loss.dtype)])
            sums = both if sums is None else sums + both
            if watchman is not None:
                watchman.note(loss, grain)
        assert sums is not None
        total, count = world.total(sums).unbind()
        count = torch.where(count > 0, count, 1.0)  # of pictures of which nothing is known nothing is learnt
        norm = _scale_gradients(parameters, count, settings.clip, world.size)
        if watchman is not None:
            watchman.note(norm, grain)
        rate = rate_at(number, settings)
        set_rate(optimiser, rate)
        optimiser.step()
        torch.autograd.graph.increment_version(parameters)  # fused optimisers do not count what they change
        compute.clear()
        if average is not None:
            average.update(number)
        yield Step(number, total / count, norm, rate)


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
