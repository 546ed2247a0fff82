"""Dispatch tables: for each operation the kernels in the order of preference, of which the first that accepts a call runs.

A row of a table names the kernel, the calls that it accepts, the plain formula that it equals, and its measured gain.
`accepts` must be traceable by `torch.compile`: tests of types, shapes, dtypes and devices, never of values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as global_hooks


@dataclass(frozen=True)
class Kernel:
    """One implementation of an operation. `accepts` and `run` receive the same arguments."""

    name: str
    accepts: Callable[..., bool]
    run: Callable[..., Any]
    formula: str  # Plain function of the same result, with which tests compare the kernel.
    gain: str  # Measured gain over the formula or over the next kernel of the table, and where it was measured.


def choose(kernels: Sequence[Kernel], *args: Any) -> Kernel:
    """First kernel that accepts the arguments. The last kernel of a table accepts everything."""
    for kernel in kernels:
        if kernel.accepts(*args):
            return kernel
    raise ValueError("No kernel of the table accepts the call.")


def device_of(x: Tensor) -> AbstractContextManager[Any]:
    """Context that selects the device of x: Triton uses the current device."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def has_hooks(module: nn.Module) -> bool:
    """Whether the module, a submodule, or all modules (global hooks) have forward hooks."""
    if global_hooks._global_forward_pre_hooks or global_hooks._global_forward_hooks:
        return True
    return any(part._forward_pre_hooks or part._forward_hooks for part in module.modules())


def is_plain(module: nn.Module, types: tuple[type[nn.Module], ...]) -> bool:
    """Whether each submodule has exactly one of the types and the `forward` of its type: no adapter, no
    parametrization, no replaced `forward`, and no hooks."""
    known = all(type(part) in types and "forward" not in vars(part) for part in module.modules())
    return known and not has_hooks(module)
