"""The ways to compute an attention within windows, of which the fastest that can is taken.

| way | where | attention dropout | padding | documents | steps wider than 1 |
|---|---|---|---|---|---|
| blocked | any device, any dtype | yes | lengths or marks | yes | yes |
| flash | CUDA, 16 bits | yes | lengths | packed | no |

All are held equal to the rule by tests. A row costs time and memory that are linear in its length.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from regard.nn.kernels import dispatch
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
    """Every query over its window and the marked tokens, each key once: (B, H, L, e). What marked queries see besides is
    not seen here, and rows of padding hold what nobody should read."""
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
    return dispatch.sdpa(q, k, v, pattern.token_mask, found[0], scale, dropout)


def scatter_global_rows(x: Tensor, global_rows: Tensor, pattern: LocalPattern, valid: Tensor | None = None) -> Tensor:
    """x (B, L, D) with `rows` (B, G, D) in the places of the marked tokens, and 0 where a token is not `real`."""
    found = pattern.global_positions()
    assert found is not None and pattern.global_tokens is not None
    (places, there), (B, L, D), hidden = found, x.shape, pattern.global_tokens.tokens
    if valid is not None:
        there, hidden = there & valid.gather(1, places), hidden | ~valid
    flat = (torch.arange(0, B * L, L, device=x.device)[:, None] + places).flatten()
    global_rows = torch.where(there[:, :, None], global_rows, 0.0).to(x.dtype)  # those that are not there add nothing
    rest = x.masked_fill(hidden[:, :, None], 0.0).view(B * L, D)
    return rest.index_add_(0, flat, global_rows.flatten(0, 1)).view(B, L, D)
