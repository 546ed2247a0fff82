"""LayerNorm and RMSNorm with an optional residual sum."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


class LayerNorm(nn.LayerNorm):
    """LN(x), or LN(x + residual)."""

    def forward(
        self, x: Float[Tensor, "*rows D"], residual: Float[Tensor, "*rows D"] | None = None
    ) -> Float[Tensor, "*rows D"]:
        return super().forward(x if residual is None else x + residual)


class RMSNorm(nn.RMSNorm):
    """x / √(mean x² + eps) · weight, optionally of x + residual; no mean subtraction and no bias (T5, LLaMA)."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__(width, eps)

    def forward(
        self, x: Float[Tensor, "*rows D"], residual: Float[Tensor, "*rows D"] | None = None
    ) -> Float[Tensor, "*rows D"]:
        x = x if residual is None else x + residual
        # 16-bit states under autocast: as in LayerNorm, the result has the dtype of the weight
        return F.rms_norm(x.to(self.weight.dtype), self.normalized_shape, self.weight, self.eps)
