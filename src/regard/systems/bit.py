"""Big Transfer (Kolesnikov et al. 2019): a ResNet for pretraining on large datasets and transfer to small datasets.

Differences from ResNet: GroupNorm instead of BatchNorm, so that images of a batch are independent; weight
standardization; norm and ReLU before each convolution (He et al. 2016), so that the residual stream has no ReLU. The
first three stages, with norms after the convolutions, are the backbone of the ViT and DPT hybrids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from regard.errors import WeightsError
from regard.nn.vision.convnet import bit_body, bottleneck_width, init_resnet_weights
from regard.nn.vision.dense import FeatureTap
from regard.systems.common import recipes, vision
from regard.systems.common.system import System, check_stages, presets, reject
from regard.weights.tables import NameTable, PublishedLayout, layer

STAGES = 4


@dataclass(frozen=True)
class Config(vision.ConvConfig):
    pre_activation: bool = True
    padding: Literal["even", "same"] = "even"
    stem_same_padding: bool = False
    norm_groups: int = 32
    output_stride: int = 32

    head_std = 0.0

    def check(self) -> None:
        check_stages(self, ("widths", "depths"), STAGES)
        reject(any(width % 8 for width in self.widths), f"model.widths must be multiples of 8, got {self.widths}.")
        for width in (self.stem_channels, *self.widths, *map(bottleneck_width, self.widths)):
            reject(
                width < 1 or width % self.norm_groups,
                f"model.norm_groups={self.norm_groups} does not divide a layer of {width} channels.",
            )
        reject(
            self.output_stride < 4 or self.output_stride.bit_count() > 1,
            f"model.output_stride must be 4, 8, 16 or 32, got {self.output_stride}.",
        )

    def feature_maps(self) -> tuple[FeatureTap, ...]:
        return vision.stage_maps(self.widths, 4, self.output_stride)


PRESETS = presets(Config(), ("bit-50", 23_500_352, recipes.get("resnet", recipes.BIT_DATA), {}))


def build(config: Config) -> nn.Module:
    """The body is shared with hybrids: see `bit_body`."""
    body = bit_body(
        config.in_channels,
        config.stem_channels,
        config.widths,
        config.depths,
        pre_norm=config.pre_activation,
        same_padding=config.padding == "same",
        pad_pool=config.stem_same_padding,
        groups=config.norm_groups,
        output_stride=config.output_stride,
    )
    return init_resnet_weights(body)


def _after_read(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields with `global_padding` (null, or SAME in any case) as `padding`."""
    told = fields["padding"]
    if told is not None and str(told).lower() != "same":
        raise WeightsError(f"config.json: global_padding={told!r} is not supported. Supported: null, 'SAME'.")
    return {**fields, "padding": "even" if told is None else "same"}


PUBLISHED = PublishedLayout(
    model_type="bit",
    architecture="BitModel",
    keys={
        **vision.CONV_KEYS,
        "pre_activation": ("layer_type",),
        "padding": ("global_padding",),
        "stem_same_padding": ("embedding_dynamic_padding",),
        "norm_groups": ("num_groups",),
        "output_stride": ("output_stride",),
    },
    config=Config,
    fixed={"hidden_act": "relu", "width_factor": 1, "drop_path_rate": 0.0},
    ignored_keys=("out_features", "out_indices", "_out_*", "stage_names"),
    value_maps={"pre_activation": {"preactivation": True, "bottleneck": False}},
    after_read=_after_read,
    before_write=lambda fields: {**fields, "padding": None if fields["padding"] == "even" else "SAME"},
    head_architectures={"classify": "BitForImageClassification"},
    names=NameTable(
        entries=(*vision.bit_entries("", "bit"), layer("norm", "bit.norm"), layer("head.classes", "classifier.1")),
        heads=("classifier.*",),
        prefix="bit.",
    ),
)


DESCRIPTION = "BiT (Big Transfer, 2019): ResNet-v2 with GroupNorm and weight standardization"
SYSTEM = System("bit", DESCRIPTION, Config, PRESETS, build, recipes.BIT, PUBLISHED)
