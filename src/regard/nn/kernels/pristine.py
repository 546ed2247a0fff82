"""Whether modules are what they were built as: ways around their `forward` are taken only then."""

from __future__ import annotations

from torch import nn
from torch.nn.modules import module as everywhere


def has_hooks(module: nn.Module) -> bool:
    """Someone listens to it, to a part of it or to all modules there are."""
    if everywhere._global_forward_pre_hooks or everywhere._global_forward_hooks:
        return True
    return any(part._forward_pre_hooks or part._forward_hooks for part in module.modules())


def is_built_of(module: nn.Module, types: tuple[type[nn.Module], ...]) -> bool:
    """Each part is exactly of one of these kinds, with the `forward` of its kind: not an adapter around it, not a
    parametrised one, not one whose `forward` was exchanged."""
    return all(type(part) in types and "forward" not in vars(part) for part in module.modules())
