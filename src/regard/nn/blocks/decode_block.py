"""One decoding step of a pre-norm block on CUDA, for few rows, in five launches instead of some twenty.

Norms, biases, activations and residual sums ride along with the linear layers (`few.py`), the attention writes its key and
value itself (`onestep.py`). Taken by `Block` where everything fits; else the block computes as always.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.nn.attention.attention import Attention
from regard.nn.attention.kv_cache import Fixed
from regard.nn.attention.masks import Rule
from regard.nn.blocks.norm import Norm
from regard.nn.kernels import decode_attention, small_linear
from regard.nn.kernels.dispatch import past_form
from regard.nn.kernels.dispatch import step as step_attention
from regard.nn.kernels.linear import Linear
from regard.nn.kernels.pristine import built_of, hooked

ACTIVATIONS = ("gelu", "gelu_tanh", "relu")


def band_of(block: Any, x: Tensor, memory: Any, rule: Rule | None, where: Tensor | None) -> int | None:
    """How far back the step looks (0: to the beginning); None where it must be computed as always."""
    if not x.is_cuda or torch.is_grad_enabled() or x.shape[1] != 1 or len(x) > small_linear.ROWS or where is None:
        return None
    if not isinstance(memory, Fixed) or memory.columns is not None or memory.k is None or memory.v is None:
        return None
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cuda") or not _fits(block, x, memory):
        return None
    return past_form(rule)


def _fits(block: Any, x: Tensor, memory: Fixed) -> bool:
    if not plain(block) or block.crosses or block.training:
        return False
    attend, feed = block.attend, block.feed
    attention = attend.inner
    if attend.placement != "pre" or feed.placement != "pre" or feed.inner.kind not in ACTIVATIONS:
        return False
    if attention.crossing:
        return False
    assert memory.k is not None and memory.v is not None
    wide = feed.inner.down.weight
    return (
        small_linear.serves(x[:, 0], attention.qkv.weight)
        and wide.shape[1] <= small_linear.COLUMNS
        and decode_attention.serves(x, memory.k, memory.v)
    )


def plain(block: nn.Module) -> bool:
    """Whether nobody listens within the block and all its parts are ours: a step reads their weights, it does not call them."""
    from regard.nn.blocks.block import Block, Feed, Residual  # which imports this

    return built_of(block, (Block, Residual, Feed, Attention, Linear, Norm, nn.Dropout)) and not hooked(block)


def step(block: Any, x: Tensor, memory: Fixed, where: Tensor, band: int) -> Tensor:
    attend, feed = block.attend, block.feed
    attention, row = attend.inner, x[:, 0]
    assert memory.k is not None
    qkv = small_linear.few_linear(row, attention.qkv.weight, attention.qkv.bias, norm=_norm(attend.norm))
    scale = attention.score.factor(memory.k.shape[-1])
    mixed = step_attention(qkv, memory, where[:, 0], scale, band)
    row = small_linear.few_linear(mixed, attention.out.weight, attention.out.bias, residual=row)
    up, down = feed.inner.up, feed.inner.down
    inner = small_linear.few_linear(row, up.weight, up.bias, activation=feed.inner.kind, norm=_norm(feed.norm))
    return small_linear.few_linear(inner, down.weight, down.bias, residual=row)[:, None]


def _norm(norm: Any) -> tuple[Tensor, Tensor, float]:
    return norm.weight, norm.bias, norm.eps
