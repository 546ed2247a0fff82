"""Optional operators, precisions and system calls of this machine, each tested once before its first use.

Every private operator of PyTorch is called through a function of this module. `is_available(name)` runs the trial of a
capability and caches the result; if the trial fails, callers use the plain formula."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import platform
import signal
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

F = TypeVar("F", bound=Callable[..., Any])


def disable_compile(function: F) -> F:
    """The function, run outside of compiled graphs with a graph break.

    `torch.compiler.disable` as a decorator would import Dynamo in programs without compilation."""

    def call(*args: Any) -> Any:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(function)(*args)  # type: ignore[no-untyped-call]
        return function(*args)

    return call  # type: ignore[return-value]


# -- private operators of PyTorch


def pack_linear_weight(weight: Tensor, rows: int) -> Tensor:
    """Weight matrix in the blocked layout of oneDNN, for inputs of about this many rows."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, rows)


def packed_linear(
    x: Tensor, packed: Tensor, bias: Tensor | None, activation: str = "none", algorithm: str = ""
) -> Tensor:
    """`linear(x, weight, bias)` with a packed weight, and an activation in the same kernel."""
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, activation, [], algorithm)


def cpu_supports_matmul(dtype: str) -> bool:
    """True if this CPU has instructions for bfloat16 or float16 matrix products, and oneDNN has kernels for them.

    oneDNN alone also accepts x86 CPUs without such instructions and casts to float32, which is slower than float32."""
    if dtype == "float16":
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    instructions = not x86 or torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return bool(instructions and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def varlen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: tuple[Tensor, Tensor],
    max_lengths: tuple[int, int],
    window: tuple[int, int],
    scale: float,
) -> Any:
    """Attention of packed documents, (T, H, d), without dropout."""
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn(q, k, v, *starts, *max_lengths, window_size=window, scale=scale)


def flash_forward(*args: Any, **kwargs: Any) -> Any:
    """Flash attention of packed documents with dropout: output, log-sum-exp, random state, …"""
    return torch.ops.aten._flash_attention_forward(*args, **kwargs)


def flash_backward(*args: Any, **kwargs: Any) -> Any:
    """Gradients of q, k and v from the output and log-sum-exp of `flash_forward`."""
    return torch.ops.aten._flash_attention_backward(*args, **kwargs)


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """GELU (tanh form) of a linear layer of (rows, D) in one cuBLAS kernel."""
    return torch._addmm_activation(bias, x, weight.T, use_gelu=True)


# -- system calls


def fork_context() -> Any:
    """Multiprocessing context for forked workers, which share memory and data with their parent."""
    if not sys.platform.startswith("linux"):  # macOS has fork, but its system libraries are not fork-safe
        raise OSError(f"worker processes are not forked on {sys.platform}")
    return multiprocessing.get_context("fork")


def end_with_parent() -> None:
    """End this process when its parent ends."""
    pr_set_pdeathsig = 1
    if ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl failed")


def retain_freed_memory() -> None:
    """Set glibc to keep large blocks of freed memory for the next training step, which needs the same sizes.

    By default, glibc returns such blocks to the system, and the system clears every page of a new block: 7 % of a step
    on a CPU."""
    m_mmap_threshold, m_trim_threshold = -3, -1
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(m_mmap_threshold, 2**30)
    mallopt(m_trim_threshold, 2**31 - 1)


def read_meminfo() -> dict[str, int]:
    """Values of /proc/meminfo, in bytes."""
    with open("/proc/meminfo", encoding="ascii") as file:
        return {line.split(":")[0]: 1024 * int(line.split()[1]) for line in file}


# -- trials: each returns False or raises an error if its capability does not work


def _try_packed_linear(dtype: str) -> bool:
    kind = getattr(torch, dtype)
    with torch.inference_mode():
        weight, x = torch.eye(16, dtype=kind), torch.ones(2, 16, dtype=kind)
        out = packed_linear(x, pack_linear_weight(weight, 2), torch.zeros(16, dtype=kind), "relu", "")
    return torch.equal(out, x)


def _try_autocast_lstm() -> bool:
    # a trial may run during training and must not change the random state of the run
    with torch.random.fork_rng(devices=[]), torch.autocast("cpu", torch.bfloat16):
        out, _ = torch.nn.LSTM(8, 8, batch_first=True)(torch.zeros(1, 2, 8))
    return out.shape == (1, 2, 8)


def _try_varlen() -> bool:
    rows, starts = _packed_example()
    out = varlen_attention(rows, rows, rows, (starts, starts), (16, 16), (-1, -1), 1.0)
    return bool((out == 1).all())


def _try_flash() -> bool:
    rows, starts = _packed_example()
    sizes = (starts, starts, 16, 16, 0.0, False)
    out, log_sum_exp, *_ = flash_forward(rows, rows, rows, *sizes, False, scale=1.0)
    random_state, unused = torch.zeros(2, dtype=torch.uint64, device="cuda"), torch.empty(0, device="cuda")
    flash_backward(rows, rows, rows, rows, out, log_sum_exp, *sizes, random_state, unused, scale=1.0)
    return bool((out == 1).all())


def _packed_example() -> tuple[Tensor, Tensor]:
    rows = torch.ones(16, 2, 64, dtype=torch.bfloat16, device="cuda")
    return rows, torch.tensor([0, 16], dtype=torch.int32, device="cuda")


def _try_linear_gelu() -> bool:
    x = torch.zeros(64, 64, dtype=torch.bfloat16, device="cuda")
    return not bool(linear_gelu(x, x, x[0]).any())


def _try_triton() -> bool:
    from regard.triton_trial import copy

    target = torch.zeros(1, device="cuda")
    copy(torch.ones(1, device="cuda"), target)
    return bool(target == 1)


def _try_cuda_graphs() -> bool:
    total, graph = torch.zeros(1, device="cuda"), torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        total.add_(1)
        total.zero_()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        total.add_(1)
    graph.replay()
    return bool(total == 1)


def _try_cudnn_attention() -> bool:
    x = torch.ones(1, 1, 128, 64, dtype=torch.bfloat16, device="cuda")
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
        return bool((torch.nn.functional.scaled_dot_product_attention(x, x, x) == 1).all())


CUDA_TRIALS: dict[str, Callable[[], bool]] = {
    "triton": _try_triton,
    "cuda_graphs": _try_cuda_graphs,
    "cudnn_attention": _try_cudnn_attention,
    "varlen_attention": _try_varlen,
    "flash_attention": _try_flash,
    "linear_gelu": _try_linear_gelu,
}
"""Trials of a CUDA device."""

TRIALS: dict[str, Callable[[], bool]] = {
    "packed_linear_float32": lambda: _try_packed_linear("float32"),
    "packed_linear_bfloat16": lambda: _try_packed_linear("bfloat16"),
    "cpu_bfloat16": lambda: cpu_supports_matmul("bfloat16"),
    "cpu_float16": lambda: cpu_supports_matmul("float16"),
    "autocast_lstm": _try_autocast_lstm,
    "fork": lambda: fork_context() is not None,
    "end_with_parent": lambda: hasattr(ctypes.CDLL(None), "prctl"),
    "malloc_thresholds": lambda: hasattr(ctypes.CDLL(None), "mallopt"),
    "memory_table": lambda: read_meminfo()["MemAvailable"] > 0,
    **CUDA_TRIALS,
}
"""Trial of each capability, run without gradients."""

_results: dict[str, bool] = {}


def is_available(name: str) -> bool:
    """True if a capability works on this machine; the trial runs at the first call."""
    if name not in _results:
        trial = TRIALS[name]
        try:
            with torch.no_grad():
                _results[name] = (name not in CUDA_TRIALS or torch.cuda.is_available()) and trial()
        except Exception:  # operators raise many classes: RuntimeError, ImportError, OSError, …
            _results[name] = False
    return _results[name]


# A constant for torch.compile, which calls the function during tracing: `torch.compiler.assume_constant_result` without the
# import of Dynamo (one second of startup).
is_available._dynamo_marked_constant = True  # type: ignore[attr-defined]


def is_fast_on(dtype: torch.dtype, device: torch.device) -> bool:
    """True if this device multiplies matrices of a half-precision dtype at least about as fast as float32."""
    if device.type != "cpu":
        return True
    name = f"cpu_{str(dtype).removeprefix('torch.')}"
    return name not in TRIALS or is_available(name)


def free_memory() -> int | None:
    """Bytes of free memory on this machine, or None if the system does not report them."""
    if is_available("memory_table"):
        return read_meminfo()["MemAvailable"]
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # macOS and Windows do not report free pages here
        return None
