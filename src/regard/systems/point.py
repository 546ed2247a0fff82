"""Point Transformer (Zhao et al. 2021): clouds of points, where each looks at its nearest neighbours.

What is new against the Transformer: nothing stands in a row. A point sees its neighbours in space only, and positions are
differences of places, in the score and in the value; scores subtract and are vectors, a weight for every channel or for a few.
Five stages make the cloud coarser, and five lead back where every point is asked for its class.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any, Literal

from regard.errors import SettingError
from regard.nn.points.body import Deepest, Down, PointBlock, PointBody, Stage, Unit, Up
from regard.nn.points.vector_attention import VectorAttention, paper_attention, released_attention
from regard.systems.common.system import Preset, System, unpublished


@dataclass(frozen=True)
class Config:
    inputs: int = 0
    """numbers that a point has beside its place: 3 of a colour, 3 of a normal"""
    widths: tuple[int, ...] = (32, 64, 128, 256, 512)
    """width of the states, at each stage"""
    blocks: tuple[int, ...] = (1, 2, 3, 5, 2)
    """blocks of each stage on the way down; on the way back each has one"""
    rates: tuple[int, ...] = (1, 4, 4, 4, 4)
    """one point in so many is kept at each stage; the first keeps all"""
    neighbours: tuple[int, ...] = (8, 16, 16, 16, 16)
    """points that a point looks at, itself included, at each stage"""
    form: Literal["released", "paper"] = "released"
    """of the blocks: the authors' code, with batch norms inside and weights that channels share, or the equations"""
    shares: int = 8
    """channels that share a weight, in the released form"""
    order: Literal["sorted", "given"] = "sorted"
    """sorted: points are looked at by their places, so that the order in which they are given means nothing; given: the
    farthest points are counted from the first that is given, as in the authors' code"""
    decodes: bool = True
    """there is a way back to all points; the class of a whole cloud is told without"""
    dropout: float = 0.5
    """share dropped inside the head that tells the class of a cloud"""

    def __post_init__(self) -> None:
        stages = len(self.widths)
        for name in ("widths", "blocks", "rates", "neighbours"):
            found = getattr(self, name)
            if len(found) != stages or not found or min(found) < 1:
                raise SettingError(
                    f"model.{name} are numbers of at least 1, one for each of {stages} stages, not {found}."
                )
        if self.rates[0] != 1 or min(self.rates[1:], default=2) < 2:
            raise SettingError(
                f"model.rates are 1 at the first stage, which keeps all, and at least 2 after it, not {self.rates}."
            )
        if self.inputs < 0:
            raise SettingError(f"model.inputs must be at least 0, not {self.inputs}.")
        if self.form == "released" and (self.shares < 1 or any(width % self.shares for width in self.widths)):
            raise SettingError(f"model.shares {self.shares} must divide each of model.widths {self.widths}.")
        if not 0 <= self.dropout < 1:
            raise SettingError(f"model.dropout must be in [0, 1), not {self.dropout}.")

    @property
    def width(self) -> int:
        """Of the states in `sequence`."""
        return self.widths[0] if self.decodes else self.widths[-1]

    @property
    def features(self) -> int:
        """Width of the summary."""
        return self.widths[-1]


OURS = Config()
RELEASED = replace(OURS, order="given")

_ADAM: dict[str, Any] = {
    "betas": "0.9,0.999", "eps": 1e-8, "decay": 0.05, "schedule": "cosine", "warmup": 0.05, "clip": 1.0, "accumulate": 1,
}  # fmt: skip
CLASSIFY: dict[str, dict[str, Any]] = {
    "train": {**_ADAM, "passes": 60, "clouds": 32, "rate": 2e-3, "smoothing": 0.1},
    "data": {"scale": "0.8,1.25", "jitter": 0.005},
}
RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "segment": {
        "train": {**_ADAM, "passes": 60, "clouds": 8, "rate": 2e-3, "smoothing": 0.0},
        "data": {"turn": "up", "scale": "0.9,1.1", "jitter": 0.005},
    },
}
"""The paper learns by SGD with momentum 0.9 and a decay of 1e-4: 200 passes of ModelNet40 at a rate of 0.05, 40,000 steps of
S3DIS at 0.5, both divided by 10 at 60 and at 80 %. Here all systems learn by Adam, which wants smaller rates."""

PRESETS = {
    "point-tiny": Preset(
        replace(OURS, widths=(16, 32, 64, 128), blocks=(1, 1, 1, 1), rates=(1, 4, 4, 4), neighbours=(8, 8, 8, 8)),
        127_604,
        CLASSIFY,
    ),
    "point-small": Preset(replace(OURS, widths=(24, 48, 96, 192, 384), blocks=(1, 1, 2, 2, 1)), 1_364_343, CLASSIFY),
    "point-base": Preset(RELEASED, 4_903_114, CLASSIFY),
    "point-paper": Preset(replace(OURS, form="paper", neighbours=(16,) * 5), 7_487_360, CLASSIFY),
}
"""Counted as those that tell the class of a cloud, without the head, which comes with the data. `point-base` with a way back,
three numbers beside each place and the head for 13 classes has the 7,767,729 of the released code."""


def build(config: Config) -> PointBody:
    """The whole machine."""
    released, widths = config.form == "released", config.widths

    def attention(width: int) -> VectorAttention:
        return released_attention(width, config.shares) if released else paper_attention(width)

    def blocks(width: int, count: int) -> list[PointBlock]:
        return [PointBlock(width, attention(width), released) for _ in range(count)]

    first = Unit(3 + config.inputs, widths[0], bias=False)
    steps = [first, *(Down(before, after) for before, after in itertools.pairwise(widths))]
    down = [
        Stage(step, blocks(*sizes)) for step, sizes in zip(steps, zip(widths, config.blocks, strict=True), strict=True)
    ]
    up: list[Stage] = []
    if config.decodes:
        back = [
            Deepest(widths[-1], released),
            *(Up(widths[n + 1], widths[n]) for n in reversed(range(len(widths) - 1))),
        ]
        up = [Stage(step, blocks(width, 1)) for step, width in zip(back, reversed(widths), strict=True)]
    return PointBody(config.inputs, down, up, config.rates[1:], config.neighbours, config.order == "sorted")


SYSTEM = System(
    name="point", about="clouds of points of 2021: each looks at its nearest neighbours, a weight for every channel",
    config=Config, presets=PRESETS, build=build, tasks=("classify", "segment"), reads="points", unsayable=unpublished,
    recipes=RECIPES,
)  # fmt: skip
