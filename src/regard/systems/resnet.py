"""Deep Residual Learning for Image Recognition (He et al. 2015): the ResNet, all convolutions, as the baseline of pictures.

What is new against convolutions before it: a block learns what is to be added to what it reads, so that nets of 50 and more
layers learn as easily as short ones; the Transformer has its residuals from here. Of attention there is none: what lies far
apart meets only in the coarse maps of the last stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import nn

from regard.errors import SettingError
from regard.nn.vision.convnet import (
    BatchNorm,
    Convolution,
    Convolutional,
    Stem,
    classic_block,
    classic_stage,
    convolutional_weights,
)
from regard.nn.vision.dense import Tap
from regard.systems.common import vision
from regard.systems.common.system import Preset, System
from regard.weights.tables import Entry, Names, Published, Tensors, entry, under

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
    """channels of each of the four stages"""
    depths: tuple[int, ...] = (3, 4, 6, 3)
    """blocks of each of the four stages"""
    block: Literal["bottleneck", "basic"] = "bottleneck"
    """two convolutions of 3 x 3 (basic), or one between two of 1 x 1 that make it four times narrower and wide again"""
    kernel: int = 7
    """side of the first convolution's filters"""
    stride: int = 2
    """pixels from one place of the first convolution to the next"""
    pool: bool = True
    """the first map is halved by taking the largest of each 3 x 3 places"""
    coarse: bool = False
    """the first stage halves its map too, as the later ones do"""
    early: bool = False
    """in bottlenecks the first convolution takes the stride, as in the paper; else that of 3 x 3, which knows more"""
    head_dropout: float = 0.0
    """share dropped of what a task's head reads"""

    def __post_init__(self) -> None:
        for name in ("size", "channels", "start", "kernel", "stride"):
            if getattr(self, name) < 1:
                raise SettingError(f"model.{name} must be at least 1, not {getattr(self, name)}.")
        if self.kernel % 2 == 0:
            raise SettingError(f"model.kernel must be odd, so that a filter has a middle, not {self.kernel}.")
        least = 4 if self.block == "bottleneck" else 1
        for name, small in (("widths", least), ("depths", 1)):
            found = getattr(self, name)
            if len(found) != STAGES or min(found) < small:
                raise SettingError(f"model.{name} are {STAGES} numbers of at least {small}, one a stage, not {found}.")
        if not 0 <= self.head_dropout < 1:
            raise SettingError(f"model.head_dropout must be in [0, 1), not {self.head_dropout}.")

    @property
    def features(self) -> int:
        """Width of the summary."""
        return self.widths[-1]

    def maps(self) -> tuple[Tap, ...]:
        """What dense heads read: each stage."""
        first = self.stride * (1 + self.pool) * (1 + self.coarse)
        return tuple(Tap(stage, width, first * 2**stage, flat=False) for stage, width in enumerate(self.widths))


CUT: dict[str, Any] = {"crop": 0.08, "flip": True, "colour": 0.4}
FIFTY = Config()

PRESETS = {
    "resnet-tiny": Preset(
        replace(FIFTY, size=28, start=32, widths=(32, 64, 128, 256), depths=(2, 2, 2, 2), block="basic", kernel=3,
                stride=1, pool=False),
        2_795_040,
        vision.ninety({}, passes=30, accumulate=1, rate=2e-3),
    ),
    "resnet-18": Preset(
        replace(FIFTY, widths=(64, 128, 256, 512), depths=(2, 2, 2, 2), block="basic"), 11_176_512, vision.ninety(CUT)
    ),
    "resnet-50": Preset(FIFTY, 23_508_032, vision.ninety(CUT)),
}  # fmt: skip
"""Counted without the matrix for classes, which comes with the data: with a thousand of them 11,689,512 and 25,557,032."""


def build(config: Config) -> nn.Module:
    """The whole machine."""

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        return classic_block(inputs, outputs, stride, config.block == "bottleneck", config.early)

    body = Convolutional(
        Stem(
            Convolution(config.channels, config.start, config.kernel, config.stride),
            norm=BatchNorm(config.start),
            pool=nn.MaxPool2d(3, 2, padding=1) if config.pool else None,
        ),
        stages=[
            classic_stage(block, inputs, outputs, depth, stride=2 if stage or config.coarse else 1)
            for stage, (inputs, outputs, depth) in enumerate(
                zip((config.start, *config.widths[:-1]), config.widths, config.depths, strict=True)
            )
        ],
    )
    return convolutional_weights(body)


def _unit(ours: str, theirs: str) -> Iterator[Entry]:
    """A convolution and its batch norm, with the statistics that it has gathered."""
    yield entry(f"{ours}.conv.weight", f"{theirs}.convolution.weight")
    yield entry(f"{ours}.norm.{{part}}", f"{theirs}.normalization.{{part}}")
    for part in vision.GATHERED:
        yield entry(f"{ours}.norm.{part}", f"{theirs}.normalization.{part}")


def _stage(stage: int) -> Iterator[Entry]:
    ours, theirs = f"stages.{stage}.{{n}}", f"resnet.encoder.stages.{stage}.layers.{{n}}"
    for unit in range(3):
        yield from _unit(f"{ours}.units.{unit}", f"{theirs}.layer.{unit}")
    yield from _unit(f"{ours}.shortcut", f"{theirs}.shortcut")


NAMES = Names(
    entries=(
        *_unit("stem", "resnet.embedder.embedder"),
        *(item for stage in range(STAGES) for item in _stage(stage)),
        entry("head.classes.{part}", "classifier.1.{part}"),
    ),
    heads=("classifier.*",),
)

PUBLISHED = Published(
    model_type="resnet",
    architecture="ResNetModel",
    keys={
        "channels": ("num_channels",), "start": ("embedding_size",), "widths": ("hidden_sizes",), "depths": ("depths",),
        "block": ("layer_type",), "coarse": ("downsample_in_first_stage",), "early": ("downsample_in_bottleneck",),
    },
    defaults={
        "num_channels": 3, "embedding_size": 64, "hidden_sizes": [256, 512, 1024, 2048], "depths": [3, 4, 6, 3],
        "layer_type": "bottleneck", "downsample_in_first_stage": False, "downsample_in_bottleneck": False,
    },
    fixed={"hidden_act": "relu"},
    harmless=("out_features", "out_indices", "_out_*", "stage_names"),
    heads={"classify": "ResNetForImageClassification"},
)  # fmt: skip


def adapt(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Files of the bare body have no prefix."""
    return config, under(vision.uncounted(tensors), "resnet.", ("classifier.*",))


def unsayable(config: Config) -> str:
    if (config.kernel, config.stride, config.pool) == (7, 2, True):
        return ""
    return (
        "the published layout begins with a convolution of 7 x 7 at every second pixel and a pool; this model has "
        f"kernel={config.kernel}, stride={config.stride} and pool={config.pool}."
    )


RECIPES = {
    "segment": vision.ninety({**CUT, "crop": 0.5}, passes=100, images=16, accumulate=1, rate=5e-4, smoothing=0.0),
    "depth": vision.ninety({**CUT, "crop": 1.0}, passes=50, images=16, accumulate=1, rate=5e-4, smoothing=0.0),
}

FURTHER = {
    "classify": vision.ninety(
        {**CUT, "crop": 0.5}, passes=10, images=64, accumulate=1, rate=2e-4, warmup=0.1, decay=0.01
    ),
    "segment": vision.ninety({**CUT, "crop": 0.5}, passes=50, images=16, accumulate=1, rate=1e-4, smoothing=0.0),
    "depth": vision.ninety({**CUT, "crop": 1.0}, passes=25, images=16, accumulate=1, rate=1e-4, smoothing=0.0),
}
"""For weights that have learnt already."""

SYSTEM = System(
    name="resnet", about="residual convolutions of 2015, the baseline of pictures", config=Config, presets=PRESETS,
    build=build, tasks=("classify", "segment", "depth"), reads="pictures", names=NAMES, published=PUBLISHED, adapt=adapt,
    dress=lambda config, tensors: vision.counted(tensors), unsayable=unsayable, recipes=RECIPES, further=FURTHER,
)  # fmt: skip
