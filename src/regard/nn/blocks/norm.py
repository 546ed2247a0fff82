"""LayerNorm and RMSNorm with an optional residual sum."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from regard import capabilities


class LayerNorm(nn.LayerNorm):
    """LN(x), or LN(x + residual)."""

    def forward(
        self, x: Float[Tensor, "*rows D"], residual: Float[Tensor, "*rows D"] | None = None
    ) -> Float[Tensor, "*rows D"]:
        if residual is None:
            return super().forward(x)
        if x.is_cuda and not torch.is_grad_enabled() and self._can_fuse(x, residual):
            from regard.nn.kernels import add_layernorm

            return add_layernorm.add_layernorm(x, residual, self.weight, self.bias, self.eps)
        return super().forward(x + residual)

    def add_norm(
        self, x: Float[Tensor, "*rows D"], residual: Float[Tensor, "*rows D"]
    ) -> tuple[Float[Tensor, "*rows D"], Float[Tensor, "*rows D"]]:
        """x + residual, and LN(x + residual)."""
        if torch.compiler.is_compiling() and self._can_fuse_half(x, residual):
            from regard.nn.kernels import add_layernorm

            both: tuple[Tensor, Tensor] = add_layernorm.add_layernorm_with_sum(
                x, residual, self.weight, self.bias, self.eps
            )
            return both
        x = x + residual
        return x, super().forward(x)

    def _can_fuse_half(self, x: Tensor, more: Tensor) -> bool:
        halves = x.dtype == more.dtype == self.weight.dtype and x.dtype in (torch.bfloat16, torch.float16)
        quiet = not torch.is_grad_enabled() and not torch.is_autocast_enabled("cuda")
        return x.is_cuda and halves and quiet and x.shape == more.shape and capabilities.is_available("triton")

    def _can_fuse(self, x: Tensor, more: Tensor) -> bool:
        if torch.compiler.is_compiling() or torch.is_autocast_enabled("cuda"):
            return False
        same = x.dtype == more.dtype == self.weight.dtype and x.dtype != torch.float64 and x.shape == more.shape
        return same and capabilities.is_available("triton")


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
