"""Positions: absolute position embeddings, added to the token embeddings, and positions inside self-attention, where scores
depend on the distance between query and key.

Rotary    rotates queries and keys by angles proportional to their positions (Su et al. 2021); works with any kernel
T5Bias    adds a learned bias per head and distance bucket to the scores (Raffel et al. 2020)
Shaw      adds a learned vector per distance to the keys and values (Shaw et al. 2018)
Disentangled  adds products of queries and keys with projected vectors per distance (DeBERTa, He et al. 2021)

A `Stack` has one position module for all blocks or one per block, for self-attention only.
Distances are key − query: earlier keys have negative distances. Shape letters as in attention.py."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from regard.errors import InputError
from regard.nn.kernels.linear import Linear

SinusoidLayout = Literal["halves", "interleaved"]


def table_dtype(device: torch.device) -> torch.dtype:
    """Precision of position tables before rounding: float64, or float32 on MPS, which has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


class SinusoidalPosition(nn.Module):
    """Sines and cosines with wavelengths from 2π to base · 2π; no parameters, any length.

    `interleaved` is the formula of the paper (channel 2i sine, 2i + 1 cosine), `halves` is [sin | cos] as in published
    checkpoints: the same model with permuted channels. Computed in float64. With an odd width, the last sine has no cosine.
    """

    def __init__(self, width: int, layout: SinusoidLayout = "halves", base: float = 10000.0) -> None:
        super().__init__()
        self.width, self.layout, self.base = width, layout, base
        self.max_length: int | None = None

    def forward(self, positions: Int[Tensor, "..."]) -> Float[Tensor, "... D"]:
        dtype = table_dtype(positions.device)
        pairs = torch.arange((self.width + 1) // 2, device=positions.device, dtype=dtype)
        angles = positions.to(dtype)[..., None] * torch.exp(pairs * (-2 * math.log(self.base) / self.width))
        waves = (angles.sin(), angles.cos())
        if self.layout == "halves":
            return torch.cat(waves, dim=-1)[..., : self.width]
        return torch.stack(waves, dim=-1).flatten(-2)[..., : self.width]


class LearnedPosition(nn.Module):
    """Learned vector per position, for at most `max_length` positions."""

    def __init__(self, max_length: int, width: int, std: float = 0.02) -> None:
        super().__init__()
        self.max_length: int | None = max_length
        self.table = nn.Embedding(max_length, width)
        nn.init.normal_(self.table.weight, std=std)

    def forward(self, positions: Int[Tensor, "..."]) -> Float[Tensor, "... D"]:
        return self.table(positions)


class NoPosition(nn.Module):
    """Zeros: order comes from the causal mask alone, or from relative positions in attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.max_length: int | None = None

    def forward(self, positions: Int[Tensor, "..."]) -> Float[Tensor, "... D"]:
        return torch.zeros((), device=positions.device).expand(*positions.shape, self.width)


AbsolutePosition = LearnedPosition | SinusoidalPosition | NoPosition


def make_absolute_position(config: Any) -> AbsolutePosition:
    """Position embedding for `config.position_embedding`."""
    if config.position_embedding == "none":
        return NoPosition(config.width)
    if config.position_embedding == "learned":
        return LearnedPosition(config.max_length, config.width)
    return SinusoidalPosition(config.width, config.position_embedding)


def check_length(max_length: int | None, length: int) -> None:
    """Raise an error if `length` exceeds `max_length`, the number of positions (None: unlimited)."""
    if max_length is not None and length > max_length:
        raise InputError(
            f"The model has {max_length} positions, but {length} are needed. Shorten the input, or generate fewer tokens."
        )


# -- positions inside self-attention

T = TypeVar("T")
Queries = Float[Tensor, "B H Q d"]
Keys = Float[Tensor, "B H K d"]
Bias = Float[Tensor, "B_or_1 H Q_or_1 K"]
RelativeKind = Literal["none", "rotary", "rotary-halves", "t5", "shaw"]


@dataclass(eq=False)
class PositionIds:
    """Positions of the queries, (Q,) or (B, Q), and of the keys, (K,) or (B, K), of one forward pass.

    None: queries are at 0, 1, …, and keys at their columns. Tables shared by several layers are cached here."""

    queries: Tensor | None = None
    keys: Tensor | None = None
    cache: list[tuple[tuple[object, ...], tuple[Any, ...], Any]] = field(default_factory=list)
    """Owners, key, and value of each cached result."""

    def memoize(self, owners: tuple[object, ...], key: tuple[Any, ...], make: Callable[[], T]) -> T:
        """Cached result for the same owners (by identity) and key; otherwise `make()`."""
        for known, known_form, made in self.cache:
            if known_form == key and len(known) == len(owners) and all(map(operator.is_, known, owners)):
                return made
        new = make()
        self.cache.append((owners, key, new))
        return new

    def query_positions(self, length: int, device: torch.device) -> Int[Tensor, "... Q"]:
        return torch.arange(length, device=device) if self.queries is None else self.queries

    def distances(self, queries: int, keys: int, device: torch.device) -> Int[Tensor, "B_or_1 1 Q K"]:
        """key − query; Q is 1 if all queries of a row are at the same position."""

        def make() -> Tensor:
            q = self.query_positions(queries, device)
            k = torch.arange(keys, device=device) if self.keys is None else self.keys
            apart = k[..., None, :] - q[..., :, None]
            return apart[:, None] if apart.ndim == 3 else apart[None, None]

        return self.memoize((), (queries, keys), make)


@dataclass
class BoundPosition:
    """An `AttentionPosition` in one forward pass of `attention`, the self-attention of block `layer`."""

    position: AttentionPosition
    position_ids: PositionIds
    attention: Any = None
    layer: int = 0


class AttentionPosition(nn.Module):
    """Base class of positions inside attention, without any effect."""

    has_bias = False  # Scores get a bias per distance: the decoding state must store key positions.
    shared = False  # The bias does not depend on the queries and is the same in all blocks.
    adds_values = False  # Adds to the values. Requires the attention weights, which fused kernels do not return.

    heads: int | None = None
    head_width: int | None = None  # Number and width of the heads that the position supports; None: any.

    def check(self, heads: int, head_width: int) -> None:
        """Raise an error if the position does not fit the number or width of heads."""
        name = type(self).__name__
        if self.heads not in (None, heads):
            raise ValueError(f"{name} has {self.heads} heads, but the attention has {heads}.")
        if self.head_width not in (None, head_width):
            raise ValueError(f"{name} has head width {self.head_width}, but the attention has head width {head_width}.")

    def rotate(self, q: Queries, k: Queries, v: Queries, position_ids: PositionIds) -> tuple[Queries, Queries, Queries]:
        """Rotate queries, keys and values of the same tokens, before keys and values enter the cache."""
        return q, k, v

    def bias(self, q: Queries, k: Keys, scale: float, bound: BoundPosition) -> Bias:
        """Bias to add to the scores q · k · scale, if `has_bias`."""
        raise NotImplementedError

    def add_values(self, weights: Float[Tensor, "B H Q K"], position_ids: PositionIds) -> Queries:
        """Term to add to the attention output, if `adds_values`."""
        raise NotImplementedError


class Rotary(AttentionPosition):
    """Rotates channel pair i by the angle position · base^(−2i/d), so that q · k depends on the distance only.

    `interleaved` pairs channels 2i and 2i + 1 (RoFormer), `halves` i and i + d/2 (GPT-NeoX, LLaMA): the same model with
    permuted channels of q and k. `rotate_values` also rotates the values.
    """

    def __init__(
        self,
        head_width: int,
        layout: SinusoidLayout = "interleaved",
        base: float = 10000.0,
        rotate_values: bool = False,
    ) -> None:
        super().__init__()
        if head_width % 2:
            raise ValueError(f"Rotary positions require an even head width, got {head_width}.")
        self.head_width, self.layout, self.base, self.rotates_values = head_width, layout, base, rotate_values
        self.num_pairs = head_width // 2

    def rotate(self, q: Queries, k: Queries, v: Queries, position_ids: PositionIds) -> tuple[Queries, Queries, Queries]:
        form = (q.shape[-2], self.head_width, self.base, q.dtype)
        waves = position_ids.memoize(
            (), form, lambda: self.cos_sin(position_ids.query_positions(q.shape[-2], q.device), q.dtype)
        )
        v = self.apply_rotary(v, waves) if self.rotates_values else v
        return self.apply_rotary(q, waves), self.apply_rotary(k, waves), v

    def cos_sin(self, positions: Int[Tensor, "..."], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines (Q, d/2) or (B, 1, Q, d/2), computed in float64."""
        kind = table_dtype(positions.device)
        pairs = torch.arange(self.num_pairs, device=positions.device, dtype=kind)
        angles = positions.to(kind)[..., None] * torch.exp(pairs * (-math.log(self.base) / self.num_pairs))
        angles = angles[:, None] if angles.ndim == 3 else angles
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def apply_rotary(self, x: Float[Tensor, "B H Q d"], cos_sin: tuple[Tensor, Tensor]) -> Float[Tensor, "B H Q d"]:
        cos, sin = cos_sin
        a, b = x.chunk(2, -1) if self.layout == "halves" else (x[..., 0::2], x[..., 1::2])
        parts = torch.addcmul(a * cos, b, sin, value=-1), torch.addcmul(b * cos, a, sin)
        return torch.cat(parts, -1) if self.layout == "halves" else torch.stack(parts, -1).flatten(-2)


class T5Bias(AttentionPosition):
    """Bias of T5: a number per head and bucket of distances, the same in all blocks.

    Small distances have one bucket each, larger distances have buckets of growing width; `max_distance` and beyond have the
    last. With `bidirectional`, half of the buckets are for later keys; without, later keys count as distance 0 (masked)."""

    has_bias = shared = True
    buckets, max_distance = 32, 128  # As in T5.

    def __init__(self, heads: int, bidirectional: bool = True) -> None:
        super().__init__()
        self.heads, self.bidirectional = heads, bidirectional
        self.buckets_per_side = self.buckets // 2 if bidirectional else self.buckets
        self.table = nn.Embedding(self.buckets, heads)
        nn.init.normal_(self.table.weight, std=0.02)

    def bucket(self, distance: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """Bucket of each distance: one bucket per distance in the first half, logarithmic buckets in the second half."""
        alone = self.buckets_per_side // 2
        away = distance.abs() if self.bidirectional else (-distance).clamp(min=0)
        kind = table_dtype(distance.device)
        share = torch.log(away.clamp(min=1).to(kind) / alone) * (
            (self.buckets_per_side - alone) / math.log(self.max_distance / alone)
        )
        nudge = 1e-9 if kind == torch.float64 else 1e-5  # rounding must not move the first distance of a bucket
        shared = (share + (alone + nudge)).long().clamp(max=self.buckets_per_side - 1)
        bucket = torch.where(away < alone, away, shared)
        return bucket + self.buckets_per_side * (distance > 0) if self.bidirectional else bucket

    def bias(self, q: Queries, k: Keys, scale: float, bound: BoundPosition) -> Bias:
        def make() -> Tensor:
            apart = bound.position_ids.distances(q.shape[-2], k.shape[-2], q.device)[:, 0]
            return self.table(self.bucket(apart)).movedim(-1, 1).to(q.dtype).contiguous()

        return bound.position_ids.memoize((self,), (q.shape[-2], k.shape[-2], q.dtype), make)


class Shaw(AttentionPosition):
    """Vectors per distance from -`max_distance` to `max_distance`, clipped beyond; shared by all heads, one table per layer.

    score = q · (k + a) · scale; another vector per distance is added to each value."""

    has_bias = adds_values = True
    max_distance = 16

    def __init__(self, head_width: int) -> None:
        super().__init__()
        self.head_width = head_width
        self.keys, self.values = (nn.Embedding(2 * self.max_distance + 1, head_width) for _ in range(2))
        for table in (self.keys, self.values):
            nn.init.xavier_uniform_(table.weight)

    def table_index(
        self, shape: Sequence[int], device: torch.device, position_ids: PositionIds
    ) -> Int[Tensor, "B H Q K"]:
        """Row of the tables for each query and key."""
        B, H, Q, K = shape

        def make() -> Tensor:
            return position_ids.distances(Q, K, device).clamp(-self.max_distance, self.max_distance) + self.max_distance

        return position_ids.memoize((Shaw,), (Q, K, self.max_distance), make).expand(B, H, Q, K)

    def bias(self, q: Queries, k: Keys, scale: float, bound: BoundPosition) -> Bias:
        by_distance = (q * scale) @ self.keys.weight.to(q.dtype).T
        return by_distance.gather(-1, self.table_index((*q.shape[:-1], k.shape[-2]), q.device, bound.position_ids))

    def add_values(self, weights: Float[Tensor, "B H Q K"], position_ids: PositionIds) -> Queries:
        """Sums weights by distance first, in float32 or wider because the end rows collect all clipped distances."""
        rows = self.table_index(weights.shape, weights.device, position_ids)
        kind = torch.promote_types(weights.dtype, torch.float32)
        sums = torch.zeros(*weights.shape[:-1], 2 * self.max_distance + 1, dtype=kind, device=weights.device)
        by_distance = sums.scatter_add(-1, rows, weights.to(kind)).to(weights.dtype)
        return by_distance @ self.values.weight.to(weights.dtype)


DisentangledTerm = Literal["c2p", "p2c"]
"""content-to-position: query · vector of the distance; position-to-content: key · vector of the distance."""


class DisentangledPosition(AttentionPosition):
    """Vectors per bucket of distances, shared by all blocks and projected like queries and keys by each block.

    score = (q · k + q · K(r) + k · Q(r)) · scale, where r is the vector of the distance query − key, K and Q are the
    projections of the block's keys and queries (`own_projections`: further projections of each block), and
    `scale` = 1/√(d · (1 + number of terms)) is the scale of the attention module (`DisentangledPosition.scale`).

    Distances below `buckets / 2` have one vector each, larger distances logarithmic buckets up to `max_distance`."""

    has_bias = True

    def __init__(
        self,
        width: int,
        depth: int,
        buckets: int = 256,
        max_distance: int = 512,
        terms: Sequence[DisentangledTerm] = ("c2p", "p2c"),
        own_projections: bool = False,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        """`buckets`: 0: one vector per distance up to `max_distance`. `norm`: norm of the vectors."""
        super().__init__()
        self.buckets, self.max_distance, self.terms = buckets, max_distance, tuple(terms)
        self.span = buckets or max_distance
        self.table = nn.Embedding(2 * self.span, width)
        nn.init.normal_(self.table.weight, std=0.02)
        self.norm = norm or nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.projections = nn.ModuleList(
            nn.ModuleDict({term: Linear(width, width) for term in self.terms})
            for _ in range(depth if own_projections else 0)
        )

    def scale(self, head_width: int) -> float:
        """Scale of the attention modules with this position."""
        return (head_width * (1 + len(self.terms))) ** -0.5

    def bucket(self, distance: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """Row of the table for distances query − key."""
        if self.buckets:
            # in float32, as the published code: other precisions round a few distances to the next bucket
            middle = self.buckets // 2
            away = torch.where(distance.abs() < middle, middle - 1, distance.abs())
            steps = torch.log(away / middle) / torch.log(torch.tensor((self.max_distance - 1) / middle)) * (middle - 1)
            far = (torch.ceil(steps) + middle).long() * distance.sign()
            distance = torch.where(away <= middle, distance, far)
        return (distance + self.span).clamp(0, 2 * self.span - 1)

    def bias(self, q: Queries, k: Keys, scale: float, bound: BoundPosition) -> Bias:
        (B, H, Q, _), K, ids = q.shape, k.shape[-2], bound.position_ids
        index = ids.memoize((self,), ("index", Q, K), lambda: self.bucket(-ids.distances(Q, K, q.device)))
        index = index.expand(B, H, Q, K)
        vectors = self.dropout(ids.memoize((self,), ("vectors",), lambda: self.norm(self.table.weight)))
        parts = []
        for term in self.terms:
            projected = self.project(vectors, term, bound).view(len(vectors), H, -1).transpose(0, 1)  # (H, 2 · span, d)
            if term == "c2p":
                parts.append(((q * scale) @ projected.mT).gather(-1, index))
            else:
                parts.append((projected @ (k * scale).mT).gather(-2, index))
        return functools.reduce(torch.add, parts)

    def project(
        self, vectors: Float[Tensor, "N D"], term: DisentangledTerm, bound: BoundPosition
    ) -> Float[Tensor, "N D"]:
        """Vectors of the distances as keys (c2p) or as queries (p2c) of a block."""
        if len(self.projections):
            own: Any = self.projections[bound.layer]
            return own[term](vectors)
        width, qkv = vectors.shape[-1], bound.attention.qkv
        part = slice(width, 2 * width) if term == "c2p" else slice(0, width)
        return F.linear(vectors, qkv.weight[part], None if qkv.bias is None else qkv.bias[part])


def make_position(
    config: Any, depth: int, bidirectional: bool = False
) -> AttentionPosition | list[AttentionPosition] | None:
    """Relative position of `config.relative_position` for a stack of `depth` blocks. `bidirectional`: queries also attend to
    later keys."""
    kind: RelativeKind = config.relative_position
    head_width = config.width // config.heads
    if kind == "none":
        return None
    if kind == "t5":
        return T5Bias(config.heads, bidirectional=bidirectional)
    if kind == "shaw":
        return [Shaw(head_width) for _ in range(depth)]
    return Rotary(head_width, "halves" if kind == "rotary-halves" else "interleaved")
