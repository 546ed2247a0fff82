"""Attention within windows on CUDA in 16 bits: torch's flash kernel for the window, the marked tokens beside it.

The kernel knows windows and documents, but no single keys. So the columns of the marked tokens, which are few, are a second
attention over those of them that lie outside the window, and both are joined by their log-sum-exp. The backward pass needs
no more than that: handed the joined result and the joined norm, the flash kernel's own backward gives exactly the share
of the window in the gradient of the whole softmax, and the columns add theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.nn import columns
from regard.nn.bands import Band
from regard.waists import Offsets

try:  # comes with builds of torch for CUDA
    from regard.nn import beside
except ImportError:
    beside = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Laid:
    """How the tokens of a batch lie: one row of stretches, each of which sees only itself."""

    starts: Tensor
    longest: int
    left: int
    right: int


def lies(band: Band, rows: int) -> bool:
    """Whether the rule says no more than where stretches begin, and steps are not wider than 1."""
    stretches = band.stretches()
    return band.window.dilation == 1 and (
        band.rest is None if stretches is None else rows == 1 or not isinstance(stretches, Offsets)
    )


def laid(band: Band, rows: int, length: int, device: torch.device) -> Laid:
    window, stretches = band.window, band.stretches()
    if not lies(band, rows):
        raise ValueError("flash attention knows windows of rows and of packed documents only")
    if isinstance(stretches, Offsets):
        return Laid(stretches.starts.int(), stretches.longest, window.left, window.right)
    begins = torch.arange(0, (rows + 1) * length, length, dtype=torch.int32, device=device)
    if stretches is not None:  # the padding of a row is a stretch of its own, which nobody reads
        ends = begins[:-1] + stretches.clamp(max=length).int()
        begins = torch.cat((torch.stack((begins[:-1], ends), 1).flatten(), begins[-1:]))
    return Laid(begins, length, window.left, window.right)


def flash_forward(q: Tensor, k: Tensor, v: Tensor, at: Laid, scale: float, dropout: float) -> list[Tensor]:
    """(T, H, d) the mixture, (H, T) the log-sum-exp, and what dropout needs to do the same again."""
    return list(
        torch.ops.aten._flash_attention_forward(
            q, k, v, at.starts, at.starts, at.longest, at.longest, dropout, False, False, scale=scale,
            window_size_left=at.left, window_size_right=at.right,
        )[:4]
    )  # fmt: skip


def flash_backward(
    told: Tensor, q: Tensor, k: Tensor, v: Tensor, saved: list[Tensor], at: Laid, scale: float, dropout: float
) -> tuple[Tensor, Tensor, Tensor]:
    """`saved`: mixture, log-sum-exp, and the two of dropout."""
    out, lse, *chance = saved
    return torch.ops.aten._flash_attention_backward(
        told, q, k, v, out, lse, at.starts, at.starts, at.longest, at.longest, dropout, False, *chance, scale=scale,
        window_size_left=at.left, window_size_right=at.right,
    )  # fmt: skip


def _beside(q: Tensor) -> Any:
    return beside if beside is not None and q.is_cuda else columns


class _Flashed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, marks: columns.Columns | None, at: Laid, scale: float, dropout: float
    ) -> Tensor:
        """q, k, v: (B, L, H, d)."""
        rows = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
        out, lse, *chance = flash_forward(*rows, at, scale, dropout)
        kept = None
        if marks is not None:
            kept = marks.kept(q, dropout)
            _beside(q).join_(q, k, v, marks, out, lse, scale, kept)
        ctx.save_for_backward(q, k, v, out, lse, *chance)
        ctx.told = marks, at, scale, dropout, kept
        return out.view(v.shape)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, told: Tensor) -> tuple[Any, ...]:
        q, k, v, *saved = ctx.saved_tensors
        marks, at, scale, dropout, kept = ctx.told
        told = told.contiguous()
        rows = told.flatten(0, 1), q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
        dq, dk, dv = (x.contiguous().view(q.shape) for x in flash_backward(*rows, saved, at, scale, dropout))
        if marks is not None:
            _beside(q).pull_(told, q, k, v, marks, (saved[0], saved[1]), scale, kept, (dq, dk, dv))
        return dq, dk, dv, None, None, None, None


def flashed(q: Tensor, k: Tensor, v: Tensor, band: Band, scale: float, dropout: float = 0.0) -> Tensor:
    """Every query over its window and the marked tokens: (B, H, L, d). Rows of padding hold what nobody should read."""
    rows, length = q.shape[0], q.shape[2]
    at = laid(band, rows, length, q.device)
    marks = None if at.longest <= min(at.left, at.right) + 1 else columns.columns(band, at.starts, length)
    given = [x.transpose(1, 2) for x in (q, k, v)]
    return _Flashed.apply(*given, marks, at, scale, dropout).transpose(1, 2)  # type: ignore[no-untyped-call]
