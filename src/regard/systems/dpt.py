"""Vision Transformers for Dense Prediction (Ranftl, Bochkovskiy, Koltun 2021): DPT, one prediction per pixel.

Differences from ViT: the hidden states of four blocks, before the final norm, are reassembled into feature maps of four
sizes and fused from coarse to fine (nn/vision/dense.py), with global attention at every size. The hybrid takes the two
finest maps from its convolutional backbone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from regard.errors import WeightsError
from regard.nn.vision.dense import FeatureTap, NeckConfig, Readout, check_neck, sequence_maps
from regard.nn.vision.patches import GridPosition, PatchEmbedding, VisionTransformer
from regard.systems.common import recipes, vision
from regard.systems.common.bert import ACTIVATIONS
from regard.systems.common.system import LARGE, System, presets, reject, sizes
from regard.weights.tables import NameTable, PublishedLayout, Tensors


@dataclass(frozen=True)
class Config(vision.BackboneConfig):
    image_size: int = 384
    hybrid: bool = False
    norm_eps: float = 1e-12
    out_layers: tuple[int, ...] = (2, 5, 8, 11)
    neck_dims: tuple[int, ...] = (96, 192, 384, 768)
    reassemble_factors: tuple[float, ...] = (4, 2, 1, 0.5)
    readout: Readout = "project"
    fusion_dim: int = 256
    fusion_batch_norm: bool | None = None
    fusion_bias: bool | None = None
    head_dropout: float = 0.1
    auxiliary_head: bool = True

    def check(self) -> None:
        vision.check_patch_size(self)
        check_neck(self, self.out_layers[2:] if self.hybrid else self.out_layers)
        if self.hybrid:
            reject(
                len(self.backbone_depths) != 3 or min(self.backbone_depths) < 1 or self.patch_size != 16,
                f"model.hybrid=true requires three values in model.backbone_depths, got {self.backbone_depths}, and "
                "model.patch_size=16.",
            )
            vision.check_backbone(self)
            reject(self.readout != "project", f"model.hybrid=true requires model.readout=project, got {self.readout}.")

    def feature_maps(self) -> tuple[FeatureTap, ...]:
        taps = sequence_maps(self.out_layers, self.width, self.patch_size)
        return vision.backbone_maps(self) + taps[2:] if self.hybrid else taps

    def neck(self) -> NeckConfig:
        maps = self.neck_dims, self.fusion_dim, self.reassemble_factors, self.readout, self.activation
        return NeckConfig(*maps, self.fusion_batch_norm, self.fusion_bias, True, self.head_dropout, self.auxiliary_head)

    def resolve_fusion_norm(self, classifies: bool) -> Self:
        """Published configs store the value of `fusion_batch_norm`, which depends on the task if None."""
        return replace(self, fusion_batch_norm=classifies) if self.fusion_batch_norm is None else self


SMALL: dict[str, Any] = sizes(256, 8, 4) | {
    "image_size": 192,
    "out_layers": (1, 3, 5, 7),
    "neck_dims": (64, 128, 256, 256),
    "fusion_dim": 64,
    "dropout": 0.1,
}
SMALL_HYBRID: dict[str, Any] = SMALL | {
    "hybrid": True,
    "backbone_depths": (2, 2, 2),
    "stem_channels": 16,
    "norm_groups": 8,
    "depth": 6,
    "out_layers": (1, 2, 3, 5),
}
LARGE_NECK: dict[str, Any] = {"out_layers": (5, 11, 17, 23), "neck_dims": (256, 512, 1024, 1024)}
PRESETS = presets(
    Config(),
    ("dpt-small", 9_021_153, recipes.get("dpt_small"), SMALL),
    ("dpt-hybrid-small", 7_087_025, recipes.get("dpt_small"), SMALL_HYBRID),
    ("dpt-base", 110_878_081, recipes.get("dpt"), {}),
    ("dpt-large", 343_030_465, recipes.get("dpt"), LARGE | LARGE_NECK),
    ("dpt-hybrid", 122_377_985, recipes.get("dpt"), {"hybrid": True, "neck_dims": (256, 512, 768, 768)}),
)
"""Parameter counts of depth models. With 150 classes, dpt-large has 343,960,364 and dpt-hybrid 123,307,884."""


def build(config: Config) -> VisionTransformer:
    """The body; heads for depth and segmentation are in nn/vision/dense.py."""
    size, channels = (1, config.widths[-1]) if config.hybrid else (config.patch_size, config.in_channels)
    patches = PatchEmbedding(config.width, size, channels)
    position = GridPosition(config.image_size // config.patch_size, config.width, interpolation="bilinear")
    body = vision.build_vit(config, patches, position, backbone=config.hybrid)
    # in all checkpoints, but not used: features are read before this norm
    body.encoder.norm.requires_grad_(False)
    return body


PIXELS, PLACES = "dpt.embeddings.patch_embeddings.projection.", "dpt.embeddings.projection."
"""Prefixes of the patch projection from pixels, and from feature-map cells."""


def _after_read(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields from the config with a nested backbone."""
    backbone, read = fields["backbone_depths"], vision.require_square(fields)
    read |= {"backbone_depths": Config.backbone_depths, "fusion_batch_norm": bool(fields["fusion_batch_norm"])}
    if read["hybrid"]:
        return {**read, **vision.read_backbone_config(backbone, read["in_channels"], all_stages=True)}
    if backbone:
        raise WeightsError(f"config.json: backbone '{backbone.get('model_type')}' is not supported for DPT.")
    return read


def _before_write(fields: dict[str, Any]) -> dict[str, Any]:
    config, side = Config(**fields), fields["image_size"] // fields["patch_size"]
    # kernel sizes of transposed convolutions must be integers
    factors = [int(factor) if factor % 1 == 0 else factor for factor in config.reassemble_factors]
    nested = vision.write_backbone(config, (1, 2, 3), side) if config.hybrid else {"backbone_depths": None, "map": None}
    return {**fields, "reassemble_factors": factors, **nested, "early": [0, 1] if config.hybrid else []}


def from_published(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Detect the auxiliary head, and rename the patch projection."""
    if "head.head.1.weight" in tensors:
        config = replace(config, auxiliary_head="auxiliary_head.head.4.weight" in tensors)
    return config, {name.replace(PLACES, PIXELS): tensor for name, tensor in tensors.items()}


def to_published(config: Config, tensors: Tensors) -> Tensors:
    """Rename the patch projection of hybrids, and add batch counters."""
    if config.hybrid:
        tensors = {name.replace(PIXELS, PLACES): tensor for name, tensor in tensors.items()}
    return vision.add_batch_counts(config, tensors)


PUBLISHED = PublishedLayout(
    model_type="dpt",
    architecture="DPTForDepthEstimation",
    keys={
        **vision.KEYS, "out_layers": ("backbone_out_indices",),
        "neck_dims": ("neck_hidden_sizes",), "reassemble_factors": ("reassemble_factors",), "readout": ("readout_type",),
        "fusion_dim": ("fusion_hidden_size",), "fusion_batch_norm": ("use_batch_norm_in_fusion_residual",),
        "fusion_bias": ("use_bias_in_fusion_residual",), "head_dropout": ("semantic_classifier_dropout",),
        "auxiliary_head": ("use_auxiliary_head",), "backbone_depths": ("backbone_config",), "hybrid": ("is_hybrid",),
    },
    config=Config,
    fixed={"qkv_bias": True, "add_projection": False, "head_in_index": -1, **vision.BACKBONE_FIXED},
    ignored_keys=(
        "initializer_range", "auxiliary_loss_weight", "semantic_loss_ignore_index", "backbone_featmap_shape",
        "neck_ignore_stages", "backbone_kwargs", "pooler_*", "is_encoder_decoder",
    ),
    copied_fields={"backbone_featmap_shape": "map", "neck_ignore_stages": "early"},
    value_maps={"activation": ACTIVATIONS},
    after_read=_after_read,
    before_write=_before_write,
    head_architectures={"depth": "DPTForDepthEstimation", "segment": "DPTForSemanticSegmentation"},
    names=NameTable(
        entries=(
            *vision.bit_entries("front.", "dpt.embeddings.backbone.bit"),
            *vision.vit_entries("dpt"),
            *vision.DPT_HEAD_ENTRIES,
        ),
        drop=(f"*{vision.BATCH_COUNT}",),
        heads=("neck.*", "head.*", "auxiliary_head.*", "dpt.pooler.*"),
        prefix="dpt.",
    ),
    adapt_checkpoint=from_published,
    to_published=to_published,
)  # fmt: skip

DESCRIPTION = "DPT (2021), dense prediction: depth and segmentation"
SYSTEM = System("dpt", DESCRIPTION, Config, PRESETS, build, recipes.DPT, PUBLISHED)
