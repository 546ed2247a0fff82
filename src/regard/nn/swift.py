"""One decoding step of a pre-norm block on CUDA, for few rows, in five launches instead of some twenty.

Norms, biases, activations and residual sums ride along with the linear layers (`few.py`), the attention writes its key and
value itself (`onestep.py`). Taken by `Block` where everything fits; else the block computes as always.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.nn import few, onestep
from regard.nn.kernels import past_form
from regard.nn.kernels import step as step_attention
from regard.nn.memory import Fixed
from regard.nn.rules import Rule

ACTIVATIONS = ("gelu", "gelu_tanh", "relu")


def band_of(block: Any, x: Tensor, memory: Any, rule: Rule | None, where: Tensor | None) -> int | None:
    """How far back the step looks (0: to the beginning); None where it must be computed as always."""
    if not x.is_cuda or torch.is_grad_enabled() or x.shape[1] != 1 or len(x) > few.ROWS or where is None:
        return None
    if not isinstance(memory, Fixed) or memory.columns is not None or memory.k is None or memory.v is None:
        return None
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cuda") or not _fits(block, x, memory):
        return None
    return past_form(rule)


def _fits(block: Any, x: Tensor, memory: Fixed) -> bool:
    attend, feed = block.attend, block.feed
    if block.crosses or block.training or attend.placement != "pre" or feed.placement != "pre":
        return False
    attention = attend.inner
    if (
        attention.crossing
        or attention._forward_pre_hooks
        or attention._forward_hooks
        or feed.inner.kind not in ACTIVATIONS
    ):
        return False
    assert memory.k is not None and memory.v is not None
    wide = feed.inner.down.weight
    return (
        few.serves(x[:, 0], attention.qkv.weight)
        and wide.shape[1] <= few.COLUMNS
        and onestep.serves(x, memory.k, memory.v)
    )


def step(block: Any, x: Tensor, memory: Fixed, where: Tensor, band: int) -> Tensor:
    attend, feed = block.attend, block.feed
    attention, row = attend.inner, x[:, 0]
    assert memory.k is not None
    qkv = few.few_linear(row, attention.qkv.weight, attention.qkv.bias, norm=_norm(attend.norm))
    scale = attention.score.factor(memory.k.shape[-1])
    mixed = step_attention(qkv, memory, where[:, 0], scale, band)
    row = few.few_linear(mixed, attention.out.weight, attention.out.bias, residual=row)
    up, down = feed.inner.up, feed.inner.down
    inner = few.few_linear(row, up.weight, up.bias, activation=feed.inner.kind, norm=_norm(feed.norm))
    return few.few_linear(inner, down.weight, down.bias, residual=row)[:, None]


def _norm(norm: Any) -> tuple[Tensor, Tensor, float]:
    return norm.weight, norm.bias, norm.eps
