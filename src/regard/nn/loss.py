"""Losses as (sum, count), so that accumulation and distribution divide once, by the right number."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from regard.waists import IGNORE


def cross_entropy(
    logits: Float[Tensor, "*rows V"], labels: Int[Tensor, "*rows"], smoothing: float = 0.0
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """The paper's label smoothing: the right class gets 1 - ε, each of the *other* V - 1 classes ε / (V - 1).

    torch spreads its ε over all V classes, the right one included; ε·V/(V - 1) there is ε here.
    """
    V = logits.shape[-1]
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    total = F.cross_entropy(
        logits.reshape(-1, V), labels.reshape(-1), ignore_index=IGNORE, reduction="sum",
        label_smoothing=smoothing * V / (V - 1),
    )  # fmt: skip
    return total, (labels != IGNORE).sum()
