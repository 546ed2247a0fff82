"""Longformer attention: every token attends to a window and to the global tokens; global tokens attend to all tokens.

`qkv` projects for the windows, `far_q` and `far_kv` for the queries of global tokens, whose result replaces their
window result; both share `out`. Mask: `(SlidingWindow(256, 256) | GlobalTokens(tokens)) & Padding(lengths)`. Rotary
positions are supported in both, positions with a bias per query and key in neither.
Shape letters: B batch, L length, G global tokens of a row, H heads, D width, d head width.
"""

from __future__ import annotations

import functools

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from regard.nn.attention.attention import Attention
from regard.nn.attention.kv_cache import KVCache
from regard.nn.attention.masks import AttentionMask, materialize
from regard.nn.attention.positions import BoundPosition, PositionIds
from regard.nn.kernels import local_attention as local
from regard.nn.kernels.dispatch import AttentionCall, attend
from regard.nn.kernels.linear import Linear
from regard.nn.kernels.local_attention import LocalCall, LocalPattern, parse_pattern
from regard.nn.kernels.table import is_plain
from regard.nn.recording import Record, recorded


class LongformerAttention(Attention):
    def __init__(self, width: int, heads: int, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__(width, heads, bias=bias, dropout=dropout)
        self.far_q, self.far_kv = Linear(width, width), Linear(width, 2 * width)
        self.far_q.init_xavier()
        self.far_kv.init_xavier(2)

    @recorded
    def forward(
        self,
        x: Float[Tensor, "B L D"],
        context: Float[Tensor, "B K C"] | None = None,
        *,
        mask: AttentionMask | None = None,
        cache: KVCache | None = None,
        at: Int[Tensor, "..."] | None = None,
        record: Record | None = None,
        position: BoundPosition | None = None,
    ) -> Float[Tensor, "B L D"]:
        pattern = parse_pattern(mask)
        if pattern is None:
            raise ValueError(
                "Sliding-window attention requires a window mask: (SlidingWindow(…) | GlobalTokens(…)) & …"
            )
        if context is not None or cache is not None or at is not None:
            raise ValueError("Sliding-window attention supports full sequences only, without context, cache or at.")
        if position is not None and (position.position.has_bias or position.position.adds_values):
            raise ValueError(
                f"{type(position.position).__name__} is not supported with sliding-window attention, because it adds a bias "
                "per query and key. Use Rotary."
            )
        # window attention of all tokens, global tokens included, because they are few; their rows are replaced later
        q, k, v = self.project(x)
        if position is not None:
            q, k, v = position.position.rotate(q, k, v, position.position_ids)
        dropout = self.dropout if self.training else 0.0
        if pattern.covers(x.shape[1]):
            mixed = attend(AttentionCall(q, k, v, self.scale, pattern.token_mask, None, dropout, record=record))
        else:
            mixed = local.local_attention(LocalCall(q, k, v, pattern, self.scale, dropout, record))
        (B, L, D), marks, real = x.shape, pattern.global_positions(), pattern.valid_tokens(x.shape[1])
        mixed, hidden = mixed.transpose(1, 2).flatten(2), pattern.unused_rows(real)
        if hidden is not None:
            mixed = mixed.masked_fill(hidden[:, :, None], 0.0)
        if marks is not None:
            rows = (torch.arange(0, B * L, L, device=x.device)[:, None] + marks[0]).flatten()
            far = self.global_attention(x, rows, pattern, record, position)
            used = marks[1] if real is None else marks[1] & real.gather(1, marks[0])
            far = torch.where(used[:, :, None], far, 0.0).to(mixed.dtype)  # unused entries add 0
            mixed = mixed.view(B * L, D).index_add_(0, rows, far.flatten(0, 1)).view(B, L, D)
        return self.out(mixed)

    def global_attention(
        self,
        x: Float[Tensor, "B L D"],
        rows: Int[Tensor, "entries"],
        pattern: LocalPattern,
        record: Record | None,
        position: BoundPosition | None,
    ) -> Float[Tensor, "B G D"]:
        """Attention of the global tokens to all tokens that `pattern.token_mask` allows. `rows`: positions of the global
        tokens in the flattened batch."""
        marks = pattern.global_positions()
        assert marks is not None
        (places, there), (B, L, D) = marks, x.shape
        (q,) = self.split_heads(self.far_q(x.reshape(B * L, D).index_select(0, rows).view(B, -1, D)), 1)
        scale, dropout = self.scale, self.dropout if self.training else 0.0
        if record is None and position is None and self._prefers_folded_kv(places.shape[1]):
            mixed = self._global_folded_kv(q * scale, x, pattern, dropout)
        else:
            k, v = self.split_heads(self.far_kv(x), 2)
            if position is not None:
                _, k, v = position.position.rotate(k, k, v, position.position_ids)
                at = position.position_ids.query_positions(L, q.device).expand(B, -1).gather(1, places)
                q, _, _ = position.position.rotate(q, q, q, PositionIds(at))  # each by its position
            if record is not None:
                record = functools.partial(record, queries=torch.where(there, places, -1))
            mixed = attend(AttentionCall(q, k, v, scale, pattern.token_mask, places, dropout, record=record))
        return mixed.transpose(1, 2).flatten(2)

    def _prefers_folded_kv(self, marked: int) -> bool:
        """Whether multiplying the few global queries by the key weights costs less than keys and values of all tokens."""
        return 2 * marked * self.heads <= self.width and is_plain(self.far_kv, (Linear,))

    def _global_folded_kv(
        self, q: Float[Tensor, "B H G d"], x: Float[Tensor, "B L D"], pattern: LocalPattern, dropout: float
    ) -> Float[Tensor, "B H G d"]:
        """`global_attention` without keys and values: q · (W x) = (Wᵀ q) · x, and Σ p (W x + b) = W (Σ p x) + b Σ p.

        The key bias is omitted: adding the same number to all scores of a query does not change the weights."""
        (B, H, G, _), marks = q.shape, pattern.global_positions()
        assert marks is not None
        keys, values = self.far_kv.weight.view(2, H, -1, self.width)
        scores = (q @ keys).flatten(1, 2) @ x.transpose(1, 2)
        scores = scores.view(B, H, G, -1)
        if pattern.token_mask is not None:
            may = materialize(pattern.token_mask, B, H, marks[0], torch.arange(x.shape[1], device=x.device))
            weights = scores.masked_fill(~may, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(~may, 0.0)
        else:
            weights = scores.softmax(-1)
        weights = F.dropout(weights, dropout, training=dropout > 0.0).to(x.dtype)
        mixed = (weights.flatten(1, 2) @ x).view(B, H, G, -1) @ values.transpose(1, 2)
        return mixed + self.far_kv.bias.view(2, H, 1, -1)[1] * weights.sum(-1, keepdim=True)
