"""Attention within windows, a block of queries at a time with the keys in its reach: time and memory are linear in length.

Any device, any dtype, with attention dropout and with marked tokens that everyone sees. Weights are never kept: the
backward pass makes those of a block again, so that a row costs its queries, keys and values and one block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard import capabilities
from regard.nn.attention.masks import Window
from regard.nn.kernels.local_pattern import Band


class Cut(NamedTuple):
    """How rows are cut: so many queries at a time, and about so many weights."""

    block: int
    room: int


KNOWN = 16
"""masks that are kept for other pieces of their form"""


@dataclass(frozen=True)
class Piece:
    """Some queries of some heads of some rows, and the keys within their windows, as slices."""

    rows: slice
    heads: slice
    queries: slice
    keys: slice
    window: Window


def pieces(band: Band, q: Tensor, cut: Cut) -> Iterator[Piece]:
    """Every query once. Under a dilation of r, each r-th token belongs to one of r lines that don't know each other."""
    (rows, heads, length, _), (block, room) = q.shape, cut
    for lane, window in band.lanes(heads):
        assert isinstance(window.dilation, int)
        widest = block + window.left + window.right
        together = max(1, room // ((lane.stop - lane.start) * block * min(widest, length)))
        for top in range(0, rows, together):
            for first in range(min(window.dilation, length)):
                line = range(first, length, window.dilation)
                for begin in range(0, len(line), block):
                    queries = line[begin : begin + block]
                    keys = line[max(0, begin - window.left) : begin + len(queries) + window.right]
                    yield Piece(slice(top, top + together), lane, _slice(queries), _slice(keys), window)


def _slice(line: range) -> slice:
    return slice(line.start, line[-1] + 1, line.step)


class _Pass:
    """What is needed at every piece, and known from one piece to the next."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, band: Band, scale: float) -> None:
        self.q, self.k, self.v, self.band, self.scale = q, k, v, band, scale
        self.at = torch.arange(q.shape[2], device=q.device)
        self.row = torch.arange(q.shape[0], device=q.device).view(-1, 1, 1, 1)
        self.head = self.row[:1]  # the window of a lane does not ask for it
        self.known: dict[tuple[int, ...], Tensor] = {}
        found = band.places()
        self.marked = 0 if found is None else found[0].shape[1]
        if found is None and q.dtype == torch.bfloat16:
            # products take two thirds of the time where the keys of a head lie together, as those beside marked ones do
            self.k, self.v = k.contiguous(), v.contiguous()
        if found is not None:
            self.places, self.there = (x[:, None, None] for x in found)
            self.spread = self.places[:, :, 0, :, None]  # (B, 1, G, 1)
            self.far_k, self.far_v = self.taken(k), self.taken(v)

    def taken(self, x: Tensor) -> Tensor:
        """(B, H, G, d) of the marked tokens."""
        return x.gather(2, self.spread.expand(-1, x.shape[1], -1, x.shape[3]))

    def give_(self, x: Tensor, gradient: Tensor) -> None:
        """The reverse: what the marked tokens are told is added to what their places are told."""
        x.scatter_add_(2, self.spread.expand_as(gradient), gradient.to(x.dtype))

    def masked(self, piece: Piece) -> tuple[Tensor, Tensor | None]:
        """(R or 1, 1, C, K) what is added to scores, 0 or the lowest number; and which queries see nothing (None: none)."""
        q, k = self.at[piece.queries].view(1, 1, -1, 1), self.at[piece.keys].view(1, 1, 1, -1)
        rest = None if self.band.rest is None else self.band.rest(self.row[piece.rows], self.head, q, k)
        if rest is not None and _whole(rest):
            rest = None  # nobody here is padding, or of another document
        far, sizes = self.far(piece, q) if self.marked else None, (q.shape[2], k.shape[3])
        usual = rest is None and (far is None or _whole(far == self.there[piece.rows]))
        steps = (piece.queries.start - piece.keys.start) // piece.keys.step
        form = (piece.rows.start if self.marked else -1, steps, *sizes)  # of any dilation: tokens of one line
        if usual and form in self.known:
            return self.known[form], None
        may = piece.window(self.row[:1], self.head, q, k)
        if rest is not None:
            may = may & rest
        if far is not None:
            may = torch.cat([x.expand(max(len(far), len(may)), -1, q.shape[2], -1) for x in (far, may)], -1)
        added = torch.zeros(may.shape, dtype=self.q.dtype, device=may.device)
        added.masked_fill_(~may, torch.finfo(self.q.dtype).min)
        if usual:
            if len(self.known) >= KNOWN:
                self.known.clear()
            self.known[form] = added
        return added, None if rest is None else ~may.any(-1, keepdim=True)

    def far(self, piece: Piece, q: Tensor) -> Tensor:
        """(R, 1, C, G) which marked tokens a query sees besides: each key stands in the softmax once."""
        row, places = self.row[piece.rows], self.places[piece.rows]
        may = self.there[piece.rows] & ~piece.window(row, self.head, q, places)
        return may if self.band.rest is None else may & self.band.rest(row, self.head, q, places)

    def sides(self, piece: Piece) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, scaled, and keys and values of a piece, those of marked tokens first: each (R · H, …, d)."""
        some = piece.rows, piece.heads
        q, k, v = self.q[*some, piece.queries], self.k[*some, piece.keys], self.v[*some, piece.keys]
        if self.marked:
            k, v = torch.cat((self.far_k[some], k), 2), torch.cat((self.far_v[some], v), 2)
        return (q * self.scale).flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)

    def weights(self, piece: Piece, q: Tensor, k: Tensor) -> Tensor:
        """softmax(q kᵀ) of a piece: (R · H, C, K); q is scaled."""
        added, empty = self.masked(piece)
        heads = piece.heads.stop - piece.heads.start
        if added.shape[0] > 1:
            added = added.expand(-1, heads, -1, -1).flatten(0, 1)
        weights = torch.baddbmm(added.view(-1, *added.shape[-2:]), q, k.transpose(1, 2)).softmax(-1)
        if empty is not None:
            weights.view(-1, heads, *weights.shape[1:]).masked_fill_(empty, 0.0)
        return weights


def _whole(may: Tensor) -> bool:
    """Whether everyone may, where that is known at once: a GPU would be waited for."""
    return may.device.type == "cpu" and bool(may.all())


def _kept(weights: Tensor, dropout: float, seed: int) -> Tensor:
    """What dropout multiplies the weights of a piece by, the same whenever it is asked."""
    chance = torch.Generator(weights.device).manual_seed(seed)
    return torch.empty_like(weights).bernoulli_(1.0 - dropout, generator=chance).div_(1.0 - dropout)


def spacious(x: Tensor) -> Tensor:
    """(B, H, L, d) that lies as (B, L, H, d), as what comes from and goes to a matrix does."""
    B, H, L, d = x.shape
    return x.new_empty(B, L, H, d).transpose(1, 2)


def cut_for(q: Tensor) -> Cut:
    """On CPUs what is fastest for windows of 33 to 513 keys; on GPUs few launches, in some hundred MiB."""
    if q.device.type != "cpu":
        return Cut(512, 2**26)
    return Cut(128 if q.dtype == torch.bfloat16 else 64, 2**20)


class _Blocked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, band: Band, scale: float, dropout: float, cut: Cut
    ) -> Tensor:
        seed = int(torch.randint(2**62, ())) if dropout else 0
        ctx.save_for_backward(q, k, v)
        ctx.told = band, scale, dropout, cut, seed
        whole, out = _Pass(q, k, v, band, scale), spacious(v)
        for number, piece in enumerate(pieces(band, q, cut)):
            queries, keys, values = whole.sides(piece)
            weights = whole.weights(piece, queries, keys)
            if dropout:
                weights *= _kept(weights, dropout, seed + number)
            part = out[piece.rows, piece.heads, piece.queries]
            part.copy_((weights @ values).view(part.shape))
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        q, k, v = ctx.saved_tensors
        band, scale, dropout, cut, seed = ctx.told
        whole, dq = _Pass(q, k, v, band, scale), spacious(q)
        sums = [spacious(x).zero_() for x in (k, v)]
        wide = torch.promote_types(q.dtype, torch.float32)  # marked tokens hear from everyone: many small numbers
        far = [torch.zeros_like(x, dtype=wide) for x in (whole.far_k, whole.far_v)] if whole.marked else []
        for number, piece in enumerate(pieces(band, q, cut)):
            queries, keys, values = whole.sides(piece)
            told = gradient[piece.rows, piece.heads, piece.queries].flatten(0, 1)
            weights = whole.weights(piece, queries, keys)
            d_weights, used = told @ values.transpose(1, 2), weights
            if dropout:
                kept = _kept(weights, dropout, seed + number)
                d_weights, used = d_weights.mul_(kept), weights * kept
            d_values = used.transpose(1, 2) @ told
            d_scores = capabilities.softmax_backward(d_weights, weights)
            part = dq[piece.rows, piece.heads, piece.queries]
            part.copy_((d_scores @ keys).view(part.shape)).mul_(scale)
            for n, found in enumerate((d_scores.transpose(1, 2) @ queries, d_values)):
                found = found.view(part.shape[0], part.shape[1], *found.shape[1:])
                sums[n][piece.rows, piece.heads, piece.keys] += found[:, :, whole.marked :]
                if far:
                    far[n][piece.rows, piece.heads] += found[:, :, : whole.marked]
        for x, found in zip(sums, far, strict=False):
            whole.give_(x, found)
        return dq, *sums, None, None, None, None


def blocked(
    q: Tensor, k: Tensor, v: Tensor, band: Band, scale: float, dropout: float = 0.0, cut: Cut | None = None
) -> Tensor:
    """Every query over its window and the marked tokens, by the same softmax: (B, H, L, e). Marked queries too: what they
    see besides is not seen here."""
    return _Blocked.apply(q, k, v, band, scale, dropout, cut or cut_for(q))  # type: ignore[no-untyped-call]
