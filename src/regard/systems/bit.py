"""Big Transfer (Kolesnikov et al. 2019): a ResNet that learns from very many pictures, and then from few of one's own.

What is new against ResNet: no picture sees its neighbours. Group norms stand where batch norms stood, filters have mean 0 and
variance 1, and norms and ReLUs go before the convolutions (He et al. 2016), so that what is added up is never cut off. Its
first three stages, with norms behind the convolutions, make the patches of ViT's and DPT's hybrids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from regard.errors import SettingError, WeightsError
from regard.nn.vision.convnet import bit, convolutional_weights, inner_width
from regard.nn.vision.dense import Tap
from regard.systems.common import vision
from regard.systems.common.system import Preset, System
from regard.weights.tables import Names, Published, Tensors, entry, under

STAGES = 4


@dataclass(frozen=True)
class Config:
    size: int = 224
    """side of the pictures it was made for; others are read too"""
    channels: int = 3
    """of a picture: 3 are red, green and blue"""
    start: int = 64
    """channels of the first convolution"""
    widths: tuple[int, ...] = (256, 512, 1024, 2048)
    """channels of each of the four stages; the convolutions of 3 x 3 have a quarter of them"""
    depths: tuple[int, ...] = (3, 4, 6, 3)
    """blocks of each of the four stages"""
    before: bool = True
    """norms and ReLUs go before the convolutions; else behind them, as in hybrids"""
    padding: Literal["even", "same"] = "even"
    """zeros around a map that is halved: as many on each side, or as TensorFlow puts them (same)"""
    fits: bool = False
    """the pool after the first convolution is padded as TensorFlow does"""
    groups: int = 32
    """groups of channels that are normalised together"""
    stride: int = 32
    """pixels from one place of the last map to the next: later stages do not halve their maps any more where fewer are asked"""
    head_dropout: float = 0.0
    """share dropped of what a task's head reads"""

    def __post_init__(self) -> None:
        for name in ("size", "channels", "groups"):
            if getattr(self, name) < 1:
                raise SettingError(f"model.{name} must be at least 1, not {getattr(self, name)}.")
        for name in ("widths", "depths"):
            found = getattr(self, name)
            if len(found) != STAGES or min(found) < 1:
                raise SettingError(f"model.{name} are {STAGES} numbers of at least 1, one a stage, not {found}.")
        if any(width % 8 for width in self.widths):
            raise SettingError(f"model.widths must be multiples of 8, not {self.widths}.")
        for width in (self.start, *self.widths, *map(inner_width, self.widths)):
            if width < 1 or width % self.groups:
                raise SettingError(f"{width} channels cannot be divided among model.groups {self.groups}.")
        if self.stride < 4 or self.stride.bit_count() > 1:
            raise SettingError(f"model.stride must be 4, 8, 16 or 32, not {self.stride}.")
        if not 0 <= self.head_dropout < 1:
            raise SettingError(f"model.head_dropout must be in [0, 1), not {self.head_dropout}.")

    @property
    def features(self) -> int:
        """Width of the summary."""
        return self.widths[-1]

    @property
    def head_std(self) -> float:
        """How a new matrix for classes begins: at 0, so that none is likelier at first."""
        return 0.0

    def maps(self) -> tuple[Tap, ...]:
        """What dense heads read: each stage."""
        return tuple(
            Tap(stage, width, min(4 * 2**stage, self.stride), flat=False) for stage, width in enumerate(self.widths)
        )


CUT: dict[str, Any] = {"crop": 0.08, "flip": True}
PRESETS = {"bit-50": Preset(Config(), 23_500_352, vision.ninety(CUT))}
"""Counted without the matrix for classes, which comes with the data."""


def build(config: Config) -> nn.Module:
    """The whole machine, which hybrids have in them too: see `bit`."""
    body = bit(
        config.channels, config.start, config.widths, config.depths, before=config.before, same=config.padding == "same",
        fits=config.fits, groups=config.groups, stride=config.stride,
    )  # fmt: skip
    return convolutional_weights(body)


NAMES = Names(
    entries=(
        *vision.bit_stages("", "bit", STAGES),
        entry("norm.{part}", "bit.norm.{part}"),
        entry("head.classes.{part}", "classifier.1.{part}"),
    ),
    heads=("classifier.*",),
)


def _filled(fields: dict[str, Any]) -> dict[str, Any]:
    """There, how zeros are put is nothing, or a word in letters of either size."""
    told = fields["padding"]
    if told is not None and str(told).lower() != "same":
        raise WeightsError(f"config.json: global_padding={told!r} is not supported; null and 'SAME' are.")
    return {**fields, "padding": "even" if told is None else "same"}


def _written(fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "padding": None if fields["padding"] == "even" else "SAME"}


PUBLISHED = Published(
    model_type="bit",
    architecture="BitModel",
    keys={
        "channels": ("num_channels",), "start": ("embedding_size",), "widths": ("hidden_sizes",), "depths": ("depths",),
        "before": ("layer_type",), "padding": ("global_padding",), "fits": ("embedding_dynamic_padding",),
        "groups": ("num_groups",), "stride": ("output_stride",),
    },
    defaults={
        "num_channels": 3, "embedding_size": 64, "hidden_sizes": [256, 512, 1024, 2048], "depths": [3, 4, 6, 3],
        "layer_type": "preactivation", "embedding_dynamic_padding": False, "num_groups": 32, "output_stride": 32,
    },
    fixed={"hidden_act": "relu", "width_factor": 1, "drop_path_rate": 0.0},
    harmless=("out_features", "out_indices", "_out_*", "stage_names"),
    values={"before": {"preactivation": True, "bottleneck": False}},
    filled=_filled,
    written_as=_written,
    heads={"classify": "BitForImageClassification"},
)  # fmt: skip


def adapt(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Files of the bare body have no prefix."""
    return config, under(tensors, "bit.", ("classifier.*",))


RECIPES = {
    "segment": vision.ninety({**CUT, "crop": 0.5}, passes=100, images=16, accumulate=1, rate=5e-4, smoothing=0.0),
    "depth": vision.ninety({**CUT, "crop": 1.0}, passes=50, images=16, accumulate=1, rate=5e-4, smoothing=0.0),
}

FURTHER = {
    "classify": vision.ninety(
        {"crop": 0.5, "flip": True, "mixup": 0.1}, passes=10, images=64, accumulate=1, rate=1e-4, decay=0.0
    ),
    "segment": vision.ninety({**CUT, "crop": 0.5}, passes=50, images=16, accumulate=1, rate=1e-4, smoothing=0.0),
    "depth": vision.ninety({**CUT, "crop": 1.0}, passes=25, images=16, accumulate=1, rate=1e-4, smoothing=0.0),
}  # fmt: skip
"""For weights that have learnt already."""

SYSTEM = System(
    name="bit", about="ResNet with group norms, made to be tuned on few pictures", config=Config, presets=PRESETS,
    build=build, tasks=("classify", "segment", "depth"), reads="pictures", names=NAMES, published=PUBLISHED, adapt=adapt,
    recipes=RECIPES, further=FURTHER,
)  # fmt: skip
