"""Losses as (sum, count), so that accumulation and distribution divide once, by the right number."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from regard.waists import IGNORE


def cross_entropy(
    logits: Float[Tensor, "*rows V"], labels: Int[Tensor, "*rows"], smoothing: float = 0.0
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """The paper's label smoothing: the right class gets 1 - ε, each of the *other* V - 1 classes ε / (V - 1).

    torch spreads its ε over all V classes, the right one included; ε·V/(V - 1) there is ε here.
    """
    V = logits.shape[-1]
    rows, wanted, spread = logits.reshape(-1, V), labels.reshape(-1), smoothing * V / max(V - 1, 1)
    if logits.device.type == "cpu" and logits.requires_grad and not torch.compiler.is_compiling():
        total: Tensor = InBlocks.apply(rows, wanted, spread)  # type: ignore[no-untyped-call]
    else:
        rows = rows.float() if rows.dtype in (torch.bfloat16, torch.float16) else rows
        total = F.cross_entropy(rows, wanted, ignore_index=IGNORE, reduction="sum", label_smoothing=spread)
    return total, (labels != IGNORE).sum()


class InBlocks(torch.autograd.Function):
    """The same for CPUs: loss and gradient of a few rows at a time, while they are in the cache.

    `F.cross_entropy` goes over all logits of a batch half a dozen times, most of them in float32; for 8,000 tokens that was
    a fifth of a training step. The gradient, probability minus target, is made with the loss and kept in the logits' dtype.
    """

    NUMBERS = 2**18
    """of a block"""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, spread: float) -> Tensor:
        R, V = logits.shape
        wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
        gradient = torch.empty_like(logits)
        total = torch.zeros((), dtype=wide)
        asked = labels != IGNORE
        for first in range(0, R, step := max(InBlocks.NUMBERS // V, 1)):
            part = slice(first, first + step)
            logs = logits[part].to(wide).log_softmax(-1)
            real, right = asked[part], torch.where(asked[part], labels[part], 0)[:, None]
            own = logs.gather(1, right)[:, 0]
            loss = -(1 - spread) * own - (spread / V) * logs.sum(-1) if spread else -own
            whole = bool(real.all())
            total += loss.sum() if whole else loss[real].sum()
            change = logs.exp_()
            if spread:
                change -= spread / V
            change.scatter_add_(1, right, torch.full_like(right, spread - 1, dtype=wide))
            gradient[part] = change if whole else change.masked_fill_(~real[:, None], 0.0)
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *told: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        once = float(told[0]) == 1.0  # a sum that is pulled back as it is, as training does
        return gradient if once else gradient * told[0].to(gradient.dtype), None, None
