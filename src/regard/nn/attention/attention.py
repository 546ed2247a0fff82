"""Multi-head attention: gather rows (layout), project, rotate (position), cache, attend, merge heads, scatter rows.

Shape letters: B batch, Q queries, K keys, H heads, D width, d head width, e value width per head, C context width.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.nn.attention.kv_cache import KVCache, StaticCache
from regard.nn.attention.layouts import GridWindows
from regard.nn.attention.masks import AttentionMask
from regard.nn.attention.positions import BoundPosition
from regard.nn.kernels import dispatch
from regard.nn.kernels.dispatch import AttentionCall
from regard.nn.kernels.linear import Linear
from regard.nn.kernels.table import Kernel
from regard.nn.recording import Record, RecordedModule, recorded


class Attention(RecordedModule):
    """Multi-head attention (Vaswani et al. 2017): self-attention, or cross-attention if `context_width` is given.

    Self-attention has one matrix `qkv`, cross-attention `q` and `kv`; checkpoint conversion splits and joins the matrices.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        context_width: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        scale: float | None = None,
        layout: GridWindows | None = None,
    ) -> None:
        """`scale`: factor of the scores q · k; None: 1/√d. `layout`: rows of attention if
        not whole sequences (layouts.py)."""
        super().__init__()
        if width % heads:
            raise ValueError(f"width ({width}) must be divisible by heads ({heads}).")
        self.width, self.heads, self.dropout, self.layout = width, heads, dropout, layout
        self.scale = (width // heads) ** -0.5 if scale is None else scale
        self.is_cross = context_width is not None
        if context_width is None:
            self.qkv = Linear(width, 3 * width, bias)
        else:
            self.q = Linear(width, width, bias)
            self.kv = Linear(context_width, 2 * width, bias)
        self.out = Linear(width, width, bias)
        if self.is_cross:
            self.q.init_xavier()
            self.kv.init_xavier(2)
        else:
            self.qkv.init_xavier(3)
        self.out.init_xavier()

    def split_heads(self, x: Float[Tensor, "B L D"], parts: int) -> tuple[Tensor, ...]:
        """(B, L, parts · D) -> `parts` tensors (B, H, L, d)."""
        B, L, _ = x.shape
        return tuple(x.view(B, L, parts, self.heads, self.width // self.heads).permute(2, 0, 3, 1, 4))

    def project(self, x: Float[Tensor, "B L D"]) -> tuple[Tensor, ...]:
        """Queries, keys and values (B, H, L, d) of self-attention."""
        return self.split_heads(self.qkv(x), 3)

    @recorded
    def forward(
        self,
        x: Float[Tensor, "B Q D"],
        context: Float[Tensor, "B K C"] | None = None,
        *,
        mask: AttentionMask | None = None,
        cache: KVCache | None = None,
        at: Int[Tensor, "..."] | None = None,
        record: Record | None = None,
        position: BoundPosition | None = None,
    ) -> Float[Tensor, "B Q D"]:
        """`at`: the columns of x in the KV cache, if x does not start at column 0.
        `position`: a relative position for self-attention."""
        if record is None and cache is not None:
            for kernel in DECODE_KERNELS.get(x.device.type, ()):
                if kernel.accepts(self, x, mask, cache, at, position):
                    return kernel.run(self, x, mask, cache, at, position)
        if self.is_cross and position is not None:
            raise ValueError("Relative positions are not supported in cross-attention.")
        if not self.is_cross and context is not None:
            raise ValueError("This module is self-attention; a context is not supported.")
        ids = None if position is None else position.position_ids
        if self.layout is not None:
            if cache is not None or at is not None:
                raise ValueError(f"{type(self.layout).__name__} does not support a KV cache.")
            x, mask, record = self.layout.gather(x, mask, record, ids)
        if self.is_cross:
            (q,), at = self.split_heads(self.q(x), 1), None  # keys of the context have their own positions
            if cache is not None and cache.k is not None and cache.v is not None:
                k, v = cache.k, cache.v
            elif context is None:
                raise ValueError("Cross-attention requires a context, or a KV cache that contains the keys of one.")
            else:
                k, v = self.split_heads(self.kv(context), 2)
                if cache is not None:
                    cache.k, cache.v = k, v
        else:
            q, k, v = self.split_heads(self.qkv(x), 3)
            if position is not None:
                q, k, v = position.position.rotate(q, k, v, position.position_ids)
            if cache is not None:
                k, v = cache.extend(k, v, at)
        call = AttentionCall(q, k, v, self.scale, mask, at, self.dropout if self.training else 0.0, record=record)
        if position is not None and position.position.has_bias:
            call = call._replace(bias=position.position.bias(q, k, self.scale, position), position=position)
        out = self.out(dispatch.attend(call).transpose(1, 2).flatten(2))
        return out if self.layout is None else self.layout.scatter(out, ids)


def _accepts_decode_step(
    attention: Attention,
    x: Tensor,
    mask: AttentionMask | None,
    cache: KVCache,
    at: Tensor | None,
    position: BoundPosition | None,
) -> bool:
    """Whether one token per row is appended to a static cache that the kernel supports."""
    if not isinstance(cache, StaticCache) or attention.is_cross or attention.training or x.shape[1] != 1 or at is None:
        return False
    if cache.write_columns is not None or (position is not None and position.position.has_bias):
        return False
    if not dispatch.has_decode_kernel(cache.k) or cache.k is None or x.dtype != cache.k.dtype:
        return False
    return dispatch.match_causal(mask) is not None


def _decode_step(
    attention: Attention,
    x: Tensor,
    mask: AttentionMask | None,
    cache: StaticCache,
    at: Tensor,
    position: BoundPosition | None,
) -> Tensor:
    """One token per row; the kernel also writes the key and value of the token into the cache."""
    window = dispatch.match_causal(mask)
    assert window is not None
    qkv = attention.qkv(x)
    if position is not None:
        q, k, v = attention.split_heads(qkv, 3)
        rotated = position.position.rotate(q, k, v, position.position_ids)
        qkv = torch.stack(rotated, 2).transpose(1, 3).flatten(2)
    return attention.out(dispatch.decode_step(qkv[:, 0], cache, at[:, 0], attention.scale, window)[:, None])


DECODE_KERNELS = {
    "cuda": (
        Kernel("decode_attention", _accepts_decode_step, _decode_step, formula="Attention.forward",
               gain="96.5 % of GPT-2 generation at batch 1, 37.7 % at batch 64"),
    ),
}  # fmt: skip
"""Kernels of the attention of a decoding step by device type; without a match, `forward` extends the cache and attends."""
