"""Selection of the kernel for sliding-window attention.

| kernel | device | attention dropout | padding | documents | dilation > 1 |
|---|---|---|---|---|---|
| blocked | any device, any dtype | yes | lengths or mask | yes | yes |
| flash | CUDA, 16 bits | yes | lengths | packed | no |

Tests compare both with the mask definition. Time and memory are linear in the length.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from regard.nn.kernels import dispatch
from regard.nn.kernels.dispatch import AttentionCall
from regard.nn.kernels.local_chunked import chunked_attention
from regard.nn.kernels.local_flash import flash_local_attention, supports
from regard.nn.kernels.local_pattern import LocalPattern

LocalKernel = Literal["blocked", "flash"]


def choose_local_kernel(q: Tensor, pattern: LocalPattern) -> LocalKernel:
    half = q.is_cuda and q.dtype in (torch.float16, torch.bfloat16)
    return "flash" if half and supports(pattern, q.shape[0]) and dispatch.supports_flash(q) else "blocked"


def local_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: LocalPattern,
    scale: float,
    dropout: float = 0.0,
    kernel: LocalKernel | None = None,
) -> Tensor:
    """Attention output (B, H, L, e) over the window and the global tokens of every query, global queries included. Rows
    of padding are undefined."""
    kernel = kernel or choose_local_kernel(q, pattern)
    if kernel == "flash":
        return flash_local_attention(q, k, v, pattern, scale, dropout)
    return chunked_attention(q, k, v, pattern, scale, dropout)


def global_attention(
    q: Tensor, k: Tensor, v: Tensor, pattern: LocalPattern, scale: float, dropout: float = 0.0
) -> Tensor:
    """Attention of the global tokens (B, H, G, d), in the order of `global_positions`, to all valid tokens of their
    documents: (B, H, G, e)."""
    found = pattern.global_positions()
    assert found is not None
    return dispatch.sdpa(AttentionCall(q, k, v, scale, pattern.token_mask, found[0], dropout))


def scatter_global_rows(x: Tensor, global_rows: Tensor, pattern: LocalPattern, valid: Tensor | None = None) -> Tensor:
    """x (B, L, D) with `global_rows` (B, G, D) at the global tokens, and 0 where `valid` is False."""
    found = pattern.global_positions()
    assert found is not None and pattern.global_tokens is not None
    (places, there), (B, L, D), hidden = found, x.shape, pattern.global_tokens.tokens
    if valid is not None:
        there, hidden = there & valid.gather(1, places), hidden | ~valid
    flat = (torch.arange(0, B * L, L, device=x.device)[:, None] + places).flatten()
    global_rows = torch.where(there[:, :, None], global_rows, 0.0).to(x.dtype)  # unused entries add 0
    rest = x.masked_fill(hidden[:, :, None], 0.0).view(B * L, D)
    return rest.index_add_(0, flat, global_rows.flatten(0, 1)).view(B, L, D)
