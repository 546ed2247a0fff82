"""Point Transformer's body: clouds of points become coarser and wider from stage to stage, and fine again.

Going down, points that are spread over the cloud each take the largest of what their neighbours have; at every level points
look at their neighbours (nn/points/vector_attention.py); going up, points receive what the nearest coarse ones have
(nn/points/hierarchy.py).

Shape letters: N points of all clouds, M of a coarser level, K neighbours, B clouds, C and D widths.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from regard.errors import RegardError
from regard.nn.kernels.linear import Linear, linear
from regard.nn.points.hierarchy import PointLevel, build_hierarchy
from regard.nn.points.vector_attention import BatchNormRows, Neighbors, VectorAttention, gather_rows
from regard.types import Batch, BodyOutput, Offsets


class LinearNorm(nn.Module):
    """A linear layer and what may stand behind it: a batch norm, a ReLU."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True, norm: bool = True, relu: bool = True) -> None:
        super().__init__()
        self.linear = Linear(inputs, outputs, bias)
        self.norm: nn.Module = BatchNormRows(outputs) if norm else nn.Identity()
        self.has_relu = relu

    def forward(self, x: Float[Tensor, "*rows C"]) -> Float[Tensor, "*rows D"]:
        x = self.norm(self.linear(x))
        return F.relu(x) if self.has_relu else x


class PointTransformerBlock(nn.Module):
    """linear, vector attention, linear, and x added. `released`: with a batch norm behind each of the three, and ReLUs."""

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
    """Each point that is kept takes, of every channel, the largest among its neighbours before: of a linear layer, with a batch
    norm and a ReLU, of where a neighbour stands and what it has."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear, self.norm = Linear(3 + inputs, outputs, bias=False), BatchNormRows(outputs)

    def forward(self, x: Float[Tensor, "N C"], neighbors: Neighbors) -> Float[Tensor, "M D"]:
        places, features = torch.split(self.linear.weight, [3, x.shape[1]], dim=1)
        # one matrix for both in the paper; what a point has is multiplied once, not once for each who is its neighbour
        x = gather_rows(linear(x, features), neighbors.index)
        x = neighbors.apply(self.norm, x + linear(neighbors.offsets.to(x.dtype), places))
        return max_over_neighbors(F.relu(x))  # 0 stands where there is no neighbour, which a ReLU is never below


def max_over_neighbors(x: Float[Tensor, "M K D"]) -> Float[Tensor, "M D"]:
    """Of the neighbours. Gradients go to the one that has it, by its number: `amax` would look for it again by its value, which
    compiled code may have rounded otherwise, and then divide by the none that it finds."""
    return x.max(1).values if torch.is_grad_enabled() and x.requires_grad else x.amax(1)


class BottleneckTransition(nn.Module):
    """The first step of the way up. As released, every point is told the mean of its cloud too."""

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
    """Points of a level, and what they receive of the coarser one, each through a layer of its own, added."""

    def __init__(self, coarse: int, fine: int) -> None:
        super().__init__()
        self.fine, self.coarse = LinearNorm(fine, fine), LinearNorm(coarse, fine)

    def forward(self, x: Float[Tensor, "M C"], level: PointLevel, fine: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        return self.fine(fine) + level.interpolate(self.coarse(x))


class PointStage(nn.Module):
    """What leads to a level, and the blocks there."""

    def __init__(self, transition: nn.Module, blocks: Iterable[PointTransformerBlock]) -> None:
        super().__init__()
        self.step, self.blocks = transition, nn.ModuleList(blocks)

    def forward(self, x: Float[Tensor, "M C"], neighbors: Neighbors, *transition_inputs: Any) -> Float[Tensor, "N D"]:
        """`near`: neighbours at the level; `given`: what else leads there."""
        x = self.step(x, *transition_inputs)
        for block in self.blocks:
            x = block(x, neighbors)
        return x


class PointTransformer(nn.Module):
    """`down`: the stages from the finest level to the coarsest; `up`: those that lead back, from the coarsest, or none.
    `rates`: one point in so many is kept, at each stage after the first; `counts`: neighbours of a point, at each. `ordered`:
    points are looked at in an order of their own, so that the order in which they are given means nothing."""

    compiles_dynamic = False
    """torch.compile is for clouds of one size: of others it would make code anew for each set of levels at which points have
    too few neighbours, half a minute each time"""

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
        if len(strides) != len(down) - 1 or len(num_neighbors) != len(down) or len(up) not in (0, len(down)):
            raise ValueError(
                "Expected one stride for each stage after the first, one number of neighbors per stage, and up stages for "
                f"all stages or none; got {len(down)} stages, {len(strides)} strides, {len(num_neighbors)} numbers of "
                f"neighbors and {len(up)} up stages."
            )
        self.inputs, self.sorts_points = inputs, sort
        self.strides, self.num_neighbors = tuple(strides), tuple(num_neighbors)
        self.down, self.up = nn.ModuleList(down), nn.ModuleList(up)
        self.has_decoder = len(up) > 0

    def forward(self, batch: Batch) -> BodyOutput:
        """`sequence` (1, N, D) are the states of all points as they were given, or (1, M, D) those of the coarsest level where
        nothing leads back; `summary` (B, D) the mean of the coarsest ones of each cloud; `side` has `level0`, `level1`, …,
        the points of the input that each level keeps."""
        x, offsets = self._pack(batch)
        found = build_hierarchy(x, offsets, self.strides, self.num_neighbors, self.has_decoder, self.sorts_points)
        clouds = len(offsets.starts) - 1
        kept = self._encode(gather_rows(x, found.levels[0].point_index), found.levels)
        summary = found.levels[-1].cloud_mean(kept[-1], clouds)
        x = kept[-1]
        if self.has_decoder:
            x = self._decode(kept, found.levels, clouds)
            x = x if found.inverse_order is None else gather_rows(x, found.inverse_order)
        side = {f"level{number}": level.point_index for number, level in enumerate(found.levels)}
        return BodyOutput(x[None], summary, aux_losses=side)

    def _encode(self, x: Float[Tensor, "N C"], levels: Sequence[PointLevel]) -> list[Tensor]:
        """The states of each level."""
        x = x.to(next(self.parameters()).dtype)
        kept: list[Tensor] = []
        for stage, level in zip(self.down, levels, strict=True):
            x = stage(x, level.neighbors, *(() if level.finer_neighbors is None else (level.finer_neighbors,)))
            kept.append(x)
        return kept

    def _decode(self, kept: Sequence[Tensor], levels: Sequence[PointLevel], clouds: int) -> Float[Tensor, "N D"]:
        """The states of the finest level; each is made of those of the coarser one and of its own."""
        deepest, *others = self.up
        x = deepest(kept[-1], levels[-1].neighbors, levels[-1], clouds)
        for number, stage in zip(reversed(range(len(levels) - 1)), others, strict=True):
            x = stage(x, levels[number].neighbors, levels[number + 1], kept[number])
        return x

    def _pack(self, batch: Batch) -> tuple[Float[Tensor, "N C"], Offsets]:
        """Rows one after another, and where clouds begin; without offsets each row of the batch is a cloud."""
        x, offsets = batch.inputs, batch.offsets
        if x.ndim != 3 or x.shape[-1] != 3 + self.inputs or (offsets is not None and len(x) != 1):
            raise RegardError(
                f"Expected points with {3 + self.inputs} values (x, y, z and {self.inputs} features) of shape (batch, "
                f"points, {3 + self.inputs}), or (1, points, {3 + self.inputs}) with offsets, got {tuple(x.shape)}."
            )
        if batch.mask is not None:
            raise ValueError(
                "Padding masks are not supported for point clouds. Concatenate point clouds of different sizes, and pass "
                "their offsets."
            )
        if not x.shape[0] * x.shape[1]:
            raise RegardError("The batch contains a point cloud without points. Remove empty point clouds.")
        if offsets is None:
            starts = torch.arange(len(x) + 1, device=x.device) * x.shape[1]
            offsets = Offsets(starts, x.shape[1])
        return x.flatten(0, 1), offsets


# -- heads


class PointCloudHead(nn.Module):
    """The summary of a cloud -> its class: two layers, each half as wide as the one before, with batch norms and dropout."""

    def __init__(self, width: int, classes: int, dropout: float) -> None:
        super().__init__()
        half, quarter = max(width // 2, 1), max(width // 4, 1)
        self.first, self.second = LinearNorm(width, half), LinearNorm(half, quarter)
        self.dropout, self.classes = nn.Dropout(dropout), Linear(quarter, classes)

    def forward(self, x: Float[Tensor, "B D"]) -> Float[Tensor, "B K"]:
        return self.classes(self.dropout(self.second(self.dropout(self.first(x)))))


class PointHead(nn.Module):
    """The state of a point -> its class."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.before, self.classes = LinearNorm(width, width), Linear(width, classes)

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows K"]:
        return self.classes(self.before(x))


def point_cloud_head(config: Any, classes: int) -> PointCloudHead:
    """Reads `summary`."""
    return PointCloudHead(config.widths[-1], classes, config.dropout)


def point_head(config: Any, classes: int) -> PointHead:
    """Reads `sequence` of a body that leads back to all points."""
    return PointHead(config.widths[0], classes)
