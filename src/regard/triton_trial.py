"""A minimal Triton kernel, to test Triton, its C compiler and the driver. See capabilities.py."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _copy(source, target):
    tl.store(target, tl.load(source))


def copy(source: Tensor, target: Tensor) -> None:
    """Copy the first number of one tensor to another."""
    _copy[(1,)](source, target)
