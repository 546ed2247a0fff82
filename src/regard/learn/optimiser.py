"""The optimiser, its schedule, the average of the weights, and the precision to compute in."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from regard.learn.settings import Train


def rate_at(step: int, settings: Train) -> float:
    """The learning rate of step 1, 2, …; equation 3 of Vaswani et al. with its peak as `train.rate`."""
    warm = max(settings.warmup, 1)
    rising = min(step / warm, 1.0)
    if settings.schedule == "inverse_sqrt":
        return settings.rate * min(step / warm, (warm / step) ** 0.5)
    left = 1.0 - min(max(step - warm, 0) / max(settings.steps - warm, 1), 1.0)
    falling = {"linear": left, "cosine": 0.5 - 0.5 * math.cos(math.pi * left), "constant": 1.0}[settings.schedule]
    return settings.rate * rising * falling


def make_optimiser(model: nn.Module, settings: Train) -> torch.optim.AdamW:
    """Adam with decoupled decay, of matrices only: gains, biases and vectors are left alone."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for _, p in named if p.ndim >= 2], "weight_decay": settings.decay},
        {"params": [p for _, p in named if p.ndim < 2], "weight_decay": 0.0},
    ]
    beta1, beta2 = settings.betas
    return torch.optim.AdamW(groups, lr=settings.rate, betas=(beta1, beta2), eps=settings.eps, fused=True)


def optimiser_tensors(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state by parameter name, so that it can be saved as plain tensors and put back anywhere."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        for key, value in optimiser.state.get(parameter, {}).items():
            tensors[f"{name}/{key}"] = value
    return tensors


def restore_optimiser(model: nn.Module, optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        found = {key.rpartition("/")[2]: value for key, value in tensors.items() if key.rpartition("/")[0] == name}
        if found:
            optimiser.state[parameter] = {key: value.to(parameter.device).clone() for key, value in found.items()}


class Average:
    """An exponential average of the weights. Early on it follows faster, so that the random start is forgotten."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.tensors = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, model: nn.Module, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        named = dict(model.named_parameters())
        mine, theirs = list(self.tensors.values()), [named[name].detach() for name in self.tensors]
        torch._foreach_lerp_(mine, theirs, 1 - decay)

    def swap(self, model: nn.Module) -> None:
        """Exchange the model's weights and the average; a second call exchanges them back."""
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                kept = parameter.detach().clone()
                parameter.copy_(self.tensors[name])
                self.tensors[name].copy_(kept)


def fast_bfloat16(device: torch.device) -> bool:
    """Whether this device multiplies bfloat16 matrices faster than float32 ones."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        checks: list[Any] = [
            getattr(torch.cpu, name, None) for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
        ]
        return any(check is not None and check() for check in checks)
    return False


def autocast(device: torch.device, settings: Train) -> AbstractContextManager[Any]:
    wanted = settings.precision == "bfloat16" or (settings.precision == "auto" and fast_bfloat16(device))
    return torch.autocast(device.type, torch.bfloat16) if wanted else nullcontext()
