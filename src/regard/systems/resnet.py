"""Deep Residual Learning for Image Recognition (He et al. 2015): ResNet, the convolutional baseline for images.

Differences from earlier CNNs: residual connections, so that networks with 50 and more layers are easy to train; the
Transformer has the same connections. Without attention, distant pixels interact only in the coarse maps of the last
stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from regard.nn.vision import convnet
from regard.nn.vision.dense import FeatureTap
from regard.systems.common import recipes, vision
from regard.systems.common.system import System, check_stages, presets, reject
from regard.weights.tables import NameTable, PublishedLayout, entry, layer

STAGES = 4


@dataclass(frozen=True)
class Config(vision.ConvConfig):
    block_type: Literal["bottleneck", "basic"] = "bottleneck"
    stem_kernel: int = 7
    stem_stride: int = 2
    stem_pool: bool = True
    downsample_first_stage: bool = False
    downsample_in_bottleneck: bool = False

    def check(self) -> None:
        reject(self.stem_kernel % 2 == 0, f"model.stem_kernel must be odd, got {self.stem_kernel}.")
        check_stages(self, ("widths",), STAGES, minimum=4 if self.block_type == "bottleneck" else 1)
        check_stages(self, ("depths",), STAGES)

    def feature_maps(self) -> tuple[FeatureTap, ...]:
        first = self.stem_stride * (1 + self.stem_pool) * (1 + self.downsample_first_stage)
        return vision.stage_maps(self.widths, first)


BASIC: dict[str, Any] = {"depths": (2, 2, 2, 2), "block_type": "basic"}
TINY: dict[str, Any] = {"image_size": 28, "stem_channels": 32, "stem_kernel": 3, "stem_stride": 1, "stem_pool": False}
TINY_RECIPE = recipes.get("resnet", {}, epochs=30, grad_accum=1, lr=2e-3)
PRESETS = presets(
    Config(),
    ("resnet-tiny", 2_795_040, TINY_RECIPE, BASIC | TINY | {"widths": (32, 64, 128, 256)}),
    ("resnet-18", 11_176_512, recipes.get("resnet", recipes.RESNET_DATA), BASIC | {"widths": (64, 128, 256, 512)}),
    ("resnet-50", 23_508_032, recipes.get("resnet", recipes.RESNET_DATA), {}),
)
"""Parameter counts without the classification matrix; with 1,000 classes, 11,689,512 (resnet-18) and 25,557,032
(resnet-50)."""


def build(config: Config) -> nn.Module:
    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        return convnet.resnet_block(
            inputs, outputs, stride, config.block_type == "bottleneck", config.downsample_in_bottleneck
        )

    body = convnet.ConvBody(
        convnet.Stem(
            convnet.Convolution(config.in_channels, config.stem_channels, config.stem_kernel, config.stem_stride),
            norm=convnet.BatchNorm(config.stem_channels),
            pool=nn.MaxPool2d(3, 2, padding=1) if config.stem_pool else None,
        ),
        stages=[
            [block(inputs, outputs, 1 + bool(stage or config.downsample_first_stage))]
            + [block(outputs, outputs, 1) for _ in range(depth - 1)]
            for stage, (inputs, outputs, depth) in enumerate(
                zip((config.stem_channels, *config.widths[:-1]), config.widths, config.depths, strict=True)
            )
        ],
    )
    return convnet.init_resnet_weights(body)


LAYER = "resnet.encoder.stages.{stage}.layers.{n}"
PUBLISHED = PublishedLayout(
    model_type="resnet",
    architecture="ResNetModel",
    keys={
        **vision.CONV_KEYS,
        "block_type": ("layer_type",),
        "downsample_first_stage": ("downsample_in_first_stage",),
        "downsample_in_bottleneck": ("downsample_in_bottleneck",),
    },
    config=Config,
    fixed={"hidden_act": "relu"},
    ignored_keys=("out_features", "out_indices", "_out_*", "stage_names"),
    head_architectures={"classify": "ResNetForImageClassification"},
    names=NameTable(
        entries=(
            entry("stem.conv.weight", "resnet.embedder.embedder.convolution.weight"),
            layer("stem.norm", "resnet.embedder.embedder.normalization"),
            entry("stages.{stage}.{n}.units.{unit}.conv.weight", f"{LAYER}.layer.{{unit}}.convolution.weight"),
            layer("stages.{stage}.{n}.units.{unit}.norm", f"{LAYER}.layer.{{unit}}.normalization"),
            entry("stages.{stage}.{n}.shortcut.conv.weight", f"{LAYER}.shortcut.convolution.weight"),
            layer("stages.{stage}.{n}.shortcut.norm", f"{LAYER}.shortcut.normalization"),
            layer("head.classes", "classifier.1"),
        ),
        drop=(f"*{vision.BATCH_COUNT}",),
        heads=("classifier.*",),
        prefix="resnet.",
    ),
    to_published=vision.add_batch_counts,
    required={"stem_kernel": 7, "stem_stride": 2, "stem_pool": True},
    requirement="ResNet requires model.stem_kernel=7, model.stem_stride=2 and model.stem_pool=true",
)


SYSTEM = System("resnet", "ResNet (2015), convolutional baseline", Config, PRESETS, build, recipes.RESNET, PUBLISHED)
