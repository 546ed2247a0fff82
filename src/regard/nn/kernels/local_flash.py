"""Sliding-window attention on CUDA in 16 bits: PyTorch's flash kernel for the window, and the global tokens in addition.

The flash kernel supports windows and documents, but no individual keys. So the global tokens outside the window are a second,
small attention, merged by log-sum-exp. The backward pass of the flash kernel, called with the merged output and log-sum-exp,
computes exactly the gradient of the window part of the joint softmax; the gradient of the global part is added.

A global token occurs once in the softmax of a query: as a key of the window, or as an additional key from outside.
`merge_global_` and `add_global_gradients_` are the formulas of the Triton kernels (local_globals_triton.py), and run for
head widths that these do not support. Shape letters: B rows, L tokens, G global tokens, H heads, d head width, T = B · L.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard import capabilities
from regard.nn.kernels.local_attention import LocalCall, LocalPattern
from regard.types import Packing


@dataclass(frozen=True, eq=False)
class GlobalKeys:
    """Positions (B, G) of the global tokens, and bounds (4, B, G) of the queries that attend to them: from `bounds[0]`
    to before `bounds[1]`, except queries from `bounds[2]` to `bounds[3]`, whose windows contain the token. Unused
    entries have no queries."""

    positions: Tensor
    bounds: Tensor

    def visible_mask(self, length: int) -> Tensor:
        """(B, 1, L, G) True if the query attends to the global key."""
        at = torch.arange(length, device=self.positions.device)[:, None]
        first, stop, near, close = self.bounds[:, :, None, None]
        return (at >= first) & (at < stop) & ((at < near) | (at > close))

    def flat_index(self, length: int) -> Tensor:
        """(B, G) positions in the flattened batch."""
        return _row_offsets(self.positions, length) + self.positions

    def gather(self, x: Tensor) -> Tensor:
        """(B, G, H, d) rows of x (B, L, H, d) at the global tokens."""
        return x.flatten(0, 1)[self.flat_index(x.shape[1])]

    def scatter_add_(self, x: Tensor, gradient: Tensor) -> None:
        """Add the gradient (B, G, H, d) to x (B, L, H, d) at the global tokens."""
        where = self.flat_index(x.shape[1]).flatten()
        x.view(-1, *x.shape[2:]).index_add_(0, where, gradient.flatten(0, 1).to(x.dtype))

    def dropout_mask(self, q: Tensor, dropout: float) -> Tensor:
        """(B, H, L, G) factors of dropout for the weights."""
        shape = (q.shape[0], q.shape[2], q.shape[1], self.positions.shape[1])
        return torch.empty(shape, device=q.device, dtype=q.dtype).bernoulli_(1.0 - dropout).div_(1.0 - dropout)


def make_global_keys(pattern: LocalPattern, starts: Tensor, length: int) -> GlobalKeys | None:
    """Global keys of a flattened batch with segments that begin at `starts`; None: no global tokens."""
    marks = pattern.global_positions()
    if marks is None:
        return None
    places, there = marks
    begins = _row_offsets(places, length)
    stretch = torch.searchsorted(starts, (begins + places).to(starts.dtype), right=True).clamp(max=len(starts) - 1)
    first, stop = (starts[at] - begins for at in (stretch - 1, stretch))
    bounds = (first, torch.where(there, stop, first), places - pattern.window.right, places + pattern.window.left)
    return GlobalKeys(places, torch.stack(bounds).int())


def _row_offsets(places: Tensor, length: int) -> Tensor:
    return torch.arange(len(places), device=places.device)[:, None] * length


def _to_heads(x: Tensor) -> Tensor:
    """(B, L, H, d) -> (B, H, L, d), in float32 or wider."""
    return x.transpose(1, 2).to(torch.promote_types(x.dtype, torch.float32))


class GlobalCall(NamedTuple):
    """Attention of all queries to the global keys: q, k, v (B, L, H, d), and dropout factors of the weights (B, H, L, G)."""

    q: Tensor
    k: Tensor
    v: Tensor
    global_keys: GlobalKeys
    scale: float
    dropout_mask: Tensor | None


def _scores(call: GlobalCall) -> Tensor:
    """(B, H, L, G) scores, -inf if the query does not attend to the global key."""
    scores = (_to_heads(call.q) * call.scale) @ _to_heads(call.global_keys.gather(call.k)).transpose(2, 3)
    return scores.masked_fill(~call.global_keys.visible_mask(call.q.shape[1]), -torch.inf)


def merge_global_(call: GlobalCall, out: Tensor, lse: Tensor) -> None:
    """Merge the global keys into the window output (T, H, d) and its log-sum-exp (H, T)."""
    B, L, H, _ = call.q.shape
    scores, own = _scores(call), lse.view(H, B, L).transpose(0, 1)
    total = torch.logaddexp(own, scores.logsumexp(-1))
    weights = (scores - total[..., None]).exp()
    used = weights if call.dropout_mask is None else weights * call.dropout_mask
    mixed = used @ _to_heads(call.global_keys.gather(call.v))
    ours = out.view(B, L, H, -1).transpose(1, 2)
    ours.copy_(ours * (own - total).exp()[..., None] + mixed)
    own.copy_(total)


def add_global_gradients_(
    call: GlobalCall, grad_out: Tensor, saved: tuple[Tensor, Tensor], gradients: tuple[Tensor, Tensor, Tensor]
) -> None:
    """Add the gradients of the global keys to `gradients` of the windows; `saved`: merged output and log-sum-exp."""
    q, k, v, global_keys, scale, dropout_mask = call
    (B, L, H, _), (out, lse), (dq, dk, dv) = q.shape, saved, gradients
    weights = (_scores(call) - lse.view(H, B, L).transpose(0, 1)[..., None]).exp()
    mine = _to_heads(grad_out)
    d_weights = mine @ _to_heads(global_keys.gather(v)).transpose(2, 3)
    own = (mine * _to_heads(out.view(B, L, H, -1))).sum(-1, keepdim=True)
    used = weights if dropout_mask is None else weights * dropout_mask
    d_scores = weights * ((d_weights if dropout_mask is None else d_weights * dropout_mask) - own) * scale
    dq.add_((d_scores @ _to_heads(global_keys.gather(k))).transpose(1, 2))
    global_keys.scatter_add_(dk, (d_scores.transpose(2, 3) @ _to_heads(q)).transpose(1, 2))
    global_keys.scatter_add_(dv, (used.transpose(2, 3) @ mine).transpose(1, 2))


def _global_backend(q: Tensor, v: Tensor) -> Any:
    """Module with `merge_global_` and `add_global_gradients_`: Triton, or this module for other devices and head widths."""
    if q.is_cuda and v.shape[-1] == q.shape[-1] and capabilities.is_available("triton"):
        from regard.nn.kernels import local_globals_triton

        if q.shape[-1] in local_globals_triton.HEAD_WIDTHS:
            return local_globals_triton
    return sys.modules[__name__]


@torch.library.custom_op("regard::flashed", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def _forward_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    places: Tensor | None,
    bounds: Tensor | None,
    starts: Tensor,
    longest: int,
    left: int,
    right: int,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output, log-sum-exp (H, T), random state of window dropout, and dropout mask of global keys; q, k, v (B, L, H, d)."""
    rows = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    how = {"scale": scale, "window_size_left": left, "window_size_right": right}
    out, lse, chance, *_ = capabilities.flash_forward(
        *rows, starts, starts, longest, longest, dropout, False, False, **how
    )
    kept = q.new_empty(0)
    if places is not None and bounds is not None:
        marks = GlobalKeys(places, bounds)
        kept = marks.dropout_mask(q, dropout) if dropout else kept
        _global_backend(q, v).merge_global_(GlobalCall(q, k, v, marks, scale, kept if dropout else None), out, lse)
    chance = chance if dropout else torch.zeros(2, dtype=torch.uint64, device=q.device)
    return out.contiguous().view(v.shape), lse, chance, kept


@torch.library.custom_op("regard::flashed_backward", mutates_args=())
def _backward_op(
    gradient: Tensor,
    out: Tensor,
    lse: Tensor,
    chance: Tensor,
    kept: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    places: Tensor | None,
    bounds: Tensor | None,
    starts: Tensor,
    longest: int,
    left: int,
    right: int,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    gradient, mixed = gradient.contiguous(), out.flatten(0, 1)
    rows = gradient.flatten(0, 1), q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    sizes, unused = (starts, starts, longest, longest, dropout, False), torch.empty(0, device=q.device)
    how = {"scale": scale, "window_size_left": left, "window_size_right": right}
    gradients = capabilities.flash_backward(*rows, mixed, lse, *sizes, chance, unused, **how)
    dq, dk, dv = (x.contiguous().view(q.shape) for x in gradients)
    if places is not None and bounds is not None:
        call = GlobalCall(q, k, v, GlobalKeys(places, bounds), scale, kept if dropout else None)
        _global_backend(q, v).add_global_gradients_(call, gradient, (mixed, lse), (dq, dk, dv))
    return dq, dk, dv


@_forward_op.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, places: Tensor | None, *more: Any) -> tuple[Tensor, ...]:
    (B, L, H, _), dropout = q.shape, more[-1]
    kept = q.new_empty((B, H, L, places.shape[1]) if dropout and places is not None else (0,))
    lse = q.new_empty((H, B * L), dtype=torch.promote_types(q.dtype, torch.float32))
    return v.new_empty(v.shape), lse, q.new_empty(2, dtype=torch.uint64), kept


@_backward_op.register_fake
def _(gradient: Tensor, out: Tensor, lse: Tensor, chance: Tensor, kept: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in inputs[:3])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output, *inputs[:6])
    ctx.sizes = inputs[6:]


def _backward_autograd(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Any, ...]:
    return (*_backward_op(gradient, *ctx.saved_tensors, *ctx.sizes), *(None,) * 8)


_forward_op.register_autograd(_backward_autograd, setup_context=_setup_context)


def flash_local_attention(call: LocalCall) -> Tensor:
    """Attention output (B, H, L, d) over the window and the global tokens of every query. Rows of padding are undefined."""
    q, k, v, pattern, scale, dropout, _ = call
    (rows, _, length, _), segments = q.shape, pattern.segments()
    longest, left, right = length, pattern.window.left, pattern.window.right
    if isinstance(segments, Packing):
        starts, longest = segments.starts.int(), segments.max_length  # boundaries in the flattened batch
    else:
        starts = torch.arange(0, (rows + 1) * length, length, dtype=torch.int32, device=q.device)
        if segments is not None:  # the padding of a row is a separate segment, whose output is not used
            ends = starts[:-1] + segments.clamp(max=length).int()
            starts = torch.cat((torch.stack((starts[:-1], ends), 1).flatten(), starts[-1:]))
    marks = None if longest <= min(left, right) + 1 else make_global_keys(pattern, starts, length)
    seen = (None, None) if marks is None else (marks.positions, marks.bounds)
    by_token = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return _forward_op(*by_token, *seen, starts, longest, left, right, scale, dropout)[0].transpose(1, 2)
