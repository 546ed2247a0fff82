"""Attention kernels: one table for attention, one for the attention of a decoding step; the first match runs.

The kernel is selected by mask, device, dtype and shape, never by trial execution. `eager_attention` is the plain
formula; tests compare the other kernels with it. Gains are measured end to end (docs/design/kernels.md).
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard import capabilities
from regard.nn.attention import masks
from regard.nn.kernels.table import Kernel, choose

if TYPE_CHECKING:
    from regard.nn.attention.kv_cache import StaticCache
    from regard.nn.attention.positions import BoundPosition

SDPA_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Without cuDNN, which builds a plan for every new shape (half a second per step with varying lengths on an H200)."""

CUDNN_BACKENDS = [SDPBackend.CUDNN_ATTENTION, *SDPA_BACKENDS]
"""cuDNN if supported, else the first supported backend of SDPA_BACKENDS."""

MIN_CUDNN_LENGTH = 512
"""Sequences of at least this many tokens, in multiples of 128, have few different shapes: cuDNN is used if available. On an
H200, attention took 9.1 ms of a GPT-2 step instead of 12.5. With the mask `Full`, a quarter of this length is enough."""

SHORT_ROW, MIDDLE_ROW = 128, 384
"""Limits for bfloat16 on CPUs (benchmarks/short_rows.py). Unfused products are fastest up to SHORT_ROW keys, and up to
MIDDLE_ROW keys without a causal mask if there are few scores (197 keys: 1.6 times as fast as the fused kernels, 1.8 times in
training). Otherwise, up to MIDDLE_ROW, the fused kernel runs in float32 if causal or training, else in bfloat16."""

SCORES, LEARNT_SCORES = 2**24, 2**26
"""Maximum number of scores for unfused products: in inference, to fit in the CPU cache; in training, to fit in memory."""


class AttentionCall(NamedTuple):
    """Arguments of one attention: queries (B, H, Q, d), keys (B, H, K, d) and values (B, H, K, e)."""

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    mask: masks.AttentionMask | None = None
    at: Tensor | None = None  # Positions of the queries for the mask; None: 0, 1, 2, …
    dropout: float = 0.0
    bias: Tensor | None = None  # Added to the scores: (B or 1, H, Q or 1, K).
    record: Callable[[Tensor], Tensor] | None = None  # Receives the weights and returns the weights to use.
    position: BoundPosition | None = None  # The relative position that computed the bias.


def attend(call: AttentionCall) -> Tensor:
    """Attention output (B, H, Q, e) by the first kernel of ATTENTION_KERNELS that accepts the call."""
    return choose_kernel(call).run(call)


# -- the plain formula


def eager_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    dropout: float = 0.0,
    bias: Tensor | None = None,
    add_values: Callable[[Tensor], Tensor] | None = None,
    record: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """softmax(q kᵀ · scale) v, equation 1 of Vaswani et al. 2017, and the weights before dropout.

    `bias` is added to the scores, `add_values(weights)` to the output; `record` receives the weights and returns the
    weights to use."""
    scores = (q * scale) @ k.transpose(-2, -1)
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        # the lowest finite number, not -inf: an empty row would be 0/0, with NaN gradients
        scores = torch.where(mask, scores, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1)  # accumulated in float32 for any dtype
    if mask is not None:
        weights = weights.masked_fill(~mask, 0.0)
    weights = weights.to(v.dtype)
    if record is not None:
        weights = record(weights)
    kept = F.dropout(weights, dropout, training=dropout > 0.0)
    return kept @ v if add_values is None else kept @ v + add_values(kept), weights


def _eager(call: AttentionCall) -> Tensor:
    bias, mask = call.bias, None
    if bias is not None and isinstance(call.mask, masks.Dense):
        bias, _ = masked_bias(call, call.q.dtype)
    else:
        mask = bool_mask(call.q, call.k, call.mask, call.at)
    add_values, position = None, call.position
    if position is not None and position.position.adds_values:
        add_values = functools.partial(position.position.add_values, position_ids=position.position_ids)
    rest = (call.scale, call.dropout, bias, add_values, call.record)
    return eager_attention(call.q, call.k, call.v, mask, *rest)[0]


def _cpu_bfloat16_kernel(call: AttentionCall) -> str:
    """Fastest kernel for bfloat16 on CPUs; an empty string for other devices and dtypes."""
    q, keys, learns = call.q, call.k.shape[-2], torch.is_grad_enabled()
    if q.device.type != "cpu" or q.dtype != torch.bfloat16:
        return ""
    if q.shape[-2] <= 4 and not learns:
        return "sdpa_float32"  # one query, 128 keys: 47 µs; eager 96 µs, sdpa 98 µs
    if keys > MIDDLE_ROW:
        return "sdpa"
    if keys <= SHORT_ROW:
        return "eager"
    if match_causal(call.mask) is not None:  # fused kernels compute only half of the scores
        return "sdpa_float32"
    if math.prod(q.shape[:-1]) * keys <= (LEARNT_SCORES if learns else SCORES):
        return "eager"
    return "sdpa_float32" if learns else "sdpa"


# -- packed documents and sliding windows on CUDA


def varlen(call: AttentionCall) -> Tensor:
    """Attention within each document of a packed row, without computing padding, by PyTorch's flash kernel.

    With a causal sliding window, rows (B, H, L, d) are B documents: the kernel skips keys outside the window, without
    an L × L mask."""
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (call.q, call.k, call.v))
    starts, longest, window = _documents(call)
    if call.dropout == 0.0:
        out: Tensor = capabilities.varlen_attention(q, k, v, starts, longest, window, call.scale)
    else:  # the public operator has no dropout
        sides = {"window_size_left": window[0], "window_size_right": window[1]}
        flash = capabilities.flash_forward
        out = flash(q, k, v, *starts, *longest, call.dropout, False, False, scale=call.scale, **sides)[0]
    return out.view(len(call.q), -1, *out.shape[1:]).transpose(1, 2)


def varlen_short(call: AttentionCall) -> Tensor:
    """`varlen` by a Triton kernel for short documents, without windows and dropout."""
    from regard.nn.kernels import varlen_short as kernel

    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (call.q, call.k, call.v))
    starts, longest, window = _documents(call)
    out, _ = kernel.varlen_short_attention(q, k, v, *starts, *longest, window[1] == 0, call.scale)
    return out.view(len(call.q), -1, *out.shape[1:]).transpose(1, 2)


def _documents(call: AttentionCall) -> tuple[tuple[Tensor, Tensor], tuple[int, int], tuple[int, int]]:
    """Boundaries and maximum lengths of the documents of queries and keys, and the window (left, right), -1: unbounded."""
    packed = match_packed(call.mask)
    if packed is not None:
        documents, window = packed
        starts = documents.queries.starts.int(), documents.keys.starts.int()
        return starts, (documents.queries.max_length, documents.keys.max_length), window
    window_size = match_sliding_window(call.q, call.k, call.mask)
    if not window_size:
        raise ValueError("varlen requires a PackedDocuments or sliding-window mask.")
    B, _, L, _ = call.q.shape
    begins = torch.arange(0, (B + 1) * L, L, dtype=torch.int32, device=call.q.device)
    return (begins, begins), (L, L), (window_size - 1, 0)


def _is_varlen(call: AttentionCall) -> bool:
    if not _is_half_on_cuda(call):
        return False
    packed = match_packed(call.mask) if call.q.shape[0] == 1 else None
    return (packed is not None or bool(match_sliding_window(call.q, call.k, call.mask))) and supports_flash(call.q)


def _is_varlen_short(call: AttentionCall) -> bool:
    if not _is_half_on_cuda(call) or call.dropout or call.q.shape[0] != 1:
        return False
    packed = match_packed(call.mask)
    if packed is None or packed[1] not in ((-1, -1), (-1, 0)) or not capabilities.is_available("triton"):
        return False
    from regard.nn.kernels import varlen_short as kernel

    longest = max(packed[0].queries.max_length, packed[0].keys.max_length)
    return call.q.shape[-1] in kernel.HEAD_WIDTHS and longest <= kernel.MAX_LENGTH


def _is_half_on_cuda(call: AttentionCall) -> bool:
    q = call.q
    return q.is_cuda and q.dtype in (torch.float16, torch.bfloat16) and call.at is None and call.bias is None


def supports_flash(q: Tensor) -> bool:
    """Whether flash attention for packed rows supports the device and head width."""
    if q.shape[-1] % 8 or q.shape[-1] > 256 or _capability_major(q.get_device()) < 8:
        return False
    return capabilities.is_available("varlen_attention") and capabilities.is_available("flash_attention")


# -- PyTorch's fused attention


def sdpa(call: AttentionCall) -> Tensor:
    q, k, v, scale, mask = call[:5]
    if call.bias is not None:
        return _sdpa_with_bias(call)
    whole = call.at is None and q.shape[-2] == k.shape[-2] and match_causal(mask) is not None
    if whole and not match_sliding_window(q, k, mask):
        if q.is_cuda:
            return full_attention(q, k, v, scale, call.dropout, causal=True)
        return F.scaled_dot_product_attention(q, k, v, dropout_p=call.dropout, is_causal=True, scale=scale)
    if isinstance(mask, masks.Full) and q.is_cuda:
        return full_attention(q, k, v, scale, call.dropout, causal=False)
    allowed = bool_mask(q, k, mask, call.at)
    with select_kernels(SDPA_BACKENDS) if q.is_cuda else nullcontext():
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, dropout_p=call.dropout, scale=scale)
    # for empty rows, CPU kernels return 0, but some CUDA kernels return the mean of all values; `Dense` has no empty rows
    if allowed is not None and out.device.type != "cpu" and not isinstance(mask, masks.Dense):
        out = out.masked_fill(~allowed.any(-1, keepdim=True), 0.0)
    return out


def sdpa_float32(call: AttentionCall) -> Tensor:
    """`sdpa` computed in float32."""
    return sdpa(call._replace(q=call.q.float(), k=call.k.float(), v=call.v.float())).to(call.v.dtype)


def _sdpa_with_bias(call: AttentionCall) -> Tensor:
    (q, k, v, scale), position = call[:4], call.position
    if position is None or not position.position.shared:
        bias, empty = masked_bias(call, q.dtype)
    else:
        owners, form = (position.position, call.mask), (q.dtype, *q.shape[:3], k.shape[-2])
        bias, empty = position.position_ids.memoize(owners, form, lambda: masked_bias(call, q.dtype))
    with select_kernels(SDPA_BACKENDS) if q.is_cuda else nullcontext():
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=call.dropout, scale=scale)
    return out if empty is None else out.masked_fill(empty, 0.0)


def masked_bias(call: AttentionCall, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Bias with half of the lowest number at masked keys, and a bool mask of queries without any key (None: none).

    Adding to half of the lowest number stays finite, so that empty rows have gradients."""
    assert call.bias is not None
    bias, lowest = call.bias.to(dtype), torch.finfo(dtype).min / 2
    if isinstance(call.mask, masks.Dense):
        bias = torch.where(call.mask.table[:, None], bias, lowest)
        return bias if len(bias) in (1, len(call.q)) else bias.repeat(len(call.q) // len(bias), 1, 1, 1), None
    mask = bool_mask(call.q, call.k, call.mask, call.at)
    if mask is None:
        return bias, None
    return torch.where(mask, bias, lowest), ~mask.any(-1, keepdim=True)


_sdpa_lock = threading.Lock()


@contextmanager
def _lock_while(switched: AbstractContextManager[Any]) -> Iterator[None]:
    with _sdpa_lock, switched:
        yield


def select_kernels(backends: list[SDPBackend], set_priority: bool = False) -> AbstractContextManager[Any]:
    """`sdpa_kernel` in one thread at a time, because its switches belong to the process."""
    switched = sdpa_kernel(backends, set_priority)
    return switched if torch.compiler.is_compiling() else _lock_while(switched)


def full_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, dropout: float, causal: bool) -> Tensor:
    """Attention of full sequences on CUDA, causal or without a mask."""
    with select_kernels(_choose_backends(q, dropout, causal), set_priority=True):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=causal, scale=scale)


def _choose_backends(q: Tensor, dropout: float, causal: bool) -> list[SDPBackend]:
    """SDPA backends by priority. Gradients of cuDNN are not deterministic."""
    length, width = q.shape[-2:]
    steady = length >= MIN_CUDNN_LENGTH and length % 128 == 0 if causal else length >= MIN_CUDNN_LENGTH // 4
    if not steady or width not in (64, 128) or dropout or torch.are_deterministic_algorithms_enabled():
        return SDPA_BACKENDS
    if q.dtype not in (torch.float16, torch.bfloat16):
        return SDPA_BACKENDS
    return CUDNN_BACKENDS if _capability_major(q.get_device()) >= 9 and _cudnn_available() else SDPA_BACKENDS


# Constants at runtime: torch.compile evaluates them once, instead of breaking the graph.


def _capability_major(device: int) -> int:
    """Major compute capability by device index, as an int: torch.compile supports no torch.device or tuple as constant."""
    return _capability_of(device)[0]


@functools.cache
def _capability_of(device: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def _cudnn_available() -> bool:
    """Whether cuDNN attention is available and enabled."""
    return torch.backends.cuda.cudnn_sdp_enabled() and capabilities.is_available("cudnn_attention")  # type: ignore[no-untyped-call]


for _constant in (_capability_major, _cudnn_available):  # as `capabilities.is_available`
    _constant._dynamo_marked_constant = True  # type: ignore[union-attr]


ATTENTION_KERNELS = (
    Kernel("eager", lambda call: (
               call.record is not None
               or (call.position is not None and call.position.position.adds_values)
               or _cpu_bfloat16_kernel(call) == "eager"
           ), _eager, formula="eager_attention",
           gain="1.6 times as fast as sdpa for 197 keys in bfloat16 on a CPU (1.8 times in training)"),
    Kernel("varlen_short", lambda call: call.q.is_cuda and _is_varlen_short(call), varlen_short, formula="eager_attention",
           gain="44.6 % of Transformer-base training"),
    Kernel("varlen", lambda call: call.q.is_cuda and _is_varlen(call), varlen, formula="eager_attention",
           gain="432 % to 490 % of GPT-2 training with packed documents of 256 to 1,024 tokens"),
    Kernel("sdpa_float32", lambda call: _cpu_bfloat16_kernel(call) == "sdpa_float32", sdpa_float32,
           formula="eager_attention", gain="one query in bfloat16 on a CPU: 47 µs instead of 98 µs"),
    Kernel("sdpa", lambda call: True, sdpa, formula="eager_attention",
           gain="cuDNN backend: 4.8 % of GPT-2 training, 4.4 % of ViT-B/16 inference"),
)  # fmt: skip
choose_kernel = functools.partial(choose, ATTENTION_KERNELS)


# -- the form of a mask


def _match_window(mask: masks.AttentionMask | None) -> tuple[masks.PackedDocuments | None, int, int] | None:
    """Packed documents, and keys to the left and right (-1: unbounded) of Causal and a SlidingWindow; None: another mask."""
    left = right = -1
    packed: masks.PackedDocuments | None = None
    for part in masks.conjuncts(mask):
        if isinstance(part, masks.PackedDocuments) and packed is None:
            packed = part
        elif isinstance(part, masks.Causal):
            right = 0
        elif isinstance(part, masks.SlidingWindow) and part.dilation == 1 and left == -1:
            left, right = part.left, (part.right if right == -1 else min(part.right, right))
        else:
            return None
    return packed, left, right


def match_packed(mask: masks.AttentionMask | None) -> tuple[masks.PackedDocuments, tuple[int, int]] | None:
    """`PackedDocuments`, alone or combined with Causal and a SlidingWindow, as (documents, (left, right)); -1: unbounded."""
    packed, left, right = _match_window(mask) or (None, -1, -1)
    if packed is None or ((left, right) != (-1, -1) and packed.queries is not packed.keys):
        return None  # the kernel counts windows within documents, the mask along the row: equal only in self-attention
    return packed, (left, right)


def match_causal(mask: masks.AttentionMask | None) -> int | None:
    """Keys per query of a Causal mask or causal SlidingWindow, the query's own key included; 0: all. None: another mask."""
    packed, left, right = _match_window(mask) or (None, -1, -1)
    return left + 1 if packed is None and right == 0 else None


def match_sliding_window(q: Tensor, k: Tensor, mask: masks.AttentionMask | None) -> int:
    """Window size if full sequences attend to a causal window shorter than the sequence; else 0."""
    band = match_causal(mask) or 0
    return band if q.shape[-2] == k.shape[-2] and band < q.shape[-2] else 0


def bool_mask(q: Tensor, k: Tensor, mask: masks.AttentionMask | None, at: Tensor | None) -> Tensor | None:
    """Bool tensor of the mask for queries at the positions `at` (None: 0, 1, 2, …); None if every key is allowed."""
    if mask is None or isinstance(mask, masks.Full):
        return None
    if isinstance(mask, masks.Dense):
        table, rows = mask.table[:, None], q.shape[0]
        return table if len(table) in (1, rows) else table.repeat(rows // len(table), 1, 1, 1)
    if isinstance(mask, masks.Memoized):
        return mask.table((q.shape[0], q.shape[1], q.shape[-2], k.shape[-2]), at, q.device)
    places = torch.arange(q.shape[-2], device=q.device) if at is None else at
    return masks.materialize(mask, q.shape[0], q.shape[1], places, torch.arange(k.shape[-2], device=q.device))


# -- one token per row with a static KV cache


def has_decode_kernel(k: Tensor | None) -> bool:
    """Whether a one-query kernel with built-in causal mask supports keys like k in a static cache."""
    if k is None or not k.is_cuda or torch.is_grad_enabled() or not capabilities.is_available("triton"):
        return False
    from regard.nn.kernels import decode_attention

    return decode_attention.supports(k, k, k)


def decode_step(qkv: Tensor, cache: StaticCache, at: Tensor, scale: float, window: int) -> Tensor:
    """(B, D) attention output of one token per row; writes its key and value into the cache."""
    assert cache.k is not None and cache.v is not None
    from regard.nn.kernels import decode_attention

    counts = cache.kernel_counters
    if counts is None or len(counts) != cache.k.shape[0] * cache.k.shape[1]:
        counts = cache.kernel_counters = decode_attention.make_counters(cache.k)
    return decode_attention.decode_attention(qkv, cache.k, cache.v, at, counts, scale, window)
