"""Linear layer of up to eight rows on CUDA, fused with norm, activation and residual sum, in one kernel launch.

With few rows, tensor cores do not help: the weights must be read once at full bandwidth, and norm, activation and
residual sum should not need their own launches. A program processes a few rows of the weights over their whole width
and issues all loads before the first use. Sums are in float32 and rounded once. Imported only if Triton is available.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, assignment, var-annotated"
# ruff: noqa: RUF005 (Triton supports tuple addition, but no unpacking)

from __future__ import annotations

from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import cuda

from regard.nn.kernels.decode_attention import supports_pdl
from regard.nn.kernels.table import device_of

Activation = Literal["", "gelu", "gelu_tanh", "relu"]

MAX_ROWS = 8  # Maximum number of rows of x.
MAX_COLUMNS = 8192  # Maximum number of columns of x: each thread keeps a part of them in registers.
WARP_COLUMNS = 256
"""Columns per warp and load: 16 bytes per thread. Tiles of more warps are wider in proportion; with narrower tiles,
Triton chooses different layouts for x and the weights and converts the weights."""
MAX_TILES_PER_WARP = 4
"""Maximum number of tiles per row of the weights for one warp; wider rows get more warps, up to MAX_WARPS."""
MAX_WARPS = 8
TARGET_WARPS = 1024
"""Warps that fill a large GPU: with more warps, each program processes more rows of the weights, up to MAX_BLOCK_N."""
MAX_BLOCK_N = 4
MAX_OUTPUTS = 16  # Maximum number of outputs per program, limited by registers.
MAX_OVERLAP_ROWS = 8192
"""Maximum number of rows of the weights for loading before the previous kernel, which computes x, has ended (Hopper or
newer); with more rows, the waiting programs would occupy the GPU."""


@triton.jit
def _load(x, rows, row_step, columns, count, K: tl.constexpr):
    """x (count, K) at the given rows and columns, 0 outside; the caller broadcasts both index tensors."""
    return tl.load(x + rows * row_step + columns, mask=(rows < count) & (columns < K), other=0.0)


@triton.jit
def _moments(xs, ks, eps, K: tl.constexpr, padded: tl.constexpr, block_k: tl.constexpr):
    """Mean and inverse standard deviation of rows stored in tiles."""
    total = tl.zeros((padded, 1, block_k), tl.float32)
    for i in tl.static_range(0, len(xs)):
        total += xs[i].to(tl.float32)
    mean = tl.sum(total, 2, keep_dims=True) / K
    total = tl.zeros((padded, 1, block_k), tl.float32)
    for i in tl.static_range(0, len(xs)):
        apart = tl.where(i * block_k + ks < K, xs[i].to(tl.float32) - mean, 0.0)
        total += apart * apart
    return mean, tl.rsqrt(tl.sum(total, 2, keep_dims=True) / K + eps)


@triton.jit
def _activate(x, activation: tl.constexpr):
    if activation == "relu":
        x = tl.maximum(x, 0.0)
    elif activation == "gelu":
        x = x * 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
    elif activation == "gelu_tanh":  # (1 + tanh z) / 2 = sigmoid(2 z)
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    return x


@triton.jit
def _small_linear_kernel(
    x,
    weight,
    bias,
    residual,
    gain,
    offset,
    out,
    M,
    N,
    x_step,
    w_step,
    r_step,
    eps,
    K: tl.constexpr,
    padded: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    activation: tl.constexpr,
    early: tl.constexpr,
):
    ms, ns = tl.arange(0, padded), tl.program_id(0) * block_n + tl.arange(0, block_n)
    ks = tl.arange(0, block_k)[None, None, :]
    # first load everything that does not depend on the previous kernel
    ws, gains, offsets, xs = (), (), (), ()
    for start in tl.static_range(0, K, block_k):
        ws = ws + (_load(weight, ns.to(tl.int64)[None, :, None], w_step, start + ks, N, K),)
        if gain is not None:
            gains = gains + (tl.load(gain + start + ks, mask=start + ks < K, other=0.0),)
            offsets = offsets + (tl.load(offset + start + ks, mask=start + ks < K, other=0.0),)
    if bias is not None:
        added = tl.load(bias + ns, mask=ns < N, other=0.0).to(tl.float32)[None, :]
    if early:
        cuda.gdc_launch_dependents()
        cuda.gdc_wait()
    there = (ms < M)[:, None] & (ns < N)[None, :]
    if residual is not None:
        before = tl.load(residual + ms[:, None] * r_step + ns[None, :], mask=there, other=0.0).to(tl.float32)
    for start in tl.static_range(0, K, block_k):
        xs = xs + (_load(x, ms[:, None, None], x_step, start + ks, M, K),)
    if gain is not None:
        mean, inverse = _moments(xs, ks, eps, K, padded, block_k)
    sums = tl.zeros((padded, block_n, block_k // 8), tl.float32)
    for i in tl.static_range(0, len(ws)):
        row = xs[i].to(tl.float32)
        if gain is not None:
            row = (row - mean) * inverse * gains[i].to(tl.float32) + offsets[i].to(tl.float32)
        products = tl.reshape(row * ws[i].to(tl.float32), (padded, block_n, block_k // 8, 8))
        sums += tl.sum(products, 3)  # sum of the eight neighbors within a thread, without communication between threads
    total = tl.sum(sums, 2)
    if bias is not None:
        total += added
    total = _activate(total, activation)
    if residual is not None:
        total += before
    tl.store(out + ms[:, None] * N + ns[None, :], total.to(out.dtype.element_ty), mask=there)


def tile_config(M: int, N: int, K: int) -> tuple[int, int]:
    """Rows of the weights (N, K) per program, and number of warps."""
    rows, warps, most = 1, 1, min(MAX_BLOCK_N, MAX_OUTPUTS // M)
    while warps < MAX_WARPS and triton.cdiv(K, WARP_COLUMNS * warps) > MAX_TILES_PER_WARP:
        warps *= 2
    while rows < most and N * warps >= 2 * rows * TARGET_WARPS:
        rows *= 2
    return rows, warps


def launch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    residual: Tensor | None,
    gain: Tensor | None,
    offset: Tensor | None,
    eps: float,
) -> Tensor:
    (M, K), N = x.shape, weight.shape[0]
    rows, warps = tile_config(M, N, K)
    out = x.new_empty(M, N)
    steps = (x.stride(0), weight.stride(0), 0 if residual is None else residual.stride(0))
    sizes = {"K": K, "padded": triton.next_power_of_2(M), "block_n": rows, "block_k": WARP_COLUMNS * warps}
    early = N <= MAX_OVERLAP_ROWS and supports_pdl(x.device)
    how = {"early": early, "num_warps": warps, **({"launch_pdl": True} if early else {})}
    with device_of(x):
        _small_linear_kernel[(triton.cdiv(N, rows),)](
            x, weight, bias, residual, gain, offset, out, M, N, *steps, eps, **sizes, activation=activation, **how
        )
    return out


_op = torch.library.custom_op("regard::few_linear", launch, mutates_args=(), device_types="cuda")


@_op.register_fake
def _(x: Tensor, weight: Tensor, *_: object) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


def supports(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernel supports the device, dtype, sizes and strides."""
    kind = x.is_cuda and x.dtype == weight.dtype and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
    return kind and x.shape[0] <= MAX_ROWS and x.shape[1] <= MAX_COLUMNS and x.stride(-1) == weight.stride(-1) == 1


def small_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: Activation = "",
    residual: Tensor | None = None,
    norm: tuple[Tensor, Tensor, float] | None = None,
) -> Tensor:
    """activation(LN(x) weightᵀ + bias) + residual, x (M, K), weight (N, K); `norm`: weight, bias and eps of the LN."""
    gain, offset, eps = norm or (None, None, 0.0)
    return _op(x, weight, bias, activation, residual, gain, offset, eps)
