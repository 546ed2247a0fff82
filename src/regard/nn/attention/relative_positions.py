"""Where things are, seen inside attention: a query meets a key according to how far apart they stand.

Rotary    turns queries and keys by angles that grow with their positions (Su et al. 2021): any kernel
Buckets   adds to a score what was learned for the distance and the head (Raffel et al. 2020, T5)
Shaw      adds to a key and a value what was learned for the distance (Shaw et al. 2018)

A `Stack` holds one for all its blocks, or one for each, and hands it to their self-attention; cross-attention has none.
Distances are key − query: what stands before is negative. Shape letters as in attention.py.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import SettingError
from regard.nn.attention.positions import Layout, exact

Made = TypeVar("Made")
Relative = Literal["none", "rotary", "rotary-halves", "buckets", "shaw"]


class Standing:
    """Where the queries and the keys of one pass stand, (Q,) or (B, Q) and (K,) or (B, K).

    None: queries from 0 on, and a key where its column is. What layers work out alike is kept for the others of the pass.
    """

    def __init__(self, queries: Tensor | None = None, keys: Tensor | None = None) -> None:
        self.queries, self.keys = queries, keys
        self.kept: list[tuple[tuple[object, ...], tuple[Any, ...], Any]] = []
        """whose it is, its form, and what was made"""

    def once(self, whose: tuple[object, ...], form: tuple[Any, ...], make: Callable[[], Made]) -> Made:
        """What was made before for the same objects, in the same form."""
        for known, known_form, made in self.kept:
            if known_form == form and len(known) == len(whose) and all(map(operator.is_, known, whose)):
                return made
        new = make()
        self.kept.append((whose, form, new))
        return new

    def places(self, length: int, device: torch.device) -> Int[Tensor, "... Q"]:
        return torch.arange(length, device=device) if self.queries is None else self.queries

    def distances(self, queries: int, keys: int, device: torch.device) -> Int[Tensor, "B_or_1 1 Q K"]:
        """key − query; Q is 1 where all queries of a row stand at one place."""

        def make() -> Tensor:
            q = self.places(queries, device)
            k = torch.arange(keys, device=device) if self.keys is None else self.keys
            apart = k[..., None, :] - q[..., :, None]
            return apart[:, None] if apart.ndim == 3 else apart[None, None]

        return self.once((), (queries, keys), make)


class Inside(nn.Module):
    """A position that acts inside attention. What one of them does not do is done by these, which is nothing."""

    measures = False
    """it looks at distances: a score has a bias, and a memory must know where its keys stand"""
    common = False
    """its bias does not depend on the queries, and is the same in all blocks that share it"""
    spreads = False
    """it adds to the values: the weights must be seen, which fused kernels do not show"""

    def check(self, heads: int, head_width: int) -> None:
        """Refuse attentions that it was not made for."""

    def turn(
        self, q: Float[Tensor, "B H Q d"], k: Float[Tensor, "B H Q d"], v: Float[Tensor, "B H Q d"], standing: Standing
    ) -> tuple[Float[Tensor, "B H Q d"], Float[Tensor, "B H Q d"], Float[Tensor, "B H Q d"]]:
        """Queries and the keys and values made of the same tokens, before these are kept."""
        return q, k, v

    def bias(
        self, q: Float[Tensor, "B H Q d"], keys: int, scale: float, standing: Standing
    ) -> Float[Tensor, "B_or_1 H Q_or_1 K"] | None:
        """What is added to the scores of these queries."""
        return None

    def spread(self, weights: Float[Tensor, "B H Q K"], standing: Standing) -> Float[Tensor, "B H Q d"]:
        """What is added to the mixed values, where it `spreads`."""
        raise NotImplementedError


class Rotary(Inside):
    """Channels are turned in pairs, pair i by position · base^(−2i/d): a product of q and k then knows their distance only.

    `interleaved` pairs channels 2i and 2i + 1 (RoFormer), `halves` i and i + d/2 (GPT-NeoX, LLaMA): the same model with
    the channels of q and k permuted, see `to_halves`. `values` turns the values too, by their own positions.
    """

    def __init__(
        self, head_width: int, layout: Layout = "interleaved", base: float = 10000.0, values: bool = False
    ) -> None:
        super().__init__()
        if head_width % 2:
            raise ValueError(f"a head of width {head_width} has no pairs to turn: rotary positions need an even one")
        self.head_width, self.layout, self.base, self.values = head_width, layout, base, values

    def check(self, heads: int, head_width: int) -> None:
        if head_width != self.head_width:
            raise ValueError(f"rotary positions of width {self.head_width} in heads of width {head_width}")

    def turn(
        self, q: Float[Tensor, "B H Q d"], k: Float[Tensor, "B H Q d"], v: Float[Tensor, "B H Q d"], standing: Standing
    ) -> tuple[Float[Tensor, "B H Q d"], Float[Tensor, "B H Q d"], Float[Tensor, "B H Q d"]]:
        form = (q.shape[-2], self.head_width, self.base, q.dtype)
        waves = standing.once((), form, lambda: self.waves(standing.places(q.shape[-2], q.device), q.dtype))
        return self.turned(q, waves), self.turned(k, waves), self.turned(v, waves) if self.values else v

    def waves(self, where: Int[Tensor, "..."], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines (Q, d/2) or (B, 1, Q, d/2), made in float64 and rounded once."""
        kind = exact(where.device)
        pairs = torch.arange(self.head_width // 2, device=where.device, dtype=kind)
        angles = where.to(kind)[..., None] * torch.exp(pairs * (-2 * math.log(self.base) / self.head_width))
        angles = angles[:, None] if angles.ndim == 3 else angles
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def turned(self, x: Float[Tensor, "B H Q d"], waves: tuple[Tensor, Tensor]) -> Float[Tensor, "B H Q d"]:
        cos, sin = waves
        a, b = x.chunk(2, -1) if self.layout == "halves" else (x[..., 0::2], x[..., 1::2])
        parts = torch.addcmul(a * cos, b, sin, value=-1), torch.addcmul(b * cos, a, sin)
        return torch.cat(parts, -1) if self.layout == "halves" else torch.stack(parts, -1).flatten(-2)


def to_halves(rows: Float[Tensor, "D ..."], heads: int) -> Float[Tensor, "D ..."]:
    """The rows of q or k (weights or biases) of an interleaved model, in the order that the same model in halves has."""
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).transpose(1, 2).flatten(0, 2)


def to_interleaved(rows: Float[Tensor, "D ..."], heads: int) -> Float[Tensor, "D ..."]:
    """The way back."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).transpose(1, 2).flatten(0, 2)


class Buckets(Inside):
    """T5's bias: a number for each head and bucket of distances, the same in all blocks.

    Near distances have a bucket each, further ones share buckets whose widths grow, all from `furthest` on the last. With
    `both_ways` half of the buckets are for what stands ahead; without, what is ahead counts as 0 away (it is hidden)."""

    measures = common = True

    def __init__(self, heads: int, buckets: int = 32, furthest: int = 128, both_ways: bool = True) -> None:
        super().__init__()
        self.heads, self.both_ways, self.furthest = heads, both_ways, furthest
        self.sided = buckets // 2 if both_ways else buckets
        if buckets % (4 if both_ways else 2) or not 0 < self.sided // 2 < furthest:
            raise ValueError(f"{buckets} buckets cannot hold distances up to {furthest}: take 32 and 128, as T5 does")
        self.table = nn.Embedding(buckets, heads)
        nn.init.normal_(self.table.weight, std=0.02)

    def check(self, heads: int, head_width: int) -> None:
        if heads != self.heads:
            raise ValueError(f"buckets for {self.heads} heads in an attention of {heads}")

    def bucket(self, distance: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """The first half have one distance each, the others equal shares of its logarithm."""
        alone = self.sided // 2
        away = distance.abs() if self.both_ways else (-distance).clamp(min=0)
        kind = exact(distance.device)
        share = torch.log(away.clamp(min=1).to(kind) / alone) * ((self.sided - alone) / math.log(self.furthest / alone))
        nudge = 1e-9 if kind == torch.float64 else 1e-5  # a distance that is exactly the first of its bucket stays so
        shared = (share + (alone + nudge)).long().clamp(max=self.sided - 1)
        found = torch.where(away < alone, away, shared)
        return found + self.sided * (distance > 0) if self.both_ways else found

    def bias(
        self, q: Float[Tensor, "B H Q d"], keys: int, scale: float, standing: Standing
    ) -> Float[Tensor, "B_or_1 H Q_or_1 K"]:
        def make() -> Tensor:
            apart = standing.distances(q.shape[-2], keys, q.device)[:, 0]
            return self.table(self.bucket(apart)).movedim(-1, 1).to(q.dtype).contiguous()

        return standing.once((self,), (q.shape[-2], keys, q.dtype), make)


class Shaw(Inside):
    """A vector for each distance up to `reach` either way, and one for all beyond; the same for all heads, one table a layer.

    score = q · (k + a) · scale, and with `values` a second vector is added to each value."""

    measures = True

    def __init__(self, head_width: int, reach: int = 16, values: bool = True) -> None:
        super().__init__()
        if reach < 1:
            raise ValueError(f"distances are told apart up to 1 or more, not {reach}")
        self.head_width, self.reach, self.spreads = head_width, reach, values
        self.keys = nn.Embedding(2 * reach + 1, head_width)
        if values:
            self.values = nn.Embedding(2 * reach + 1, head_width)
        for table in self.children():
            assert isinstance(table, nn.Embedding)
            nn.init.xavier_uniform_(table.weight)

    def check(self, heads: int, head_width: int) -> None:
        if head_width != self.head_width:
            raise ValueError(f"vectors of width {self.head_width} for distances in heads of width {head_width}")

    def rows(self, shape: Sequence[int], device: torch.device, standing: Standing) -> Int[Tensor, "B H Q K"]:
        """Which row of the tables belongs to each query and key."""
        B, H, Q, K = shape

        def make() -> Tensor:
            return standing.distances(Q, K, device).clamp(-self.reach, self.reach) + self.reach

        return standing.once((Shaw,), (Q, K, self.reach), make).expand(B, H, Q, K)

    def bias(
        self, q: Float[Tensor, "B H Q d"], keys: int, scale: float, standing: Standing
    ) -> Float[Tensor, "B_or_1 H Q_or_1 K"]:
        by_distance = (q * scale) @ self.keys.weight.to(q.dtype).T
        return by_distance.gather(-1, self.rows((*q.shape[:-1], keys), q.device, standing))

    def spread(self, weights: Float[Tensor, "B H Q K"], standing: Standing) -> Float[Tensor, "B H Q d"]:
        """What was looked at is summed by distance first, in float32 at least: the last rows take the sum of many."""
        rows = self.rows(weights.shape, weights.device, standing)
        kind = torch.promote_types(weights.dtype, torch.float32)
        sums = torch.zeros(*weights.shape[:-1], 2 * self.reach + 1, dtype=kind, device=weights.device)
        by_distance = sums.scatter_add(-1, rows, weights.to(kind)).to(weights.dtype)
        return by_distance @ self.values.weight.to(weights.dtype)


class Placed(NamedTuple):
    """A position, and where queries and keys stand in this pass: what one attention is handed."""

    position: Inside
    standing: Standing

    def turn(
        self, q: Float[Tensor, "B H Q d"], k: Float[Tensor, "B H Q d"], v: Float[Tensor, "B H Q d"]
    ) -> tuple[Float[Tensor, "B H Q d"], Float[Tensor, "B H Q d"], Float[Tensor, "B H Q d"]]:
        return self.position.turn(q, k, v, self.standing)

    def bias(self, q: Float[Tensor, "B H Q d"], keys: int, scale: float) -> Float[Tensor, "B_or_1 H Q_or_1 K"] | None:
        return self.position.bias(q, keys, scale, self.standing)

    def spread(self, weights: Float[Tensor, "B H Q K"]) -> Float[Tensor, "B H Q d"]:
        return self.position.spread(weights, self.standing)

    def alike(self, rule: object, form: tuple[Any, ...], make: Callable[[], Made]) -> Made:
        """What is made of the bias under a rule: once, where that bias is the same in all blocks."""
        return self.standing.once((self.position, rule), form, make) if self.position.common else make()


def inside(config: Any, depth: int, both_ways: bool = False) -> Inside | list[Inside] | None:
    """What `config.relative` asks for in a stack of that many blocks; `both_ways`: where queries look ahead too."""
    check_relative(config)
    kind: Relative = config.relative
    head_width = config.width // config.heads
    if kind == "none":
        return None
    if kind == "buckets":
        return Buckets(config.heads, both_ways=both_ways)
    if kind == "shaw":
        return [Shaw(head_width) for _ in range(depth)]
    return Rotary(head_width, "halves" if kind == "rotary-halves" else "interleaved")


def check_relative(config: Any) -> None:
    """Heads that cannot be turned are refused with the words of a setting."""
    head_width = config.width // config.heads
    if config.relative.startswith("rotary") and head_width % 2:
        raise SettingError(
            f"model.relative={config.relative} turns channels in pairs, and model.width {config.width} among model.heads "
            f"{config.heads} are {head_width} channels a head: take an even number."
        )


def packs(config: Any) -> bool:
    """Whether packed rows cost what they hold: kernels for them know no bias, whose table is as wide as it is long. Recurrence
    and convolutions (`packs` of their configs) go through a row as if it were one text."""
    return getattr(config, "packs", True) and getattr(config, "relative", "none") in ("none", "rotary", "rotary-halves")
