"""A linear layer that is fast on the CPU where nothing learns.

Weights are kept a second time in the layout that oneDNN's kernels want (blocks, not rows), at the price of a copy of them. A
step of four beams through 8,000 tokens takes a fifth of the time. Many rows in bfloat16 take three quarters: the kernel adds
the bias while it has the sums, where torch's copies it to every row first, and applies the activation likewise. Only in
inference mode; everything else is `torch.nn.functional.linear`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.weak import WeakIdKeyDictionary

from regard import capabilities

FEW = 8
"""Rows on CUDA up to which reading the weights once is all there is to do: nn/kernels/small_linear.py."""
ROWS = 256
"""More rows than this are as fast without, unless there is a bias to add in bfloat16."""
SMALL = 2**15
"""A matrix of this size or less is faster as it is, unless there are many rows."""

PACKED = {torch.float32: "packed_linear_float32", torch.bfloat16: "packed_linear_bfloat16"}
"""The capability that multiplies by packed weights of a dtype."""

_kept: Any = WeakIdKeyDictionary()
_round = [0]


class Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if torch.compiler.is_compiling():  # it cannot trace the questions below, and answers them itself
        return F.linear(x, weight, bias)
    if x.device.type == "cpu" and _packs(x):
        rows = x.numel() // x.shape[-1]
        worth = weight.numel() > SMALL or rows > 64 if rows <= ROWS else _biased(x, bias)
        if worth and rows and _plain(x, weight):
            return capabilities.packed_linear(x, _packed(weight, rows), bias)
    if (
        x.is_cuda
        and not torch.is_grad_enabled()
        and x.numel() <= FEW * x.shape[-1]
        and capabilities.available("triton")
    ):
        from regard.nn.kernels import small_linear

        row = x.reshape(-1, x.shape[-1])
        if len(row) and not torch.is_autocast_enabled("cuda") and small_linear.serves(row, weight):
            return small_linear.few_linear(row, weight, bias).view(*x.shape[:-1], -1)
    if x.is_cuda and x.ndim == 2 and bias is None and not torch.is_grad_enabled() and _uneven(x, weight):
        return _evenly(x, weight)
    return F.linear(x, weight, bias)


FUSED = {"relu": "", "gelu": "none", "gelu_tanh": "tanh"}
"""Activations that oneDNN applies in the same kernel, and which form of them it is."""


def activated(x: Tensor, weight: Tensor, bias: Tensor | None, kind: str) -> Tensor | None:
    """The layer with an activation behind it in one kernel, of many rows in bfloat16; None where there is none."""
    if torch.compiler.is_compiling() or x.device.type != "cpu" or kind not in FUSED or not _packs(x):
        return None
    if x.numel() <= ROWS * x.shape[-1] or not (_biased(x, bias) and _plain(x, weight)):
        return None
    return capabilities.packed_linear(x, _packed(weight, ROWS), bias, kind.partition("_")[0], FUSED[kind])


def _packs(x: Tensor) -> bool:
    """Whether products with this input may use packed weights."""
    name = PACKED.get(x.dtype)
    return name is not None and torch.is_inference_mode_enabled() and capabilities.available(name)


def _biased(x: Tensor, bias: Tensor | None) -> bool:
    return bias is not None and x.dtype == torch.bfloat16


def _uneven(x: Tensor, weight: Tensor) -> bool:
    """A large vocabulary that is no multiple of 8: the matrix units want results that lie evenly."""
    return len(weight) % 8 != 0 and weight.numel() > 2**22 and x.dtype == weight.dtype and x.element_size() == 2


def _evenly(x: Tensor, weight: Tensor) -> Tensor:
    """The same product, most of it at once into rows of an even length, the last few columns beside it.

    A step of 64 rows of GPT-2, whose vocabulary is 50,257, spent 154 µs here without, a sixth of its time."""
    count, most = len(weight), len(weight) // 8 * 8
    out = x.new_empty(len(x), most + 8)
    torch.mm(x, weight[:most].T, out=out[:, :most])
    torch.mm(x, weight[most:].T, out=out[:, most:count])
    return out[:, :count]


def _plain(x: Tensor, weight: Tensor) -> bool:
    return weight.dtype == x.dtype and not weight.is_inference() and not torch.is_autocast_enabled("cpu")


def recheck() -> None:
    """Before a search: weights that were changed behind the back of the version counter shall be noticed."""
    if not torch.compiler.is_compiling():  # a number that changes would be compiled anew each time
        _round[0] += 1


def _packed(weight: Tensor, rows: int) -> Tensor:
    """The weights in blocks, made anew when they have changed.

    In-place operators count versions; `weight.data`, numpy and fused optimisers do not. So what the weights sum up to is
    looked at too, once in a search: that reads them once more, as each of its steps does."""
    known = _kept.get(weight)
    now = (weight._version, weight.data_ptr())
    if known is not None and known.now == now and known.round == _round[0]:
        return known.blocks
    total = _sum(weight)
    if known is None or known.now != now or known.total != total:
        known = _kept[weight] = _Pack(now, total, capabilities.pack_linear_weight(weight.detach(), rows), _round[0])
    known.round = _round[0]
    return known.blocks


def _sum(weight: Tensor) -> float:
    """Of all, each weighed by its row and column, so that an exchange of rows changes it too: one pass, no copy."""
    weight = weight.detach()
    if weight.dtype != torch.float32:  # numpy cannot write such numbers, and what else changes them changes many
        weight = weight[::16].float()
    rows, columns = weight.shape
    return float(weight @ _ramp(columns) @ _ramp(rows))


@functools.cache
def _ramp(count: int) -> Tensor:
    with torch.inference_mode(False):
        return torch.linspace(0.5, 1.5, count)


@dataclass
class _Pack:
    now: tuple[int, int]
    total: float
    blocks: Tensor
    round: int
