"""Linear layers: `linear` and `linear_activation`, each with a dispatch table of faster kernels.

Packed weights (CPU, inference mode): weights are stored a second time in the blocked layout of oneDNN kernels. Four rows
times 8,000 outputs take a fifth of the time. Many rows in bfloat16 take three quarters: the kernel adds the bias and
applies the activation to the sums, while the PyTorch kernel first copies the bias to every row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.weak import WeakIdKeyDictionary

from regard import capabilities
from regard.nn.kernels.table import Kernel

MAX_SMALL_ROWS = 8  # Maximum number of rows on CUDA for small_linear.py: the time depends on reading the weights once.
MAX_PACKED_ROWS = 256  # With more rows, packed weights are not faster, except in bfloat16 with a bias.
MIN_PACKED_NUMEL = 2**15  # Smaller matrices are faster unpacked, unless there are many rows.
MIN_GELU_ROWS = 64  # Minimum number of rows for the kernel of cuBLAS with GELU.

PACKED_CAPABILITIES = {torch.float32: "packed_linear_float32", torch.bfloat16: "packed_linear_bfloat16"}
"""Capability for products with packed weights, by dtype."""

PACKED_ACTIVATIONS = {"": "", "relu": "", "gelu": "none", "gelu_tanh": "tanh"}
"""Activations that oneDNN applies in the same kernel, with the name of the algorithm."""

_packed_weights: Any = WeakIdKeyDictionary()
_check_round = [0]


class Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)

    def init_xavier(self, parts: int = 1) -> None:
        """Initialize each of the `parts` joined matrices separately, and the bias by 0."""
        for matrix in self.weight.chunk(parts):
            nn.init.xavier_uniform_(matrix)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x weightᵀ + bias."""
    if not torch.compiler.is_compiling():  # torch.compile cannot trace the checks of the table
        for kernel in LINEAR_KERNELS.get(x.device.type, ()):
            if kernel.accepts(x, weight, bias):
                return kernel.run(x, weight, bias)
    return F.linear(x, weight, bias)


def linear_activation(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor | None:
    """Linear layer and activation in one kernel; None if no kernel supports the call."""
    for kernel in ACTIVATION_KERNELS.get(x.device.type, ()):
        if kernel.accepts(x, weight, bias, activation):
            return kernel.run(x, weight, bias, activation)
    return None


# -- CPU: packed weights


def _accepts_packed(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str = "") -> bool:
    """Whether the product may use packed weights, and is faster with them."""
    if activation and (x.dtype != torch.bfloat16 or activation not in PACKED_ACTIVATIONS or bias is None):
        return False
    name = PACKED_CAPABILITIES.get(x.dtype)
    if name is None or torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():
        return False
    if weight.dtype != x.dtype or weight.is_inference() or torch.is_autocast_enabled("cpu"):
        return False
    rows = x.numel() // x.shape[-1]
    if rows > MAX_PACKED_ROWS:
        return bias is not None and x.dtype == torch.bfloat16 and capabilities.is_available(name)
    some = rows > 0 and not activation and (weight.numel() > MIN_PACKED_NUMEL or rows > 64)
    return some and capabilities.is_available(name)


def _packed_linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str = "") -> Tensor:
    """Product with packed weights, which are packed again if the weights have changed.

    In-place operators increment the version; `weight.data`, numpy and fused optimizers do not. So a checksum is
    compared too, once per search; the checksum reads the weights once, as each decoding step does."""
    entry, version = _packed_weights.get(weight), (weight._version, weight.data_ptr())
    if entry is None or entry.version != version or entry.check_round != _check_round[0]:
        own = weight.detach()
        # not written by numpy if not float32; other changes affect many rows, so a sample is enough
        sample = own if own.dtype == torch.float32 else own[::16].float()
        # weighted by row and column, so that swapped rows change the checksum; one pass without a copy
        by_row, by_column = (torch.linspace(0.5, 1.5, size) for size in sample.shape)
        checksum = float(sample @ by_column @ by_row)
        if entry is None or entry.version != version or entry.checksum != checksum:
            rows = MAX_PACKED_ROWS if activation else x.numel() // x.shape[-1]
            entry = _PackedWeight(version, checksum, capabilities.pack_linear_weight(own, rows), _check_round[0])
            _packed_weights[weight] = entry
        entry.check_round = _check_round[0]
    kind = activation.partition("_")[0] or "none"
    return capabilities.packed_linear(x, entry.packed, bias, kind, PACKED_ACTIVATIONS[activation])


def recheck_packed() -> None:
    """Verify packed weights again at their next use. Called before a search, for changes without a new version."""
    if not torch.compiler.is_compiling():  # a changing number would be recompiled every time
        _check_round[0] += 1


@dataclass
class _PackedWeight:
    version: tuple[int, int]
    checksum: float
    packed: Tensor
    check_round: int


# -- CUDA


def _accepts_small(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    if torch.is_grad_enabled() or not 0 < x.numel() <= MAX_SMALL_ROWS * x.shape[-1]:
        return False
    if not capabilities.is_available("triton") or torch.is_autocast_enabled("cuda"):
        return False
    from regard.nn.kernels import small_linear

    return small_linear.supports(x.reshape(-1, x.shape[-1]), weight)


def _small_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    from regard.nn.kernels import small_linear

    return small_linear.small_linear(x.reshape(-1, x.shape[-1]), weight, bias).view(*x.shape[:-1], -1)


def _accepts_aligned(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether the number of outputs of a large matrix is not a multiple of 8, which tensor cores need for aligned rows."""
    if x.ndim != 2 or bias is not None or torch.is_grad_enabled():
        return False
    return len(weight) % 8 != 0 and weight.numel() > 2**22 and x.dtype == weight.dtype and x.element_size() == 2


def _aligned_matmul(x: Tensor, weight: Tensor, _: None) -> Tensor:
    """x weightᵀ into rows of aligned length: most columns in one product, the last columns in a second."""
    count, most = len(weight), len(weight) // 8 * 8
    out = x.new_empty(len(x), most + 8)
    torch.mm(x, weight[:most].T, out=out[:, :most])
    torch.mm(x, weight[most:].T, out=out[:, most:count])
    return out[:, :count]


@torch.library.custom_op("regard::raised", mutates_args=())
def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Linear layer and GELU in one cuBLAS kernel, which applies the tanh form of GELU to float32 sums, also if the exact
    GELU is requested. The two differ by at most 5e-4, less than the error of rounding the sums to 16 bits before an exact
    GELU, so the result is closer to float64 than with two kernels (tests/cuda/test_cuda.py).

    A custom operator, because torch.compile would split the product and the GELU again."""
    rows = x.reshape(-1, x.shape[-1])
    return capabilities.linear_gelu(rows, weight, bias).view(*x.shape[:-1], len(weight))


@linear_gelu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(weight))


def accepts_gelu(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> bool:
    if not (x.is_cuda and activation in ("gelu", "gelu_tanh")) or bias is None or torch.is_grad_enabled():
        return False
    if x.dtype not in (torch.bfloat16, torch.float16) or weight.dtype != x.dtype or len(weight) % 8:
        return False
    if x.numel() < MIN_GELU_ROWS * x.shape[-1] or torch.is_autocast_enabled("cuda"):
        return False
    return capabilities.is_available("linear_gelu")


LINEAR_KERNELS = {
    "cpu": (
        Kernel("packed_linear", _accepts_packed, _packed_linear, formula="F.linear(x, weight, bias)",
               gain="a fifth of the time for 4 rows times 8,000 outputs"),
    ),
    "cuda": (
        Kernel("small_linear", _accepts_small, _small_linear, formula="F.linear(x, weight, bias)",
               gain="82.7 % of GPT-2 generation at batch 1"),
        Kernel("aligned_matmul", _accepts_aligned, _aligned_matmul, formula="F.linear(x, weight)",
               gain="F.linear takes a sixth of a GPT-2 generation step of 64 rows, 154 µs"),
    ),
}  # fmt: skip
"""Kernels of `linear` by device type; the plain formula computes all other calls."""

ACTIVATION_KERNELS = {
    "cpu": (
        Kernel("packed_linear_activation", _accepts_packed, _packed_linear, formula="activation(F.linear(x, weight, bias))",
               gain="three quarters of the time for many rows in bfloat16"),
    ),
    "cuda": (
        Kernel("linear_gelu", accepts_gelu, lambda x, weight, bias, activation: linear_gelu(x, weight, bias),
               formula="F.gelu(F.linear(x, weight, bias), approximate='tanh')",
               gain="10.7 % of ViT-B/16 and 6.1 % of DPT-Large inference"),
    ),
}  # fmt: skip
"""Kernels of `linear_activation` by device type."""
