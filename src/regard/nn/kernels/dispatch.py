"""Attention kernels and their selection. `eager_attention` is the reference; tests compare the faster kernels with it.

The kernel is selected by mask, device and dtype, never by trial execution.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard import capabilities
from regard.nn.attention.kv_cache import StaticCache
from regard.nn.attention.masks import (
    And,
    AttentionMask,
    Causal,
    Dense,
    Full,
    Memoized,
    PackedDocuments,
    SlidingWindow,
    materialize,
)

KernelName = Literal["plain", "stepped", "sdpa", "widened", "varlen", "short"]

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


def has_varlen_kernel() -> bool:
    """Whether this PyTorch build has a kernel for packed rows (CUDA, 16 bits)."""
    return capabilities.is_available("varlen_attention")


def choose_kernel(
    q: Tensor,
    k: Tensor,
    mask: AttentionMask | None,
    at: Tensor | None,
    dropout: float,
    needs_weights: bool,
    has_bias: bool = False,
) -> KernelName:
    """Name of the kernel. `has_bias`: a bias is added to the scores, which kernels for packed rows do not support."""
    if needs_weights:
        return "plain"
    if _is_decode_step(q, mask):
        return "stepped"
    if q.is_cuda and q.dtype in (torch.float16, torch.bfloat16) and at is None and not has_bias:
        form = match_packed(mask) if q.shape[0] == 1 else None
        if form is not None and dropout == 0.0 and _is_short(q, *form):
            return "short"
        if (form is not None or match_sliding_window(q, k, mask)) and supports_flash(q):
            return "varlen"
    if q.device.type == "cpu" and q.dtype == torch.bfloat16 and q.shape[-2] <= 4 and not torch.is_grad_enabled():
        return "widened"  # one query, 128 keys: 47 µs; plain 96 µs, fused 98 µs
    if q.device.type == "cpu" and q.dtype == torch.bfloat16 and k.shape[-2] <= MIDDLE_ROW:
        return _choose_cpu_bfloat16(q, k, mask)
    return "sdpa"


def _choose_cpu_bfloat16(q: Tensor, k: Tensor, rule: AttentionMask | None) -> KernelName:
    scores, learns = math.prod(q.shape[:-1]) * k.shape[-2], torch.is_grad_enabled()
    if k.shape[-2] <= SHORT_ROW:
        return "plain"
    if match_causal(rule) is not None:  # fused kernels compute only half of the scores
        return "widened"
    return "plain" if scores <= (LEARNT_SCORES if learns else SCORES) else "widened" if learns else "sdpa"


def _is_decode_step(q: Tensor, rule: AttentionMask | None) -> bool:
    """Whether q has few queries, as in decoding: fused kernels are slower on CUDA with masks, and on CPUs with many rows."""
    if torch.is_grad_enabled() or q.shape[-2] > 16 or not (rule is None or isinstance(rule, Dense)):
        return False
    return q.is_cuda or (q.device.type == "cpu" and q.shape[0] >= 8 and q.dtype != torch.bfloat16)


def supports_flash(q: Tensor) -> bool:
    """Whether flash attention for packed rows supports the device and head width."""
    if q.shape[-1] % 8 or q.shape[-1] > 256 or _capability_major(q.get_device()) < 8:
        return False
    return capabilities.is_available("varlen_attention") and capabilities.is_available("flash_attention")


def _is_short(q: Tensor, packed: PackedDocuments, window: tuple[int, int]) -> bool:
    """Whether the kernel for short documents is supported, with which a Transformer-base step took 17.8 ms instead of 25.3."""
    if window not in ((-1, -1), (-1, 0)) or not capabilities.is_available("triton"):
        return False
    from regard.nn.kernels import varlen_short

    if q.shape[-1] not in varlen_short.HEAD_WIDTHS:
        return False
    return max(packed.queries.max_length, packed.keys.max_length) <= varlen_short.MAX_LENGTH


def match_packed(mask: AttentionMask | None) -> tuple[PackedDocuments, tuple[int, int]] | None:
    """`PackedDocuments`, alone or combined with Causal and a SlidingWindow, as (documents, (left, right)); -1: unbounded."""
    left = right = -1
    packed: PackedDocuments | None = None
    for part in _conjuncts(mask):
        if isinstance(part, PackedDocuments) and packed is None:
            packed = part
        elif isinstance(part, Causal):
            right = 0
        elif isinstance(part, SlidingWindow) and part.dilation == 1 and left == -1:
            left, right = part.left, (part.right if right == -1 else min(part.right, right))
        else:
            return None
    if packed is None or ((left, right) != (-1, -1) and packed.queries is not packed.keys):
        return None  # the kernel counts windows within documents, the mask along the row: equal only in self-attention
    return packed, (left, right)


def match_causal(mask: AttentionMask | None) -> int | None:
    """Keys per query of a Causal mask or causal SlidingWindow, the query's own key included; 0: all. None: another mask."""
    causal, band = False, 0
    for part in _conjuncts(mask):
        if isinstance(part, Causal):
            causal = True
        elif isinstance(part, SlidingWindow) and part.dilation == 1 and part.right == 0 and not band:
            band = part.left + 1
        else:
            return None
    return band if causal or band else None


def match_sliding_window(q: Tensor, k: Tensor, mask: AttentionMask | None) -> int:
    """Window size if full sequences attend to a causal window shorter than the sequence; else 0.

    Sequences of equal length are treated as packed documents: the kernel skips keys outside the window, without an L ×
    L mask."""
    band = match_causal(mask) or 0
    return band if q.shape[-2] == k.shape[-2] and band < q.shape[-2] else 0


def decode_step(qkv: Tensor, cache: StaticCache, at: Tensor, scale: float, window: int) -> Tensor:
    """(B, D) attention output of one token per row; writes its key and value into the cache."""
    assert cache.k is not None and cache.v is not None
    from regard.nn.kernels import decode_attention

    counts = cache.get_counters(decode_attention)
    return decode_attention.decode_attention(qkv, cache.k, cache.v, at, scale, window, counts)


def has_decode_kernel(k: Tensor | None) -> bool:
    """Whether a one-query kernel with built-in causal mask supports keys like k in a static cache."""
    if k is None or not k.is_cuda or torch.is_grad_enabled() or not capabilities.is_available("triton"):
        return False
    from regard.nn.kernels import decode_attention

    return decode_attention.supports(k, k, k)


def _conjuncts(rule: AttentionMask | None) -> list[AttentionMask]:
    if rule is None:
        return []
    if isinstance(rule, Memoized):
        return _conjuncts(rule.mask)
    return _conjuncts(rule.left) + _conjuncts(rule.right) if isinstance(rule, And) else [rule]


def bool_mask(q: Tensor, k: Tensor, mask: AttentionMask | None, at: Tensor | None) -> Tensor | None:
    """Bool tensor of the mask for queries at the positions `at` (None: 0, 1, 2, …); None if every key is allowed."""
    if mask is None or isinstance(mask, Full):
        return None
    if isinstance(mask, Dense):
        return mask.table[:, None]
    if isinstance(mask, Memoized):
        return mask.table((q.shape[0], q.shape[1], q.shape[-2], k.shape[-2]), at, q.device)
    places = torch.arange(q.shape[-2], device=q.device) if at is None else at
    return materialize(mask, q.shape[0], q.shape[1], places, torch.arange(k.shape[-2], device=q.device))


def eager_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, dropout: float = 0.0,
    bias: Tensor | None = None, add_values: Callable[[Tensor], Tensor] | None = None,
    record: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
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


def bmm_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Dense | None, scale: float, bias: Tensor | None = None
) -> Tensor:
    """`eager_attention` for the few queries of a decoding step, with few operators: each is a kernel launch on a GPU."""
    (B, H, Q, d), K = q.shape, k.shape[-2]
    keys, values = k.reshape(B * H, K, d), v.reshape(B * H, K, -1)
    added = q.new_empty(1, 1, 1) if bias is None else bias.expand(B, H, Q, K).reshape(B * H, Q, K)
    beta = 0.0 if bias is None else 1.0
    scores = torch.baddbmm(added, q.reshape(B * H, Q, d), keys.transpose(1, 2), beta=beta, alpha=scale)
    if mask is not None:
        scores.view(B, H, Q, K).masked_fill_(mask.blocked, torch.finfo(scores.dtype).min)
    return torch.bmm(scores.softmax(-1), values).view(B, H, Q, -1)


MaskedBias = tuple[Tensor, Tensor | None]
"""Bias with the lowest value at masked keys, and a bool mask of queries without any key."""


def mask_bias(bias: Tensor, mask: Tensor | None) -> MaskedBias:
    """Set masked entries to half of the lowest number: adding to it stays finite, so empty rows have gradients."""
    if mask is None:
        return bias, None
    return torch.where(mask, bias, torch.finfo(bias.dtype).min / 2), ~mask.any(-1, keepdim=True)


def sdpa_with_bias(q: Tensor, k: Tensor, v: Tensor, bias: MaskedBias, scale: float, dropout: float) -> Tensor:
    """Fused attention with a bias in the dtype of the queries."""
    added, empty = bias
    with sdpa_kernel(SDPA_BACKENDS) if q.is_cuda else nullcontext():
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=added, dropout_p=dropout, scale=scale)
    return out if empty is None else out.masked_fill(empty, 0.0)


def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attention_mask: AttentionMask | None,
    at: Tensor | None,
    scale: float,
    dropout: float,
) -> Tensor:
    if (
        at is None
        and q.shape[-2] == k.shape[-2]
        and match_causal(attention_mask) is not None
        and not match_sliding_window(q, k, attention_mask)
    ):
        if q.is_cuda:
            return full_attention(q, k, v, scale, dropout, causal=True)
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, scale=scale)
    if isinstance(attention_mask, Full) and q.is_cuda:
        return full_attention(q, k, v, scale, dropout, causal=False)
    mask = bool_mask(q, k, attention_mask, at)
    with sdpa_kernel(SDPA_BACKENDS) if q.is_cuda else nullcontext():
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)
    # for empty rows, CPU kernels return 0, but some CUDA kernels return the mean of all values
    if mask is not None and out.device.type != "cpu":
        out = out.masked_fill(~mask.any(-1, keepdim=True), 0.0)
    return out


def full_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, dropout: float, causal: bool) -> Tensor:
    """Attention of full sequences on CUDA, causal or without a mask."""
    with sdpa_kernel(_choose_backends(q, dropout, causal), set_priority=True):
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


@capabilities.constant_in_graph
def _capability_major(device: int) -> int:
    """Major compute capability by device index, as an int: torch.compile supports no torch.device or tuple as constant."""
    return _capability_of(device)[0]


@functools.cache
def _capability_of(device: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


@capabilities.constant_in_graph
def _cudnn_available() -> bool:
    """Whether cuDNN attention is available and enabled."""
    return torch.backends.cuda.cudnn_sdp_enabled() and capabilities.is_available("cudnn_attention")  # type: ignore[no-untyped-call]


def sdpa_float32(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attention_mask: AttentionMask | None,
    at: Tensor | None,
    scale: float,
    dropout: float,
) -> Tensor:
    """`sdpa` computed in float32."""
    return sdpa(q.float(), k.float(), v.float(), attention_mask, at, scale, dropout).to(v.dtype)


def varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: AttentionMask | None,
    scale: float,
    dropout: float = 0.0,
    use_short_kernel: bool = False,
) -> Tensor:
    """Attention within each document of a packed row, without computing padding. q, k, v: (1, H, T, d).

    `use_short_kernel`: use the kernel for short documents. With a sliding window, rows (B, H, L, d) are B documents."""
    form = match_packed(mask)
    if form is None and (band := match_sliding_window(q, k, mask)):
        return _sliding_window(q, k, v, band, scale, dropout)
    if form is None:
        raise ValueError("varlen requires a PackedDocuments or sliding-window mask.")
    packed, window = form
    rows = tuple(x[0].transpose(0, 1) for x in (q, k, v))
    starts = packed.queries.starts.int(), packed.keys.starts.int()
    longest = packed.queries.max_length, packed.keys.max_length
    if use_short_kernel:
        from regard.nn.kernels import varlen_short

        out = varlen_short.varlen_short_attention(rows[0], rows[1], rows[2], starts, longest, window[1] == 0, scale)
    else:
        out = _flash_varlen(rows, starts, longest, window, scale, dropout)
    return out.transpose(0, 1)[None]


def _sliding_window(q: Tensor, k: Tensor, v: Tensor, band: int, scale: float, dropout: float) -> Tensor:
    (B, _, L, _), rows = q.shape, tuple(x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    starts = torch.arange(0, (B + 1) * L, L, dtype=torch.int32, device=q.device)
    out = _flash_varlen(rows, (starts, starts), (L, L), (band - 1, 0), scale, dropout)
    return out.view(B, L, *out.shape[1:]).transpose(1, 2)


def _flash_varlen(
    rows: tuple[Tensor, ...], starts: tuple[Tensor, Tensor], longest: tuple[int, int], window: tuple[int, int],
    scale: float, dropout: float,
) -> Tensor:  # fmt: skip
    """Attention of packed documents, q, k, v (T, H, d). The public varlen operator has no dropout; flash attention has."""
    if dropout == 0.0:
        return capabilities.varlen_attention(rows[0], rows[1], rows[2], starts, longest, window, scale)
    out: Tensor = capabilities.flash_forward(
        *rows, *starts, *longest, dropout, False, False, scale=scale, window_size_left=window[0],
        window_size_right=window[1],
    )[0]  # fmt: skip
    return out
