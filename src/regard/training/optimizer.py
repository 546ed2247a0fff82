"""Optimizer, learning-rate schedule, weight averaging and precision."""

from __future__ import annotations

import difflib
import fnmatch
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from regard import capabilities
from regard.errors import SettingError
from regard.training.settings import TrainSettings


def lr_at(step: int, settings: TrainSettings) -> float:
    """Learning rate at step 1, 2, …; inverse_sqrt is equation 3 of Vaswani et al. with the maximum `train.lr`."""
    warm = max(settings.num_warmup_steps, 1)
    if settings.lr_schedule == "inverse_sqrt":
        return settings.lr * min(step / warm, (warm / step) ** 0.5)
    left = 1.0 - min(max(step - warm, 0) / max(settings.steps - warm, 1), 1.0)
    decay = {"linear": left, "cosine": 0.5 - 0.5 * math.cos(math.pi * left), "constant": 1.0}[settings.lr_schedule]
    return settings.lr * min(step / warm, 1.0) * decay


def freeze(model: nn.Module, patterns: Sequence[str]) -> int:
    """Freeze parameters with matching names; returns the number of frozen weights."""
    named = dict(model.named_parameters())
    for pattern in patterns:
        for name in _match_parameters(named, pattern, "train.freeze"):
            named[name].requires_grad_(False)
    if not any(parameter.requires_grad for parameter in named.values()):
        raise SettingError(f"train.freeze={','.join(patterns)} freezes all parameters.")
    return sum(parameter.numel() for parameter in named.values() if not parameter.requires_grad)


def _match_parameters(named: Iterable[str], pattern: str, setting: str) -> list[str]:
    """Names of parameters that match the pattern, compared without the prefix "body.", as in `regard info`."""
    names = [name.removeprefix("body.") for name in named]
    matches = fnmatch.filter(names, pattern)
    if not matches:
        near = difflib.get_close_matches(pattern, [*names, *(f"{name.partition('.')[0]}.*" for name in names)], 1, 0.6)
        groups = ", ".join(dict.fromkeys(name.partition(".")[0] for name in names))
        raise SettingError(
            f"{setting}: no parameter name matches '{pattern}'. "
            + (f"Did you mean '{near[0]}'? " if near else "")
            + f"Parameter names start with {groups}; 'regard info PRESET --all' lists all layers."
        )
    return [name for name in named if name.removeprefix("body.") in matches]


def make_optimizer(model: nn.Module, settings: TrainSettings) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only: gains, biases, vectors and parameters listed in `no_weight_decay` of a
    module (position embeddings, class tokens) have none.

    The learning rate of a parameter is given by the first matching pattern of `train.lr_overrides`, otherwise
    `train.lr` times the factor in `lr_scales` of its module."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    rates: dict[str, float] = {}
    for pattern, rate in settings.lr_overrides.items():
        for name in _match_parameters(named, pattern, "train.lr_overrides"):
            rates.setdefault(name, rate)
    without_decay: set[str] = set()
    scales: dict[str, float] = {}
    for place, module in model.named_modules():
        prefix = f"{place}." if place else ""
        without_decay |= {prefix + name for name in getattr(module, "no_weight_decay", ())}
        scales |= {prefix + name: scale for name, scale in getattr(module, "lr_scales", {}).items()}
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for name, parameter in named.items():
        decays = parameter.ndim >= 2 and name not in without_decay
        rate = rates.get(name, settings.lr * scales.get(name, 1.0))
        groups.setdefault((decays, rate), []).append(parameter)
    beta1, beta2 = settings.betas
    options = [
        {"params": parameters, "weight_decay": settings.weight_decay if decays else 0.0, "share": rate / settings.lr}
        for (decays, rate), parameters in groups.items()
    ]
    return torch.optim.AdamW(options, lr=settings.lr, betas=(beta1, beta2), eps=settings.eps, fused=True)


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Load the optimizer state from tensors named `parameter/key`, as in a checkpoint."""
    states: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, _, part = key.rpartition("/")
        states.setdefault(name, {})[part] = value
    for name, parameter in model.named_parameters():
        if name in states:
            optimizer.state[parameter] = {k: v.to(parameter.device).clone() for k, v in states[name].items()}


class WeightEMA:
    """Exponential moving average of the weights, with a lower decay in early steps, for less weight of the
    initialization."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.source = _float_state(model)
        self.tensors = {name: p.clone() for name, p in self.source.items()}

    def update(self, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.tensors.values()), list(self.source.values()), 1 - decay)

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in self.tensors.items():
            tensor.copy_(tensors[name])


@contextmanager
def swap_weights(model: nn.Module, tensors: Mapping[str, Tensor] | None) -> Iterator[None]:
    """Replace the weights of the model in place during the block. None: no change."""
    if tensors is None:
        yield
        return
    named = {name: tensor for name, tensor in _float_state(model).items() if name in tensors}
    kept = {name: p.clone() for name, p in named.items()}
    for name, parameter in named.items():
        # cast on the source device: not every device supports float64
        parameter.copy_(tensors[name].to(parameter.dtype))
    try:
        yield
    finally:
        for name, parameter in named.items():
            parameter.copy_(kept[name])


def _float_state(model: nn.Module) -> dict[str, Tensor]:
    """Weights and floating-point buffers (batch-norm statistics)."""
    saved = model.state_dict()
    buffers = {name: part for name, part in model.named_buffers() if name in saved and part.is_floating_point()}
    return {**{name: p.detach() for name, p in model.named_parameters()}, **buffers}


def uses_autocast(device: torch.device, settings: TrainSettings) -> bool:
    """True for `train.precision=bfloat16`, and for `auto` if the device multiplies bfloat16 faster than float32."""
    if settings.precision != "auto":
        return settings.precision == "bfloat16"
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and capabilities.is_available("cpu_bfloat16")
