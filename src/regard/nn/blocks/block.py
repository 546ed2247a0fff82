"""Residual, feed-forward layer, Transformer block, and stack of blocks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from regard import capabilities
from regard.nn.attention.attention import Attention
from regard.nn.attention.kv_cache import CrossCache, DynamicCache, LayerCache, StaticCache
from regard.nn.attention.masks import AttentionMask
from regard.nn.attention.relative_positions import AttentionPosition, BoundPosition, PositionIds
from regard.nn.blocks.losses import linear_cross_entropy
from regard.nn.blocks.norm import LayerNorm
from regard.nn.kernels.linear import Linear, linear, linear_activation
from regard.nn.recording import is_recording, uncompiled_while_recording

NormPlacement = Literal["pre", "post"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "swish": F.silu,
    "tanh": torch.tanh,
}


class Residual(nn.Module):
    """x + inner(x) with a norm: `post` LN(x + inner(x)) (Vaswani et al. 2017), `pre` x + inner(LN(x)), None: no norm.

    `norm_type`: makes the norm from width and eps, e.g. LayerNorm or RMSNorm."""

    def __init__(
        self, inner: nn.Module, width: int, norm: NormPlacement | None = "post", dropout: float = 0.0, eps: float = 1e-5,
        norm_type: Callable[[int, float], nn.Module] = LayerNorm,
    ) -> None:  # fmt: skip
        super().__init__()
        self.inner, self.placement = inner, norm
        self.norm = nn.Identity() if norm is None else norm_type(width, eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "*rows D"], *args: Any, **kwargs: Any) -> Float[Tensor, "*rows D"]:
        if self.placement == "pre":
            return x + self.branch(self.norm(x), *args, **kwargs)
        added = self.branch(x, *args, **kwargs)
        return x + added if self.placement is None else self.norm(x, added)

    def branch(self, x: Float[Tensor, "*rows D"], *args: Any, **kwargs: Any) -> Float[Tensor, "*rows D"]:
        """Dropout of inner(x), the summand of x."""
        return self.dropout(self.inner(x, *args, **kwargs))


class FeedForward(nn.Module):
    """Two linear layers with an activation between, for each position separately (equation 2 of the paper)."""

    def __init__(
        self, width: int, hidden: int, activation: str = "relu", dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__()
        self.up, self.down = Linear(width, hidden, bias), Linear(hidden, width, bias)
        self.activation_name, self.activation = activation, ACTIVATIONS[activation]
        self.dropout = nn.Dropout(dropout)
        for layer in (self.up, self.down):
            nn.init.xavier_uniform_(layer.weight)
            if bias:
                nn.init.zeros_(layer.bias)

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        made = linear_activation(x, self.up.weight, self.up.bias, self.activation_name)
        return self.down(self.dropout(self.activation(self.up(x)) if made is None else made))


class GatedFeedForward(nn.Module):
    """down(activation(a) · b) with (a, b) = up(x): GeGLU with `gelu`, SwiGLU with `swish` (Shazeer 2020)."""

    def __init__(
        self, width: int, hidden: int, activation: str = "gelu", dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__()
        self.up, self.down = Linear(width, 2 * hidden, bias), Linear(hidden, width, bias)
        self.activation = ACTIVATIONS[activation]
        self.dropout = nn.Dropout(dropout)
        for matrix in (*self.up.weight.chunk(2), self.down.weight):
            nn.init.xavier_uniform_(matrix)
        if bias:
            nn.init.zeros_(self.up.bias)
            nn.init.zeros_(self.down.bias)

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        a, b = self.up(x).chunk(2, -1)
        return self.down(self.dropout(self.activation(a) * b))


class TransformerBlock(nn.Module):
    """Self-attention, optional cross-attention, and feed-forward, each in a Residual."""

    def __init__(self, attend: Residual, feed: Residual, cross: Residual | None = None) -> None:
        super().__init__()
        self.attend = attend
        if cross is not None:
            self.cross = cross
        self.feed = feed
        self.has_cross_attention = cross is not None

    def forward(
        self, x: Float[Tensor, "B L D"], context: Float[Tensor, "B K C"] | None = None, *, mask: AttentionMask | None = None,
        context_mask: AttentionMask | None = None, cache: LayerCache | None = None, at: Int[Tensor, "..."] | None = None,
        position: BoundPosition | None = None,
    ) -> Float[Tensor, "B L D"]:  # fmt: skip
        if position is not None:
            own = None if cache is None else cache.self_cache
            x = self.attend(x, mask=mask, cache=own, at=at, position=position)
        else:
            fused = x.is_cuda and not is_recording() and capabilities.is_available("triton")
            if cache is not None and at is not None and fused:
                from regard.nn.blocks import decode_block

                band = decode_block.step_window(self, x, cache.self_cache, mask, at)
                if band is not None:
                    return decode_block.decode_block(self, x, cache.self_cache, at, band)  # type: ignore[arg-type]
            x = self.attend(x, mask=mask, cache=None if cache is None else cache.self_cache, at=at)
        if self.has_cross_attention:
            x = self.cross(x, context, mask=context_mask, cache=None if cache is None else cache.cross_cache)
        return self.feed(x)

    def cross_kv(self, context: Float[Tensor, "B K C"]) -> CrossCache:
        """Keys and values of the context, computed once for all decoding steps."""
        attention: Any = self.cross.inner
        k, v = attention.keys(context)
        return CrossCache((k.contiguous(), v.contiguous()))  # read at every step, so stored without gaps


class Stack(nn.Module):
    """Sequence of blocks, with an optional final norm.

    `position`: relative position in the self-attention, one for all blocks or one per block."""

    def __init__(
        self, blocks: Sequence[nn.Module], norm: nn.Module | None = None,
        position: AttentionPosition | Sequence[AttentionPosition] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm or nn.Identity()
        self.position = (
            position if position is None or isinstance(position, AttentionPosition) else nn.ModuleList(position)
        )
        for block, own in zip(self.blocks, self.positions(), strict=True):
            if own is not None:
                own.check(*_head_shape(block))

    def positions(self) -> Sequence[AttentionPosition | None]:
        """Relative position of each block."""
        several: Any = self.position
        return [*several] if isinstance(self.position, nn.ModuleList) else [several] * len(self.blocks)

    @property
    def depth(self) -> int:
        """Number of KV caches."""
        return len(self.blocks)

    @property
    def has_bias(self) -> bool:
        """Whether attention needs key positions."""
        return self.position is not None and any(own is not None and own.has_bias for own in self.positions())

    @uncompiled_while_recording
    def forward(
        self, x: Float[Tensor, "B L D"], context: Float[Tensor, "B K C"] | None = None, *,
        mask: AttentionMask | Sequence[AttentionMask | None] | None = None, context_mask: AttentionMask | None = None,
        cache: Sequence[LayerCache] | None = None, at: Int[Tensor, "..."] | None = None, taps: Collection[int] = (),
        position_ids: PositionIds | None = None,
    ) -> tuple[Float[Tensor, "B L D"], tuple[Tensor, ...]]:  # fmt: skip
        """Final states, and the states after the blocks with the indices `taps` (before the final norm).

        `mask`: one for all blocks, or one per block. `position_ids`: positions of queries and keys for relative
        positions; None: their columns."""
        tapped: list[Tensor] = []
        rules = mask if isinstance(mask, Sequence) else [mask] * len(self.blocks)
        inside = None if self.position is None else self._bind_positions(cache, at, position_ids)
        for number, block in enumerate(self.blocks):
            kept = None if cache is None else cache[number]
            call = block if inside is None else functools.partial(block, position=inside[number])
            x = call(x, context, mask=rules[number], context_mask=context_mask, cache=kept, at=at)
            if number in taps:
                tapped.append(x)
        return self.norm(x), tuple(tapped)

    def _bind_positions(
        self, memory: Sequence[LayerCache] | None, where: Tensor | None, standing: PositionIds | None
    ) -> list[BoundPosition]:
        if standing is None:
            if where is None and memory is not None and memory[0].self_cache.has_past:
                raise ValueError("Relative positions with a filled KV cache require at or position_ids.")
            standing = PositionIds(where)
        blocks: Any = self.blocks
        return [
            own.bind(standing, block.attend.inner, number)
            for number, (block, own) in enumerate(zip(blocks, self.positions(), strict=True))
            if own is not None
        ]

    def cross_kv(self, context: Float[Tensor, "B K C"]) -> list[CrossCache]:
        blocks: Any = self.blocks
        return [block.cross_kv(context) for block in blocks]

    def make_caches(self, x: Float[Tensor, "B L D"], max_positions: int | None = None) -> list[LayerCache]:
        """Empty caches for rows like x: growing, or of fixed shape with `max_positions`."""
        blocks: Any = self.blocks
        empty = [block.attend.inner.project(x[:, :0])[1:] for block in blocks]
        return [
            LayerCache(DynamicCache(k, v) if max_positions is None else StaticCache(max_positions).allocate(k, v))
            for k, v in empty
        ]


def _head_shape(block: nn.Module) -> tuple[int, int]:
    """Number and width of the heads of a block."""
    attention = block.attend.inner if isinstance(block, TransformerBlock) else None
    if not isinstance(attention, Attention) or attention.is_cross:
        raise ValueError(
            f"Relative positions require the self-attention of a TransformerBlock, got {type(block).__name__}."
        )
    return attention.heads, attention.width // attention.heads


def transformer_block(
    width: int,
    heads: int,
    hidden: int,
    *,
    cross: bool = False,
    norm: NormPlacement = "post",
    activation: str = "relu",
    gated: bool = False,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    feed_dropout: float = 0.0,
    eps: float = 1e-5,
    bias: bool = True,
) -> TransformerBlock:
    """Block of the original Transformer; `cross` adds cross-attention, `gated` a gate to the feed-forward layer, and
    without `bias` linear layers and norms have no bias."""

    def residual(inner: nn.Module) -> Residual:
        return Residual(inner, width, norm, dropout, eps, functools.partial(LayerNorm, bias=bias))

    feed = GatedFeedForward if gated else FeedForward
    attention = functools.partial(Attention, width, heads, bias=bias, dropout=attention_dropout)
    return TransformerBlock(
        attend=residual(attention()),
        cross=residual(attention(context_width=width)) if cross else None,
        feed=residual(feed(width, hidden, activation, feed_dropout, bias)),
    )


class TokenEmbedding(nn.Module):
    """Token embeddings, tied to the output matrix (`to_logits`)."""

    def __init__(self, vocab_size: int, width: int, scaled: bool = True, bias: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, width)
        self.scale = width**0.5 if scaled else 1.0
        if bias:
            self.bias = nn.Parameter(torch.zeros(vocab_size))
        self.has_bias = bias
        nn.init.normal_(self.table.weight, std=width**-0.5)

    def forward(self, ids: Int[Tensor, "B L"]) -> Float[Tensor, "B L D"]:
        return self.table(ids) * self.scale

    def to_logits(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows V"]:
        """Logits, with the embedding matrix as output matrix."""
        return linear(x, self.table.weight, self.bias if self.has_bias else None)

    def cross_entropy(
        self, x: Float[Tensor, "*rows D"], labels: Int[Tensor, "*rows"], smoothing: float = 0.0
    ) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
        """Sum of the loss of `to_logits(x)` and number of labels, without storing the logits."""
        return linear_cross_entropy(x, self.table.weight, self.bias if self.has_bias else None, labels, smoothing)
