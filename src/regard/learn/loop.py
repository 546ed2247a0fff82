"""The loop: a generator of steps that knows no task. Progress, logs, evaluation and saving belong to its caller.

A step is a fixed number of grains. Before each grain the generators are seeded from (seed, step, grain), so batch,
dropout and masking are pure functions of it: going on after step n needs to know n and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.errors import RunError
from regard.learn.optimiser import Average, autocast, rate_at
from regard.learn.settings import Train
from regard.waists import Batch

Loss = Callable[[Batch], tuple[Tensor, Tensor]]
Grains = Callable[[int], Batch]


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

    def check(self, accumulate: int) -> None:
        grain = int(self.first)
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


def loop(
    model: nn.Module, loss: Loss, grains: Grains, optimiser: torch.optim.Optimizer, settings: Train,
    done: int = 0, average: Average | None = None, watchman: Watchman | None = None,
) -> Iterator[Step]:  # fmt: skip
    """Steps done + 1 … settings.steps. `grains(g)` is the g-th micro-batch since the beginning of the run."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    device = parameters[0].device
    for number in range(done + 1, settings.steps + 1):
        model.train()
        total = torch.zeros((), device=device)
        count = torch.zeros((), device=device)
        for part in range(settings.accumulate):
            grain = (number - 1) * settings.accumulate + part
            batch = grains(grain).to(device)
            torch.manual_seed(grain_seed(settings.seed, grain))
            with autocast(device, settings):
                grain_loss, grain_count = loss(batch)
            torch.autograd.backward(grain_loss)
            total += grain_loss.detach()
            count += grain_count
            if watchman is not None:
                watchman.note(grain_loss.detach(), grain)
        norm = _scale_gradients(parameters, count, settings.clip)
        if watchman is not None:
            watchman.note(norm, grain)
        rate = rate_at(number, settings)
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if average is not None:
            average.update(model, number)
        yield Step(number, total / count, norm, rate)


def _scale_gradients(parameters: list[nn.Parameter], count: Tensor, clip: float) -> Tensor:
    """Gradients of the sum become those of the mean over all labels of the step, then clipped; their norm before that."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients) / count
    scale = 1.0 / count
    if clip > 0:
        scale = scale * (clip / (norm + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(gradients, scale)
    return norm
