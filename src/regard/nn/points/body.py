"""Body of Point Transformer: an encoder with coarser and wider stages, and a decoder back to all points.

Levels of sampled points, their neighbors and interpolation weights are computed from the coordinates only, once before
the network, and shared by all blocks of a level. Encoder stages sample points by farthest point sampling and max-pool
the features of their neighbors; blocks apply vector attention to the neighbors (nn/points/vector_attention.py); decoder
stages interpolate from the nearest coarse points.

Shape letters: N points of all point clouds, M of a coarser level, K neighbors, B point clouds, C and D widths.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from regard.capabilities import disable_compile
from regard.errors import InputError
from regard.nn.kernels.linear import Linear, linear
from regard.nn.points.knn import knn, knn_interpolation
from regard.nn.points.packing import CloudSizes, farthest_point_sampling, lexicographic_order
from regard.nn.points.vector_attention import BatchNormRows, Neighbors, VectorAttention, gather_rows
from regard.types import Batch, Body, BodyOutput, Packing

# -- levels


@dataclass(frozen=True)
class PointLevel:
    """One level of all point clouds."""

    point_index: Int[Tensor, "M"]
    neighbors: Neighbors
    cloud_index: Int[Tensor, "M"]
    points_per_cloud: int  # Points per point cloud, if equal for all point clouds at all levels; else 0.
    finer_neighbors: Neighbors | None = None  # Neighbors in the finer level; None: this is the finest level.
    interp_index: Int[Tensor, "N K"] | None = None  # Nearest points of this level for each point of the finer level.
    interp_weights: Float[Tensor, "N K"] | None = None

    def cloud_mean(self, x: Float[Tensor, "M D"], num_clouds: int) -> Float[Tensor, "B D"]:
        """Mean over the points of each point cloud."""
        if self.points_per_cloud:
            return x.view(num_clouds, self.points_per_cloud, -1).mean(1)
        wide = x if x.dtype == torch.float64 else x.float()
        total = wide.new_zeros(num_clouds, x.shape[1]).index_add(0, self.cloud_index, wide)
        counts = torch.zeros_like(total[:, :1]).index_add(0, self.cloud_index, torch.ones_like(wide[:, :1]))
        return (total / counts).to(x.dtype)

    def interpolate(self, x: Float[Tensor, "M D"]) -> Float[Tensor, "N D"]:
        """Interpolate features to the points of the finer level."""
        assert self.interp_index is not None and self.interp_weights is not None
        return (gather_rows(x, self.interp_index) * self.interp_weights.to(x.dtype)[..., None]).sum(1)


def build_hierarchy(
    x: Tensor, packing: Packing, strides: Sequence[int], num_neighbors: Sequence[int], interpolate: bool, sort: bool
) -> tuple[list[PointLevel], Tensor | None]:
    """Levels of x, whose first three columns are coordinates, from the finest to the coarsest, and the row of each input
    point in the finest level (None: the same row). `strides`: one of this many points is kept, for each level after the
    first; `num_neighbors`: neighbors per point and level. `interpolate`: also compute interpolation weights. `sort`: order
    the points by coordinates."""
    # 64 and 65 points have equally many samples at the next level, which must not cause a recompilation
    is_uniform = packing.max_length * (len(packing.starts) - 1) == len(x)
    sizes = CloudSizes.from_offsets(len(x), packing)
    index, inverse_order = torch.arange(len(x), device=x.device), None
    if sort:
        order = lexicographic_order(x.detach())
        if len(sizes.counts) > 1:
            order = order[sizes.cloud_index(x.device)[order].argsort(stable=True)]
        inverse_order, index = torch.empty_like(order).scatter_(0, order, index), order
    # in 16 bits, neighbors would have equal coordinates
    points = gather_rows(x[:, :3].float() if x.element_size() < 4 else x[:, :3], index)
    neighbors = find_neighbors(points, sizes, num_neighbors[0], points, sizes)
    levels = [PointLevel(index, neighbors, sizes.cloud_index(x.device), is_uniform * sizes.uniform_size)]
    for stride, k in zip(strides, num_neighbors[1:], strict=True):
        coarse_sizes = sizes.downsampled(stride)
        samples = farthest_point_sampling(points, sizes, coarse_sizes)
        coarse, index = gather_rows(points, samples), index[samples]
        neighbors = find_neighbors(coarse, coarse_sizes, k, coarse, coarse_sizes)
        finer = find_neighbors(points, sizes, k, coarse, coarse_sizes)
        per_cloud = is_uniform * coarse_sizes.uniform_size
        level = PointLevel(index, neighbors, coarse_sizes.cloud_index(x.device), per_cloud, finer)
        if interpolate:
            nearest, weights = knn_interpolation(coarse, coarse_sizes, points, sizes)
            level = replace(level, interp_index=nearest, interp_weights=weights)
        levels.append(level)
        points, sizes = coarse, coarse_sizes
    return levels, inverse_order


build_uncompiled = disable_compile(build_hierarchy)


def find_neighbors(
    points: Float[Tensor, "N 3"], sizes: CloudSizes, k: int, queries: Float[Tensor, "M 3"], query_sizes: CloudSizes
) -> Neighbors:
    """Neighbors of the queries, and their offsets from the queries."""
    index = knn(points, sizes, k, queries, query_sizes)
    if min(sizes.counts) >= index.shape[1]:
        return Neighbors(index, gather_rows(points, index) - queries[:, None])
    real, index = index >= 0, index.clamp(min=0)
    offsets = gather_rows(points, index) - queries[:, None]
    return Neighbors(index, offsets, real, real.flatten().nonzero()[:, 0])  # synchronizes to count the neighbors


# -- modules


class LinearNorm(nn.Module):
    """Linear layer, optional batch norm, optional ReLU."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True, norm: bool = True, relu: bool = True) -> None:
        super().__init__()
        self.linear = Linear(inputs, outputs, bias)
        self.norm: nn.Module = BatchNormRows(outputs) if norm else nn.Identity()
        self.has_relu = relu

    def forward(self, x: Float[Tensor, "*rows C"]) -> Float[Tensor, "*rows D"]:
        x = self.norm(self.linear(x))
        return F.relu(x) if self.has_relu else x


class PointTransformerBlock(nn.Module):
    """x + linear(attention(linear(x))). `reference`: with batch norms and ReLUs, as in the published code."""

    def __init__(self, width: int, attend: VectorAttention, reference: bool) -> None:
        super().__init__()
        self.enter = LinearNorm(width, width, bias=not reference, norm=reference, relu=reference)
        self.attend = attend
        self.norm: nn.Module = BatchNormRows(width) if reference else nn.Identity()
        self.leave = LinearNorm(width, width, bias=not reference, norm=reference, relu=False)
        self.is_reference = reference

    def forward(self, x: Float[Tensor, "N D"], neighbors: Neighbors) -> Float[Tensor, "N D"]:
        inner = self.norm(self.attend(self.enter(x), neighbors))
        if not self.is_reference:
            return x + self.leave(inner)
        return F.relu(x + self.leave(F.relu(inner)))


class TransitionDown(nn.Module):
    """Max pooling over the neighbors of each sampled point, after linear layer, batch norm and ReLU of offset and features."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear, self.norm = Linear(3 + inputs, outputs, bias=False), BatchNormRows(outputs)

    def forward(self, x: Float[Tensor, "N C"], neighbors: Neighbors) -> Float[Tensor, "M D"]:
        places, features = torch.split(self.linear.weight, [3, x.shape[1]], dim=1)
        # one matrix for both in the paper; features are multiplied once per point instead of once per neighbor
        x = gather_rows(linear(x, features), neighbors.index)
        x = neighbors.apply(self.norm, x + linear(neighbors.offsets.to(x.dtype), places))
        return max_over_neighbors(F.relu(x))  # missing neighbors are 0, the minimum of ReLU


def max_over_neighbors(x: Float[Tensor, "M K D"]) -> Float[Tensor, "M D"]:
    """Maximum over K. In training by index: `amax` searches the maximum again by value, which compiled code may have
    rounded differently, and then divides the gradient by the number of matches, which is 0."""
    return x.max(1).values if torch.is_grad_enabled() and x.requires_grad else x.amax(1)


class BottleneckTransition(nn.Module):
    """First decoder stage. `reference`: concatenates the point cloud mean to every point, as in the published code."""

    def __init__(self, width: int, reference: bool) -> None:
        super().__init__()
        self.is_reference = reference
        self.join = LinearNorm(2 * width if reference else width, width)
        if reference:
            self.whole = LinearNorm(width, width, norm=False)

    def forward(self, x: Float[Tensor, "M D"], level: PointLevel, num_clouds: int) -> Float[Tensor, "M D"]:
        if not self.is_reference:
            return self.join(x)
        mean = self.whole(level.cloud_mean(x, num_clouds))
        return self.join(torch.cat([x, gather_rows(mean, level.cloud_index)], 1))


class TransitionUp(nn.Module):
    """Sum of the features of a level and of the interpolated coarser features, each after its own layer."""

    def __init__(self, coarse: int, fine: int) -> None:
        super().__init__()
        self.fine, self.coarse = LinearNorm(fine, fine), LinearNorm(coarse, fine)

    def forward(self, x: Float[Tensor, "M C"], level: PointLevel, fine: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        return self.fine(fine) + level.interpolate(self.coarse(x))


class PointStage(nn.Module):
    """Transition to a level, and the blocks of the level."""

    def __init__(self, transition: nn.Module, blocks: Iterable[PointTransformerBlock]) -> None:
        super().__init__()
        self.step, self.blocks = transition, nn.ModuleList(blocks)

    def forward(self, x: Float[Tensor, "M C"], neighbors: Neighbors, *transition_inputs: Any) -> Float[Tensor, "N D"]:
        """`neighbors`: neighbors within the level; `transition_inputs`: additional arguments of the transition."""
        x = self.step(x, *transition_inputs)
        for block in self.blocks:
            x = block(x, neighbors)
        return x


class PointTransformer(Body):
    """`down`: encoder stages, from the finest level; `up`: decoder stages, from the coarsest level, or empty. `strides`: one
    of this many points is kept, for each stage after the first; `num_neighbors`: neighbors per point, for each stage. `sort`:
    process points in lexicographic order, so that the result does not depend on the input order."""

    compiles_dynamic = False
    """torch.compile only for point clouds of equal size: otherwise each set of levels with too few neighbors is
    compiled separately, half a minute each time."""

    def __init__(
        self,
        inputs: int,
        down: Sequence[PointStage],
        up: Sequence[PointStage],
        strides: Sequence[int],
        num_neighbors: Sequence[int],
        sort: bool = True,
    ) -> None:
        super().__init__()
        self.inputs, self.sorts_points = inputs, sort
        self.strides, self.num_neighbors = tuple(strides), tuple(num_neighbors)
        self.down, self.up = nn.ModuleList(down), nn.ModuleList(up)
        self.has_decoder = len(up) > 0

    def forward(self, batch: Batch) -> BodyOutput:
        """`sequence`: states of all points in input order (1, N, D), or of the coarsest level (1, M, D) without a
        decoder; `pooled` (B, D): mean of the coarsest level; `aux_losses`: `level0`, `level1`, …, the indices of the
        input points of each level."""
        x, packing = self._pack(batch)
        clouds = len(packing.starts) - 1
        # point clouds of equal size need no synchronization and can be compiled; other sizes are read from the device
        build = build_hierarchy if packing.max_length * clouds == len(x) else build_uncompiled
        levels, order = build(x, packing, self.strides, self.num_neighbors, self.has_decoder, self.sorts_points)
        kept: list[Tensor] = []
        x = gather_rows(x, levels[0].point_index).to(next(self.parameters()).dtype)
        for stage, level in zip(self.down, levels, strict=True):
            x = stage(x, level.neighbors, *(() if level.finer_neighbors is None else (level.finer_neighbors,)))
            kept.append(x)
        summary = levels[-1].cloud_mean(x, clouds)
        if self.has_decoder:
            deepest, *others = self.up
            x = deepest(x, levels[-1].neighbors, levels[-1], clouds)
            for number, stage in zip(reversed(range(len(levels) - 1)), others, strict=True):
                x = stage(x, levels[number].neighbors, levels[number + 1], kept[number])
            x = x if order is None else gather_rows(x, order)
        side = {f"level{number}": level.point_index for number, level in enumerate(levels)}
        return BodyOutput(x[None], summary, aux_losses=side)

    def _pack(self, batch: Batch) -> tuple[Float[Tensor, "N C"], Packing]:
        """Points of all point clouds as rows, and their offsets; without offsets, each row of the batch is a point cloud."""
        x, offsets = batch.inputs, batch.packing
        if x.ndim != 3 or x.shape[-1] != 3 + self.inputs or (offsets is not None and len(x) != 1):
            raise InputError(
                f"Expected points with {3 + self.inputs} values (x, y, z and {self.inputs} features) of shape (batch, "
                f"points, {3 + self.inputs}), or (1, points, {3 + self.inputs}) with offsets, got {tuple(x.shape)}."
            )
        if batch.mask is not None:
            raise ValueError(
                "Padding masks are not supported for point clouds. Concatenate point clouds of different sizes, and pass "
                "their offsets."
            )
        if not x.shape[0] * x.shape[1]:
            raise InputError("The batch contains a point cloud without points. Remove empty point clouds.")
        if offsets is None:
            starts = torch.arange(len(x) + 1, device=x.device) * x.shape[1]
            offsets = Packing(starts, x.shape[1])
        return x.flatten(0, 1), offsets


# -- heads


def point_cloud_head(config: Any, classes: int) -> nn.Sequential:
    """Classification head for `pooled` of the body: two layers, each of half the width before, with norms and dropout."""
    width, dropout = config.widths[-1], nn.Dropout(config.dropout)
    half, quarter = max(width // 2, 1), max(width // 4, 1)
    layers: dict[str, nn.Module] = {"first": LinearNorm(width, half), "first_dropout": dropout}
    layers |= {"second": LinearNorm(half, quarter), "second_dropout": dropout, "classes": Linear(quarter, classes)}
    return nn.Sequential(OrderedDict(layers))


def point_head(config: Any, classes: int) -> nn.Sequential:
    """Classification head for `sequence` of a body with a decoder."""
    width = config.widths[0]
    return nn.Sequential(OrderedDict(before=LinearNorm(width, width), classes=Linear(width, classes)))
