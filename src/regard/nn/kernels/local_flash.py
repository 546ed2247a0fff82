"""Attention within windows on CUDA in 16 bits: torch's flash kernel for the window, the marked tokens beside it.

The kernel knows windows and documents, but no single keys. So the columns of the marked tokens, which are few, are a second
attention over those of them that lie outside the window, and both are joined by their log-sum-exp. The backward pass needs
no more than that: handed the joined result and the joined norm, the flash kernel's own backward gives exactly the share
of the window in the gradient of the whole softmax, and the columns add theirs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard import capabilities
from regard.nn.kernels import local_globals
from regard.nn.kernels.local_globals import Columns
from regard.nn.kernels.local_pattern import Band
from regard.types import Offsets


class Laid(NamedTuple):
    """How the tokens of a batch lie: one row of stretches, each of which sees only itself, and there a window."""

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


def flash_forward(
    q: Tensor, k: Tensor, v: Tensor, at: Laid, scale: float, dropout: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(T, H, d) the mixture, (H, T) its log-sum-exp, and the chance of dropout."""
    found = capabilities.flash_forward(
        q, k, v, at.starts, at.starts, at.longest, at.longest, dropout, False, False, scale=scale,
        window_size_left=at.left, window_size_right=at.right,
    )  # fmt: skip
    chance = found[2] if dropout else torch.zeros(2, dtype=torch.uint64, device=q.device)
    return found[0], found[1], chance


def flash_backward(
    told: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, chance: Tensor, at: Laid, scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    unused = torch.empty(0, device=q.device)
    gradients: tuple[Tensor, Tensor, Tensor] = capabilities.flash_backward(
        told, q, k, v, out, lse, at.starts, at.starts, at.longest, at.longest, dropout, False, chance, unused,
        scale=scale, window_size_left=at.left, window_size_right=at.right,
    )  # fmt: skip
    return gradients


def _beside(q: Tensor) -> Any:
    if not q.is_cuda or not capabilities.available("triton"):
        return local_globals
    from regard.nn.kernels import local_globals_triton

    return local_globals_triton


def forward(
    q: Tensor, k: Tensor, v: Tensor, places: Tensor | None, bounds: Tensor | None, starts: Tensor, longest: int,
    left: int, right: int, scale: float, dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """q, k, v (B, L, H, d): the mixture, its log-sum-exp (H, T), and the chance of dropout, of windows and of columns."""
    at, kept = Laid(starts, longest, left, right), None
    out, lse, chance = flash_forward(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), at, scale, dropout)
    if places is not None and bounds is not None:
        marks = Columns(places, bounds)
        kept = marks.kept(q, dropout)
        _beside(q).join_(q, k, v, marks, out, lse, scale, kept)
    return out.contiguous().view(v.shape), lse, chance, q.new_empty(0) if kept is None else kept


def backward(
    told: Tensor, out: Tensor, lse: Tensor, chance: Tensor, kept: Tensor, q: Tensor, k: Tensor, v: Tensor,
    places: Tensor | None, bounds: Tensor | None, starts: Tensor, longest: int, left: int, right: int, scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    at, told, mixed = Laid(starts, longest, left, right), told.contiguous(), out.flatten(0, 1)
    rows = told.flatten(0, 1), q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    found = flash_backward(*rows, mixed, lse, chance, at, scale, dropout)
    dq, dk, dv = (x.contiguous().view(q.shape) for x in found)
    if places is not None and bounds is not None:
        left_over = kept if dropout else None
        _beside(q).pull_(told, q, k, v, Columns(places, bounds), (mixed, lse), scale, left_over, (dq, dk, dv))
    return dq, dk, dv


_GIVEN = (
    "Tensor q, Tensor k, Tensor v, Tensor? places, Tensor? bounds, Tensor starts, SymInt longest, SymInt left, "
    "SymInt right, float scale, float dropout"
)
_forward_op = torch.library.custom_op(
    "regard::flashed", forward, mutates_args=(), schema=f"({_GIVEN}) -> (Tensor, Tensor, Tensor, Tensor)",
    tags=(torch.Tag.nondeterministic_seeded,),
)  # fmt: skip
_backward_op = torch.library.custom_op(
    "regard::flashed_backward", backward, mutates_args=(),
    schema=f"(Tensor told, Tensor out, Tensor lse, Tensor chance, Tensor kept, {_GIVEN}) -> (Tensor, Tensor, Tensor)",
)  # fmt: skip


@_forward_op.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, places: Tensor | None, *more: Any) -> tuple[Tensor, ...]:
    (B, L, H, _), dropout = q.shape, more[-1]
    kept = q.new_empty((B, H, L, places.shape[1]) if dropout and places is not None else (0,))
    lse = q.new_empty((H, B * L), dtype=torch.promote_types(q.dtype, torch.float32))
    return v.new_empty(v.shape), lse, q.new_empty(2, dtype=torch.uint64), kept


@_backward_op.register_fake
def _(told: Tensor, out: Tensor, lse: Tensor, chance: Tensor, kept: Tensor, *given: Any) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in given[:3])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output, *inputs[:6])
    ctx.sizes = inputs[6:]


def _pull(ctx: Any, told: Tensor, *_: Any) -> tuple[Any, ...]:
    return (*_backward_op(told, *ctx.saved_tensors, *ctx.sizes), *(None,) * 8)


torch.library.register_autograd("regard::flashed", _pull, setup_context=_keep)


def flashed(q: Tensor, k: Tensor, v: Tensor, band: Band, scale: float, dropout: float = 0.0) -> Tensor:
    """Every query over its window and the marked tokens: (B, H, L, d). Rows of padding hold what nobody should read."""
    rows, _, length, _ = q.shape
    at = laid(band, rows, length, q.device)
    marks = None if at.longest <= min(at.left, at.right) + 1 else local_globals.columns(band, at.starts, length)
    seen = (None, None) if marks is None else (marks.places, marks.bounds)
    given = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    mixed: Tensor = _forward_op(*given, *seen, *at, scale, dropout)[0]
    return mixed.transpose(1, 2)
