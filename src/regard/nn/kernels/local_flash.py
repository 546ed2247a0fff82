"""Sliding-window attention on CUDA in 16 bits: PyTorch's flash kernel for the window, and the global tokens in addition.

The flash kernel supports windows and documents, but no individual keys. So the global tokens outside the window are a second,
small attention, merged by log-sum-exp. The backward pass of the flash kernel, called with the merged output and log-sum-exp,
computes exactly the gradient of the window part of the joint softmax; the gradient of the global part is added.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard import capabilities
from regard.nn.kernels import local_globals
from regard.nn.kernels.local_globals import GlobalKeys
from regard.nn.kernels.local_pattern import LocalPattern
from regard.types import Offsets


class SegmentLayout(NamedTuple):
    """Boundaries of the segments in the flattened batch, and the window; tokens attend within their segment only."""

    starts: Tensor
    max_length: int
    left: int
    right: int


def supports(pattern: LocalPattern, rows: int) -> bool:
    """Whether the mask consists of a window with dilation 1 and contiguous segments."""
    stretches = pattern.segments()
    return pattern.window.dilation == 1 and (
        pattern.token_mask is None if stretches is None else rows == 1 or not isinstance(stretches, Offsets)
    )


def segment_layout(pattern: LocalPattern, rows: int, length: int, device: torch.device) -> SegmentLayout:
    window, stretches = pattern.window, pattern.segments()
    if not supports(pattern, rows):
        raise ValueError("Flash attention supports windows with dilation 1, over whole rows or packed documents, only.")
    if isinstance(stretches, Offsets):
        return SegmentLayout(stretches.starts.int(), stretches.max_length, window.left, window.right)
    begins = torch.arange(0, (rows + 1) * length, length, dtype=torch.int32, device=device)
    if stretches is not None:  # the padding of a row is a separate segment, whose output is not used
        ends = begins[:-1] + stretches.clamp(max=length).int()
        begins = torch.cat((torch.stack((begins[:-1], ends), 1).flatten(), begins[-1:]))
    return SegmentLayout(begins, length, window.left, window.right)


def flash_forward(
    q: Tensor, k: Tensor, v: Tensor, layout: SegmentLayout, scale: float, dropout: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Output (T, H, d), log-sum-exp (H, T), and the random state of dropout."""
    found = capabilities.flash_forward(
        q, k, v, layout.starts, layout.starts, layout.max_length, layout.max_length, dropout, False, False, scale=scale,
        window_size_left=layout.left, window_size_right=layout.right,
    )  # fmt: skip
    chance = found[2] if dropout else torch.zeros(2, dtype=torch.uint64, device=q.device)
    return found[0], found[1], chance


def flash_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    rng_state: Tensor,
    layout: SegmentLayout,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    unused = torch.empty(0, device=q.device)
    gradients: tuple[Tensor, Tensor, Tensor] = capabilities.flash_backward(
        grad_out,
        q,
        k,
        v,
        out,
        lse,
        layout.starts,
        layout.starts,
        layout.max_length,
        layout.max_length,
        dropout,
        False,
        rng_state,
        unused,
        scale=scale,
        window_size_left=layout.left,
        window_size_right=layout.right,
    )
    return gradients


def _global_backend(q: Tensor) -> Any:
    if not q.is_cuda or not capabilities.is_available("triton"):
        return local_globals
    from regard.nn.kernels import local_globals_triton

    return local_globals_triton


def forward(
    q: Tensor, k: Tensor, v: Tensor, places: Tensor | None, bounds: Tensor | None, starts: Tensor, longest: int,
    left: int, right: int, scale: float, dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Output, log-sum-exp (H, T), random state of window dropout, and dropout mask of global keys; q, k, v (B, L, H, d)."""
    at, kept = SegmentLayout(starts, longest, left, right), None
    out, lse, chance = flash_forward(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), at, scale, dropout)
    if places is not None and bounds is not None:
        marks = GlobalKeys(places, bounds)
        kept = marks.dropout_mask(q, dropout)
        _global_backend(q).merge_global_(q, k, v, marks, out, lse, scale, kept)
    return out.contiguous().view(v.shape), lse, chance, q.new_empty(0) if kept is None else kept


def backward(
    gradient: Tensor, out: Tensor, lse: Tensor, chance: Tensor, kept: Tensor, q: Tensor, k: Tensor, v: Tensor,
    places: Tensor | None, bounds: Tensor | None, starts: Tensor, longest: int, left: int, right: int, scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    at, gradient, mixed = SegmentLayout(starts, longest, left, right), gradient.contiguous(), out.flatten(0, 1)
    rows = gradient.flatten(0, 1), q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    found = flash_backward(*rows, mixed, lse, chance, at, scale, dropout)
    dq, dk, dv = (x.contiguous().view(q.shape) for x in found)
    if places is not None and bounds is not None:
        left_over = kept if dropout else None
        _global_backend(q).add_global_gradients_(
            gradient, q, k, v, GlobalKeys(places, bounds), (mixed, lse), scale, left_over, (dq, dk, dv)
        )
    return dq, dk, dv


_SCHEMA_ARGS = (
    "Tensor q, Tensor k, Tensor v, Tensor? places, Tensor? bounds, Tensor starts, SymInt longest, SymInt left, "
    "SymInt right, float scale, float dropout"
)
_forward_op = torch.library.custom_op(
    "regard::flashed", forward, mutates_args=(), schema=f"({_SCHEMA_ARGS}) -> (Tensor, Tensor, Tensor, Tensor)",
    tags=(torch.Tag.nondeterministic_seeded,),
)  # fmt: skip
_backward_op = torch.library.custom_op(
    "regard::flashed_backward", backward, mutates_args=(),
    schema=f"(Tensor gradient, Tensor out, Tensor lse, Tensor chance, Tensor kept, {_SCHEMA_ARGS}) -> (Tensor, Tensor, Tensor)",
)  # fmt: skip


@_forward_op.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, places: Tensor | None, *more: Any) -> tuple[Tensor, ...]:
    (B, L, H, _), dropout = q.shape, more[-1]
    kept = q.new_empty((B, H, L, places.shape[1]) if dropout and places is not None else (0,))
    lse = q.new_empty((H, B * L), dtype=torch.promote_types(q.dtype, torch.float32))
    return v.new_empty(v.shape), lse, q.new_empty(2, dtype=torch.uint64), kept


@_backward_op.register_fake
def _(gradient: Tensor, out: Tensor, lse: Tensor, chance: Tensor, kept: Tensor, *given: Any) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in given[:3])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output, *inputs[:6])
    ctx.sizes = inputs[6:]


def _backward_autograd(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Any, ...]:
    return (*_backward_op(gradient, *ctx.saved_tensors, *ctx.sizes), *(None,) * 8)


torch.library.register_autograd("regard::flashed", _backward_autograd, setup_context=_setup_context)


def flash_local_attention(
    q: Tensor, k: Tensor, v: Tensor, pattern: LocalPattern, scale: float, dropout: float = 0.0
) -> Tensor:
    """Attention output (B, H, L, d) over the window and the global tokens of every query. Rows of padding are undefined."""
    rows, _, length, _ = q.shape
    at = segment_layout(pattern, rows, length, q.device)
    marks = (
        None
        if at.max_length <= min(at.left, at.right) + 1
        else local_globals.make_global_keys(pattern, at.starts, length)
    )
    seen = (None, None) if marks is None else (marks.positions, marks.bounds)
    given = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    mixed: Tensor = _forward_op(*given, *seen, *at, scale, dropout)[0]
    return mixed.transpose(1, 2)
