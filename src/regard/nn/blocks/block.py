"""Norms, residual, feed-forward layer, Transformer block, stack of blocks, and embeddings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from regard import capabilities
from regard.errors import SettingError
from regard.nn.attention.attention import Attention
from regard.nn.attention.kv_cache import DynamicCache, KVCache, LayerCache, StaticCache
from regard.nn.attention.masks import AttentionMask
from regard.nn.attention.positions import AttentionPosition, BoundPosition, PositionIds
from regard.nn.kernels.dispatch import decode_step, match_causal
from regard.nn.kernels.linear import Linear, linear, linear_activation
from regard.nn.kernels.losses import linear_cross_entropy
from regard.nn.kernels.table import Kernel, is_plain
from regard.nn.recording import is_recording, keep_state, recorded
from regard.types import Body

NormPlacement = Literal["pre", "post"]


def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "quick_gelu": quick_gelu,
    "swish": F.silu,
    "tanh": torch.tanh,
}


class RMSNorm(nn.RMSNorm):
    """x / √(mean x² + eps) · weight; no mean subtraction and no bias (T5, LLaMA)."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__(width, eps)

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        # 16-bit states under autocast: as in LayerNorm, the result has the dtype of the weight
        return F.rms_norm(x.to(self.weight.dtype), self.normalized_shape, self.weight, self.eps)


class Residual(nn.Module):
    """x + inner(x) with a norm: `post` LN(x + inner(x)) (Vaswani et al. 2017), `pre` x + inner(LN(x)), None: no norm.

    `norm_type`: makes the norm from width and eps, e.g. LayerNorm or RMSNorm."""

    def __init__(
        self,
        inner: nn.Module,
        width: int,
        norm: NormPlacement | None = "post",
        dropout: float = 0.0,
        eps: float = 1e-5,
        norm_type: Callable[[int, float], nn.Module] = nn.LayerNorm,
    ) -> None:
        super().__init__()
        self.inner, self.placement = inner, norm
        self.norm = nn.Identity() if norm is None else norm_type(width, eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "*rows D"], *args: Any, **kwargs: Any) -> Float[Tensor, "*rows D"]:
        added = self.dropout(self.inner(self.norm(x) if self.placement == "pre" else x, *args, **kwargs))
        return self.norm(x + added) if self.placement == "post" else x + added


class FeedForward(nn.Module):
    """Two linear layers with an activation between, for each position separately (equation 2 of the paper).

    `gated`: down(activation(a) · b) with (a, b) = up(x): GeGLU with `gelu`, SwiGLU with `swish` (Shazeer 2020)."""

    def __init__(
        self,
        width: int,
        hidden: int,
        activation: str = "relu",
        dropout: float = 0.0,
        bias: bool = True,
        gated: bool = False,
    ) -> None:
        super().__init__()
        parts = 2 if gated else 1
        self.up, self.down, self.gated = Linear(width, parts * hidden, bias), Linear(hidden, width, bias), gated
        self.activation_name, self.activation = activation, ACTIVATIONS[activation]
        self.dropout = nn.Dropout(dropout)
        self.up.init_xavier(parts)
        self.down.init_xavier()

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        if self.gated:
            a, b = self.up(x).chunk(2, -1)
            return self.down(self.dropout(self.activation(a) * b))
        made = linear_activation(x, self.up.weight, self.up.bias, self.activation_name)
        return self.down(self.dropout(self.activation(self.up(x)) if made is None else made))


class TransformerBlock(nn.Module):
    """Self-attention, optional cross-attention, and feed-forward, each in a Residual."""

    def __init__(self, attend: Residual, feed: Residual, cross: Residual | None = None) -> None:
        super().__init__()
        self.attend, self.cross, self.feed = attend, cross, feed

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        context: Float[Tensor, "B K C"] | None = None,
        *,
        mask: AttentionMask | None = None,
        context_mask: AttentionMask | None = None,
        cache: LayerCache | None = None,
        at: Int[Tensor, "..."] | None = None,
        position: BoundPosition | None = None,
    ) -> Float[Tensor, "B L D"]:
        own, cross = (None, None) if cache is None else (cache.self_cache, cache.cross_cache)
        if position is not None:
            x = self.attend(x, mask=mask, cache=own, at=at, position=position)
        else:
            for kernel in DECODE_KERNELS.get(x.device.type, ()):
                if kernel.accepts(self, x, mask, own, at):
                    return kernel.run(self, x, mask, own, at)
            x = self.attend(x, mask=mask, cache=own, at=at)
        if self.cross is not None:
            x = self.cross(x, context, mask=context_mask, cache=cross)
        return self.feed(x)


def is_pristine_block(block: nn.Module) -> bool:
    """Whether all submodules are of known classes without hooks: the fused step reads weights and calls no submodule."""
    known = (TransformerBlock, Residual, FeedForward, Attention, Linear, nn.LayerNorm, nn.Dropout)
    return is_plain(block, known)


def _accepts_decode_step(
    block: Any, x: Tensor, mask: AttentionMask | None, cache: KVCache | None, at: Tensor | None
) -> bool:
    """Whether one token per row passes a pre-norm block on CUDA, with few rows and a static cache."""
    if at is None or x.shape[1] != 1 or torch.is_grad_enabled() or is_recording():
        return False
    if not isinstance(cache, StaticCache) or cache.write_columns is not None or cache.k is None or cache.v is None:
        return False
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cuda") or not capabilities.is_available("triton"):
        return False
    from regard.nn.kernels import decode_attention, small_linear

    if len(x) > small_linear.MAX_ROWS or block.training or block.cross is not None or not is_pristine_block(block):
        return False
    attend, feed = block.attend, block.feed
    if attend.placement != "pre" or feed.placement != "pre" or feed.inner.gated:
        return False
    if feed.inner.activation_name not in FUSED_ACTIVATIONS:
        return False
    if attend.inner.is_cross or attend.norm.bias is None or feed.norm.bias is None:
        return False
    return (
        small_linear.supports(x[:, 0], attend.inner.qkv.weight)
        and feed.inner.down.weight.shape[1] <= small_linear.MAX_COLUMNS
        and decode_attention.supports(x, cache.k, cache.v)
        and match_causal(mask) is not None
    )


def _decode_step(block: Any, x: Tensor, mask: AttentionMask | None, cache: StaticCache, at: Tensor) -> Tensor:
    """Five kernel launches instead of about twenty: norms, biases, activations and residual sums are fused into the
    linear layers (small_linear.py), and the attention kernel writes key and value into the cache."""
    from regard.nn.kernels.small_linear import small_linear

    attend, feed, row, window = block.attend, block.feed, x[:, 0], match_causal(mask)
    assert window is not None
    attention, up, down = attend.inner, feed.inner.up, feed.inner.down
    before, between = ((norm.weight, norm.bias, norm.eps) for norm in (attend.norm, feed.norm))
    qkv = small_linear(row, attention.qkv.weight, attention.qkv.bias, norm=before)
    mixed = decode_step(qkv, cache, at[:, 0], attention.scale, window)
    row = small_linear(mixed, attention.out.weight, attention.out.bias, residual=row)
    inner = small_linear(row, up.weight, up.bias, activation=feed.inner.activation_name, norm=between)
    return small_linear(inner, down.weight, down.bias, residual=row)[:, None]


FUSED_ACTIVATIONS = ("gelu", "gelu_tanh", "relu")
DECODE_KERNELS = {
    "cuda": (
        Kernel("decode_block", _accepts_decode_step, _decode_step, formula="TransformerBlock.forward",
               gain="48.8 % of GPT-2 generation at batch 1"),
    ),
}  # fmt: skip
"""Kernels of a decoding step of a whole block by device type; without a match, the modules of the block run."""


class Stack(nn.Module):
    """Sequence of blocks, with an optional final norm.

    `position`: relative position in the self-attention, one for all blocks or one per block."""

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        norm: nn.Module | None = None,
        position: AttentionPosition | Sequence[AttentionPosition] | None = None,
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm or nn.Identity()
        self.position = nn.ModuleList(position) if isinstance(position, Sequence) else position
        each = position if isinstance(position, Sequence) else [position] * len(blocks)
        for block, own in zip(blocks, each, strict=True):
            if own is not None:
                attention = _self_attention(block)
                own.check(attention.heads, attention.width // attention.heads)
        self.has_bias = any(own is not None and own.has_bias for own in each)  # whether attention needs key positions

    @recorded
    def forward(
        self,
        x: Float[Tensor, "B L D"],
        context: Float[Tensor, "B K C"] | None = None,
        *,
        mask: AttentionMask | Sequence[AttentionMask | None] | None = None,
        context_mask: AttentionMask | None = None,
        cache: Sequence[LayerCache] | None = None,
        at: Int[Tensor, "..."] | None = None,
        taps: Collection[int] = (),
        position_ids: PositionIds | None = None,
    ) -> tuple[Float[Tensor, "B L D"], tuple[Tensor, ...]]:
        """Final states, and the states after the blocks with the indices `taps` (before the final norm).

        `mask`: one for all blocks, or one per block. `position_ids`: positions of queries and keys for relative
        positions; None: their columns."""
        tapped: list[Tensor] = []
        masks = mask if isinstance(mask, Sequence) else [mask] * len(self.blocks)
        if self.position is not None and position_ids is None:
            past = None if cache is None else cache[0].self_cache
            if at is None and isinstance(past, DynamicCache) and past.k is not None and past.k.shape[-2]:
                raise ValueError("Relative positions with a filled KV cache require at or position_ids.")
            position_ids = PositionIds(at)
        keep_state(self, x)
        for number, block in enumerate(self.blocks):
            more: dict[str, BoundPosition] = {}
            position: Any = self.position[number] if isinstance(self.position, nn.ModuleList) else self.position
            if position is not None and position_ids is not None:
                more["position"] = BoundPosition(position, position_ids, _self_attention(block), number)
            own = None if cache is None else cache[number]
            x = block(x, context, mask=masks[number], context_mask=context_mask, cache=own, at=at, **more)
            keep_state(self, x)
            if number in taps:
                tapped.append(x)
        return self.norm(x), tuple(tapped)


def _self_attention(block: nn.Module) -> Attention:
    attention = block.attend.inner if isinstance(block, TransformerBlock) else None
    if not isinstance(attention, Attention) or attention.is_cross:
        raise ValueError(
            f"Relative positions require the self-attention of a TransformerBlock, got {type(block).__name__}."
        )
    return attention


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
    norm_type: Callable[[int, float], nn.Module] | None = None,
    attention_type: Callable[..., Attention] = Attention,
) -> TransformerBlock:
    """Block of the original Transformer; `cross` adds cross-attention, `gated` a gate to the feed-forward layer, and
    without `bias` linear layers and norms have no bias. `norm_type`: norm other than LayerNorm; `attention_type`: other
    attention."""

    norm_type = norm_type or functools.partial(nn.LayerNorm, bias=bias)
    residual = functools.partial(Residual, width=width, norm=norm, dropout=dropout, eps=eps, norm_type=norm_type)
    attention = functools.partial(attention_type, width, heads, bias=bias, dropout=attention_dropout)
    return TransformerBlock(
        attend=residual(attention()),
        cross=residual(attention(context_width=width)) if cross else None,
        feed=residual(FeedForward(width, hidden, activation, feed_dropout, bias, gated)),
    )


def transformer_blocks(config: Any, depth: int, **settings: Any) -> list[TransformerBlock]:
    """`depth` blocks with the sizes and dropouts of a config. `settings`: further arguments of `transformer_block`."""
    return [
        transformer_block(
            config.width,
            config.heads,
            config.ffn_dim,
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
            **settings,
        )
        for _ in range(depth)
    ]


class SkipInit(TorchFunctionMode):
    """Skips random initialization: a tensor on the meta device has no values, and `normal_` of such a tensor imports
    Dynamo, which takes a second."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_, Tensor.normal_, Tensor.uniform_):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


class TokenEmbedding(nn.Module):
    """Token embeddings, tied to the output matrix, with the bias of the output layer."""

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


# -- embeddings of source and target, and the output layer

EmbeddingSharing = Literal["none", "source_target", "all"]


class SharedEmbeddings(nn.Module):
    """Embeddings of source and target, and the output matrix. `sharing`: `none`, `source_target` (one table for source and
    target), `all` (that table is also the output matrix). `output_weights` selects the output matrix."""

    def __init__(
        self,
        vocab_size: int,
        embedding_width: int,
        output_width: int,
        sharing: EmbeddingSharing = "none",
        source_vocab_size: int = 0,
        bias: bool = False,
    ) -> None:
        """`output_width`: hidden size before the output matrix. `source_vocab_size`: if the source has more tokens than
        the target. `bias`: add a bias to the logits of a separate output matrix."""
        super().__init__()
        self.target = nn.Embedding(vocab_size, embedding_width)
        self.source = nn.Embedding(source_vocab_size or vocab_size, embedding_width) if sharing == "none" else None
        self.output = None if sharing == "all" else Linear(output_width, vocab_size, bias)

    def embed_source(self, ids: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows E"]:
        return (self.source or self.target)(ids)

    @property
    def output_weights(self) -> tuple[Tensor, Tensor | None]:
        """Output matrix (V, D), and bias (V,)."""
        return (self.target.weight, None) if self.output is None else (self.output.weight, self.output.bias)


class TokenPredictor(Body):
    """Body with an output matrix over the target vocabulary. The loss does not store the logits of a batch."""

    @property
    def output_weights(self) -> tuple[Tensor, Tensor | None]:
        """Output matrix (V, D), and bias (V,)."""
        raise NotImplementedError

    def to_logits(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows V"]:
        return linear(x, *self.output_weights)

    def cross_entropy(
        self, x: Float[Tensor, "*rows D"], labels: Int[Tensor, "*rows"], smoothing: float = 0.0
    ) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
        """Sum of the loss of `to_logits(x)`, and number of labels."""
        return linear_cross_entropy(x, *self.output_weights, labels, smoothing)


def to_autocast_dtype(x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
    """x in the 16-bit dtype of autocast on CUDA, so that states between the blocks have 16 bits, too."""
    return x.to(torch.get_autocast_dtype("cuda")) if x.is_cuda and torch.is_autocast_enabled("cuda") else x


def init_normal_(body: nn.Module, std: float, truncated: bool = False) -> None:
    """Initialize matrices and embeddings by N(0, std), and biases by 0."""
    for module in body.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            (nn.init.trunc_normal_ if truncated else nn.init.normal_)(module.weight, std=std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def check_embeddings(config: Any, output: str) -> None:
    """Raise a SettingError for invalid combinations; `output` names the setting of the width before the output matrix."""
    if config.tie_embeddings == "all" and config.embedding_dim != getattr(config, output):
        raise SettingError(
            f"model.tie_embeddings=all requires model.{output} ({getattr(config, output)}) to equal model.embedding_dim "
            f"({config.embedding_dim}). Change one of these sizes, or set model.tie_embeddings=source_target."
        )
    if config.source_vocab_size and config.tie_embeddings != "none":
        raise SettingError(
            "model.source_vocab_size requires a separate source embedding. Set model.tie_embeddings=none."
        )
    if config.source_vocab_size and config.source_vocab_size < config.vocab_size:
        raise SettingError(
            f"model.source_vocab_size ({config.source_vocab_size}) must be at least model.vocab_size ({config.vocab_size}), "
            "because source and target share one tokenizer."
        )
