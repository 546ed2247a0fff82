"""Linear layer with packed weights for inference on CPUs.

Weights are stored a second time in the blocked layout of oneDNN kernels. Four rows times 8,000 outputs take a fifth of the
time. Many rows in bfloat16 take three quarters: the kernel adds the bias and applies the activation to the sums, while the
PyTorch kernel first copies the bias to every row. In inference mode only; otherwise `torch.nn.functional.linear`.
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

MAX_SMALL_ROWS = 8
"""Maximum number of rows on CUDA for small_linear.py: the time depends on reading the weights once."""
MAX_PACKED_ROWS = 256
"""With more rows, packed weights are not faster, except in bfloat16 with a bias."""
MIN_PACKED_NUMEL = 2**15
"""Smaller matrices are faster unpacked, unless there are many rows."""

PACKED_CAPABILITIES = {torch.float32: "packed_linear_float32", torch.bfloat16: "packed_linear_bfloat16"}
"""Capability for products with packed weights, by dtype."""

_packed_weights: Any = WeakIdKeyDictionary()
_check_round = [0]


class Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if torch.compiler.is_compiling():  # torch.compile cannot trace the checks below
        return F.linear(x, weight, bias)
    if x.device.type == "cpu" and _can_pack(x):
        rows = x.numel() // x.shape[-1]
        worth = (
            weight.numel() > MIN_PACKED_NUMEL or rows > 64 if rows <= MAX_PACKED_ROWS else _has_bfloat16_bias(x, bias)
        )
        if worth and rows and _is_packable(x, weight):
            return capabilities.packed_linear(x, _get_packed(weight, rows), bias)
    if (
        x.is_cuda
        and not torch.is_grad_enabled()
        and x.numel() <= MAX_SMALL_ROWS * x.shape[-1]
        and capabilities.is_available("triton")
    ):
        from regard.nn.kernels import small_linear

        row = x.reshape(-1, x.shape[-1])
        if len(row) and not torch.is_autocast_enabled("cuda") and small_linear.supports(row, weight):
            return small_linear.small_linear(row, weight, bias).view(*x.shape[:-1], -1)
    if x.is_cuda and x.ndim == 2 and bias is None and not torch.is_grad_enabled() and _is_misaligned(x, weight):
        return _aligned_matmul(x, weight)
    return F.linear(x, weight, bias)


FUSED_ACTIVATIONS = {"relu": "", "gelu": "none", "gelu_tanh": "tanh"}
"""Activations that oneDNN applies in the same kernel, with the name of the algorithm."""


def packed_linear_activation(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor | None:
    """Linear layer and activation in one kernel, for many rows in bfloat16; None if not supported."""
    if (
        torch.compiler.is_compiling()
        or x.device.type != "cpu"
        or activation not in FUSED_ACTIVATIONS
        or not _can_pack(x)
    ):
        return None
    if x.numel() <= MAX_PACKED_ROWS * x.shape[-1] or not (_has_bfloat16_bias(x, bias) and _is_packable(x, weight)):
        return None
    return capabilities.packed_linear(
        x, _get_packed(weight, MAX_PACKED_ROWS), bias, activation.partition("_")[0], FUSED_ACTIVATIONS[activation]
    )


def _can_pack(x: Tensor) -> bool:
    """Whether products with this input may use packed weights."""
    name = PACKED_CAPABILITIES.get(x.dtype)
    return name is not None and torch.is_inference_mode_enabled() and capabilities.is_available(name)


def _has_bfloat16_bias(x: Tensor, bias: Tensor | None) -> bool:
    return bias is not None and x.dtype == torch.bfloat16


def _is_misaligned(x: Tensor, weight: Tensor) -> bool:
    """Whether the number of outputs of a large matrix is not a multiple of 8, which tensor cores need for aligned rows."""
    return len(weight) % 8 != 0 and weight.numel() > 2**22 and x.dtype == weight.dtype and x.element_size() == 2


def _aligned_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """x weightᵀ into rows of aligned length: most columns in one product, the last columns in a second.

    With `F.linear`, a step of 64 rows of GPT-2 (50,257 tokens) spent 154 µs here, a sixth of its time."""
    count, most = len(weight), len(weight) // 8 * 8
    out = x.new_empty(len(x), most + 8)
    torch.mm(x, weight[:most].T, out=out[:, :most])
    torch.mm(x, weight[most:].T, out=out[:, most:count])
    return out[:, :count]


def _is_packable(x: Tensor, weight: Tensor) -> bool:
    return weight.dtype == x.dtype and not weight.is_inference() and not torch.is_autocast_enabled("cpu")


def recheck_packed() -> None:
    """Verify packed weights again at their next use. Called before a search, for changes without a new version."""
    if not torch.compiler.is_compiling():  # a changing number would be recompiled every time
        _check_round[0] += 1


def _get_packed(weight: Tensor, rows: int) -> Tensor:
    """Packed weights, packed again if the weights have changed.

    In-place operators increment the version; `weight.data`, numpy and fused optimizers do not. So a checksum is
    compared too, once per search; the checksum reads the weights once, as each decoding step does."""
    known = _packed_weights.get(weight)
    now = (weight._version, weight.data_ptr())
    if known is not None and known.version == now and known.check_round == _check_round[0]:
        return known.packed
    total = _checksum(weight)
    if known is None or known.version != now or known.checksum != total:
        known = _packed_weights[weight] = _PackedWeight(
            now, total, capabilities.pack_linear_weight(weight.detach(), rows), _check_round[0]
        )
    known.check_round = _check_round[0]
    return known.packed


def _checksum(weight: Tensor) -> float:
    """Sum weighted by row and column, so that swapped rows change the checksum; one pass without a copy."""
    weight = weight.detach()
    if weight.dtype != torch.float32:  # not written by numpy; other changes affect many rows, so a sample is enough
        weight = weight[::16].float()
    rows, columns = weight.shape
    return float(weight @ _ramp(columns) @ _ramp(rows))


@functools.cache
def _ramp(count: int) -> Tensor:
    with torch.inference_mode(False):
        return torch.linspace(0.5, 1.5, count)


@dataclass
class _PackedWeight:
    version: tuple[int, int]
    checksum: float
    packed: Tensor
    check_round: int
