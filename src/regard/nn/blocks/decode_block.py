"""One decoding step of a pre-norm block on CUDA, for few rows, in five kernel launches instead of about twenty.

Norms, biases, activations and residual sums are fused into the linear layers (small_linear.py), and the attention kernel
writes key and value into the cache (decode_attention.py). Used by `TransformerBlock` if `step_window` is not None.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.nn.attention.attention import Attention
from regard.nn.attention.kv_cache import StaticCache
from regard.nn.attention.masks import AttentionMask
from regard.nn.blocks.norm import LayerNorm
from regard.nn.kernels import decode_attention, small_linear
from regard.nn.kernels.dispatch import decode_step as step_attention
from regard.nn.kernels.dispatch import match_causal
from regard.nn.kernels.linear import Linear
from regard.nn.kernels.table import has_hooks, is_built_of

FUSED_ACTIVATIONS = ("gelu", "gelu_tanh", "relu")


def step_window(block: Any, x: Tensor, cache: Any, mask: AttentionMask | None, positions: Tensor | None) -> int | None:
    """Attention window of the step (0: all earlier tokens); None if the fused step is not supported."""
    if (
        not x.is_cuda
        or torch.is_grad_enabled()
        or x.shape[1] != 1
        or len(x) > small_linear.MAX_ROWS
        or positions is None
    ):
        return None
    if not isinstance(cache, StaticCache) or cache.write_columns is not None or cache.k is None or cache.v is None:
        return None
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cuda") or not _is_supported_block(block, x, cache):
        return None
    return match_causal(mask)


def _is_supported_block(block: Any, x: Tensor, memory: StaticCache) -> bool:
    if not is_pristine_block(block) or block.has_cross_attention or block.training:
        return False
    attend, feed = block.attend, block.feed
    attention = attend.inner
    if attend.placement != "pre" or feed.placement != "pre" or feed.inner.activation_name not in FUSED_ACTIVATIONS:
        return False
    if attention.is_cross or attend.norm.bias is None or feed.norm.bias is None:
        return False
    assert memory.k is not None and memory.v is not None
    wide = feed.inner.down.weight
    return (
        small_linear.supports(x[:, 0], attention.qkv.weight)
        and wide.shape[1] <= small_linear.MAX_COLUMNS
        and decode_attention.supports(x, memory.k, memory.v)
    )


def is_pristine_block(block: nn.Module) -> bool:
    """Whether all submodules are of known classes without hooks: the fused step reads weights and calls no submodule."""
    from regard.nn.blocks.block import FeedForward, Residual, TransformerBlock  # block.py imports this module

    return is_built_of(
        block, (TransformerBlock, Residual, FeedForward, Attention, Linear, LayerNorm, nn.Dropout)
    ) and not has_hooks(block)


def decode_block(block: Any, x: Tensor, cache: StaticCache, positions: Tensor, window: int) -> Tensor:
    attend, feed = block.attend, block.feed
    attention, row = attend.inner, x[:, 0]
    assert cache.k is not None
    qkv = small_linear.small_linear(row, attention.qkv.weight, attention.qkv.bias, norm=_norm_args(attend.norm))
    mixed = step_attention(qkv, cache, positions[:, 0], attention.scale, window)
    row = small_linear.small_linear(mixed, attention.out.weight, attention.out.bias, residual=row)
    up, down = feed.inner.up, feed.inner.down
    inner = small_linear.small_linear(
        row, up.weight, up.bias, activation=feed.inner.activation_name, norm=_norm_args(feed.norm)
    )
    return small_linear.small_linear(inner, down.weight, down.bias, residual=row)[:, None]


def _norm_args(norm: Any) -> tuple[Tensor, Tensor, float]:
    return norm.weight, norm.bias, norm.eps
