"""Longformer's attention: everyone looks at a window and at the marked tokens, and marked tokens look at all.

Two attentions under one `out`: `qkv` within windows, and `far_q` and `far_kv` of the marked tokens, whose result takes the
place of what their window gave. The rule says windows and marks: `(Window(256, 256) | Global(marked)) & Real(lengths)`.
Positions that turn queries and keys (Rotary) act in both; those that need a number for every query and key cannot.
Shape letters: B batch, L length, G marked tokens of a row, H heads, D width, d head width.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from regard.nn.attention.attention import Attention, Dot, Recorder
from regard.nn.attention.kv_cache import Memory
from regard.nn.attention.local_recording import looked
from regard.nn.attention.masks import Rule, dense
from regard.nn.attention.relative_positions import Placed, Standing
from regard.nn.kernels import dispatch, local_dispatch
from regard.nn.kernels.linear import Linear
from regard.nn.kernels.local_pattern import Band, read
from regard.nn.kernels.pristine import built_of, hooked


class Reaching(Attention):
    def __init__(
        self, width: int, heads: int, bias: bool = True, dropout: float = 0.0, score: Dot | None = None
    ) -> None:
        super().__init__(width, heads, None, bias, dropout, score)
        self.far_q = Linear(width, width, bias)
        self.far_kv = Linear(width, 2 * width, bias)
        for matrix in (self.far_q.weight, *self.far_kv.weight.chunk(2)):
            nn.init.xavier_uniform_(matrix)
        if bias:
            nn.init.zeros_(self.far_q.bias)
            nn.init.zeros_(self.far_kv.bias)

    def forward(
        self, x: Float[Tensor, "B L D"], context: Float[Tensor, "B K C"] | None = None, *, rule: Rule | None = None,
        memory: Memory | None = None, where: Int[Tensor, "..."] | None = None, seen: Recorder | None = None,
        inside: Placed | None = None,
    ) -> Float[Tensor, "B L D"]:  # fmt: skip
        band = read(rule)
        if band is None:
            raise ValueError("this attention needs a rule of windows: (Window(…) | Global(…)) & …")
        if context is not None or memory is not None or where is not None:
            raise ValueError("this attention reads whole rows from their beginning, and places are not its own")
        if inside is not None and (inside.position.measures or inside.position.spreads):
            raise ValueError(
                f"{type(inside.position).__name__} has a number for every query and key, and windows have no such table: "
                "Rotary can be used here"
            )
        mixed = self.near(x, band, seen, inside).transpose(1, 2).flatten(2)
        real = band.real(x.shape[1])
        if band.places() is not None:
            mixed = local_dispatch.put(mixed, self.far(x, band, seen, inside), band, real)
        elif real is not None:
            mixed = mixed.masked_fill(~real[:, :, None], 0.0)
        return self.out(mixed)

    def near(
        self, x: Float[Tensor, "B L D"], band: Band, seen: Recorder | None, inside: Placed | None = None
    ) -> Float[Tensor, "B H L d"]:
        """What everyone sees; what marked tokens see in their windows is made for nothing, as they are few."""
        q, k, v = self.project(x)
        if inside is not None:
            q, k, v = inside.turn(q, k, v)
        if band.covers(band.longest(x.shape[1])):
            return self.attend(q, k, v, band.rest, seen=seen)
        scale, dropout = self.score.factor(q.shape[-1]), self.dropout if self.training else 0.0
        if seen is None:
            return local_dispatch.near(q, k, v, band, scale, dropout)
        mixed, weights, keys = looked(q, k, v, band, scale, dropout)
        seen(weights, keys)
        return mixed

    def far(
        self, x: Float[Tensor, "B L D"], band: Band, seen: Recorder | None, inside: Placed | None = None
    ) -> Float[Tensor, "B G D"]:
        """What the marked tokens see: all that is real and of their document."""
        found = band.places()
        assert found is not None
        (places, there), (B, L, D) = found, x.shape
        rows = torch.arange(0, B * L, L, device=x.device)[:, None] + places
        (q,) = self.split(self.far_q(x.reshape(B * L, D).index_select(0, rows.flatten()).view(B, -1, D)), 1)
        scale, dropout = self.score.factor(q.shape[-1]), self.dropout if self.training else 0.0
        if seen is None and inside is None and self._gathers(places.shape[1]):
            mixed = self._gathered(q * scale, x, band, dropout)
        else:
            k, v = self.split(self.far_kv(x), 2)
            if inside is not None:
                _, k, v = inside.turn(k, k, v)
                q = _turned(q, places, L, inside)
            if seen is None:
                mixed = local_dispatch.far(q, k, v, band, scale, dropout)
            else:
                may = dispatch.allowed(q, k, band.rest, places)
                mixed, weights = dispatch.plain(q, k, v, may, scale, dropout)
                seen(weights, None, torch.where(there, places, -1))
        return mixed.transpose(1, 2).flatten(2)

    def _gathers(self, marked: int) -> bool:
        """Whether few enough are marked that taking their queries to the tokens costs less than making the keys and values
        of all tokens for them."""
        few = 2 * marked * self.heads <= self.width
        return few and built_of(self.far_kv, (Linear,)) and not hooked(self.far_kv)

    def _gathered(
        self, q: Float[Tensor, "B H G d"], x: Float[Tensor, "B L D"], band: Band, dropout: float
    ) -> Float[Tensor, "B H G d"]:
        """The same without keys and values: q · (W x) = (Wᵀ q) · x, and Σ p (W x + b) = W (Σ p x) + b Σ p.

        The bias of the keys adds the same to all scores of a query, which changes no weight."""
        (B, H, G, _), found = q.shape, band.places()
        assert found is not None
        keys, values = self.far_kv.weight.view(2, H, -1, self.width)
        scores = (q @ keys).flatten(1, 2) @ x.transpose(1, 2)
        scores = scores.view(B, H, G, -1)
        if band.rest is not None:
            may = dense(band.rest, B, H, found[0], torch.arange(x.shape[1], device=x.device))
            weights = scores.masked_fill(~may, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(~may, 0.0)
        else:
            weights = scores.softmax(-1)
        weights = F.dropout(weights, dropout, training=dropout > 0.0).to(x.dtype)
        mixed = (weights.flatten(1, 2) @ x).view(B, H, G, -1) @ values.transpose(1, 2)
        if self.far_kv.bias is not None:
            mixed = mixed + self.far_kv.bias.view(2, H, 1, -1)[1] * weights.sum(-1, keepdim=True)
        return mixed


def _turned(
    q: Float[Tensor, "B H G d"], places: Int[Tensor, "B G"], length: int, inside: Placed
) -> Float[Tensor, "B H G d"]:
    """Queries of some tokens of a row, each by where it stands."""
    all_places = inside.standing.places(length, q.device)
    standing = Standing(all_places.expand(len(places), -1).gather(1, places))
    return inside.position.turn(q, q, q, standing)[0]
