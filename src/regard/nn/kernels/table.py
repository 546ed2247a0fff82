"""Dispatch tables: for each operation the kernels in the order of preference, of which the first that accepts a call runs.

A row of a table names the kernel, the calls that it accepts, the plain formula that it equals, and its measured gain.
`accepts` must be traceable by `torch.compile`: tests of types, shapes, dtypes and devices, never of values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Kernel:
    """One implementation of an operation. `accepts` and `run` receive the same arguments."""

    name: str
    accepts: Callable[..., bool]
    run: Callable[..., Any]
    formula: str
    """Plain function of the same result, with which tests compare the kernel."""
    gain: str
    """Measured gain over the formula or over the next kernel of the table, and where it was measured."""


def choose(kernels: Sequence[Kernel], *args: Any) -> Kernel:
    """First kernel that accepts the arguments. The last kernel of a table accepts everything."""
    for kernel in kernels:
        if kernel.accepts(*args):
            return kernel
    raise ValueError("No kernel of the table accepts the call.")
