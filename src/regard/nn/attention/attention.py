"""Multi-head attention in three parts, each callable separately: `project`, `attend`, `out`.

Shape letters: B batch, Q queries, K keys, H heads, D width, d head width, e value width per head, C context width.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.nn.attention.kv_cache import KVCache, StaticCache
from regard.nn.attention.masks import AttentionMask, Dense
from regard.nn.attention.relative_positions import BoundPosition
from regard.nn.kernels import dispatch
from regard.nn.kernels.linear import Linear
from regard.nn.recording import AttentionRecorder, RecordedModule, recorded


class Attention(RecordedModule):
    """Multi-head attention (Vaswani et al. 2017): self-attention, or cross-attention if `context_width` is given.

    Self-attention has one matrix `qkv`, cross-attention `q` and `kv`; checkpoint conversion splits and joins the matrices.
    """

    def __init__(
        self, width: int, heads: int, context_width: int | None = None, bias: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width ({width}) must be divisible by heads ({heads}).")
        self.width, self.heads, self.dropout = width, heads, dropout
        if context_width is None:
            self.qkv = Linear(width, 3 * width, bias)
        else:
            self.q = Linear(width, width, bias)
            self.kv = Linear(context_width, 2 * width, bias)
        self.is_cross = context_width is not None
        self.out = Linear(width, width, bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier-initialize q, k, v and out as separate matrices, although q, k and v are stored in a joint matrix."""
        joined = (self.q.weight, *self.kv.weight.chunk(2)) if self.is_cross else self.qkv.weight.chunk(3)
        for matrix in (*joined, self.out.weight):
            nn.init.xavier_uniform_(matrix)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)

    @property
    def scale(self) -> float:
        """1/√d, the factor of the scores q · k."""
        return (self.width // self.heads) ** -0.5

    def split_heads(self, x: Float[Tensor, "B L D"], parts: int) -> tuple[Tensor, ...]:
        """(B, L, parts · D) -> `parts` tensors (B, H, L, d)."""
        B, L, _ = x.shape
        return tuple(x.view(B, L, parts, self.heads, self.width // self.heads).permute(2, 0, 3, 1, 4))

    def query(self, x: Float[Tensor, "B Q D"]) -> Float[Tensor, "B H Q d"]:
        return self.split_heads(self.q(x), 1)[0]

    def keys(self, context: Float[Tensor, "B K C"]) -> tuple[Float[Tensor, "B H K d"], Float[Tensor, "B H K d"]]:
        k, v = self.split_heads(self.kv(context), 2)
        return k, v

    def project(
        self, x: Float[Tensor, "B Q D"], context: Float[Tensor, "B K C"] | None = None
    ) -> tuple[Float[Tensor, "B H Q d"], Float[Tensor, "B H K d"], Float[Tensor, "B H K d"]]:
        if context is not None:
            return (self.query(x), *self.keys(context))
        q, k, v = self.split_heads(self.qkv(x), 3)
        return q, k, v

    def attend(
        self, q: Float[Tensor, "B H Q d"], k: Float[Tensor, "B H K d"], v: Float[Tensor, "B H K e"],
        mask: AttentionMask | None = None, at: Int[Tensor, "..."] | None = None, record: AttentionRecorder | None = None,
        position: BoundPosition | None = None,
    ) -> Float[Tensor, "B H Q e"]:  # fmt: skip
        if position is not None and position.position.has_bias:
            return self._attend_with_bias(q, k, v, mask, at, record, position)
        scale, dropout = self.scale, self.dropout if self.training else 0.0
        kernel = dispatch.choose_kernel(q, k, mask, at, dropout, record is not None)
        if kernel in ("varlen", "short"):
            return dispatch.varlen(q, k, v, mask, scale, dropout, use_short_kernel=kernel == "short")
        if kernel in ("sdpa", "widened"):
            fused = dispatch.sdpa if kernel == "sdpa" else dispatch.sdpa_float32
            return fused(q, k, v, mask, at, scale, dropout)
        if kernel == "stepped":
            assert mask is None or isinstance(mask, Dense)
            return dispatch.bmm_attention(q, k, v, mask, scale)
        return dispatch.eager_attention(q, k, v, dispatch.bool_mask(q, k, mask, at), scale, dropout, record=record)[0]

    def _attend_with_bias(
        self, q: Tensor, k: Tensor, v: Tensor, rule: AttentionMask | None, at: Tensor | None, seen: AttentionRecorder | None,
        inside: BoundPosition,
    ) -> Tensor:  # fmt: skip
        """Attention with a bias per distance added to the scores."""
        scale, dropout = self.scale, self.dropout if self.training else 0.0
        bias, spreads = inside.bias(q, k.shape[-2], scale), inside.position.adds_values
        assert bias is not None
        kernel = dispatch.choose_kernel(q, k, rule, at, dropout, seen is not None or spreads, has_bias=True)
        if kernel == "stepped":
            assert rule is None or isinstance(rule, Dense)
            return dispatch.bmm_attention(q, k, v, rule, scale, bias)
        if kernel in ("sdpa", "widened"):
            kind = q.dtype if kernel == "sdpa" else torch.float32
            hidden = inside.memoize_bias(
                rule, (kind, *q.shape[:3], k.shape[-2]),
                lambda: dispatch.mask_bias(bias.to(kind), dispatch.bool_mask(q, k, rule, at)),
            )  # fmt: skip
            return dispatch.sdpa_with_bias(q.to(kind), k.to(kind), v.to(kind), hidden, scale, dropout).to(v.dtype)
        mask, spread = dispatch.bool_mask(q, k, rule, at), inside.add_values if spreads else None
        return dispatch.eager_attention(q, k, v, mask, scale, dropout, bias, spread, seen)[0]

    def _decode_window(
        self, x: Tensor, memory: StaticCache, rule: AttentionMask | None, where: Tensor | None
    ) -> int | None:
        """Attention window of a one-token step (0: all earlier tokens); None if the decode kernel is not supported."""
        if self.is_cross or self.training or x.shape[1] != 1 or where is None or memory.write_columns is not None:
            return None
        if not dispatch.has_decode_kernel(memory.k) or memory.k is None or x.dtype != memory.k.dtype:
            return None
        return dispatch.match_causal(rule)

    def _decode_step(
        self, x: Tensor, memory: StaticCache, where: Tensor | None, band: int, inside: BoundPosition | None
    ) -> Tensor:
        """One token per row; the kernel also writes the key and value of the token into the cache."""
        assert where is not None and memory.k is not None
        qkv = self.qkv(x)
        if inside is not None:
            turned = inside.rotate(*self.split_heads(qkv, 3))
            qkv = torch.stack(turned, 2).transpose(1, 3).flatten(2)
        return self.out(dispatch.decode_step(qkv[:, 0], memory, where[:, 0], self.scale, band)[:, None])

    @recorded
    def forward(
        self, x: Float[Tensor, "B Q D"], context: Float[Tensor, "B K C"] | None = None, *, mask: AttentionMask | None = None,
        cache: KVCache | None = None, at: Int[Tensor, "..."] | None = None, record: AttentionRecorder | None = None,
        position: BoundPosition | None = None,
    ) -> Float[Tensor, "B Q D"]:  # fmt: skip
        """`at`: the columns of x in the KV cache, if x does not start at column 0.
        `position`: a relative position for self-attention."""
        if (
            isinstance(cache, StaticCache)
            and record is None
            and (band := self._decode_window(x, cache, mask, at)) is not None
        ):
            if position is None or not position.position.has_bias:
                return self._decode_step(x, cache, at, band, position)
        if self.is_cross:
            if position is not None:
                raise ValueError("Relative positions are not supported in cross-attention.")
            q, at = self.query(x), None  # keys of the context have their own positions
        elif context is None:
            q, own_k, own_v = self.project(x)
            if position is not None:
                q, own_k, own_v = position.rotate(q, own_k, own_v)
        else:
            raise ValueError("This module is self-attention; a context is not supported.")

        def make() -> tuple[Tensor, Tensor]:
            if not self.is_cross:
                return own_k, own_v
            if context is None:
                raise ValueError("Cross-attention requires a context, or a KV cache that contains the keys of one.")
            return self.keys(context)

        k, v = make() if cache is None else cache.extend(make, at)
        mixed = self.attend(q, k, v, mask, at, record, position)
        return self.out(mixed.transpose(1, 2).flatten(2))
