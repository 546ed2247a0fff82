"""Global tokens as additional keys of sliding-window attention, merged into the output of the windows (PyTorch reference).

A global token occurs once in the softmax of a query: as a key of the window, or as an additional key from outside.
Shape letters: B rows, L tokens, G global tokens, H heads, d head width, T = B · L.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.nn.kernels.local_pattern import LocalPattern


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

    def dropout_mask(self, q: Tensor, dropout: float) -> Tensor | None:
        """(B, H, L, G) factors of dropout for the weights; None: no dropout."""
        if not dropout:
            return None
        shape = (q.shape[0], q.shape[2], q.shape[1], self.positions.shape[1])
        return torch.empty(shape, device=q.device, dtype=q.dtype).bernoulli_(1.0 - dropout).div_(1.0 - dropout)


def make_global_keys(pattern: LocalPattern, starts: Tensor, length: int) -> GlobalKeys | None:
    """Global keys of a flattened batch with segments that begin at `starts`; None: no global tokens."""
    found = pattern.global_positions()
    if found is None:
        return None
    places, there = found
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


def _scores(q: Tensor, k: Tensor, marks: GlobalKeys, scale: float) -> Tensor:
    """(B, H, L, G) scores, -inf if the query does not attend to the global key."""
    scores = (_to_heads(q) * scale) @ _to_heads(marks.gather(k)).transpose(2, 3)
    return scores.masked_fill(~marks.visible_mask(q.shape[1]), -torch.inf)


def merge_global_(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    global_keys: GlobalKeys,
    out: Tensor,
    lse: Tensor,
    scale: float,
    dropout_mask: Tensor | None,
) -> None:
    """Merge the global keys into the window output (T, H, d) and its log-sum-exp (H, T); q, k, v are (B, L, H, d)."""
    B, L, H, _ = q.shape
    scores, own = _scores(q, k, global_keys, scale), lse.view(H, B, L).transpose(0, 1)
    total = torch.logaddexp(own, scores.logsumexp(-1))
    weights = (scores - total[..., None]).exp()
    mixed = (weights if dropout_mask is None else weights * dropout_mask) @ _to_heads(global_keys.gather(v))
    ours = out.view(B, L, H, -1).transpose(1, 2)
    ours.copy_(ours * (own - total).exp()[..., None] + mixed)
    own.copy_(total)


def add_global_gradients_(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, global_keys: GlobalKeys, saved: tuple[Tensor, Tensor], scale: float,
    dropout_mask: Tensor | None, gradients: tuple[Tensor, Tensor, Tensor],
) -> None:  # fmt: skip
    """Add the gradients of the global keys to `gradients` of the windows; `saved`: merged output and log-sum-exp."""
    (B, L, H, _), (out, lse), (dq, dk, dv) = q.shape, saved, gradients
    weights = (_scores(q, k, global_keys, scale) - lse.view(H, B, L).transpose(0, 1)[..., None]).exp()
    mine = _to_heads(grad_out)
    d_weights = mine @ _to_heads(global_keys.gather(v)).transpose(2, 3)
    own = (mine * _to_heads(out.view(B, L, H, -1))).sum(-1, keepdim=True)
    used = weights if dropout_mask is None else weights * dropout_mask
    d_scores = weights * ((d_weights if dropout_mask is None else d_weights * dropout_mask) - own) * scale
    dq.add_((d_scores @ _to_heads(global_keys.gather(k))).transpose(1, 2))
    global_keys.scatter_add_(dk, (d_scores.transpose(2, 3) @ _to_heads(q)).transpose(1, 2))
    global_keys.scatter_add_(dv, (used.transpose(2, 3) @ mine).transpose(1, 2))
