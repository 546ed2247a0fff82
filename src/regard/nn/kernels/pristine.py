"""Checks that modules are unmodified, before a fused kernel replaces their `forward`."""

from __future__ import annotations

from torch import nn
from torch.nn.modules import module as everywhere


def has_hooks(module: nn.Module) -> bool:
    """Whether the module, a submodule, or all modules (global hooks) have forward hooks."""
    if everywhere._global_forward_pre_hooks or everywhere._global_forward_hooks:
        return True
    return any(part._forward_pre_hooks or part._forward_hooks for part in module.modules())


def is_built_of(module: nn.Module, types: tuple[type[nn.Module], ...]) -> bool:
    """Whether each submodule has exactly one of the types and the `forward` of its type: no adapter, no
    parametrization, no replaced `forward`."""
    return all(type(part) in types and "forward" not in vars(part) for part in module.modules())
