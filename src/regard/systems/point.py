"""Point Transformer (Zhao et al. 2021): attention among the nearest neighbors in point clouds.

Differences from the Transformer: points have no order. A point attends to its nearest neighbors only; positions are
relative coordinates, in scores and values; scores are vectors from differences of queries and keys, with one weight per
channel or per group of channels. Five stages downsample the point cloud, and five stages upsample again for
segmentation."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Literal

from regard.nn.points import body as points
from regard.nn.points.vector_attention import VectorAttention, paper_attention, reference_attention
from regard.systems.common import recipes
from regard.systems.common.system import ModelConfig, System, presets, reject


@dataclass(frozen=True)
class Config(ModelConfig):
    feature_dim: int = 0
    widths: tuple[int, ...] = (32, 64, 128, 256, 512)
    depths: tuple[int, ...] = (1, 2, 3, 5, 2)
    downsample: tuple[int, ...] = (1, 4, 4, 4, 4)
    num_neighbors: tuple[int, ...] = (8, 16, 16, 16, 16)
    variant: Literal["released", "paper"] = "released"
    share_planes: int = 8
    point_order: Literal["sorted", "given"] = "sorted"
    has_decoder: bool = True
    dropout: float = 0.5

    modality = "points"

    def check(self) -> None:
        stages = len(self.widths)
        for name in ("widths", "depths", "downsample", "num_neighbors"):
            found = getattr(self, name)
            reject(
                len(found) != stages or not found or min(found) < 1,
                f"model.{name} must be numbers of at least 1, one for each of {stages} stages, got {found}.",
            )
        reject(
            self.downsample[0] != 1 or min(self.downsample[1:], default=2) < 2,
            "model.downsample must be 1 for the first stage (all points) and at least 2 for later stages, "
            f"got {self.downsample}.",
        )
        reject(
            self.variant == "released"
            and (self.share_planes < 1 or any(width % self.share_planes for width in self.widths)),
            f"model.share_planes={self.share_planes} must divide each of model.widths={self.widths}.",
        )

    @property
    def width(self) -> int:
        """Size of the hidden states in `sequence`."""
        return self.widths[0] if self.has_decoder else self.widths[-1]


TINY: dict[str, Any] = {
    "widths": (16, 32, 64, 128),
    "depths": (1, 1, 1, 1),
    "downsample": (1, 4, 4, 4),
    "num_neighbors": (8, 8, 8, 8),
}
SMALL: dict[str, Any] = {"widths": (24, 48, 96, 192, 384), "depths": (1, 1, 2, 2, 1)}
PRESETS = presets(
    Config(),
    ("point-tiny", 127_604, recipes.POINT_CLASSES, TINY),
    ("point-small", 1_364_343, recipes.POINT_CLASSES, SMALL),
    ("point-base", 4_903_114, recipes.POINT_CLASSES, {"point_order": "given"}),
    ("point-paper", 7_487_360, recipes.POINT_CLASSES, {"variant": "paper", "num_neighbors": (16,) * 5}),
)
"""Parameter counts of classification without the head, because its size depends on the data. `point-base` with decoder,
three features per point and a head for 13 classes has the 7,767,729 parameters of the released code."""


def build(config: Config) -> points.PointTransformer:
    released, widths = config.variant == "released", config.widths

    def attention(width: int) -> VectorAttention:
        return reference_attention(width, config.share_planes) if released else paper_attention(width)

    def blocks(width: int, count: int) -> list[points.PointTransformerBlock]:
        return [points.PointTransformerBlock(width, attention(width), released) for _ in range(count)]

    first = points.LinearNorm(3 + config.feature_dim, widths[0], bias=False)
    steps = [first, *(points.TransitionDown(before, after) for before, after in itertools.pairwise(widths))]
    down = [
        points.PointStage(step, blocks(*sizes))
        for step, sizes in zip(steps, zip(widths, config.depths, strict=True), strict=True)
    ]
    up: list[points.PointStage] = []
    if config.has_decoder:
        back = [
            points.BottleneckTransition(widths[-1], released),
            *(points.TransitionUp(widths[n + 1], widths[n]) for n in reversed(range(len(widths) - 1))),
        ]
        up = [points.PointStage(step, blocks(width, 1)) for step, width in zip(back, reversed(widths), strict=True)]
    return points.PointTransformer(
        config.feature_dim, down, up, config.downsample[1:], config.num_neighbors, config.point_order == "sorted"
    )


SYSTEM = System("point", "Point Transformer (2021), local vector attention", Config, PRESETS, build, recipes.POINTS)
